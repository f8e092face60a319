//! Stuck members: lost members of wide stripes whose own stripe's rule bars every site that the wide stripes admit.
//!
//! A wide stripe admits a lost member on the sites of a rack or two that have none of its chunks: if racks have five
//! sites, often just one. The stripe that the member was written in may have another chunk there, or enough of them
//! in that rack. Then such a chunk moves elsewhere. If none can, the stripe gives up its parities, provided that wide
//! stripes protect all its data chunks: its rule no longer binds. Otherwise another chunk of the wide stripe moves, or
//! one of each stripe, so that the lost member may go where both stripes admit it.

use std::collections::BTreeSet;

use striate_core::StripeId;
use striate_meta::keys;
use striate_plan::movement::ChunkMove;
use striate_plan::{ChunkState, StripeRoom};
use striate_stripe::{OpenedStripe, StripeError, wide_of};

use super::{Findings, Job};
use crate::movement::{MoveOutcome, WideSearch, move_while_leaving, own_clearing_move, own_room, owner_of};

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
        let takers = self.takers(&[], findings);
        let order = self.pace.order(self.stripes, &takers);
        let is_good = |index: usize| matches!(self.states[index], ChunkState::Good(_));
        let room = |lost: usize| (lost, own_room(&self.change, lost, &order, is_good));
        let rooms: Vec<(usize, StripeRoom)> = self.lost_members().map(room).collect();
        let own_move = |(lost, own): &_| own_clearing_move(&self.change, own, *lost, &order);
        if let Some(chunk_move) = rooms.iter().find_map(own_move) {
            return Ok(Some(chunk_move));
        }
        self.gives_up_parities = self.may_give_up_parities(findings).await?;
        let has_place = |lost: usize| self.one_target(lost, findings).is_some();
        if self.gives_up_parities && self.lost_members().any(has_place) {
            return Ok(None);
        }
        let leaving = &self.absent.leaving;
        let search = WideSearch { stripes: self.stripes, leaving, takers: &order, destinations: &order };
        for (lost, own) in rooms {
            let Some(wide) = wide_of(&self.change.record.locations[lost]) else { continue };
            let chunk_move =
                search.find(&self.change, &own, wide, |_, from| !self.absent.contains(from)).await?;
            if chunk_move.is_some() {
                return Ok(chunk_move);
            }
        }
        Ok(None)
    }

    /// Moves a chunk out of the way of a lost member. If the move is refused, the next round avoids its target.
    pub(super) async fn make_room(
        &self,
        chunk_move: &ChunkMove,
        findings: &mut Findings,
    ) -> Result<(), StripeError> {
        let outcome = move_while_leaving(self.stripes, chunk_move, self.absent.leaving.clone()).await?;
        tracing::debug!(wanted = ?chunk_move, ?outcome, "moving a chunk that blocks a repair");
        let refusal = match outcome {
            MoveOutcome::Moved { .. } | MoveOutcome::Outdated | MoveOutcome::Contended => return Ok(()),
            MoveOutcome::LeftToRepair if chunk_move.stripe == self.change.id => {
                findings.chunks.insert(self.change.chunk(chunk_move.index), ChunkState::Lost);
                return Ok(());
            }
            MoveOutcome::LeftToRepair => "a chunk in the way is to be repaired first".to_owned(),
            MoveOutcome::Refused(reason) => reason,
        };
        findings.refusals.insert(chunk_move.to, refusal);
        Ok(())
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
