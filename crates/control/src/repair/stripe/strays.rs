//! Strays: chunks in a rack that their group does not need. A group gets such a rack when another one comes back that
//! it was leaving. Scrub and verify put the stripe in debt, and its repair moves the strays to the group's other racks.

use striate_core::{RackId, SiteId};
use striate_meta::records::{Location, Stripe};
use striate_plan::movement::ChunkMove;
use striate_plan::{LeavingRacks, Place, Stray, clearing_move};
use striate_site::Priority;
use striate_stripe::{StripeError, Stripes};

use super::{Findings, Job};
use crate::movement::{MoveOutcome, move_while_leaving, other_places, owner_of};

/// Returns the strays of a stripe while chunks leave the racks in `leaving`.
///
/// # Errors
/// When the profile is one that no version of this program writes.
pub(crate) fn strays(
    stripes: &Stripes,
    record: &Stripe,
    leaving: &LeavingRacks,
) -> Result<Vec<Stray>, StripeError> {
    let is_bound = match record.members.is_empty() {
        true => !record.dropped && !record.dead,
        false => record.is_sealed(),
    };
    if !is_bound {
        return Ok(Vec::new());
    }
    let profile = stripes.profiles().parse(&record.profile)?;
    let rack = |at: &Location| stripes.site(SiteId(at.site)).map(|site| site.rack());
    let racks: Vec<Option<RackId>> = record.locations.iter().map(rack).collect();
    Ok(stripes.placement_rule(&profile)?.leaving(leaving).strays(&racks))
}

impl Job<'_> {
    /// Moves a stray to another rack of its group, or a chunk that is in its way there. Returns whether a chunk has
    /// moved: other strays may be left.
    pub(super) async fn gather_stray(&self, findings: &mut Findings) -> Result<bool, StripeError> {
        let leaving = &self.absent.leaving;
        for stray in strays(self.stripes, &self.change.record, leaving)? {
            let Some(chunk_move) = self.move_to_group(&stray, findings).await? else { continue };
            let outcome = move_while_leaving(self.stripes, &chunk_move, leaving.clone()).await?;
            tracing::debug!(wanted = ?chunk_move, ?outcome, "moving a chunk to the racks of its group");
            if matches!(outcome, MoveOutcome::Moved { .. }) {
                findings.gathered += 1;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the move of a stray to another rack of its group. If only its own stripe bars it from there, returns a
    /// move of another chunk of that stripe after which it does not. `None` if there is no such move.
    async fn move_to_group(
        &self,
        stray: &Stray,
        findings: &Findings,
    ) -> Result<Option<ChunkMove>, StripeError> {
        let owner = owner_of(self.change.id, &self.change.record, stray.chunk);
        let Some((stripe, own_index)) = owner else { return Ok(None) };
        let Some(mut own) = self.stripes.change(stripe, Priority::Repair).await? else { return Ok(None) };
        own.leave(&self.absent.leaving);
        let takers = self.takers(&[], findings);
        let order = self.pace.order(self.stripes, &takers);
        let new_places = |index: usize| other_places(&own, index, &order);
        let is_home = |rack: &RackId| stray.racks.contains(rack);
        let chunk_move = |index: usize, to: SiteId| {
            let from = SiteId(own.record.locations[index].site);
            ChunkMove { stripe, index, from, to }
        };
        if let Some((to, _)) = new_places(own_index).into_iter().find(|(_, rack)| is_home(rack)) {
            return Ok(Some(chunk_move(own_index, to)));
        }
        if stripe == self.change.id {
            return Ok(None);
        }
        let homes = order.iter().filter(|to| is_home(&to.rack) && own.wide_admits(own_index, to.site));
        let homes: Vec<Place> = homes.map(|to| (to.site, to.rack.clone())).collect();
        let clearing = clearing_move(&own.rule(), &own.places(), own_index, &homes, new_places);
        Ok(clearing.map(|(index, to)| chunk_move(index, to)))
    }
}
