//! What is asked of a store: operations on numbered blocks, drawn from seeded distributions.
//!
//! - [`keys`]: which block: uniform, Zipf (in key order or scrambled), latest.
//! - [`ycsb`]: the six core workloads of YCSB, with E's scans as reads of many blocks.
//! - [`ec_store`]: the protocol of the EC-Store paper's evaluation.
//!
//! A workload knows nothing of time or of the store, so that the same one runs in the lab and against a server.

pub mod ec_store;
pub mod keys;
pub mod ycsb;

use rand::rngs::SmallRng;

pub use ec_store::EcStoreScans;
pub use keys::{KeyDistribution, Keys, Zipf};
pub use ycsb::{Ycsb, YcsbWorkload};

/// One operation of a client. Keys are numbers from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads `count` blocks from `first` on, all at once.
    Read {
        /// The first block.
        first: u64,
        /// How many, at least one.
        count: u64,
    },
    /// Replaces a block.
    Update(u64),
    /// Adds a block, under the next number.
    Insert(u64),
    /// Reads a block and then replaces it.
    ReadModifyWrite(u64),
}

/// A source of operations.
pub trait Workload: Send {
    /// The next operation.
    fn next(&mut self, rng: &mut SmallRng) -> Operation;
}
