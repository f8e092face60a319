//! Sites that some optimal plan opens, found without search.
//!
//! Closing a site costs the pieces that would read from it with everything open. Where that is one slot for a piece, or its only option
//! is a matroid, no plan without the site costs the piece less than that. Where it is o_j at least, the site may be open.

use super::choice::Chooser;
use super::model::Model;

/// Makes such sites free. What they cost.
pub(super) fn settle(model: &mut Model, chooser: &mut Chooser) -> f64 {
    let mut lost = std::mem::take(&mut model.lost);
    lost.clear();
    lost.resize(model.overheads.len(), 0.0);
    for piece in 0..model.piece_count() {
        chooser.cheapest_with_losses(model, piece, |slot| slot.load);
        if chooser.picks.len() == 1 || model.options_of(piece).len() == 1 {
            for (&pick, loss) in chooser.picks.iter().zip(&chooser.losses) {
                lost[model.slots[pick as usize].site as usize] += loss;
            }
        }
    }
    let mut settled = 0.0;
    for (overhead, lost) in model.overheads.iter_mut().zip(&lost) {
        if lost >= overhead {
            settled += std::mem::replace(overhead, 0.0);
        }
    }
    model.lost = lost;
    settled
}
