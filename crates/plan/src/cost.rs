//! The cost of reading from a site in EC-Store's Eq. 1: o_j once per request, and m_j z_i for each chunk.

/// The costs of one site. A request to an idle site costs 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SiteCost {
    /// o_j: cost of a request, whatever it asks for. Finite and not negative.
    pub asking: f64,
    /// m_j: cost of each byte requested. Finite and not negative.
    pub per_byte: f64,
    /// Cost of each byte that a data chunk is decoded from when a parity replaces it. Finite and not negative.
    pub decode_per_byte: f64,
}

/// The queue of a site.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SiteQueue {
    /// Waiting requests per worker.
    pub waiting: f64,
    /// Bytes that the site reads or sends before it serves a request that arrives now.
    pub bytes: f64,
}

/// m_j where it is unknown: in EC-Store's measurements a chunk of 50 KB costs a fifth of a request (§V-B3).
pub const USUAL_PER_BYTE: f64 = 0.2 / 50_000.0;

impl SiteCost {
    /// Creates the cost of a site of which only o_j is known.
    pub fn of_asking(asking: f64) -> Self {
        Self { asking, per_byte: USUAL_PER_BYTE, decode_per_byte: 0.0 }
    }

    /// Returns m_j z_i, the cost of a chunk of `len` bytes.
    pub fn transfer(&self, len: u32) -> f64 {
        self.per_byte * f64::from(len)
    }
}
