//! The problem in the form that the solver works on: only sites that occur, equivalent pieces merged, and slots in
//! ascending order of cost.
//!
//! Pieces whose options have the same sites at proportional costs (objects in one chunk) become one piece with the sum
//! of their costs: whatever sites are open, the same choice is the cheapest for all.

use std::ops::Range;

use super::AlternativesProblem;
use crate::solver::piece_options::{PieceOptions, UNGROUPED};

/// Relative precision within which costs count as proportional.
const PROPORTION: f64 = 1e-12;

/// A slot of an option.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ModelSlot {
    pub(super) site: u32,
    /// Position of its price; there is one for each piece and site.
    pub(super) place: u32,
    pub(super) group: u32,
    /// Position among the slots of its piece in the problem.
    pub(super) offset: u32,
    /// Cost of transfers and decoding.
    pub(super) load: f64,
}

/// Group of slots of which any number may be taken.
pub(super) const NO_GROUP: u32 = u32::MAX;

/// An option, as positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelOption {
    pub(super) need: usize,
    pub(super) cap: u32,
    first: usize,
    end: usize,
}

impl ModelOption {
    pub(super) fn slots(&self) -> Range<usize> {
        self.first..self.end
    }
}

/// The problem and its memory.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// o_j of each site.
    pub(super) overheads: Vec<f64>,
    /// The position of each site in the problem.
    pub(super) sites: Vec<usize>,
    pub(super) slots: Vec<ModelSlot>,
    pub(super) options: Vec<ModelOption>,
    /// The end of each piece's options.
    option_ends: Vec<usize>,
    /// The site of each place, piece by piece.
    pub(super) places: Vec<u32>,
    /// The end of each piece's places.
    place_ends: Vec<usize>,
    /// The places at each site, with their pieces: those of site j are `at_site[site_starts[j]..site_starts[j + 1]]`.
    at_site: Vec<(u32, u32)>,
    site_starts: Vec<usize>,
    pub(super) groups: usize,
    /// One of the problem's pieces for each merged piece.
    representatives: Vec<usize>,
    /// The merged piece of each of the problem's pieces.
    pub(super) merged: Vec<usize>,
    /// Cost of closing each site: memory of [`super::settle`].
    pub(super) lost: Vec<f64>,
    /// The position of each site of the problem here, if it occurs.
    known_sites: Vec<Option<u32>>,
}

impl Model {
    /// Loads a problem.
    pub(super) fn load(&mut self, problem: &AlternativesProblem) {
        let pieces = &problem.pieces;
        self.overheads.clear();
        self.sites.clear();
        self.slots.clear();
        self.options.clear();
        self.option_ends.clear();
        self.places.clear();
        self.place_ends.clear();
        self.representatives.clear();
        self.merged.clear();
        self.known_sites.clear();
        self.known_sites.resize(problem.overheads().len(), None);
        self.groups = pieces.groups;
        for piece in 0..pieces.piece_count() {
            let same = (0..self.representatives.len())
                .find(|&merged| are_the_same(pieces, self.representatives[merged], piece));
            self.merged.push(same.unwrap_or(self.representatives.len()));
            match same {
                Some(merged) => self.merge(pieces, merged, piece),
                None => self.push_piece(problem, piece),
            }
        }
        let Self { options, slots, .. } = self;
        options.iter().for_each(|ranges| slots[ranges.slots()].sort_by(|a, b| a.load.total_cmp(&b.load)));
        self.list_places_at_sites();
    }

    /// Returns the number of pieces.
    pub(super) fn piece_count(&self) -> usize {
        self.option_ends.len()
    }

    /// Returns the options of a piece.
    pub(super) fn options_of(&self, piece: usize) -> &[ModelOption] {
        let start = if piece == 0 { 0 } else { self.option_ends[piece - 1] };
        &self.options[start..self.option_ends[piece]]
    }

    /// Returns the places of a piece.
    pub(super) fn places_of(&self, piece: usize) -> Range<usize> {
        let start = if piece == 0 { 0 } else { self.place_ends[piece - 1] };
        start..self.place_ends[piece]
    }

    /// Returns the pieces with slots at a site, each with the place of its price.
    pub(super) fn at_site(&self, site: usize) -> &[(u32, u32)] {
        &self.at_site[self.site_starts[site]..self.site_starts[site + 1]]
    }

    /// Adds the loads of another piece slot by slot. Slots stay in the order of insertion until all pieces are loaded.
    fn merge(&mut self, pieces: &PieceOptions, merged: usize, piece: usize) {
        let start = if merged == 0 { 0 } else { self.option_ends[merged - 1] };
        for (ranges, option) in
            self.options[start..self.option_ends[merged]].iter().zip(pieces.options(piece))
        {
            for (slot, more) in self.slots[ranges.slots()].iter_mut().zip(option.slots) {
                slot.load += more.load();
            }
        }
    }

    fn push_piece(&mut self, problem: &AlternativesProblem, piece: usize) {
        self.representatives.push(piece);
        let (start, of_piece) = (self.places.len(), self.slots.len());
        for option in problem.pieces.options(piece) {
            let first = self.slots.len();
            for slot in option.slots {
                let site = self.site(problem, slot.site);
                let is_free = |place: usize| self.slots[first..].iter().all(|of| of.place as usize != place);
                let known = (start..self.places.len()).find(|&at| self.places[at] == site && is_free(at));
                let place = known.unwrap_or_else(|| {
                    self.places.push(site);
                    self.places.len() - 1
                });
                let group = if slot.group == UNGROUPED { NO_GROUP } else { slot.group as u32 };
                let offset = (self.slots.len() - of_piece) as u32;
                self.slots.push(ModelSlot { site, place: place as u32, group, offset, load: slot.load() });
            }
            let cap = u32::try_from(option.cap).unwrap_or(u32::MAX);
            self.options.push(ModelOption { need: option.need, cap, first, end: self.slots.len() });
        }
        self.option_ends.push(self.options.len());
        self.place_ends.push(self.places.len());
    }

    fn site(&mut self, problem: &AlternativesProblem, site: usize) -> u32 {
        *self.known_sites[site].get_or_insert_with(|| {
            self.sites.push(site);
            self.overheads.push(problem.overheads()[site]);
            self.sites.len() as u32 - 1
        })
    }

    fn list_places_at_sites(&mut self) {
        self.site_starts.clear();
        self.site_starts.resize(self.sites.len() + 1, 0);
        for &site in &self.places {
            self.site_starts[site as usize + 1] += 1;
        }
        for site in 0..self.sites.len() {
            self.site_starts[site + 1] += self.site_starts[site];
        }
        // Filled from the back, which leaves the starts in the right places.
        self.at_site.clear();
        self.at_site.resize(self.places.len(), (0, 0));
        for piece in (0..self.piece_count()).rev() {
            for place in self.places_of(piece).rev() {
                let start = &mut self.site_starts[self.places[place] as usize + 1];
                *start -= 1;
                self.at_site[*start] = (piece as u32, place as u32);
            }
        }
        // Entry j + 1 is now the start of site j.
        self.site_starts.remove(0);
        self.site_starts.push(self.places.len());
    }
}

/// Returns whether two pieces have the same sites in the same options, at proportional costs.
fn are_the_same(pieces: &PieceOptions, one: usize, other: usize) -> bool {
    let slots = |piece: usize| pieces.options(piece).flat_map(|option| option.slots);
    let first = |piece: usize| slots(piece).next().map(|slot| slot.site);
    if first(one) != first(other) {
        return false;
    }
    let shape =
        |piece: usize| pieces.options(piece).map(|option| (option.need, option.cap, option.slots.len()));
    let place = |piece: usize| slots(piece).map(|slot| (slot.site, slot.group));
    if !shape(one).eq(shape(other)) || !place(one).eq(place(other)) {
        return false;
    }
    let sum = |piece: usize| slots(piece).map(|slot| slot.load()).sum::<f64>();
    let (of_one, of_other) = (sum(one), sum(other));
    let mut pairs = slots(one).zip(slots(other));
    pairs.all(|(a, b)| (a.load() * of_other - b.load() * of_one).abs() <= PROPORTION * of_one * of_other)
}
