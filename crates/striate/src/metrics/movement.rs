//! Metrics of moved chunks, by reason.

use striate_control::movement::{OptimiserProgress, RebalanceProgress};

use super::Page;

/// Writes the counters of both services that move chunks.
pub(super) fn render(page: &mut Page, rebalance: &RebalanceProgress, optimiser: &OptimiserProgress) {
    let failed = rebalance.refused + rebalance.left_to_repair;
    let not_made = optimiser.not_made + optimiser.left_to_repair;
    for (name, help, space, reads) in [
        (
            "striate_moved_chunks_total",
            "Chunks moved to another site, to balance space or to speed up reads.",
            rebalance.chunks,
            optimiser.chunks,
        ),
        (
            "striate_moved_bytes_total",
            "Bytes of chunks moved to another site.",
            rebalance.bytes,
            optimiser.bytes,
        ),
        ("striate_moves_failed_total", "Moves of chunks that failed or were given up.", failed, not_made),
    ] {
        page.head(name, "counter", help);
        page.value(name, &[("why", "space")], space);
        page.value(name, &[("why", "reads")], reads);
    }
    let left: u64 = rebalance.givers.iter().map(|(_, bytes)| bytes).sum();
    page.gauges(&[(
        "striate_rebalance_left_bytes",
        "Bytes still to be moved off drained and overfull sites, at the last pass.",
        left,
    )]);
    page.counters(&[(
        "striate_moves_evaluated_total",
        "Candidate moves evaluated to speed up reads.",
        optimiser.evaluated,
    )]);
}
