//! Step 4 of a repair: the record names the new chunks, and the debt is repaid.

use striate_core::{Generation, SiteId};
use striate_meta::Commit;
use striate_meta::records::GarbageChunk;
use striate_plan::ChunkState;
use striate_stripe::{DebtEffect, StripeError, pay_debt};

use super::{Findings, Job, RepairOutcome, strays};

impl Job<'_> {
    /// Performs step 4. `None` if another process changed the record.
    pub(super) async fn swap(
        &mut self,
        written: &[(usize, SiteId)],
        generation: Generation,
        findings: &Findings,
    ) -> Result<Option<RepairOutcome>, StripeError> {
        let mut replaced = Vec::new();
        for &(index, site) in written {
            replaced.extend(self.change.replace(index, site, generation));
            self.states[index] = ChunkState::Good(site);
        }
        let k = self.change.code.k();
        if self.gives_up_parities && written.iter().any(|&(index, _)| index < k) {
            replaced.extend(self.change.drop_parities());
            self.states[k..].fill(ChunkState::Elsewhere);
        }
        replaced.extend(self.give_up_sites_of_lost_chunks(written));
        let outcome = RepairOutcome { refused: findings.refusals(), ..self.outcome(written.len() as u64) };
        // The next repair brings strays to the others of their groups.
        let has_strays = !strays(self.stripes, &self.change.record, &self.absent.leaving)?.is_empty();
        let debt = match outcome.still_lost + outcome.unknown {
            0 if findings.is_examined && !has_strays => DebtEffect::Paid(findings.owed),
            0 => DebtEffect::AsItIs,
            _ => DebtEffect::Owed,
        };
        let done = self.change.swap(replaced, debt).await?;
        if done {
            self.stripes.stripe_repaired(self.change.id);
        }
        Ok(done.then_some(outcome))
    }

    /// Un-names lost chunks whose site or rack has taken another chunk of the stripe, so that the rule holds (I6).
    /// This happens when the site that was to take the lost chunk's place failed. Returns what was named.
    fn give_up_sites_of_lost_chunks(&mut self, written: &[(usize, SiteId)]) -> Vec<GarbageChunk> {
        let rule = self.change.rule();
        let mut given_up = Vec::new();
        if !self.change.is_bound_by_rule() {
            return given_up;
        }
        for index in (0..self.states.len()).filter(|&index| self.states[index] == ChunkState::Lost) {
            let racks = self.change.racks(&[index]);
            let places = racks.iter().enumerate().filter_map(|(chunk, rack)| Some((chunk, rack.as_ref()?)));
            let is_full = racks[index].as_ref().is_some_and(|rack| !rule.admits(index, rack, places));
            let location = &mut self.change.record.locations[index];
            let is_taken = |&(other, site): &(usize, SiteId)| other != index && site.0 == location.site;
            if location.site != 0 && (is_full || written.iter().any(is_taken)) {
                let (site, generation) = (location.site, location.generation);
                given_up.push(GarbageChunk { index: index as u32, site, generation });
                location.site = 0;
            }
        }
        given_up
    }

    /// Drops the debt of a stripe that is whole, if that was verified. Returns `false` if the record changed meanwhile.
    pub(super) async fn settle_debt(&self, findings: &Findings) -> Result<bool, StripeError> {
        if !findings.is_examined {
            return Ok(true);
        }
        let mut tx = self.change.unchanged();
        pay_debt(&mut tx, self.change.id, findings.owed);
        let done = matches!(self.stripes.meta().commit(tx).await?, Commit::Done(_));
        self.stripes.stripe_repaired(self.change.id);
        Ok(done)
    }
}
