//! The memory tier.

use striate_commands::admin::messages::{CacheState, MemorySiteState, OriginState};

use super::Page;

/// Writes what is known of the memory tier.
pub(super) fn render_cache(page: &mut Page, cache: Option<&CacheState>) {
    let Some(cache) = cache else { return };
    for (name, help) in [
        ("striate_cache_reads_total", "Reads of blocks and of parts of them, by how they were served."),
        ("striate_cache_read_bytes_total", "Their bytes."),
    ] {
        page.head(name, "counter", help);
        for served in &cache.reads {
            let value = if name == "striate_cache_reads_total" { served.reads } else { served.bytes };
            page.value(name, &[("served", served.how.as_str())], value);
        }
    }
    for (name, help, value) in [
        ("striate_cache_cached_bytes_total", "Bytes of reads that came from memory.", cache.cached_bytes),
        ("striate_cache_fills_total", "Blocks that this process has written to memory sites.", cache.fills),
        ("striate_cache_filled_bytes_total", "Their bytes.", cache.filled_bytes),
        ("striate_cache_given_up_total", "Blocks that it was to write and has not.", cache.given_up),
        ("striate_cache_parities_total", "Parities that it has added to popular blocks.", cache.parities),
        (
            "striate_cache_unanswered_total",
            "Questions that memory sites did not answer in time.",
            cache.unanswered,
        ),
    ] {
        page.head(name, "counter", help);
        page.value(name, &[], value);
    }
    let name = "striate_cache_invalidated_total";
    page.head(name, "counter", "Blocks of volatile buckets that were taken out of memory, by why.");
    page.value(name, &[("cause", "deleted")], cache.deleted);
    page.value(name, &[("cause", "overwritten")], cache.overwritten);
    if let Some(percent) = cache.imbalance() {
        page.head(
            "striate_cache_imbalance_ratio",
            "gauge",
            "λ of memory sites: the most loaded one over the mean, less 1.",
        );
        page.value("striate_cache_imbalance_ratio", &[], percent / 100.0);
    }
    render_sites(page, &cache.sites);
}

/// Writes what was asked of other S3 stores.
pub(super) fn render_origins(page: &mut Page, origins: Option<&OriginState>) {
    let Some(origins) = origins else { return };
    for (name, help, value) in [
        (
            "striate_origin_requests_total",
            "Requests to other S3 stores, repeated ones included.",
            origins.requests,
        ),
        ("striate_origin_failures_total", "Of these, those that failed.", origins.failures),
        ("striate_origin_bytes_total", "Bytes of objects that other S3 stores have sent.", origins.bytes),
        (
            "striate_origin_revalidations_total",
            "Questions whether what is known of an object still holds.",
            origins.revalidations,
        ),
        ("striate_origin_changes_total", "Of these, those after which it did not.", origins.changes),
        (
            "striate_origin_fenced_total",
            "Objects elsewhere of which what was known does not hold any more, because they were written through Striate.",
            origins.fenced,
        ),
        ("striate_origin_passed_by_total", "Reads of objects elsewhere beside the cache.", origins.passed_by),
        (
            "striate_origin_cached_writes_total",
            "Writes of objects elsewhere that were put into memory too.",
            origins.cached_writes,
        ),
        (
            "striate_origin_uncached_writes_total",
            "Writes that were to be and were not, for lack of memory for bodies.",
            origins.uncached_writes,
        ),
    ] {
        page.head(name, "counter", help);
        page.value(name, &[], value);
    }
}

fn render_sites(page: &mut Page, sites: &[MemorySiteState]) {
    type Measure = fn(&MemorySiteState) -> u64;
    let per_site: [(&str, &str, &str, Measure); 15] = [
        ("striate_memory_site_up", "gauge", "1 when the memory site answers.", |site| {
            (site.state == "ok").into()
        }),
        ("striate_memory_site_bound_bytes", "gauge", "Memory that it may take.", |site| site.bound_bytes),
        ("striate_memory_site_charged_bytes", "gauge", "Memory that it takes.", |site| site.charged_bytes),
        ("striate_memory_site_splits", "gauge", "Splits of cached blocks.", |site| site.splits),
        ("striate_memory_site_data_bytes", "gauge", "Bytes of its data splits.", |site| site.data_bytes),
        ("striate_memory_site_parity_bytes", "gauge", "Bytes of its parities.", |site| site.parity_bytes),
        (
            "striate_memory_site_other_bytes",
            "gauge",
            "Of the memory that it takes, the index, blocks on their way and other memory of its process.",
            |site| site.other_bytes,
        ),
        ("striate_memory_site_hits_total", "counter", "Reads of splits that found them.", |site| site.hits),
        ("striate_memory_site_misses_total", "counter", "Reads that did not.", |site| site.misses),
        ("striate_memory_site_read_bytes_total", "counter", "Bytes that were read.", |site| site.read_bytes),
        ("striate_memory_site_evicted_data_total", "counter", "Data splits evicted.", |site| {
            site.evicted_data
        }),
        ("striate_memory_site_evicted_parities_total", "counter", "Parities evicted.", |site| {
            site.evicted_parities
        }),
        (
            "striate_memory_site_deleted_total",
            "counter",
            "Splits deleted, because their object was.",
            |site| site.deleted,
        ),
        ("striate_memory_site_refused_total", "counter", "Splits for which nothing could go.", |site| {
            site.refused
        }),
        ("striate_memory_site_damaged_total", "counter", "Reads of bytes changed in memory.", |site| {
            site.damaged
        }),
    ];
    for (name, kind, help, measure) in per_site {
        page.head(name, kind, help);
        for site in sites {
            let number = number_of(site);
            page.value(name, &[("site", number.as_str()), ("rack", site.rack.as_str())], measure(site));
        }
    }
    let name = "striate_memory_site_blocks";
    page.head(name, "gauge", "Cached blocks whose home it is, by how many parities they have.");
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
