//! The injector: draws faults from the seed, spreads them over the run, and ends each of them again.
//!
//! Faults overlap, but a disk has one at a time. What destroys chunks (a flipped bit, a blank disk) is asked of the
//! [`ledger`](super::ledger) first. Crashes destroy nothing that was acknowledged, so any number of sites may be down:
//! then operations fail, and that is all they may do.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use striate_core::SiteId;
use striate_meta::embedded::simulated::Fault as MirrorFault;
use striate_site::ChunkStore;
use striate_site::filesystem::{Call, Fault};

use super::cluster::Cluster;
use super::coverage::FaultKind;
use super::engine::TOLERANCE;
use super::invariants::{self, Invariant};
use super::site::{self, Crash, SECTOR, SiteMachine};
use super::worker::Shared;
use crate::network::Machine;
use crate::trace::Event;

/// Errno of a failing medium.
const EIO: i32 = 5;
/// Pause between two looks whether it is time for the next fault.
const LOOK: Duration = Duration::from_millis(50);
/// How long a machine may take to come back.
const COME_BACK: Duration = Duration::from_secs(60);

/// Faults of a run.
#[derive(Debug)]
pub struct Injector {
    shared: Arc<Shared>,
    cluster: Arc<Cluster>,
    /// Sites with a fault.
    troubled: Mutex<BTreeSet<SiteId>>,
    /// Faults of the whole cluster that exclude each other.
    common: Mutex<BTreeSet<FaultKind>>,
    injected: Mutex<u64>,
}

impl Injector {
    /// For a run.
    pub fn new(shared: Arc<Shared>) -> Arc<Self> {
        let cluster = Arc::clone(&shared.cluster);
        let (troubled, common, injected) = Default::default();
        Arc::new(Self { shared, cluster, troubled, common, injected })
    }

    /// Faults injected so far.
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
            let kind = self.cluster.choose(&FaultKind::ALL).expect("there are some");
            let before = self.injected();
            let task = self.cluster.runtime.spawn(Arc::clone(&self).inject(kind));
            // It has begun, or found that it may not, before anything else happens.
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

    async fn inject(self: Arc<Self>, kind: FaultKind) {
        match kind {
            FaultKind::SiteKill => self.crash_site(kind, Crash::Kill).await,
            FaultKind::PowerCut => self.crash_site(kind, Crash::PowerCut).await,
            FaultKind::EngineCrash => self.crash_engine(kind).await,
            FaultKind::GatewayKill => self.kill_gateway(kind).await,
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
        }
    }

    fn begin(&self, kind: FaultKind, what: u64) {
        *self.injected.lock() += 1;
        self.cluster.trace.record(Event::Fault, what, kind as u64);
        self.cluster.coverage.begin_fault(kind);
        if self.shared.verbose {
            eprintln!("{:?} FAULT {} at {what}", self.cluster.runtime.uptime(), kind.name());
        }
    }

    fn end(&self, kind: FaultKind) {
        self.cluster.coverage.end_fault(kind);
        if self.shared.verbose {
            eprintln!("{:?} end of {}", self.cluster.runtime.uptime(), kind.name());
        }
    }

    /// Takes a site that has no fault and is up.
    fn take_site(&self) -> Option<Arc<SiteMachine>> {
        let mut troubled = self.troubled.lock();
        let free = |site: &Arc<SiteMachine>| site.is_up() && !troubled.contains(&site.id());
        let sites: Vec<_> = self.cluster.sites().into_iter().filter(free).collect();
        let site = self.cluster.choose(&sites)?;
        troubled.insert(site.id());
        Some(site)
    }

    fn give_back(&self, site: &SiteMachine) {
        self.troubled.lock().remove(&site.id());
    }

    /// Takes the right to a fault of the whole cluster.
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

    async fn crash_site(&self, kind: FaultKind, crash: Crash) {
        let Some(site) = self.take_site() else { return };
        self.begin(kind, u64::from(site.id().0));
        if self.cluster.draw(2) == 0 {
            // In the middle of a call, if there is one soon.
            let fs = site.fs();
            fs.die_at(fs.changes() + 1 + self.cluster.draw(12));
            let deadline = self.cluster.runtime.now() + Duration::from_secs(2);
            while !fs.is_dead() && self.cluster.runtime.now() < deadline {
                self.pause(1, 2).await;
            }
        }
        site.crash(crash);
        self.pause(100, 3_000).await;
        self.bring_back(&site).await;
        self.end(kind);
        self.give_back(&site);
    }

    /// Starts a site that is down; it has what it had acknowledged (I7).
    async fn bring_back(&self, site: &SiteMachine) {
        let deadline = self.cluster.runtime.now() + COME_BACK;
        while let Err(error) = site.start() {
            if self.cluster.runtime.now() > deadline {
                self.cluster.broken.report(Invariant::I13, format!("a site does not start again: {error}"));
                return;
            }
            self.pause(100, 200).await;
        }
        invariants::check_site(&self.cluster, site);
    }

    async fn crash_engine(&self, kind: FaultKind) {
        if !self.take(kind) {
            return;
        }
        self.begin(kind, 0);
        self.cluster.engine.fail_power_soon(1 + self.cluster.draw(60));
        let deadline = self.cluster.runtime.now() + Duration::from_secs(2);
        while !self.cluster.engine.is_off() && self.cluster.runtime.now() < deadline {
            self.pause(1, 2).await;
        }
        self.cluster.engine.crash();
        self.pause(50, 2_000).await;
        self.restart_engine().await;
        // Leases end with the engine's run, and with them what gateways may write: they are started anew.
        for gateway in self.cluster.gateways.clone() {
            self.pause(0, 1_000).await;
            gateway.kill();
            gateway.start(&self.cluster).await;
        }
        self.end(kind);
        self.leave(kind);
    }

    async fn restart_engine(&self) {
        let deadline = self.cluster.runtime.now() + COME_BACK;
        while let Err(error) = self.cluster.engine.start().await {
            if self.cluster.runtime.now() > deadline {
                self.cluster
                    .broken
                    .report(Invariant::I13, format!("the metadata does not start again: {error}"));
                return;
            }
            self.pause(100, 200).await;
        }
    }

    async fn kill_gateway(&self, kind: FaultKind) {
        let Some(gateway) = self.cluster.choose(&self.cluster.gateways) else { return };
        if gateway.running().is_none() || !self.take(kind) {
            return;
        }
        self.begin(kind, u64::from(gateway.machine.number));
        // The instant is drawn finely, so that it falls between any two awaits of an operation.
        let soon = self.cluster.draw_time(Duration::ZERO, Duration::from_millis(300));
        self.cluster.runtime.sleep(soon).await;
        gateway.kill();
        self.pause(100, 1_500).await;
        gateway.start(&self.cluster).await;
        self.end(kind);
        self.leave(kind);
    }

    async fn hold_up(&self, kind: FaultKind) {
        let Some(site) = self.take_site() else { return };
        self.begin(kind, u64::from(site.id().0));
        let set = |on: bool| match kind {
            FaultKind::HungDisk => site.set_hung(on),
            FaultKind::SlowDisk => site.set_slow(on),
            _ if on => {
                let taken = site.store().map_or(0, |store| store.status().disk_bytes);
                site.fs().set_capacity(taken + self.cluster.draw(200 << 10));
            }
            _ => site.fs().set_capacity(site::CAPACITY),
        };
        set(true);
        self.pause(300, 4_000).await;
        set(false);
        self.end(kind);
        self.give_back(&site);
    }

    async fn fail_calls(&self, kind: FaultKind, calls: &[Call]) {
        let Some(site) = self.take_site() else { return };
        self.begin(kind, u64::from(site.id().0));
        let fs = site.fs();
        for _ in 0..1 + self.cluster.draw(3) {
            let call = self.cluster.choose(calls).expect("there are some");
            let (after, count) = (self.cluster.draw(10), 1 + self.cluster.draw(3));
            fs.inject(Fault { call, after, count, errno: EIO });
        }
        self.pause(300, 4_000).await;
        fs.heal();
        // A disk that has failed twice takes no writes until somebody has looked at it.
        if site.store().is_some_and(|store| store.status().suspect.is_some()) {
            self.pause(0, 2_000).await;
            site.crash(Crash::Kill);
            self.pause(100, 500).await;
            self.bring_back(&site).await;
        }
        self.end(kind);
        self.give_back(&site);
    }

    /// Disks that may lose chunks at a time.
    fn victims_allowed(&self) -> usize {
        self.cluster.profile().code.tolerance().saturating_sub(self.cluster.most_debt())
    }

    async fn damage(&self, kind: FaultKind) {
        let Some(site) = self.take_site() else { return };
        if self.cluster.ledger.may_hurt(site.id(), self.victims_allowed())
            && self.damage_segments(&site, kind)
        {
            self.begin(kind, u64::from(site.id().0));
            self.pause(1_000, 5_000).await;
            self.end(kind);
        }
        self.give_back(&site);
    }

    /// Damages segments of a site in a few places, and notes which chunks it has hit.
    fn damage_segments(&self, site: &SiteMachine, kind: FaultKind) -> bool {
        let Some(before) = site.whole_chunks() else { return false };
        let files: Vec<_> = site.fs().files().into_iter().filter(|path| site::is_segment(path)).collect();
        let mut changed = false;
        for _ in 0..1 + self.cluster.draw(4) {
            let Some(path) = self.cluster.choose(&files) else { return false };
            let place = self.cluster.draw(1 << 40);
            changed |= if kind == FaultKind::BitFlip {
                site.flip(&path, place, self.cluster.draw(8) as u32)
            } else {
                let from = self.cluster.choose(&files).expect("there are some");
                // From one sector to several small chunks with their headers.
                let len = SECTOR << self.cluster.draw(8);
                site.misdirect((&from, self.cluster.draw(1 << 40)), (&path, place), len)
            };
        }
        let after = site.whole_chunks().unwrap_or_default();
        self.cluster.ledger.hurt(site.id(), before.difference(&after).copied());
        changed
    }

    async fn blank_disk(&self, kind: FaultKind) {
        let Some(site) = self.take_site() else { return };
        if self.cluster.ledger.may_hurt(site.id(), self.victims_allowed()) {
            self.cluster.ledger.hurt(site.id(), []);
            self.begin(kind, u64::from(site.id().0));
            self.cluster.replace_site(&site).await;
            self.pause(1_000, 4_000).await;
            self.end(kind);
        }
        self.give_back(&site);
    }

    async fn lose_messages(&self, kind: FaultKind) {
        if !self.take(kind) {
            return;
        }
        self.begin(kind, 0);
        self.cluster.network.set_loss(0.02 + self.cluster.draw(200) as f64 / 1e3);
        self.pause(500, 4_000).await;
        self.cluster.network.set_loss(0.0);
        self.end(kind);
        self.leave(kind);
    }

    async fn partition(&self, kind: FaultKind) {
        if !self.take(FaultKind::Partition) {
            return;
        }
        let (one, other): (Vec<Machine>, Vec<Machine>) =
            self.cluster.machines().into_iter().partition(|_| self.cluster.draw(3) == 0);
        self.begin(kind, one.len() as u64);
        self.cluster.network.partition(&one, &other);
        self.pause(300, 3_000).await;
        self.cluster.network.mend();
        self.end(kind);
        self.leave(FaultKind::Partition);
    }

    async fn cut_one_way(&self, kind: FaultKind) {
        // Mending mends every cut.
        if !self.take(FaultKind::Partition) {
            return;
        }
        self.begin(kind, 0);
        let machines = self.cluster.machines();
        for _ in 0..2 + self.cluster.draw(12) {
            let (from, to) = (self.cluster.choose(&machines), self.cluster.choose(&machines));
            if let (Some(from), Some(to)) = (from, to) {
                self.cluster.network.cut(from, to);
            }
        }
        self.pause(300, 4_000).await;
        self.cluster.network.mend();
        self.end(kind);
        self.leave(FaultKind::Partition);
    }

    async fn replay(&self, kind: FaultKind) {
        let Some(site) = self.take_site() else { return };
        self.begin(kind, u64::from(site.id().0));
        site.set_replays(true);
        self.pause(500, 4_000).await;
        site.set_replays(false);
        // The last of them may still be on its way.
        self.cluster.runtime.sleep(site::REPLAYED_WITHIN).await;
        self.end(kind);
        self.give_back(&site);
    }

    /// A gateway's wall clock jumps a few times, by up to seventeen years, and is set right again.
    async fn jump_clock(&self, kind: FaultKind) {
        let Some(gateway) = self.cluster.choose(&self.cluster.gateways) else { return };
        if gateway.running().is_none() || !self.take(kind) {
            return;
        }
        self.begin(kind, u64::from(gateway.machine.number));
        for _ in 0..1 + self.cluster.draw(3) {
            let by_ms = (1_i64 << self.cluster.draw(39)) + self.cluster.draw(1_000) as i64;
            gateway.set_clock_ahead(if self.cluster.draw(2) == 0 { by_ms } else { -by_ms });
            self.pause(300, 2_000).await;
        }
        gateway.set_clock_ahead(0);
        self.end(kind);
        self.leave(kind);
    }

    /// A disk of the metadata fails, or is replaced by a blank one; never more at a time than may be lost.
    async fn fail_mirror(&self, kind: FaultKind) {
        if !self.take(FaultKind::MirrorFault) {
            return;
        }
        if self.cluster.engine.mirrors_in_sync().await == Some(TOLERANCE + 1) {
            let disk = self.cluster.draw(super::engine::DISKS as u64) as usize;
            self.begin(kind, disk as u64);
            if kind == FaultKind::MirrorBlank {
                self.cluster.engine.blank_disk(disk).await;
                self.pause(300, 2_000).await;
            } else {
                let faults = [MirrorFault::Reads, MirrorFault::Writes, MirrorFault::Syncs];
                self.cluster.engine.set_disk_fault(disk, self.cluster.choose(&faults));
                self.pause(300, 4_000).await;
                self.cluster.engine.set_disk_fault(disk, None);
            }
            self.cluster.engine.present_disks().await;
            self.end(kind);
        }
        self.leave(FaultKind::MirrorFault);
    }
}
