//! Strays: chunks in a rack that their group or their stripe does not need. They get such a rack when a group was
//! leaving another one that came back meanwhile.

use std::collections::BTreeMap;

use striate_core::RackId;

use crate::placement::rule::PlacementRule;

/// A chunk in a rack that its group or its stripe does not need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// Its index in the stripe.
    pub chunk: usize,
    /// Racks with room for it: of its group, with at least as many of the group's chunks as its own rack, so that each
    /// move brings the group closer together, or those that its group may share.
    pub racks: Vec<RackId>,
    /// Other such racks of its group, without room. It may go there once a chunk from there has gone to one of `racks`.
    pub full: Vec<RackId>,
}

impl PlacementRule {
    /// Returns the chunks that may go to other racks of their groups, for groups in more racks than can hold them. Each
    /// leaves a rack whose chunks of the group all have room in those others. Those of racks that then have no chunk of
    /// the stripe come first, then those of racks with fewer. If no group is in too many racks but the stripe is, returns
    /// those after whose moves a group shares a rack.
    ///
    /// `at` is the rack of each chunk, `None` for a missing one. Racks that the groups leave do not count.
    pub fn strays(&self, at: &[Option<RackId>]) -> Vec<Stray> {
        let stripe = Held { rule: self, at };
        let parts: Vec<Parts<'_>> = self.groups().iter().map(|group| stripe.parts_of(group)).collect();
        let is_spread = parts.iter().any(|of| of.is_spread);
        match !is_spread && self.is_in_too_many_racks(stripe.places()) {
            true => stripe.strays_to_share(&parts),
            false => parts.iter().flat_map(|of| stripe.strays_of(of)).collect(),
        }
    }
}

/// A stripe's chunks in their racks.
#[derive(Clone, Copy)]
struct Held<'a> {
    rule: &'a PlacementRule,
    at: &'a [Option<RackId>],
}

/// The chunks of a group by rack.
struct Parts<'a> {
    by_rack: BTreeMap<&'a RackId, Vec<usize>>,
    /// Whether they are in more racks than can hold the group.
    is_spread: bool,
}

impl<'a> Held<'a> {
    fn places(self) -> impl Iterator<Item = (usize, &'a RackId)> {
        self.at.iter().enumerate().filter_map(|(chunk, rack)| Some((chunk, rack.as_ref()?)))
    }

    /// Returns the number of chunks in a rack.
    fn held(self, rack: &RackId) -> usize {
        self.places().filter(|(_, other)| *other == rack).count()
    }

    /// Returns the number of further chunks that a rack may hold.
    fn room(self, rack: &RackId) -> usize {
        self.rule.rack_limit().saturating_sub(self.held(rack))
    }

    fn parts_of(self, group: &[usize]) -> Parts<'a> {
        let mut by_rack: BTreeMap<&RackId, Vec<usize>> = BTreeMap::new();
        for &chunk in group {
            let rack = self.at[chunk].as_ref().filter(|rack| !self.rule.leaves(rack));
            rack.into_iter().for_each(|rack| by_rack.entry(rack).or_default().push(chunk));
        }
        let is_spread = by_rack.len() > self.rule.racks_of_group(group.len());
        Parts { by_rack, is_spread }
    }

    fn strays_of(self, parts: &Parts<'a>) -> Vec<Stray> {
        if !parts.is_spread {
            return Vec::new();
        }
        let mut leaving: Vec<(&RackId, &Vec<usize>)> =
            parts.by_rack.iter().map(|(rack, own)| (*rack, own)).collect();
        leaving.sort_by_key(|(rack, own)| (self.held(rack) > own.len(), own.len()));
        let strays = |(rack, own): (&RackId, &Vec<usize>)| {
            let (racks, full) = self.homes(parts, rack);
            let all_fit = racks.iter().map(|home| self.room(home)).sum::<usize>() >= own.len();
            if all_fit { to_racks(own, &racks, &full) } else { Vec::new() }
        };
        leaving.into_iter().flat_map(strays).collect()
    }

    /// Returns the group's other racks with at least as many of its chunks: those with room, and the full ones.
    fn homes(self, parts: &Parts<'a>, rack: &RackId) -> (Vec<RackId>, Vec<RackId>) {
        let fewest = parts.by_rack[rack].len();
        let is_home = |(other, own): &(&&RackId, &Vec<usize>)| **other != rack && own.len() >= fewest;
        let homes = parts.by_rack.iter().filter(is_home).map(|(other, _)| (*other).clone());
        homes.partition(|home| self.room(home) > 0)
    }

    /// Returns the chunks of a group's smallest part, if they have room in the group's other racks but for one, which
    /// has room in a rack of another group. It goes there when it is the last. Those of smaller parts come first.
    fn strays_to_share(self, groups: &[Parts<'a>]) -> Vec<Stray> {
        let mut strays: Vec<Vec<Stray>> = Vec::new();
        for parts in groups {
            let Some((rack, own)) = parts.by_rack.iter().min_by_key(|(_, own)| own.len()) else { continue };
            let racks_of_others = groups.iter().flat_map(|of| of.by_rack.keys().copied());
            let has_room = |other: &&RackId| !parts.by_rack.contains_key(*other) && self.room(other) > 0;
            let mut shared: Vec<RackId> = racks_of_others.filter(has_room).cloned().collect();
            let (mut racks, full) = self.homes(parts, rack);
            let room = racks.iter().map(|home| self.room(home)).sum::<usize>();
            if room + usize::from(!shared.is_empty()) < own.len() {
                continue;
            }
            if own.len() == 1 {
                racks.append(&mut shared);
            }
            strays.push(to_racks(own, &racks, &full));
        }
        strays.sort_by_key(Vec::len);
        strays.concat()
    }
}

/// Returns a stray for each chunk, all to the same racks.
fn to_racks(chunks: &[usize], racks: &[RackId], full: &[RackId]) -> Vec<Stray> {
    chunks.iter().map(|&chunk| Stray { chunk, racks: racks.to_vec(), full: full.to_vec() }).collect()
}

#[cfg(test)]
mod tests {
    use striate_core::Profile;

    use super::*;
    use crate::placement::leaving::LeavingRacks;

    fn rack(number: usize) -> RackId {
        RackId(number.to_string())
    }

    /// Returns the strays of a stripe whose chunks are in these racks, by number, while rack 5 is left.
    fn find_strays(profile: &str, at: &[usize]) -> Vec<Stray> {
        let profile: Profile = profile.parse().unwrap();
        let rule = PlacementRule::new(&profile, &profile.code.build().unwrap(), 6)
            .leaving(&LeavingRacks::of([(rack(5), true)]));
        let at: Vec<Option<RackId>> = at.iter().map(|&of| Some(rack(of))).collect();
        rule.strays(&at)
    }

    /// Returns the strays with the racks that have room for them, by number.
    fn strays_of(profile: &str, at: &[usize]) -> Vec<(usize, Vec<usize>)> {
        let number = |rack: &RackId| rack.0.parse().unwrap();
        let strays = find_strays(profile, at).into_iter();
        strays.map(|stray| (stray.chunk, stray.racks.iter().map(number).collect())).collect()
    }

    fn strays(at: [usize; 14]) -> Vec<(usize, Vec<usize>)> {
        strays_of("wide(10,5,3)", &at)
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
    fn full_racks_of_the_group_are_named_too() {
        let found = find_strays("wide(10,5,3)", &[0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 3, 4, 4]);
        assert_eq!(found, [Stray { chunk: 10, racks: vec![rack(1)], full: vec![rack(0)] }]);
    }

    #[test]
    fn of_racks_with_as_many_chunks_any_may_be_left() {
        let found = strays([0, 0, 6, 6, 1, 2, 2, 2, 3, 3, 1, 3, 4, 4]);
        let pairs = [(0, [1, 6]), (1, [1, 6]), (4, [0, 6]), (10, [0, 6]), (2, [0, 1]), (3, [0, 1])];
        assert_eq!(found, pairs.map(|(chunk, racks)| (chunk, racks.to_vec())));
    }

    #[test]
    fn racks_that_are_left_free_are_left_first() {
        // Group 0 is in racks 0 and 1, and beside the global parities in 4.
        assert_eq!(
            strays_of("wide(8,4,4)", &[0, 0, 1, 1, 2, 2, 2, 2, 4, 3, 4, 4, 4]),
            [(0, vec![1]), (1, vec![1]), (2, vec![0]), (3, vec![0]), (8, vec![0, 1])]
        );
    }

    /// Group 0: chunks 0 to 3 and 8; group 1: 4 to 7 and 9; the global parities 10 to 12. Five racks are one too many.
    #[test]
    fn a_group_that_may_share_a_rack_leaves_one_of_a_stripe_in_too_many() {
        let strays = |at: [usize; 13]| strays_of("wide(8,4,4)", &at);
        assert_eq!(strays([0, 0, 0, 0, 2, 2, 2, 2, 4, 3, 4, 4, 4]), []);
        assert_eq!(
            strays([0, 0, 0, 0, 2, 2, 2, 2, 1, 3, 4, 4, 4]),
            [(8, vec![3, 4]), (9, vec![1, 4])],
            "the last to leave a rack goes to one with room"
        );
        assert_eq!(
            strays([0, 0, 0, 1, 2, 2, 2, 3, 1, 3, 4, 4, 4]),
            [(3, vec![0]), (8, vec![0]), (7, vec![2]), (9, vec![2])],
            "of a larger part, all but the last go to racks of their group"
        );
        assert_eq!(strays([0, 0, 0, 0, 2, 2, 2, 2, 5, 3, 4, 4, 4]), [], "it leaves that rack");
    }
}
