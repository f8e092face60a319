//! Counts of operations.

use std::collections::BTreeMap;
use std::time::Duration;

use striate_workload::Kind;
use striate_workload::latency::Latencies;

use super::request::{Problem, TransferSize};

/// Operations of one kind.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Response times of successful operations.
    pub latencies: Latencies,
    /// Number of successful operations.
    pub operations: u64,
    /// Objects and bytes that successful operations moved.
    pub moved: TransferSize,
    /// Failed operations by kind: their number, and the message of the first.
    pub errors: BTreeMap<String, (u64, String)>,
}

/// The measurements of a run.
#[derive(Clone, Debug, Default)]
pub struct Measurements {
    /// Tallies by kind of operation.
    pub tallies: BTreeMap<Kind, Tally>,
    /// Time from the start to the last answer.
    pub elapsed: Duration,
    /// Open loop: number of operations that waited because too many were in flight.
    pub waited: u64,
}

impl Measurements {
    /// Counts an operation that took `took` and ended `at` after the start.
    pub fn add(&mut self, kind: Kind, outcome: Result<TransferSize, Problem>, took: Duration, at: Duration) {
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

    /// Returns the number of operations that succeeded.
    pub fn operations(&self) -> u64 {
        self.tallies.values().map(|tally| tally.operations).sum()
    }

    /// Returns the number of operations that failed.
    pub fn errors(&self) -> u64 {
        self.tallies.values().flat_map(|tally| tally.errors.values()).map(|(count, _)| count).sum()
    }
}
