//! Repair and scrub.

use super::Page;
use crate::admin::messages::{RepairState, ScrubState};

/// Writes what is known of the store's upkeep.
pub(super) fn render_work(page: &mut Page, repair: Option<&RepairState>, scrub: Option<&ScrubState>) {
    if let Some(repair) = repair {
        let gauges = [
            (
                "striate_repair_stripes_left",
                "Stripes that are not whole, as far as is known.",
                repair.stripes_left,
            ),
            ("striate_repair_stripes_waiting", "Of these, those that wait for a site.", repair.waiting),
            ("striate_repair_bytes_per_second", "Bytes rebuilt in a second, of late.", repair.bytes_per_s),
        ];
        for (name, help, value) in gauges {
            page.head(name, "gauge", help);
            page.value(name, &[], value);
        }
        if let Some(seconds) = repair.seconds_left {
            page.head("striate_repair_seconds_left", "gauge", "Until all is whole that waits for no site.");
            page.value("striate_repair_seconds_left", &[], seconds);
        }
        for (name, help, value) in [
            ("striate_repair_chunks_total", "Chunks rebuilt.", repair.chunks),
            ("striate_repair_bytes_total", "Bytes of chunks rebuilt.", repair.bytes),
        ] {
            page.head(name, "counter", help);
            page.value(name, &[], value);
        }
    }
    let Some(scrub) = scrub else { return };
    for (name, help, value) in [
        ("striate_scrub_cycle", "The scrub's cycle, from 1.", scrub.cycle),
        ("striate_scrub_verified_chunks", "Chunks found good in this cycle.", scrub.now.chunks),
        ("striate_scrub_verified_bytes", "Their bytes.", scrub.now.bytes),
        ("striate_scrub_damaged_chunks", "Chunks found damaged or missing in this cycle.", scrub.now.damaged),
        ("striate_scrub_total_chunks", "Chunks that this cycle is to verify.", scrub.total_chunks),
        ("striate_scrub_seconds_left", "Until this cycle ends.", scrub.seconds_left),
    ] {
        page.head(name, "gauge", help);
        page.value(name, &[], value);
    }
}
