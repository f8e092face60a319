//! What is counted of operations.

use std::collections::BTreeMap;
use std::time::Duration;

use striate_workload::Kind;
use striate_workload::latency::Latencies;

use super::request::{Moved, Problem};

/// Operations of one kind.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Response times of those that succeeded.
    pub latencies: Latencies,
    /// How many these are.
    pub operations: u64,
    /// What they moved.
    pub moved: Moved,
    /// Those that failed, by kind: how many, and what the first of them said.
    pub errors: BTreeMap<String, (u64, String)>,
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// By kind of operation.
    pub tallies: BTreeMap<Kind, Tally>,
    /// From the start to the last answer.
    pub elapsed: Duration,
    /// Open loop: how many operations waited because too many were under way.
    pub waited: u64,
}

impl Measured {
    /// Counts an operation that took `took` and ended `at` after the start.
    pub fn add(&mut self, kind: Kind, outcome: Result<Moved, Problem>, took: Duration, at: Duration) {
        self.elapsed = self.elapsed.max(at);
        let tally = self.tallies.entry(kind).or_default();
        match outcome {
            Ok(moved) => {
                tally.latencies.record(took);
                tally.operations += 1;
                tally.moved.objects += moved.objects;
                tally.moved.bytes += moved.bytes;
            }
            Err(Problem { kind, message }) => tally.errors.entry(kind).or_insert((0, message)).0 += 1,
        }
    }

    /// Operations that succeeded.
    pub fn operations(&self) -> u64 {
        self.tallies.values().map(|tally| tally.operations).sum()
    }

    /// Operations that failed.
    pub fn errors(&self) -> u64 {
        self.tallies.values().flat_map(|tally| tally.errors.values()).map(|(count, _)| count).sum()
    }
}
