//! Which partitions were read recently, as far as the read statistics show.
//!
//! The statistics count reads of the most-read partitions and have no times. So each look compares them with those of
//! the look before: a partition whose count has risen was read in between. What is not known counts as read now: all
//! of the first statistics, and a partition that is new in them. Until they cover some hours, everything counts as
//! read. So lost statistics only delay sealing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use striate_core::StripeId;
use striate_plan::{Partition, PartitionReads};
use striate_runtime::{Instant, Runtime};

use crate::hot_copies::WARM_UP;
use crate::movement::AccessSource;

/// Number of most-read partitions that are looked at.
const HOTTEST: usize = 4_096;
/// Time that the statistics must cover, or all of the time that is asked about. What is read again and again is read
/// within it; with a longer one a process that is often restarted would seal nothing.
const COVERED: Duration = Duration::from_secs(6 * 3_600);
/// Number of partitions above which those that were read longest ago are forgotten.
const MOST_KNOWN: usize = 4 * HOTTEST;

/// The last reads of partitions.
pub(crate) struct RecentReads {
    source: AccessSource,
    began: Instant,
    partitions: BTreeMap<Partition, LastRead>,
}

#[derive(Clone, Copy)]
struct LastRead {
    /// Count of reads at the last look.
    count: u64,
    at: Instant,
}

impl RecentReads {
    pub(crate) fn new(source: AccessSource, now: Instant) -> Self {
        Self { source, began: now, partitions: BTreeMap::new() }
    }

    /// Compares the statistics with those of the last look.
    pub(crate) fn look(&mut self, runtime: &Runtime) {
        let now = runtime.now();
        for PartitionReads { partition, count } in self.source.hottest_partitions(runtime, HOTTEST) {
            let last = self.partitions.entry(partition).or_insert(LastRead { count: 0, at: now });
            let at = if count > last.count { now } else { last.at };
            *last = LastRead { count, at };
        }
        if self.partitions.len() > MOST_KNOWN {
            let mut times: Vec<Instant> = self.partitions.values().map(|last| last.at).collect();
            times.sort_unstable();
            let median = times[times.len() / 2];
            self.partitions.retain(|_, last| last.at > median);
        }
    }

    /// Returns whether all gateways have reported what they counted.
    pub(crate) fn is_warm(&self, now: Instant) -> bool {
        self.known_for(now) >= WARM_UP
    }

    /// Returns the stripes that were read within this time; `None` if the statistics do not cover enough of it.
    pub(crate) fn within(&self, time: Duration, now: Instant) -> Option<BTreeSet<StripeId>> {
        let is_recent = |last: &LastRead| now.saturating_duration_since(last.at) < time;
        let recent = self.partitions.iter().filter(|(_, last)| is_recent(last));
        (self.known_for(now) >= time.min(COVERED)).then(|| recent.map(|(of, _)| of.0).collect())
    }

    fn known_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }
}

#[cfg(test)]
mod tests {
    use striate_runtime::run_in_virtual_time;

    use super::*;
    use crate::access::{AccessReport, GatheredAccess};

    fn partition(number: u64) -> Partition {
        (StripeId::new(1, number), 2)
    }

    fn tell(gathered: &GatheredAccess, counts: &[(u64, u64)], now: Instant) {
        let reads = |&(number, count): &(u64, u64)| PartitionReads { partition: partition(number), count };
        let report =
            AccessReport { partitions: counts.iter().map(reads).collect(), ..AccessReport::default() };
        gathered.report("g1", report, now).unwrap();
    }

    #[test]
    fn a_partition_was_read_when_its_count_last_rose() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let (gathered, minute) = (GatheredAccess::default(), Duration::from_secs(60));
            let source = AccessSource::Gathered(gathered.clone());
            let mut reads = RecentReads::new(source, runtime.now());
            let stripes = |reads: &RecentReads, minutes: u32| -> Vec<u64> {
                let within = reads.within(minutes * minute, runtime.now()).unwrap();
                within.into_iter().map(|id| id.sequence()).collect()
            };
            runtime.sleep(minute).await;
            tell(&gathered, &[(1, 5), (2, 7)], runtime.now());
            reads.look(&runtime);
            assert!(!reads.is_warm(runtime.now()), "other reports may come");
            assert_eq!(reads.within(2 * minute, runtime.now()), None);
            runtime.sleep(20 * minute).await;
            tell(&gathered, &[(1, 5), (2, 8)], runtime.now());
            reads.look(&runtime);
            assert_eq!(stripes(&reads, 20), [2]);
            assert_eq!(stripes(&reads, 21), [1, 2]);
            // Counts were halved, and one has risen since.
            runtime.sleep(20 * minute).await;
            tell(&gathered, &[(1, 2), (2, 4)], runtime.now());
            reads.look(&runtime);
            assert_eq!(stripes(&reads, 20), [0; 0]);
            tell(&gathered, &[(1, 3), (2, 4)], runtime.now());
            reads.look(&runtime);
            assert_eq!(stripes(&reads, 20), [1]);
            // The gateway's report is forgotten and comes again.
            runtime.sleep(90 * minute).await;
            reads.look(&runtime);
            tell(&gathered, &[(1, 3), (2, 4)], runtime.now());
            reads.look(&runtime);
            assert_eq!(stripes(&reads, 90), [0; 0]);
            assert_eq!(stripes(&reads, 91), [1]);
        });
    }

    #[test]
    fn those_read_longest_ago_are_forgotten_first() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let gathered = GatheredAccess::default();
            let mut reads = RecentReads::new(AccessSource::Gathered(gathered.clone()), runtime.now());
            for round in 0..6 {
                let of_round = |number| (round * HOTTEST as u64 + number, 1);
                let counts: Vec<_> = (0..HOTTEST as u64).map(of_round).collect();
                tell(&gathered, &counts, runtime.now());
                reads.look(&runtime);
                assert!(reads.partitions.len() <= MOST_KNOWN);
                runtime.sleep(WARM_UP).await;
            }
            let known = |number| reads.partitions.contains_key(&partition(number));
            assert!(known(5 * HOTTEST as u64) && !known(0));
        });
    }
}
