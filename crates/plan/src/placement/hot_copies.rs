//! Which partitions get a whole copy beside their code, and where.
//!
//! The most read partitions get one copy each, within a budget of bytes. A partition that already has a copy counts as
//! [`KEPT`] times as hot, so that two partitions of similar heat do not alternate. A copy goes to the site least loaded
//! by reads of hot partitions: half of the partition's reads then go there.
//!
//! Cost: O(H log H + H S) for H hot partitions and S sites.

use std::collections::BTreeMap;

use striate_core::SiteId;

use crate::statistics::heat::Partition;

/// Factor by which a partition with a copy counts as hotter than one without.
const KEPT: u64 = 2;
/// Minimum number of reads for a copy, whatever the budget.
pub const LEAST_READS: u64 = 16;

/// A partition that is read often or has a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotPartition {
    /// The partition.
    pub partition: Partition,
    /// Number of reads.
    pub count: u64,
    /// Bytes of the partition.
    pub bytes: u64,
    /// The site of the chunk.
    pub home: SiteId,
    /// All sites that have a chunk of its stripe, or will have one.
    pub holders: Vec<SiteId>,
    /// The site of its copy, if it has one.
    pub copy: Option<SiteId>,
}

/// Copies to drop and to make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyPlan {
    /// Partitions whose copies are dropped.
    pub drop: Vec<Partition>,
    /// Partitions to copy, hottest first, each with the destination.
    pub make: Vec<(Partition, SiteId)>,
}

/// Plans copies of at most `budget` bytes in total on `sites`, which are reachable and take chunks. Copies on other
/// sites are dropped.
pub fn plan_copies(hot: &[HotPartition], budget: u64, sites: &[SiteId]) -> CopyPlan {
    let has_copy =
        |hot_partition: &HotPartition| hot_partition.copy.is_some_and(|site| sites.contains(&site));
    let heat = |hot_partition: &HotPartition| {
        if has_copy(hot_partition) { hot_partition.count.saturating_mul(KEPT) } else { hot_partition.count }
    };
    let mut order: Vec<&HotPartition> = hot.iter().collect();
    order.sort_by_key(|hot_partition| (std::cmp::Reverse(heat(hot_partition)), hot_partition.partition));
    let (mut plan, mut remaining) = (CopyPlan::default(), budget);
    let mut loads = loads(hot, sites);
    for hot_partition in order {
        let is_wanted = hot_partition.count >= LEAST_READS && hot_partition.bytes <= remaining;
        if is_wanted && has_copy(hot_partition) {
            remaining -= hot_partition.bytes;
            continue;
        }
        if hot_partition.copy.is_some() {
            plan.drop.push(hot_partition.partition);
        }
        if !is_wanted {
            continue;
        }
        let may_take =
            |site: &&SiteId| **site != hot_partition.home && !hot_partition.holders.contains(*site);
        let least = sites.iter().filter(may_take).min_by(|a, b| {
            let load = |site: &SiteId| loads.get(site).copied().unwrap_or(0.0);
            load(a).total_cmp(&load(b)).then(a.cmp(b))
        });
        let Some(&site) = least else { continue };
        remaining -= hot_partition.bytes;
        let half = hot_partition.count as f64 / 2.0;
        *loads.entry(site).or_default() += half;
        *loads.entry(hot_partition.home).or_default() -= half;
        plan.make.push((hot_partition.partition, site));
    }
    plan
}

/// Returns the reads of hot partitions at each site.
fn loads(hot: &[HotPartition], sites: &[SiteId]) -> BTreeMap<SiteId, f64> {
    let mut loads = BTreeMap::new();
    for hot_partition in hot {
        let copy = hot_partition.copy.filter(|site| sites.contains(site));
        let share = hot_partition.count as f64 / if copy.is_some() { 2.0 } else { 1.0 };
        [Some(hot_partition.home), copy]
            .into_iter()
            .flatten()
            .for_each(|site| *loads.entry(site).or_default() += share);
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
        // Site 4 has the reads of the second partition; 5 and 6 hold chunks of its stripe.
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
        /// Copies stay within the budget, at most one per partition, and never share a site with a chunk of their
        /// stripe.
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
