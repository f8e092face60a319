//! Makes room for a chunk that another chunk of its stripe blocks.
//!
//! A wide stripe leaves a member only the sites of the one or two racks without its chunks; where racks have five
//! sites, often just one site. The stripe in which the member was written has a rule of its own, and may already have a
//! chunk on that site, or as many as allowed in that rack.

use striate_core::{RackId, SiteId};

use crate::placement::rule::PlacementRule;

/// The current or planned place of a chunk.
pub type Place = (SiteId, RackId);

/// Finds a chunk to move, and its destination, so that the chunk `index` may go to one of `takers`: sites that would
/// take it but for the stripe's rule. `places` holds the place of each of the n chunks, `None` for a missing one,
/// followed by the places of chunks under way. `new_places` returns where another chunk may go under the rule. Returns
/// `None` if no single move helps.
pub fn clearing_move(
    rule: &PlacementRule,
    places: &[Option<Place>],
    index: usize,
    takers: &[Place],
    new_places: impl Fn(usize) -> Vec<Place>,
) -> Option<(usize, SiteId)> {
    let others = (0..rule.chunks()).filter(|&chunk| chunk != index && places[chunk].is_some());
    let moves_of = |chunk: usize| new_places(chunk).into_iter().map(move |to| (chunk, to));
    let moves: Vec<(usize, Place)> = others.flat_map(moves_of).collect();
    let helps = |taker: &Place| {
        moves.iter().find(|&(chunk, to)| admits_after(rule, places, (index, taker), (*chunk, to)))
    };
    takers.iter().find_map(helps).map(|&(chunk, (site, _))| (chunk, site))
}

/// Returns whether a chunk may go to `taker` once another one has moved.
fn admits_after(
    rule: &PlacementRule,
    places: &[Option<Place>],
    (index, taker): (usize, &Place),
    (moved, to): (usize, &Place),
) -> bool {
    let place = |at: usize| if at == moved { Some(to) } else { places[at].as_ref() };
    admits(rule, (0..places.len()).filter_map(|at| Some((at, place(at)?))), (index, taker))
}

/// Returns whether the chunk `index` may go to `taker` now.
pub fn admits_at(rule: &PlacementRule, places: &[Option<Place>], index: usize, taker: &Place) -> bool {
    let places = places.iter().enumerate().filter_map(|(at, place)| Some((at, place.as_ref()?)));
    admits(rule, places, (index, taker))
}

fn admits<'a>(
    rule: &PlacementRule,
    places: impl Iterator<Item = (usize, &'a Place)>,
    (index, taker): (usize, &Place),
) -> bool {
    let others: Vec<(usize, &Place)> = places.filter(|&(at, _)| at != index).collect();
    others.iter().all(|(_, (site, _))| *site != taker.0)
        && rule.admits(index, &taker.1, others.iter().map(|&(at, (_, rack))| (at, rack)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(site: u32, rack: u32) -> Place {
        (SiteId(site), RackId(format!("rack {rack}")))
    }

    /// Four chunks, at most two per rack. The second is to go to site 9 in rack 0.
    fn room(places: [Option<Place>; 4], elsewhere: impl Fn(usize) -> Vec<Place>) -> Option<(usize, SiteId)> {
        clearing_move(&PlacementRule::at_most(2, 4), &places, 1, &[place(9, 0)], elsewhere)
    }

    #[test]
    fn what_has_the_site_moves() {
        let places = [Some(place(1, 1)), Some(place(2, 0)), Some(place(9, 0)), Some(place(4, 2))];
        let to = |chunk: usize| vec![place(10 + chunk as u32, 3)];
        assert_eq!(room(places.clone(), to), Some((2, SiteId(12))));
        let others_may = |chunk: usize| if chunk == 2 { Vec::new() } else { to(chunk) };
        assert_eq!(room(places.clone(), others_may), None, "it may not");
        assert_eq!(room(places, |_| vec![place(9, 0)]), None, "to where the other is to be");
    }

    #[test]
    fn a_chunk_may_go_where_no_other_is_and_its_rack_is_not_full() {
        let places = [Some(place(1, 1)), Some(place(2, 0)), Some(place(3, 1)), None];
        let admits = |site, rack| admits_at(&PlacementRule::at_most(2, 4), &places, 1, &place(site, rack));
        assert_eq!([admits(9, 1), admits(1, 0), admits(2, 0), admits(9, 2)], [false, false, true, true]);
    }

    #[test]
    fn one_of_those_that_fill_the_rack_moves() {
        let places = [Some(place(7, 0)), None, Some(place(8, 0)), Some(place(4, 2))];
        let within_rack = |chunk: usize| place(10 + chunk as u32, 0);
        let away = |chunk: usize| vec![within_rack(chunk), place(20 + chunk as u32, 3)];
        assert_eq!(room(places.clone(), away), Some((0, SiteId(20))));
        assert_eq!(room(places, |chunk| vec![within_rack(chunk)]), None);
    }
}
