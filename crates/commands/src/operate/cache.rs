//! The memory tier as people read it.

use super::report::{cells, table};
use crate::admin::messages::{CacheState, MemorySiteState};
use crate::transfer::progress::human_bytes;

/// The sites of the tier, a line each.
pub(super) fn sites(cache: &CacheState) -> String {
    let mut rows = vec![cells(["RACK", "MEMORY SITE", "ADDRESS", "STATE", "SPLITS", "USED", "OF"])];
    let row = |site: &MemorySiteState| {
        vec![
            site.rack.clone(),
            site.site.map_or_else(|| "own".to_owned(), |number| number.to_string()),
            site.address.clone(),
            site.state.clone(),
            site.splits.to_string(),
            human_bytes(site.charged_bytes),
            human_bytes(site.bound_bytes),
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
    format!(
        "{ratio}; reads: {}; {} blocks ({}) filled{given_up}",
        reads.join(", "),
        cache.fills,
        human_bytes(cache.filled_bytes)
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
}
