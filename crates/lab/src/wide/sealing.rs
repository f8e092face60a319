//! The cost of making a wide stripe whose data stays in place: the sums that its parities' trees send across racks.

use striate_core::{RackId, SiteId, StripeId};
use striate_plan::{
    Candidate, CombineTerm, CombineTree, NotSealed, OpenPartition, SealingPlan, WideGeometry, plan_sealing,
};

use super::cluster::Cluster;
use super::layout::Layout;

/// Plans a stripe with the store's planner, from partitions on all sites of a cluster.
///
/// # Errors
/// If the stripe does not fit the cluster.
pub fn plan(geometry: &WideGeometry, cluster: &Cluster) -> Result<SealingPlan, NotSealed> {
    let sites: Vec<SiteId> = (0..cluster.racks.len()).flat_map(|rack| cluster.sites_of(rack)).collect();
    let partition = |(number, &site): (usize, &SiteId)| OpenPartition {
        partition: (StripeId(number as u128), 0),
        site,
        rack: cluster.rack_id(site).clone(),
        open_siblings: 1,
        dead_share: 0.0,
        is_overdue: false,
    };
    let candidate = |&site: &SiteId| Candidate {
        site,
        rack: cluster.rack_id(site).clone(),
        free_bytes: 1 << 40,
        queue_requests: 0,
    };
    let pool: Vec<OpenPartition> = sites.iter().enumerate().map(partition).collect();
    let candidates: Vec<Candidate> = sites.iter().map(candidate).collect();
    plan_sealing(geometry, &pool, &candidates, 0)
}

/// Counts the sums that cross racks to make all parities of a stripe of this layout on `sites`.
pub fn sums_across_racks(layout: &Layout, sites: &[SiteId], rack_of: impl Fn(SiteId) -> RackId) -> usize {
    let code = &layout.code;
    let across = |parity: usize| {
        let term = |(chunk, &coefficient): (usize, &u8)| {
            (coefficient != 0).then(|| CombineTerm {
                chunk,
                coefficient,
                site: sites[chunk],
                rack: rack_of(sites[chunk]),
                cost: 1.0,
            })
        };
        let row = code.row(parity);
        let terms: Vec<CombineTerm> = row.iter().enumerate().filter_map(term).collect();
        let tree = CombineTree::new(&terms, sites[parity], &rack_of(sites[parity]));
        tree.streams().into_iter().filter(|&(from, to)| rack_of(from) != rack_of(to)).count()
    };
    (code.k()..code.n()).map(across).sum()
}
