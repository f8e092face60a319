//! Sealing: which partitions become members of the next wide stripe, and where its parities go.
//!
//! No data chunk moves, so the racks of the partitions decide the choice of the k members: each of z racks supplies the
//! data chunks of one part of the geometry ([`WideGeometry::parts`]), on distinct sites. Any rack may supply any part,
//! and any partition of a site may be taken; two members may belong to one birth stripe. The greedy rule:
//!
//! 1. The fullest racks supply the largest parts, so that none is left with partitions that no other rack can match.
//! 2. Within a rack, the sites that would otherwise have partitions left over come first: those that must supply a
//!    member of every stripe that the rack has partitions for.
//! 3. Then comes the partition whose birth stripe has the fewest open ones, so that its narrow parities can be dropped
//!    soon.
//!
//! A change of a member's bytes is sent to the rack of its local parity, unless the member is in it. So of equally full
//! racks, those with the most dead bytes, which will be rewritten, supply parts beside a local parity. Within a group a
//! fuller rack may do so, if the other rack can still supply as many whole parts later. When this changes after
//! sealing, [`swap_due`] reports it.
//!
//! Holes, positions without a member, are allowed only to seal a partition that waits too long; otherwise they would
//! become the rule.
//!
//! When most members of a wide stripe have died, [`plan_emptying`] finds holes of others for the rest.
//!
//! Cost: O(partitions · log partitions + z · racks).

mod emptying;
mod local_parity;
mod racks;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use striate_core::{RackId, SiteId, StripeId};

pub use self::emptying::{LeavingMember, PlannedTransfer, TakingStripe, is_sparse, plan_emptying};
pub use self::local_parity::{ChangingMember, swap_due};
use self::racks::{RackPreference, Racks};
use crate::placement::Candidate;
use crate::placement::check::{PlacementFault, check_placement};
use crate::placement::rule::PlacementRule;
use crate::statistics::heat::Partition;
use crate::wide::geometry::WideGeometry;

/// A partition that belongs to no wide stripe.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenPartition {
    /// The partition's birth stripe and index.
    pub partition: Partition,
    /// The partition's site.
    pub site: SiteId,
    /// The rack of that site.
    pub rack: RackId,
    /// Number of data chunks of its birth stripe that are in no wide stripe, including this one.
    pub open_siblings: usize,
    /// Share of its bytes that no object refers to any more, 0 to 1.
    pub dead_share: f64,
    /// Whether it has waited too long: only then may a stripe have holes.
    pub is_overdue: bool,
}

/// A planned data chunk of a wide stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WideMember {
    /// The partition's birth stripe and index.
    pub partition: Partition,
    /// The partition's site, which keeps it.
    pub site: SiteId,
}

/// A planned wide stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealingPlan {
    /// The members by position, k of them; `None` is a hole.
    pub members: Vec<Option<WideMember>>,
    /// Sites of the n − k parities in order: the local ones, then the global ones.
    pub parities: Vec<SiteId>,
}

/// A rack that has fewer partitions on distinct sites than the geometry requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RackLack {
    /// The rack.
    pub rack: RackId,
    /// Members required of the rack.
    pub needed: usize,
    /// Members that the rack can supply.
    pub available: usize,
}

/// Why no wide stripe can be made now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSealed {
    /// There are too few partitions in all racks together.
    #[error("{waiting} partitions wait, a wide stripe takes {needed}")]
    TooFewPartitions {
        /// Partitions in no wide stripe.
        waiting: usize,
        /// k, less the allowed holes.
        needed: usize,
    },
    /// There are too few racks.
    #[error(
        "partitions and free sites are in {racks} racks, a wide stripe uses {needed}: add racks, or choose a code for \
         fewer (`striate plan wide`)"
    )]
    TooFewRacks {
        /// Racks that have partitions or free sites.
        racks: usize,
        /// z.
        needed: usize,
    },
    /// No remaining rack has enough sites for parities.
    #[error("no rack has the {parities} free sites that the parities of one rack need: add sites or space")]
    NoRoom {
        /// Parities in that rack.
        parities: usize,
    },
    /// There are enough partitions, but in the wrong racks.
    #[error("partitions are spread unevenly over racks: {}", list(.0))]
    RacksLack(Vec<RackLack>),
}

/// Lists each rack as `rack7 can supply 2 of 4`.
fn list(lacking: &[RackLack]) -> String {
    let each = lacking
        .iter()
        .map(|lack| format!("{} can supply {} of {}", lack.rack.0, lack.available, lack.needed));
    each.collect::<Vec<_>>().join(", ")
}

impl SealingPlan {
    /// Returns the sites of all n chunks in order; site 0 for a hole.
    pub fn sites(&self) -> Vec<SiteId> {
        let members = self.members.iter().map(|member| member.map_or(SiteId(0), |member| member.site));
        members.chain(self.parities.iter().copied()).collect()
    }

    /// Checks that the plan has combined locality, by the rule for wide stripes and independently of how it was chosen.
    ///
    /// # Errors
    /// The first [`PlacementFault`].
    pub fn check<'a>(
        &self,
        geometry: &WideGeometry,
        rack_of: impl Fn(SiteId) -> Option<&'a RackId>,
    ) -> Result<(), PlacementFault> {
        check_placement(&PlacementRule::of_wide(geometry), &self.sites(), rack_of)
    }
}

/// Chooses the members of the next wide stripe and the sites of its parities. `pool` has all open partitions that may
/// be members, and `sites` all sites that can take a parity. At most `most_holes` positions stay without a member (k/16
/// is a good bound), and none unless a partition is overdue and no stripe without holes can be made.
///
/// # Errors
/// [`NotSealed`] with what is missing, counted without holes.
pub fn plan_sealing(
    geometry: &WideGeometry,
    pool: &[OpenPartition],
    sites: &[Candidate],
    most_holes: usize,
) -> Result<SealingPlan, NotSealed> {
    let is_overdue = pool.iter().any(|partition| partition.is_overdue);
    let most_holes = if is_overdue { most_holes } else { 0 };
    let needed = geometry.k().saturating_sub(most_holes);
    if pool.len() < needed {
        return Err(NotSealed::TooFewPartitions { waiting: pool.len(), needed });
    }
    let racks = Racks::new(geometry.c(), pool, sites);
    let refusal = match racks.assign(geometry, RackPreference::Fullest) {
        Ok(assigned) if assigned.lacking.is_empty() => {
            return Ok(choose(geometry, pool, &racks, &assigned.racks, false));
        }
        Ok(assigned) => NotSealed::RacksLack(assigned.lacking),
        Err(refusal) => refusal,
    };
    if most_holes == 0 {
        return Err(refusal);
    }
    for preference in [RackPreference::Overdue, RackPreference::Fullest] {
        let Ok(assigned) = racks.assign(geometry, preference) else { continue };
        let holes: usize = assigned.lacking.iter().map(|lack| lack.needed - lack.available).sum();
        if holes > most_holes {
            continue;
        }
        let plan = choose(geometry, pool, &racks, &assigned.racks, true);
        let overdue = |open: &OpenPartition| open.is_overdue.then_some(open.partition);
        let members: Vec<Partition> = plan.members.iter().flatten().map(|member| member.partition).collect();
        if pool.iter().filter_map(overdue).any(|partition| members.contains(&partition)) {
            return Ok(plan);
        }
    }
    Err(refusal)
}

/// Chooses the members that each rack supplies, and the sites of the parities. `assigned` holds the rack of each part.
fn choose(
    geometry: &WideGeometry,
    pool: &[OpenPartition],
    racks: &Racks<'_>,
    assigned: &[usize],
    overdue_first: bool,
) -> SealingPlan {
    let mut open: HashMap<StripeId, usize> =
        pool.iter().map(|waiting| (waiting.partition.0, waiting.open_siblings)).collect();
    let mut free: Vec<usize> = (0..geometry.groups()).map(|group| geometry.group_data(group).start).collect();
    let mut globals = geometry.global_parities();
    let mut members = vec![None; geometry.k()];
    let mut parities = vec![SiteId(0); geometry.n() - geometry.k()];
    let mut fullest: Vec<usize> = (0..assigned.len()).collect();
    fullest.sort_by_key(|&part| std::cmp::Reverse(racks.waiting(assigned[part])));
    let mut supplied = vec![(Vec::new(), Vec::new()); assigned.len()];
    for part in fullest {
        let rack_part = geometry.parts()[part];
        supplied[part] =
            racks.supply(assigned[part], rack_part.data, rack_part.parities(), &open, overdue_first);
        for &index in &supplied[part].0 {
            *open.get_mut(&pool[index].partition.0).expect("of the pool") -= 1;
        }
    }
    for (part, (chosen, sites)) in geometry.parts().iter().zip(supplied) {
        let mut sites = sites.into_iter();
        if let Some(group) = part.group {
            for index in 0..part.data {
                let member = chosen.get(index).map(|&index| &pool[index]);
                members[free[group] + index] =
                    member.map(|waiting| WideMember { partition: waiting.partition, site: waiting.site });
            }
            free[group] += part.data;
            if part.has_local {
                parities[geometry.local_parity(group) - geometry.k()] =
                    sites.next().expect("room was checked");
            }
        }
        for (global, site) in globals.by_ref().take(part.globals).zip(sites) {
            parities[global - geometry.k()] = site;
        }
    }
    SealingPlan { members, parities }
}
