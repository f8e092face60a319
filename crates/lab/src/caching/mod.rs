//! EC-Cache (OSDI'16) §6 as a model of flows: blocks in the memory of 25 servers, read by 30 clients.
//!
//! A read is one flow per requested split or, under selective replication, one flow for a whole copy. Flows share the
//! network cards of servers and clients max–min fairly, and none is faster than one stream. The store's own planner
//! ([`striate_plan::cache::parities`]) derives parities and copies from the blocks' popularity. Everything else is a
//! constant ([`Setting`]). The constants of network and delays were fitted to the paper's figures for selective
//! replication, so results for that scheme are not predictions; docs/src/ec-cache.md says which cells are.
//!
//! - [`network`]: flows and their rates.
//! - [`catalogue`]: blocks, their popularity, and the places of their splits or copies.
//! - [`simulation`]: clients and their reads.
//! - [`figures`]: the paper's figures.
//! - [`noise`]: other kinds of noise that fit selective replication as well.
//! - [`theorems`]: the paper's theorems, checked by random draws.
//!
//! Memory never fills up in the model: all blocks are cached, as in the paper.

pub mod catalogue;
pub mod figures;
pub mod network;
pub mod noise;
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
    /// Copies in proportion to popularity of blocks cut into k splits; a read fetches one copy of each split (§2.3).
    SplitReplication,
    /// EC-Cache as published: k + Δ random splits, of which the first k decode. Superfluous requests are not
    /// cancelled.
    EcCache {
        /// Δ.
        extra: usize,
    },
    /// The store's own scheme. It reads the k splits whose servers were asked for the least recently, data before
    /// parities. Once all but two have arrived and these are late, it asks for others. Superfluous requests are
    /// cancelled, and nothing is decoded if all data splits arrived.
    Ours,
}

/// What a random delay strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A read as a whole, before its flows begin.
    Request,
    /// Each flow on its own.
    Flow,
}

/// Phases in which a server's card is slow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowPhases {
    /// Seconds from the start of one to the start of the next.
    pub every_s: f64,
    /// Duration in seconds.
    pub for_s: f64,
    /// Share of the bandwidth that is left.
    pub share: f64,
}

impl SlowPhases {
    /// Background traffic (§6.3): half speed for 2 s in every 10.
    pub const BACKGROUND: Self = Self { every_s: 10.0, for_s: 2.0, share: 0.5 };
}

/// Parameters of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Number of servers with memory.
    pub servers: usize,
    /// Number of clients.
    pub clients: usize,
    /// Number of blocks.
    pub blocks: usize,
    /// Bytes per block.
    pub block_bytes: f64,
    /// Exponent of Zipf's law for reads of blocks.
    pub exponent: f64,
    /// k: data splits per block.
    pub splits: usize,
    /// Memory beyond one copy of each block, as a share of that copy.
    pub overhead: f64,
    /// Bandwidth of a server's network card, in bytes per second.
    pub server_card: f64,
    /// Bandwidth of a client's network card, in bytes per second.
    pub client_card: f64,
    /// Maximum rate of one stream, in bytes per second.
    pub stream: f64,
    /// Seconds to open a connection; each flow opens one.
    pub connection_s: f64,
    /// σ of the factor by which a flow's maximum rate differs; lognormal.
    pub rate_sigma: f64,
    /// Share of flows with a third of their maximum rate.
    pub slow_flows: f64,
    /// Median delay in seconds before flows begin, as at the client and at the metadata service; lognormal.
    pub delay_s: f64,
    /// σ of the delay.
    pub delay_sigma: f64,
    /// What is delayed.
    pub delayed: Part,
    /// Share of reads or flows that stall.
    pub stalls: f64,
    /// Duration of a stall, in seconds.
    pub stall_s: f64,
    /// What stalls.
    pub stalled: Part,
    /// Seconds to decode a block of 40 MB; other sizes in proportion.
    pub decode_s: f64,
    /// Mean pause of a client between reads, in seconds.
    pub think_s: f64,
    /// The pause is one between the starts of reads: a client starts the next one whether or not the last has ended.
    pub is_open: bool,
    /// Slow phases of servers, each at its own time.
    pub slow_phases: Option<SlowPhases>,
    /// If set, one server is gone, and a block that it had is read from elsewhere in this many seconds (§6.4).
    pub lost: Option<f64>,
}

impl Setting {
    /// §6.1: 25 servers, 30 clients, 40 MB, Zipf 0.9, k = 10, 15% of memory. The constants of network and delays are
    /// fitted.
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
        rate_sigma: 0.0,
        slow_flows: 0.0,
        delay_s: 0.005,
        delay_sigma: 1.3,
        delayed: Part::Request,
        stalls: 0.0015,
        stall_s: 0.7,
        stalled: Part::Flow,
        decode_s: PUBLISHED_DECODE_S,
        think_s: 0.3,
        is_open: false,
        slow_phases: None,
        lost: None,
    };

    /// Returns the bytes of a split.
    pub fn split_bytes(&self) -> f64 {
        self.block_bytes / self.splits as f64
    }

    /// Returns the seconds to decode one block.
    pub fn decode_of_block_s(&self) -> f64 {
        self.decode_s * self.block_bytes / (40.0 * MB)
    }
}

/// Seconds to decode 40 MB as published: 30% of a read (§6.2).
pub const PUBLISHED_DECODE_S: f64 = 0.027;
/// Approximate seconds of the store's own decoder for 40 MB, on one core.
pub const OWN_DECODE_S: f64 = 0.004;
