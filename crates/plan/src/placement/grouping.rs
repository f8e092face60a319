//! Grouping at write time: neighbouring stripes go to the same sites, so that a reader of several of them asks few
//! sites (design.md §6; EC-Store achieves the same later by moving chunks, §IV-C).
//!
//! A *group* is a run of consecutive stripes written under one name, such as a folder's: blocks of one object, and
//! neighbouring keys. All stripes of a group are on the same n sites, each with its chunks in a different order, so
//! that data and parities spread over the n sites. In long groups, the sites of the most popular group would become the
//! hottest; in simulations, groups of 4 to 8 did not cause this.
//!
//! The sites of a new group are *dealt*: sites that received the fewest groups relative to their share of the free
//! space come first. Successive groups are therefore on different sites, and popular neighbourhoods spread over all of
//! them.
//!
//! Open groups and the deal counts are hints in memory: losing them starts new groups and does no harm.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use rand::Rng;
use striate_core::SiteId;

use crate::placement::Candidate;
use crate::placement::rule::PlacementRule;

/// Maximum number of open groups; beyond it, all groups are closed and new ones begin.
const MOST_OPEN: usize = 4_096;

/// Deals groups of stripes to sites. `K` names a group.
#[derive(Debug)]
pub struct Grouping<K> {
    open: HashMap<K, OpenGroup>,
    /// Number of groups dealt to each site, divided by its share of the free space.
    dealt: BTreeMap<SiteId, f64>,
}

/// A group that takes more stripes.
#[derive(Clone, Debug)]
struct OpenGroup {
    sites: Vec<SiteId>,
    /// Number of stripes it still takes.
    remaining: usize,
}

impl<K> Default for Grouping<K> {
    fn default() -> Self {
        Self { open: HashMap::new(), dealt: BTreeMap::new() }
    }
}

impl<K: Eq + Hash> Grouping<K> {
    /// Returns sites for the n chunks of the next stripe of a group of at most `group_len`, followed by those that may
    /// replace a failing one under `rule`. Fewer than n if candidates or racks do not suffice.
    pub fn place(
        &mut self,
        group: K,
        group_len: usize,
        candidates: &[Candidate],
        rule: &PlacementRule,
        rng: &mut impl Rng,
    ) -> Vec<SiteId> {
        let is_candidate = |site: &SiteId| candidates.iter().any(|candidate| candidate.site == *site);
        let open = self.open.get_mut(&group).filter(|open| {
            open.remaining > 0 && open.sites.len() == rule.chunks() && open.sites.iter().all(is_candidate)
        });
        let mut sites = match open {
            Some(open) => {
                open.remaining -= 1;
                open.sites.clone()
            }
            None => self.begin(group, group_len, candidates, rule, rng),
        };
        if rule.keeps_groups() {
            // The rule decides which site holds which chunk, and which may replace another.
            return sites;
        }
        for last in (1..sites.len()).rev() {
            sites.swap(last, rng.random_range(0..=last));
        }
        let chunks_in_rack = racks_of(&sites, candidates);
        let other_candidates: Vec<Candidate> =
            candidates.iter().filter(|candidate| !sites.contains(&candidate.site)).cloned().collect();
        sites.extend(rule.draw_beside(rng, &other_candidates, &chunks_in_rack));
        sites
    }

    /// Deals the sites of a new group.
    fn begin(
        &mut self,
        group: K,
        group_len: usize,
        candidates: &[Candidate],
        rule: &PlacementRule,
        rng: &mut impl Rng,
    ) -> Vec<SiteId> {
        let dealt_shares = candidates.iter().filter_map(|candidate| self.dealt.get(&candidate.site));
        // A new site starts at the minimum, or it would get every group until it caught up.
        let least = dealt_shares.copied().min_by(f64::total_cmp).unwrap_or(0.0);
        let mut order: Vec<(f64, &Candidate)> = candidates
            .iter()
            .map(|candidate| {
                let dealt = self.dealt.entry(candidate.site).or_insert(least);
                let busy = f64::from(candidate.queue_requests) / (8.0 + f64::from(candidate.queue_requests));
                (*dealt + rng.random::<f64>() + busy, candidate)
            })
            .collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.site.cmp(&b.1.site)));
        let in_order = order.iter().map(|(_, candidate)| *candidate);
        let sites = rule.take(in_order, rule.chunks(), &HashMap::new());
        let free: f64 = candidates.iter().map(|candidate| candidate.free_bytes.max(1) as f64).sum();
        let mean = free / candidates.len().max(1) as f64;
        for candidate in candidates.iter().filter(|candidate| sites.contains(&candidate.site)) {
            *self.dealt.entry(candidate.site).or_default() += mean / candidate.free_bytes.max(1) as f64;
        }
        if self.open.len() >= MOST_OPEN {
            self.open.clear();
        }
        self.open.insert(group, OpenGroup { sites: sites.clone(), remaining: group_len.saturating_sub(1) });
        sites
    }
}

fn racks_of(sites: &[SiteId], candidates: &[Candidate]) -> HashMap<striate_core::RackId, usize> {
    let mut racks = HashMap::new();
    for candidate in candidates.iter().filter(|candidate| sites.contains(&candidate.site)) {
        *racks.entry(candidate.rack.clone()).or_default() += 1;
    }
    racks
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;
    use striate_core::RackId;

    use super::*;
    use crate::placement::check::check_placement;

    fn candidates(sites: u32, racks: u32) -> Vec<Candidate> {
        let candidate = |i: u32| Candidate {
            site: SiteId(i + 1),
            rack: RackId(format!("rack{}", i % racks)),
            free_bytes: 1 << 30,
            queue_requests: 0,
        };
        (0..sites).map(candidate).collect()
    }

    fn set(sites: &[SiteId]) -> HashSet<SiteId> {
        sites.iter().copied().collect()
    }

    proptest! {
        /// Every stripe is placed legally, and all stripes of a group are on the same sites.
        #[test]
        fn groups_stay_together_and_pass_the_checker(
            seed: u64, sites in 4u32..30, racks in 1u32..10, n in 2usize..8, group_len in 1usize..9,
        ) {
            let racks = racks.min(sites);
            let all = candidates(sites, racks);
            let rule = PlacementRule::at_most(n.div_ceil(racks as usize).max(2), n);
            let rack_of: HashMap<_, _> = all.iter().map(|c| (c.site, c.rack.clone())).collect();
            let (mut grouping, mut rng) = (Grouping::default(), SmallRng::seed_from_u64(seed));
            let mut first = Vec::new();
            for stripe in 0..4 * group_len {
                let placed = grouping.place("folder", group_len, &all, &rule, &mut rng);
                prop_assert_eq!(check_placement(&rule, &placed, |site| rack_of.get(&site)), Ok(()));
                let chunks = &placed[..n.min(placed.len())];
                if stripe % group_len == 0 {
                    first = chunks.to_vec();
                }
                if first.len() == n {
                    prop_assert_eq!(set(chunks), set(&first), "stripe {} of groups of {}", stripe, group_len);
                }
            }
        }
    }

    #[test]
    fn groups_that_follow_one_another_lie_on_different_sites() {
        let (all, mut rng) = (candidates(32, 1), SmallRng::seed_from_u64(3));
        let mut grouping = Grouping::default();
        for _ in 0..50 {
            let dealt: Vec<SiteId> = (0..8)
                .flat_map(|_| {
                    grouping.place((), 1, &all, &PlacementRule::at_most(32, 4), &mut rng)[..4].to_vec()
                })
                .collect();
            assert_eq!(set(&dealt).len(), 32, "eight groups of four are dealt to all 32 sites");
        }
    }

    #[test]
    fn sites_get_groups_by_their_free_space() {
        let mut all = candidates(6, 1);
        all[0].free_bytes *= 2;
        let (mut grouping, mut rng) = (Grouping::default(), SmallRng::seed_from_u64(4));
        let hits = (0..7_000)
            .filter(|_| grouping.place((), 1, &all, &PlacementRule::at_most(6, 1), &mut rng)[0] == SiteId(1))
            .count();
        assert!((1_950..2_050).contains(&hits), "2 of 7 expected, {hits} of 7000 seen");
    }

    #[test]
    fn a_group_ends_when_one_of_its_sites_takes_no_more() {
        let (all, mut rng) = (candidates(8, 1), SmallRng::seed_from_u64(5));
        let mut grouping = Grouping::default();
        let first = grouping.place((), 8, &all, &PlacementRule::at_most(8, 4), &mut rng);
        let rest: Vec<Candidate> = all.iter().filter(|c| c.site != first[0]).cloned().collect();
        let second = grouping.place((), 8, &rest, &PlacementRule::at_most(8, 4), &mut rng);
        assert!(!second.contains(&first[0]));
        let third = grouping.place((), 8, &all, &PlacementRule::at_most(8, 4), &mut rng);
        assert_eq!(set(&third[..4]), set(&second[..4]), "the new group goes on");
    }
}
