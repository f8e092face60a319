//! Strays: chunks in a rack that their group does not need. A group gets such a rack when it was leaving another one
//! that came back meanwhile.

use std::collections::BTreeMap;

use striate_core::RackId;

use crate::placement::rule::PlacementRule;

/// A chunk in a rack that its group does not need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// Its index in the stripe.
    pub chunk: usize,
    /// Racks of its group with room for it. They have at least as many of the group's chunks as its own rack, so that
    /// each move brings the group closer together.
    pub racks: Vec<RackId>,
}

impl PlacementRule {
    /// Returns the chunks that may go to other racks of their groups, for groups in more racks than can hold them. Each
    /// leaves a rack whose chunks of the group all have room in those others; those of racks with fewer come first.
    /// `at` is the rack of each chunk, `None` for a missing one. Racks that the groups leave do not count.
    pub fn strays(&self, at: &[Option<RackId>]) -> Vec<Stray> {
        self.groups().iter().flat_map(|group| self.strays_of(group, at)).collect()
    }

    fn strays_of(&self, group: &[usize], at: &[Option<RackId>]) -> Vec<Stray> {
        let mut chunks: BTreeMap<&RackId, Vec<usize>> = BTreeMap::new();
        for &chunk in group {
            let rack = at[chunk].as_ref().filter(|rack| !self.leaves(rack));
            rack.into_iter().for_each(|rack| chunks.entry(rack).or_default().push(chunk));
        }
        if chunks.len() <= self.racks_of_group(group.len()) {
            return Vec::new();
        }
        let room = |rack: &RackId| {
            let held = at.iter().flatten().filter(|other| *other == rack).count();
            self.rack_limit().saturating_sub(held)
        };
        let mut leaving: Vec<(&RackId, &Vec<usize>)> =
            chunks.iter().map(|(rack, own)| (*rack, own)).collect();
        leaving.sort_by_key(|(_, own)| own.len());
        let strays = |(rack, own): (&RackId, &Vec<usize>)| {
            let is_home =
                |other: &&RackId| *other != rack && chunks[*other].len() >= own.len() && room(other) > 0;
            let racks: Vec<RackId> = chunks.keys().copied().filter(is_home).cloned().collect();
            let all_fit = racks.iter().map(room).sum::<usize>() >= own.len();
            let stray = |&chunk: &usize| Stray { chunk, racks: racks.clone() };
            if all_fit { own.iter().map(stray).collect() } else { Vec::new() }
        };
        leaving.into_iter().flat_map(strays).collect()
    }
}

#[cfg(test)]
mod tests {
    use striate_core::Profile;

    use super::*;
    use crate::placement::leaving::LeavingRacks;

    /// Returns the strays of a stripe whose chunks are in these racks, by number, while rack 5 is left, and the racks
    /// where they may go.
    fn strays(at: [usize; 14]) -> Vec<(usize, Vec<usize>)> {
        let profile: Profile = "wide(10,5,3)".parse().unwrap();
        let rack = |rack: usize| RackId(rack.to_string());
        let rule = PlacementRule::new(&profile, &profile.code.build().unwrap(), 6)
            .leaving(&LeavingRacks::of([(rack(5), true)]));
        let strays = rule.strays(&at.map(|of| Some(rack(of)))).into_iter();
        let number = |rack: &RackId| rack.0.parse().unwrap();
        strays.map(|stray| (stray.chunk, stray.racks.iter().map(number).collect())).collect()
    }

    #[test]
    fn strays_may_leave_the_racks_whose_chunks_have_room_in_others() {
        // Group 0: chunks 0 to 4 and 10; group 1: 5 to 9 and 11; the global parities 12 and 13.
        assert_eq!(strays([0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 1, 3, 4, 4]), []);
        assert_eq!(strays([0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 3, 4, 4]), [(10, vec![1])]);
        assert_eq!(
            strays([0, 0, 4, 1, 1, 2, 2, 2, 3, 3, 1, 3, 0, 4]),
            [(12, vec![4])],
            "4 has room for 12, but 0 none for 2"
        );
        assert_eq!(strays([0, 0, 5, 1, 1, 2, 2, 2, 3, 3, 1, 3, 4, 4]), [], "it leaves that rack");
    }

    #[test]
    fn of_racks_with_as_many_chunks_any_may_be_left() {
        let found = strays([0, 0, 6, 6, 1, 2, 2, 2, 3, 3, 1, 3, 4, 4]);
        let pairs = [(0, [1, 6]), (1, [1, 6]), (4, [0, 6]), (10, [0, 6]), (2, [0, 1]), (3, [0, 1])];
        assert_eq!(found, pairs.map(|(chunk, racks)| (chunk, racks.to_vec())));
    }
}
