//! Which partitions get a whole copy beside their code, and where.
//!
//! Copies go to the most read partitions as far as a budget of bytes reaches, one each. A partition that has its copy already counts as
//! [`KEPT`] times as hot, so that two of about the same heat do not take turns. A copy goes to the site that the reads of hot
//! partitions load least: with a copy, half of a partition's reads go there.
//!
//! Cost: O(H log H + H S) for H hot partitions and S sites.

use std::collections::BTreeMap;

use striate_core::SiteId;

use crate::statistics::heat::Partition;

/// A partition that has a copy counts as so many times as hot as one that has none.
const KEPT: u64 = 2;
/// What is read less often has no copy, whatever the budget.
pub const LEAST_READS: u64 = 16;

/// A partition that is read often, or has a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotPartition {
    /// Which one.
    pub partition: Partition,
    /// How often it is read.
    pub count: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// The site of the chunk.
    pub home: SiteId,
    /// All sites that have a chunk of its stripe, or are to have one.
    pub holders: Vec<SiteId>,
    /// The site of its copy.
    pub copy: Option<SiteId>,
}

/// What is to be done about copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyPlan {
    /// Partitions whose copies are dropped.
    pub drop: Vec<Partition>,
    /// Partitions that are copied, the hottest first, and where to.
    pub make: Vec<(Partition, SiteId)>,
}

/// Plans copies of at most `budget` bytes together on `sites`, which take chunks and answer. A copy on any other site is dropped.
pub fn plan_copies(hot: &[HotPartition], budget: u64, sites: &[SiteId]) -> CopyPlan {
    let has_copy = |of: &HotPartition| of.copy.is_some_and(|site| sites.contains(&site));
    let heat = |of: &HotPartition| if has_copy(of) { of.count.saturating_mul(KEPT) } else { of.count };
    let mut order: Vec<&HotPartition> = hot.iter().collect();
    order.sort_by_key(|of| (std::cmp::Reverse(heat(of)), of.partition));
    let (mut plan, mut left) = (CopyPlan::default(), budget);
    let mut loads = loads(hot, sites);
    for of in order {
        let is_wanted = of.count >= LEAST_READS && of.bytes <= left;
        if is_wanted && has_copy(of) {
            left -= of.bytes;
            continue;
        }
        if of.copy.is_some() {
            plan.drop.push(of.partition);
        }
        if !is_wanted {
            continue;
        }
        let may_take = |site: &&SiteId| **site != of.home && !of.holders.contains(*site);
        let least = sites.iter().filter(may_take).min_by(|a, b| {
            let load = |site: &SiteId| loads.get(site).copied().unwrap_or(0.0);
            load(a).total_cmp(&load(b)).then(a.cmp(b))
        });
        let Some(&site) = least else { continue };
        left -= of.bytes;
        let half = of.count as f64 / 2.0;
        *loads.entry(site).or_default() += half;
        *loads.entry(of.home).or_default() -= half;
        plan.make.push((of.partition, site));
    }
    plan
}

/// The reads of hot partitions at each site.
fn loads(hot: &[HotPartition], sites: &[SiteId]) -> BTreeMap<SiteId, f64> {
    let mut loads = BTreeMap::new();
    for of in hot {
        let copy = of.copy.filter(|site| sites.contains(site));
        let share = of.count as f64 / if copy.is_some() { 2.0 } else { 1.0 };
        [Some(of.home), copy].into_iter().flatten().for_each(|site| *loads.entry(site).or_default() += share);
    }
    loads
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use striate_core::StripeId;

    use super::*;

    fn hot(number: u64, count: u64, home: u32, copy: Option<u32>) -> HotPartition {
        let holders = (home..home + 3).map(SiteId).collect();
        let partition = (StripeId::new(1, number), 0);
        HotPartition { partition, count, bytes: 10, home: SiteId(home), holders, copy: copy.map(SiteId) }
    }

    fn sites(count: u32) -> Vec<SiteId> {
        (1..=count).map(SiteId).collect()
    }

    #[test]
    fn the_hottest_get_copies_where_little_is_read() {
        let hot = [hot(1, 100, 1, None), hot(2, 90, 4, None), hot(3, 80, 1, None)];
        let plan = plan_copies(&hot, 20, &sites(9));
        // Site 4 has the reads of the second one; 5 and 6 hold a chunk of it.
        assert_eq!(plan.make, [(hot[0].partition, SiteId(5)), (hot[1].partition, SiteId(2))]);
        assert!(plan.drop.is_empty());
    }

    #[test]
    fn a_copy_stays_until_another_partition_is_twice_as_hot() {
        let before = [hot(1, 100, 1, Some(9)), hot(2, 199, 4, None)];
        assert_eq!(plan_copies(&before, 10, &sites(9)), CopyPlan::default());
        let after = [hot(1, 100, 1, Some(9)), hot(2, 201, 4, None)];
        let plan = plan_copies(&after, 10, &sites(9));
        assert_eq!((plan.drop, plan.make.len()), (vec![after[0].partition], 1));
    }

    #[test]
    fn copies_that_are_cold_or_on_sites_that_are_gone_are_dropped() {
        let cold = [hot(1, LEAST_READS - 1, 1, Some(9))];
        assert_eq!(plan_copies(&cold, 100, &sites(9)).drop, [cold[0].partition]);
        let gone = [hot(1, 100, 1, Some(10))];
        let plan = plan_copies(&gone, 100, &sites(9));
        assert_eq!((plan.drop, plan.make), (vec![gone[0].partition], vec![(gone[0].partition, SiteId(4))]));
    }

    proptest! {
        /// Within the budget, one copy a partition, never beside a chunk of its stripe, and nothing hotter left out for want of bytes.
        #[test]
        fn plans_keep_the_rules(
            counts in proptest::collection::vec((0u64..200, 1u32..10, proptest::option::of(1u32..14)), 0..20),
            budget in 0u64..150,
        ) {
            let hot: Vec<HotPartition> = counts
                .iter()
                .enumerate()
                .map(|(number, &(count, home, copy))| hot(number as u64, count, home, copy))
                .collect();
            let sites = sites(12);
            let plan = plan_copies(&hot, budget, &sites);
            let of = |partition: &Partition| hot.iter().find(|of| of.partition == *partition).unwrap();
            for (partition, site) in &plan.make {
                prop_assert!(!of(partition).holders.contains(site) && sites.contains(site));
            }
            let kept = hot.iter().filter(|of| of.copy.is_some() && !plan.drop.contains(&of.partition));
            let copies: Vec<&HotPartition> = kept.chain(plan.make.iter().map(|(made, _)| of(made))).collect();
            prop_assert!(copies.iter().map(|of| of.bytes).sum::<u64>() <= budget);
            let mut names: Vec<_> = copies.iter().map(|of| of.partition).collect();
            names.sort_unstable();
            names.dedup();
            prop_assert_eq!(names.len(), copies.len());
        }
    }
}
