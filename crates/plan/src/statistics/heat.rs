//! Which partitions are read most: a summary of the stream of reads in bounded memory.
//!
//! Space-Saving (Metwally, Agrawal and El Abbadi, ICDT 2005): m counters for the most frequent of any number of items.
//! An item without a counter takes over the smallest counter, with its count as the error. So after N reads a count is
//! too high by at most N/m, and every item read more than N/m times has a counter. Counts are halved periodically, so
//! that partitions cool down.

use std::collections::{BTreeSet, HashMap};

use striate_core::StripeId;

/// A partition: a data chunk of a packed stripe.
pub type Partition = (StripeId, u8);

/// Reads of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionReads {
    /// The partition.
    pub partition: Partition,
    /// Upper bound of its reads, halved as it ages.
    pub count: u64,
}

/// Counts the most read partitions.
#[derive(Clone, Debug)]
pub struct PartitionHeat {
    most: usize,
    counts: HashMap<Partition, u64>,
    /// The counts, ascending.
    order: BTreeSet<(u64, Partition)>,
}

impl PartitionHeat {
    /// Creates a summary of this many counters, at least one.
    pub fn new(most: usize) -> Self {
        Self { most: most.max(1), counts: HashMap::new(), order: BTreeSet::new() }
    }

    /// Adds `times` reads of a partition.
    pub fn add(&mut self, partition: Partition, times: u64) {
        let before = match self.counts.get(&partition) {
            Some(&count) => {
                self.order.remove(&(count, partition));
                count
            }
            None if self.counts.len() < self.most => 0,
            None => {
                let Some((least, other)) = self.order.pop_first() else { return };
                self.counts.remove(&other);
                least
            }
        };
        let count = before.saturating_add(times);
        self.counts.insert(partition, count);
        self.order.insert((count, partition));
    }

    /// Halves every count, and drops those that reach 0.
    pub fn halve(&mut self) {
        self.counts.retain(|_, count| {
            *count /= 2;
            *count > 0
        });
        self.order = self.counts.iter().map(|(&partition, &count)| (count, partition)).collect();
    }

    /// Returns the counted partitions, hottest first; ties in the reverse order of their names.
    pub fn hottest(&self) -> impl Iterator<Item = PartitionReads> + '_ {
        self.order.iter().rev().map(|&(count, partition)| PartitionReads { partition, count })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn partition(number: u64) -> Partition {
        (StripeId::new(1, number / 4), (number % 4) as u8)
    }

    #[test]
    fn the_hottest_come_first_and_cool() {
        let mut heat = PartitionHeat::new(10);
        for (number, times) in [(1, 3), (2, 9), (3, 1)] {
            heat.add(partition(number), times);
        }
        let hottest: Vec<_> = heat.hottest().map(|reads| (reads.partition, reads.count)).collect();
        assert_eq!(hottest, [(partition(2), 9), (partition(1), 3), (partition(3), 1)]);
        heat.halve();
        let hottest: Vec<_> = heat.hottest().map(|reads| reads.count).collect();
        assert_eq!(hottest, [4, 1], "what was read once is forgotten");
    }

    proptest! {
        /// The bounds of the paper: no count is too low, none is too high by more than N/m, and no frequent partition
        /// is missing.
        #[test]
        fn counts_are_within_the_bounds(reads in proptest::collection::vec(0u64..40, 0..400), most in 1usize..20) {
            let mut heat = PartitionHeat::new(most);
            let mut exact = HashMap::new();
            for &number in &reads {
                heat.add(partition(number), 1);
                *exact.entry(partition(number)).or_insert(0u64) += 1;
            }
            let error = reads.len() as u64 / most as u64;
            let counted: HashMap<_, _> = heat.hottest().map(|reads| (reads.partition, reads.count)).collect();
            prop_assert!(counted.len() <= most);
            for (&partition, &count) in &counted {
                let true_count = exact[&partition];
                prop_assert!(true_count <= count && count <= true_count + error);
            }
            for (partition, count) in exact {
                prop_assert!(count <= error || counted.contains_key(&partition));
            }
        }
    }
}
