//! Runs an experiment: every policy with every seed, each in its own world, several at a time.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;
use rand::seq::SliceRandom;
use striate_client::Client;
use striate_core::SiteId;
use striate_runtime::{Runtime, run_in_virtual_time};
use striate_site::Site;

use super::cells::{Cell, Cells};
use super::file::{Experiment, MovementUnderTest, PolicyUnderTest, WorkloadUnderTest};
use super::results::{PolicyResult, Results, SeedResult};
use super::trace::TraceReads;
use crate::calibration::Episodes;
use crate::drive::{DriveOptions, RunMeasurements, drive};
use crate::latency::Latencies;
use crate::movement::{Movement, MovementTotals};
use crate::program::commit;
use crate::workload::{EcStoreScans, Pages, Workload};
use crate::world::{World, WorldOptions};

/// Interval at which EC-Store's client services learn the sites' loads, in seconds. It is divided by the scale like
/// every interval, unless a policy sets it: queues change equally fast at any scale.
const PROBE_INTERVAL_S: f64 = 5.0;

/// Number of progress reports per run.
const STEPS: u32 = 100;

/// A failed run, with everything needed to reproduce it.
#[derive(Debug, thiserror::Error)]
#[error(
    "{experiment}, policy {policy}: {reason}\nseed {seed}, commit {}; see it again with\n  \
     striate-lab run --experiment {experiment} --policy {policy:?} --seed {seed} --seeds 1 --scale {scale}",
    commit()
)]
pub struct RunFailure {
    /// Name of the experiment.
    pub experiment: String,
    /// Name of the policy.
    pub policy: String,
    /// Seed of the run.
    pub seed: u64,
    /// Scale of the run.
    pub scale: f64,
    /// What happened.
    pub reason: String,
}

/// Options for running an experiment.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// First seed.
    pub first_seed: u64,
    /// Number of runs in parallel, each in its own thread.
    pub jobs: usize,
    /// Store of finished runs, if they are kept.
    pub cells: Option<Cells>,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { first_seed: 1, jobs: 1, cells: None }
    }
}

/// Progress of the runs.
#[derive(Debug)]
pub enum Progress<'a> {
    /// A run has reached a time.
    At {
        /// Number of the run.
        cell: usize,
        /// Policy and seed of the run.
        name: &'a str,
        /// Virtual seconds since its beginning.
        virtual_s: f64,
    },
    /// A run has ended.
    Done {
        /// Number of the run.
        cell: usize,
        /// Policy of the run.
        policy: &'a str,
        /// Results of the run.
        result: &'a SeedResult,
        /// True if the run had already been finished before.
        kept: bool,
    },
}

/// A pending run; `cell` is its number in the order of policies and seeds.
#[derive(Clone, Copy, Debug)]
struct Task {
    cell: usize,
    policy: usize,
    seed: u64,
}

/// Returns all runs of an experiment, policy by policy.
fn tasks(experiment: &Experiment, first_seed: u64) -> VecDeque<Task> {
    let seeds = experiment.seeds as usize;
    let task = |cell| Task { cell, policy: cell / seeds, seed: first_seed + (cell % seeds) as u64 };
    (0..experiment.policies.len() * seeds).map(task).collect()
}

impl Task {
    fn failure(self, experiment: &Experiment, reason: String) -> RunFailure {
        RunFailure {
            experiment: experiment.name.clone(),
            policy: experiment.policies[self.policy].name.clone(),
            seed: self.seed,
            scale: experiment.scale,
            reason,
        }
    }
}

/// Output of one run.
pub(super) struct RunOutput {
    pub(super) measured: RunMeasurements,
    /// Hash of the run's events, and their number.
    pub(super) trace: String,
    /// Chunks moved in the warm-up and after it, if chunks are moved.
    pub(super) moved: Option<[MovementTotals; 2]>,
}

enum Message {
    At(Task, f64),
    Done(Task, Box<Result<(Cell, bool), String>>),
}

/// Runs the experiment and reports its progress. `clock` is the machine's real clock.
///
/// # Errors
/// On the first run that fails or panics, in which an operation failed, or whose results cannot be stored.
pub fn run(
    experiment: &Experiment,
    options: &RunOptions,
    clock: &Runtime,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Results, RunFailure> {
    let tasks = tasks(experiment, options.first_seed);
    let mut cells: Vec<Option<Cell>> = vec![None; tasks.len()];
    let waiting = Mutex::new(tasks);
    let mut failed = None;
    std::thread::scope(|scope| {
        let (sender, messages) = channel();
        for _ in 0..options.jobs.max(1) {
            let (waiting, sender) = (&waiting, sender.clone());
            scope.spawn(move || work(experiment, options, clock, waiting, &sender));
        }
        drop(sender);
        for message in messages {
            match message {
                Message::At(task, virtual_s) => {
                    let name = format!("{}, seed {}", experiment.policies[task.policy].name, task.seed);
                    progress(Progress::At { cell: task.cell, name: &name, virtual_s });
                }
                Message::Done(task, result) => match *result {
                    Ok((cell, kept)) => {
                        let policy = &experiment.policies[task.policy].name;
                        progress(Progress::Done { cell: task.cell, policy, result: &cell.result, kept });
                        cells[task.cell] = Some(cell);
                    }
                    Err(reason) => {
                        waiting.lock().clear();
                        failed.get_or_insert((task, reason));
                    }
                },
            }
        }
    });
    match failed {
        Some((task, reason)) => Err(task.failure(experiment, reason)),
        None => Ok(gathered(experiment, cells.into_iter().flatten().collect())),
    }
}

/// Executes runs until none is waiting.
fn work(
    experiment: &Experiment,
    options: &RunOptions,
    clock: &Runtime,
    waiting: &Mutex<VecDeque<Task>>,
    sender: &Sender<Message>,
) {
    loop {
        let Some(task) = waiting.lock().pop_front() else { return };
        let result = run_cell(experiment, options, task, clock, sender);
        // The receiver is gone only if it panicked, and then this scope ends as well.
        let _ = sender.send(Message::Done(task, Box::new(result)));
    }
}

fn run_cell(
    experiment: &Experiment,
    options: &RunOptions,
    task: Task,
    clock: &Runtime,
    sender: &Sender<Message>,
) -> Result<(Cell, bool), String> {
    let policy = &experiment.policies[task.policy];
    let kept = options.cells.as_ref().and_then(|cells| cells.load(experiment, policy, task.seed));
    if let Some(cell) = kept {
        return Ok((cell, true));
    }
    let began = clock.uptime();
    let tell = sender.clone();
    let at = move |virtual_s| drop(tell.send(Message::At(task, virtual_s)));
    let ran = catch_unwind(AssertUnwindSafe(|| measure(experiment, policy, task.seed, at)));
    let ran = match ran {
        Ok(result) => result?,
        Err(panic) => return Err(panic_message(panic.as_ref())),
    };
    if let Some(reason) = &ran.measured.first_failure {
        return Err(format!("{} operations failed, the first with: {reason}", ran.measured.failed));
    }
    let [_, length, interval] = experiment.scaled_times();
    let intervals = (length.as_secs_f64() / interval.as_secs_f64()).round() as usize;
    let real_s = (clock.uptime() - began).as_secs_f64();
    let result = SeedResult::new(task.seed, &ran, intervals, real_s);
    let cell = Cell { result, latencies: ran.measured.latencies };
    if let Some(cells) = &options.cells {
        let stored = cells.store(experiment, policy, task.seed, &cell);
        stored.map_err(|error| format!("its results cannot be kept: {error}"))?;
    }
    Ok((cell, false))
}

/// Groups the cells by policy, in the order of the seeds.
fn gathered(experiment: &Experiment, cells: Vec<Cell>) -> Results {
    let of_policies = experiment.policies.iter().zip(cells.chunks(experiment.seeds as usize));
    let policies = of_policies.map(|(policy, cells)| {
        let mut all = Latencies::default();
        cells.iter().for_each(|cell| all.merge(&cell.latencies));
        PolicyResult {
            name: policy.name.clone(),
            profile: policy.profile.to_string(),
            read: policy.read.clone(),
            movement: policy.movement.as_ref().map(|movement| movement.objective.clone()),
            failed_sites: policy.failed_sites,
            cdf: all.cdf(),
            seeds: cells.iter().map(|cell| cell.result.clone()).collect(),
        }
    });
    Results::new(experiment, policies.collect())
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("(no message)"))
}

/// Runs one policy with one seed.
fn measure(
    experiment: &Experiment,
    policy: &PolicyUnderTest,
    seed: u64,
    at: impl Fn(f64) + Send + 'static,
) -> Result<RunOutput, String> {
    let blocks = u64::from(experiment.scaled_blocks());
    let exponent = experiment.zipf_exponent;
    let protocol = Protocol::of(experiment, policy)?;
    match experiment.workload {
        WorkloadUnderTest::EcStoreScans => {
            let sizes = std::iter::repeat_n(u64::from(experiment.block_len), blocks as usize);
            let measured = match policy.scrambled {
                true => EcStoreScans::scrambled(blocks, exponent),
                false => EcStoreScans::measured(blocks, exponent),
            };
            protocol.run(seed, sizes, Some(EcStoreScans::warm_up(blocks)), measured, at)
        }
        WorkloadUnderTest::Pages => {
            let pages = Pages::of_images(blocks, exponent, 1.0, seed);
            let images = pages.clone();
            let sizes = (0..blocks).map(move |image| images.size(image));
            protocol.run(seed, sizes, Some(pages.clone().evenly()), pages, at)
        }
        WorkloadUnderTest::Trace => {
            let reads = TraceReads::open(experiment)?;
            let of_sizes = reads.clone();
            let sizes = (0..reads.objects()).map(move |object| of_sizes.size(object));
            protocol.run(seed, sizes, None, reads, at)
        }
    }
}

/// The paper's protocol: a warm-up, then the measured phase, with everything that is common to all workloads.
struct Protocol {
    world: WorldOptions,
    warm_up: DriveOptions,
    measured: DriveOptions,
    failed_sites: u32,
}

impl Protocol {
    fn of(experiment: &Experiment, policy: &PolicyUnderTest) -> Result<Self, String> {
        let mut calibration = experiment.calibration();
        if let Some(slow) = policy.slow {
            calibration.site.episodes =
                Episodes { factor: slow.factor, length_s: slow.length_s, gap_s: slow.gap_s };
            (calibration.site.slow_share, calibration.site.slow_factor) =
                (slow.request_share, slow.request_factor);
        }
        let world = WorldOptions {
            sites: experiment.sites,
            racks: experiment.racks,
            clients: experiment.client_services,
            block_len: experiment.block_len,
            group_len: policy.group,
            probe_interval: Duration::from_secs_f64(
                policy.probe_s.unwrap_or(PROBE_INTERVAL_S / experiment.scale),
            ),
            ..WorldOptions::ec_store(calibration, policy.profile, 0, policy.read_policy()?)
        };
        // A trace that is replayed faster has shorter phases.
        let speed = match experiment.workload {
            WorkloadUnderTest::Trace => experiment.trace_speed,
            _ => 1.0,
        };
        let movement = policy.movement.as_ref().map(MovementUnderTest::options).transpose()?;
        let world = WorldOptions {
            movement: movement.map(|movement| movement.scaled(experiment.scale * speed)),
            ..world
        };
        let [warm_up, length, interval] = experiment.scaled_times();
        let client_work = Duration::from_secs_f64(calibration.client_work_ms / 1e3);
        let measured = DriveOptions {
            clients: experiment.clients,
            rate_per_s: None,
            length,
            operations: experiment.operations,
            interval,
            client_work,
        };
        let warm_up = DriveOptions { length: warm_up, operations: None, ..measured };
        Ok(Self { world, warm_up, measured, failed_sites: policy.failed_sites })
    }

    /// Runs the protocol over objects of these sizes.
    fn run<W: Workload + 'static>(
        self,
        seed: u64,
        sizes: impl Iterator<Item = u64> + Send + 'static,
        warm_up: Option<W>,
        measured: W,
        at: impl Fn(f64) + Send + 'static,
    ) -> Result<RunOutput, String> {
        run_in_virtual_time(seed, Duration::ZERO, move |runtime| async move {
            let world = World::build_of(runtime, &self.world, sizes).await;
            let world = Arc::new(world.map_err(|error| error.to_string())?);
            let movement = match self.world.movement {
                Some(options) => {
                    let started = Movement::start(&world, &self.world, options).await;
                    Some(started.map_err(|error| error.to_string())?)
                }
                None => None,
            };
            tell(&world.runtime, (self.warm_up.length + self.measured.length) / STEPS, at);
            if let Some(warm_up) = warm_up {
                drive(&world, self.warm_up, warm_up).await;
            }
            let mover = movement.as_ref().map(Movement::client);
            fail_sites(&world, mover, self.failed_sites);
            let before = movement.as_ref().map(Movement::moved);
            let measured = drive(&world, self.measured, measured).await;
            let moved = movement.zip(before);
            let moved = moved.map(|(movement, before)| [before, movement.moved().since(&before)]);
            Ok(RunOutput { measured, trace: world.trace.digest().to_string(), moved })
        })
    }
}

/// Reports the virtual time after each step, until the run ends.
fn tell(runtime: &Runtime, step: Duration, at: impl Fn(f64) + Send + 'static) {
    let of_task = runtime.clone();
    runtime.spawn(async move {
        loop {
            of_task.sleep(step).await;
            at(of_task.uptime().as_secs_f64());
        }
    });
}

/// Kills the storage services of some machines for good (EC-Store §VI-C4). Clients on these machines keep running.
/// All clients are notified at once, as by the paper's repair service; the time until then is not measured.
fn fail_sites(world: &World, mover: Option<&Client>, count: u32) {
    let mut machines: Vec<_> = world.machines.iter().collect();
    machines.shuffle(&mut world.runtime.rng());
    let dead: Vec<SiteId> = machines.iter().take(count as usize).map(|machine| machine.site.id()).collect();
    machines.iter().take(count as usize).for_each(|machine| machine.store.crash());
    for client in world.clients.iter().chain(mover).filter(|_| count > 0) {
        let views = client.stripes().sites().into_iter().map(|view| view.site);
        client.stripes().set_sites(views.filter(|site| !dead.contains(&site.id())).collect());
    }
}
