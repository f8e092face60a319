//! The memory tier.

use striate_commands::admin::messages::CacheState;

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
    for (name, help) in [
        ("striate_memory_site_up", "1 when the memory site answers."),
        ("striate_memory_site_bound_bytes", "Memory that it may take."),
        ("striate_memory_site_charged_bytes", "Memory that it takes."),
        ("striate_memory_site_splits", "Splits of cached blocks."),
    ] {
        page.head(name, "gauge", help);
        for site in &cache.sites {
            let number = site.site.map_or_else(|| "own".to_owned(), |number| number.to_string());
            let value = match name {
                "striate_memory_site_up" => u64::from(site.state == "ok"),
                "striate_memory_site_bound_bytes" => site.bound_bytes,
                "striate_memory_site_charged_bytes" => site.charged_bytes,
                _ => site.splits,
            };
            page.value(name, &[("site", number.as_str()), ("rack", site.rack.as_str())], value);
        }
    }
}
