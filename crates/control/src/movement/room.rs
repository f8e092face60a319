//! Room for a member of a wide stripe that must leave its site: another chunk of the stripe that it was written in moves first.

use striate_core::{SiteId, StripeId};
use striate_plan::movement::ChunkMove;
use striate_plan::{Candidate, Place, clearing_move, draw_order};
use striate_site::Priority;
use striate_stripe::{OpenedStripe, StripeError, Stripes};

/// The move of another chunk of a stripe that lets its chunk `member` go where its wide stripe lets it, from `position` there. `None` where
/// no single move does.
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
    let has_none = |of: &Candidate| places.iter().flatten().all(|(site, _)| *site != of.site);
    let elsewhere = |index: usize| -> Option<Place> {
        let may_go = |of: &&&Candidate| has_none(of) && change.wide_admits(index, of.site);
        let free: Vec<&Candidate> = order.iter().filter(may_go).copied().collect();
        let (_, to) = change.rule().targets_in_order(&free, &racks, &[index]).pop()?;
        Some((to, change.rack_of(to)?))
    };
    let admits = |of: &&&Candidate| stripes.admits_in_wide(wide, position, of.site);
    let takers: Vec<Place> = order.iter().filter(admits).map(|of| (of.site, of.rack.clone())).collect();
    let wanted = clearing_move(&change.rule(), &places, member, &takers, elsewhere);
    Ok(wanted.map(|(index, to)| {
        let from = SiteId(change.record.locations[index].site);
        ChunkMove { stripe: id, index, from, to }
    }))
}
