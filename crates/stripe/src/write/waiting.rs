//! Partitions that wait for wide stripes, by site. A wide stripe takes equally many from each rack. Placing new
//! coding groups in the racks where fewest wait leaves a third as many waiting
//! (`striate_plan::PlacementRule::draw_sites_evenly`).

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use striate_core::{RackId, SiteId};
use striate_plan::Candidate;

/// Waiting partitions of all buckets, as sealing left them, plus those of groups begun since.
#[derive(Default)]
pub(super) struct WaitingPartitions(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    of_buckets: BTreeMap<String, HashMap<SiteId, usize>>,
    begun: HashMap<SiteId, usize>,
}

impl WaitingPartitions {
    /// Records the partitions of a bucket that sealing left waiting, per site.
    pub(super) fn were_left(&self, bucket: &str, of_bucket: HashMap<SiteId, usize>) {
        let mut counts = self.0.lock();
        // Partitions begun before are now included, sealed, or not cold.
        counts.begun.clear();
        counts.of_buckets.insert(bucket.to_owned(), of_bucket);
    }

    /// Forgets the partitions of buckets that are gone.
    pub(super) fn keep(&self, is_there: impl Fn(&str) -> bool) {
        self.0.lock().of_buckets.retain(|bucket, _| is_there(bucket));
    }

    /// Records the sites of the data chunks of a new group.
    pub(super) fn begin(&self, sites: &[SiteId]) {
        let mut counts = self.0.lock();
        if !counts.of_buckets.is_empty() {
            sites.iter().for_each(|site| *counts.begun.entry(*site).or_default() += 1);
        }
    }

    /// Returns how many wait in each candidate's rack and on its site. `None` if nothing is ever sealed.
    pub(super) fn at(&self, candidates: &[Candidate]) -> Option<HashMap<SiteId, (usize, usize)>> {
        let counts = self.0.lock();
        if counts.of_buckets.is_empty() {
            return None;
        }
        let on_site = |site: SiteId| {
            let maps = counts.of_buckets.values().chain([&counts.begun]);
            maps.filter_map(|map| map.get(&site)).sum::<usize>()
        };
        let mut in_rack: HashMap<&RackId, usize> = HashMap::new();
        candidates
            .iter()
            .for_each(|candidate| *in_rack.entry(&candidate.rack).or_default() += on_site(candidate.site));
        Some(
            candidates
                .iter()
                .map(|candidate| (candidate.site, (in_rack[&candidate.rack], on_site(candidate.site))))
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_counted_by_racks_and_sites_until_sealing_counts_again() {
        let candidate = |site: u32, rack: &str| Candidate {
            site: SiteId(site),
            rack: RackId(rack.to_owned()),
            free_bytes: 1,
            queue_requests: 0,
        };
        let candidates = [candidate(1, "a"), candidate(2, "a"), candidate(3, "b")];
        let waiting = WaitingPartitions::default();
        waiting.begin(&[SiteId(1)]);
        assert_eq!(waiting.at(&candidates), None, "nothing is ever sealed here");
        waiting.were_left("one", HashMap::from([(SiteId(1), 2), (SiteId(3), 1)]));
        waiting.were_left("two", HashMap::from([(SiteId(2), 1)]));
        waiting.begin(&[3, 3].map(SiteId));
        let at = waiting.at(&candidates).unwrap();
        assert_eq!([1, 2, 3].map(|site| at[&SiteId(site)]), [(3, 2), (3, 1), (3, 3)]);
        waiting.were_left("one", HashMap::new());
        let at = waiting.at(&candidates).unwrap();
        assert_eq!([1, 2, 3].map(|site| at[&SiteId(site)]), [(1, 0), (1, 1), (0, 0)]);
        waiting.keep(|bucket| bucket == "one");
        let at = waiting.at(&candidates).unwrap();
        assert_eq!([1, 2, 3].map(|site| at[&SiteId(site)]), [(0, 0); 3], "the other bucket is gone");
        waiting.keep(|_| false);
        assert_eq!(waiting.at(&candidates), None, "nothing is sealed any more");
    }
}
