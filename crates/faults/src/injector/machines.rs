//! Faults of machines and processes: they die, are paused, or have a wrong clock.

use std::sync::Arc;
use std::time::Duration;

use super::Injector;
use crate::cluster::Cluster;
use crate::coverage::FaultKind;
use crate::gateway::Gateway;
use crate::invariants::{self, Invariant};
use crate::services::ControlProcess;
use crate::site::{Crash, SiteMachine};

/// Timeout for a machine to come back.
const COME_BACK: Duration = Duration::from_secs(60);

/// A process that is not a site.
pub(super) enum Process {
    Gateway(Arc<Gateway>),
    Control(Arc<ControlProcess>),
}

impl Process {
    fn number(&self) -> u64 {
        u64::from(match self {
            Self::Gateway(gateway) => gateway.machine.number,
            Self::Control(control) => control.machine.number,
        })
    }

    fn is_running(&self) -> bool {
        match self {
            Self::Gateway(gateway) => gateway.running().is_some(),
            Self::Control(control) => control.is_running(),
        }
    }

    fn kill(&self) {
        match self {
            Self::Gateway(gateway) => gateway.kill(),
            Self::Control(control) => control.kill(),
        }
    }

    async fn start(&self, cluster: &Arc<Cluster>) {
        match self {
            Self::Gateway(gateway) => gateway.start(cluster).await,
            Self::Control(control) => control.start(cluster),
        }
    }

    fn set_paused(&self, is_paused: bool) {
        match self {
            Self::Gateway(gateway) => gateway.set_paused(is_paused),
            Self::Control(control) => control.set_paused(is_paused),
        }
    }

    fn set_clock_ahead(&self, by_ms: i64) {
        match self {
            Self::Gateway(gateway) => gateway.set_clock_ahead(by_ms),
            Self::Control(control) => control.set_clock_ahead(by_ms),
        }
    }
}

impl Injector {
    /// Draws a process; `None` if it is not running.
    fn choose_process(&self) -> Option<Process> {
        let gateways = self.cluster.gateways.len() as u64;
        let drawn = self.cluster.draw(gateways + self.cluster.controls.len() as u64);
        let process = match drawn < gateways {
            true => Process::Gateway(Arc::clone(&self.cluster.gateways[drawn as usize])),
            false => Process::Control(Arc::clone(&self.cluster.controls[(drawn - gateways) as usize])),
        };
        process.is_running().then_some(process)
    }

    pub(super) async fn crash_site(&self, kind: FaultKind, crash: Crash) {
        let Some(site) = self.take_site() else { return };
        self.begin(kind, u64::from(site.id().0));
        if self.cluster.draw(2) == 0 {
            // In the middle of a call, if one comes soon.
            let fs = site.fs();
            fs.die_at(fs.changes() + 1 + self.cluster.draw(12));
            self.wait_for(Duration::from_secs(2), || fs.is_dead()).await;
        }
        site.crash(crash);
        self.pause(100, 3_000).await;
        self.bring_back(&site).await;
        self.end(kind);
        self.give_back(&site);
    }

    /// All sites of a rack without a fault die at once and come back one after the other. With wide stripes, which
    /// tolerate the loss of a rack, half of the time they come back only after repair has had time to rebuild their
    /// chunks elsewhere.
    pub(super) async fn crash_rack(&self, kind: FaultKind) {
        let Some(first) = self.take_site() else { return };
        let rack = first.machine.rack;
        let others = self.cluster.sites().into_iter().filter(|site| site.machine.rack == rack);
        let others: Vec<_> = others.filter_map(|site| self.take_this_site(site.id())).collect();
        self.begin(kind, u64::from(rack));
        let sites: Vec<_> = [first].into_iter().chain(others).collect();
        let crash = self.draw_crash();
        for site in &sites {
            site.crash(crash);
        }
        self.pause(100, 4_000).await;
        if self.cluster.wide_profile().is_some() && self.cluster.draw(2) == 0 {
            self.pause(4_000, 14_000).await;
        }
        for site in &sites {
            self.bring_back(site).await;
            self.give_back(site);
            self.pause(0, 500).await;
        }
        self.end(kind);
    }

    /// A memory site dies and comes back empty.
    pub(super) async fn kill_memory(&self, kind: FaultKind) {
        let Some(tier) = &self.cluster.memory else { return };
        let Some(site) = self.cluster.choose(&tier.machines) else { return };
        self.begin(kind, u64::from(site.machine.number));
        site.kill();
        self.pause(0, 2_000).await;
        site.start();
        self.end(kind);
    }

    /// Starts a site that is down and checks that it still has what it had acknowledged (I7).
    pub(super) async fn bring_back(&self, site: &SiteMachine) {
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

    pub(super) async fn crash_engine(&self, kind: FaultKind) {
        if !self.take(kind) {
            return;
        }
        self.begin(kind, 0);
        self.cluster.engine.fail_power_soon(1 + self.cluster.draw(60));
        self.wait_for(Duration::from_secs(2), || self.cluster.engine.is_off()).await;
        self.cluster.engine.crash();
        self.pause(50, 2_000).await;
        self.restart_engine().await;
        // Leases end with the engine's run, and with them the gateways' right to write, so they are restarted.
        for gateway in self.cluster.gateways.clone() {
            self.pause(0, 1_000).await;
            gateway.kill();
            gateway.start(&self.cluster).await;
        }
        self.end(kind);
        self.leave(kind);
    }

    pub(super) async fn restart_engine(&self) {
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

    pub(super) async fn kill_process(&self, kind: FaultKind) {
        let Some(process) = self.choose_process() else { return };
        if !self.take(kind) {
            return;
        }
        self.begin(kind, process.number());
        // The instant is drawn finely, so that it can fall between any two awaits of an operation.
        let soon = self.cluster.draw_time(Duration::ZERO, Duration::from_millis(300));
        self.cluster.runtime.sleep(soon).await;
        process.kill();
        self.pause(100, 1_500).await;
        process.start(&self.cluster).await;
        self.end(kind);
        self.leave(kind);
    }

    /// A process is paused: for a while, for longer than a leader's lease, or for longer than a writer's lease.
    pub(super) async fn pause_process(&self, kind: FaultKind) {
        let Some(process) = self.choose_process() else { return };
        if !self.take(kind) {
            return;
        }
        self.begin(kind, process.number());
        process.set_paused(true);
        match self.cluster.draw(4) {
            0 | 1 => self.pause(300, 4_000).await,
            2 => self.pause(12_500, 17_000).await,
            _ => self.pause(31_000, 36_000).await,
        }
        process.set_paused(false);
        self.end(kind);
        self.leave(kind);
    }

    /// A process's wall clock jumps a few times, by up to seventeen years, and is set right again.
    pub(super) async fn jump_clock(&self, kind: FaultKind) {
        let Some(process) = self.choose_process() else { return };
        if !self.take(kind) {
            return;
        }
        self.begin(kind, process.number());
        for _ in 0..1 + self.cluster.draw(3) {
            let by_ms = (1_i64 << self.cluster.draw(39)) + self.cluster.draw(1_000) as i64;
            process.set_clock_ahead(if self.cluster.draw(2) == 0 { by_ms } else { -by_ms });
            self.pause(300, 2_000).await;
        }
        process.set_clock_ahead(0);
        self.end(kind);
        self.leave(kind);
    }
}
