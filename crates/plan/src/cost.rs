//! What reading from a site costs in EC-Store's Eq. 1: o_j once for asking it, and m_j z_i for each chunk.

/// The costs of one site. Asking an idle site costs 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SiteCost {
    /// o_j: of asking it, whatever is asked. Finite and not negative.
    pub asking: f64,
    /// m_j: of each byte that is asked for. Finite and not negative.
    pub per_byte: f64,
    /// Of each byte that a data chunk is computed from where a parity comes in its place. Finite and not negative.
    pub decode_per_byte: f64,
}

/// What waits at a site.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SiteQueue {
    /// Requests that wait for each of its workers.
    pub waiting: f64,
    /// Bytes that it is to read or send before a request that comes now.
    pub bytes: f64,
}

/// m_j where nothing is known: EC-Store measured that a chunk of 50 KB costs a fifth of asking (§V-B3).
pub const USUAL_PER_BYTE: f64 = 0.2 / 50_000.0;

impl SiteCost {
    /// A site of which only o_j is known.
    pub fn of_asking(asking: f64) -> Self {
        Self { asking, per_byte: USUAL_PER_BYTE, decode_per_byte: 0.0 }
    }

    /// m_j z_i: of a chunk of `len` bytes.
    pub fn transfer(&self, len: u32) -> f64 {
        self.per_byte * f64::from(len)
    }
}
