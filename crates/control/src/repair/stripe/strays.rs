//! Strays: chunks in a rack that their group does not need. A group gets such a rack when another one comes back that
//! it was leaving. Scrub and verify put the stripe in debt, and its repair moves the strays to the group's other racks.

use striate_core::{RackId, SiteId};
use striate_meta::records::{Location, Stripe};
use striate_plan::LeavingRacks;
use striate_plan::movement::ChunkMove;
use striate_stripe::{StripeError, Stripes};

use super::{Findings, Job};
use crate::movement::{MoveOutcome, move_while_leaving, owner_of};

/// Returns the strays of a stripe while chunks leave the racks in `leaving`.
///
/// # Errors
/// When the profile is one that no version of this program writes.
pub(crate) fn strays(
    stripes: &Stripes,
    record: &Stripe,
    leaving: &LeavingRacks,
) -> Result<Vec<usize>, StripeError> {
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
    /// Moves strays to other racks of their groups, as far as these take them. Returns whether one has moved.
    pub(super) async fn gather_strays(&self, findings: &Findings) -> Result<bool, StripeError> {
        let leaving = &self.absent.leaving;
        let mut has_moved = false;
        for index in strays(self.stripes, &self.change.record, leaving)? {
            let Some(chunk_move) = self.move_to_group(index, findings).await? else { continue };
            let outcome = move_while_leaving(self.stripes, &chunk_move, leaving.clone()).await?;
            tracing::debug!(wanted = ?chunk_move, ?outcome, "moving a chunk to the racks of its group");
            has_moved |= matches!(outcome, MoveOutcome::Moved { .. });
        }
        Ok(has_moved)
    }

    /// Returns the move of a chunk to another rack of its group. `None` if no site there takes it.
    async fn move_to_group(
        &self,
        index: usize,
        findings: &Findings,
    ) -> Result<Option<ChunkMove>, StripeError> {
        let record = &self.change.record;
        let from = SiteId(record.locations[index].site);
        let Some((stripe, own_index)) = owner_of(self.change.id, record, index) else { return Ok(None) };
        let Some(own) = self.stripes.find(stripe).await? else { return Ok(None) };
        let is_free = |site: SiteId| {
            [record, &own.record].iter().all(|of| of.locations.iter().all(|at| at.site != site.0))
        };
        let (rule, racks, own_rack) = (self.change.rule(), self.change.racks(&[]), self.rack(from));
        let places = || racks.iter().enumerate().filter_map(|(chunk, rack)| Some((chunk, rack.as_ref()?)));
        let takers = self.takers(&[], findings);
        let order = self.pace.order(self.stripes, &takers);
        let to = order
            .into_iter()
            .find(|to| to.rack != own_rack && is_free(to.site) && rule.admits(index, &to.rack, places()));
        Ok(to.map(|to| ChunkMove { stripe, index: own_index, from, to: to.site }))
    }
}
