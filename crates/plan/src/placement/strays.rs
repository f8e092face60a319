//! Strays: chunks in a rack that their group does not need. A group gets such a rack when it was leaving another one
//! that came back meanwhile.

use std::collections::BTreeMap;

use striate_core::RackId;

use crate::placement::rule::PlacementRule;

impl PlacementRule {
    /// Returns the chunks that should go to other racks of their groups. For each group in more racks than can hold it
    /// these are the chunks of one rack, which has the fewest of those whose chunks have room in the group's others.
    /// `at` is the rack of each chunk, `None` for a missing one. Racks that the groups leave do not count.
    pub fn strays(&self, at: &[Option<RackId>]) -> Vec<usize> {
        self.groups().iter().filter_map(|group| self.strays_of(group, at)).flatten().collect()
    }

    fn strays_of(&self, group: &[usize], at: &[Option<RackId>]) -> Option<Vec<usize>> {
        let mut racks: BTreeMap<&RackId, Vec<usize>> = BTreeMap::new();
        for &chunk in group {
            let rack = at[chunk].as_ref().filter(|rack| !self.leaves(rack));
            rack.into_iter().for_each(|rack| racks.entry(rack).or_default().push(chunk));
        }
        if racks.len() <= self.racks_of_group(group.len()) {
            return None;
        }
        let room = |rack: &RackId| {
            let held = at.iter().flatten().filter(|other| *other == rack).count();
            self.rack_limit().saturating_sub(held)
        };
        let room_beside = |rack: &RackId| -> usize {
            racks.keys().filter(|other| **other != rack).map(|other| room(other)).sum()
        };
        let movable = racks.iter().filter(|(rack, chunks)| room_beside(rack) >= chunks.len());
        movable.min_by_key(|(_, chunks)| chunks.len()).map(|(_, chunks)| chunks.clone())
    }
}

#[cfg(test)]
mod tests {
    use striate_core::Profile;

    use super::*;
    use crate::placement::leaving::LeavingRacks;

    /// Returns the strays of a stripe whose chunks are in these racks, by number, while rack 5 is left.
    fn strays(at: [usize; 14]) -> Vec<usize> {
        let profile: Profile = "wide(10,5,3)".parse().unwrap();
        let rack = |rack: usize| RackId(rack.to_string());
        let rule = PlacementRule::new(&profile, &profile.code.build().unwrap(), 6)
            .leaving(&LeavingRacks::of([(rack(5), true)]));
        rule.strays(&at.map(|of| Some(rack(of))))
    }

    #[test]
    fn strays_are_what_the_smallest_part_of_a_group_in_too_many_racks_has() {
        // Group 0: chunks 0 to 4 and 10; group 1: 5 to 9 and 11; the global parities 12 and 13.
        assert_eq!(strays([0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 1, 3, 4, 4]), [0; 0]);
        assert_eq!(strays([0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 3, 4, 4]), [10]);
        assert_eq!(
            strays([0, 0, 4, 1, 1, 2, 2, 2, 3, 3, 1, 3, 0, 4]),
            [12],
            "4 has room for 12, but 0 none for 2"
        );
        assert_eq!(strays([0, 0, 5, 1, 1, 2, 2, 2, 3, 3, 1, 3, 4, 4]), [0; 0], "it leaves that rack");
    }
}
