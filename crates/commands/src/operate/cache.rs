//! The memory tier as people read it.

use super::report::{cells, table};
use crate::admin::messages::{CacheState, MemorySiteState, OriginState};
use crate::transfer::progress::human_bytes;

/// The sites of the tier, a line each.
pub(super) fn sites(cache: &CacheState) -> String {
    let mut rows =
        vec![cells(["RACK", "MEMORY SITE", "ADDRESS", "STATE", "SPLITS", "USED", "OF", "READ", "EVICTED"])];
    let row = |site: &MemorySiteState| {
        vec![
            site.rack.clone(),
            site.site.map_or_else(|| "own".to_owned(), |number| number.to_string()),
            site.address.clone(),
            site.state.clone(),
            site.splits.to_string(),
            human_bytes(site.charged_bytes),
            human_bytes(site.bound_bytes),
            human_bytes(site.read_bytes),
            (site.evicted_data + site.evicted_parities).to_string(),
        ]
    };
    rows.extend(cache.sites.iter().map(row));
    table(&rows)
}

/// `62% of what was read came from memory; reads: 120 hit, 3 partial, 14 miss, 0 bypass; 14 blocks (56 MiB) filled`
pub(super) fn line(cache: &CacheState) -> String {
    let ratio = cache.hit_ratio().map_or_else(
        || "nothing was read yet".to_owned(),
        |ratio| format!("{:.0}% of what was read came from memory", 100.0 * ratio),
    );
    let reads: Vec<String> =
        cache.reads.iter().map(|served| format!("{} {}", served.reads, served.how)).collect();
    let given_up = match cache.given_up {
        0 => String::new(),
        blocks => format!(", {blocks} given up"),
    };
    let imbalance = cache.imbalance().map_or_else(String::new, |percent| format!("; λ {percent:.0}%"));
    format!(
        "{ratio}; reads: {}{imbalance}; {} blocks ({}) filled{given_up}",
        reads.join(", "),
        cache.fills,
        human_bytes(cache.filled_bytes)
    )
}

/// `120 requests (2 failed), 56 MiB; 30 revalidations, 1 changed; 4 reads passed by; 17 writes cached, 1 not for lack of memory`
pub(super) fn origins(origins: &OriginState) -> String {
    let OriginState { requests, failures, bytes, revalidations, changes, passed_by, .. } = origins;
    let writes = match (origins.cached_writes, origins.uncached_writes) {
        (0, 0) => String::new(),
        (cached, 0) => format!("; {cached} writes cached"),
        (cached, not) => format!("; {cached} writes cached, {not} not for lack of memory"),
    };
    format!(
        "{requests} requests ({failures} failed), {}; {revalidations} revalidations, {changes} changed; {passed_by} reads passed by{writes}",
        human_bytes(*bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::messages::ServedState;

    #[test]
    fn a_line_says_how_much_came_from_memory() {
        let served = |how: &str, reads, bytes| ServedState { how: how.to_owned(), reads, bytes };
        let state = CacheState {
            reads: vec![served("hit", 3, 300), served("miss", 1, 100)],
            cached_bytes: 300,
            fills: 1,
            filled_bytes: 100,
            given_up: 2,
            ..CacheState::default()
        };
        let text = line(&state);
        assert!(
            text.starts_with("75% of what was read came from memory; reads: 3 hit, 1 miss; 1 blocks"),
            "{text}"
        );
        assert!(text.ends_with("filled, 2 given up"), "{text}");
        assert!(line(&CacheState::default()).starts_with("nothing was read yet"));
    }

    #[test]
    fn a_line_says_which_writes_were_cached_where_writes_are() {
        let line = |cached_writes, uncached_writes| {
            origins(&OriginState { cached_writes, uncached_writes, ..OriginState::default() })
        };
        assert!(line(0, 0).ends_with("0 reads passed by"));
        assert!(line(17, 0).ends_with("; 17 writes cached"));
        assert!(line(17, 1).ends_with("; 17 writes cached, 1 not for lack of memory"));
    }

    #[test]
    fn imbalance_is_of_what_sites_have_sent_each_for_its_memory() {
        let site = |bound_bytes, read_bytes, state: &str| MemorySiteState {
            bound_bytes,
            read_bytes,
            state: state.to_owned(),
            ..MemorySiteState::default()
        };
        let of = |sites| CacheState { sites, ..CacheState::default() };
        assert_eq!(of(vec![site(10, 5, "ok")]).imbalance(), None);
        assert_eq!(of(vec![site(10, 50, "ok"), site(20, 100, "ok")]).imbalance(), Some(0.0));
        let skewed = of(vec![site(10, 150, "ok"), site(10, 50, "ok"), site(10, 9_999, "missing")]);
        assert_eq!(skewed.imbalance(), Some(50.0));
        assert!(line(&skewed).contains("; λ 50%;"));
    }
}
