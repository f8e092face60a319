//! Makes room for a member of a wide stripe that must leave its site or is lost: another chunk moves first, either of
//! the member's own stripe or of the wide stripe, or one of each.

use striate_core::{SiteId, StripeId};
use striate_meta::records::Stripe;
use striate_plan::movement::ChunkMove;
use striate_plan::{Candidate, LeavingRacks, Place, StripeRoom, draw_order, first_of_two_moves};
use striate_site::Priority;
use striate_stripe::{StripeChange, StripeError, Stripes, wide_of};

/// Returns the next move of another chunk, of the stripe or of its wide stripe, so that chunk `member` may go to a site
/// that both stripes admit, where chunks may leave the racks in `leaving`. `wide` is the wide stripe with the member's
/// position. `None` if neither one nor two moves suffice.
///
/// # Errors
/// When the metadata store fails.
pub(super) async fn find_clearing_move(
    stripes: &Stripes,
    id: StripeId,
    member: usize,
    wide: (StripeId, usize),
    leaving: &LeavingRacks,
) -> Result<Option<ChunkMove>, StripeError> {
    let Some(mut change) = stripes.change(id, Priority::Background).await? else { return Ok(None) };
    change.leave(leaving);
    let candidates = stripes.candidates();
    let order = draw_order(&mut stripes.runtime().rng(), &candidates);
    let is_well = |site: SiteId| candidates.iter().any(|candidate| candidate.site == site);
    let at = |index: usize| SiteId(change.record.locations[index].site);
    let own = own_room(&change, member, &order, |index| is_well(at(index)));
    match own_clearing_move(&change, &own, member, &order) {
        Some(chunk_move) => Ok(Some(chunk_move)),
        None => {
            let search = WideSearch { stripes, leaving, takers: &order, destinations: &order };
            search.find(&change, &own, wide, |_, from| is_well(from)).await
        }
    }
}

/// Returns the room that a stripe has for chunk `index`, if chunks may move for which `may_move` holds.
pub(crate) fn own_room(
    change: &StripeChange<'_>,
    index: usize,
    order: &[&Candidate],
    may_move: impl Fn(usize) -> bool,
) -> StripeRoom {
    let mut room = StripeRoom::new(change.rule(), change.places(), index);
    let others = (0..change.code.n()).filter(|&chunk| chunk != index && may_move(chunk));
    others.for_each(|chunk| room.add_moves(chunk, other_places(change, chunk, order)));
    room
}

/// Returns the move of another chunk of a member's own stripe after which the member may go where its wide stripe
/// admits it.
pub(crate) fn own_clearing_move(
    change: &StripeChange<'_>,
    own: &StripeRoom,
    member: usize,
    order: &[&Candidate],
) -> Option<ChunkMove> {
    let takers: Vec<&Candidate> =
        order.iter().copied().filter(|to| change.wide_admits(member, to.site)).collect();
    let (index, to) = own.clearing_move(&places_of(&takers))?;
    Some(move_of(change, index, to))
}

/// A search for moves that make room for a member in its wide stripe.
pub(crate) struct WideSearch<'a> {
    pub stripes: &'a Stripes,
    /// Racks that chunks may leave.
    pub leaving: &'a LeavingRacks,
    /// Sites that the member may take.
    pub takers: &'a [&'a Candidate],
    /// Sites where another chunk of the wide stripe may go.
    pub destinations: &'a [&'a Candidate],
}

impl WideSearch<'_> {
    /// Returns the move of another chunk of a member's wide stripe after which the member may go where its own stripe
    /// admits it. If no such move suffices, returns the move of a chunk of its own stripe after which one does. `own` is
    /// the room in the member's own stripe, and `wide` the wide one with the member's position. Of other stripes only
    /// chunks move for which `may_move` holds, which is asked with their sites.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(crate) async fn find(
        &self,
        change: &StripeChange<'_>,
        own: &StripeRoom,
        (wide, position): (StripeId, usize),
        may_move: impl Fn((StripeId, usize), SiteId) -> bool,
    ) -> Result<Option<ChunkMove>, StripeError> {
        let Some(mut wide) = self.stripes.change(wide, Priority::Background).await? else { return Ok(None) };
        wide.leave(self.leaving);
        let mut room = StripeRoom::new(wide.rule(), wide.places(), position);
        let mut others = vec![None; wide.code.n()];
        for at in room.in_the_way() {
            let from = SiteId(wide.record.locations[at].site);
            let owner = owner_of(wide.id, &wide.record, at).filter(|owner| owner.0 != change.id);
            let Some((stripe, index)) = owner.filter(|&owner| may_move(owner, from)) else { continue };
            let Some(mut owner) = self.stripes.change(stripe, Priority::Background).await? else { continue };
            owner.leave(self.leaving);
            room.add_moves(at, other_places(&owner, index, self.destinations));
            others[at] = Some((stripe, index, from));
        }
        let takers = places_of(self.takers);
        if let Some((at, to)) = room.clearing_move(takers.iter().filter(|site| own.admits(site))) {
            return Ok(others[at].map(|(stripe, index, from)| ChunkMove { stripe, index, from, to }));
        }
        // A member of the same wide stripe would change what the second move relies on.
        let is_elsewhere =
            |index: usize| wide_of(&change.record.locations[index]).is_none_or(|(of, _)| of != wide.id);
        let first = first_of_two_moves(own, &room, &takers).filter(|&(index, _)| is_elsewhere(index));
        Ok(first.map(|(index, to)| move_of(change, index, to)))
    }
}

/// Returns the sites as places.
pub(crate) fn places_of(sites: &[&Candidate]) -> Vec<Place> {
    sites.iter().map(|site| (site.site, site.rack.clone())).collect()
}

/// Returns the move of a chunk to `to` from where it is.
pub(crate) fn move_of(change: &StripeChange<'_>, index: usize, to: SiteId) -> ChunkMove {
    ChunkMove { stripe: change.id, index, from: SiteId(change.record.locations[index].site), to }
}

/// Returns the places where the rules of its stripes admit a chunk, in the order of the candidates. If its own
/// stripe's rule does not bind it, sites with another chunk of that stripe follow.
pub(crate) fn other_places(change: &StripeChange<'_>, index: usize, order: &[&Candidate]) -> Vec<Place> {
    let (rule, places, racks) = (change.rule(), change.places(), change.racks(&[index]));
    let (is_bound, from) = (change.is_bound_by_rule(), SiteId(change.record.locations[index].site));
    let has_none = |site: SiteId| places.iter().flatten().all(|(taken, _)| *taken != site);
    let own_admits = |candidate: &Candidate| {
        let is_admitted = || !rule.targets_in_order(&[candidate], &racks, &[index]).is_empty();
        !is_bound || has_none(candidate.site) && is_admitted()
    };
    let admits = |candidate: &&Candidate| {
        candidate.site != from && change.wide_admits(index, candidate.site) && own_admits(candidate)
    };
    let admitted = order.iter().copied().filter(admits);
    let (free, holding): (Vec<&Candidate>, Vec<&Candidate>) =
        admitted.partition(|candidate| has_none(candidate.site));
    free.into_iter().chain(holding).map(|candidate| (candidate.site, candidate.rack.clone())).collect()
}

/// Returns the stripe whose file a chunk is, and the chunk's index there: a member of a wide stripe is one of its own
/// stripe. `None` for a hole.
pub(crate) fn owner_of(id: StripeId, record: &Stripe, at: usize) -> Option<(StripeId, usize)> {
    match record.members.get(at) {
        Some(member) => Some((member.stripe_id()?, member.index as usize)),
        None => Some((id, at)),
    }
}
