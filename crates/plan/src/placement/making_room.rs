//! Makes room for a chunk that its stripes bar from every site.
//!
//! A wide stripe leaves a member only the sites of the one or two racks with chunks of its group; where racks have five
//! sites, often just one site. The stripe in which the member was written has a rule of its own, and may already have a
//! chunk on that site, or as many as allowed in that rack. Then another chunk of either stripe moves first, or one of
//! each.

use striate_core::{RackId, SiteId};

use crate::placement::rule::PlacementRule;

/// The current or planned place of a chunk.
pub type Place = (SiteId, RackId);

/// A stripe with a chunk that is to go elsewhere, and the places where its other chunks may go to make room.
#[derive(Clone, Debug)]
pub struct StripeRoom {
    rule: PlacementRule,
    /// The place of each of the n chunks, `None` for a missing one, followed by the places of chunks under way.
    places: Vec<Option<Place>>,
    /// The chunk that is to go elsewhere.
    index: usize,
    /// Other chunks, each with a place where it may go.
    moves: Vec<(usize, Place)>,
}

impl StripeRoom {
    /// Creates the room for chunk `index` of a stripe with this rule. `places` holds the place of each of the n chunks,
    /// `None` for a missing one, followed by the places of chunks under way.
    pub fn new(rule: PlacementRule, places: Vec<Option<Place>>, index: usize) -> Self {
        Self { rule, places, index, moves: Vec::new() }
    }

    /// Adds the places where the rules of its stripes let another chunk go.
    pub fn add_moves(&mut self, chunk: usize, to: Vec<Place>) {
        if chunk != self.index && chunk < self.rule.chunks() && self.places[chunk].is_some() {
            self.moves.extend(to.into_iter().map(|place| (chunk, place)));
        }
    }

    /// Returns whether the chunk may go to `taker` now.
    pub fn admits(&self, taker: &Place) -> bool {
        self.admits_with(taker, |at| self.places[at].as_ref())
    }

    /// Returns the chunks whose places the chunk might take if they were elsewhere.
    pub fn in_the_way(&self) -> Vec<usize> {
        let is_in_the_way = |&chunk: &usize| {
            let Some(place) = &self.places[chunk] else { return false };
            chunk != self.index
                && self.admits_with(place, |at| self.places[at].as_ref().filter(|_| at != chunk))
        };
        (0..self.rule.chunks()).filter(is_in_the_way).collect()
    }

    /// Finds a chunk to move, and its destination, so that the chunk may go to one of `takers` where it may not go now.
    /// Returns `None` if no single move helps.
    pub fn clearing_move<'a>(&self, takers: impl IntoIterator<Item = &'a Place>) -> Option<(usize, SiteId)> {
        let helps = |taker: &Place| {
            self.moves.iter().find(|(moved, to)| {
                self.admits_with(taker, |at| if at == *moved { Some(to) } else { self.places[at].as_ref() })
            })
        };
        let mut barred = takers.into_iter().filter(|taker| !self.admits(taker));
        barred.find_map(helps).map(|&(chunk, (site, _))| (chunk, site))
    }

    /// Returns whether the chunk may go to `taker` if the places are those that `place` returns.
    fn admits_with<'a>(&'a self, taker: &Place, place: impl Fn(usize) -> Option<&'a Place>) -> bool {
        let places: Vec<(usize, &Place)> =
            (0..self.places.len()).filter_map(|at| Some((at, place(at)?))).collect();
        places.iter().all(|&(at, (site, _))| at == self.index || *site != taker.0)
            && self.rule.admits(self.index, &taker.1, places.iter().map(|&(at, (_, rack))| (at, rack)))
    }
}

/// Finds a chunk of a chunk's own stripe to move, and its destination, so that after one more move, in the wide stripe,
/// the chunk may go to one of `takers`. Returns `None` if no such two moves help.
pub fn first_of_two_moves(own: &StripeRoom, wide: &StripeRoom, takers: &[Place]) -> Option<(usize, SiteId)> {
    takers.iter().find_map(|taker| wide.clearing_move([taker]).and_then(|_| own.clearing_move([taker])))
}

#[cfg(test)]
mod tests {
    use striate_core::Profile;

    use super::*;
    use crate::placement::leaving::LeavingRacks;

    fn place(site: u32, rack: u32) -> Place {
        (SiteId(site), RackId(format!("rack {rack}")))
    }

    /// Four chunks, at most two per rack. The second is to go to a site in rack 0.
    fn room(places: [Option<Place>; 4], elsewhere: impl Fn(usize) -> Vec<Place>) -> StripeRoom {
        let mut room = StripeRoom::new(PlacementRule::at_most(2, 4), places.to_vec(), 1);
        (0..4).for_each(|chunk| room.add_moves(chunk, elsewhere(chunk)));
        room
    }

    #[test]
    fn what_has_the_site_moves() {
        let places = [Some(place(1, 1)), Some(place(2, 0)), Some(place(9, 0)), Some(place(4, 2))];
        let to = |chunk: usize| vec![place(10 + chunk as u32, 3)];
        let clearing_move = |room: StripeRoom| room.clearing_move([&place(9, 0)]);
        assert_eq!(clearing_move(room(places.clone(), to)), Some((2, SiteId(12))));
        let others_may = |chunk: usize| if chunk == 2 { Vec::new() } else { to(chunk) };
        assert_eq!(clearing_move(room(places.clone(), others_may)), None, "it may not");
        assert_eq!(clearing_move(room(places, |_| vec![place(9, 0)])), None, "to where the other is to be");
    }

    #[test]
    fn a_chunk_may_go_where_no_other_is_and_its_rack_is_not_full() {
        let room = room([Some(place(1, 1)), Some(place(2, 0)), Some(place(3, 1)), None], |_| Vec::new());
        let admits = |site, rack| room.admits(&place(site, rack));
        assert_eq!([admits(9, 1), admits(1, 0), admits(2, 0), admits(9, 2)], [false, false, true, true]);
    }

    #[test]
    fn one_of_those_that_fill_the_rack_moves() {
        let places = [Some(place(7, 0)), None, Some(place(8, 0)), Some(place(4, 2))];
        let within_rack = |chunk: usize| place(10 + chunk as u32, 0);
        let away = |chunk: usize| vec![within_rack(chunk), place(20 + chunk as u32, 3)];
        let found = room(places.clone(), away);
        assert_eq!(found.in_the_way(), [0, 2, 3], "3 is in a rack with room");
        assert_eq!(found.clearing_move([&place(9, 0)]), Some((0, SiteId(20))));
        assert_eq!(room(places, |chunk| vec![within_rack(chunk)]).clearing_move([&place(9, 0)]), None);
    }

    #[test]
    fn nothing_moves_for_a_place_that_is_open_already() {
        let places = [Some(place(1, 1)), Some(place(2, 2)), Some(place(3, 1)), None];
        let room = room(places, |chunk| vec![place(10 + chunk as u32, 3)]);
        assert_eq!(room.clearing_move([&place(9, 0)]), None);
        assert_eq!(room.clearing_move([&place(9, 0), &place(9, 1)]), Some((0, SiteId(10))));
    }

    /// Chunks 0 to 3 are in rack 1, 4 to 7 in rack 0, which is left, 9 in rack 3, 8 and the global parities in rack 4.
    #[test]
    fn a_chunk_that_stays_takes_no_room_from_those_that_leave() {
        let profile: Profile = "wide(8,4,4)".parse().unwrap();
        let leaving = LeavingRacks::of([(RackId("rack 0".to_owned()), true)]);
        let rule = PlacementRule::new(&profile, &profile.code.build().unwrap(), 6).leaving(&leaving);
        let racks = [1, 1, 1, 1, 0, 0, 0, 0, 4, 3, 4, 4, 4];
        let places = (1..).zip(racks).map(|(site, rack)| Some(place(site, rack))).collect();
        let room = StripeRoom::new(rule, places, 8);
        let admitting: Vec<u32> = (1..6).filter(|&rack| room.admits(&place(20, rack))).collect();
        assert_eq!(admitting, [4], "2, 3 and 5 are for 4 to 7");
    }

    /// The wide stripe is `wide(6,3,2)`: its chunk 2 is lost with a rack, and its group keeps rack 1, which has room, and
    /// rack 2, which is full. Its own stripe has as many chunks as it may in both.
    #[test]
    fn one_chunk_of_each_stripe_moves_where_one_alone_does_not_help() {
        let own = |elsewhere: &dyn Fn(usize) -> Vec<Place>| {
            let places = [(13, 1), (24, 0), (19, 1), (22, 4), (8, 2), (2, 2)];
            let places = places.map(|(site, rack)| Some(place(site, rack))).to_vec();
            let mut own = StripeRoom::new(PlacementRule::at_most(2, 6), places, 1);
            (0..6).for_each(|chunk| own.add_moves(chunk, elsewhere(chunk)));
            own
        };
        let profile: Profile = "wide(6,3,2)".parse().unwrap();
        let leaving = LeavingRacks::of([(RackId("rack 0".to_owned()), true)]);
        let rule = PlacementRule::new(&profile, &profile.code.build().unwrap(), 6).leaving(&leaving);
        let places = [(8, 2), (2, 2), (24, 0), (17, 5), (23, 5), (22, 4), (19, 1), (4, 4), (3, 3)];
        let places = places.map(|(site, rack)| Some(place(site, rack))).to_vec();
        let mut wide = StripeRoom::new(rule, places, 2);
        assert_eq!(wide.in_the_way(), [0, 1, 6]);
        wide.add_moves(1, vec![place(7, 1)]);
        let sites: Vec<Place> =
            (1..=25).filter(|site| site % 6 != 0).map(|site| place(site, site % 6)).collect();
        let may_move = |chunk: usize| if chunk == 4 { vec![place(9, 3)] } else { Vec::new() };
        let own_with_move = own(&may_move);
        let open_to = |room: &StripeRoom| sites.iter().filter(|site| room.admits(site)).cloned().collect();
        let (by_own, by_wide): (Vec<Place>, Vec<Place>) = (open_to(&own_with_move), open_to(&wide));
        assert!(
            !by_own.is_empty() && !by_wide.is_empty() && by_own.iter().all(|site| !by_wide.contains(site))
        );
        assert_eq!(own_with_move.clearing_move(&by_wide), None);
        assert_eq!(wide.clearing_move(&by_own), None);
        assert_eq!(first_of_two_moves(&own_with_move, &wide, &sites), Some((4, SiteId(9))));
        assert_eq!(
            first_of_two_moves(&own(&|_| Vec::new()), &wide, &sites),
            None,
            "its own stripe's may not"
        );
    }
}
