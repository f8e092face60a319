//! How a cached block is split, and where its splits are.
//!
//! A block is cut into k = ⌈bytes / 1 MiB⌉ splits, at most ten (EC-Cache §7.4). It stays whole where it is too small
//! for splitting to pay (§7.1) or where one site has all of the memory. Every process that knows the same memory sites
//! computes the same places, by rendezvous hashing weighted by the sites' memory: each split in turn draws one of the
//! sites that have none yet. While a site does not answer, its splits, and no others, have substitutes. When a site
//! joins or leaves, its own splits change places, and few others. A wrong guess is a miss, never wrong data.

use striate_core::{SiteId, StripeId, cached};
use striate_splitmix::hash;

/// Target size of a split in bytes: longer blocks are cut into more splits.
pub const SPLIT_BYTES: u64 = 1 << 20;
/// Maximum number of data splits: EC-Cache's k.
pub const MOST_DATA_SPLITS: usize = 10;

/// A site of the memory tier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemorySite {
    /// The site's number.
    pub site: SiteId,
    /// Bytes it may hold.
    pub bytes: u64,
    /// Whether it answers.
    pub is_live: bool,
}

/// Returns the number of data splits of a block of `len` bytes, at `split_bytes` each, with `sites` memory sites.
pub fn data_splits(len: u64, split_bytes: u64, sites: usize) -> usize {
    match sites {
        0 | 1 => 1,
        _ => (len.div_ceil(split_bytes.max(1)) as usize).clamp(1, MOST_DATA_SPLITS),
    }
}

/// Returns the sites of a cached block's splits, in the order of the splits: all of them answer. If there are more
/// splits than sites, they go round. Empty if no site answers. More splits leave the places of the first as they are.
pub fn places(name: StripeId, sites: &[MemorySite], splits: usize) -> Vec<SiteId> {
    let data_splits = cached::splits(name);
    let mut free = Vec::with_capacity(sites.len());
    let mut chosen: Vec<MemorySite> = Vec::with_capacity(splits.max(data_splits));
    for index in 0..splits.max(data_splits) {
        if free.is_empty() {
            free.extend_from_slice(sites);
        }
        let Some(best) = nearest((name, index), &free) else { return Vec::new() };
        chosen.push(free.swap_remove(best));
    }
    substitute(name, sites, &mut chosen);
    chosen.into_iter().take(splits).filter(|site| site.is_live).map(|site| site.site).collect()
}

/// Returns the *home* of a cached block, which grants the right to fill it: the site of its first split. `None` if no
/// site answers.
pub fn home(name: StripeId, sites: &[MemorySite]) -> Option<SiteId> {
    let first = sites[nearest((name, 0), sites)?];
    if first.is_live { Some(first.site) } else { places(name, sites, 1).first().copied() }
}

/// Replaces sites that do not answer, if possible by those that have no data split and no split before this one:
/// substitutes do not depend on the number of parities.
fn substitute(name: StripeId, sites: &[MemorySite], chosen: &mut [MemorySite]) {
    for index in 0..chosen.len() {
        if chosen[index].is_live {
            continue;
        }
        let others = cached::splits(name).max(index + 1);
        let live = || sites.iter().copied().filter(|site| site.is_live);
        let is_idle = |site: &MemorySite| chosen[..others].iter().all(|taken| taken.site != site.site);
        let mut candidates: Vec<MemorySite> = live().filter(is_idle).collect();
        if candidates.is_empty() {
            candidates = live().collect();
        }
        if let Some(best) = nearest((name, index), &candidates) {
            chosen[index] = candidates[best];
        }
    }
}

/// Returns the position of the site that a split draws, or `None` if there are no sites.
fn nearest(split: (StripeId, usize), sites: &[MemorySite]) -> Option<usize> {
    let scores = sites.iter().map(|site| (score(split, site), site.site));
    let lower = |a: &(f64, SiteId), b: &(f64, SiteId)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
    scores.enumerate().min_by(|(_, a), (_, b)| lower(a, b)).map(|(position, _)| position)
}

/// Exponentially distributed with the site's memory as its rate, so each site is drawn in proportion to its memory.
fn score((name, index): (StripeId, usize), site: &MemorySite) -> f64 {
    let place = (index as u64) << 32 | u64::from(site.site.0);
    let mixed = hash((name.0 >> 64) as u64 ^ hash(name.0 as u64 ^ hash(place)));
    // In (0, 1].
    let uniform = ((mixed >> 11) + 1) as f64 / (1u64 << 53) as f64;
    -uniform.ln() / site.bytes.max(1) as f64
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    const GIB: u64 = 1 << 30;

    fn sites(count: u32) -> Vec<MemorySite> {
        (1..=count).map(|number| MemorySite { site: SiteId(number), bytes: GIB, is_live: true }).collect()
    }

    fn names(count: u64) -> impl Iterator<Item = StripeId> {
        (0..count).map(|number| cached::name(u128::from(hash(number)) << 64 | u128::from(hash(!number)), 10))
    }

    #[test]
    fn a_block_is_cut_as_the_paper_says() {
        for (len, splits) in [(1, 1), (SPLIT_BYTES, 1), (SPLIT_BYTES + 1, 2), (4 << 20, 4), (40 << 20, 10)] {
            assert_eq!(data_splits(len, SPLIT_BYTES, 25), splits);
            assert_eq!(data_splits(len, SPLIT_BYTES, 1), 1, "one site has all of it");
        }
    }

    #[test]
    fn splits_are_on_distinct_sites_as_far_as_there_are_any() {
        for name in names(200) {
            let places = places(name, &sites(25), 11);
            assert_eq!(places.iter().collect::<BTreeSet<_>>().len(), 11);
            let few = super::places(name, &sites(4), 11);
            let distinct = |round: &[SiteId]| round.iter().collect::<BTreeSet<_>>().len();
            assert_eq!((distinct(&few[..4]), distinct(&few[4..8]), distinct(&few[8..])), (4, 4, 3));
        }
        assert_eq!(places(StripeId(1), &[], 3), []);
    }

    #[test]
    fn sites_have_splits_in_proportion_to_their_memory() {
        let mut sites = sites(10);
        sites[0].bytes = 2 * GIB;
        let mut homes = BTreeMap::<SiteId, usize>::new();
        names(11_000).for_each(|name| *homes.entry(home(name, &sites).unwrap()).or_default() += 1);
        let share = |site| homes[&SiteId(site)] as f64 / 1_000.0;
        assert!((1.85..2.15).contains(&share(1)), "{}", share(1));
        assert!((2..=10).all(|site| (0.85..1.15).contains(&share(site))), "{homes:?}");
    }

    #[test]
    fn more_splits_leave_the_first_where_they_are() {
        for name in names(200) {
            let all = places(name, &sites(8), 12);
            assert!((0..12).all(|splits| places(name, &sites(8), splits) == all[..splits]));
            assert_eq!(home(name, &sites(8)), Some(all[0]));
        }
    }

    #[test]
    fn only_the_splits_of_sites_that_do_not_answer_have_substitutes() {
        for (count, data, splits) in [(20, 4, 5), (8, 5, 5), (8, 4, 6), (5, 5, 5), (4, 4, 5)] {
            for name in (0..200).map(|number| cached::name(u128::from(hash(number)) << 64, data)) {
                let mut sites = sites(count);
                let before = places(name, &sites, splits);
                sites[2].is_live = false;
                let after = places(name, &sites, splits);
                for (before, after) in before.iter().zip(&after).filter(|(before, _)| before.0 != 3) {
                    assert_eq!(before, after);
                }
                assert!(after.iter().all(|site| site.0 != 3));
                let distinct = after[..data].iter().collect::<BTreeSet<_>>().len();
                assert_eq!(distinct, data.min(count as usize - 1), "{after:?}");
                assert!((0..splits).all(|fewer| places(name, &sites, fewer) == after[..fewer]));
                assert_eq!(home(name, &sites), Some(after[0]));
                sites.iter_mut().for_each(|site| site.is_live = false);
                assert_eq!((places(name, &sites, splits), home(name, &sites)), (vec![], None));
            }
        }
    }

    #[test]
    fn when_a_site_joins_few_splits_change_places_beside_its_own() {
        let (mut own, mut moved) = (0, 0);
        for name in names(2_000) {
            let (before, after) = (places(name, &sites(7), 5), places(name, &sites(8), 5));
            own += after.iter().filter(|site| site.0 == 8).count();
            moved += before.iter().zip(&after).filter(|(before, after)| before != after).count();
        }
        assert!((1_200..1_300).contains(&own), "{own}: five eighths of 2,000 are 1,250");
        assert!(moved < own * 8 / 5, "{moved} moved for {own}");
    }
}
