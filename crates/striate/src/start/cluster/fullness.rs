//! How full the disks of this process are, and when they will be.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use striate_commands::admin::messages::SiteState;
use striate_core::SiteId;
use striate_plan::{FreeSample, time_until_full};

use super::Cluster;

/// Interval between two samples of the free space.
const SAMPLE_EVERY: Duration = Duration::from_secs(15);
/// Number of samples that are kept: those of six hours.
const SAMPLES: usize = 6 * 60 * 4;
/// Share of a disk, in hundredths, from which a warning says how full it is.
const WARNED_PERCENT: u64 = 85;
/// Free bytes below which a site is called full: it accepts not even a few chunks.
pub(super) const FULL_BYTES: u64 = 16 << 20;

/// Free space of each site over the last hours.
#[derive(Debug, Default)]
pub(super) struct Fullness(Mutex<BTreeMap<SiteId, VecDeque<FreeSample>>>);

impl Fullness {
    fn note(&self, site: SiteId, sample: FreeSample) {
        let mut sites = self.0.lock();
        let samples = sites.entry(site).or_default();
        samples.push_back(sample);
        if samples.len() > SAMPLES {
            samples.pop_front();
        }
    }

    fn keep_only(&self, known: &[SiteId]) {
        self.0.lock().retain(|site, _| known.contains(site));
    }

    /// Returns the time until a site is full at its present rate, if that can be known.
    pub(super) fn time_until_full(&self, site: SiteId) -> Option<Duration> {
        let mut sites = self.0.lock();
        time_until_full(sites.get_mut(&site)?.make_contiguous())
    }
}

impl Cluster {
    /// Samples the free space of this process's disks.
    pub(super) async fn watch_fullness(self) {
        loop {
            let at = self.inner.runtime.now() - self.inner.started;
            let free: Vec<(SiteId, u64)> = {
                let state = self.inner.state.lock();
                state.live.iter().map(|(site, live)| (*site, live.store_status().free_bytes)).collect()
            };
            self.inner.fullness.keep_only(&free.iter().map(|(site, _)| *site).collect::<Vec<_>>());
            for (site, free_bytes) in free {
                self.inner.fullness.note(site, FreeSample { at, free_bytes });
            }
            self.inner.runtime.sleep(SAMPLE_EVERY).await;
        }
    }

    /// Warns of disks that are nearly full, in one line for the fullest, and of each that is.
    pub(super) fn fullness_warnings(&self, sites: &[SiteState]) -> Vec<String> {
        fullness_warnings(sites, |site| self.inner.fullness.time_until_full(site))
    }
}

fn fullness_warnings(sites: &[SiteState], until_full: impl Fn(SiteId) -> Option<Duration>) -> Vec<String> {
    let (mut warnings, mut nearly) = (Vec::new(), Vec::new());
    for site in sites.iter().filter(|site| site.state == "ok" && site.capacity.total_bytes > 0) {
        let (free, total) = (site.capacity.free_bytes, site.capacity.total_bytes);
        let used = total.saturating_sub(free);
        let percent = (u128::from(used) * 100 / u128::from(total)) as u64;
        if free < FULL_BYTES {
            warnings.push(format!(
                "site {} on {} is full and takes no chunks; delete objects or add disks",
                site.site, site.address
            ));
        } else if percent >= WARNED_PERCENT {
            nearly.push((percent, site));
        }
    }
    let Some(&(percent, fullest)) = nearly.iter().max_by_key(|(percent, _)| *percent) else {
        return warnings;
    };
    let others = match nearly.len() - 1 {
        0 => String::new(),
        1 => ", and another disk nearly so".to_owned(),
        others => format!(", and {others} other disks nearly so"),
    };
    let soonest = nearly.iter().filter_map(|(_, site)| until_full(SiteId(site.site))).min();
    let when = soonest
        .map_or(String::new(), |left| format!("; at the present rate it is full in {}", in_words(left)));
    warnings.push(format!(
        "site {} on {} is {percent} % full{others}{when}; delete objects or add disks",
        fullest.site, fullest.address
    ));
    warnings
}

/// Returns a time in its largest unit, rounded down.
fn in_words(time: Duration) -> String {
    let seconds = time.as_secs();
    let (number, unit) = match seconds {
        0..120 => (seconds, "second"),
        120..7_200 => (seconds / 60, "minute"),
        7_200..172_800 => (seconds / 3_600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{number} {unit}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use striate_commands::admin::messages::Capacity;

    use super::*;

    fn site(number: u32, state: &str, free_bytes: u64) -> SiteState {
        SiteState {
            site: number,
            rack: String::new(),
            address: format!("/disk{number}"),
            process: String::new(),
            state: state.to_owned(),
            reason: None,
            capacity: Capacity { total_bytes: 1_000 << 20, free_bytes, ..Capacity::default() },
            load: Default::default(),
        }
    }

    #[test]
    fn the_fullest_disk_is_named_with_the_time_that_is_left() {
        let sites = [
            site(1, "ok", 90 << 20),
            site(2, "ok", 120 << 20),
            site(3, "ok", 500 << 20),
            site(4, "suspect", 50 << 20),
        ];
        let left = |site: SiteId| (site.0 == 2).then(|| Duration::from_secs(4 * 3_600));
        let [warning] = &fullness_warnings(&sites, left)[..] else { panic!("one line") };
        assert!(
            warning.starts_with("site 1 on /disk1 is 91 % full, and another disk nearly so"),
            "{warning}"
        );
        assert!(warning.contains("full in 4 hours"), "{warning}");
        let unknown = fullness_warnings(&sites, |_| None);
        assert!(!unknown[0].contains("rate"), "{unknown:?}");
        assert_eq!(fullness_warnings(&[site(1, "ok", 151 << 20)], left), Vec::<String>::new());
        assert!(fullness_warnings(&[site(1, "ok", 0)], left)[0].contains("is full and takes no chunks"));
    }
}
