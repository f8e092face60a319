//! Metrics of repair, scrub, packing and hot copies.

use striate_commands::admin::messages::{CopiesState, PackingState, RepairState, ScrubState};

use super::Page;

/// Writes the metrics of repair and scrub.
pub(super) fn render_work(page: &mut Page, repair: Option<&RepairState>, scrub: Option<&ScrubState>) {
    if let Some(repair) = repair {
        render_repair(page, repair);
    }
    if let Some(scrub) = scrub {
        render_scrub(page, scrub);
    }
}

fn render_repair(page: &mut Page, repair: &RepairState) {
    page.gauges(&[
        (
            "striate_repair_stripes_left",
            "Stripes that are not whole, as far as is known.",
            repair.stripes_left,
        ),
        ("striate_repair_stripes_waiting", "Stripes that are not whole and wait for a site.", repair.waiting),
        ("striate_repair_bytes_per_second", "Current repair rate, in bytes per second.", repair.bytes_per_s),
    ]);
    if let Some(seconds) = repair.seconds_left {
        page.gauges(&[(
            "striate_repair_seconds_left",
            "Estimated time until every stripe is whole that does not wait for a site.",
            seconds,
        )]);
    }
    page.counters(&[
        ("striate_repair_chunks_total", "Chunks rebuilt.", repair.chunks),
        ("striate_repair_bytes_total", "Bytes of chunks rebuilt.", repair.bytes),
    ]);
}

fn render_scrub(page: &mut Page, scrub: &ScrubState) {
    page.gauges(&[
        ("striate_scrub_cycle", "Number of the scrub's current cycle, from 1.", scrub.cycle),
        (
            "striate_scrub_verified_chunks",
            "Chunks that the scrub found good in this cycle.",
            scrub.now.chunks,
        ),
        (
            "striate_scrub_verified_bytes",
            "Bytes of chunks that the scrub found good in this cycle.",
            scrub.now.bytes,
        ),
        (
            "striate_scrub_damaged_chunks",
            "Chunks that the scrub found damaged or missing in this cycle.",
            scrub.now.damaged,
        ),
        ("striate_scrub_total_chunks", "Chunks that the scrub verifies in this cycle.", scrub.total_chunks),
        (
            "striate_scrub_seconds_left",
            "Estimated time until the cycle of the scrub ends.",
            scrub.seconds_left,
        ),
    ]);
}

/// Writes the metrics of packing.
pub(super) fn render_packing(page: &mut Page, packing: Option<&PackingState>) {
    let Some(packing) = packing else { return };
    let figures = &packing.figures;
    page.gauges(&[
        ("striate_packed_groups", "Packed groups, at the last count.", figures.groups),
        (
            "striate_packed_bytes",
            "Bytes of partitions of packed groups, without parities.",
            figures.packed_bytes,
        ),
        ("striate_packed_live_objects", "Live objects in packed groups.", figures.live_objects),
        ("striate_packed_live_bytes", "Bytes of live objects in packed groups.", figures.live_bytes),
        (
            "striate_packed_dead_bytes",
            "Bytes in packed groups of objects that were deleted or overwritten.",
            figures.dead_bytes,
        ),
        ("striate_packing_waiting_objects", "Small objects that wait to be packed.", figures.waiting_objects),
        (
            "striate_packing_waiting_bytes",
            "Bytes of small objects that wait to be packed.",
            figures.waiting_bytes,
        ),
        (
            "striate_packing_unreadable_groups",
            "Packed groups that cannot be released because a directory of theirs is lost.",
            packing.unreadable_groups,
        ),
    ]);
    page.counters(&[
        ("striate_packing_objects_total", "Objects packed.", packing.objects_packed),
        ("striate_packing_bytes_total", "Bytes of objects packed.", packing.bytes_packed),
        (
            "striate_packing_released_groups_total",
            "Packed groups whose space was reclaimed.",
            packing.groups_released,
        ),
    ]);
}

/// Writes the metrics of copies of hot partitions.
pub(super) fn render_copies(page: &mut Page, copies: Option<&CopiesState>) {
    let Some(copies) = copies else { return };
    page.gauges(&[
        ("striate_hot_copies", "Copies of hot partitions.", copies.copies),
        ("striate_hot_copy_bytes", "Bytes of copies of hot partitions.", copies.bytes),
        (
            "striate_hot_copy_budget_bytes",
            "Bytes that copies of hot partitions may use.",
            copies.budget_bytes,
        ),
    ]);
    page.counters(&[
        ("striate_hot_copies_made_total", "Copies of hot partitions made.", copies.made),
        ("striate_hot_copies_dropped_total", "Copies of hot partitions dropped.", copies.dropped),
    ]);
}
