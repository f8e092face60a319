//! How many parities cached blocks have, by their popularity (EC-Cache §4, §6.1, §7.3).
//!
//! Two budgets. The first one, ten percent of memory in the paper, gives a parity to every block, the most popular ones first: what
//! late binding reads. The second one, five percent, *flattens the popularity from the top*: the block whose splits bear most gets
//! one more, again and again. A block of k splits and r parities that is asked for p times spreads these over k + r splits.
//!
//! Selective replication, the paper's rival, does the same with whole copies ([`flatten`] with blocks of one split).
//!
//! Cost: O((B + P) log B) for B blocks and P parities that are given.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A cached block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PopularBlock {
    /// k.
    pub splits: usize,
    /// Bytes of each split.
    pub split_bytes: u64,
    /// How often it is asked for.
    pub popularity: f64,
}

/// How much memory parities may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParityBudget {
    /// Bytes for the first parity of each block.
    pub first_bytes: u64,
    /// Bytes for those that flatten the popularity.
    pub further_bytes: u64,
    /// Most parities of one block.
    pub most: usize,
}

impl ParityBudget {
    /// EC-Cache's: 10% and 5% of `memory` bytes.
    pub fn of_memory(memory: u64) -> Self {
        Self { first_bytes: memory / 10, further_bytes: memory / 20, most: 10 }
    }
}

/// How many parities each block should have, in the order of the blocks.
pub fn parities(blocks: &[PopularBlock], budget: ParityBudget) -> Vec<usize> {
    let mut given = vec![0; blocks.len()];
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by(|&a, &b| blocks[b].popularity.total_cmp(&blocks[a].popularity).then(a.cmp(&b)));
    let mut left = budget.first_bytes;
    for &block in order.iter().filter(|_| budget.most > 0) {
        let Some(rest) = left.checked_sub(blocks[block].split_bytes) else { break };
        (left, given[block]) = (rest, 1);
    }
    flatten(blocks, &mut given, budget.further_bytes, budget.most);
    given
}

/// Gives splits beyond those that blocks have, each to the block whose splits bear most, as far as `bytes` reach. A block for which
/// they do not reach any more, or that has `most`, gets none; others may.
pub fn flatten(blocks: &[PopularBlock], given: &mut [usize], bytes: u64, most: usize) {
    let load = |block: usize, given: usize| blocks[block].popularity / (blocks[block].splits + given) as f64;
    let loaded = |(block, &given): (usize, &usize)| Loaded { load: load(block, given), block };
    let mut heap: BinaryHeap<Loaded> = given.iter().enumerate().map(loaded).collect();
    let mut left = bytes;
    while let Some(Loaded { load: bears, block }) = heap.pop() {
        if bears <= 0.0 {
            break;
        }
        let Some(rest) = left.checked_sub(blocks[block].split_bytes) else { continue };
        if given[block] >= most {
            continue;
        }
        (left, given[block]) = (rest, given[block] + 1);
        heap.push(Loaded { load: load(block, given[block]), block });
    }
}

/// What each split of a block bears.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Loaded {
    load: f64,
    block: usize,
}

impl Eq for Loaded {}

impl Ord for Loaded {
    fn cmp(&self, other: &Self) -> Ordering {
        self.load.total_cmp(&other.load).then(other.block.cmp(&self.block))
    }
}

impl PartialOrd for Loaded {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(popularity: &[f64]) -> Vec<PopularBlock> {
        let block = |&popularity| PopularBlock { splits: 10, split_bytes: 4, popularity };
        popularity.iter().map(block).collect()
    }

    #[test]
    fn every_block_has_one_and_the_most_popular_ones_have_more() {
        // As the paper counts: 100 blocks of 40 bytes, 15% of their memory.
        let zipf: Vec<f64> = (1..=100).map(|rank| 1.0 / f64::from(rank).powf(0.9)).collect();
        let given =
            parities(&blocks(&zipf), ParityBudget { first_bytes: 400, further_bytes: 200, most: 100 });
        assert_eq!(given.iter().sum::<usize>(), 150);
        assert!(given.iter().all(|given| *given >= 1));
        assert!(given.is_sorted_by(|a, b| a >= b), "{given:?}");
        let loads = zipf.iter().zip(&given).map(|(popularity, given)| popularity / (10 + given) as f64);
        let highest = loads.clone().fold(0.0, f64::max);
        // The most loaded ones are level: one split less would bear more than the highest does now.
        for ((popularity, given), load) in zipf.iter().zip(&given).zip(loads) {
            assert!(*given == 1 || popularity / (9 + given) as f64 >= highest, "{load} of {highest}");
        }
    }

    #[test]
    fn the_first_parity_goes_to_the_most_popular_ones_where_memory_is_short() {
        let given = parities(
            &blocks(&[1.0, 5.0, 3.0, 0.0]),
            ParityBudget { first_bytes: 8, further_bytes: 0, most: 9 },
        );
        assert_eq!(given, [0, 1, 1, 0]);
    }

    #[test]
    fn what_nobody_asks_for_is_not_flattened_and_nothing_has_more_than_the_most() {
        let given =
            parities(&blocks(&[0.0, 8.0]), ParityBudget { first_bytes: 0, further_bytes: 1_000, most: 3 });
        assert_eq!(given, [0, 3]);
        assert_eq!(parities(&[], ParityBudget::of_memory(1_000)), [0usize; 0]);
    }

    #[test]
    fn selective_replication_gives_copies_in_proportion_to_popularity() {
        let whole = |popularity| PopularBlock { splits: 1, split_bytes: 40, popularity };
        let mut copies = vec![0; 4];
        flatten(&[whole(40.0), whole(20.0), whole(10.0), whole(10.0)], &mut copies, 160, usize::MAX);
        assert_eq!(copies, [3, 1, 0, 0]);
    }
}
