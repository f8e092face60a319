//! What was moved, and why.

use striate_control::movement::{OptimiserProgress, RebalanceProgress};

use super::Page;

/// The counters of both services that move chunks.
pub(super) fn render(page: &mut Page, rebalance: &RebalanceProgress, optimiser: &OptimiserProgress) {
    let failed = rebalance.refused + rebalance.left_to_repair;
    let not_made = optimiser.not_made + optimiser.left_to_repair;
    for (name, help, space, reads) in [
        (
            "striate_moved_chunks_total",
            "Chunks moved to another site, for space's sake or the readers'.",
            rebalance.chunks,
            optimiser.chunks,
        ),
        ("striate_moved_bytes_total", "Their bytes.", rebalance.bytes, optimiser.bytes),
        ("striate_moves_failed_total", "Moves that were begun and not made.", failed, not_made),
    ] {
        page.head(name, "counter", help);
        page.value(name, &[("why", "space")], space);
        page.value(name, &[("why", "reads")], reads);
    }
    let left: u64 = rebalance.givers.iter().map(|(_, bytes)| bytes).sum();
    let name = "striate_rebalance_left_bytes";
    page.head(name, "gauge", "Bytes that drained and overfull sites had to give at the last look.");
    page.value(name, &[], left);
    let name = "striate_moves_evaluated_total";
    page.head(name, "counter", "Candidate moves that were evaluated for the readers' sake.");
    page.value(name, &[], optimiser.evaluated);
}
