//! Thinning of log lines that repeat.
//!
//! A peer that is sent away, a connection that cannot be accepted, a disk that refuses: one line says it. An attack or a
//! loop makes thousands a second, which fill the disk of the log and hide every other line. So each place in the program
//! may log [`LINES`] lines in a minute. What exceeds that is counted, and at the end of the minute one line says how
//! many were left out, and of which place.
//!
//! A place and not a text is counted, because texts contain numbers that an attacker chooses. The audit log is not
//! thinned.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use striate_runtime::Runtime;
use tracing::callsite::Identifier;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

/// Lines of one place in a minute.
const LINES: u32 = 60;
const MINUTE: Duration = Duration::from_secs(60);

/// The lines of the current minute. Cheap to clone.
#[derive(Clone, Default)]
pub struct Thinning {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Whether minutes end: nothing is left out before.
    is_active: AtomicBool,
    places: Mutex<HashMap<Identifier, Place>>,
}

struct Place {
    lines: u32,
    file: &'static str,
    line: u32,
}

impl Thinning {
    /// Ends minutes until the task is dropped.
    pub async fn run(self, runtime: Runtime) {
        self.shared.is_active.store(true, Ordering::Relaxed);
        loop {
            runtime.sleep(MINUTE).await;
            for Place { lines, file, line } in self.end_minute() {
                let left_out = lines - LINES;
                tracing::warn!(
                    left_out,
                    from = format!("{file}:{line}"),
                    "log lines like others of this minute were left out"
                );
            }
        }
    }

    /// Forgets the lines of this minute, and returns the places of which some were left out.
    fn end_minute(&self) -> Vec<Place> {
        let places = std::mem::take(&mut *self.shared.places.lock());
        places.into_values().filter(|place| place.lines > LINES).collect()
    }

    /// Counts a line, and returns whether it is written.
    fn counts(&self, metadata: &'static Metadata<'static>) -> bool {
        let new = || {
            let file = metadata.file().unwrap_or_else(|| metadata.target());
            Place { lines: 0, file, line: metadata.line().unwrap_or(0) }
        };
        let mut places = self.shared.places.lock();
        let place = places.entry(metadata.callsite()).or_insert_with(new);
        place.lines = place.lines.saturating_add(1);
        place.lines <= LINES
    }
}

impl<S: Subscriber> Filter<S> for Thinning {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    // Levels are chosen by the filter beside it. It must not answer `always` for a place in advance: lines of which every
    // filter said so begin no pass of filters, and cannot be left out one by one.
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        !self.shared.is_active.load(Ordering::Relaxed) || self.counts(event.metadata())
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::{Layer, Registry};

    use super::*;

    /// Counts lines.
    #[derive(Clone, Default)]
    struct Counter(Arc<Mutex<u32>>);

    impl<S: Subscriber> Layer<S> for Counter {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            *self.0.lock() += 1;
        }
    }

    #[test]
    fn a_place_that_repeats_is_thinned_and_counted_and_others_are_not() {
        let (thinning, counter) = (Thinning::default(), Counter::default());
        let subscriber = Registry::default().with(counter.clone().with_filter(thinning.clone()));
        let lines = |count| (0..count).for_each(|number| tracing::warn!(number, "a peer was sent away"));
        tracing::subscriber::with_default(subscriber, || {
            lines(100);
            assert_eq!(*counter.0.lock(), 100, "nothing is left out before minutes end");
            thinning.shared.is_active.store(true, Ordering::Relaxed);
            lines(1_000);
            tracing::warn!("another place");
            assert_eq!(*counter.0.lock(), 100 + LINES + 1);
            let left_out: Vec<_> = thinning.end_minute().iter().map(|place| place.lines - LINES).collect();
            assert_eq!(left_out, [1_000 - LINES]);
            lines(1);
            assert_eq!(*counter.0.lock(), 100 + LINES + 2, "the next minute begins anew");
            assert!(thinning.end_minute().is_empty());
        });
    }
}
