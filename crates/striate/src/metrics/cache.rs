//! Metrics of the memory tier.

use striate_commands::admin::messages::{CacheState, MemorySiteState, OriginState, ServedState};

use super::Page;

/// Writes the metrics of the memory tier.
pub(super) fn render_cache(page: &mut Page, cache: Option<&CacheState>) {
    let Some(cache) = cache else { return };
    render_reads(page, &cache.reads);
    page.counters(&[
        ("striate_cache_cached_bytes_total", "Bytes of reads that came from memory.", cache.cached_bytes),
        ("striate_cache_fills_total", "Blocks that this process wrote to memory sites.", cache.fills),
        (
            "striate_cache_filled_bytes_total",
            "Bytes of blocks that this process wrote to memory sites.",
            cache.filled_bytes,
        ),
        ("striate_cache_given_up_total", "Fills of the cache that this process gave up.", cache.given_up),
        (
            "striate_cache_parities_total",
            "Parities that this process added to popular cached blocks.",
            cache.parities,
        ),
        (
            "striate_cache_unanswered_total",
            "Look-ups of cached blocks that memory sites did not answer in time.",
            cache.unanswered,
        ),
    ]);
    let name = "striate_cache_invalidated_total";
    page.head(name, "counter", "Blocks of volatile buckets that were taken out of memory, by why.");
    page.value(name, &[("cause", "deleted")], cache.deleted);
    page.value(name, &[("cause", "overwritten")], cache.overwritten);
    if let Some(percent) = cache.imbalance() {
        page.gauges(&[(
            "striate_cache_imbalance_ratio",
            "Load of the most loaded memory site over the mean, minus 1 (λ).",
            percent / 100.0,
        )]);
    }
    render_sites(page, &cache.sites);
}

/// Writes the reads of blocks, by how they were served.
fn render_reads(page: &mut Page, reads: &[ServedState]) {
    type Count = fn(&ServedState) -> u64;
    let counters: [(&str, &str, Count); 2] = [
        (
            "striate_cache_reads_total",
            "Reads of blocks and of parts of them, by how they were served.",
            |served| served.reads,
        ),
        (
            "striate_cache_read_bytes_total",
            "Bytes read of blocks and of parts of them, by how they were served.",
            |served| served.bytes,
        ),
    ];
    for (name, help, count) in counters {
        page.head(name, "counter", help);
        for served in reads {
            page.value(name, &[("served", served.how.as_str())], count(served));
        }
    }
}

/// Writes the metrics of requests to other S3 stores.
pub(super) fn render_origins(page: &mut Page, origins: Option<&OriginState>) {
    let Some(origins) = origins else { return };
    page.counters(&[
        (
            "striate_origin_requests_total",
            "Requests to other S3 stores, repeated ones included.",
            origins.requests,
        ),
        ("striate_origin_failures_total", "Requests to other S3 stores that failed.", origins.failures),
        ("striate_origin_bytes_total", "Bytes of objects that other S3 stores have sent.", origins.bytes),
        (
            "striate_origin_revalidations_total",
            "Requests that asked an origin whether an object had changed.",
            origins.revalidations,
        ),
        (
            "striate_origin_changes_total",
            "Revalidations after which the object had changed.",
            origins.changes,
        ),
        (
            "striate_origin_fenced_total",
            "Objects in other S3 stores of which the cached state was invalidated by a write through Striate.",
            origins.fenced,
        ),
        (
            "striate_origin_passed_by_total",
            "Reads of objects in other S3 stores that bypassed the cache.",
            origins.passed_by,
        ),
        (
            "striate_origin_cached_writes_total",
            "Writes to other S3 stores that were cached.",
            origins.cached_writes,
        ),
        (
            "striate_origin_uncached_writes_total",
            "Writes to other S3 stores that were not cached because memory for bodies was short.",
            origins.uncached_writes,
        ),
    ]);
    page.gauges(&[(
        "striate_origins_failing",
        "Buckets whose origin does not answer: the last requests to it all failed.",
        origins.failing.len(),
    )]);
}

/// Reads a figure of a memory site.
type OfMemorySite = fn(&MemorySiteState) -> u64;

/// Figures of a memory site: name, kind, help text and value.
const MEMORY_SITE_FIGURES: [(&str, &str, &str, OfMemorySite); 15] = [
    ("striate_memory_site_up", "gauge", "1 when the memory site answers.", |site| {
        (site.state == "ok").into()
    }),
    ("striate_memory_site_bound_bytes", "gauge", "Memory that the memory site may use.", |site| {
        site.bound_bytes
    }),
    ("striate_memory_site_charged_bytes", "gauge", "Memory that the memory site uses.", |site| {
        site.charged_bytes
    }),
    ("striate_memory_site_data_bytes", "gauge", "Bytes of data splits on the memory site.", |site| {
        site.data_bytes
    }),
    (
        "striate_memory_site_other_bytes",
        "gauge",
        "Bytes that the memory site uses for the index, for blocks on their way and otherwise.",
        |site| site.other_bytes,
    ),
    (
        "striate_memory_site_deleted_total",
        "counter",
        "Splits deleted from the memory site together with their object.",
        |site| site.deleted,
    ),
    ("striate_memory_site_splits", "gauge", "Splits of cached blocks on the memory site.", |site| {
        site.splits
    }),
    ("striate_memory_site_parity_bytes", "gauge", "Bytes of parities on the memory site.", |site| {
        site.parity_bytes
    }),
    ("striate_memory_site_hits_total", "counter", "Reads that found a split on the memory site.", |site| {
        site.hits
    }),
    (
        "striate_memory_site_misses_total",
        "counter",
        "Reads that did not find a split on the memory site.",
        |site| site.misses,
    ),
    ("striate_memory_site_read_bytes_total", "counter", "Bytes read from the memory site.", |site| {
        site.read_bytes
    }),
    (
        "striate_memory_site_evicted_data_total",
        "counter",
        "Data splits evicted from the memory site.",
        |site| site.evicted_data,
    ),
    (
        "striate_memory_site_evicted_parities_total",
        "counter",
        "Parities evicted from the memory site.",
        |site| site.evicted_parities,
    ),
    (
        "striate_memory_site_refused_total",
        "counter",
        "Writes of splits refused because nothing could be evicted.",
        |site| site.refused,
    ),
    ("striate_memory_site_damaged_total", "counter", "Reads that found corrupted bytes in memory.", |site| {
        site.damaged
    }),
];

fn render_sites(page: &mut Page, sites: &[MemorySiteState]) {
    for (name, kind, help, value) in MEMORY_SITE_FIGURES {
        page.head(name, kind, help);
        for site in sites {
            let number = number_of(site);
            page.value(name, &[("site", number.as_str()), ("rack", site.rack.as_str())], value(site));
        }
    }
    let name = "striate_memory_site_blocks";
    page.head(name, "gauge", "Cached blocks whose home is the memory site, by their number of parities.");
    for site in sites {
        let number = number_of(site);
        for (parities, blocks) in site.blocks_by_parities.iter().enumerate() {
            let parities = parities.to_string();
            let labels =
                [("site", number.as_str()), ("rack", site.rack.as_str()), ("parities", parities.as_str())];
            page.value(name, &labels, *blocks);
        }
    }
}

fn number_of(site: &MemorySiteState) -> String {
    site.site.map_or_else(|| "own".to_owned(), |number| number.to_string())
}
