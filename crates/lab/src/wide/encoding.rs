//! Computing the parities of a stripe: on one node, or on several nodes of a rack that pass partial sums on (§4.2).
//!
//! Each of m nodes has k/m of the data chunks on its disk, encodes them into the global parities, adds the sums that
//! it receives, and sends the result to the next node. The last one, the destination, has the parities. A coder that
//! works on many sources at once is slower (§2.2, Fig. 1).

use super::cluster::{CODER, Setting};

/// Number of sources beyond which the paper's coder becomes slower (Fig. 1).
const CACHED: f64 = 16.0;
/// Number of sources at which a coder's rate has dropped by its full loss.
const WIDEST: f64 = 128.0;
/// Loss of the paper's coder at 128 sources, as a share of its rate: 43 to 70%, depending on the processor.
pub const PUBLISHED_LOSS: f64 = 0.565;
/// Loss of this project's coder at 128 sources (measured): 9.0 and 7.5 GB/s at 16 and 128 sources.
pub const OWN_LOSS: f64 = 0.17;

/// Parameters of an encoding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Encoding {
    /// Number of data chunks, k.
    pub data: usize,
    /// Number of global parities, f − 1.
    pub parities: usize,
    /// Number of nodes that encode together; 1 for single-node encoding.
    pub nodes: usize,
    /// Loss of a coder at 128 sources, as a share of its rate.
    pub loss: f64,
}

impl Encoding {
    /// Returns the coder's rate with this many sources, in bytes of data per second.
    fn coder(&self, sources: f64) -> f64 {
        let wide = (sources / CACHED).log2().clamp(0.0, (WIDEST / CACHED).log2());
        CODER * (1.0 - self.loss * wide / (WIDEST / CACHED).log2())
    }

    /// Returns the seconds for a stripe. With one slice, a node reads, encodes and sends whole chunks one after the
    /// other; with more slices, it does all of that at once.
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

    /// Returns the bytes of data encoded per second.
    pub fn rate(&self, setting: &Setting) -> f64 {
        self.data as f64 * setting.chunk / self.seconds(setting)
    }

    /// Returns true if several nodes are faster than one.
    pub fn pays(&self, setting: &Setting) -> bool {
        self.seconds(setting) < Self { nodes: 1, ..*self }.seconds(setting)
    }

    /// Returns the smallest number of data chunks at which several nodes are faster; `None` if there is none below
    /// 256.
    pub fn pays_from(&self, setting: &Setting) -> Option<usize> {
        (1..256).find(|&data| Self { data, ..*self }.pays(setting))
    }
}
