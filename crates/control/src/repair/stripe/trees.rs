//! Repair trees: which chunks add up to a lost chunk, and which sites add them up, in its own stripe or in its wide
//! stripe.

use striate_core::{RackId, SiteId};
use striate_plan::{ChunkState, CombineTree, StripeRepair, repair_by_racks};
use striate_stripe::{OpenedStripe, StripeError, costs_in_wide, equation_in_wide};

use super::{Findings, Job};

impl Job<'_> {
    /// Returns the wide stripe that can restore a lost member, and the tree that makes it at `target`; or why it
    /// cannot.
    pub(super) async fn tree_in_wide(
        &self,
        index: usize,
        target: SiteId,
        findings: &Findings,
    ) -> Result<Result<(OpenedStripe, CombineTree), String>, StripeError> {
        let Some((wide, position)) = self.stripes.wide_stripe_of(self.change.id, index).await? else {
            return Ok(Err("no sealed wide stripe has it".to_owned()));
        };
        let costs = costs_in_wide(&wide, position, |at| self.cost_in(&wide, at, position, findings));
        let target_rack = self.rack(target);
        let terms = match equation_in_wide(&wide, position, &costs, &target_rack, |site| self.rack(site)) {
            Ok(terms) => terms,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let of_repairer = |at: usize| {
            let site = SiteId(wide.record.locations[at].site);
            self.pace.repairer_cost(site, costs[at].unwrap_or(f64::MAX))
        };
        let tree = self.change.tree_over(&wide, target, &terms, of_repairer);
        Ok(Ok((wide, tree)))
    }

    /// Returns the cost of reading a chunk of a wide stripe. `None` if it is unavailable.
    pub(super) fn cost_in(
        &self,
        wide: &OpenedStripe,
        at: usize,
        position: usize,
        findings: &Findings,
    ) -> Option<f64> {
        let site = SiteId(wide.record.locations[at].site);
        let is_bad = || findings.chunks.contains_key(&wide.file(at)) || self.absent.contains(site);
        match wide.has_place(at) {
            _ if at == position => None,
            false => Some(0.0),
            true if site.0 == 0 || is_bad() || self.stripes.site(site).is_none() => None,
            true => Some(self.pace.cost(self.stripes, site, wide.record.chunk_len)),
        }
    }

    /// Returns the tree that makes the one lost chunk at the site that takes it.
    pub(super) fn tree(&self, plan: &StripeRepair, costs: &[f64]) -> CombineTree {
        let (lost, target) = plan.targets[0];
        let terms = self.terms(lost, target, costs);
        let site = |chunk: usize| SiteId(self.change.record.locations[chunk].site);
        let of_repairer = |chunk: usize| self.pace.repairer_cost(site(chunk), costs[chunk]);
        let tree = self.change.combine_tree(target, &terms, of_repairer);
        self.pace.note(&tree);
        tree
    }

    /// Returns the equation for the lost chunk, as (coefficient, chunk index), with the fewest sums across racks.
    /// Leaves out chunks known to be zero.
    pub(super) fn terms(&self, lost: usize, target: SiteId, costs: &[f64]) -> Vec<(u8, usize)> {
        let target_rack = self.rack(target);
        let is_known = |chunk: usize| matches!(self.states[chunk], ChunkState::Good(_) | ChunkState::Zero);
        let costs: Vec<Option<f64>> =
            costs.iter().enumerate().map(|(chunk, &cost)| is_known(chunk).then_some(cost)).collect();
        let rack = |state: &ChunkState| match state {
            ChunkState::Good(site) => self.rack(*site),
            _ => target_rack.clone(),
        };
        let racks: Vec<RackId> = self.states.iter().map(rack).collect();
        let racks: Vec<&RackId> = racks.iter().collect();
        let repair = repair_by_racks(&self.change.code, lost, &costs, &racks, &target_rack);
        let equation = repair.expect("the plan says that the good chunks determine it").equation;
        let is_file = |&(chunk, _): &(usize, u8)| matches!(self.states[chunk], ChunkState::Good(_));
        equation.sources.into_iter().filter(is_file).map(|(chunk, by)| (by, chunk)).collect()
    }

    /// Returns a site's rack; an unknown site is alone in its rack.
    pub(super) fn rack(&self, site: SiteId) -> RackId {
        self.stripes.site(site).map_or_else(|| RackId::of_unknown(site), |site| site.rack())
    }
}
