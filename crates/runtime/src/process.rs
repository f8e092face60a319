//! Tasks that end together, as those of a process do that is killed.
//!
//! A simulated cluster runs many processes in one executor. Each gets a [`Runtime`](crate::Runtime) of its own by
//! [`Runtime::process`](crate::Runtime::process): the same clock and randomness, but every task that is started
//! through it, or through a clone of it, belongs to the process and is dropped at its next await when that is
//! killed.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// A process of a simulation. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Process {
    tasks: Arc<Mutex<Tasks>>,
    killed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Tasks {
    handles: Vec<AbortHandle>,
    /// Handles of ended tasks are dropped when there are this many.
    tidy_at: usize,
}

impl Process {
    pub(crate) fn new() -> Self {
        Self { tasks: Arc::default(), killed: watch::Sender::new(false) }
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

    /// Ends all its tasks, and those that are started later.
    pub fn kill(&self) {
        self.killed.send_replace(true);
        let handles = std::mem::take(&mut self.tasks.lock().handles);
        handles.iter().for_each(AbortHandle::abort);
    }

    /// Whether it was killed.
    pub fn is_killed(&self) -> bool {
        *self.killed.borrow()
    }

    /// Completes when it is killed.
    pub async fn killed(&self) {
        // This handle holds the sender, so the channel cannot close.
        let _ = self.killed.subscribe().wait_for(|killed| *killed).await;
    }
}
