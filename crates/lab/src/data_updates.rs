//! Updates of wide stripes' data chunks (ECWide, FAST'21, §4.3): how the parities follow, which chunks are updated,
//! and which rack of a group receives the most updates.
//!
//! [`crate::wide::updates`] is the model, [`crate::rack_update`] real processes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use rand::rngs::SmallRng;
use striate_workload::keys::{KeyDistribution, Keys};

/// How parities follow an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateMethod {
    /// Parities are read and written back, instead of being sent the difference.
    pub reads_parities: bool,
    /// One global parity forwards the difference to the others in its rack.
    pub inner_global: bool,
    /// Local parities are in the racks of their groups that are updated most.
    pub inner_local: bool,
}

impl UpdateMethod {
    /// Sends the difference to each parity: the paper's baseline.
    pub const DELTAS: Self = Self { reads_parities: false, inner_global: false, inner_local: false };
}

/// A data chunk of a stripe; both indices start at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DataChunk {
    /// Index of the stripe.
    pub stripe: usize,
    /// Index of the chunk in the stripe.
    pub chunk: usize,
}

/// Draws data chunks of some stripes by Zipf's law.
#[derive(Clone, Copy, Debug)]
pub struct DataChunks {
    keys: Keys,
    k: usize,
}

impl DataChunks {
    /// Creates a source for stripes of k data chunks.
    pub fn new(stripes: usize, k: usize) -> Self {
        let keys = KeyDistribution::ScrambledZipf { exponent: 0.99 };
        Self { keys: Keys::new(keys, (stripes * k) as u64), k }
    }

    /// Draws the next data chunk.
    pub fn draw(&self, rng: &mut SmallRng) -> DataChunk {
        let key = self.keys.draw(rng) as usize;
        DataChunk { stripe: key / self.k, chunk: key % self.k }
    }
}

/// Counts the updates of each chunk.
pub fn count(updates: impl Iterator<Item = DataChunk>) -> HashMap<DataChunk, usize> {
    let mut counts = HashMap::new();
    updates.for_each(|data| *counts.entry(data).or_default() += 1);
    counts
}

/// Returns the rack in which a group's chunks were updated most; the last one on ties.
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
