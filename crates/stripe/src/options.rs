//! Limits and times of the stripe service.

use std::time::Duration;

use striate_core::InForce;
use striate_plan::{CoAccessLimits, DurabilityRule, ReadPolicy, is_durable};

/// Limits and defaults of reads and writes of stripes.
#[derive(Clone, Debug)]
pub struct StripeOptions {
    /// Bytes of bodies in memory at once, over all requests; more wait.
    pub in_flight_bytes: usize,
    /// For how long a request waits for its part of them.
    pub memory_wait: Duration,
    /// A write that has left chunks out is acknowledged if its stripe decodes after any so many further losses.
    pub write_surplus: usize,
    /// What that means: [`is_durable`], except where the laboratory plants a defect.
    pub durability_rule: DurabilityRule,
    /// A site that has not answered a write by then is left out (debt).
    pub write_deadline: Duration,
    /// A read asks other chunks when a site has not answered by then, or, when most reads take long, by twice
    /// what three of four of them take; a read of many blocks when no site has answered for so long.
    pub hedge_after: Duration,
    /// A site that has not answered a read by then counts as failed for it.
    pub read_deadline: Duration,
    /// Which chunks a read of many blocks asks for.
    pub read_policy: ReadPolicy,
    /// How often sites are probed where the policy probes them, in place of its own interval: for experiments that run on
    /// another scale of time.
    pub probe_interval: Option<Duration>,
    /// Records of stripes that are kept in memory, so that reads need not look them up: about 1 KiB each. 0: none.
    pub known_stripes: usize,
    /// The share of read requests that go into the statistics of blocks that are asked for together; see
    /// [`crate::Sampler`]. Each costs some 0.3 µs for a block.
    pub sampling: f64,
    /// How much of what is sampled is kept.
    pub co_access: CoAccessLimits,
    /// How long chunks stay after nothing names them: longer than the longest read of one block.
    pub garbage_grace: Duration,
    /// For how long this process relies on rows of a set of sites that it has written. They are removed when nobody has written them for
    /// several times as long, and no stripe is on these sites.
    pub placement_known_for: Duration,
    /// The formats in force: what may be written. Whoever opens the service keeps them up to date.
    pub formats: InForce,
}

impl Default for StripeOptions {
    /// 64 MiB of bodies in memory, 5 s for a request's share of them, a surplus of one loss, 10 s for a write or read of one
    /// site, hedging after 250 ms, one read request in eight sampled, a minute of grace for garbage, 16,384
    /// records of stripes, ten minutes for sets of sites, the oldest formats.
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
            formats: InForce::default(),
        }
    }
}
