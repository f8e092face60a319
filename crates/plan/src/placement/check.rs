//! The checker of placements: decides whether a placement is legal, independently of the code that chose it (I6).

use std::collections::{HashMap, HashSet};

use striate_core::{RackId, SiteId};

use crate::placement::rule::PlacementRule;

/// Why a placement is not legal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementFault {
    /// Two chunks of the stripe on one site.
    #[error("site {0} would hold two chunks of the stripe")]
    SiteTwice(SiteId),
    /// An unknown site.
    #[error("site {0} is not known")]
    UnknownSite(SiteId),
    /// More chunks in one rack than the rule allows.
    #[error("rack {rack} would hold {count} chunks of the stripe, {limit} are allowed")]
    RackFull {
        /// The rack.
        rack: RackId,
        /// Chunks it would hold.
        count: usize,
        /// Chunks it may hold.
        limit: usize,
    },
    /// The chunk would go to a rack that is full, or that holds none of its group.
    #[error("rack {rack} may not take chunk {chunk} of the stripe")]
    NotAdmitted {
        /// The chunk's index.
        chunk: usize,
        /// The rack.
        rack: RackId,
    },
    /// A group of chunks is spread over too many racks.
    #[error("the {chunks} chunks of a group would be in {racks} racks, {limit} hold them")]
    GroupSpread {
        /// Chunks of the group that are placed.
        chunks: usize,
        /// Racks they would be in.
        racks: usize,
        /// Racks they may be in.
        limit: usize,
    },
    /// A stripe takes the rack that must stay free for what a lost rack has.
    #[error("the stripe would be in {racks} racks, {limit} hold it")]
    StripeSpread {
        /// Racks it would be in.
        racks: usize,
        /// z, the racks it may be in.
        limit: usize,
    },
}

impl PlacementFault {
    /// Returns whether chunks are in more racks than hold them. So they are while they leave a rack, and until repair
    /// has gathered them if it comes back meanwhile.
    pub fn is_spread(&self) -> bool {
        matches!(self, Self::GroupSpread { .. } | Self::StripeSpread { .. })
    }
}

/// Checks the current or planned sites of a stripe's chunks, in the order of the chunks; site 0 means no chunk.
///
/// # Errors
/// The first fault found.
pub fn check_placement<'a>(
    rule: &PlacementRule,
    sites: &[SiteId],
    rack_of: impl Fn(SiteId) -> Option<&'a RackId>,
) -> Result<(), PlacementFault> {
    let mut sites_seen = HashSet::new();
    let mut in_rack: HashMap<&RackId, usize> = HashMap::new();
    for &site in sites.iter().filter(|site| site.0 != 0) {
        if !sites_seen.insert(site) {
            return Err(PlacementFault::SiteTwice(site));
        }
        let rack = rack_of(site).ok_or(PlacementFault::UnknownSite(site))?;
        let count = in_rack.entry(rack).or_default();
        *count += 1;
        if *count > rule.rack_limit() {
            return Err(PlacementFault::RackFull {
                rack: rack.clone(),
                count: *count,
                limit: rule.rack_limit(),
            });
        }
    }
    for group in rule.groups() {
        let (chunks, limit) = (group.len(), rule.racks_of_group(group.len()));
        let racks = racks_holding(&group, sites, &rack_of).len();
        if racks > limit {
            return Err(PlacementFault::GroupSpread { chunks, racks, limit });
        }
    }
    match rule.racks_of_stripe() {
        Some(limit) if in_rack.len() > limit => {
            Err(PlacementFault::StripeSpread { racks: in_rack.len(), limit })
        }
        _ => Ok(()),
    }
}

/// Returns the number of other racks that send data when `chunk` is repaired within its group: ECWide's measure of
/// locality. 0 if the rule has no groups.
pub fn racks_crossed<'a>(
    rule: &PlacementRule,
    sites: &[SiteId],
    chunk: usize,
    rack_of: impl Fn(SiteId) -> Option<&'a RackId>,
) -> usize {
    let group = rule.groups().into_iter().find(|group| group.contains(&chunk)).unwrap_or_default();
    let own_rack = rack_of(sites[chunk]);
    racks_holding(&group, sites, &rack_of).into_iter().filter(|rack| Some(*rack) != own_rack).count()
}

fn racks_holding<'a>(
    chunks: &[usize],
    sites: &[SiteId],
    rack_of: &impl Fn(SiteId) -> Option<&'a RackId>,
) -> HashSet<&'a RackId> {
    chunks.iter().filter_map(|&chunk| rack_of(*sites.get(chunk)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_found() {
        let (a, b) = (RackId("a".into()), RackId("b".into()));
        let rack_of = |site: SiteId| match site.0 {
            1 | 2 => Some(&a),
            3 | 4 => Some(&b),
            _ => None,
        };
        let check = |sites: &[u32], limit| {
            let sites: Vec<SiteId> = sites.iter().copied().map(SiteId).collect();
            check_placement(&PlacementRule::at_most(limit, sites.len()), &sites, rack_of)
        };
        assert_eq!(check(&[1, 2, 3, 0, 0], 2), Ok(()));
        assert_eq!(check(&[1, 3, 1], 2), Err(PlacementFault::SiteTwice(SiteId(1))));
        assert_eq!(check(&[9], 2), Err(PlacementFault::UnknownSite(SiteId(9))));
        let full = PlacementFault::RackFull { rack: a.clone(), count: 2, limit: 1 };
        assert_eq!(check(&[1, 2], 1), Err(full));
    }

    #[test]
    fn a_group_in_more_racks_than_hold_it_is_found() {
        let racks: Vec<RackId> = (0..6).map(|rack| RackId(format!("{rack}"))).collect();
        let profile: striate_core::Profile = "lrc(4,2,2) spread racks(3)".parse().unwrap();
        let rule = PlacementRule::new(&profile, &profile.code.build().unwrap(), 6);
        // Three sites per rack; the first rack has sites 1 to 3.
        let check = |sites: [u32; 8]| {
            let rack_of = |site: SiteId| racks.get((site.0 as usize).wrapping_sub(1) / 3);
            check_placement(&rule, &sites.map(SiteId), rack_of)
        };
        assert_eq!(check([1, 2, 4, 5, 3, 6, 7, 8]), Ok(()));
        let spread = PlacementFault::GroupSpread { chunks: 3, racks: 2, limit: 1 };
        assert_eq!(check([1, 2, 4, 5, 9, 6, 7, 8]), Err(spread));
    }

    #[test]
    fn a_stripe_that_leaves_no_rack_free_is_found() {
        let racks: Vec<RackId> = (0..5).map(|rack| RackId(format!("{rack}"))).collect();
        let profile: striate_core::Profile = "wide(4,2,2)".parse().unwrap();
        let rule = PlacementRule::new(&profile, &profile.code.build().unwrap(), 5);
        // Three sites per rack; the first rack has sites 1 to 3.
        let check = |sites: [u32; 7]| {
            let rack_of = |site: SiteId| racks.get((site.0 as usize).wrapping_sub(1) / 3);
            check_placement(&rule, &sites.map(SiteId), rack_of)
        };
        assert_eq!(check([1, 2, 4, 5, 10, 7, 11]), Ok(()));
        let fault = PlacementFault::StripeSpread { racks: 5, limit: 4 };
        assert_eq!(check([1, 2, 4, 5, 13, 7, 10]), Err(fault));
    }
}
