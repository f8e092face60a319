//! Places of the chunks of partitions.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use striate_codec::Code;
use striate_core::SiteId;
use striate_splitmix::hash;

use super::{NODES, PARTITIONS};

/// Returns the sites of each group of k of the paper's partitions.
pub fn place(code: &Code, seed: u64) -> Vec<Vec<SiteId>> {
    place_on(code, NODES, PARTITIONS, seed)
}

/// Returns the sites of each group of k partitions: random, with about equally many chunks on every node (§3).
pub fn place_on(code: &Code, nodes: usize, partitions: usize, seed: u64) -> Vec<Vec<SiteId>> {
    let mut rng = SmallRng::seed_from_u64(hash(seed ^ 0x91ace));
    let mut counts = vec![0u32; nodes];
    let group = |_| {
        let mut order: Vec<(u32, u64, usize)> =
            counts.iter().enumerate().map(|(node, &count)| (count, rng.random(), node)).collect();
        order.sort_unstable();
        order.truncate(code.n());
        // Shuffle the chosen nodes, so that it is also random which of them get data.
        order.sort_unstable_by_key(|(_, draw, _)| *draw);
        order.iter().for_each(|(.., node)| counts[*node] += 1);
        order.into_iter().map(|(.., node)| SiteId(node as u32 + 1)).collect()
    };
    (0..partitions.div_ceil(code.k())).map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Table;
    use super::*;

    #[test]
    fn every_node_has_as_many_chunks_on_distinct_nodes() {
        for table in [Table::One, Table::Two] {
            let (code, mut counts) = (table.code(), vec![0; NODES]);
            let placed = place(&code, 4);
            assert_eq!(placed.len(), 334);
            for sites in &placed {
                let distinct: std::collections::BTreeSet<_> = sites.iter().collect();
                assert_eq!((sites.len(), distinct.len()), (code.n(), code.n()));
                sites.iter().for_each(|site| counts[site.0 as usize - 1] += 1);
            }
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
        }
    }
}
