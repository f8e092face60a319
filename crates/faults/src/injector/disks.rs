//! Faults of disks, both of sites and of the metadata's machine.

use striate_meta::embedded::simulated::Fault as MirrorFault;
use striate_site::ChunkStore;
use striate_site::filesystem::{Call, Fault};

use super::Injector;
use crate::coverage::FaultKind;
use crate::engine::{DISKS, TOLERANCE};
use crate::site::{self, Crash, SECTOR, SiteMachine};

/// Errno of a failing medium.
const EIO: i32 = 5;

impl Injector {
    pub(super) async fn hold_up(&self, kind: FaultKind) {
        let Some(site) = self.take_site() else { return };
        self.begin(kind, u64::from(site.id().0));
        let set = |on: bool| match kind {
            FaultKind::HungDisk => site.set_hung(on),
            FaultKind::SlowDisk => site.set_slow(on),
            _ if on => {
                let taken = site.store().map_or(0, |store| store.status().disk_bytes);
                site.set_capacity(Some(taken + self.cluster.draw(200 << 10)));
            }
            _ => site.set_capacity(None),
        };
        set(true);
        self.pause(300, 4_000).await;
        set(false);
        self.end(kind);
        self.give_back(&site);
    }

    pub(super) async fn fail_calls(&self, kind: FaultKind, calls: &[Call]) {
        let Some(site) = self.take_site() else { return };
        self.begin(kind, u64::from(site.id().0));
        let fs = site.fs();
        site.set_failing(true);
        for _ in 0..1 + self.cluster.draw(3) {
            let call = self.cluster.choose(calls).expect("there are some");
            let (after, count) = (self.cluster.draw(10), 1 + self.cluster.draw(3));
            fs.inject(Fault { call, after, count, errno: EIO });
        }
        self.pause(300, 4_000).await;
        fs.heal();
        site.set_failing(false);
        // A disk that has failed twice takes no writes until it is checked on restart.
        if site.store().is_some_and(|store| store.status().suspect.is_some()) {
            self.pause(0, 2_000).await;
            site.crash(Crash::Kill);
            self.pause(100, 500).await;
            self.bring_back(&site).await;
        }
        self.end(kind);
        self.give_back(&site);
    }

    pub(super) async fn damage(&self, kind: FaultKind) {
        let Some(site) = self.take_site() else { return };
        if self.may_hurt(&site) && self.damage_segments(&site, kind) {
            self.begin(kind, u64::from(site.id().0));
            self.pause(1_000, 5_000).await;
            // Chunks that were being written are listed only now.
            self.cluster.ledger.hurt(site.id(), site.damaged_chunks().unwrap_or_default());
            self.end(kind);
        }
        self.give_back(&site);
    }

    /// Damages segments of a site in a few places and records the chunks that were hit.
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

    pub(super) async fn blank_disk(&self, kind: FaultKind) {
        let Some(site) = self.take_site() else { return };
        if self.may_hurt(&site) {
            self.cluster.ledger.hurt(site.id(), site.whole_chunks().unwrap_or_default());
            self.begin(kind, u64::from(site.id().0));
            self.cluster.replace_site(&site).await;
            self.pause(1_000, 4_000).await;
            self.end(kind);
        }
        self.give_back(&site);
    }

    pub(super) async fn replay(&self, kind: FaultKind) {
        let Some(site) = self.take_site() else { return };
        self.begin(kind, u64::from(site.id().0));
        site.set_replays(true);
        self.pause(500, 4_000).await;
        site.set_replays(false);
        // The last replayed message may still be in flight.
        self.cluster.runtime.sleep(site::REPLAYED_WITHIN).await;
        self.end(kind);
        self.give_back(&site);
    }

    /// Fails a metadata disk, or replaces it with a blank one; never more at a time than may be lost.
    pub(super) async fn fail_mirror(&self, kind: FaultKind) {
        if !self.take(FaultKind::MirrorFault) {
            return;
        }
        if self.cluster.engine.mirrors_in_sync().await == Some(TOLERANCE + 1) {
            let disk = self.cluster.draw(DISKS as u64) as usize;
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
