//! Selection of the lost chunks to make next, and of their sites.

use std::collections::BTreeSet;

use striate_core::SiteId;
use striate_plan::{Candidate, ChunkState};
use striate_stripe::wide_of;

use super::{Findings, Job};

/// Lost chunks are made together only if they and their sources take at most one part in this many of the memory for
/// bodies.
const PART_OF_MEMORY: usize = 4;

impl Job<'_> {
    /// Returns sites for the lost chunks: none that holds, or may hold, a chunk of the stripe, or has refused one.
    pub(super) fn targets(&self, findings: &Findings) -> Vec<(usize, SiteId)> {
        if self.is_one_at_a_time() {
            return self.lost().find_map(|index| self.one_target(index, findings)).into_iter().collect();
        }
        self.draw_targets(&self.lost().collect::<Vec<_>>(), findings)
    }

    pub(super) fn lost(&self) -> impl Iterator<Item = usize> {
        let is_lost = |&index: &usize| self.states[index] == ChunkState::Lost;
        (0..self.states.len()).filter(is_lost)
    }

    /// Returns whether lost chunks are made one at a time. With wide stripes, and if chunks are long, each is made by a
    /// tree of its own, or by slices here, so that the bytes of many chunks never come together in one place.
    pub(super) fn is_one_at_a_time(&self) -> bool {
        let together = (self.change.code.k() + self.lost().count()) * self.change.record.chunk_len as usize;
        let are_long = together > self.stripes.budget().total() / PART_OF_MEMORY;
        are_long || self.is_wide() || self.lost_members().next().is_some()
    }

    /// Returns the lost chunks that are members of wide stripes.
    pub(super) fn lost_members(&self) -> impl Iterator<Item = usize> {
        self.lost().filter(|&index| wide_of(&self.change.record.locations[index]).is_some())
    }

    /// Returns a site for a lost chunk.
    pub(super) fn one_target(&self, index: usize, findings: &Findings) -> Option<(usize, SiteId)> {
        self.draw_targets(&[index], findings).pop()
    }

    fn draw_targets(&self, lost: &[usize], findings: &Findings) -> Vec<(usize, SiteId)> {
        // Lost chunks that are not placed now return to where they were, if possible.
        let kept = (0..self.states.len()).filter(|index| !lost.contains(index));
        let kept = kept.map(|index| SiteId(self.change.record.locations[index].site));
        let kept: BTreeSet<SiteId> = kept.chain(self.change.expected_sites(lost)).collect();
        let takers = self.takers(lost, findings);
        let (free, holding): (Vec<&Candidate>, Vec<&Candidate>) = self
            .pace
            .order(self.stripes, &takers)
            .into_iter()
            .partition(|candidate| !kept.contains(&candidate.site));
        let found = self.change.rule().targets_in_order(&free, &self.change.racks(lost), lost);
        match *lost {
            // The only site that its wide stripe admits may have another chunk of the stripe.
            [index] if found.is_empty() && !self.is_bound_by_rule(index) => free
                .into_iter()
                .chain(holding)
                .next()
                .map(|candidate| (index, candidate.site))
                .into_iter()
                .collect(),
            _ => found,
        }
    }

    fn is_bound_by_rule(&self, index: usize) -> bool {
        let is_member = wide_of(&self.change.record.locations[index]).is_some();
        self.change.is_bound_by_rule() && !(self.gives_up_parities && is_member)
    }

    /// Returns the sites that take chunks, and where the wide stripes of the lost chunks admit them.
    pub(super) fn takers(&self, lost: &[usize], findings: &Findings) -> Vec<Candidate> {
        let mut candidates = self.pace.candidates(self.stripes, self.change.record.chunk_len);
        candidates.retain(|&Candidate { site, .. }| {
            !findings.refusals.contains_key(&site)
                && !self.absent.contains(site)
                && lost.iter().all(|&index| self.change.wide_admits(index, site))
        });
        candidates
    }
}
