//! Limits and timeouts of the stripe service.

use std::time::Duration;

use striate_core::FormatsInForce;
use striate_plan::{CoAccessLimits, DurabilityRule, ReadPolicy, is_durable};

/// Limits and defaults of reads and writes of stripes.
#[derive(Clone, Debug)]
pub struct StripeOptions {
    /// Maximum bytes of bodies in memory, over all requests. Requests beyond it wait.
    pub in_flight_bytes: usize,
    /// Timeout for a request that waits for its part of `in_flight_bytes`.
    pub memory_wait: Duration,
    /// Number of further losses a stripe must survive before a write that left chunks out is acknowledged.
    pub write_surplus: usize,
    /// Decides whether a stripe survives them: [`is_durable`], except where the laboratory plants a defect.
    pub durability_rule: DurabilityRule,
    /// Timeout for a site's reply to a write. A site that misses it is left out and its chunk becomes debt.
    pub write_deadline: Duration,
    /// Timeout after which a read asks for other chunks. When most reads are slow, it is twice the time that
    /// three of four reads take. For a read of many blocks, it is the time without a reply from any site.
    pub hedge_after: Duration,
    /// Timeout for a site's reply to a read. A site that misses it counts as failed for that read.
    pub read_deadline: Duration,
    /// Policy that chooses the chunks that a read of many blocks asks for.
    pub read_policy: ReadPolicy,
    /// Probe interval that replaces the policy's own, for experiments on another scale of time.
    pub probe_interval: Option<Duration>,
    /// Maximum number of stripe records kept in memory to save look-ups, about 1 KiB each. 0: none.
    pub known_stripes: usize,
    /// Fraction of read requests, from 0 to 1, that are sampled for the statistics of co-accessed blocks; see
    /// [`crate::Sampler`]. A sample costs some 0.3 µs per block.
    pub sampling: f64,
    /// Limits of the co-access statistics.
    pub co_access: CoAccessLimits,
    /// How long chunks stay on disk, and the splits of volatile buckets in memory, after no metadata names them. It
    /// must exceed the longest read of one block.
    pub garbage_grace: Duration,
    /// How long this process relies on the rows of a set of sites after writing them. The rows are removed when
    /// no process has written them for several times as long and no stripe is on these sites.
    pub placement_known_for: Duration,
    /// Formats in force, which limit what may be written. The opener of the service keeps them up to date.
    pub formats: FormatsInForce,
}

impl Default for StripeOptions {
    /// Returns 64 MiB of bodies in memory, 5 s to wait for a share of them, a surplus of one loss, 10 s for a
    /// write or read of one site, hedging after 250 ms, one read request in eight sampled, a minute of garbage
    /// grace, 16,384 stripe records, ten minutes for sets of sites, and the oldest formats.
    fn default() -> Self {
        Self {
            in_flight_bytes: 64 << 20,
            memory_wait: Duration::from_secs(5),
            write_surplus: 1,
            durability_rule: is_durable,
            write_deadline: Duration::from_secs(10),
            hedge_after: Duration::from_millis(250),
            read_deadline: Duration::from_secs(10),
            read_policy: ReadPolicy::default(),
            probe_interval: None,
            known_stripes: 16 << 10,
            sampling: 0.125,
            co_access: CoAccessLimits::default(),
            garbage_grace: Duration::from_secs(60),
            placement_known_for: Duration::from_secs(600),
            formats: FormatsInForce::default(),
        }
    }
}
