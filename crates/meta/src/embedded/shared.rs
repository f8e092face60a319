//! State that readers and the committer share: the visible state, leases, watchers and the mirrors' status.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tokio::sync::broadcast;

use super::snapshot::Snapshot;
use super::volume::DiskId;
use crate::lease::Leases;
use crate::store::MetaError;
use crate::watch::Watchers;

/// The status of a mirror, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorStatus {
    /// Identity of its directory.
    pub disk_id: DiskId,
    /// Path of its directory.
    pub path: String,
    /// Whether the mirror holds everything that was acknowledged; if not, it was ejected.
    pub in_sync: bool,
    /// Whether it serves the reads.
    pub primary: bool,
    /// Length of the database file in bytes; 0 if ejected, `None` if the disk does not answer. The file may have holes.
    pub file_bytes: Option<u64>,
    /// Reason for the ejection.
    pub last_error: Option<String>,
}

/// A change of the set of mirrors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorEvent {
    /// A mirror failed and was ejected; [`super::EmbeddedStore::restore_mirrors`] creates a replacement.
    Ejected {
        /// Directory of the mirror.
        disk_id: DiskId,
        /// Reason for the ejection.
        reason: String,
    },
    /// A mirror was added and holds everything.
    Added {
        /// Directory of the mirror.
        disk_id: DiskId,
    },
    /// No mirror is left, or the set could not be recorded: the store does not serve until a restart.
    Down {
        /// Reason for the failure.
        reason: String,
    },
}

/// Maximum number of events that wait for one subscriber.
const EVENT_BUFFER: usize = 64;

#[derive(Debug)]
enum ServingState {
    Serving(Arc<Snapshot>),
    Down(String),
}

/// State shared by the store's handles and its committer.
#[derive(Debug)]
pub(super) struct Shared {
    visible: RwLock<ServingState>,
    pub(super) leases: Leases,
    pub(super) watchers: Watchers,
    pub(super) status: Mutex<Vec<MirrorStatus>>,
    pub(super) events: broadcast::Sender<MirrorEvent>,
}

impl Shared {
    pub(super) fn new(visible: Arc<Snapshot>, leases: Leases) -> Self {
        Self {
            visible: RwLock::new(ServingState::Serving(visible)),
            leases,
            watchers: Watchers::default(),
            status: Mutex::default(),
            events: broadcast::channel(EVENT_BUFFER).0,
        }
    }

    /// Returns the state that readers see: durable on all in-sync mirrors.
    pub(super) fn visible(&self) -> Result<Arc<Snapshot>, MetaError> {
        match &*self.visible.read() {
            ServingState::Serving(snapshot) => Ok(snapshot.clone()),
            ServingState::Down(reason) => Err(MetaError::Unavailable(reason.clone())),
        }
    }

    pub(super) fn show(&self, snapshot: Arc<Snapshot>) {
        *self.visible.write() = ServingState::Serving(snapshot);
    }

    pub(super) fn shut(&self, reason: &str) {
        *self.visible.write() = ServingState::Down(reason.to_owned());
    }

    pub(super) fn tell(&self, event: MirrorEvent) {
        tracing::warn!(?event, "metadata mirrors changed");
        // There may be no subscriber.
        let _ = self.events.send(event);
    }
}
