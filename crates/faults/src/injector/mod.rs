//! The injector: draws faults from the seed, spreads them over the run, and ends each of them.
//!
//! Faults overlap, but a disk has at most one at a time. Before a fault destroys chunks (a flipped bit, a blank
//! disk), it asks the [`ledger`](super::ledger). Crashes destroy nothing that was acknowledged, so any number of
//! sites may be down: operations then fail, but nothing else may go wrong.

mod disks;
mod machines;
mod network;
mod services;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use striate_core::SiteId;

use super::cluster::Cluster;
use super::coverage::FaultKind;
use super::invariants;
use super::site::{Crash, SiteMachine};
use super::worker::Shared;
use striate_site::filesystem::Call;
use striate_virtual_network::Event;

/// Interval between checks whether the next fault is due.
const LOOK: Duration = Duration::from_millis(50);

/// With wide stripes, one fault in this many is the loss of a rack.
const RACKS_EVERY: u64 = 12;

/// Injects the faults of a run.
#[derive(Debug)]
pub struct Injector {
    shared: Arc<Shared>,
    cluster: Arc<Cluster>,
    /// Sites that have a fault.
    troubled: Mutex<BTreeSet<SiteId>>,
    /// Running faults that affect the whole cluster, at most one of each kind.
    common: Mutex<BTreeSet<FaultKind>>,
    injected: Mutex<u64>,
}

impl Injector {
    /// Creates the injector of a run.
    pub fn new(shared: Arc<Shared>) -> Arc<Self> {
        let cluster = Arc::clone(&shared.cluster);
        let (troubled, common, injected) = Default::default();
        Arc::new(Self { shared, cluster, troubled, common, injected })
    }

    /// Returns the number of faults injected so far.
    pub fn injected(&self) -> u64 {
        *self.injected.lock()
    }

    /// Injects `count` faults over the run's `operations`, and ends all of them.
    pub async fn run(self: Arc<Self>, count: u64, operations: u64) {
        let mut tasks = Vec::new();
        while self.injected() < count {
            let due = operations * (self.injected() + 1) / (count + 1);
            if self.shared.begun.load(Ordering::Relaxed) < due {
                self.cluster.runtime.sleep(LOOK).await;
                continue;
            }
            let kind = self.draw_kind();
            let before = self.injected();
            let task = self.cluster.runtime.spawn(Arc::clone(&self).inject(kind));
            // Let it begin, or find that it may not, before anything else happens.
            while self.injected() == before && !task.is_finished() {
                self.cluster.runtime.sleep(Duration::from_micros(1)).await;
            }
            tasks.push(task);
            self.cluster.runtime.sleep(LOOK).await;
        }
        for ended in join_all(tasks).await {
            ended.expect("a fault does not panic");
        }
    }

    /// Draws a kind of fault. With wide stripes, the loss of a rack is more frequent.
    fn draw_kind(&self) -> FaultKind {
        let is_wide = self.cluster.wide_profile().is_some();
        match is_wide && self.cluster.draw(RACKS_EVERY) == 0 {
            true => FaultKind::RackLoss,
            false => self.cluster.choose(&FaultKind::ALL).expect("there are some"),
        }
    }

    async fn inject(self: Arc<Self>, kind: FaultKind) {
        match kind {
            FaultKind::SiteKill => self.crash_site(kind, Crash::Kill).await,
            FaultKind::PowerCut => self.crash_site(kind, Crash::PowerCut).await,
            FaultKind::EngineCrash => self.crash_engine(kind).await,
            FaultKind::GatewayKill => self.kill_process(kind).await,
            FaultKind::HungDisk | FaultKind::SlowDisk | FaultKind::FullDisk => self.hold_up(kind).await,
            FaultKind::ReadError => self.fail_calls(kind, &[Call::Read]).await,
            FaultKind::WriteError => self.fail_calls(kind, &[Call::Write, Call::Create, Call::Rename]).await,
            FaultKind::SyncError => self.fail_calls(kind, &[Call::Sync, Call::SyncDirectory]).await,
            FaultKind::BitFlip | FaultKind::Misdirected => self.damage(kind).await,
            FaultKind::BlankDisk => self.blank_disk(kind).await,
            FaultKind::Loss => self.lose_messages(kind).await,
            FaultKind::Partition => self.partition(kind).await,
            FaultKind::OneWayCut => self.cut_one_way(kind).await,
            FaultKind::Replay => self.replay(kind).await,
            FaultKind::ClockJump => self.jump_clock(kind).await,
            FaultKind::MirrorFault | FaultKind::MirrorBlank => self.fail_mirror(kind).await,
            FaultKind::Pause => self.pause_process(kind).await,
            FaultKind::LeaderKill => self.kill_leader(kind).await,
            FaultKind::LeaderCut => self.cut_leader(kind).await,
            FaultKind::Absence => self.be_absent(kind).await,
            FaultKind::SecondFailure => self.fail_again(kind).await,
            FaultKind::Drain => self.drain(kind).await,
            FaultKind::Join => self.join(kind).await,
            FaultKind::RackLoss => self.crash_rack(kind).await,
            FaultKind::MemoryKill => self.kill_memory(kind).await,
        }
    }

    fn begin(&self, kind: FaultKind, target: u64) {
        *self.injected.lock() += 1;
        self.cluster.trace.record(Event::Fault, target, kind as u64);
        self.cluster.coverage.begin_fault(kind);
        if self.shared.verbose {
            eprintln!("{:?} FAULT {} at {target}", self.cluster.runtime.uptime(), kind.name());
        }
    }

    fn end(&self, kind: FaultKind) {
        self.cluster.coverage.end_fault(kind);
        if self.shared.verbose {
            eprintln!("{:?} end of {}", self.cluster.runtime.uptime(), kind.name());
        }
    }

    /// Reserves a random site that is up and has no fault.
    fn take_site(&self) -> Option<Arc<SiteMachine>> {
        let mut troubled = self.troubled.lock();
        let free = |site: &Arc<SiteMachine>| site.is_up() && !troubled.contains(&site.id());
        let sites: Vec<_> = self.cluster.sites().into_iter().filter(free).collect();
        let site = self.cluster.choose(&sites)?;
        troubled.insert(site.id());
        Some(site)
    }

    /// Reserves this site, if it is up and has no fault.
    fn take_this_site(&self, id: SiteId) -> Option<Arc<SiteMachine>> {
        let site = self.cluster.site(id).filter(|site| site.is_up())?;
        self.troubled.lock().insert(id).then_some(site)
    }

    fn give_back(&self, site: &SiteMachine) {
        self.troubled.lock().remove(&site.id());
    }

    /// Reserves a fault of the whole cluster.
    fn take(&self, kind: FaultKind) -> bool {
        self.common.lock().insert(kind)
    }

    fn leave(&self, kind: FaultKind) {
        self.common.lock().remove(&kind);
    }

    async fn pause(&self, from_ms: u64, to_ms: u64) {
        let (from, to) = (Duration::from_millis(from_ms), Duration::from_millis(to_ms));
        self.cluster.runtime.sleep(self.cluster.draw_time(from, to)).await;
    }

    /// Waits until something has happened, but no longer than `most`.
    async fn wait_for(&self, most: Duration, has_happened: impl Fn() -> bool) {
        let deadline = self.cluster.runtime.now() + most;
        while !has_happened() && self.cluster.runtime.now() < deadline {
            self.pause(1, 2).await;
        }
    }

    /// Returns true if a disk may lose chunks. The number of disks that lose chunks at a time must not exceed what
    /// every stripe tolerates beyond what its write may leave out, including running writes. One more disk is allowed
    /// once every stripe is known to have a chunk to spare. Without redundancy no disk ever may.
    fn may_hurt(&self, site: &SiteMachine) -> bool {
        let allowed = self.cluster.bearable();
        let may_one_more = || self.cluster.ledger.is_settled() && invariants::can_spare_one(&self.cluster);
        allowed > 0 && (self.cluster.ledger.may_hurt(site.id(), allowed) || may_one_more())
    }
}
