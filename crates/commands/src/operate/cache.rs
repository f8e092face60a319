//! Formats the state of the memory tier.

use super::report::{cells, counted, table};
use crate::admin::messages::{CacheState, MemorySiteState, OriginState};
use crate::output::printable;
use bytesize::ByteSize;

/// Formats the sites of the tier, one per line.
pub(super) fn sites(cache: &CacheState) -> String {
    let mut rows = vec![cells([
        "RACK",
        "MEMORY SITE",
        "ADDRESS",
        "STATE",
        "SPLITS",
        "DATA",
        "PARITIES",
        "OTHER",
        "OF",
        "READ",
        "EVICTED",
    ])];
    let row = |site: &MemorySiteState| {
        vec![
            site.rack.clone(),
            site.site.map_or_else(|| "own".to_owned(), |number| number.to_string()),
            site.address.clone(),
            site.state.clone(),
            site.splits.to_string(),
            ByteSize(site.data_bytes).to_string(),
            ByteSize(site.parity_bytes).to_string(),
            ByteSize(site.other_bytes).to_string(),
            ByteSize(site.bound_bytes).to_string(),
            ByteSize(site.read_bytes).to_string(),
            (site.evicted_data + site.evicted_parities).to_string(),
        ]
    };
    rows.extend(cache.sites.iter().map(row));
    table(&rows)
}

/// Formats the reads: `62% of what was read came from memory; reads: 120 hit, 3 partial, 14 miss, 0 bypass; 14 blocks
/// (56 MiB) filled`
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
        ByteSize(cache.filled_bytes)
    )
}

/// Formats the memory in use: `128.0 MiB of data and parities, 119.0 MiB other memory of the processes, of 256.0 MiB`
pub(super) fn memory(cache: &CacheState) -> String {
    let sum = |value: fn(&MemorySiteState) -> u64| ByteSize(cache.sites.iter().map(value).sum());
    let of_process = if cache.sites.len() == 1 { "process" } else { "processes" };
    format!(
        "{} of data and parities, {} other memory of the {of_process}, of {}",
        sum(|site| site.data_bytes + site.parity_bytes),
        sum(|site| site.other_bytes),
        sum(|site| site.bound_bytes)
    )
}

/// Formats the parities of blocks: `3 blocks without parities, 14 with 1, 2 with 4`; `None` if no blocks are known.
pub(super) fn parities(cache: &CacheState) -> Option<String> {
    let blocks = cache.blocks_by_parities();
    let have = |(parities, blocks): (usize, &u64)| match parities {
        0 => format!("{} without parities", counted(*blocks, "block")),
        _ => format!("{blocks} with {parities}"),
    };
    let shown = blocks.iter().enumerate().filter(|(parities, blocks)| *parities == 0 || **blocks > 0);
    (!blocks.is_empty()).then(|| shown.map(have).collect::<Vec<_>>().join(", "))
}

/// Formats removals from memory by cause: `data splits evicted: 17, blocks of overwritten objects: 2`; `None` if there
/// were none.
pub(super) fn gone(cache: &CacheState) -> Option<String> {
    let sum = |value: fn(&MemorySiteState) -> u64| cache.sites.iter().map(value).sum();
    let causes = [
        ("data splits evicted", sum(|site| site.evicted_data)),
        ("parities evicted", sum(|site| site.evicted_parities)),
        ("blocks of deleted objects", cache.deleted),
        ("blocks of overwritten objects", cache.overwritten),
    ];
    let causes = causes.iter().filter(|(_, number)| *number > 0);
    let causes: Vec<String> = causes.map(|(cause, number)| format!("{cause}: {number}")).collect();
    (!causes.is_empty()).then(|| causes.join(", "))
}

/// Formats the first few volatile buckets; `None` if there are none.
pub(super) fn volatile(cache: &CacheState) -> Option<String> {
    let names = cache.volatile_buckets.iter().map(String::as_str);
    Some(format!("{}: in memory only", first_few(names)?))
}

/// Formats the first few buckets whose origins do not answer; `None` if all do.
pub(super) fn failing(origins: &OriginState) -> Option<String> {
    let names = origins.failing.iter().map(|origin| origin.bucket.as_str());
    Some(format!("{}: the other store does not answer", first_few(names)?))
}

/// Lists the first few of some names; `None` if there are none.
fn first_few<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> Option<String> {
    const SHOWN: usize = 8;
    let count = names.len();
    let shown: Vec<String> = names.take(SHOWN).map(printable).collect();
    let more = if count > SHOWN { " and others" } else { "" };
    (count > 0).then(|| format!("{}{more}", shown.join(", ")))
}

/// Formats the requests to origins: `120 requests (2 failed), 56 MiB; 30 revalidations, 1 changed, 3 written through
/// Striate; 4 reads passed by; 17 writes cached, 1 not for lack of memory`
pub(super) fn origins(origins: &OriginState) -> String {
    let OriginState { requests, failures, bytes, revalidations, changes, fenced, passed_by, .. } = origins;
    let writes = match (origins.cached_writes, origins.uncached_writes) {
        (0, 0) => String::new(),
        (cached, 0) => format!("; {cached} writes cached"),
        (cached, not) => format!("; {cached} writes cached, {not} not for lack of memory"),
    };
    format!(
        "{requests} requests ({failures} failed), {}; {revalidations} revalidations, {changes} changed, {fenced} written through Striate; {passed_by} reads passed by{writes}",
        ByteSize(*bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::messages::{FailingOriginState, ServedState};

    #[test]
    fn buckets_whose_origins_do_not_answer_are_named() {
        let mut state = OriginState::default();
        assert_eq!(failing(&state), None);
        let named = |name: u32| FailingOriginState { bucket: format!("b{name}"), ..Default::default() };
        state.failing = (1..=9).map(named).collect();
        let line = failing(&state).unwrap();
        assert!(line.starts_with("b1, b2,") && line.contains("b8 and others: the other store"), "{line}");
    }

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
    fn lines_say_what_memory_is_for_and_what_left_it() {
        let site = MemorySiteState {
            bound_bytes: 256 << 20,
            data_bytes: 120 << 20,
            parity_bytes: 8 << 20,
            other_bytes: 119 << 20,
            blocks_by_parities: vec![0, 14, 0, 0, 2, 0],
            evicted_data: 17,
            ..MemorySiteState::default()
        };
        let mut state = CacheState { sites: vec![site], overwritten: 2, ..CacheState::default() };
        assert_eq!(
            memory(&state),
            "128.0 MiB of data and parities, 119.0 MiB other memory of the process, of 256.0 MiB"
        );
        assert_eq!(parities(&state).unwrap(), "0 blocks without parities, 14 with 1, 2 with 4");
        assert_eq!(gone(&state).unwrap(), "data splits evicted: 17, blocks of overwritten objects: 2");
        assert_eq!(volatile(&state), None);
        state.volatile_buckets = vec!["kv-cache".to_owned(), "sessions".to_owned()];
        assert_eq!(volatile(&state).unwrap(), "kv-cache, sessions: in memory only");
        let empty = CacheState::default();
        assert_eq!((parities(&empty), gone(&empty)), (None, None));
    }

    #[test]
    fn what_failed_to_be_read_says_nothing_of_hits() {
        let served = |how: &str, bytes| ServedState { how: how.to_owned(), reads: 1, bytes };
        let reads = vec![served("hit", 300), served("error", 9_999)];
        let state = CacheState { reads, cached_bytes: 300, ..CacheState::default() };
        assert_eq!(state.hit_ratio(), Some(1.0));
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
