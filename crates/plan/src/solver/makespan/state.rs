//! A plan under construction: the slots taken of every piece, and the resulting loads of the sites.

use super::problem::MakespanProblem;

/// The slots taken, and the resulting loads.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// Transfers requested from each site.
    load: Vec<f64>,
    /// Number of slots requested from each site.
    count: Vec<u32>,
    /// Number of sites in use.
    used: usize,
    /// Transfers and decoding of all slots taken.
    work: f64,
    /// The slots taken of piece i: `lens[i]` of them from `starts[i]` on.
    picks: Vec<u32>,
    starts: Vec<usize>,
    lens: Vec<usize>,
}

impl State {
    /// Removes all slots.
    pub(super) fn reset(&mut self, problem: &MakespanProblem) {
        self.load.clear();
        self.load.resize(problem.queues.len(), 0.0);
        self.count.clear();
        self.count.resize(problem.queues.len(), 0);
        (self.used, self.work) = (0, 0.0);
        self.starts.clear();
        self.lens.clear();
        let mut start = 0;
        for piece in 0..problem.pieces.piece_count() {
            self.starts.push(start);
            self.lens.push(0);
            start += problem.pieces.options[problem.pieces.options_of(piece)]
                .iter()
                .map(|of| of.need)
                .max()
                .unwrap_or(0);
        }
        self.picks.clear();
        self.picks.resize(start, 0);
    }

    /// Returns the slots taken of a piece.
    pub(super) fn picks(&self, piece: usize) -> &[u32] {
        &self.picks[self.starts[piece]..self.starts[piece] + self.lens[piece]]
    }

    /// Returns whether a site is asked for any slot.
    pub(super) fn is_used(&self, site: usize) -> bool {
        self.count[site] > 0
    }

    /// Returns the number of slots requested from a site.
    pub(super) fn count(&self, site: usize) -> u32 {
        self.count[site]
    }

    /// Returns when a site would end if it were asked for these transfers too.
    pub(super) fn end_with(&self, problem: &MakespanProblem, site: usize, transfer: f64) -> f64 {
        problem.queues[site] + problem.request + self.load[site] + transfer
    }

    /// Takes these slots of a piece that has none.
    pub(super) fn take(&mut self, problem: &MakespanProblem, piece: usize, picks: &[u32]) {
        let start = self.starts[piece];
        self.picks[start..start + picks.len()].copy_from_slice(picks);
        self.lens[piece] = picks.len();
        for &pick in picks {
            let slot = problem.pieces.slots[pick as usize];
            self.load[slot.site] += slot.transfer;
            self.work += slot.load();
            self.used += usize::from(self.count[slot.site] == 0);
            self.count[slot.site] += 1;
        }
    }

    /// Removes the slots of a piece.
    pub(super) fn give_back(&mut self, problem: &MakespanProblem, piece: usize) {
        let start = self.starts[piece];
        for at in start..start + self.lens[piece] {
            let slot = problem.pieces.slots[self.picks[at] as usize];
            self.work -= slot.load();
            self.count[slot.site] -= 1;
            // An unused site has no load, whatever rounding errors remain.
            self.load[slot.site] =
                if self.count[slot.site] == 0 { 0.0 } else { self.load[slot.site] - slot.transfer };
            self.used -= usize::from(self.count[slot.site] == 0);
        }
        self.lens[piece] = 0;
    }

    /// Returns T and the site that ends last.
    pub(super) fn last(&self, problem: &MakespanProblem) -> (f64, usize) {
        let mut last = (0.0, usize::MAX);
        for (site, (&count, &load)) in self.count.iter().zip(&self.load).enumerate() {
            let end = problem.queues[site] + problem.request + load;
            if count > 0 && end > last.0 {
                last = (end, site);
            }
        }
        last
    }

    /// Returns T + w X.
    pub(super) fn cost(&self, problem: &MakespanProblem) -> f64 {
        self.last(problem).0 + problem.weight * self.added_load(problem)
    }

    /// Returns X.
    pub(super) fn added_load(&self, problem: &MakespanProblem) -> f64 {
        self.work + problem.request * self.used as f64
    }
}
