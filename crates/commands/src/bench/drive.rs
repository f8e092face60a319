//! Closed and open loops.
//!
//! A response time counts from when the operation was *due*. In a closed loop that is when its client was free to send
//! it. In an open loop it is the time of the process or the trace, whether or not the store kept up, and however many
//! other operations are in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytesize::ByteSize;
use futures::future::join_all;
use indicatif::ProgressBar;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use striate_runtime::{Instant, Runtime};
use striate_workload::{Due, Workload};
use tokio::sync::Semaphore;

use super::measured::Measurements;
use super::request::{Request, SharedWorkload, Target};
use crate::args::BenchArgs;
use crate::interruption::Interruption;
use crate::transfer::progress::spinner;

/// Pause of a client after an error, so that a store that is down does not get a hundred thousand requests per second.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(20);
/// Interval at which progress is shown.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The times at which operations are sent, unless the workload itself says so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// Clients that each wait for their last answer.
    Closed {
        /// Number of clients.
        clients: u32,
    },
    /// The times of a Poisson process.
    Poisson {
        /// Rate of the process in operations per second.
        per_second: f64,
    },
}

/// The limits of a run. Operations in flight at the end are finished and counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Time after which no operation is due.
    pub length: Option<Duration>,
    /// Maximum number of operations.
    pub operations: Option<u64>,
}

/// Runs workloads against a target.
pub struct Driver {
    target: Arc<Target>,
    interruption: Interruption,
    max_in_flight: u32,
    quiet: bool,
    /// Random numbers of all runs, so that a measurement continues where the warm-up ended.
    rng: Mutex<SmallRng>,
}

/// One run in progress.
struct Run {
    target: Arc<Target>,
    interruption: Interruption,
    workload: SharedWorkload,
    limits: Limits,
    started: Instant,
    rng: Mutex<SmallRng>,
    drawn: AtomicU64,
    measured: Mutex<Measurements>,
}

impl Driver {
    /// Creates a driver for this target.
    pub fn new(target: Target, args: &BenchArgs, interruption: Interruption) -> Self {
        Self {
            target: Arc::new(target),
            interruption,
            max_in_flight: args.max_in_flight,
            quiet: args.quiet,
            rng: Mutex::new(SmallRng::seed_from_u64(args.seed)),
        }
    }

    /// Returns the URL of the target.
    pub fn endpoint_url(&self) -> &str {
        self.target.endpoint.url()
    }

    /// Runs a workload until a limit, its end, or an interruption by the user. Returns the workload with the
    /// measurements.
    pub async fn run(
        &self,
        doing: &str,
        workload: Box<dyn Workload>,
        arrivals: Arrivals,
        limits: Limits,
    ) -> (Box<dyn Workload>, Measurements) {
        let runtime = self.target.endpoint.runtime();
        let has_own_times = workload.due() != Due::Whenever;
        let run = Arc::new(Run {
            target: Arc::clone(&self.target),
            interruption: self.interruption.clone(),
            workload: Arc::new(Mutex::new(workload)),
            limits,
            started: runtime.now(),
            rng: Mutex::new(SmallRng::from_rng(&mut *self.rng.lock())),
            drawn: AtomicU64::new(0),
            measured: Mutex::new(Measurements::default()),
        });
        let work = async {
            match arrivals {
                Arrivals::Closed { clients } if !has_own_times => closed_loop(&run, clients).await,
                Arrivals::Closed { .. } => open_loop(&run, None, self.max_in_flight).await,
                Arrivals::Poisson { per_second } => {
                    open_loop(&run, Some(per_second), self.max_in_flight).await;
                }
            }
        };
        let line = spinner(self.quiet);
        tokio::select! {
            () = work => {}
            () = show_progress(&run, doing, &line) => {}
        }
        line.finish_and_clear();
        let run = Arc::into_inner(run).expect("all operations are over");
        let workload = Arc::into_inner(run.workload).expect("nobody draws from it any more");
        (workload.into_inner(), run.measured.into_inner())
    }
}

async fn closed_loop(run: &Arc<Run>, clients: u32) {
    let clients = (0..clients).map(|_| {
        let client = Arc::clone(run);
        run.runtime().spawn(async move { client.send_one_by_one().await })
    });
    for ended in join_all(clients.collect::<Vec<_>>()).await {
        ended.expect("a client does not panic");
    }
}

async fn open_loop(run: &Arc<Run>, per_second: Option<f64>, max_in_flight: u32) {
    let slots = Arc::new(Semaphore::new(max_in_flight as usize));
    let mut poisson = Duration::ZERO;
    loop {
        let due = match (run.workload.lock().due(), per_second) {
            (Due::Never, _) | (Due::Whenever, None) => break,
            (Due::After(time), _) => time,
            (Due::Whenever, Some(per_second)) => {
                let draw: f64 = run.rng.lock().random();
                poisson += Duration::from_secs_f64(-(1.0 - draw).ln() / per_second);
                poisson
            }
        };
        if run.limits.length.is_some_and(|length| due >= length) {
            break;
        }
        let due = run.started + due;
        tokio::select! {
            biased;
            () = run.interruption.happens() => break,
            () = run.runtime().sleep_until(due) => {}
        }
        if slots.available_permits() == 0 {
            run.measured.lock().waited += 1;
        }
        let slot = tokio::select! {
            biased;
            () = run.interruption.happens() => break,
            slot = Arc::clone(&slots).acquire_owned() => slot.expect("the semaphore is never closed"),
        };
        let Some(request) = run.draw() else { break };
        let of_task = Arc::clone(run);
        run.runtime().spawn(async move {
            of_task.perform(request, due).await;
            drop(of_task);
            drop(slot);
        });
    }
    let all = slots.acquire_many(max_in_flight).await;
    drop(all.expect("the semaphore is never closed"));
}

impl Run {
    fn runtime(&self) -> &Runtime {
        self.target.endpoint.runtime()
    }

    async fn send_one_by_one(&self) {
        loop {
            let due = self.runtime().now();
            let is_late = self.limits.length.is_some_and(|length| due - self.started >= length);
            if is_late || self.interruption.has_happened() {
                return;
            }
            let Some(request) = self.draw() else { return };
            if !self.perform(request, due).await {
                self.runtime().sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }

    /// Draws the next operation; returns `None` once the limit is reached.
    fn draw(&self) -> Option<Request> {
        let number = self.drawn.fetch_add(1, Ordering::Relaxed);
        if self.limits.operations.is_some_and(|most| number >= most) {
            return None;
        }
        let (mut workload, mut rng) = (self.workload.lock(), self.rng.lock());
        let operation = workload.next(&mut rng);
        Some(Request::new(&operation, &**workload, self.target.range, &mut rng))
    }

    /// Performs an operation that was due at `due`, and counts it; returns whether it succeeded.
    async fn perform(&self, request: Request, due: Instant) -> bool {
        let outcome = self.target.perform(&request, &self.workload).await;
        let succeeded = outcome.is_ok();
        if let Some(object) = request.inserted {
            self.workload.lock().inserted(object, succeeded);
        }
        let now = self.runtime().now();
        self.measured.lock().add(request.kind, outcome, now - due, now - self.started);
        succeeded
    }
}

/// Shows the progress; never ends.
async fn show_progress(run: &Run, doing: &str, line: &ProgressBar) {
    let (mut operations, mut bytes) = (0, 0);
    loop {
        run.runtime().sleep(PROGRESS_INTERVAL).await;
        let measured = run.measured.lock();
        let moved: u64 = measured.tallies.values().map(|tally| tally.moved.bytes).sum();
        let (now, errors) = (measured.operations(), measured.errors());
        drop(measured);
        let of_length = run.limits.length.map_or(String::new(), |length| format!(" of {}", length.as_secs()));
        line.set_message(format!(
            "{doing}: {}{of_length} s, {} operations/s, {}/s, {errors} errors",
            (run.runtime().now() - run.started).as_secs(),
            now - operations,
            ByteSize(moved - bytes),
        ));
        (operations, bytes) = (now, moved);
    }
}
