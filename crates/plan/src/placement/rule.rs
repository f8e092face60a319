//! The rule for the places of a stripe's chunks (I6): distinct sites and at most c chunks in a rack. For codes with
//! local groups whose profile limits c, each group is also in as few racks as can hold it (ECWide's combined locality,
//! §3.2).
//!
//! Writes, repair and movement all use this rule, and [`crate::check_placement`] judges their choices. It follows from
//! a profile's spread and the number of racks:
//!
//! | spread | chunks in a rack | if racks are too few for that |
//! |--|--|--|
//! | tolerance | as many as the code can lose | *best effort*: as few as possible, and the loss of a rack may lose data |
//! | `racks(c)`, wide | c, or as many as the code can lose | *strict*: the write fails, a lost chunk stays debt |
//! | `flat` | any number | racks are ignored |

use std::collections::BTreeSet;
use std::sync::Arc;

use striate_codec::Code;
use striate_core::{Layout, Profile, RackId, Spread};

use crate::placement::leaving::LeavingRacks;
use crate::wide::geometry::WideGeometry;

/// The rule for the places of a stripe's chunks. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRule {
    /// n.
    chunks: usize,
    rack_limit: usize,
    /// Number of losses that the code tolerates.
    tolerance: usize,
    affinity: Option<Affinity>,
}

/// The groups of chunks that stay in their racks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Affinity {
    /// The group of each of the n chunks. The global parities form a group of their own.
    group_of: Arc<[usize]>,
    /// Racks that groups leave.
    leaving: LeavingRacks,
}

impl PlacementRule {
    /// Creates the rule for stripes of `profile`, whose code is `code`, on this many racks.
    pub fn new(profile: &Profile, code: &Code, racks: usize) -> Self {
        let (chunks, tolerance) = (code.n(), code.tolerance());
        let rack_limit = match (profile.spread, profile.layout) {
            (Spread::Flat, _) => chunks,
            (Spread::Racks(limit), _) => limit,
            (Spread::Tolerance, Layout::Wide) => tolerance.max(1),
            // If racks are too few, a rack holds more chunks than the code can lose.
            (Spread::Tolerance, Layout::Split | Layout::Packed) => {
                chunks.div_ceil(racks.max(1)).max(tolerance).max(1)
            }
        };
        let keeps_groups = match profile.spread {
            Spread::Racks(_) => true,
            Spread::Tolerance => profile.layout == Layout::Wide,
            Spread::Flat => false,
        };
        let affinity = keeps_groups.then(|| local_groups(code)).flatten();
        let affinity = affinity.map(Affinity::new);
        Self { chunks, rack_limit, tolerance, affinity }
    }

    /// Creates the rule for wide stripes of this geometry.
    pub fn of_wide(geometry: &WideGeometry) -> Self {
        let code = geometry.spec().build().ok();
        let affinity = code.as_ref().and_then(local_groups).map(Affinity::new);
        let (chunks, rack_limit, tolerance) = (geometry.n(), geometry.c(), geometry.f());
        Self { chunks, rack_limit, tolerance, affinity }
    }

    /// Creates a rule for stripes of `chunks` chunks, of which a rack may hold `rack_limit` and the code can lose as
    /// many.
    pub fn at_most(rack_limit: usize, chunks: usize) -> Self {
        Self { chunks, rack_limit, tolerance: rack_limit, affinity: None }
    }

    /// Returns this rule for stripes whose groups leave these racks. A group's chunks there go to other racks, as many
    /// as the group leaves.
    pub fn leaving(mut self, racks: &LeavingRacks) -> Self {
        if let Some(affinity) = &mut self.affinity {
            affinity.leaving = racks.clone();
        }
        self
    }

    /// Returns n, the number of chunks of a stripe.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// Returns c, the maximum number of chunks of a stripe in one rack.
    pub fn rack_limit(&self) -> usize {
        self.rack_limit
    }

    /// Returns whether any rack may be lost: none holds more chunks than the code can lose.
    pub fn tolerates_rack_loss(&self) -> bool {
        self.rack_limit <= self.tolerance
    }

    /// Returns whether groups of chunks stay in their racks.
    pub(crate) fn keeps_groups(&self) -> bool {
        self.affinity.is_some()
    }

    /// Returns the chunks of each group, or no groups if they do not stay in their racks.
    pub fn groups(&self) -> Vec<Vec<usize>> {
        let Some(affinity) = &self.affinity else { return Vec::new() };
        let count = affinity.group_of.iter().max().map_or(0, |last| last + 1);
        let mut groups = vec![Vec::new(); count];
        affinity.group_of.iter().enumerate().for_each(|(chunk, &group)| groups[group].push(chunk));
        groups
    }

    /// Returns the maximum number of racks for a group of this many chunks.
    pub(crate) fn racks_of_group(&self, chunks: usize) -> usize {
        chunks.div_ceil(self.rack_limit)
    }

    /// Returns whether groups leave this rack.
    pub(crate) fn leaves(&self, rack: &RackId) -> bool {
        self.affinity.as_ref().is_some_and(|affinity| affinity.leaving.contains(rack))
    }

    /// Returns whether the chunk `index` may go to a free site in `rack`. `at` yields the index and the rack of every
    /// chunk of the stripe whose place is known. The current place of `index` does not count against the limit. If
    /// groups stay in their racks, the chunk's group stays in its current racks, or spreads to no more racks than
    /// needed to hold it. A chunk that leaves its rack, or has none, does not count racks that its group leaves, and goes
    /// where the others that leave have room beside it.
    ///
    /// An admitted place never makes a rack's share or a group's spread worse, even if they already exceed the rule.
    pub fn admits<'a>(
        &self,
        index: usize,
        rack: &RackId,
        at: impl Iterator<Item = (usize, &'a RackId)> + Clone,
    ) -> bool {
        let chunks_in_rack =
            at.clone().filter(|&(other, other_rack)| other != index && other_rack == rack).count();
        chunks_in_rack < self.rack_limit
            && self.affinity.as_ref().is_none_or(|affinity| affinity.admits(index, rack, at, self.rack_limit))
    }
}

impl Affinity {
    fn new(groups: Vec<usize>) -> Self {
        Self { group_of: groups.into(), leaving: LeavingRacks::default() }
    }

    /// Returns whether the group of `index` is in `rack` already, or its other chunks leave room for one more rack,
    /// and this one has room for all chunks that need it.
    fn admits<'a>(
        &self,
        index: usize,
        rack: &RackId,
        at: impl Iterator<Item = (usize, &'a RackId)> + Clone,
        rack_limit: usize,
    ) -> bool {
        let Some(group) = self.group_of.get(index) else { return false };
        let of_group = at.clone().filter(|&(other, _)| self.group_of.get(other) == Some(group));
        let stays = of_group.clone().any(|(other, rack)| other == index && !self.leaving.contains(rack));
        let (mut other_racks, mut leaving) = (BTreeSet::new(), BTreeSet::from([index]));
        for (other, other_rack) in of_group {
            if other_rack == rack {
                return true;
            }
            match self.leaving.contains(other_rack) && !stays {
                true => drop(leaving.insert(other)),
                false if other != index => drop(other_racks.insert(other_rack)),
                false => {}
            }
        }
        let chunks = self.group_of.iter().filter(|other| *other == group).count();
        let room = rack_limit.saturating_sub(at.filter(|&(_, other_rack)| other_rack == rack).count());
        other_racks.len() < chunks.div_ceil(rack_limit) && room >= leaving.len().min(rack_limit)
    }
}

/// Returns the local group of each chunk; local parities belong to their groups, and the global parities form the last
/// group. `None` for a code without local groups.
pub(crate) fn local_groups(code: &Code) -> Option<Vec<usize>> {
    let globals = code.local_groups().len();
    let group_of = |chunk: usize| code.local_group_of(chunk).unwrap_or(globals);
    (globals > 0).then(|| (0..code.n()).map(group_of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(profile: &str, racks: usize) -> PlacementRule {
        let profile: Profile = profile.parse().unwrap();
        PlacementRule::new(&profile, &profile.code.build().unwrap(), racks)
    }

    #[test]
    fn a_rule_says_when_racks_are_too_few_for_what_the_code_tolerates() {
        let cases = [
            // (profile, racks, chunks in a rack, tolerates a rack's loss)
            ("rs(4,2)", 6, 2, true),
            ("rs(4,2)", 3, 2, true),
            ("rs(4,2)", 2, 3, false),
            ("rs(4,2)", 1, 6, false),
            ("none", 4, 1, false),
            ("replica(3)", 2, 2, true),
            ("replica(3)", 1, 3, false),
            ("rs(4,2) spread racks(1)", 3, 1, true),
            ("rs(4,2) spread racks(3)", 6, 3, false),
            ("rs(4,2) spread flat", 6, 6, false),
            ("wide(12,3,3)", 2, 3, true),
        ];
        for (profile, racks, limit, tolerates) in cases {
            let rule = rule(profile, racks);
            let found = (rule.rack_limit(), rule.tolerates_rack_loss());
            assert_eq!(found, (limit, tolerates), "{profile} on {racks} racks");
        }
    }

    #[test]
    fn groups_count_where_a_profile_limits_racks_and_its_code_has_local_groups() {
        assert!(!rule("lrc(4,2,2)", 8).keeps_groups());
        assert!(!rule("rs(4,2) spread racks(2)", 8).keeps_groups());
        let groups = rule("lrc(4,2,2) spread racks(3)", 8).groups();
        assert_eq!(groups, [vec![0, 1, 4], vec![2, 3, 5], vec![6, 7]]);
        let ragged = rule("wide(7,3,3)", 8).groups();
        assert_eq!(ragged, [vec![0, 1, 2, 7], vec![3, 4, 5, 8], vec![6, 9], vec![10, 11]]);
    }

    #[test]
    fn a_chunk_stays_in_the_racks_of_its_group() {
        let rule = rule("lrc(4,2,2) spread racks(2)", 8);
        let racks: Vec<RackId> = ["a", "b", "c"].map(|rack| RackId(rack.to_owned())).to_vec();
        // Group 0 (chunks 0, 1, 4) is in a and b, group 1 (2, 3, 5) in b and c.
        let at = [(0, 0), (1, 0), (4, 1), (2, 1), (3, 2), (5, 2)].map(|(chunk, rack)| (chunk, &racks[rack]));
        let admits = |chunk, rack: usize| rule.admits(chunk, &racks[rack], at.iter().copied());
        assert_eq!(
            [0, 1, 2].map(|rack| admits(0, rack)),
            [true, false, false],
            "b is full, c is another group's"
        );
        assert_eq!([0, 1, 2].map(|rack| admits(4, rack)), [false, true, false], "a is full");
        assert_eq!([0, 1, 2].map(|rack| admits(6, rack)), [false; 3], "nowhere yet, and all are full");
        assert!(rule.admits(6, &RackId("d".to_owned()), at.iter().copied()));
    }

    /// Returns the racks, by number, that admit a chunk of a stripe whose chunks are in these racks. Rack 0 is left.
    fn admitting(profile: &str, at: &[usize], chunk: usize) -> Vec<usize> {
        let racks: Vec<RackId> = (0..6).map(|rack| RackId(rack.to_string())).collect();
        let rule = rule(profile, 6).leaving(&LeavingRacks::of([(racks[0].clone(), true)]));
        let places = || at.iter().enumerate().map(|(chunk, &rack)| (chunk, &racks[rack]));
        (1..6).filter(|&rack| rule.admits(chunk, &racks[rack], places())).collect()
    }

    #[test]
    fn a_group_leaves_a_rack_for_one_that_has_room_for_all_of_its_chunks() {
        // Chunks 0 to 4 and 10 in racks 0 and 1, 5 to 9 and 11 in 2 and 3, the global parities 12 and 13 in 4.
        let mut at = [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 1, 3, 4, 4];
        let admitting_now = |at: &[usize], chunk| admitting("wide(10,5,3)", at, chunk);
        assert_eq!(admitting_now(&at, 0), [5], "4 has room for one chunk");
        assert_eq!(admitting_now(&at, 3), [1], "what is in a rack that stays remains there");
        at[0] = 5;
        assert_eq!(admitting_now(&at, 1), [5]);
        (at[0], at[1], at[2]) = (0, 5, 5);
        assert_eq!(admitting_now(&at, 0), [5]);
    }

    #[test]
    fn a_group_that_leaves_a_rack_fills_those_that_it_keeps() {
        // Chunks 0 and 1 in rack 0, 4 in 2; 2 and 3 in 1, 5 in 3; the global parity 6 in 4.
        let mut at = [0, 0, 1, 1, 2, 3, 4];
        let admitting_now = |at: &[usize], chunk| admitting("wide(4,2,2)", at, chunk);
        assert_eq!(admitting_now(&at, 0), [2, 5], "3 and 4 have room for one chunk");
        at[1] = 2;
        assert_eq!(admitting_now(&at, 0), [3, 4, 5], "the last to leave");
    }
}
