//! EC-Cache (OSDI'16) §6 as a model of flows: blocks in the memory of 25 servers, read by 30 clients.
//!
//! A read is one flow for each split that is asked for, or one for a whole copy under selective replication. Flows share the network
//! cards of servers and clients max–min fairly, and none is faster than one stream. The popularity of blocks decides their parities
//! and copies by the store's own planner ([`striate_plan::cache::parities`]). Everything else is a constant ([`Setting`]): those of the
//! network and of delays were fitted on the paper's figures for selective replication, so that what comes out for it is no
//! prediction; docs/src/ec-cache.md says which cells are.
//!
//! - [`network`]: flows and their rates.
//! - [`catalogue`]: blocks, their popularity, and where their splits or copies are.
//! - [`simulation`]: clients and their reads.
//! - [`figures`]: the paper's figures.
//! - [`theorems`]: what the paper proves, drawn at random.
//!
//! There is no memory in it that fills: all blocks are cached, as in the paper.

pub mod catalogue;
pub mod figures;
pub mod network;
pub mod simulation;
pub mod theorems;

#[cfg(test)]
mod tests;

/// Bytes of a megabyte, as the paper counts.
pub const MB: f64 = 1e6;

/// How blocks are kept and read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scheme {
    /// Whole copies in proportion to popularity; a random one is read.
    SelectiveReplication,
    /// The same of blocks that are cut into k splits: one copy of each is read (§2.3).
    SplitReplication,
    /// EC-Cache as published: k + Δ random splits, the first k decode; what is not needed is not taken back.
    EcCache {
        /// Δ.
        extra: usize,
    },
    /// The store's own way: the k splits of which servers were asked for least of late, data before parities; others once all but two
    /// have come and these are late; what is not needed is taken back; nothing is decoded where all data splits came.
    Ours,
}

/// What is modelled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Servers with memory.
    pub servers: usize,
    /// Clients, each with one read at a time.
    pub clients: usize,
    /// Blocks.
    pub blocks: usize,
    /// Bytes of each.
    pub block_bytes: f64,
    /// The exponent of Zipf's law by which they are read.
    pub exponent: f64,
    /// k.
    pub splits: usize,
    /// Memory beyond one copy of each block, as a share.
    pub overhead: f64,
    /// Bytes a second of a server's network card,
    pub server_card: f64,
    /// of a client's,
    pub client_card: f64,
    /// and of one stream.
    pub stream: f64,
    /// Seconds to open a connection, of which each flow has one.
    pub connection_s: f64,
    /// The median of the time before a read's flows begin: at the client and at whoever knows where splits are. Lognormal.
    pub delay_s: f64,
    /// Its σ.
    pub delay_sigma: f64,
    /// The share of flows that stall,
    pub stalls: f64,
    /// and for how long, in seconds.
    pub stall_s: f64,
    /// Seconds to decode a block of 40 MB; others in proportion.
    pub decode_s: f64,
    /// Seconds that a client pauses between reads, in the mean.
    pub think_s: f64,
    /// Servers' cards are at half speed for 2 s in every 10, each at its own time (§6.3).
    pub has_background: bool,
    /// One server is gone, and a block that it had is read elsewhere in so many seconds (§6.4).
    pub lost: Option<f64>,
}

impl Setting {
    /// §6.1: 25 servers, 30 clients, 40 MB, Zipf 0.9, k = 10, 15% of memory. The constants of network and delays are fitted.
    pub const PAPER: Self = Self {
        servers: 25,
        clients: 30,
        blocks: 1_000,
        block_bytes: 40.0 * MB,
        exponent: 0.9,
        splits: 10,
        overhead: 0.15,
        server_card: 600.0 * MB,
        client_card: 700.0 * MB,
        stream: 174.8 * MB,
        connection_s: 0.003,
        delay_s: 0.005,
        delay_sigma: 1.3,
        stalls: 0.0015,
        stall_s: 0.7,
        decode_s: PUBLISHED_DECODE_S,
        think_s: 0.3,
        has_background: false,
        lost: None,
    };

    /// Bytes of a split.
    pub fn split_bytes(&self) -> f64 {
        self.block_bytes / self.splits as f64
    }

    /// Seconds to decode one block.
    pub fn decode_of_block_s(&self) -> f64 {
        self.decode_s * self.block_bytes / (40.0 * MB)
    }
}

/// Decoding 40 MB took 30% of a read (§6.2).
pub const PUBLISHED_DECODE_S: f64 = 0.027;
/// The store's own decoder takes about that, on one core.
pub const OWN_DECODE_S: f64 = 0.004;
