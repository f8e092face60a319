//! The ways to read the pieces of a query, as input of the solvers in [`crate::solver::makespan`] and
//! [`crate::solver::alternatives`].
//!
//! A piece has *options*: the chunk itself or a copy of it, the rest of its local group, or any k others. An option
//! takes `need` of its slots, at most `cap` of each local group. So every option is a matroid, and its cheapest choice
//! takes the cheapest slots and skips those over the cap.

mod check;
pub mod instances;

#[cfg(test)]
pub(crate) mod tests;

use std::ops::Range;

/// The group of slots of which an option may take any number.
pub const UNGROUPED: usize = usize::MAX;

/// Columns of one chunk at one site, as a part of an option.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slot {
    /// Position of the site in the problem's sites.
    pub site: usize,
    /// z m_j: what the bytes cost the site. Finite and not negative.
    pub transfer: f64,
    /// Further costs: decoding, and waiting for the site where that counts. Finite and not negative.
    pub extra: f64,
    /// The local group of the chunk, or [`UNGROUPED`].
    pub group: usize,
}

impl Slot {
    /// Returns the total cost, beyond asking the site.
    pub fn load(&self) -> f64 {
        self.transfer + self.extra
    }
}

/// One way to read a piece: any `need` of its slots, at most `cap` of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PieceOption<'a> {
    /// Number of slots taken.
    pub need: usize,
    /// Maximum number of slots of one group.
    pub cap: usize,
    /// The slots.
    pub slots: &'a [Slot],
}

/// A piece that cannot be read: no option of it has enough slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("piece {piece} of the query cannot be read: no option of it has enough slots")]
pub struct NoOption {
    /// Position of the piece in the problem.
    pub piece: usize,
}

/// An option, as positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ranges {
    pub(crate) need: usize,
    pub(crate) cap: usize,
    /// Range of its slots in `slots`.
    pub(crate) first: usize,
    pub(crate) end: usize,
    /// `need` times the least load of a slot.
    pub(crate) least_load: f64,
}

impl Ranges {
    pub(crate) fn slots(&self) -> Range<usize> {
        self.first..self.end
    }
}

/// The pieces of a query with their options. [`PieceOptions::clear`] keeps the memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PieceOptions {
    pub(crate) slots: Vec<Slot>,
    pub(crate) options: Vec<Ranges>,
    /// The end of each piece's options.
    ends: Vec<usize>,
    /// Upper limit (exclusive) of group numbers.
    pub(crate) groups: usize,
}

impl PieceOptions {
    /// Drops all pieces.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.options.clear();
        self.ends.clear();
        self.groups = 0;
    }

    /// Adds a piece without options.
    pub(crate) fn push_piece(&mut self) {
        self.ends.push(self.options.len());
    }

    /// Adds an option to the last piece. Returns whether there are enough slots for it.
    ///
    /// # Panics
    /// If no piece was added.
    pub(crate) fn push_option(
        &mut self,
        need: usize,
        cap: usize,
        slots: impl IntoIterator<Item = Slot>,
    ) -> bool {
        let first = self.slots.len();
        self.slots.extend(slots);
        let of_option = &self.slots[first..];
        if most_taken(of_option, cap) < need {
            self.slots.truncate(first);
            return false;
        }
        let groups = of_option.iter().map(|slot| slot.group).filter(|&group| group != UNGROUPED);
        self.groups = groups.map(|group| group + 1).fold(self.groups, usize::max);
        let least = of_option.iter().map(Slot::load).fold(f64::INFINITY, f64::min);
        let least_load = if need == 0 { 0.0 } else { need as f64 * least };
        self.options.push(Ranges { need, cap, first, end: self.slots.len(), least_load });
        *self.ends.last_mut().expect("a piece was added") = self.options.len();
        true
    }

    /// Returns the number of pieces.
    pub fn piece_count(&self) -> usize {
        self.ends.len()
    }

    /// Returns the slots of all options, in the order in which they were added. Plans refer to them by position.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Returns the options of a piece, which must exist.
    pub fn options(&self, piece: usize) -> impl Iterator<Item = PieceOption<'_>> {
        self.options[self.options_of(piece)].iter().map(|ranges| PieceOption {
            need: ranges.need,
            cap: ranges.cap,
            slots: &self.slots[ranges.slots()],
        })
    }

    pub(crate) fn options_of(&self, piece: usize) -> Range<usize> {
        let start = if piece == 0 { 0 } else { self.ends[piece - 1] };
        start..self.ends[piece]
    }

    /// Fails for the first piece without options.
    pub(crate) fn all_have_options(&self) -> Result<(), NoOption> {
        let without = (0..self.piece_count()).find(|&piece| self.options_of(piece).is_empty());
        without.map_or(Ok(()), |piece| Err(NoOption { piece }))
    }
}

/// Returns the maximum number of slots that an option can take.
fn most_taken(slots: &[Slot], cap: usize) -> usize {
    let fits = |(at, slot): (usize, &Slot)| {
        slot.group == UNGROUPED || slots[..at].iter().filter(|other| other.group == slot.group).count() < cap
    };
    slots.iter().enumerate().filter(|&slot| fits(slot)).count()
}
