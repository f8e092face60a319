//! The runtime seam: time, randomness, tasks, blocking work, large buffers, and a command's [`output`].
//!
//! Code that reads a clock, draws a random number or starts a task does so through a [`Runtime`] that it is given. In a
//! server the runtime uses the real clock and a thread pool. In the lab the same code runs in a single thread under
//! [`run_in_virtual_time`]: [`Runtime::sleep`] then advances virtual time, [`Runtime::run_blocking`] runs inline, and
//! every random draw comes from one seed, so one seed gives one trace (I14). Tests of one component use
//! [`Runtime::deterministic`] on tokio's paused clock.
//!
//! This crate does not know networks or disks; those are behind the site's transport and store traits.

#![allow(clippy::disallowed_methods, reason = "this crate is the seam that the bans point to")]

mod buffer;
mod exact;
pub mod output;
mod process;
mod processors;
mod virtual_time;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rand::rngs::{SmallRng, StdRng};
use rand::{RngCore, SeedableRng};

pub use buffer::{Buffer, BufferPool};
pub use process::Process;
pub use processors::Processors;
pub use tokio::task::JoinHandle;
pub use tokio::time::Instant;
pub use virtual_time::run_in_virtual_time;

use virtual_time::{VirtualClock, VirtualTimer};

/// The future of a task, boxed.
pub(crate) type Task<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// Blocking work, boxed.
type Work<T> = Box<dyn FnOnce() -> T + Send>;

/// The time given to [`Runtime::timeout`] ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the time allowed ran out")]
pub struct Elapsed;

/// Where blocking work runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocking {
    /// On tokio's blocking pool.
    Pool,
    /// On the calling task, for single-threaded virtual time.
    Inline,
}

/// Handle to the clock, randomness and task spawning. Cheap to clone.
#[derive(Clone)]
pub struct Runtime {
    inner: Arc<Inner>,
    /// The process that owns the tasks started here, in a simulation of several processes.
    process: Option<Process>,
}

/// Source of time.
enum Clock {
    /// Tokio's clock, real or paused.
    Tokio,
    /// Virtual time of [`run_in_virtual_time`].
    Virtual(Arc<VirtualClock>),
}

struct Inner {
    blocking: Blocking,
    clock: Clock,
    started: Instant,
    /// Wall time at `started`. `None` reads the system's clock at every call, so clock steps are visible.
    wall_base: Option<Duration>,
    rng: Mutex<SmallRng>,
    secure: Mutex<StdRng>,
    buffers: BufferPool,
}

/// Limit on the bytes of large buffers in use and kept: what bodies in flight and their parities take with the default
/// limits.
const POOLED_BYTES: usize = 96 << 20;

/// How long [`Runtime::spawn_thread`] tries while the system refuses threads.
const THREAD_PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two such attempts.
const THREAD_RETRY: Duration = Duration::from_millis(20);

impl Runtime {
    /// Creates a runtime on the machine's clocks, with randomness from the operating system.
    ///
    /// Everything except reading the clocks and drawing numbers must be called inside a tokio runtime with time
    /// enabled.
    pub fn real() -> Self {
        Self::build(Blocking::Pool, Clock::Tokio, None, SmallRng::from_os_rng(), StdRng::from_os_rng())
    }

    /// Creates a deterministic runtime. All randomness derives from `seed`. The wall clock starts at `wall_start` since
    /// the Unix epoch and advances with tokio's (paused) clock. Blocking work runs inline.
    pub fn deterministic(seed: u64, wall_start: Duration) -> Self {
        Self::seeded(seed, wall_start, Clock::Tokio)
    }

    fn on_virtual_clock(seed: u64, wall_start: Duration, clock: Arc<VirtualClock>) -> Self {
        Self::seeded(seed, wall_start, Clock::Virtual(clock))
    }

    fn seeded(seed: u64, wall_start: Duration, clock: Clock) -> Self {
        let (small, std) = (SmallRng::seed_from_u64(seed), StdRng::seed_from_u64(!seed));
        Self::build(Blocking::Inline, clock, Some(wall_start), small, std)
    }

    fn build(
        blocking: Blocking,
        clock: Clock,
        wall_base: Option<Duration>,
        rng: SmallRng,
        secure: StdRng,
    ) -> Self {
        let inner = Inner {
            blocking,
            started: clock.now(),
            clock,
            wall_base,
            rng: Mutex::new(rng),
            secure: Mutex::new(secure),
            buffers: BufferPool::new(POOLED_BYTES),
        };
        Self { inner: Arc::new(inner), process: None }
    }

    /// Returns this runtime for one process of a simulation. Tasks started through it end when the process is killed.
    pub fn process(&self) -> (Self, Process) {
        let process = Process::new();
        (Self { inner: Arc::clone(&self.inner), process: Some(process.clone()) }, process)
    }

    /// Time of the monotonic clock.
    pub fn now(&self) -> Instant {
        self.inner.clock.now()
    }

    /// Time since this runtime was created.
    pub fn uptime(&self) -> Duration {
        self.now() - self.inner.started
    }

    /// Wall-clock time since the Unix epoch. For people and protocols (dates, signatures) only: nothing may be ordered
    /// by it.
    pub fn wall_time(&self) -> Duration {
        let time = match self.inner.wall_base {
            Some(base) => base + self.uptime(),
            None => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        };
        self.process.as_ref().map_or(time, |process| process.wall_time_at(time))
    }

    /// Completes after `duration`.
    pub async fn sleep(&self, duration: Duration) {
        self.timer(self.now() + duration).await;
    }

    /// Completes at `deadline`.
    pub async fn sleep_until(&self, deadline: Instant) {
        self.timer(deadline).await;
    }

    /// As [`Runtime::sleep_until`], but exact to some tens of microseconds on a real clock, where timers count whole
    /// milliseconds. For models of media, not for logic: each sleep takes a kernel timer.
    pub async fn sleep_until_exactly(&self, deadline: Instant) {
        let remaining = deadline.saturating_duration_since(self.now());
        if self.is_deterministic() || remaining.is_zero() {
            self.sleep_until(deadline).await;
        } else if exact::sleep(remaining).await.is_err() {
            // No descriptor or timer is left: late is better than never.
            self.sleep_until(deadline).await;
        }
    }

    /// Returns a timer for `deadline` that can be stored and polled.
    pub fn timer(&self, deadline: Instant) -> Timer {
        Timer(match &self.inner.clock {
            Clock::Tokio => AnyTimer::Tokio(Box::pin(tokio::time::sleep_until(deadline))),
            Clock::Virtual(clock) => AnyTimer::Virtual(VirtualTimer::new(Arc::clone(clock), deadline)),
        })
    }

    /// Runs `future` for at most `duration`, and drops it at the deadline.
    ///
    /// # Errors
    /// [`Elapsed`] if the future was not ready by then.
    pub async fn timeout<F: Future>(&self, duration: Duration, future: F) -> Result<F::Output, Elapsed> {
        let mut future = pin!(future);
        let mut timer = None;
        std::future::poll_fn(move |context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            // Create the timer only now: most futures with a generous deadline are ready at once.
            let timer = timer.get_or_insert_with(|| self.timer(self.now() + duration));
            Pin::new(timer).poll(context).map(|()| Err(Elapsed))
        })
        .await
    }

    /// Starts a task.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        // Boxed, so that tokio's task code is compiled once per output type, and not twice per future.
        self.spawn_task(Box::pin(future))
    }

    fn spawn_task<T: Send + 'static>(&self, future: Task<T>) -> JoinHandle<T> {
        let Some(process) = &self.process else { return tokio::spawn(future) };
        let task = tokio::spawn(process.own(future));
        process.adopt(task.abort_handle());
        task
    }

    /// Runs blocking work off the event loop (inline in virtual time). Resumes a panic of `work` in the caller.
    pub async fn run_blocking<T, W>(&self, work: W) -> T
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        match self.inner.blocking {
            Blocking::Inline => work(),
            // Boxed for the same reason as tasks.
            Blocking::Pool => match tokio::task::spawn_blocking(Box::new(work) as Work<T>).await {
                Ok(value) => value,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => std::future::pending().await,
                },
            },
        }
    }

    /// Starts a named operating-system thread, for loops that block on a disk for their whole life.
    ///
    /// While the system is short of threads or memory it tries again, for up to [`THREAD_PATIENCE`]: what a thread does
    /// for a disk must not end because other work took the last one.
    ///
    /// # Panics
    /// In a deterministic runtime, where hidden threads would break reproducibility, and if the operating system
    /// refuses a thread for good.
    pub fn spawn_thread<W>(&self, name: &str, work: W) -> std::thread::JoinHandle<()>
    where
        W: FnOnce() + Send + 'static,
    {
        assert_eq!(self.inner.blocking, Blocking::Pool, "threads do not exist in virtual time");
        // A refused thread drops its closure, so the work is handed over only once the thread runs.
        let work = Arc::new(Mutex::new(Some(work)));
        let deadline = self.now() + THREAD_PATIENCE;
        loop {
            let handed = Arc::clone(&work);
            let run = move || {
                let work = handed.lock().take();
                if let Some(work) = work {
                    work();
                }
            };
            match std::thread::Builder::new().name(name.to_owned()).spawn(run) {
                Ok(thread) => return thread,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && self.now() < deadline => {
                    self.pause_thread(THREAD_RETRY);
                }
                Err(error) => panic!("cannot start the thread {name}: {error}"),
            }
        }
    }

    /// Blocks the calling thread for `duration`; returns at once in a deterministic runtime. For threads of their own,
    /// never inside a task.
    pub fn pause_thread(&self, duration: Duration) {
        if self.inner.blocking == Blocking::Pool {
            std::thread::sleep(duration);
        }
    }

    /// Whether this runtime is deterministic: no threads, blocking work inline.
    pub fn is_deterministic(&self) -> bool {
        self.inner.blocking == Blocking::Inline
    }

    /// Returns a new generator for one component, seeded from this runtime. Not for secrets.
    pub fn rng(&self) -> SmallRng {
        SmallRng::from_rng(&mut *self.inner.rng.lock())
    }

    /// Returns a random number. Not for secrets.
    pub fn random_u64(&self) -> u64 {
        self.inner.rng.lock().next_u64()
    }

    /// Returns a random number of 128 bits. Not for secrets.
    pub fn random_u128(&self) -> u128 {
        u128::from(self.random_u64()) << 64 | u128::from(self.random_u64())
    }

    /// The pool of large buffers.
    pub fn buffers(&self) -> &BufferPool {
        &self.inner.buffers
    }

    /// Fills `bytes` from a cryptographically secure generator, for keys and identifiers that must not be guessable.
    pub fn fill_secret(&self, bytes: &mut [u8]) {
        self.inner.secure.lock().fill_bytes(bytes);
    }
}

impl Clock {
    fn now(&self) -> Instant {
        match self {
            Self::Tokio => Instant::now(),
            Self::Virtual(clock) => clock.now(),
        }
    }
}

/// A wait for an instant; see [`Runtime::timer`].
#[derive(Debug)]
pub struct Timer(AnyTimer);

#[derive(Debug)]
enum AnyTimer {
    Tokio(Pin<Box<tokio::time::Sleep>>),
    Virtual(VirtualTimer),
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            AnyTimer::Tokio(timer) => timer.as_mut().poll(context),
            AnyTimer::Virtual(timer) => Pin::new(timer).poll(context),
        }
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("deterministic", &self.is_deterministic()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn virtual_time_advances_only_by_sleeping_and_the_wall_clock_follows() {
        let runtime = Runtime::deterministic(1, Duration::from_secs(1_000));
        runtime.sleep(Duration::from_secs(3_600)).await;
        assert_eq!(runtime.wall_time(), Duration::from_secs(4_600));
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_whose_wall_clock_jumps_still_counts_time_as_the_others_do() {
        let runtime = Runtime::deterministic(1, Duration::from_secs(1_000));
        let (of_process, process) = runtime.process();
        process.set_clock_ahead(5_000);
        assert_eq!(of_process.wall_time(), Duration::from_secs(1_005));
        assert_eq!(runtime.wall_time(), Duration::from_secs(1_000));
        of_process.sleep(Duration::from_secs(1)).await;
        process.set_clock_ahead(-900_000);
        assert_eq!(of_process.wall_time(), Duration::from_secs(101));
        assert_eq!(of_process.now(), runtime.now());
        process.set_clock_ahead(i64::MIN);
        assert_eq!(of_process.wall_time(), Duration::ZERO);
    }

    /// A sleep that ended early would be a wrong model; how late it ends depends on the scheduler.
    #[tokio::test]
    async fn an_exact_wait_ends_and_not_before_its_time() {
        let runtime = Runtime::real();
        for wait in [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(1_300)] {
            let deadline = runtime.now() + wait;
            runtime.sleep_until_exactly(deadline).await;
            assert!(runtime.now() >= deadline, "{wait:?}");
        }
        runtime.sleep_until_exactly(runtime.now() - Duration::from_secs(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_killed_process_ends_all_its_tasks_and_starts_no_others() {
        let runtime = Runtime::deterministic(1, Duration::ZERO);
        let (of_process, process) = runtime.process();
        let inner = of_process.clone();
        let outer = of_process.spawn(async move {
            let sleeper = inner.clone();
            inner.spawn(async move { sleeper.sleep(Duration::from_secs(9)).await }).await
        });
        let other = runtime.spawn({
            let process = process.clone();
            async move { process.killed().await }
        });
        runtime.sleep(Duration::from_secs(1)).await;
        assert!(!outer.is_finished() && !other.is_finished());
        process.kill();
        assert!(outer.await.is_err_and(|error| error.is_cancelled()));
        other.await.expect("a task of another process goes on");
        assert!(of_process.spawn(async {}).await.is_err());
        assert_eq!(runtime.uptime(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_process_stands_still_while_time_passes_and_then_goes_on() {
        let runtime = Runtime::deterministic(1, Duration::ZERO);
        let (of_process, process) = runtime.process();
        let clock = of_process.clone();
        let task = of_process.spawn(async move {
            clock.sleep(Duration::from_secs(1)).await;
            clock.uptime()
        });
        runtime.sleep(Duration::from_millis(500)).await;
        process.set_paused(true);
        runtime.sleep(Duration::from_millis(59_500)).await;
        assert!(!task.is_finished(), "it goes on although its process stands still");
        process.set_paused(false);
        assert_eq!(task.await.expect("it goes on"), Duration::from_secs(60));
        process.set_paused(true);
        let killed = of_process.spawn(async {});
        process.kill();
        assert!(killed.await.is_err(), "a process that stands still can be killed");
    }

    #[tokio::test]
    async fn one_seed_gives_one_sequence_and_another_seed_another() {
        let draw = |seed| {
            let runtime = Runtime::deterministic(seed, Duration::ZERO);
            let mut secret = [0; 16];
            runtime.fill_secret(&mut secret);
            (runtime.random_u64(), runtime.rng().next_u64(), secret)
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
