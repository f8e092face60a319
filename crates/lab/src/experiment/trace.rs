//! The reads of a trace file, as the workload of an experiment.

use rand::rngs::SmallRng;

use super::file::Experiment;
use crate::workload::trace::{self, Preload, Replay, ReplayOptions};
use crate::workload::{Due, Operation, Workload};

/// A replay without its writes: the objects that they write exist from the start.
#[derive(Clone, Debug)]
pub(super) struct TraceReads(Replay);

impl TraceReads {
    /// Opens the experiment's trace.
    ///
    /// # Errors
    /// If the experiment names no trace, or it cannot be read.
    pub(super) fn open(experiment: &Experiment) -> Result<Self, String> {
        let path = experiment.trace.as_ref().ok_or("it replays a trace: name one with --trace FILE")?;
        let options = ReplayOptions { time_scale: experiment.trace_speed, preload: Preload::All };
        let replay = trace::open(path, options).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(replay.reads_only()))
    }
}

impl Workload for TraceReads {
    fn objects(&self) -> u64 {
        self.0.objects()
    }

    fn size(&self, object: u64) -> u64 {
        self.0.size(object)
    }

    fn next(&mut self, rng: &mut SmallRng) -> Operation {
        self.0.next(rng)
    }

    fn due(&self) -> Due {
        self.0.due()
    }
}
