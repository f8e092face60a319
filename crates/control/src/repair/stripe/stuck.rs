//! Stuck members: lost members of wide stripes whose own stripe's rule bars every site that the wide stripes admit.
//!
//! A wide stripe admits a lost member on the sites of a rack or two that have none of its chunks: if racks have five
//! sites, often just one. The stripe that the member was written in may have another chunk there, or enough of them
//! in that rack. Then such a chunk moves elsewhere. If none can, the stripe gives up its parities, provided that wide
//! stripes protect all its data chunks: its rule no longer binds. Otherwise another chunk of the wide stripe moves
//! there, and the lost member gets the place that it leaves.

use std::collections::BTreeSet;

use striate_core::{SiteId, StripeId};
use striate_meta::keys;
use striate_plan::movement::ChunkMove;
use striate_plan::{ChunkState, Place, clearing_move};
use striate_stripe::{OpenedStripe, StripeError};

use super::{Findings, Job, RepairOutcome};
use crate::movement::{MoveOutcome, find_move_in_wide, move_while_leaving, other_places, owner_of};

impl Job<'_> {
    /// Returns whether the stripe's own rule bars every site that wide stripes admit for its lost members.
    pub(super) fn is_stuck(&self, findings: &Findings) -> bool {
        self.change.is_bound_by_rule()
            && self.lost_members().next().is_some()
            // A site that has refused a chunk may take it another time.
            && findings.refusals.is_empty()
            && self.lost_members().all(|index| self.one_target(index, findings).is_none())
    }

    /// Returns the move that a stuck repair makes first, if one helps. Otherwise decides whether the stripe gives up its
    /// own parities; another chunk of a wide stripe moves only if it does not.
    pub(super) async fn unblocking_move(
        &mut self,
        findings: &Findings,
    ) -> Result<Option<ChunkMove>, StripeError> {
        if let Some(chunk_move) = self.own_clearing_move(findings) {
            return Ok(Some(chunk_move));
        }
        self.gives_up_parities = self.may_give_up_parities(findings).await?;
        match self.gives_up_parities {
            true => Ok(None),
            false => self.clearing_move_in_wide(findings).await,
        }
    }

    /// Returns the move of a good chunk after which a lost member may go where its wide stripe admits it.
    fn own_clearing_move(&self, findings: &Findings) -> Option<ChunkMove> {
        let change = &self.change;
        let new_places = |index: usize| match self.states[index] {
            ChunkState::Good(_) => {
                let takers = self.takers(&[index], findings);
                other_places(change, index, &self.pace.order(self.stripes, &takers))
            }
            _ => Vec::new(),
        };
        self.lost_members().find_map(|lost| {
            let takers = self.places_for(lost, findings);
            let (index, to) = clearing_move(&change.rule(), &change.places(), lost, &takers, new_places)?;
            let from = SiteId(change.record.locations[index].site);
            Some(ChunkMove { stripe: change.id, index, from, to })
        })
    }

    /// Returns the places where its wide stripe admits a lost member.
    fn places_for(&self, lost: usize, findings: &Findings) -> Vec<Place> {
        self.takers(&[lost], findings).into_iter().map(|candidate| (candidate.site, candidate.rack)).collect()
    }

    /// Returns the move of another chunk of a lost member's wide stripe that leaves a place where the member's own
    /// stripe admits it.
    async fn clearing_move_in_wide(&self, findings: &Findings) -> Result<Option<ChunkMove>, StripeError> {
        let well: BTreeSet<SiteId> =
            self.takers(&[], findings).into_iter().map(|candidate| candidate.site).collect();
        for lost in self.lost_members() {
            let Some((wide, position)) = self.stripes.wide_stripe_of(self.change.id, lost).await? else {
                continue;
            };
            let (takers, is_well) = (self.places_for(lost, findings), |site| well.contains(&site));
            let wide = (&wide, position);
            let chunk_move =
                find_move_in_wide(self.stripes, &self.change, lost, wide, &takers, is_well).await?;
            if chunk_move.is_some() {
                return Ok(chunk_move);
            }
        }
        Ok(None)
    }

    /// Moves a chunk out of the way of a lost member. Requests another round, which avoids the target if the move was
    /// refused.
    pub(super) async fn make_room(
        &self,
        chunk_move: &ChunkMove,
        findings: &mut Findings,
    ) -> Result<Option<RepairOutcome>, StripeError> {
        let outcome = move_while_leaving(self.stripes, chunk_move, self.absent.leaving.clone()).await?;
        tracing::debug!(wanted = ?chunk_move, ?outcome, "moving a chunk that blocks a repair");
        match outcome {
            MoveOutcome::Moved { .. } | MoveOutcome::Outdated | MoveOutcome::Contended => Ok(None),
            MoveOutcome::LeftToRepair if chunk_move.stripe != self.change.id => {
                findings
                    .refusals
                    .insert(chunk_move.to, "a chunk in the way is to be repaired first".to_owned());
                Ok(None)
            }
            MoveOutcome::LeftToRepair => {
                findings.chunks.insert(self.change.chunk(chunk_move.index), ChunkState::Lost);
                Ok(None)
            }
            MoveOutcome::Refused(reason) => {
                findings.refusals.insert(chunk_move.to, reason);
                Ok(None)
            }
        }
    }

    /// Returns whether the stripe should give up its own parities, or those it was to get back, so that its lost
    /// members are not missing for good. Each of its data chunks must be protected as well by a wide stripe.
    async fn may_give_up_parities(&self, findings: &Findings) -> Result<bool, StripeError> {
        let is_lacking = |state: &&ChunkState| matches!(state, ChunkState::Lost | ChunkState::Unknown);
        let lacking = self.states.iter().filter(is_lacking).count();
        let bears = self.change.code.tolerance().saturating_sub(lacking);
        for index in 0..self.change.code.k() {
            let Some((wide, _)) = self.stripes.wide_stripe_of(self.change.id, index).await? else {
                return Ok(false);
            };
            if self.lacking_in(&wide, findings).await? + bears > wide.code.tolerance() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns how many chunks a wide stripe lacks once this round has rebuilt one. A stripe in debt may lack any of
    /// its chunks.
    async fn lacking_in(&self, wide: &OpenedStripe, findings: &Findings) -> Result<usize, StripeError> {
        let owner = |at: usize| owner_of(wide.id, &wide.record, at).map(|(stripe, _)| stripe);
        let n = wide.code.n();
        let owners: BTreeSet<StripeId> = (0..n).filter_map(owner).collect();
        let debts: Vec<_> = owners.iter().copied().map(keys::debt).collect();
        let rows = self.stripes.meta().get_many(&debts).await?;
        let owing: BTreeSet<StripeId> =
            owners.into_iter().zip(rows).filter_map(|(id, row)| row.map(|_| id)).collect();
        // If several are lost, a round rebuilds only one, and then the parities are gone: the others still lack.
        let mut lost = self.lost_members();
        let rebuilt = lost.next().filter(|_| lost.next().is_none());
        let is_lacking = |at: usize| {
            let is_own = owner(at) == Some(self.change.id);
            let index = wide.record.members.get(at).map(|member| member.index as usize);
            let is_in_debt = !is_own && owner(at).is_some_and(|id| owing.contains(&id));
            let is_made = is_own && index.is_some() && index == rebuilt;
            !is_made && (is_in_debt || self.cost_in(wide, at, n, findings).is_none())
        };
        Ok((0..n).filter(|&at| is_lacking(at)).count())
    }
}
