//! Checks whether the slots read of a piece are one of its options, independently of the solvers.

use super::{PieceOption, PieceOptions, Slot, UNGROUPED};

impl PieceOptions {
    /// Returns whether these slots, as positions in [`PieceOptions::slots`], are an option of the piece, with each slot
    /// once.
    pub fn is_read(&self, piece: usize, picks: &[u32]) -> bool {
        self.options(piece).any(|option| self.is_option(&option, picks))
    }

    fn is_option(&self, option: &PieceOption<'_>, picks: &[u32]) -> bool {
        let slot = |pick: u32| &self.slots()[pick as usize];
        let is_of_option = |pick: u32| option.slots.iter().any(|of| std::ptr::eq(of, slot(pick)));
        let mut sorted = picks.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let in_group = |of: &Slot| picks.iter().filter(|&&pick| slot(pick).group == of.group).count();
        let fits = |of: &Slot| of.group == UNGROUPED || in_group(of) <= option.cap;
        sorted.len() == option.need
            && picks.len() == option.need
            && picks.iter().all(|&pick| is_of_option(pick) && fits(slot(pick)))
    }
}
