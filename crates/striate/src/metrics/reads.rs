//! Metrics of reads, requests and sites: the figures of the client and the statistics service.

use std::sync::atomic::Ordering;

use striate_control::SiteLoadView;
use striate_stripe::{BudgetView, CoAccessTotals, Phase, PushView, ReadMeasures};

use super::Page;

/// Writes the phases of reads, hedging, and the plans of policies that minimise cost.
pub(super) fn render_reads(page: &mut Page, measures: &ReadMeasures) {
    let name = "striate_read_phase_seconds";
    page.head(name, "histogram", "Time of a read by phase: object, metadata, plan, retrieve, decode.");
    for phase in Phase::ALL {
        page.histogram(name, Some(("phase", phase.name())), &measures.phase(phase).view());
    }
    page.counters(&[
        (
            "striate_read_extra_chunks_total",
            "Chunks that queries asked for at once beyond a sufficient set.",
            measures.extra_chunks.load(Ordering::Relaxed),
        ),
        (
            "striate_read_hedged_chunks_total",
            "Chunks that were asked for because others were late.",
            measures.hedged_chunks.load(Ordering::Relaxed),
        ),
        (
            "striate_read_cancelled_requests_total",
            "Requests to sites whose answer was no longer needed.",
            measures.cancelled_requests.load(Ordering::Relaxed),
        ),
        (
            "striate_planned_again_pieces_total",
            "Blocks that the plan of a query did not deliver.",
            measures.planned_again.load(Ordering::Relaxed),
        ),
        (
            "striate_read_probes_total",
            "Messages that asked a site for its queue length, for read policies that probe.",
            measures.probes.load(Ordering::Relaxed),
        ),
    ]);
    render_plans(page, measures);
}

/// Writes the cost of the plans of policies that minimise it, and how far it may be from the least.
fn render_plans(page: &mut Page, measures: &ReadMeasures) {
    for (name, help, histogram) in [
        (
            "striate_plan_cost",
            "Cost of plans that minimise it, where asking an idle site costs 1.",
            &measures.plan_costs,
        ),
        (
            "striate_plan_gap_ratio",
            "By what share of its cost a plan may exceed the cheapest one.",
            &measures.plan_gaps,
        ),
    ] {
        page.head(name, "histogram", help);
        page.histogram(name, None, &histogram.view());
    }
}

/// Writes the load reports that sites push.
pub(super) fn render_pushes(page: &mut Page, pushes: PushView) {
    page.counters(&[(
        "striate_queue_pushes_total",
        "Load reports that sites pushed to this process.",
        pushes.received,
    )]);
    page.gauges(&[(
        "striate_watched_sites",
        "Sites that push their load to this process now.",
        pushes.sites,
    )]);
}

/// Writes the memory for bodies: in use, waiting requests, and memory taken back.
pub(super) fn render_memory(page: &mut Page, memory: BudgetView) {
    let name = "striate_body_memory_bytes";
    page.head(name, "gauge", "Memory for request bodies: total, in use, and pinned by idle clients.");
    for (state, bytes) in [("total", memory.total), ("taken", memory.taken), ("pinned", memory.pinned)] {
        page.value(name, &[("state", state)], bytes);
    }
    page.gauges(&[(
        "striate_body_memory_waiting",
        "Requests that wait for memory for their bodies.",
        memory.waiting,
    )]);
    page.counters(&[
        (
            "striate_body_memory_waits_total",
            "Requests that had to wait for memory for their bodies.",
            memory.waited,
        ),
        (
            "striate_body_memory_refused_total",
            "Requests refused because no memory for their bodies was freed in time.",
            memory.refused,
        ),
        (
            "striate_body_memory_released_total",
            "How often memory for bodies was taken back from an idle client.",
            memory.released,
        ),
        (
            "striate_body_memory_cut_total",
            "Uploads that were ended because they were slow while others waited for memory.",
            memory.cut,
        ),
    ]);
}

/// Writes the totals of the co-access statistics, and the load of every site.
pub(super) fn render_statistics(page: &mut Page, co_access: CoAccessTotals, loads: &[SiteLoadView]) {
    page.counters(&[(
        "striate_co_access_sampled_total",
        "Read requests that went into the co-access statistics.",
        co_access.observed,
    )]);
    page.gauges(&[
        (
            "striate_co_access_requests",
            "Requests in the interval of the co-access statistics.",
            co_access.requests,
        ),
        (
            "striate_co_access_blocks",
            "Distinct blocks in the interval of the co-access statistics.",
            co_access.blocks,
        ),
        ("striate_co_access_bytes", "Memory of the co-access statistics, in bytes.", co_access.memory_bytes),
    ]);
    type Measure = fn(&SiteLoadView) -> f64;
    let per_site: [(&str, &str, Measure); 2] = [
        ("striate_site_load", "Load of the site, from its processor, disk and chunks.", |view| view.omega),
        ("striate_site_load_imbalance", "Distance of the load of the site from the mean.", |view| {
            view.imbalance
        }),
    ];
    for (name, help, measure) in per_site {
        page.head(name, "gauge", help);
        for view in loads {
            page.value(name, &[("site", view.site.to_string().as_str())], measure(view));
        }
    }
}

#[cfg(test)]
mod tests {
    use striate_core::SiteId;
    use striate_plan::SiteLoad;
    use striate_stripe::HistogramView;

    use super::*;

    #[test]
    fn every_phase_and_site_has_its_series_and_histograms_add_up() {
        let mut page = Page(String::new());
        let measures = ReadMeasures::default();
        measures.hedged_chunks.fetch_add(3, Ordering::Relaxed);
        render_reads(&mut page, &measures);
        let load = SiteLoad { cpu: 0.5, io: 0.25, chunks: 7.0 };
        let view = SiteLoadView { site: SiteId(4), load, queue: 0.0, omega: 0.85, imbalance: 0.1 };
        let totals = CoAccessTotals { observed: 9, requests: 8, ..CoAccessTotals::default() };
        render_statistics(&mut page, totals, &[view]);
        page.histogram("h", None, &HistogramView { bounds: &[0.5, 2.0], counts: vec![1, 2, 3], sum: 20.5 });
        for line in page.0.lines().filter(|line| !line.starts_with('#')) {
            let (_, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
        for line in [
            "striate_read_phase_seconds_count{phase=\"retrieve\"} 0",
            "striate_read_phase_seconds_bucket{phase=\"decode\",le=\"+Inf\"} 0",
            "striate_read_hedged_chunks_total 3",
            "striate_plan_gap_ratio_bucket{le=\"0.001\"} 0",
            "striate_co_access_sampled_total 9",
            "striate_site_load{site=\"4\"} 0.85",
            "h_bucket{le=\"0.5\"} 1\nh_bucket{le=\"2\"} 3\nh_bucket{le=\"+Inf\"} 6\nh_sum 20.5\nh_count 6\n",
        ] {
            assert!(page.0.contains(line), "{line:?} is not in\n{}", page.0);
        }
    }
}
