//! Hot copies: the places of extra whole copies of the hottest partitions, within a budget of bytes.
//!
//! A partition's heat is the bytes that other, earlier requests of the same load asked of it. Copy by copy, the
//! budget goes to the partition with the most heat per existing place, so that a very hot partition gets several.
//! Each copy goes to the coolest node that has nothing of the partition's group.

use std::collections::BTreeMap;

use striate_codec::Code;
use striate_core::SiteId;

use super::requests::Request;
use super::{NODES, PARTITIONS};

/// The budget for copies of 1% of the partitions.
pub const ONE_PERCENT: usize = PARTITIONS / 100;

/// Nodes that have extra copies of partitions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HotCopies {
    sites_of: BTreeMap<usize, Vec<SiteId>>,
}

impl HotCopies {
    /// Places `budget` copies of the partitions that `before` asks for most. `placed` are the sites of each group of
    /// k partitions.
    pub fn place(code: &Code, placed: &[Vec<SiteId>], before: &[Request], budget: usize) -> Self {
        let mut heat = vec![0.0; PARTITIONS];
        before.iter().for_each(|request| heat[request.partition] += f64::from(request.bytes));
        let mut of_nodes = vec![0.0; NODES];
        let own_site = |partition: usize| placed[partition / code.k()][partition % code.k()];
        (0..PARTITIONS).for_each(|partition| of_nodes[node(own_site(partition))] += heat[partition]);
        let mut copies = Self::default();
        for _ in 0..budget {
            let share = |partition: &usize| heat[*partition] / copies.places(*partition);
            let Some(hottest) = (0..PARTITIONS).max_by(|a, b| share(a).total_cmp(&share(b))) else { break };
            let group = &placed[hottest / code.k()];
            let has = |site: &SiteId| group.contains(site) || copies.sites(hottest).contains(site);
            let free = (1..=NODES as u32).map(SiteId).filter(|site| !has(site));
            let Some(coolest) = free.min_by(|a, b| of_nodes[node(*a)].total_cmp(&of_nodes[node(*b)])) else {
                break;
            };
            // One more place now shares its heat.
            let places = copies.places(hottest);
            let (before, after) = (heat[hottest] / places, heat[hottest] / (places + 1.0));
            for site in std::iter::once(own_site(hottest)).chain(copies.sites(hottest).to_vec()) {
                of_nodes[node(site)] += after - before;
            }
            of_nodes[node(coolest)] += after;
            copies.sites_of.entry(hottest).or_default().push(coolest);
        }
        copies
    }

    /// Returns the sites of a partition's extra copies.
    pub fn sites(&self, partition: usize) -> &[SiteId] {
        self.sites_of.get(&partition).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of sites from which it can be read whole.
    fn places(&self, partition: usize) -> f64 {
        1.0 + self.sites(partition).len() as f64
    }
}

fn node(site: SiteId) -> usize {
    site.0 as usize - 1
}

#[cfg(test)]
mod tests {
    use super::super::placement::place;
    use super::super::{FITS, Table, requests};
    use super::*;

    #[test]
    fn the_hottest_partitions_have_copies_on_cool_nodes_outside_their_groups() {
        let (code, placed) = (Table::One.code(), place(&Table::One.code(), 1));
        let before = requests::draw(&FITS[2], Table::One, 100.0, 1);
        let copies = HotCopies::place(&code, &placed, &before, ONE_PERCENT);
        assert_eq!(copies.sites_of.values().map(Vec::len).sum::<usize>(), 20);
        let mut heat = vec![0.0; PARTITIONS];
        before.iter().for_each(|request| heat[request.partition] += f64::from(request.bytes));
        let hottest = (0..PARTITIONS).max_by(|a, b| heat[*a].total_cmp(&heat[*b])).unwrap();
        let most = copies.sites_of.values().map(Vec::len).max().unwrap();
        assert_eq!(copies.sites(hottest).len(), most);
        for (partition, sites) in &copies.sites_of {
            let distinct: std::collections::BTreeSet<_> = sites.iter().collect();
            assert_eq!(distinct.len(), sites.len());
            assert!(sites.iter().all(|site| !placed[partition / code.k()].contains(site)));
        }
    }
}
