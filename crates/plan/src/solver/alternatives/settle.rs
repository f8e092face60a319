//! Sites that some optimal plan opens, found without search.
//!
//! Closing a site costs something to the pieces that would read from it with everything open. If a piece takes only one
//! slot, or its only option is a matroid, no plan without the site costs that piece less. If the sum is at least o_j,
//! the site may be opened.

use super::choice::Chooser;
use super::model::Model;

/// Makes such sites free. Returns what they cost.
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
