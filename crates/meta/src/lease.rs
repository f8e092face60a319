//! Leases in memory, for the engines that run inside this process.
//!
//! A lease ends when it has not been kept alive for its `ttl`, measured on the runtime's monotonic clock, so steps of
//! the wall clock end no lease. Ids are never reused: the high 32 bits count the engine's runs (which an engine on disk
//! persists), the low 32 bits the leases of this run, so a lease of an earlier run is never alive. What it does not do:
//! it does not report that a lease ended; a caller that depends on one checks it with
//! [`crate::Precondition::LeaseAlive`] in the transaction that needs it.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use striate_runtime::{Instant, Runtime};

use crate::store::{Lease, LeaseId};

/// The leases of one run of an engine.
#[derive(Debug)]
pub(crate) struct Leases {
    runtime: Runtime,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    next: u64,
    live: BTreeMap<LeaseId, HeldLease>,
    /// Time at which the live leases were last searched for ended ones.
    swept: Instant,
}

#[derive(Debug)]
struct HeldLease {
    ttl: Duration,
    ends: Instant,
}

/// Maximum time for which an ended lease is remembered, if another lease is granted.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

impl Leases {
    /// Creates an empty set of leases for the `run`-th run of an engine.
    pub(crate) fn new(runtime: Runtime, run: u32) -> Self {
        let swept = runtime.now();
        let state = State { next: u64::from(run) << 32 | 1, live: BTreeMap::new(), swept };
        Self { runtime, state: Mutex::new(state) }
    }

    pub(crate) fn grant(&self, ttl: Duration) -> Lease {
        let now = self.runtime.now();
        let mut state = self.state.lock();
        if now.duration_since(state.swept) >= SWEEP_EVERY {
            state.live.retain(|_, held| held.ends > now);
            state.swept = now;
        }
        let id = LeaseId(state.next);
        state.next += 1;
        state.live.insert(id, HeldLease { ttl, ends: now + ttl });
        Lease { id, ttl }
    }

    pub(crate) fn keep_alive(&self, lease: LeaseId) -> bool {
        let now = self.runtime.now();
        let mut state = self.state.lock();
        match state.live.get_mut(&lease) {
            Some(held) if held.ends > now => {
                held.ends = now + held.ttl;
                true
            }
            Some(_) => {
                state.live.remove(&lease);
                false
            }
            None => false,
        }
    }

    pub(crate) fn is_alive(&self, lease: LeaseId) -> bool {
        let now = self.runtime.now();
        self.state.lock().live.get(&lease).is_some_and(|held| held.ends > now)
    }

    pub(crate) fn revoke(&self, lease: LeaseId) {
        self.state.lock().live.remove(&lease);
    }
}
