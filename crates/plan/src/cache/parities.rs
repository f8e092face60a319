//! How many parities cached blocks have, by popularity (EC-Cache §4, §6.1, §7.3).
//!
//! There are two budgets. The first, ten percent of memory in the paper, gives one parity to every block, the most
//! popular blocks first; late binding reads it. The second, five percent, *flattens the popularity from the top*: it
//! repeatedly gives one more parity to the block whose splits carry the highest load. The load of a block that is read
//! p times spreads over its k + r splits.
//!
//! Selective replication, the paper's competitor, does the same with whole copies ([`flatten`] on blocks of one split).
//!
//! Cost: O((B + P) log B) for B blocks and P parities.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A cached block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PopularBlock {
    /// k, the number of data splits.
    pub splits: usize,
    /// Bytes of each split.
    pub split_bytes: u64,
    /// Reads of the block.
    pub popularity: f64,
}

/// Memory available to parities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParityBudget {
    /// Bytes for the first parity of each block.
    pub first_bytes: u64,
    /// Bytes for the parities that flatten the popularity.
    pub further_bytes: u64,
    /// Maximum number of parities of one block.
    pub most: usize,
}

impl ParityBudget {
    /// EC-Cache's budget: 10% and 5% of `memory` bytes.
    pub fn of_memory(memory: u64) -> Self {
        Self { first_bytes: memory / 10, further_bytes: memory / 20, most: 10 }
    }
}

/// Returns the number of parities that each block should have, in the order of `blocks`.
pub fn parities(blocks: &[PopularBlock], budget: ParityBudget) -> Vec<usize> {
    let mut counts = vec![0; blocks.len()];
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by(|&a, &b| blocks[b].popularity.total_cmp(&blocks[a].popularity).then(a.cmp(&b)));
    let mut remaining_bytes = budget.first_bytes;
    for &block in order.iter().filter(|_| budget.most > 0) {
        let Some(rest) = remaining_bytes.checked_sub(blocks[block].split_bytes) else { break };
        (remaining_bytes, counts[block]) = (rest, 1);
    }
    flatten(blocks, &mut counts, budget.further_bytes, budget.most);
    counts
}

/// Spends up to `bytes` on further splits, each for the block whose splits carry the highest load. A block that no
/// longer fits the budget, or that has `most` splits in `given`, gets none; the other blocks continue.
pub fn flatten(blocks: &[PopularBlock], given: &mut [usize], bytes: u64, most: usize) {
    let load = |block: usize, given: usize| blocks[block].popularity / (blocks[block].splits + given) as f64;
    let loaded = |(block, &given): (usize, &usize)| SplitLoad { load: load(block, given), block };
    let mut heap: BinaryHeap<SplitLoad> = given.iter().enumerate().map(loaded).collect();
    let mut remaining_bytes = bytes;
    while let Some(SplitLoad { load: highest_load, block }) = heap.pop() {
        if highest_load <= 0.0 {
            break;
        }
        let Some(rest) = remaining_bytes.checked_sub(blocks[block].split_bytes) else { continue };
        if given[block] >= most {
            continue;
        }
        (remaining_bytes, given[block]) = (rest, given[block] + 1);
        heap.push(SplitLoad { load: load(block, given[block]), block });
    }
}

/// Load of each split of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SplitLoad {
    load: f64,
    block: usize,
}

impl Eq for SplitLoad {}

impl Ord for SplitLoad {
    fn cmp(&self, other: &Self) -> Ordering {
        self.load.total_cmp(&other.load).then(other.block.cmp(&self.block))
    }
}

impl PartialOrd for SplitLoad {
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
        // The paper's example: 100 blocks of 40 bytes, 15% of their memory.
        let zipf: Vec<f64> = (1..=100).map(|rank| 1.0 / f64::from(rank).powf(0.9)).collect();
        let given =
            parities(&blocks(&zipf), ParityBudget { first_bytes: 400, further_bytes: 200, most: 100 });
        assert_eq!(given.iter().sum::<usize>(), 150);
        assert!(given.iter().all(|given| *given >= 1));
        assert!(given.is_sorted_by(|a, b| a >= b), "{given:?}");
        let loads = zipf.iter().zip(&given).map(|(popularity, given)| popularity / (10 + given) as f64);
        let highest = loads.clone().fold(0.0, f64::max);
        // The most loaded blocks are level: with one split less, a block would carry more than the current maximum.
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
