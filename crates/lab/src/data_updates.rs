//! Updates of wide stripes' data chunks (ECWide, FAST'21, §4.3): how the parities follow, which chunks are updated, and in which rack of
//! a group the most are.
//!
//! [`crate::wide::updates`] is the model, [`crate::rack_update`] real processes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use rand::rngs::SmallRng;
use striate_workload::keys::{KeyDistribution, Keys};

/// How parities follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Parities are read and written back, instead of sent the difference.
    pub reads_parities: bool,
    /// One global parity passes the difference on to the others, in their rack.
    pub inner_global: bool,
    /// Local parities are in the racks of their groups that are updated most.
    pub inner_local: bool,
}

impl Way {
    /// The difference for each parity: what the paper compares with.
    pub const DELTAS: Self = Self { reads_parities: false, inner_global: false, inner_local: false };
}

/// A data chunk of a stripe. Both are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DataChunk {
    /// Its stripe.
    pub stripe: usize,
    /// Its place there.
    pub chunk: usize,
}

/// Draws data chunks of some stripes by Zipf's law.
#[derive(Clone, Copy, Debug)]
pub struct DataChunks {
    keys: Keys,
    k: usize,
}

impl DataChunks {
    /// Of stripes of k data chunks.
    pub fn new(stripes: usize, k: usize) -> Self {
        let keys = KeyDistribution::ScrambledZipf { exponent: 0.99 };
        Self { keys: Keys::new(keys, (stripes * k) as u64), k }
    }

    /// The next one.
    pub fn draw(&self, rng: &mut SmallRng) -> DataChunk {
        let key = self.keys.draw(rng) as usize;
        DataChunk { stripe: key / self.k, chunk: key % self.k }
    }
}

/// How often chunks were updated.
pub fn count(updates: impl Iterator<Item = DataChunk>) -> HashMap<DataChunk, usize> {
    let mut counts = HashMap::new();
    updates.for_each(|of| *counts.entry(of).or_default() += 1);
    counts
}

/// The rack in which the chunks of a group were updated most; the last of several.
///
/// # Panics
/// If the group has no chunks.
pub fn hottest_rack(
    group: Range<usize>,
    updates: impl Fn(usize) -> usize,
    rack_of: impl Fn(usize) -> usize,
) -> usize {
    let mut racks: BTreeMap<usize, usize> = BTreeMap::new();
    group.for_each(|chunk| *racks.entry(rack_of(chunk)).or_default() += updates(chunk));
    let hottest = racks.into_iter().max_by_key(|&(_, updates)| updates);
    hottest.expect("a group has data").0
}
