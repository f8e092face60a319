//! Faults that the services must handle, and faults that hit the services at work.

use std::sync::Arc;
use std::time::Duration;

use striate_core::SiteId;

use super::Injector;
use crate::coverage::FaultKind;
use crate::invariants;
use crate::operation::Kind;
use crate::services::WAIT;
use crate::site::{Crash, SiteMachine};
use crate::steps::CrashTarget;

/// Maximum number of sites that join beyond the initial ones.
const MOST_JOIN: usize = 2;

impl Injector {
    /// The leading process dies at some step, most often of a move or a repair. If no such step comes, it dies
    /// anyway.
    pub(super) async fn kill_leader(&self, kind: FaultKind) {
        let Some(leader) = self.cluster.leader() else { return };
        if !self.take(kind) {
            return;
        }
        self.begin(kind, u64::from(leader.machine.number));
        let mut services =
            vec![None, Some(Kind::Move), Some(Kind::Move), Some(Kind::Repair), Some(Kind::Collect)];
        if self.cluster.wide_profile().is_some() {
            services.extend([Some(Kind::Seal); 3]);
        }
        let service = self.cluster.choose(&services).expect("there are some");
        leader.traps.set(CrashTarget::Process, service, 1 + self.cluster.draw(24));
        self.wait_for(Duration::from_secs(6), || leader.traps.has_sprung()).await;
        leader.traps.remove();
        leader.kill();
        self.pause(100, 2_000).await;
        leader.start(&self.cluster);
        self.end(kind);
        self.leave(kind);
    }

    /// A site is away for longer than repair waits, and comes back with its data.
    pub(super) async fn be_absent(&self, kind: FaultKind) {
        let Some(site) = self.take_site() else { return };
        self.begin(kind, u64::from(site.id().0));
        site.crash(self.draw_crash());
        self.pause_long(WAIT, 4, 14).await;
        self.bring_back(&site).await;
        self.end(kind);
        self.give_back(&site);
    }

    /// A site is lost, and while its chunks are rebuilt another one dies at a step of a repair: a source or a target.
    pub(super) async fn fail_again(&self, kind: FaultKind) {
        if !self.take(kind) {
            return;
        }
        if let Some(site) = self.take_site() {
            self.begin(kind, u64::from(site.id().0));
            site.crash(self.draw_crash());
            let second = self.wait_for_second().await;
            self.pause(500, 4_000).await;
            for site in [Some(site), second].into_iter().flatten() {
                self.bring_back(&site).await;
                self.give_back(&site);
            }
            self.end(kind);
        }
        self.leave(kind);
    }

    /// Returns the site that died at a step of a repair; `None` if none could.
    async fn wait_for_second(&self) -> Option<Arc<SiteMachine>> {
        let controls = &self.cluster.controls;
        let after = 1 + self.cluster.draw(40);
        controls.iter().for_each(|control| control.traps.set(CrashTarget::Site, Some(Kind::Repair), after));
        let deadline = self.cluster.runtime.now() + WAIT + Duration::from_secs(14);
        let mut second = None;
        while second.is_none() && self.cluster.runtime.now() < deadline {
            self.pause(1, 2).await;
            let Some(site) = controls.iter().find_map(|control| control.traps.waiting_site()) else {
                continue;
            };
            second = self.take_this_site(site);
            if let Some(second) = &second {
                second.crash(self.draw_crash());
            }
            // A request to a site that may not die proceeds.
            controls.iter().for_each(|control| control.traps.remove());
            if second.is_none() {
                controls
                    .iter()
                    .for_each(|control| control.traps.set(CrashTarget::Site, Some(Kind::Repair), 1));
            }
        }
        controls.iter().for_each(|control| control.traps.remove());
        second
    }

    /// Drains a site. Once empty it may be removed for good. Otherwise it takes chunks again sooner or later, or
    /// keeps draining and must be empty at the end.
    pub(super) async fn drain(&self, kind: FaultKind) {
        let Some(site) = self.cluster.choose(&self.cluster.sites()) else { return };
        let id = site.id();
        if !self.take(kind) {
            return;
        }
        if self.cluster.draining() == Some(Vec::new()) && self.cluster.set_draining(id, true).await.is_ok() {
            self.begin(kind, u64::from(id.0));
            let until = self.cluster.runtime.now()
                + self.cluster.draw_time(Duration::from_secs(6), Duration::from_secs(24));
            while self.cluster.runtime.now() < until && !invariants::is_empty(&self.cluster, id) {
                self.pause(300, 700).await;
            }
            self.pause(0, 2_000).await;
            self.end_drain(id).await;
            self.end(kind);
        }
        self.leave(kind);
    }

    async fn end_drain(&self, id: SiteId) {
        let has_room = self.cluster.can_empty();
        if has_room && self.cluster.draw(2) == 0 {
            match invariants::is_empty(&self.cluster, id) {
                true => self.take_away(id).await,
                // It keeps draining.
                false => return,
            }
        }
        // A site that this or another fault has removed takes no chunks again.
        while self.cluster.site(id).is_some() && self.cluster.set_draining(id, false).await.is_err() {
            self.pause(100, 200).await;
        }
    }

    /// Removes an empty site, if it has no fault and may lose what writes have put there meanwhile.
    async fn take_away(&self, id: SiteId) {
        let Some(site) = self.take_this_site(id) else { return };
        if self.may_hurt(&site) {
            self.cluster.ledger.hurt(id, site.whole_chunks().unwrap_or_default());
            self.cluster.remove_site(&site).await;
        }
        self.give_back(&site);
    }

    /// Adds a new site.
    pub(super) async fn join(&self, kind: FaultKind) {
        let most = self.cluster.first_sites() + MOST_JOIN;
        if self.cluster.sites().len() >= most || !self.take(kind) {
            return;
        }
        self.begin(kind, self.cluster.sites().len() as u64);
        while self.cluster.join_site().await.is_err() {
            self.pause(100, 200).await;
        }
        self.pause(1_000, 5_000).await;
        self.end(kind);
        self.leave(kind);
    }

    pub(super) fn draw_crash(&self) -> Crash {
        if self.cluster.draw(2) == 0 { Crash::Kill } else { Crash::PowerCut }
    }

    async fn pause_long(&self, least: Duration, from_s: u64, to_s: u64) {
        self.cluster.runtime.sleep(least).await;
        self.pause(from_s * 1_000, to_s * 1_000).await;
    }
}
