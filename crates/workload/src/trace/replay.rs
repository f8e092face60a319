//! A trace as a workload.

use std::collections::HashMap;
use std::io::Read;
use std::time::Duration;

use rand::rngs::SmallRng;

use super::TraceError;
use super::reading::TraceReader;
use super::rows::Rows;
use crate::{Due, Operation, Workload};

/// Objects that must exist before the replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preload {
    /// Objects that the trace reads or deletes before it writes them.
    #[default]
    Missing,
    /// All objects. For traces that read an object so soon after its first write that the write may still be running.
    All,
}

/// How a trace is replayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplayOptions {
    /// Speed relative to the recording; above 0.
    pub time_scale: f64,
    /// Objects that exist before the replay.
    pub preload: Preload,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self { time_scale: 1.0, preload: Preload::Missing }
    }
}

/// The operations of a trace, in order. Objects are numbered in order of appearance, preloaded objects first.
#[derive(Clone, Debug)]
pub struct Replay {
    pub(super) names: Vec<String>,
    pub(super) numbers: HashMap<String, u64>,
    /// Number of preloaded objects.
    pub(super) preloaded: u64,
    /// Size of each object, or its size after its first write.
    pub(super) sizes: Vec<u64>,
    /// All sizes of the objects whose size changes.
    pub(super) other_sizes: HashMap<u64, Vec<u64>>,
    pub(super) operations: Vec<TimedOperation>,
    pub(super) done: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct TimedOperation {
    pub due: Duration,
    pub operation: Operation,
    /// Size of the written object.
    pub size: u64,
}

impl Replay {
    pub(super) fn new<R: Read>(rows: Rows<R>, options: ReplayOptions) -> Result<Self, TraceError> {
        let mut reading = TraceReader::new(options);
        for row in rows {
            reading.add(row?)?;
        }
        reading.finish()
    }

    /// Removes writes and deletes.
    pub fn reads_only(mut self) -> Self {
        self.operations.retain(|timed| matches!(timed.operation, Operation::Read(_)));
        self
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Returns true if there are no operations.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Returns when the last operation is due.
    pub fn length(&self) -> Duration {
        self.operations.last().map_or(Duration::ZERO, |last| last.due)
    }
}

impl Workload for Replay {
    fn objects(&self) -> u64 {
        self.preloaded
    }

    fn size(&self, object: u64) -> u64 {
        self.sizes[object as usize]
    }

    fn next(&mut self, _rng: &mut SmallRng) -> Operation {
        let TimedOperation { operation, size, .. } = &self.operations[self.done];
        self.done += 1;
        if let Operation::Insert(object) | Operation::Update(object) = operation {
            self.sizes[*object as usize] = *size;
        }
        operation.clone()
    }

    fn due(&self) -> Due {
        self.operations.get(self.done).map_or(Due::Never, |next| Due::After(next.due))
    }

    fn may_have_size(&self, object: u64, len: u64) -> bool {
        match self.other_sizes.get(&object) {
            Some(sizes) => sizes.contains(&len),
            None => len == self.size(object),
        }
    }

    fn key(&self, object: u64) -> String {
        self.names[object as usize].clone()
    }

    fn object(&self, key: &str) -> Option<u64> {
        self.numbers.get(key).copied()
    }
}
