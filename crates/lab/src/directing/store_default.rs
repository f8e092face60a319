//! The store's own default as the director of this experiment's reads.
//!
//! It is the store's own policy, [`Adaptive`]. It knows the queues that nodes push to all front ends, and each front
//! end's own reads in flight (`simulation/views.rs`); it probes nothing. Pushes, like replies, cost a front end no
//! time, but they are counted.

use std::fmt;

use striate_plan::ReadPolicy;
use striate_plan::read::adaptive::Adaptive;
use striate_plan::solver::makespan::USUAL_WEIGHT;

/// When nodes push their queues to the front ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pushes {
    /// Whenever the queue differs from what front ends believe, who subtract the time since the last push: when a
    /// task arrives, and when tasks take longer than their bytes suggest.
    OnChange,
    /// Every this many seconds, each node at its own phase.
    Every(f64),
}

/// Degraded reads of an LRC to consider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Degraded {
    /// All sets that determine the chunk.
    All,
    /// The rest of the local group; all sets for codes without local groups.
    Local,
}

/// Configuration of the default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoreDefault {
    /// When queues are pushed.
    pub pushes: Pushes,
    /// Degraded reads to consider.
    pub degraded: Degraded,
    /// w: weight of a second of added load.
    pub added_load: f64,
}

impl StoreDefault {
    /// Returns the policy that plans its reads.
    pub fn policy(&self) -> ReadPolicy {
        ReadPolicy::new(Adaptive { load_weight: self.added_load })
    }
}

impl Default for StoreDefault {
    fn default() -> Self {
        let added_load = USUAL_WEIGHT;
        Self { pushes: Pushes::OnChange, degraded: Degraded::All, added_load }
    }
}

impl fmt::Display for StoreDefault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("default")?;
        if let Pushes::Every(seconds) = self.pushes {
            write!(f, ", pushed every {} ms", (seconds * 1e3).round())?;
        }
        if self.degraded == Degraded::Local {
            f.write_str(", local groups only")?;
        }
        if (self.added_load - USUAL_WEIGHT).abs() > 1e-9 {
            write!(f, ", w = {}", self.added_load)?;
        }
        Ok(())
    }
}
