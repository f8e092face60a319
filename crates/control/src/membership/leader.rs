//! Leader election, for work that must happen in one place.
//!
//! A process leads while it holds the lease that the leader's row names. When the lease has expired, by the engine's
//! clock, another process may take over the row. The leader counts its own time from before it sent each renewal, so
//! that it stops before another starts, unless it was paused: a leader that wakes up late may continue for a moment.
//! Its late actions are harmless: its transactions are compare-and-swap, and its deletes carry the epoch of the
//! process that it opened for its term, which sites refuse once they have seen its successor's (design.md §10.4).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use striate_meta::records::{self, Leader};
use striate_meta::{Commit, LeaseId, MetaError, MetaStore, Precondition, Row, Transaction, keys};
use striate_runtime::{Instant, Runtime};

/// Lifetime of the leader's lease. A dead leader is replaced after this time and one poll at the latest.
const LEASE_TTL: Duration = Duration::from_secs(12);
/// Interval between two polls for a vacant leadership.
const PASS_EVERY: Duration = Duration::from_secs(2);

/// A process that wants to lead.
#[derive(Clone, Debug)]
pub struct Candidacy {
    runtime: Runtime,
    meta: Arc<dyn MetaStore>,
    name: String,
}

/// A term of leadership.
struct Term {
    lease: LeaseId,
    /// Time at which the last successful renewal was sent.
    renewed: Instant,
}

impl Candidacy {
    /// Creates the candidacy of the process `name`.
    pub fn new(runtime: Runtime, meta: Arc<dyn MetaStore>, name: &str) -> Self {
        Self { runtime, meta, name: name.to_owned() }
    }

    /// Waits until this process leads, runs the future from `work` until it no longer leads, and starts over. Runs
    /// until dropped. If the work returns, the term ends too.
    pub async fn run<F>(self, mut work: impl FnMut() -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        loop {
            let term = self.win().await;
            tracing::info!(name = self.name, "this process leads: it repairs, scrubs and collects");
            let task = self.runtime.spawn(work());
            self.hold(term, || task.is_finished()).await;
            task.abort();
            tracing::warn!(name = self.name, "this process is no longer the leader");
        }
    }

    async fn win(&self) -> Term {
        loop {
            match self.try_to_win().await {
                Ok(Some(term)) => return term,
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot read who leads; will retry")
                }
            }
            self.runtime.sleep(PASS_EVERY).await;
        }
    }

    /// Returns `None` while another process leads.
    async fn try_to_win(&self) -> Result<Option<Term>, MetaError> {
        let row = self.meta.get(&keys::leader()).await?;
        if let Some(leader) = row.as_ref().map(Row::record::<Leader>).transpose()?
            && self.meta.is_alive(LeaseId(leader.lease)).await?
        {
            return Ok(None);
        }
        let renewed = self.runtime.now();
        let lease = self.meta.grant_lease(LEASE_TTL).await?.id;
        let mut tx = Transaction::with_random_id(&self.runtime);
        let record = Leader { lease: lease.0, name: self.name.clone() };
        tx.require_unchanged(keys::leader(), row.as_ref()).require(Precondition::LeaseAlive(lease));
        tx.put(keys::leader(), records::encode(&record));
        match self.meta.commit(tx).await {
            Ok(Commit::Done(_)) => Ok(Some(Term { lease, renewed })),
            // After an unknown outcome the lease is revoked too, and with it the leadership it may have brought.
            lost => {
                let revoked = self.meta.revoke_lease(lease).await;
                lost?;
                revoked.map(|()| None)
            }
        }
    }

    /// Holds the lease until the term has ended, or `is_over`.
    async fn hold(&self, mut term: Term, is_over: impl Fn() -> bool) {
        while self.runtime.now() - term.renewed < LEASE_TTL && !is_over() {
            self.runtime.sleep(LEASE_TTL / 4).await;
            let sent = self.runtime.now();
            match self.runtime.timeout(LEASE_TTL / 4, self.meta.keep_alive(term.lease)).await {
                Ok(Ok(true)) => term.renewed = sent,
                Ok(Ok(false)) => return,
                // The engine is unreachable: the lease may still be alive.
                Ok(Err(_)) | Err(_) => {}
            }
        }
        if is_over() {
            // Let another process lead at once.
            let _ = self.meta.revoke_lease(term.lease).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use striate_meta::MemoryStore;

    use super::*;

    /// A process that leads until its guard is dropped.
    struct Leadership(Arc<Mutex<Vec<&'static str>>>, &'static str);

    impl Drop for Leadership {
        fn drop(&mut self) {
            self.0.lock().retain(|name| *name != self.1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_leads_at_a_time_and_another_takes_over() {
        let runtime = Runtime::deterministic(1, Duration::ZERO);
        let meta: Arc<dyn MetaStore> = Arc::new(MemoryStore::new(runtime.clone()));
        let leading = Arc::new(Mutex::new(Vec::new()));
        let mut processes = Vec::new();
        for name in ["a", "b"] {
            let (of_process, process) = runtime.process();
            let (leading, candidacy) =
                (leading.clone(), Candidacy::new(of_process.clone(), meta.clone(), name));
            of_process.spawn(candidacy.run(move || {
                leading.lock().push(name);
                let guard = Leadership(leading.clone(), name);
                async move {
                    let _guard = guard;
                    std::future::pending().await
                }
            }));
            processes.push((name, process));
        }
        runtime.sleep(Duration::from_secs(60)).await;
        let first = leading.lock().clone();
        assert_eq!(first.len(), 1, "{first:?}");
        let (_, process) = processes.iter().find(|(name, _)| *name == first[0]).unwrap();
        process.kill();
        runtime.sleep(Duration::from_secs(60)).await;
        let second = leading.lock().clone();
        assert_eq!(second.len(), 1, "{second:?}");
        assert_ne!(first, second);
    }
}
