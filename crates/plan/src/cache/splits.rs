//! How a cached block is split, and where its splits are.
//!
//! A block is cut into k = ⌈bytes / 1 MiB⌉ splits, at most ten (EC-Cache §7.4). It stays whole where it is too small
//! for splitting to pay (§7.1) or where one site has all of the memory. Every process that knows the same memory sites
//! computes the same places, by rendezvous hashing weighted by the sites' memory. When a site joins or leaves, only its
//! own splits change places. A wrong guess is a miss, never wrong data.

use striate_core::{SiteId, StripeId};
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
}

/// Returns the number of data splits of a block of `len` bytes, at `split_bytes` each, with `sites` memory sites.
pub fn data_splits(len: u64, split_bytes: u64, sites: usize) -> usize {
    match sites {
        0 | 1 => 1,
        _ => (len.div_ceil(split_bytes.max(1)) as usize).clamp(1, MOST_DATA_SPLITS),
    }
}

/// Returns the sites of a cached block's splits, in the order of the splits. If there are more splits than sites, they
/// wrap around. The first site is the block's *home*, which grants the right to fill the block.
pub fn places(name: StripeId, sites: &[MemorySite], splits: usize) -> Vec<SiteId> {
    let mut ranked: Vec<(f64, SiteId)> = sites.iter().map(|site| (score(name, site), site.site)).collect();
    let most = splits.min(ranked.len());
    let lower = |a: &(f64, SiteId), b: &(f64, SiteId)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
    if most > 0 && most < ranked.len() {
        ranked.select_nth_unstable_by(most - 1, lower);
        ranked.truncate(most);
    }
    ranked.sort_unstable_by(lower);
    ranked.iter().cycle().take(if ranked.is_empty() { 0 } else { splits }).map(|(_, site)| *site).collect()
}

/// Exponentially distributed with the site's memory as its rate, so each site comes first in proportion to its memory.
fn score(name: StripeId, site: &MemorySite) -> f64 {
    let mixed = hash((name.0 >> 64) as u64 ^ hash(name.0 as u64 ^ hash(u64::from(site.site.0))));
    // In (0, 1].
    let uniform = ((mixed >> 11) + 1) as f64 / (1u64 << 53) as f64;
    -uniform.ln() / site.bytes.max(1) as f64
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use striate_core::cached;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn sites(count: u32) -> Vec<MemorySite> {
        (1..=count).map(|number| MemorySite { site: SiteId(number), bytes: GIB }).collect()
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
            assert_eq!(few[..4].iter().collect::<BTreeSet<_>>().len(), 4);
            assert_eq!((&few[4..8], few.len()), (&few[..4], 11), "they go round");
        }
        assert_eq!(places(StripeId(1), &[], 3), []);
    }

    #[test]
    fn sites_have_splits_in_proportion_to_their_memory() {
        let mut sites = sites(10);
        sites[0].bytes = 2 * GIB;
        let mut homes = BTreeMap::<SiteId, usize>::new();
        names(11_000).for_each(|name| *homes.entry(places(name, &sites, 1)[0]).or_default() += 1);
        let share = |site| homes[&SiteId(site)] as f64 / 1_000.0;
        assert!((1.85..2.15).contains(&share(1)), "{}", share(1));
        assert!((2..=10).all(|site| (0.85..1.15).contains(&share(site))), "{homes:?}");
    }

    #[test]
    fn when_a_site_goes_only_its_own_splits_move() {
        let (all, fewer) = (sites(20), sites(19));
        for name in names(500) {
            let (before, after) = (places(name, &all, 5), places(name, &fewer, 5));
            let stayed: Vec<_> = before.iter().filter(|site| site.0 != 20).collect();
            assert_eq!(stayed, after.iter().take(stayed.len()).collect::<Vec<_>>());
        }
    }
}
