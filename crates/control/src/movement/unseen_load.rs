//! Load that has moved with chunks but that the sites' reported loads do not show yet.
//!
//! Reports lag: a site's meter decays over [`MEMORY`], and each report counts half beside the earlier ones
//! ([`striate_plan::SiteLoad::smoothed`]). A mover that trusted the reports would send one chunk after the other to
//! the same idle site. Both effects are linear, so two numbers for each site give exactly what is not shown yet.

use std::collections::BTreeMap;

use striate_core::SiteId;
use striate_runtime::Instant;
use striate_site::load::MEMORY;

use crate::statistics::SiteLoadView;

/// Load not shown yet, for each site.
#[derive(Debug, Default)]
pub(super) struct UnseenLoad {
    last: Vec<SiteLoadView>,
    of_sites: BTreeMap<SiteId, LoadShift>,
}

/// Load that was added to a site, or removed if negative.
#[derive(Clone, Copy, Debug)]
struct LoadShift {
    /// Load that the site's own meter did not show at `at`.
    unmetered: f64,
    at: Instant,
    /// Load that the statistics do not show.
    unshown: f64,
}

impl LoadShift {
    /// Decays the meter's memory.
    fn fade(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.at);
        self.unmetered *= (-since.as_secs_f64() / MEMORY.as_secs_f64()).exp();
        self.at = now;
    }
}

impl UnseenLoad {
    /// Records that a move has just added these loads to sites, or removed them.
    pub(super) fn note(&mut self, now: Instant, shifts: &[(SiteId, f64)]) {
        for &(site, load) in shifts {
            let none = LoadShift { unmetered: 0.0, at: now, unshown: 0.0 };
            let hidden = self.of_sites.entry(site).or_insert(none);
            hidden.fade(now);
            hidden.unmetered += load;
            hidden.unshown += load;
        }
    }

    /// Takes over the current statistics. If they have changed since the last call, they show more of the load.
    pub(super) fn hear(&mut self, now: Instant, loads: Vec<SiteLoadView>) {
        if self.last == loads {
            return;
        }
        for hidden in self.of_sites.values_mut() {
            hidden.fade(now);
            hidden.unshown = f64::midpoint(hidden.unshown, hidden.unmetered);
        }
        self.last = loads;
    }

    /// Returns the load of each site that the statistics do not show.
    pub(super) fn loads(&self) -> impl Iterator<Item = (SiteId, f64)> + '_ {
        self.of_sites.iter().map(|(site, hidden)| (*site, hidden.unshown))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use striate_core::LoadReport;
    use striate_plan::SiteLoad;
    use striate_runtime::run_in_virtual_time;

    use super::*;

    /// From the move on, the load shown by the statistics and the unseen load add up to the real load.
    #[test]
    fn what_is_shown_and_what_is_unseen_are_the_load() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let mut unseen = UnseenLoad::default();
            let (mut metered, mut shown) = (0.2, SiteLoad { cpu: 0.0, io: 0.2, chunks: 0.0 });
            let view = |load: SiteLoad| {
                vec![SiteLoadView { site: SiteId(2), load, queue: 0.0, omega: load.io, imbalance: 0.0 }]
            };
            unseen.hear(runtime.now(), view(shown));
            runtime.sleep(Duration::from_secs(7)).await;
            unseen.note(runtime.now(), &[(SiteId(1), -0.3), (SiteId(2), 0.3)]);
            for pause_ms in [100, 2_000, 50, 50, 700, 10_000, 10_000, 10_000, 10_000] {
                let pause = Duration::from_millis(pause_ms);
                runtime.sleep(pause).await;
                metered += (0.5 - metered) * (1.0 - (-pause.as_secs_f64() / MEMORY.as_secs_f64()).exp());
                let io_permille = (metered * 1_000.0_f64).round() as u16;
                shown = shown.smoothed(&LoadReport { io_permille, ..LoadReport::default() });
                unseen.hear(runtime.now(), view(shown));
                unseen.hear(runtime.now(), view(shown));
                let hidden: BTreeMap<SiteId, f64> = unseen.loads().collect();
                assert!((shown.io + hidden[&SiteId(2)] - 0.5).abs() < 2e-3, "{shown:?} and {hidden:?}");
                assert_eq!(hidden[&SiteId(1)], -hidden[&SiteId(2)]);
            }
            assert!(unseen.loads().all(|(_, load)| load.abs() < 0.02));
        });
    }
}
