//! Processes of a simulation, whose tasks end together when the process is killed.
//!
//! A simulated cluster runs many processes in one executor. Each gets a [`Runtime`](crate::Runtime) of its own from
//! [`Runtime::process`](crate::Runtime::process): the same clock and randomness, but every task started through it, or
//! through a clone of it, belongs to the process and is dropped at its next await when the process is killed. The
//! process's wall clock can be set wrong; the clock for deadlines cannot.
//!
//! A process can also be paused, like one whose machine swaps or whose virtual machine migrates: none of its tasks
//! runs. Its requests to other processes are served meanwhile, and time passes, so it finds deadlines missed and leases
//! expired.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::Task;

/// A process of a simulation. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Process {
    tasks: Arc<Mutex<Tasks>>,
    killed: watch::Sender<bool>,
    /// Milliseconds by which the process's wall clock is ahead.
    clock_ahead_ms: Arc<AtomicI64>,
    pause: Arc<Pause>,
}

#[derive(Debug, Default)]
struct Pause {
    is_on: AtomicBool,
    /// Tasks that were woken during the pause.
    waiting: Mutex<Vec<Waker>>,
}

/// A task of a process: runs unless the process is paused.
pub(crate) struct ProcessTask<T> {
    future: Task<T>,
    pause: Arc<Pause>,
}

impl<T> Future for ProcessTask<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        if self.pause.is_on.load(Ordering::Relaxed) {
            self.pause.waiting.lock().push(context.waker().clone());
            return Poll::Pending;
        }
        self.future.as_mut().poll(context)
    }
}

#[derive(Debug, Default)]
struct Tasks {
    handles: Vec<AbortHandle>,
    /// Handles of ended tasks are dropped when there are this many.
    tidy_at: usize,
}

impl Process {
    pub(crate) fn new() -> Self {
        let (tasks, clock_ahead_ms, pause) = Default::default();
        Self { tasks, killed: watch::Sender::new(false), clock_ahead_ms, pause }
    }

    /// Wraps a task so that it stops while this process is paused.
    pub(crate) fn own<T>(&self, future: Task<T>) -> ProcessTask<T> {
        ProcessTask { future, pause: Arc::clone(&self.pause) }
    }

    /// Pauses or resumes the process.
    pub fn set_paused(&self, is_paused: bool) {
        self.pause.is_on.store(is_paused, Ordering::Relaxed);
        if !is_paused {
            std::mem::take(&mut *self.pause.waiting.lock()).into_iter().for_each(Waker::wake);
        }
    }

    pub(crate) fn adopt(&self, task: AbortHandle) {
        if self.is_killed() {
            task.abort();
            return;
        }
        let mut tasks = self.tasks.lock();
        if tasks.handles.len() >= tasks.tidy_at {
            tasks.handles.retain(|handle| !handle.is_finished());
            tasks.tidy_at = (2 * tasks.handles.len()).max(64);
        }
        tasks.handles.push(task);
    }

    /// Aborts all tasks of the process, including any that are started later.
    pub fn kill(&self) {
        self.killed.send_replace(true);
        let handles = std::mem::take(&mut self.tasks.lock().handles);
        handles.iter().for_each(AbortHandle::abort);
    }

    /// Sets the process's wall clock ahead of the simulation's by this many milliseconds, or behind it if negative.
    pub fn set_clock_ahead(&self, by_ms: i64) {
        self.clock_ahead_ms.store(by_ms, Ordering::Relaxed);
    }

    /// The process's wall time when the simulation's is `time`; never before the epoch.
    pub(crate) fn wall_time_at(&self, time: Duration) -> Duration {
        let ahead_ms = self.clock_ahead_ms.load(Ordering::Relaxed);
        let ahead = Duration::from_millis(ahead_ms.unsigned_abs());
        if ahead_ms < 0 { time.saturating_sub(ahead) } else { time.saturating_add(ahead) }
    }

    /// Whether the process was killed.
    pub fn is_killed(&self) -> bool {
        *self.killed.borrow()
    }

    /// Completes when the process is killed.
    pub async fn killed(&self) {
        // This handle holds the sender, so the channel cannot close.
        let _ = self.killed.subscribe().wait_for(|killed| *killed).await;
    }
}
