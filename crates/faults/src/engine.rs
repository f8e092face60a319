//! The metadata machine: the real embedded engine with its mirrors on simulated disks.
//!
//! The machine can lose power at any operation of any of its disks, and comes back with what was durable. Single
//! disks fail to write, are wiped and come back. Around the engine run the same two loops as in a server: one
//! replaces ejected mirrors, the other checks the mirrors while the engine is idle.

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use parking_lot::Mutex;
use striate_core::ClusterId;
use striate_meta::embedded::simulated::{Fault, Machine};
use striate_meta::embedded::{EmbeddedStore, Layout, MirrorEvent, Options};
use striate_meta::{
    Commit, Lease, LeaseId, MetaError, MetaStore, Revision, Row, ScanRange, Transaction, Watch,
};
use striate_runtime::{Process, Runtime};
use striate_virtual_network::{Event, Trace};

use super::mutation::{self, Mutation};

/// Number of the engine's disks.
pub const DISKS: usize = 4;
/// Number of disks that may be lost.
pub const TOLERANCE: usize = 1;
/// Pause after a failed attempt to restore mirrors.
const MIRROR_RETRY: Duration = Duration::from_secs(1);
/// Interval between checks of the mirrors while the engine is idle.
const CHECK_MIRRORS: Duration = Duration::from_secs(1);

/// The machine that runs the metadata engine.
#[derive(Debug)]
pub struct EngineMachine {
    runtime: Runtime,
    trace: Trace,
    mutation: Mutation,
    disks: Machine,
    running: Mutex<Option<RunningEngine>>,
    observer: OnceLock<Observer>,
}

/// Callback for every transaction whose commit was answered, with its revision. It runs again for a commit that is
/// answered again, to a client that does not know the outcome.
pub struct Observer(Box<CommitCallback>);

type CommitCallback = dyn Fn(&Transaction, Revision) + Send + Sync;

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

#[derive(Clone, Debug)]
struct RunningEngine {
    store: EmbeddedStore,
    process: Process,
}

fn layout() -> Layout {
    Layout { cluster: ClusterId(1), total_directories: DISKS, tolerance: TOLERANCE }
}

fn options() -> Options {
    Options { cache_bytes: 4 << 20, min_free_bytes: 0, reserve_bytes: 0, ..Options::default() }
}

impl EngineMachine {
    /// Creates a stopped machine with new, empty metadata.
    ///
    /// # Errors
    /// If the engine cannot create its files.
    pub async fn create(runtime: Runtime, trace: Trace, mutation: Mutation) -> Result<Self, MetaError> {
        let disks = Machine::new(runtime.random_u64(), DISKS);
        EmbeddedStore::create(&runtime, options(), layout(), &disks.directories()).await?;
        Ok(Self { runtime, trace, mutation, disks, running: Mutex::new(None), observer: OnceLock::new() })
    }

    /// Reports every later transaction to `observer`.
    ///
    /// # Panics
    /// If there is an observer already.
    pub fn observe(&self, observer: impl Fn(&Transaction, Revision) + Send + Sync + 'static) {
        self.observer.set(Observer(Box::new(observer))).expect("there is one observer");
    }

    /// Starts the engine from the contents of the disks.
    ///
    /// # Errors
    /// As [`EmbeddedStore::open`].
    pub async fn start(&self) -> Result<(), MetaError> {
        self.trace.record(Event::Fault, 0, 4 << 32);
        let (runtime, process) = self.runtime.process();
        let directories = mutation::metadata_directories(self.mutation, &self.disks);
        let store = EmbeddedStore::open(&runtime, options(), layout(), &directories).await?;
        runtime.spawn(keep_mirrors(runtime.clone(), store.clone()));
        runtime.spawn(check_mirrors(runtime.clone(), store.clone()));
        *self.running.lock() = Some(RunningEngine { store, process });
        Ok(())
    }

    /// Fault: the power fails at the `operations`-th operation from now on, counted over all disks. Must be followed
    /// by [`EngineMachine::crash`].
    pub fn fail_power_soon(&self, operations: u64) {
        self.disks.fail_power_at(self.disks.operations() + operations);
    }

    /// Returns true if the power has failed.
    pub fn is_off(&self) -> bool {
        self.disks.is_off()
    }

    /// Fault: the machine dies now, if it has not already, and loses part of the unsynced data.
    pub fn crash(&self) {
        self.trace.record(Event::Fault, 0, 5 << 32);
        let running = self.running.lock().take();
        self.disks.cut_power();
        if let Some(running) = running {
            running.process.kill();
        }
        self.disks.restart();
    }

    /// Returns true if the engine runs.
    pub fn is_up(&self) -> bool {
        self.running.lock().is_some() && !self.is_off()
    }

    /// Fault: a disk fails every write or sync until the fault is cleared.
    pub fn set_disk_fault(&self, disk: usize, fault: Option<Fault>) {
        self.disks.set_fault(disk, fault);
    }

    /// Fault: a disk is replaced by a blank one.
    pub async fn blank_disk(&self, disk: usize) {
        self.trace.record(Event::Fault, disk as u64, 6 << 32);
        self.disks.wipe(disk);
        self.present_disks().await;
    }

    /// Passes the current disks to the engine.
    pub async fn present_disks(&self) {
        let Some(running) = self.running.lock().clone() else { return };
        // A failure to record them surfaces at the next request.
        let _ = running.store.set_directories(layout(), self.disks.directories()).await;
        let _ = running.store.restore_mirrors().await;
    }

    /// Returns the number of mirrors in sync; `None` if the engine does not run.
    pub async fn mirrors_in_sync(&self) -> Option<usize> {
        let running = self.running.lock().clone()?;
        let mirrors = running.store.mirrors().await.ok()?;
        Some(mirrors.iter().filter(|mirror| mirror.in_sync).count())
    }

    /// Returns the committed row of a key, bypassing the network; the outer `None` means that the engine does not
    /// run.
    pub fn peek(&self, key: &[u8]) -> Option<Option<Row>> {
        let running = self.running.lock().clone()?;
        running.store.get(key).now_or_never()?.ok()
    }

    /// Returns all committed rows with a prefix, bypassing the network; `None` if the engine does not run.
    pub fn peek_all(&self, prefix: &[u8]) -> Option<Vec<Row>> {
        let running = self.running.lock().clone()?;
        let limit = 100_000;
        let rows = running.store.scan(ScanRange::prefix(prefix), limit).now_or_never()?.ok()?;
        assert!(rows.len() < limit, "a run has fewer rows than that");
        Some(rows)
    }

    fn running(&self) -> Result<RunningEngine, MetaError> {
        self.running.lock().clone().ok_or_else(unavailable)
    }

    /// Runs a read; a crash meanwhile breaks the connection.
    async fn ask<T, F>(&self, request: impl FnOnce(EmbeddedStore) -> F) -> Result<T, MetaError>
    where
        F: Future<Output = Result<T, MetaError>>,
    {
        let RunningEngine { store, process } = self.running()?;
        let answer = tokio::select! {
            biased;
            () = process.killed() => Err(unavailable()),
            answer = request(store) => answer,
        };
        if self.is_off() { Err(unavailable()) } else { answer }
    }
}

fn unavailable() -> MetaError {
    MetaError::Unavailable("the metadata's machine does not answer".to_owned())
}

async fn keep_mirrors(runtime: Runtime, store: EmbeddedStore) {
    let mut events = store.events();
    loop {
        if store.restore_mirrors().await.is_err() {
            runtime.sleep(MIRROR_RETRY).await;
            continue;
        }
        match events.recv().await {
            Ok(MirrorEvent::Down { .. }) => return,
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

async fn check_mirrors(runtime: Runtime, store: EmbeddedStore) {
    loop {
        runtime.sleep(CHECK_MIRRORS).await;
        if store.check_mirrors().await.is_err() {
            return;
        }
    }
}

#[async_trait]
impl MetaStore for EngineMachine {
    async fn get(&self, key: &[u8]) -> Result<Option<Row>, MetaError> {
        self.ask(|store| async move { store.get(key).await }).await
    }

    async fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Row>>, MetaError> {
        self.ask(|store| async move { store.get_many(keys).await }).await
    }

    async fn scan(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.ask(|store| async move { store.scan(range, limit).await }).await
    }

    async fn scan_back(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.ask(|store| async move { store.scan_back(range, limit).await }).await
    }

    /// A broken connection leaves the outcome unknown.
    async fn commit(&self, transaction: Transaction) -> Result<Commit, MetaError> {
        let RunningEngine { store, process } = self.running()?;
        let unknown = || MetaError::UnknownOutcome("the connection broke during a commit".to_owned());
        let committed = transaction.clone();
        let answer = tokio::select! {
            biased;
            () = process.killed() => Err(unknown()),
            answer = store.commit(transaction) => answer,
        };
        if let (Ok(Commit::Done(revision)), Some(Observer(tell))) = (&answer, self.observer.get()) {
            tell(&committed, *revision);
        }
        if self.is_off() { Err(unknown()) } else { answer }
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<Lease, MetaError> {
        self.ask(|store| async move { store.grant_lease(ttl).await }).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        self.ask(|store| async move { store.keep_alive(lease).await }).await
    }

    async fn is_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        self.ask(|store| async move { store.is_alive(lease).await }).await
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.ask(|store| async move { store.revoke_lease(lease).await }).await
    }

    async fn watch(&self, prefix: &[u8]) -> Result<Watch, MetaError> {
        self.ask(|store| async move { store.watch(prefix).await }).await
    }
}
