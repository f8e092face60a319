//! Makes room for a member of a wide stripe that must leave its site or is lost: another chunk moves first, either of
//! the member's own stripe or of the wide stripe.

use striate_core::{SiteId, StripeId};
use striate_meta::records::Stripe;
use striate_plan::movement::ChunkMove;
use striate_plan::{Candidate, LeavingRacks, Place, admits_at, clearing_move, draw_order};
use striate_site::Priority;
use striate_stripe::{OpenedStripe, StripeChange, StripeError, Stripes, is_hole};

/// Returns a move of another chunk, of the stripe or of its wide stripe, after which chunk `member` may go to a site
/// that both stripes admit, where chunks may leave the racks in `leaving`. `position` is the member's position in the
/// wide stripe. `None` if no single move suffices.
///
/// # Errors
/// When the metadata store fails.
pub(super) async fn find_clearing_move(
    stripes: &Stripes,
    id: StripeId,
    member: usize,
    (wide, position): (&OpenedStripe, usize),
    leaving: &LeavingRacks,
) -> Result<Option<ChunkMove>, StripeError> {
    let Some(mut change) = stripes.change(id, Priority::Background).await? else { return Ok(None) };
    change.leave(leaving);
    let candidates = stripes.candidates();
    let mut rng = stripes.runtime().rng();
    let order: Vec<&Candidate> = draw_order(&mut rng, &candidates);
    let admits = |candidate: &&&Candidate| stripes.admits_in_wide(wide, position, candidate.site, leaving);
    let takers: Vec<Place> =
        order.iter().filter(admits).map(|candidate| (candidate.site, candidate.rack.clone())).collect();
    let new_places = |index: usize| other_places(&change, index, &order);
    let clearing = clearing_move(&change.rule(), &change.places(), member, &takers, new_places);
    if let Some((index, to)) = clearing {
        let from = SiteId(change.record.locations[index].site);
        return Ok(Some(ChunkMove { stripe: id, index, from, to }));
    }
    let is_well = |site: SiteId| candidates.iter().any(|candidate| candidate.site == site);
    find_move_in_wide(stripes, &change, member, (wide, position), &takers, is_well).await
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

/// Returns a move of another chunk of the wide stripe within its rack, to one of `takers`: sites that the wide stripe
/// admits for the member but its own stripe does not. The member may then take that chunk's place, if `is_well` says
/// that the site takes chunks. `None` if no such chunk exists.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn find_move_in_wide(
    stripes: &Stripes,
    change: &StripeChange<'_>,
    member: usize,
    (wide, position): (&OpenedStripe, usize),
    takers: &[Place],
    is_well: impl Fn(SiteId) -> bool,
) -> Result<Option<ChunkMove>, StripeError> {
    let (rule, places) = (change.rule(), change.places());
    for at in (0..wide.code.n()).filter(|&at| at != position && !is_hole(&wide.record, at)) {
        let from = SiteId(wide.record.locations[at].site);
        let Some(place) = change.rack_of(from).map(|rack| (from, rack)) else { continue };
        let taker = takers.iter().find(|(site, rack)| *rack == place.1 && *site != from);
        let Some(&(to, _)) = taker.filter(|_| is_well(from)) else { continue };
        if !admits_at(&rule, &places, member, &place) {
            continue;
        }
        let other = owner_of(wide.id, &wide.record, at).filter(|&(id, _)| id != change.id);
        let Some((stripe, index)) = other else { continue };
        let has_none = |opened: OpenedStripe| opened.record.locations.iter().all(|at| at.site != to.0);
        if stripes.find(stripe).await?.is_some_and(has_none) {
            return Ok(Some(ChunkMove { stripe, index, from, to }));
        }
    }
    Ok(None)
}

/// Returns the stripe whose file a chunk is, and the chunk's index there: a member of a wide stripe is one of its own
/// stripe. `None` for a hole.
pub(crate) fn owner_of(id: StripeId, record: &Stripe, at: usize) -> Option<(StripeId, usize)> {
    match record.members.get(at) {
        Some(member) => Some((member.stripe_id()?, member.index as usize)),
        None => Some((id, at)),
    }
}
