//! Which sparse wide stripe is emptied into which others, so that its parities are freed.
//!
//! The members of a wide stripe die one by one, and its parities stay as long as one lives. Nothing moves: a member may
//! become that of another wide stripe whose hole the placement rule admits it to. Only wide stripes less than half full
//! are worth it, and only if all members find holes: as long as one stays, its wide stripe keeps all parities.
//!
//! Cost of a plan: O(targets · members · groups · n), a few times.

use striate_core::{RackId, SiteId};

use crate::placement::rule::PlacementRule;

/// Maximum number of members of a wide stripe that is emptied: all their own stripes change in one transaction.
const MOST_EMPTIED: usize = 40;
/// Maximum number of wide stripes that take them, for the same reason. Each rewrites its parities.
const MOST_TAKERS: usize = 3;

/// Returns whether a wide stripe with `members` of k positions taken is sparse enough to be emptied.
pub fn is_sparse(members: usize, k: usize) -> bool {
    (1..=MOST_EMPTIED).contains(&members) && 2 * members < k
}

/// A member of a wide stripe that is to be emptied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeavingMember {
    /// Its position.
    pub position: usize,
    /// Its length in bytes.
    pub len: u32,
    /// Its site, which keeps it.
    pub site: SiteId,
    /// The rack of that site.
    pub rack: RackId,
}

/// A wide stripe that may take members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakingStripe {
    /// Length of its parities in bytes, which no member exceeds.
    pub chunk_len: u32,
    /// Number of its data chunks.
    pub k: usize,
    /// Places of its n chunks; `None` is a hole.
    pub places: Vec<Option<(SiteId, RackId)>>,
}

/// New position of a leaving member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlannedTransfer {
    /// The index of the member among those that leave.
    pub member: usize,
    /// The index of the wide stripe that takes it.
    pub taker: usize,
    /// Its position there.
    pub hole: usize,
}

impl TakingStripe {
    /// Takes as many of these members as the rule admits: first those whose rack their group is in already.
    fn take(
        mut self,
        rule: &PlacementRule,
        members: &[LeavingMember],
        left: &[usize],
    ) -> Vec<(usize, usize)> {
        let groups = match rule.groups() {
            groups if groups.is_empty() => vec![(0..self.places.len()).collect()],
            groups => groups,
        };
        let mut taken = Vec::new();
        for may_spread in [false, true] {
            for &member in left {
                if taken.iter().any(|&(other, _)| other == member) {
                    continue;
                }
                let leaving = &members[member];
                if let Some(hole) = self.hole_for(rule, &groups, leaving, may_spread) {
                    self.places[hole] = Some((leaving.site, leaving.rack.clone()));
                    taken.push((member, hole));
                }
            }
        }
        taken
    }

    /// Returns the first hole that the rule admits a member to. Holes of one group are alike.
    fn hole_for(
        &self,
        rule: &PlacementRule,
        groups: &[Vec<usize>],
        member: &LeavingMember,
        may_spread: bool,
    ) -> Option<usize> {
        let is_taken = self.places.iter().flatten().any(|(site, _)| *site == member.site);
        if is_taken || member.len > self.chunk_len {
            return None;
        }
        let chunks = self.places.iter().enumerate();
        let at = chunks.filter_map(|(chunk, place)| Some((chunk, &place.as_ref()?.1)));
        groups.iter().find_map(|group| {
            let rack_of = |&chunk: &usize| self.places[chunk].as_ref().map(|(_, rack)| rack);
            let is_there = group.iter().filter_map(rack_of).any(|rack| *rack == member.rack);
            let hole = *group.iter().find(|&&chunk| chunk < self.k && self.places[chunk].is_none())?;
            ((is_there || may_spread) && rule.admits(hole, &member.rack, at.clone())).then_some(hole)
        })
    }
}

/// Plans how all members of a wide stripe go into holes of others. Returns `None` if one finds no hole, or too many
/// wide stripes would have to take some. The one that takes most comes first, of several the first of `takers`.
pub fn plan_emptying(
    rule: &PlacementRule,
    members: &[LeavingMember],
    takers: &[TakingStripe],
) -> Option<Vec<PlannedTransfer>> {
    let mut left: Vec<usize> = (0..members.len()).collect();
    let mut planned: Vec<PlannedTransfer> = Vec::new();
    for _ in 0..MOST_TAKERS {
        if left.is_empty() {
            break;
        }
        let mut best = (0, Vec::new());
        for (index, taker) in takers.iter().enumerate() {
            if planned.iter().any(|of| of.taker == index) {
                continue;
            }
            let taken = taker.clone().take(rule, members, &left);
            if taken.len() > best.1.len() {
                best = (index, taken);
            }
            if best.1.len() == left.len() {
                break;
            }
        }
        let (taker, taken) = best;
        left.retain(|member| !taken.iter().any(|(other, _)| other == member));
        planned.extend(taken.into_iter().map(|(member, hole)| PlannedTransfer { member, taker, hole }));
    }
    (left.is_empty() && !planned.is_empty()).then_some(planned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::placement::check::check_placement;

    const K: usize = 10;
    const RACKS: u32 = 6;

    fn rack(site: SiteId) -> RackId {
        RackId(format!("rack{}", site.0 % RACKS))
    }

    fn rule() -> PlacementRule {
        let profile: striate_core::Profile = "wide(10,5,3)".parse().unwrap();
        PlacementRule::new(&profile, &profile.code.build().unwrap(), RACKS as usize)
    }

    fn member(position: usize, site: u32) -> LeavingMember {
        LeavingMember { position, len: 7, site: SiteId(site), rack: rack(SiteId(site)) }
    }

    /// A full wide stripe with each group in two racks, starting at a site of the first rack, less the members at
    /// these positions.
    fn taker(first: u32, holes: &[usize]) -> TakingStripe {
        let rack_of = |chunk: u32| match chunk {
            0..5 => chunk / 3,
            5..10 => 2 + (chunk - 5) / 3,
            10 => 1,
            11 => 3,
            _ => 4,
        };
        let site = |chunk: u32| SiteId(first + rack_of(chunk) + RACKS * chunk);
        let place =
            |chunk: u32| (!holes.contains(&(chunk as usize))).then(|| (site(chunk), rack(site(chunk))));
        TakingStripe { chunk_len: 8, k: K, places: (0..14).map(place).collect() }
    }

    #[test]
    fn members_go_where_their_racks_are_or_not_at_all() {
        let takers = [taker(6, &[0, 1, 2]), taker(6, &[0, 7])];
        let plan = |members: &[LeavingMember]| {
            let mut planned = plan_emptying(&rule(), members, &takers)?;
            planned.sort_unstable();
            Some(planned.iter().map(|of| (of.taker, of.hole)).collect::<Vec<_>>())
        };
        let in_rack = |rack: u32, at: usize| member(at, 600 + 6 * at as u32 + rack);
        assert_eq!(plan(&[in_rack(0, 0), in_rack(0, 1)]), Some(vec![(0, 0), (0, 1)]), "one takes both");
        assert_eq!(
            plan(&[in_rack(0, 0), in_rack(2, 1)]),
            Some(vec![(1, 0), (1, 7)]),
            "the one that takes most"
        );
        let all = [in_rack(0, 0), in_rack(0, 1), in_rack(0, 2), in_rack(2, 3)];
        assert_eq!(plan(&all), Some(vec![(0, 0), (0, 1), (0, 2), (1, 7)]), "two take them");
        assert_eq!(plan(&[in_rack(0, 0), in_rack(4, 1)]), None, "the rack of the global parities");
        assert_eq!(plan(&[in_rack(0, 0), in_rack(3, 1)]), None, "full");
        assert_eq!(plan(&[LeavingMember { len: 9, ..in_rack(0, 0) }]), None, "longer than the parities");
        let SiteId(site) = taker(6, &[]).places[3].as_ref().unwrap().0;
        assert_eq!(plan(&[member(0, site)]), None, "a site has one chunk of a stripe");
        assert_eq!(plan(&[]), None);
    }

    #[test]
    fn what_is_half_full_stays() {
        assert_eq!([0, 1, 20, 21].map(|members| is_sparse(members, 42)), [false, true, true, false]);
        assert_eq!([MOST_EMPTIED, MOST_EMPTIED + 1].map(|members| is_sparse(members, 128)), [true, false]);
    }

    proptest! {
        #[test]
        fn a_plan_takes_all_members_and_obeys_the_rule(
            sites in prop::collection::btree_set(1u32..120, 1..5),
            holes in prop::collection::vec(prop::collection::btree_set(0usize..K, 1..=K), 1..5),
        ) {
            let members: Vec<LeavingMember> =
                sites.into_iter().enumerate().map(|(at, site)| member(at, site)).collect();
            let takers: Vec<TakingStripe> = (1..).zip(&holes)
                .map(|(at, holes)| taker(6 * at, &holes.iter().copied().collect::<Vec<_>>()))
                .collect();
            let Some(planned) = plan_emptying(&rule(), &members, &takers) else { return Ok(()) };
            let mut taken: Vec<usize> = planned.iter().map(|of| of.member).collect();
            taken.sort_unstable();
            prop_assert_eq!(taken, (0..members.len()).collect::<Vec<_>>());
            let mut filled = takers.clone();
            for PlannedTransfer { member, taker, hole } in planned {
                let leaving = &members[member];
                prop_assert!(filled[taker].places[hole].is_none() && hole < K);
                filled[taker].places[hole] = Some((leaving.site, leaving.rack.clone()));
            }
            let racks: std::collections::HashMap<SiteId, RackId> =
                (1..2_000).map(|site| (SiteId(site), rack(SiteId(site)))).collect();
            for stripe in filled {
                let sites: Vec<SiteId> = stripe.places.iter()
                    .map(|place| place.as_ref().map_or(SiteId(0), |(site, _)| *site))
                    .collect();
                prop_assert_eq!(check_placement(&rule(), &sites, |site| racks.get(&site)), Ok(()));
            }
        }
    }
}
