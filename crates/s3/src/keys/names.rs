//! The names of all keys that are accepted, so that requests with invented ones do not reach the metadata store.
//!
//! Anybody may send any access key. A cache of names that were looked up in vain would not help against names that are
//! never repeated, so the names that exist are read instead: after a look-up in vain, and at most once in
//! [`REVALIDATE_AFTER`](super::REVALIDATE_AFTER). Until that time has passed, every other unknown name is refused from memory. A
//! key that this process makes works at once, one that another process makes after that time.

use std::collections::HashSet;
use std::time::Duration;

use parking_lot::Mutex;
use striate_runtime::Instant;

/// Maximum number of names that are held. A cluster with more looks every unknown name up.
pub(super) const MOST_NAMES: usize = 10_000;

/// The names of the accepted keys, if they were read lately.
#[derive(Default)]
pub(super) struct AcceptedNames(Mutex<State>);

#[derive(Default)]
struct State {
    /// Counts changes by this process.
    generation: u64,
    is_reading: bool,
    read: Option<(Instant, HashSet<String>)>,
}

/// A reading of all names that has begun. Dropped without [`Reading::finish`], it counts as failed.
pub(super) struct Reading<'a> {
    names: &'a AcceptedNames,
    generation: u64,
    began: Instant,
}

impl AcceptedNames {
    /// Returns whether `name` is known not to exist.
    pub(super) fn exclude(&self, name: &str, now: Instant, fresh_for: Duration) -> bool {
        let state = self.0.lock();
        let fresh =
            state.read.as_ref().filter(|(began, _)| now.saturating_duration_since(*began) < fresh_for);
        fresh.is_some_and(|(_, names)| !names.contains(name))
    }

    /// Forgets the names after this process has changed a key.
    pub(super) fn forget(&self) {
        let mut state = self.0.lock();
        state.generation += 1;
        state.read = None;
    }

    /// Begins to read the names; `None` while another reading runs.
    pub(super) fn begin(&self, now: Instant) -> Option<Reading<'_>> {
        let mut state = self.0.lock();
        if std::mem::replace(&mut state.is_reading, true) {
            return None;
        }
        Some(Reading { names: self, generation: state.generation, began: now })
    }
}

impl Reading<'_> {
    /// Takes the names that were read, unless this process changed a key meanwhile.
    pub(super) fn finish(self, names: HashSet<String>) {
        let mut state = self.names.0.lock();
        if state.generation == self.generation && names.len() <= MOST_NAMES {
            state.read = Some((self.began, names));
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.names.0.lock().is_reading = false;
    }
}

#[cfg(test)]
mod tests {
    use striate_runtime::Runtime;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn names_read_before_a_change_are_not_taken() {
        let (names, start) = (AcceptedNames::default(), Runtime::deterministic(1, Duration::ZERO).now());
        assert!(!names.exclude("a", start, SECOND), "nothing is known");
        let reading = names.begin(start).unwrap();
        assert!(names.begin(start).is_none(), "one at a time");
        reading.finish(HashSet::from(["a".to_owned()]));
        assert!(names.exclude("b", start, SECOND) && !names.exclude("a", start, SECOND));
        assert!(!names.exclude("b", start + SECOND, SECOND), "too old");
        let reading = names.begin(start).unwrap();
        names.forget();
        reading.finish(HashSet::new());
        assert!(!names.exclude("a", start, SECOND), "a may be new");
    }
}
