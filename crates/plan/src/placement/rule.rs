//! The rule for the places of a stripe's chunks (I6): distinct sites and at most c chunks in a rack. For codes with
//! local groups whose profile limits c, each group is also in as few racks as can hold it (ECWide's combined locality,
//! §3.2), and the stripe in no more than z: a rack without its chunks then has room for all of a lost rack's.
//!
//! Writes, repair and movement all use this rule, and [`crate::check_placement`] judges their choices. It follows from
//! a profile's spread and the sizes of the racks:
//!
//! | spread | chunks in a rack | if racks are too few for that |
//! |--|--|--|
//! | tolerance | as many as the code can lose | *best effort*: as few as leave room for all, and the loss of a rack may lose data |
//! | `racks(c)`, wide | c, or as many as the code can lose | *strict*: the write fails, a lost chunk stays debt |
//! | `flat` | any number | racks are ignored |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use striate_codec::Code;
use striate_core::{Layout, Profile, RackId, Spread};

use crate::placement::leaving::LeavingRacks;
use crate::placement::racks::RackSizes;
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
    /// z, the maximum number of racks for a stripe.
    racks: usize,
    /// Racks that groups leave.
    leaving: LeavingRacks,
}

impl PlacementRule {
    /// Creates the rule for stripes of `profile`, whose code is `code`, on these racks.
    pub fn new(profile: &Profile, code: &Code, racks: impl Into<RackSizes>) -> Self {
        let (chunks, tolerance) = (code.n(), code.tolerance());
        let rack_limit = match (profile.spread, profile.layout) {
            (Spread::Flat, _) => chunks,
            (Spread::Racks(limit), _) => limit,
            (Spread::Tolerance, Layout::Wide) => tolerance.max(1),
            // If racks are too few, a rack holds more chunks than the code can lose.
            (Spread::Tolerance, Layout::Split | Layout::Packed) => {
                racks.into().smallest_limit(chunks).max(tolerance).max(1)
            }
        };
        let keeps_groups = match profile.spread {
            Spread::Racks(_) => true,
            Spread::Tolerance => profile.layout == Layout::Wide,
            Spread::Flat => false,
        };
        let affinity = keeps_groups.then(|| Affinity::new(code, rack_limit)).flatten();
        Self { chunks, rack_limit, tolerance, affinity }
    }

    /// Creates the rule for wide stripes of this geometry.
    pub fn of_wide(geometry: &WideGeometry) -> Self {
        let (chunks, rack_limit, tolerance) = (geometry.n(), geometry.c(), geometry.f());
        let affinity = geometry.spec().build().ok().and_then(|code| Affinity::new(&code, rack_limit));
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

    /// Returns z, the maximum number of racks for a stripe, if its groups stay in their racks.
    pub(crate) fn racks_of_stripe(&self) -> Option<usize> {
        self.affinity.as_ref().map(|affinity| affinity.racks)
    }

    /// Returns whether a stripe would be in more than z racks even if each group were in as few as can hold it. Racks
    /// that the groups leave do not count.
    pub(crate) fn is_in_too_many_racks<'a>(&self, at: impl Iterator<Item = (usize, &'a RackId)>) -> bool {
        let staying = at.filter(|(_, rack)| !self.leaves(rack));
        let affinity = self.affinity.as_ref();
        affinity.is_some_and(|affinity| affinity.racks_taken(staying, self.rack_limit) > affinity.racks)
    }

    /// Returns whether groups leave this rack.
    pub(crate) fn leaves(&self, rack: &RackId) -> bool {
        self.affinity.as_ref().is_some_and(|affinity| affinity.leaving.contains(rack))
    }

    /// Returns whether the chunk `index` may go to a free site in `rack`. `at` yields the index and the rack of every
    /// chunk of the stripe whose place is known. The current place of `index` does not count against the limit. If
    /// groups stay in their racks, the chunk's group stays in its current racks, or spreads to no more racks than
    /// needed to hold it. A chunk that leaves its rack, or has none, does not count racks that its group leaves, and goes
    /// where the others that leave have room beside it. A chunk that stays takes no room from those that leave, unless
    /// its group is in too many racks; if no other group leaves a rack, it may take the new rack itself and leave its place
    /// to them. It goes to a rack without chunks of the stripe only if the others are in fewer than z: one rack must stay
    /// free for what a lost rack has.
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
        let admits = |affinity: &Affinity| {
            affinity.admits(index, rack, at.clone(), self.rack_limit)
                || affinity.makes_way(index, rack, at.clone(), self.rack_limit)
        };
        chunks_in_rack < self.rack_limit && self.affinity.as_ref().is_none_or(admits)
    }
}

impl Affinity {
    /// `None` for a code without local groups.
    fn new(code: &Code, rack_limit: usize) -> Option<Self> {
        let group_of = local_groups(code)?;
        let racks = racks_of_stripe(&group_of, code.local_groups().len(), rack_limit);
        Some(Self { group_of: group_of.into(), racks, leaving: LeavingRacks::default() })
    }

    /// Returns whether the group of `index` is in `rack` already, or its other chunks leave room for one more rack,
    /// and this one has room for all chunks that need it and leaves the stripe in z racks.
    fn admits<'a>(
        &self,
        index: usize,
        rack: &RackId,
        at: impl Iterator<Item = (usize, &'a RackId)> + Clone,
        rack_limit: usize,
    ) -> bool {
        let Some(&group) = self.group_of.get(index) else { return false };
        let of_group = at.clone().filter(|&(other, _)| self.group_of.get(other) == Some(&group));
        let stays = of_group.clone().any(|(other, rack)| other == index && !self.leaving.contains(rack));
        let most = racks_of_group(&self.group_of, group, rack_limit);
        let kept: BTreeSet<&RackId> =
            of_group.clone().map(|(_, rack)| rack).filter(|rack| !self.leaving.contains(rack)).collect();
        let (mut other_racks, mut leaving) = (BTreeSet::new(), BTreeSet::from([index]));
        for (other, other_rack) in of_group {
            if other_rack == rack && (other == index || !stays || kept.len() > most) {
                return true;
            }
            match self.leaving.contains(other_rack) && !stays {
                true => drop(leaving.insert(other)),
                false if other != index => drop(other_racks.insert(other_rack)),
                false => {}
            }
        }
        let held = at.clone().filter(|&(_, other_rack)| other_rack == rack).count();
        let room = rack_limit.saturating_sub(held);
        if room < (leaving.len() + self.following((group, stays), rack, at.clone(), room)).min(rack_limit) {
            return false;
        }
        let counts =
            |&(other, of): &(usize, &RackId)| other != index && (stays || !self.leaving.contains(of));
        other_racks.contains(rack)
            || other_racks.len() < most
                && (held > 0 || self.racks_taken(at.filter(counts), rack_limit) < self.racks)
    }

    /// Returns whether a chunk that stays may go to `rack` to make way for those of its group that leave a rack: the group's
    /// racks then have room for all of them. False if chunks of another group leave a rack too.
    fn makes_way<'a>(
        &self,
        index: usize,
        rack: &RackId,
        at: impl Iterator<Item = (usize, &'a RackId)> + Clone,
        rack_limit: usize,
    ) -> bool {
        let Some(&group) = self.group_of.get(index) else { return false };
        let is_of_group = |&(chunk, _): &(usize, &RackId)| self.group_of.get(chunk) == Some(&group);
        let leaves = |(chunk, of): &(usize, &RackId)| *chunk != index && self.leaving.contains(of);
        let leaving = at.clone().filter(leaves).count();
        let stays = |(chunk, of): (usize, &RackId)| chunk == index && !self.leaving.contains(of);
        if leaving == 0
            || !at.clone().filter(leaves).all(|place| is_of_group(&place))
            || !at.clone().any(stays)
        {
            return false;
        }
        let staying = at.filter(|place| !leaves(place));
        let after = staying.map(|(chunk, of)| (chunk, if chunk == index { rack } else { of }));
        let racks: BTreeSet<&RackId> = after.clone().filter(is_of_group).map(|(_, of)| of).collect();
        let held = |rack: &RackId| after.clone().filter(|(_, of)| *of == rack).count();
        let room: usize = racks.iter().map(|rack| rack_limit.saturating_sub(held(rack))).sum();
        racks.len() <= racks_of_group(&self.group_of, group, rack_limit)
            && room >= leaving
            && self.racks_taken(after, rack_limit) <= self.racks
    }

    /// Returns the number of chunks in racks that are left for which `rack` keeps room beside one of `group`: those of
    /// other groups that are there, or that may go there if that one need not.
    fn following<'a>(
        &self,
        (group, stays): (usize, bool),
        rack: &RackId,
        at: impl Iterator<Item = (usize, &'a RackId)> + Clone,
        room: usize,
    ) -> usize {
        if at.clone().all(|(_, other_rack)| !self.leaving.contains(other_rack)) {
            return 0;
        }
        let there: BTreeSet<usize> =
            at.clone().filter(|&(_, other_rack)| other_rack == rack).map(|(chunk, _)| chunk).collect();
        let mut leaving = BTreeMap::<usize, BTreeSet<usize>>::new();
        for (chunk, _) in at.filter(|(_, other_rack)| self.leaving.contains(other_rack)) {
            if let Some(&group) = self.group_of.get(chunk).filter(|_| !there.contains(&chunk)) {
                leaving.entry(group).or_default().insert(chunk);
            }
        }
        let is_there = |group: usize| there.iter().any(|&chunk| self.group_of.get(chunk) == Some(&group));
        let follows =
            |&(of, chunks): &(usize, usize)| of != group && (is_there(of) || stays && chunks <= room);
        let counts = leaving.iter().map(|(&of, chunks)| (of, chunks.len()));
        counts.filter(follows).map(|(_, chunks)| chunks).sum()
    }

    /// Returns the number of racks with these chunks, less those that groups have too many: they will be emptied.
    fn racks_taken<'a>(&self, at: impl Iterator<Item = (usize, &'a RackId)>, rack_limit: usize) -> usize {
        let (mut racks, mut racks_by_group) = (BTreeSet::new(), BTreeMap::<usize, BTreeSet<&RackId>>::new());
        for (chunk, rack) in at {
            racks.insert(rack);
            if let Some(&group) = self.group_of.get(chunk) {
                racks_by_group.entry(group).or_default().insert(rack);
            }
        }
        let too_many = |(&group, racks): (&usize, &BTreeSet<&RackId>)| {
            racks.len().saturating_sub(racks_of_group(&self.group_of, group, rack_limit))
        };
        racks.len().saturating_sub(racks_by_group.iter().map(too_many).sum())
    }
}

/// Returns z: the number of racks of a stripe whose first `locals` groups have local parities, and the last one, if
/// any, the global parities. A local parity whose group's data chunks fill their racks is beside the global parities,
/// if these leave room.
fn racks_of_stripe(group_of: &[usize], locals: usize, rack_limit: usize) -> usize {
    let size = |group: usize| group_of.iter().filter(|other| **other == group).count();
    let racks: usize = (0..=locals).map(|group| racks_of_group(group_of, group, rack_limit)).sum();
    let is_shared =
        !size(locals).is_multiple_of(rack_limit) && (0..locals).any(|group| size(group) % rack_limit == 1);
    racks - usize::from(is_shared)
}

/// Returns the number of racks that hold a group.
fn racks_of_group(group_of: &[usize], group: usize, rack_limit: usize) -> usize {
    group_of.iter().filter(|other| **other == group).count().div_ceil(rack_limit)
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
        assert_eq!(admitting_now(&at, 3), [1, 5], "beside it in 4, 0 to 2 have no room");
        at[0] = 5;
        assert_eq!(admitting_now(&at, 1), [5]);
        (at[0], at[1], at[2]) = (0, 5, 5);
        assert_eq!(admitting_now(&at, 0), [5]);
    }

    #[test]
    fn a_group_that_leaves_a_rack_fills_those_that_it_keeps() {
        // Chunks 0 and 1 in rack 0, 4 in 2; 2 and 3 in 1, 5 and the global parity 6 in 3.
        let mut at = [0, 0, 1, 1, 2, 3, 3];
        let admitting_now = |at: &[usize], chunk| admitting("wide(4,2,2)", at, chunk);
        assert_eq!(admitting_now(&at, 0), [2, 4, 5]);
        at[1] = 2;
        assert_eq!(admitting_now(&at, 0), [4, 5], "the last to leave");
        at[6] = 4;
        assert_eq!(admitting_now(&at, 0), [3, 4], "four racks have chunks");
        at[1] = 0;
        assert_eq!(admitting_now(&at, 0), [2], "3 and 4 have room for one chunk");
    }

    #[test]
    fn a_chunk_goes_to_a_rack_without_others_only_if_another_one_stays_free() {
        // Chunks 0 to 3 in rack 1, 4 to 7 in 2, 9 in 3, 8 and the global parities in 4.
        let mut at = [1, 1, 1, 1, 2, 2, 2, 2, 4, 3, 4, 4, 4];
        let admitting_now = |at: &[usize], chunk| admitting("wide(8,4,4)", at, chunk);
        assert_eq!(admitting_now(&at, 8), [3, 4], "5 stays free");
        assert_eq!(admitting_now(&at, 9), [3, 5], "it leaves a rack free itself");
        at[8] = 3;
        assert_eq!(admitting_now(&at, 8), [3, 4]);
        at = [1, 1, 5, 5, 0, 0, 0, 0, 4, 3, 4, 4, 4];
        assert_eq!(admitting_now(&at, 4), [2, 3], "group 0 is in a rack too many, which it will leave");
    }

    #[test]
    fn what_stays_takes_no_room_from_what_leaves() {
        // Chunks 0 to 3 in rack 1, 4 to 7 in 0, 9 in 3, 8 and the global parities in 4.
        let mut at = [1, 1, 1, 1, 0, 0, 0, 0, 4, 3, 4, 4, 4];
        let admitting_now = |at: &[usize], chunk| admitting("wide(8,4,4)", at, chunk);
        assert_eq!(admitting_now(&at, 8), [4], "2, 3 and 5 are for 4 to 7");
        assert_eq!(admitting_now(&at, 4), [2, 3, 5]);
        at[4] = 2;
        assert_eq!(admitting_now(&at, 8), [4], "2 has just room for 5 to 7");
        at[5] = 3;
        assert_eq!(admitting_now(&at, 8), [2, 4], "2 has room for 6 and 7 beside it, 3 has not");
        at = [1, 1, 5, 5, 0, 0, 0, 0, 4, 3, 4, 4, 4];
        assert_eq!(admitting_now(&at, 0), [1, 5], "group 0 is in a rack too many");
    }

    #[test]
    fn what_stays_makes_way_for_what_leaves_if_no_other_group_leaves_a_rack() {
        // Chunk 0 in rack 0, 1 and 4 in 1; 2 and 5 in 2, 3 and the global parity 6 in 3.
        let mut at = [0, 1, 2, 3, 1, 2, 3];
        let admitting_now = |at: &[usize], chunk| admitting("wide(4,2,2)", at, chunk);
        assert_eq!(admitting_now(&at, 4), [1, 4, 5], "0 then goes to rack 1");
        assert_eq!(admitting_now(&at, 0), [4, 5]);
        at[4] = 4;
        assert_eq!(admitting_now(&at, 0), [1, 4]);
        assert_eq!(admitting_now(&at, 1), [1, 4, 5]);
        (at[4], at[6]) = (1, 0);
        assert_eq!(admitting_now(&at, 4), [1], "the global parity leaves too");
    }

    #[test]
    fn a_wide_stripe_is_in_as_many_racks_as_its_geometry_says() {
        for profile in [
            "wide(4,2,2)",
            "wide(6,3,2)",
            "wide(7,3,3)",
            "wide(8,4,4)",
            "wide(10,5,3)",
            "wide(42,15,4)",
            "wide(64,11,2)",
            "wide(128,27,4)",
            "wide(128,32,4)",
            "wide(12,3,3) spread racks(2)",
            "wide(12,4,4) spread racks(2)",
            "wide(12,4,4) spread racks(1)",
        ] {
            let geometry = WideGeometry::of_profile(&profile.parse().unwrap()).unwrap();
            assert_eq!(rule(profile, 40).racks_of_stripe(), Some(geometry.z()), "{profile}");
            assert_eq!(PlacementRule::of_wide(&geometry), rule(profile, 40));
        }
    }
}
