//! The upgrade gate: newer formats are written only when every process reads them and an operator says so.
//!
//! Every gateway and control process keeps a row that says what its program reads, under a lease ([`ProcessReport`]);
//! sites say it in their status. [`Gate::view`] compares these with the formats in force and names the processes that
//! hold the gate. [`Gate::finalize`] puts the newer formats in force, by one compare-and-swap of the cluster's row. A
//! process that starts meanwhile takes a writer's number from the same row, so the swap conflicts and all processes
//! are checked again.
//!
//! Programs of release 0.1 report nothing. Their actions give them away: one that writes has intents under a lease
//! that no report names, and one that leads has the leader's row. A gateway of release 0.1 that has only read since
//! it started leaves no trace. It does no harm: the cluster's row then has a schema that it refuses, and so have all
//! rows in newer formats, so it returns errors for these and cannot start again.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use striate_core::{Formats, NeedsNewerProgram};
use striate_meta::records::{self, Cluster, Intent, Leader, Process};
use striate_meta::{Commit, LeaseId, MetaError, MetaStore, Precondition, Row, Transaction, keys};
use striate_runtime::Runtime;

use super::members::{MAX_ATTEMPTS, Members};

/// Time after which a dead process no longer counts.
const LEASE_TTL: Duration = Duration::from_secs(30);
/// Interval between two renewals.
const RENEW_EVERY: Duration = Duration::from_secs(10);

/// Role under which the work of a leading control process reports.
pub const LEADER_ROLE: &str = "leader";

/// A process, and the formats it reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reader {
    /// Name of the process for people: `gateway g1`, `site 3`.
    pub who: String,
    /// Version of the program; empty if unknown.
    pub program: String,
    /// The newest formats that it reads, or why they are unknown.
    pub reads: Result<Formats, String>,
}

impl Reader {
    /// Returns why the process keeps `target` from being put in force, if it does.
    fn holds(&self, target: Formats) -> Option<String> {
        let program = if self.program.is_empty() { "an older program" } else { &self.program };
        match &self.reads {
            Ok(reads) if reads.covers(target) => None,
            Ok(reads) => Some(format!("{} runs {program}, which reads up to {reads}", self.who)),
            Err(reason) => Some(format!("{}: {reason}", self.who)),
        }
    }
}

/// State of the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateView {
    /// The formats in force, which are written.
    pub in_force: Formats,
    /// The newest formats of the inspecting process, which it would put in force.
    pub target: Formats,
    /// All known processes.
    pub readers: Vec<Reader>,
}

impl GateView {
    /// Returns whether there is nothing to put in force.
    pub fn is_finalized(&self) -> bool {
        self.in_force.covers(self.target)
    }

    /// Returns the processes that keep newer formats from being put in force, with the reasons. Empty if none does,
    /// or no newer formats exist.
    pub fn holding(&self) -> Vec<String> {
        if self.is_finalized() {
            return Vec::new();
        }
        self.readers.iter().filter_map(|reader| reader.holds(self.target)).collect()
    }
}

/// Why newer formats were not put in force.
#[derive(Debug, thiserror::Error)]
pub enum FinalizeError {
    /// Some processes do not read the newer formats.
    #[error("not every process reads the newer formats; upgrade these, or stop them for good: {}", .0.join("; "))]
    Held(Vec<String>),
    /// The metadata has no cluster.
    #[error("the metadata has no cluster yet")]
    NoCluster,
    /// The store needs a newer program than this one.
    #[error(transparent)]
    NeedsNewer(#[from] NeedsNewerProgram),
    /// Other processes keep changing the cluster's row.
    #[error("others change the cluster's row at the same time; try again")]
    Conflict,
    /// The metadata store failed.
    #[error(transparent)]
    Meta(#[from] MetaError),
}

/// The upgrade gate of a store.
#[derive(Clone, Copy, Debug)]
pub struct Gate<'a> {
    members: Members<'a>,
    own_writer: Option<LeaseId>,
}

impl<'a> Gate<'a> {
    /// Creates the gate of the store with the metadata `meta`.
    pub fn new(runtime: &'a Runtime, meta: &'a dyn MetaStore) -> Self {
        Self { members: Members::new(runtime, meta), own_writer: None }
    }

    /// Marks `lease` as that of the calling process's own intents, whether it has reported it or not.
    pub fn with_writer(self, lease: LeaseId) -> Self {
        Self { own_writer: Some(lease), ..self }
    }

    /// Returns the state of the gate. `others` are readers without rows: sites, or the only process of a store.
    ///
    /// # Errors
    /// When the metadata cannot be read, or has no cluster.
    pub async fn view(&self, others: Vec<Reader>) -> Result<GateView, FinalizeError> {
        let cluster: Cluster = self.cluster_row().await?.record()?;
        let mut view = self.read_rows_of(&cluster).await?;
        view.readers.extend(others);
        Ok(view)
    }

    /// Puts the newest formats of this program in force if every process reads them; returns the formats then in
    /// force. Calls `others` before each attempt, for the readers that [`Gate::view`] takes.
    ///
    /// # Errors
    /// [`FinalizeError::Held`] with all processes that do not read them; nothing has changed then.
    pub async fn finalize<F>(&self, others: impl Fn() -> F) -> Result<Formats, FinalizeError>
    where
        F: Future<Output = Vec<Reader>>,
    {
        for _ in 0..MAX_ATTEMPTS {
            // Read before the processes are checked, so that a process that registers meanwhile makes the swap
            // conflict.
            let row = self.cluster_row().await?;
            let mut cluster: Cluster = row.record()?;
            cluster.formats().check_readable(&cluster.needs_release)?;
            let mut view = self.read_rows_of(&cluster).await?;
            view.readers.extend(others().await);
            if view.is_finalized() {
                return Ok(view.in_force);
            }
            let holding = view.holding();
            if !holding.is_empty() {
                return Err(FinalizeError::Held(holding));
            }
            cluster.set_formats(view.target);
            if self.members.put(&keys::cluster(), Some(&row), records::encode(&cluster)).await? {
                return Ok(view.target);
            }
        }
        Err(FinalizeError::Conflict)
    }

    async fn cluster_row(&self) -> Result<Row, FinalizeError> {
        self.members.meta.get(&keys::cluster()).await?.ok_or(FinalizeError::NoCluster)
    }

    async fn read_rows_of(&self, cluster: &Cluster) -> Result<GateView, MetaError> {
        let processes = self.processes().await?;
        let mut readers: Vec<Reader> = processes.iter().map(reader).collect();
        readers.extend(self.silent_leader(&processes).await?);
        readers.extend(self.silent_writers(&processes).await?);
        Ok(GateView { in_force: cluster.formats(), target: Formats::NEWEST, readers })
    }

    /// Returns the reports of running processes.
    async fn processes(&self) -> Result<Vec<Process>, MetaError> {
        let mut running = Vec::new();
        for row in self.members.rows(keys::PROCESSES).await? {
            let process: Process = row.record()?;
            if self.members.meta.is_alive(LeaseId(process.lease)).await? {
                running.push(process);
            }
        }
        Ok(running)
    }

    /// Returns a warning for each gateway and control process that does not run any more and was not stopped in good
    /// order, and one if no control process leads.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn absent(&self) -> Result<Vec<String>, MetaError> {
        let mut warnings = Vec::new();
        for row in self.members.rows(keys::PROCESSES).await? {
            let process: Process = row.record()?;
            // A control process that no longer leads leaves its report as the leader.
            if process.role != LEADER_ROLE && !self.members.meta.is_alive(LeaseId(process.lease)).await? {
                warnings.push(format!(
                    "{} {} does not run; start it again (if it is gone for good, the next process that starts forgets it)",
                    process.role, process.name
                ));
            }
        }
        let leader = self.members.meta.get(&keys::leader()).await?;
        let leader = leader.as_ref().map(Row::record::<Leader>).transpose()?;
        let leads = match &leader {
            Some(leader) => self.members.meta.is_alive(LeaseId(leader.lease)).await?,
            None => false,
        };
        if !leads {
            warnings.push(
                "no control process leads: nothing is repaired, scrubbed or collected; start `striate control`".to_owned(),
            );
        }
        Ok(warnings)
    }

    /// Returns a leading control process that does not report.
    async fn silent_leader(&self, processes: &[Process]) -> Result<Option<Reader>, MetaError> {
        let Some(row) = self.members.meta.get(&keys::leader()).await? else { return Ok(None) };
        let leader: Leader = row.record()?;
        let reports =
            processes.iter().any(|process| process.role == LEADER_ROLE && process.name == leader.name);
        if reports || !self.members.meta.is_alive(LeaseId(leader.lease)).await? {
            return Ok(None);
        }
        Ok(Some(silent(format!("the leading control process {}", leader.name))))
    }

    /// Returns writers with reservations that no report names.
    async fn silent_writers(&self, processes: &[Process]) -> Result<Vec<Reader>, MetaError> {
        let reported = processes.iter().map(|process| process.writer_lease);
        let reported_leases: BTreeSet<u64> = reported.chain(self.own_writer.map(|lease| lease.0)).collect();
        let (mut silent_writers, mut checked_leases) = (Vec::new(), BTreeSet::new());
        for row in self.members.rows(keys::INTENTS).await? {
            let intent: Intent = row.record()?;
            if !reported_leases.contains(&intent.lease)
                && checked_leases.insert(intent.lease)
                && self.members.meta.is_alive(LeaseId(intent.lease)).await?
            {
                silent_writers.push(silent(format!("the process with writer number {}", intent.writer)));
            }
        }
        Ok(silent_writers)
    }

    /// Removes the rows of dead processes.
    async fn forget_gone(&self) -> Result<(), MetaError> {
        for row in self.members.rows(keys::PROCESSES).await? {
            let process: Process = row.record()?;
            if !self.members.meta.is_alive(LeaseId(process.lease)).await? {
                self.members.take_down(&row).await?;
            }
        }
        Ok(())
    }
}

fn reader(process: &Process) -> Reader {
    Reader {
        who: format!("{} {}", process.role, process.name),
        program: process.program.clone(),
        reads: Ok(Formats::from_numbers(process.record_format, process.chunk_format)),
    }
}

fn silent(who: String) -> Reader {
    Reader { who, program: String::new(), reads: Ok(Formats::OLDEST) }
}

/// Maintains the row that says what this process reads.
pub struct ProcessReport {
    runtime: Runtime,
    meta: Arc<dyn MetaStore>,
    process: Process,
    lease: Option<LeaseId>,
    /// The row as last written.
    written: Option<Process>,
}

impl ProcessReport {
    /// Creates the report of the process `name` with this role and version. It claims all formats that this program
    /// reads.
    pub fn new(runtime: Runtime, meta: Arc<dyn MetaStore>, role: &str, name: &str, program: &str) -> Self {
        let process = Process {
            role: role.to_owned(),
            name: name.to_owned(),
            program: program.to_owned(),
            record_format: Formats::NEWEST.records,
            chunk_format: Formats::NEWEST.chunks,
            lease: 0,
            writer_lease: 0,
        };
        Self { runtime, meta, process, lease: None, written: None }
    }

    /// Writes the row and keeps its lease alive until the task is dropped. `writer_lease` returns the lease of this
    /// process's intents, if it writes.
    pub async fn keep(mut self, writer_lease: impl Fn() -> Option<LeaseId> + Send) {
        let mut said = false;
        if let Err(error) = Gate::new(&self.runtime, self.meta.as_ref()).forget_gone().await {
            tracing::debug!(%error, "the reports of processes that are gone stay for now");
        }
        loop {
            match self.renew(writer_lease()).await {
                Ok(()) => said = false,
                Err(error) if !said => {
                    said = true;
                    tracing::warn!(%error, "what this process reads could not be reported; will try again");
                }
                Err(_) => {}
            }
            self.runtime.sleep(RENEW_EVERY).await;
        }
    }

    /// Removes the row of a process that stops in good order.
    ///
    /// # Errors
    /// When the metadata store fails; the row then stays, and the process is reported as one that does not run.
    pub async fn withdraw(
        runtime: &Runtime,
        meta: &dyn MetaStore,
        role: &str,
        name: &str,
    ) -> Result<(), MetaError> {
        let members = Members::new(runtime, meta);
        match meta.get(&keys::process(role, name)).await? {
            Some(row) => members.take_down(&row).await,
            None => Ok(()),
        }
    }

    async fn renew(&mut self, writer_lease: Option<LeaseId>) -> Result<(), MetaError> {
        if let Some(lease) = self.lease
            && !self.meta.keep_alive(lease).await?
        {
            self.lease = None;
        }
        let lease = match self.lease {
            Some(lease) => lease,
            None => self.meta.grant_lease(LEASE_TTL).await?.id,
        };
        self.lease = Some(lease);
        self.process.lease = lease.0;
        self.process.writer_lease = writer_lease.map_or(0, |lease| lease.0);
        if self.written.as_ref() == Some(&self.process) {
            return Ok(());
        }
        let mut tx = Transaction::with_random_id(&self.runtime);
        tx.require(Precondition::LeaseAlive(lease));
        tx.put(keys::process(&self.process.role, &self.process.name), records::encode(&self.process));
        match self.meta.commit(tx).await? {
            Commit::Done(_) => self.written = Some(self.process.clone()),
            Commit::Conflict { .. } => self.lease = None,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use striate_meta::{MemoryStore, ScanRange, TxId};

    use super::*;

    fn engine() -> (Runtime, Arc<dyn MetaStore>) {
        let runtime = Runtime::deterministic(1, Duration::ZERO);
        let meta: Arc<dyn MetaStore> = Arc::new(MemoryStore::new(runtime.clone()));
        (runtime, meta)
    }

    async fn put(meta: &Arc<dyn MetaStore>, key: Bytes, value: Bytes) {
        let mut tx = Transaction::new(TxId(u128::from(value.len() as u64) << 32 | key.len() as u128));
        tx.put(key, value);
        assert!(matches!(meta.commit(tx).await.unwrap(), Commit::Done(_)));
    }

    async fn old_cluster(meta: &Arc<dyn MetaStore>) {
        put(meta, keys::cluster(), records::encode(&Cluster { next_site: 1, ..Cluster::default() })).await;
    }

    fn site(reads: Result<Formats, String>) -> Reader {
        Reader { who: "site 1".to_owned(), program: "0.1.1".to_owned(), reads }
    }

    fn report(runtime: &Runtime, meta: &Arc<dyn MetaStore>, role: &str, name: &str) -> ProcessReport {
        ProcessReport::new(runtime.clone(), meta.clone(), role, name, "0.2.0")
    }

    #[tokio::test(start_paused = true)]
    async fn formats_are_put_in_force_when_everybody_reads_them_and_not_before() {
        let (runtime, meta) = engine();
        let gate = Gate::new(&runtime, meta.as_ref());
        assert!(matches!(gate.view(Vec::new()).await, Err(FinalizeError::NoCluster)));
        old_cluster(&meta).await;
        runtime.spawn(report(&runtime, &meta, "gateway", "g1").keep(|| None));
        runtime.sleep(Duration::from_secs(60)).await;
        let others = || async { vec![site(Ok(Formats::OLDEST))] };
        let held = gate.finalize(others).await.unwrap_err().to_string();
        assert!(held.contains("site 1 runs 0.1.1, which reads up to records 1, chunks 1"), "{held}");
        let silent = || async { vec![site(Err("it does not answer".to_owned()))] };
        let held = gate.finalize(silent).await.unwrap_err().to_string();
        assert!(held.contains("site 1: it does not answer"), "{held}");
        let view = gate.view(others().await).await.unwrap();
        assert_eq!((view.in_force, view.is_finalized()), (Formats::OLDEST, false));
        assert_eq!(view.readers[0].who, "gateway g1");

        let newer = || async { vec![site(Ok(Formats::NEWEST))] };
        assert_eq!(gate.finalize(newer).await.unwrap(), Formats::NEWEST);
        let view = gate.view(others().await).await.unwrap();
        assert!(view.is_finalized() && view.holding().is_empty());
        assert_eq!(gate.finalize(newer).await.unwrap(), Formats::NEWEST, "a second time changes nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn processes_that_died_and_a_missing_leader_are_named_and_those_that_stopped_are_not() {
        let (runtime, meta) = engine();
        old_cluster(&meta).await;
        let gate = Gate::new(&runtime, meta.as_ref());
        let absent = async || gate.absent().await.unwrap();
        assert!(absent().await.iter().any(|warning| warning.starts_with("no control process leads")));
        let (of_process, process) = runtime.process();
        for (role, name) in [("gateway", "g1"), ("control", "c1"), (LEADER_ROLE, "c1")] {
            of_process.spawn(report(&of_process, &meta, role, name).keep(|| None));
        }
        runtime.spawn(report(&runtime, &meta, "gateway", "g2").keep(|| None));
        let lease = meta.grant_lease(Duration::from_secs(3_600)).await.unwrap().id;
        put(&meta, keys::leader(), records::encode(&Leader { lease: lease.0, name: "c1".to_owned() })).await;
        runtime.sleep(Duration::from_secs(60)).await;
        assert_eq!(absent().await, Vec::<String>::new());
        process.kill();
        runtime.sleep(Duration::from_secs(60)).await;
        let warnings = absent().await;
        let [control, gateway] = warnings.as_slice() else { panic!("{warnings:?}") };
        assert!(
            control.starts_with("control c1 does not run") && gateway.starts_with("gateway g1"),
            "{warnings:?}"
        );
        ProcessReport::withdraw(&runtime, meta.as_ref(), "gateway", "g1").await.unwrap();
        assert_eq!(absent().await.len(), 1);
        meta.revoke_lease(lease).await.unwrap();
        assert!(absent().await.iter().any(|warning| warning.starts_with("no control process leads")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_counts_while_it_runs_and_its_row_goes_afterwards() {
        let (runtime, meta) = engine();
        old_cluster(&meta).await;
        let gate = Gate::new(&runtime, meta.as_ref());
        let (of_process, process) = runtime.process();
        let mut old = report(&of_process, &meta, "gateway", "g1");
        old.process.record_format = 1;
        of_process.spawn(old.keep(|| None));
        runtime.sleep(Duration::from_secs(300)).await;
        assert_eq!(gate.view(Vec::new()).await.unwrap().holding().len(), 1, "its lease is kept alive");
        process.kill();
        runtime.sleep(LEASE_TTL * 2).await;
        assert!(gate.view(Vec::new()).await.unwrap().readers.is_empty());
        runtime.spawn(report(&runtime, &meta, "gateway", "g2").keep(|| None));
        runtime.sleep(Duration::from_secs(1)).await;
        let rows = meta.scan(ScanRange::prefix(keys::PROCESSES), 10).await.unwrap();
        assert_eq!(rows.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn programs_that_report_nothing_are_noticed_by_what_they_do() {
        let (runtime, meta) = engine();
        old_cluster(&meta).await;
        let gate = Gate::new(&runtime, meta.as_ref());
        let forever = Duration::from_secs(1 << 30);
        let lease = meta.grant_lease(forever).await.unwrap().id;
        let intent = Intent { writer: 17, first_sequence: 0, count: 1_024, lease: lease.0 };
        put(&meta, keys::intent(17, 0), records::encode(&intent)).await;
        let leader = Leader { lease: lease.0, name: "c1".to_owned() };
        put(&meta, keys::leader(), records::encode(&leader)).await;
        assert_eq!(gate.with_writer(lease).view(Vec::new()).await.unwrap().holding().len(), 1);
        let holding = gate.view(Vec::new()).await.unwrap().holding();
        assert_eq!(holding.len(), 2, "{holding:?}");
        assert!(
            holding[0].contains("the leading control process c1") && holding[1].contains("writer number 17"),
            "{holding:?}"
        );

        runtime.spawn(report(&runtime, &meta, LEADER_ROLE, "c1").keep(move || Some(lease)));
        runtime.sleep(Duration::from_secs(1)).await;
        let holding = gate.view(Vec::new()).await.unwrap().holding();
        assert!(holding.is_empty(), "{holding:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_registers_while_others_are_asked_is_looked_at_too() {
        let (runtime, meta) = engine();
        old_cluster(&meta).await;
        let gate = Gate::new(&runtime, meta.as_ref());
        let calls = std::sync::atomic::AtomicU32::new(0);
        // Registers like release 0.1: takes a number from the cluster's row, and then reserves names.
        let others = || async {
            if calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
                let lease = meta.grant_lease(Duration::from_secs(1 << 30)).await.unwrap().id;
                let row = Cluster { next_site: 1, next_writer: 1, ..Cluster::default() };
                put(&meta, keys::cluster(), records::encode(&row)).await;
                let intent = Intent { writer: 1, first_sequence: 0, count: 1_024, lease: lease.0 };
                put(&meta, keys::intent(1, 0), records::encode(&intent)).await;
            }
            Vec::new()
        };
        let held = gate.finalize(others).await.unwrap_err();
        assert!(matches!(held, FinalizeError::Held(_)), "{held}");
    }
}
