//! Pieces for the tests of solvers.

use proptest::prelude::*;

use super::{PieceOptions, Slot, UNGROUPED};

/// An option: its need, its cap, and its slots as (site, transfer, decoding, group).
pub(crate) type Slots = (usize, usize, Vec<(usize, f64, f64, usize)>);

/// Adds pieces with these options.
pub(crate) fn push_all(pieces: &[Vec<Slots>], to: &mut PieceOptions) {
    for options in pieces {
        to.push_piece();
        for (need, cap, slots) in options {
            let slot = |&(site, transfer, decoding, group)| Slot { site, transfer, extra: decoding, group };
            assert!(to.push_option(*need, *cap, slots.iter().map(slot)), "an option has enough slots");
        }
    }
}

/// A slot of one unit without a group.
pub(crate) fn one(site: usize) -> (usize, f64, f64, usize) {
    (site, 1.0, 0.0, UNGROUPED)
}

/// Returns all sets of slots that read a piece.
pub(crate) fn choices_of(pieces: &PieceOptions, piece: usize) -> Vec<Vec<Slot>> {
    let mut choices = Vec::new();
    for option in pieces.options(piece) {
        for set in 0u32..1 << option.slots.len() {
            let slots: Vec<Slot> =
                (0..option.slots.len()).filter(|at| set >> at & 1 == 1).map(|at| option.slots[at]).collect();
            let in_group = |group: usize| slots.iter().filter(|slot| slot.group == group).count();
            let fits = |slot: &Slot| slot.group == UNGROUPED || in_group(slot.group) <= option.cap;
            if slots.len() == option.need && slots.iter().all(fits) {
                choices.push(slots);
            }
        }
    }
    choices
}

/// Up to `most` pieces over up to seven sites: one chunk of a small code each, or a whole block of one.
pub(crate) fn small_pieces(most: usize) -> impl Strategy<Value = Vec<Vec<Slots>>> {
    let size = prop_oneof![Just(1.0), 0.1f64..3.0];
    let piece = (0usize..4, size, Just((0..7).collect::<Vec<usize>>()).prop_shuffle(), 0.0f64..0.2);
    let options = |(kind, size, sites, decoding): (usize, f64, Vec<usize>, f64)| -> Vec<Slots> {
        let slot = |at: usize, group: usize| (sites[at], size, decoding * size, group);
        let plain = |at: usize| (sites[at], size, 0.0, UNGROUPED);
        let of = |range: std::ops::Range<usize>| range.map(|at| slot(at, UNGROUPED)).collect();
        match kind {
            // A block of rs(2,2); a chunk of rs(2,2) with a copy; one of lrc(2,1,1) and of lrc(4,2,1).
            0 => vec![(2, 0, (0..4).map(plain).collect())],
            1 => vec![(1, 0, vec![plain(0), plain(6)]), (2, 0, of(1..4))],
            2 => vec![(1, 0, vec![plain(0)]), (2, 0, of(1..3)), (2, 2, of(1..4))],
            _ => {
                let group = |at: usize| [0, 0, 1, 1, 0, 1, UNGROUPED][at];
                let others = (1..7).map(|at| slot(at, group(at))).collect();
                vec![(1, 0, vec![plain(0)]), (2, 2, vec![slot(1, 0), slot(4, 0)]), (4, 2, others)]
            }
        }
    };
    proptest::collection::vec(piece.prop_map(options), 1..=most)
}
