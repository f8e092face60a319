//! Racks that all chunks are to leave, because none of their sites takes chunks any more: the whole rack is lost or
//! drained.

use std::collections::BTreeSet;
use std::sync::Arc;

use striate_core::RackId;

/// Racks that all chunks are to leave. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeavingRacks(Arc<BTreeSet<RackId>>);

impl LeavingRacks {
    /// Returns the racks of which every site is left. `sites` yields the rack of each known site, and whether the site
    /// is left: lost, retired or draining.
    pub fn of(sites: impl IntoIterator<Item = (RackId, bool)>) -> Self {
        let (mut left, mut staying) = (BTreeSet::new(), BTreeSet::new());
        for (rack, is_left) in sites {
            if is_left { &mut left } else { &mut staying }.insert(rack);
        }
        left.retain(|rack| !staying.contains(rack));
        Self(Arc::new(left))
    }

    /// Returns whether all chunks are to leave this rack.
    pub fn contains(&self, rack: &RackId) -> bool {
        self.0.contains(rack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rack_is_left_when_every_site_of_it_is() {
        let site = |rack: &str, is_left| (RackId(rack.to_owned()), is_left);
        let racks = LeavingRacks::of([site("a", true), site("b", false), site("a", true), site("b", true)]);
        let contains = |rack: &str| racks.contains(&RackId(rack.to_owned()));
        assert_eq!(["a", "b", "c"].map(contains), [true, false, false]);
    }
}
