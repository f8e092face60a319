//! Load reports: what a site says of itself on every reply.

use serde::{Deserialize, Serialize};

/// A site's load at the moment of a reply.
///
/// The queue's length feeds o_j, the per-request cost of a site in EC-Store Eq. 1; CPU, I/O and chunk count
/// feed ω_j, the site load of Eq. 7. A report is a hint: losing one does no harm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Counts reports of one site's run; a report with a lower number than one already seen is stale.
    pub sequence: u64,
    /// Requests waiting or being served.
    pub queue_requests: u32,
    /// Bytes that those requests ask for, and that were read and not yet fetched.
    pub queue_bytes: u64,
    /// Chunks that are served at the same time; what is asked beyond waits.
    pub workers: u32,
    /// Share of the site's processor time in use, in thousandths; of late, in the mean.
    pub cpu_permille: u16,
    /// Share of the workers' time that operations on the disk took, in thousandths; of late, in the mean.
    pub io_permille: u16,
    /// Chunks stored.
    pub chunks: u64,
    /// Bytes of chunks stored.
    pub used_bytes: u64,
    /// Bytes that can still be written before the reserve for deletes is reached.
    pub free_bytes: u64,
}
