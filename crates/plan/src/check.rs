//! The checker: whether a placement is legal, decided apart from the code that chose it (I6).

use std::collections::{HashMap, HashSet};

use striate_core::{RackId, SiteId};

/// Why a placement is not legal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementFault {
    /// Two chunks of the stripe on one site.
    #[error("site {0} would hold two chunks of the stripe")]
    SiteTwice(SiteId),
    /// A site that nobody knows.
    #[error("site {0} is not known")]
    UnknownSite(SiteId),
    /// More chunks in one rack than may be lost together.
    #[error("rack {rack} would hold {count} chunks of the stripe, {limit} are allowed")]
    RackFull {
        /// The rack.
        rack: RackId,
        /// Chunks it would hold.
        count: usize,
        /// Chunks it may hold.
        limit: usize,
    },
}

/// Checks the sites that hold (or shall hold) a stripe's chunks.
///
/// # Errors
/// The first fault found.
pub fn check_placement<'a>(
    sites: &[SiteId],
    rack_of: impl Fn(SiteId) -> Option<&'a RackId>,
    rack_limit: usize,
) -> Result<(), PlacementFault> {
    let mut seen = HashSet::new();
    let mut in_rack: HashMap<&RackId, usize> = HashMap::new();
    for &site in sites {
        if !seen.insert(site) {
            return Err(PlacementFault::SiteTwice(site));
        }
        let rack = rack_of(site).ok_or(PlacementFault::UnknownSite(site))?;
        let count = in_rack.entry(rack).or_default();
        *count += 1;
        if *count > rack_limit {
            return Err(PlacementFault::RackFull { rack: rack.clone(), count: *count, limit: rack_limit });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_found() {
        let (a, b) = (RackId("a".into()), RackId("b".into()));
        let rack_of = |site: SiteId| match site.0 {
            1 | 2 => Some(&a),
            3 => Some(&b),
            _ => None,
        };
        let check = |sites: &[u32], limit| {
            check_placement(&sites.iter().copied().map(SiteId).collect::<Vec<_>>(), rack_of, limit)
        };
        assert_eq!(check(&[1, 2, 3], 2), Ok(()));
        assert_eq!(check(&[1, 3, 1], 2), Err(PlacementFault::SiteTwice(SiteId(1))));
        assert_eq!(check(&[9], 2), Err(PlacementFault::UnknownSite(SiteId(9))));
        let full = PlacementFault::RackFull { rack: a.clone(), count: 2, limit: 1 };
        assert_eq!(check(&[1, 2], 1), Err(full));
    }
}
