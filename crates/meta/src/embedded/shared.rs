//! What readers and the committer share: the visible state, leases, watchers and the mirrors' status.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tokio::sync::broadcast;

use super::snapshot::Snapshot;
use super::volume::DiskId;
use crate::lease::Leases;
use crate::store::MetaError;
use crate::watch::Watchers;

/// A mirror's condition, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorStatus {
    /// The directory.
    pub disk_id: DiskId,
    /// Its path.
    pub path: String,
    /// Whether the mirror holds everything that was acknowledged. Otherwise it was ejected.
    pub in_sync: bool,
    /// Whether reads are served from it.
    pub primary: bool,
    /// Length of the database's file in bytes; 0 when it was ejected. The file may have holes.
    pub file_bytes: u64,
    /// Why it was ejected.
    pub last_error: Option<String>,
}

/// What happened to the set of mirrors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorEvent {
    /// A mirror failed and was ejected; [`super::EmbeddedStore::restore_mirrors`] makes another one.
    Ejected {
        /// Its directory.
        disk_id: DiskId,
        /// Why.
        reason: String,
    },
    /// A mirror was added and holds everything.
    Added {
        /// Its directory.
        disk_id: DiskId,
    },
    /// No mirror is left, or the set could not be recorded: nothing is served until a restart.
    Down {
        /// Why.
        reason: String,
    },
}

/// Events that may wait for one subscriber.
const EVENT_BUFFER: usize = 64;

#[derive(Debug)]
enum Visible {
    Serving(Arc<Snapshot>),
    Down(String),
}

/// Shared by the store's handles and its committer.
#[derive(Debug)]
pub(super) struct Shared {
    visible: RwLock<Visible>,
    pub(super) leases: Leases,
    pub(super) watchers: Watchers,
    pub(super) status: Mutex<Vec<MirrorStatus>>,
    pub(super) events: broadcast::Sender<MirrorEvent>,
}

impl Shared {
    pub(super) fn new(visible: Arc<Snapshot>, leases: Leases) -> Self {
        Self {
            visible: RwLock::new(Visible::Serving(visible)),
            leases,
            watchers: Watchers::default(),
            status: Mutex::default(),
            events: broadcast::channel(EVENT_BUFFER).0,
        }
    }

    /// The state that readers see: durable on all in-sync mirrors.
    pub(super) fn visible(&self) -> Result<Arc<Snapshot>, MetaError> {
        match &*self.visible.read() {
            Visible::Serving(snapshot) => Ok(snapshot.clone()),
            Visible::Down(reason) => Err(MetaError::Unavailable(reason.clone())),
        }
    }

    pub(super) fn show(&self, snapshot: Arc<Snapshot>) {
        *self.visible.write() = Visible::Serving(snapshot);
    }

    pub(super) fn shut(&self, reason: &str) {
        *self.visible.write() = Visible::Down(reason.to_owned());
    }

    pub(super) fn tell(&self, event: MirrorEvent) {
        tracing::warn!(?event, "metadata mirrors changed");
        // Nobody need listen.
        let _ = self.events.send(event);
    }
}
