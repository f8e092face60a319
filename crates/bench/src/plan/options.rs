//! Queries whose pieces have options, as rows of an integer program.

use std::collections::BTreeMap;

use highs::{Col, RowProblem};
use striate_plan::solver::piece_options::{PieceOptions, Slot, UNGROUPED};

/// Reads every piece by one of its options: y = 1 for the chosen option, and as many of its slots as it needs, within
/// its caps. `read` adds the column of an option's slot. One row for each piece and site states that the site is
/// asked; with one row for each option, the root relaxation is 6 to 8% off instead of below 1%.
pub fn read_all(
    model: &mut RowProblem,
    pieces: &PieceOptions,
    asked: &[Col],
    mut read: impl FnMut(&mut RowProblem, &Slot, Col) -> Col,
) {
    for piece in 0..pieces.piece_count() {
        let mut chosen = Vec::new();
        let mut at_site: BTreeMap<usize, Vec<(Col, f64)>> = BTreeMap::new();
        for option in pieces.options(piece) {
            let is_chosen = model.add_integer_column(0.0, 0..=1);
            chosen.push((is_chosen, 1.0));
            let mut need = vec![(is_chosen, -(option.need as f64))];
            let mut groups: BTreeMap<usize, Vec<(Col, f64)>> = BTreeMap::new();
            for slot in option.slots {
                let read = read(model, slot, is_chosen);
                need.push((read, 1.0));
                at_site.entry(slot.site).or_default().push((read, -1.0));
                if slot.group != UNGROUPED {
                    groups.entry(slot.group).or_default().push((read, -1.0));
                }
            }
            model.add_row(0.0..=0.0, need);
            for (_, mut row) in groups {
                row.push((is_chosen, option.cap as f64));
                model.add_row(0.0.., row);
            }
        }
        model.add_row(1.0..=1.0, chosen);
        for (site, mut row) in at_site {
            row.push((asked[site], 1.0));
            model.add_row(0.0.., row);
        }
    }
}
