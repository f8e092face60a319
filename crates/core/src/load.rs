//! Load reports, which a site attaches to every reply.

use serde::{Deserialize, Serialize};

/// A site's load at the moment of a reply.
///
/// The queue's length feeds o_j, the per-request cost of a site in EC-Store Eq. 1. CPU, I/O and chunk count feed ω_j,
/// the site load of Eq. 7. A report is a hint: losing one does no harm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Number of this report within one run of the site; a report with a lower number than one already seen is stale.
    pub sequence: u64,
    /// Requests queued or being served.
    pub queue_requests: u32,
    /// Bytes that those requests ask for, plus bytes read and not yet fetched.
    pub queue_bytes: u64,
    /// Chunks served at the same time; further requests wait.
    pub workers: u32,
    /// Recent mean share of the site's processor time in use, in thousandths.
    pub cpu_permille: u16,
    /// Recent mean share of the workers' time spent in disk operations, in thousandths.
    pub io_permille: u16,
    /// Number of chunks stored.
    pub chunks: u64,
    /// Bytes of the chunks stored.
    pub used_bytes: u64,
    /// Bytes that can be written before the space reserved for deletes is reached.
    pub free_bytes: u64,
}
