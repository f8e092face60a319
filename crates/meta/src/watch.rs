//! Delivers committed changes to watchers, for the engines that run inside this process.
//!
//! Every watcher has a bounded buffer (I12). A watcher that does not keep up is dropped: its channel ends after the
//! events that it already holds, so it never misses a change without noticing.

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::store::{Watch, WatchEvent};

/// Maximum number of events that wait for one watcher.
pub const WATCH_BUFFER_EVENTS: usize = 1024;

/// All watchers of an engine.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    watchers: Mutex<Vec<Watcher>>,
}

#[derive(Debug)]
struct Watcher {
    prefix: Bytes,
    events: mpsc::Sender<WatchEvent>,
}

impl Watchers {
    pub(crate) fn watch(&self, prefix: &[u8]) -> Watch {
        let (events, watch) = mpsc::channel(WATCH_BUFFER_EVENTS);
        let mut watchers = self.watchers.lock();
        watchers.retain(|watcher| !watcher.events.is_closed());
        watchers.push(Watcher { prefix: Bytes::copy_from_slice(prefix), events });
        watch
    }

    /// Sends `event` to the watchers of its key. Calls must come in commit order.
    pub(crate) fn publish(&self, event: &WatchEvent) {
        self.watchers.lock().retain(|watcher| {
            !event.key.starts_with(&watcher.prefix) || watcher.events.try_send(event.clone()).is_ok()
        });
    }
}
