//! How the store's own default directs the reads of this experiment.
//!
//! It is the store's own policy, [`Adaptive`]. It knows the queues that nodes push to all front ends, and each front end's own reads
//! on their way (`simulation/views.rs`); it probes nothing. A push costs a front end no time, as replies cost none; how many
//! there are is counted.

use std::fmt;

use striate_plan::ReadPolicy;
use striate_plan::read::adaptive::Adaptive;
use striate_plan::solver::makespan::USUAL_WEIGHT;

/// When nodes push their queues to the front ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pushes {
    /// Whenever it differs from what front ends believe, who subtract the time since the last push: when a task comes, and when
    /// tasks take longer than their bytes let expect.
    OnChange,
    /// Every so many seconds, each node at a phase of its own.
    Every(f64),
}

/// The reads of an LRC that it considers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Degraded {
    /// All sets that determine the chunk.
    All,
    /// The rest of the local group; all, for codes without.
    Local,
}

/// The default, and what it knows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoreDefault {
    /// When queues are pushed.
    pub pushes: Pushes,
    /// The degraded reads that it considers.
    pub degraded: Degraded,
    /// w: what a second of added load weighs.
    pub added_load: f64,
}

impl StoreDefault {
    /// The policy that plans its reads.
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
