//! Makes room for a member of a wide stripe that must leave its site or is lost: another chunk moves first, either of
//! the member's own stripe or of the wide stripe.

use striate_core::{SiteId, StripeId};
use striate_plan::movement::ChunkMove;
use striate_plan::{Candidate, Place, admits_at, clearing_move, draw_order};
use striate_site::Priority;
use striate_stripe::{OpenedStripe, StripeChange, StripeError, Stripes, is_hole};

/// Returns a move of another chunk, of the stripe or of its wide stripe, after which chunk `member` may go to a site
/// that both stripes admit. `position` is the member's position in the wide stripe. `None` if no single move
/// suffices.
///
/// # Errors
/// When the metadata store fails.
pub(super) async fn find_clearing_move(
    stripes: &Stripes,
    id: StripeId,
    member: usize,
    (wide, position): (&OpenedStripe, usize),
) -> Result<Option<ChunkMove>, StripeError> {
    let Some(change) = stripes.change(id, Priority::Background).await? else { return Ok(None) };
    let candidates = stripes.candidates();
    let mut rng = stripes.runtime().rng();
    let order: Vec<&Candidate> = draw_order(&mut rng, &candidates);
    let (places, racks) = (change.places(), change.racks(&[]));
    let has_none = |candidate: &Candidate| places.iter().flatten().all(|(site, _)| *site != candidate.site);
    let other_place = |index: usize| -> Option<Place> {
        let may_go =
            |candidate: &&&Candidate| has_none(candidate) && change.wide_admits(index, candidate.site);
        let free: Vec<&Candidate> = order.iter().filter(may_go).copied().collect();
        let (_, to) = change.rule().targets_in_order(&free, &racks, &[index]).pop()?;
        Some((to, change.rack_of(to)?))
    };
    let admits = |candidate: &&&Candidate| stripes.admits_in_wide(wide, position, candidate.site);
    let takers: Vec<Place> =
        order.iter().filter(admits).map(|candidate| (candidate.site, candidate.rack.clone())).collect();
    if let Some((index, to)) = clearing_move(&change.rule(), &places, member, &takers, other_place) {
        let from = SiteId(change.record.locations[index].site);
        return Ok(Some(ChunkMove { stripe: id, index, from, to }));
    }
    let is_well = |site: SiteId| candidates.iter().any(|candidate| candidate.site == site);
    find_move_in_wide(stripes, &change, member, (wide, position), &takers, is_well).await
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
        let (stripe, index) = match wide.record.members.get(at) {
            Some(other) => (other.stripe_id(), other.index as usize),
            None => (Some(wide.id), at),
        };
        let Some(stripe) = stripe.filter(|&id| id != change.id) else { continue };
        let has_none = |opened: OpenedStripe| opened.record.locations.iter().all(|at| at.site != to.0);
        if stripes.find(stripe).await?.is_some_and(has_none) {
            return Ok(Some(ChunkMove { stripe, index, from, to }));
        }
    }
    Ok(None)
}
