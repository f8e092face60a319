//! Making the parities of a stripe: on one node, or on several of a rack that pass partial sums on (§4.2).
//!
//! Each of m nodes has k/m of the data chunks on its disk, encodes them into the global parities, adds what it is sent, and sends
//! the sums to the next; the last one, the destination, has the parities. A coder that works on many sources at once is slower
//! (§2.2, Fig. 1).

use super::cluster::{CODER, Setting};

/// Sources from which on the paper's coder becomes slower (Fig. 1),
const CACHED: f64 = 16.0;
/// and at how many it has lost a share of its rate,
const WIDEST: f64 = 128.0;
/// which is this much: 43 to 70%, as the processor is.
pub const PUBLISHED_LOSS: f64 = 0.565;
/// The same of this project's coder (measured): 9.0 and 7.5 GB/s at 16 and 128 sources.
pub const OWN_LOSS: f64 = 0.17;

/// Who encodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Encoding {
    /// Data chunks, k.
    pub data: usize,
    /// Global parities, f − 1.
    pub parities: usize,
    /// Nodes that encode together; one is single-node encoding.
    pub nodes: usize,
    /// What a coder loses with 128 sources, as a share.
    pub loss: f64,
}

impl Encoding {
    /// The coder's rate with so many sources, bytes of data a second.
    fn coder(&self, sources: f64) -> f64 {
        let wide = (sources / CACHED).log2().clamp(0.0, (WIDEST / CACHED).log2());
        CODER * (1.0 - self.loss * wide / (WIDEST / CACHED).log2())
    }

    /// Seconds for a stripe. With one slice a node reads, encodes and sends whole chunks one after the other; with more it does all
    /// of that at once.
    pub fn seconds(&self, setting: &Setting) -> f64 {
        let own = self.data.div_ceil(self.nodes) as f64;
        let read = own * setting.chunk / setting.disk;
        let encode = own * setting.chunk / self.coder(own);
        let hop = self.parities as f64 * setting.chunk / setting.card;
        let hops = (self.nodes - 1) as f64;
        if setting.slices <= 1 {
            return read + encode + hops * hop;
        }
        let slowest = read.max(encode).max(if self.nodes > 1 { hop } else { 0.0 });
        slowest + hops * hop.max(read / own) / setting.slices as f64
    }

    /// Bytes of data encoded a second.
    pub fn rate(&self, setting: &Setting) -> f64 {
        self.data as f64 * setting.chunk / self.seconds(setting)
    }

    /// Whether several nodes are faster than one.
    pub fn pays(&self, setting: &Setting) -> bool {
        self.seconds(setting) < Self { nodes: 1, ..*self }.seconds(setting)
    }

    /// The fewest data chunks from which on it pays; `None` below 256.
    pub fn pays_from(&self, setting: &Setting) -> Option<usize> {
        (1..256).find(|&data| Self { data, ..*self }.pays(setting))
    }
}
