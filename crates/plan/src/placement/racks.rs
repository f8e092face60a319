//! How many sites each rack has, and what stripes of a profile survive there.

use std::ops::Deref;

use striate_codec::Code;
use striate_core::{Profile, Tier};

use crate::placement::rule::PlacementRule;

/// Number of sites in each rack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RackSizes(Vec<usize>);

/// The numbers of losses after which every stripe of a profile can still be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Survivable {
    /// Sites, wherever they are.
    pub sites: usize,
    /// Racks, with all of their sites.
    pub racks: usize,
}

impl Survivable {
    /// Returns whether this survives at least as many losses of either kind.
    pub fn covers(self, other: Self) -> bool {
        self.sites >= other.sites && self.racks >= other.racks
    }
}

impl RackSizes {
    /// Number of sites.
    pub fn sites(&self) -> usize {
        self.0.iter().fold(0, |sum, size| sum.saturating_add(*size))
    }

    /// Returns the number of chunks of one stripe for which there is room if a rack takes at most `rack_limit`.
    pub fn room(&self, rack_limit: usize) -> usize {
        self.shares(rack_limit).fold(0, usize::saturating_add)
    }

    /// Returns the smallest limit that leaves room for `chunks` chunks. If there are too few sites for them, the limit
    /// that would do if all racks had enough.
    pub fn smallest_limit(&self, chunks: usize) -> usize {
        let balanced = chunks.div_ceil(self.len().max(1));
        (balanced..=chunks).find(|limit| self.room(*limit) >= chunks).unwrap_or(balanced)
    }

    /// Returns how many losses every stripe of `profile` survives, wherever the placement rule puts its chunks. `None` if
    /// the rule has no place for all of them.
    pub fn survivable(&self, profile: &Profile) -> Option<Survivable> {
        let code = profile.code.build().ok()?;
        self.survivable_with(profile, &code)
    }

    /// As [`RackSizes::survivable`], with the profile's code at hand.
    pub fn survivable_with(&self, profile: &Profile, code: &Code) -> Option<Survivable> {
        if profile.tier == Tier::Memory {
            return Some(Survivable { sites: 0, racks: 0 });
        }
        let limit = PlacementRule::new(profile, code, self.clone()).rack_limit();
        if self.room(limit) < code.n() {
            return None;
        }
        self.survivable_after(profile, code, &vec![0; self.len()])
    }

    /// Returns how many further losses every stripe survives, wherever the placement rule has put its chunks, after
    /// `lost[rack]` sites of each rack were lost. `None` if a stripe may have lost more than it survives.
    pub fn survivable_after(&self, profile: &Profile, code: &Code, lost: &[usize]) -> Option<Survivable> {
        let limit = PlacementRule::new(profile, code, self.clone()).rack_limit();
        let lost_of = |rack: usize| lost.get(rack).copied().unwrap_or(0);
        let lost_chunks: usize = (0..self.len()).map(|rack| lost_of(rack).min(limit)).sum();
        let left = code.tolerance().checked_sub(lost_chunks.min(code.n()))?;
        let living = self.shares(limit).enumerate().filter(|(rack, _)| self.0[*rack] > lost_of(*rack));
        let mut shares: Vec<usize> = living.map(|(rack, share)| share - lost_of(rack).min(limit)).collect();
        shares.sort_unstable_by(|a, b| b.cmp(a));
        let mut further = 0usize;
        let survived = shares.iter().take_while(|share| {
            further = further.saturating_add(**share);
            further <= left
        });
        Some(Survivable { sites: left, racks: survived.count() })
    }

    fn shares(&self, rack_limit: usize) -> impl Iterator<Item = usize> {
        self.0.iter().map(move |size| (*size).min(rack_limit))
    }
}

impl Deref for RackSizes {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl FromIterator<usize> for RackSizes {
    fn from_iter<I: IntoIterator<Item = usize>>(sizes: I) -> Self {
        Self(sizes.into_iter().collect())
    }
}

impl From<usize> for RackSizes {
    /// Racks that each have room for any number of chunks.
    fn from(count: usize) -> Self {
        Self(vec![usize::MAX; count])
    }
}

/// Returns the default profile of a cluster without objects on these racks, where `current` was the default so far: that
/// of the largest number of sites ([`Profile::for_directories`]) whose stripes have a place and survive at least as many
/// lost sites and racks as those of `current` would. If `current` has no place here, that with the most survivable racks.
pub fn default_profile(current: &Profile, racks: &RackSizes) -> Profile {
    let candidates: Vec<(Survivable, Profile)> = (1..=racks.sites())
        .map(Profile::for_directories)
        .filter_map(|profile| Some((racks.survivable(&profile)?, profile)))
        .collect();
    let survived_racks = candidates.iter().map(|(survivable, _)| survivable.racks).max().unwrap_or(0);
    let needed = racks.survivable(current).unwrap_or(Survivable { sites: 0, racks: survived_racks });
    let chosen = candidates.into_iter().rev().find(|(survivable, _)| survivable.covers(needed));
    chosen.map_or(*current, |(_, profile)| profile)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sizes(sizes: &[usize]) -> RackSizes {
        sizes.iter().copied().collect()
    }

    fn profile(text: &str) -> Profile {
        text.parse().unwrap()
    }

    #[test]
    fn racks_say_what_a_profile_survives() {
        let cases = [
            // (racks, profile, sites and racks that may be lost)
            (&[2, 2, 2][..], "rs(4,2)", Some((2, 1))),
            (&[3, 2, 2], "rs(5,2)", Some((2, 0))),
            (&[3, 2, 2], "rs(4,2)", Some((2, 1))),
            (&[8, 2, 2, 2], "rs(10,4)", Some((4, 0))),
            (&[8, 2, 2, 2], "rs(4,2)", Some((2, 1))),
            (&[1; 6], "rs(4,2)", Some((2, 2))),
            (&[6], "rs(4,2)", Some((2, 0))),
            (&[6, 1], "rs(4,2)", Some((2, 0))),
            (&[1, 1], "rs(4,2)", None),
            (&[4, 4], "rs(4,2) spread flat", Some((2, 0))),
            (&[2, 2, 2], "rs(4,2) spread racks(1)", None),
            (&[1], "none", Some((0, 0))),
        ];
        for (racks, text, expected) in cases {
            let found = sizes(racks).survivable(&profile(text));
            assert_eq!(found.map(|found| (found.sites, found.racks)), expected, "{text} on {racks:?}");
        }
    }

    #[test]
    fn losses_leave_less_to_lose() {
        let cases = [
            // (racks, lost of each, profile, further sites and racks that may be lost)
            (&[2, 2, 2][..], &[0, 0, 0][..], "rs(4,2)", Some((2, 1))),
            (&[2, 2, 2], &[1, 0, 0], "rs(4,2)", Some((1, 0))),
            (&[2, 2, 2], &[2, 0, 0], "rs(4,2)", Some((0, 0))),
            (&[2, 2, 2], &[2, 1, 0], "rs(4,2)", None),
            (&[4, 4, 4], &[4, 0, 0], "rs(4,2)", Some((0, 0))),
            (&[1; 6], &[1, 0, 0, 0, 0, 0], "rs(4,2)", Some((1, 1))),
            (&[3, 2, 2, 2], &[2, 0, 0, 0], "rs(4,3) spread racks(3)", Some((1, 0))),
            (&[1, 1], &[1, 0], "none", None),
        ];
        for (racks, lost, text, expected) in cases {
            let profile = profile(text);
            let found = sizes(racks).survivable_after(&profile, &profile.code.build().unwrap(), lost);
            let found = found.map(|found| (found.sites, found.racks));
            assert_eq!(found, expected, "{text} on {racks:?} without {lost:?}");
        }
    }

    #[test]
    fn a_default_grows_only_where_racks_survive_as_before() {
        let cases = [
            (&[1; 6][..], "rs(3,2)", "rs(4,2)"),
            (&[2, 2, 2], "rs(3,2)", "rs(4,2)"),
            (&[3, 2, 2], "rs(4,2)", "rs(4,2)"),
            (&[2, 2, 2, 1], "rs(4,2)", "rs(5,2)"),
            (&[8, 2, 2, 2], "rs(4,2)", "rs(6,3)"),
            // One site fewer than it needs.
            (&[2, 2, 1], "rs(4,2)", "rs(3,2)"),
            (&[5, 1], "rs(3,2)", "rs(4,2)"),
            (&[], "none", "none"),
        ];
        for (racks, current, expected) in cases {
            let found = default_profile(&profile(current), &sizes(racks)).to_string();
            assert_eq!(found, expected, "{current} on {racks:?}");
        }
    }

    fn layouts() -> impl Strategy<Value = Vec<usize>> {
        prop::collection::vec(1usize..9, 1..7)
    }

    proptest! {
        /// Sites join one after the other, in any racks. The default always has places for its chunks, and never survives
        /// fewer losses than the one before would.
        #[test]
        fn a_default_that_follows_the_sites_never_loses_a_place_or_tolerance(joining in prop::collection::vec(0usize..5, 1..20)) {
            let mut racks: Vec<usize> = Vec::new();
            let mut current = Profile::for_directories(1);
            for rack in joining {
                match racks.get_mut(rack) {
                    Some(size) => *size += 1,
                    None => racks.push(1),
                }
                let layout = sizes(&racks);
                let before = layout.survivable(&current);
                current = default_profile(&current, &layout);
                let after = layout.survivable(&current);
                prop_assert!(after.is_some(), "{current} has no place on {racks:?}");
                prop_assert!(before.is_some_and(|before| after.unwrap().covers(before)), "{current} on {racks:?}");
            }
        }

        /// A recorded default keeps its place and its tolerance when a site or a rack of any size joins.
        #[test]
        fn a_fixed_default_keeps_its_place_and_its_tolerance(racks in layouts(), grown in 0usize..8, size in 1usize..9) {
            let before = sizes(&racks);
            let fixed = default_profile(&Profile::for_directories(1), &before);
            let mut after = racks;
            match after.get_mut(grown) {
                Some(rack) => *rack += 1,
                None => after.push(size),
            }
            let (before, after) = (before.survivable(&fixed).unwrap(), sizes(&after).survivable(&fixed));
            prop_assert!(after.is_some_and(|after| after.covers(before)), "{fixed}: {before:?}, then {after:?}");
        }

        /// What is said to be survived is: wherever the rule puts the chunks, no set of that many racks holds more chunks
        /// than the code can lose, and one rack more may.
        #[test]
        fn the_racks_that_may_be_lost_never_hold_too_many_chunks(racks in layouts()) {
            let layout = sizes(&racks);
            let profile = default_profile(&Profile::for_directories(1), &layout);
            let code = profile.code.build().unwrap();
            let limit = PlacementRule::new(&profile, &code, layout.clone()).rack_limit();
            let survived = layout.survivable(&profile).unwrap().racks;
            let mut shares: Vec<usize> = racks.iter().map(|size| (*size).min(limit)).collect();
            shares.sort_unstable();
            let worst = |racks: usize| shares.iter().rev().take(racks).sum::<usize>();
            prop_assert!(worst(survived) <= code.tolerance());
            prop_assert!(survived == racks.len() || worst(survived + 1) > code.tolerance());
        }
    }
}
