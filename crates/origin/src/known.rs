//! What this gateway knows of objects, and who is asking for what it does not know.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use striate_runtime::Instant;
use tokio::sync::watch;

use crate::head::Head;
use crate::opened::Opened;

/// Bytes that what is known may take.
const MOST_BYTES: u64 = 16 << 20;
/// What an object takes at least.
const USUAL_BYTES: u64 = 400;

/// An object of an origin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ObjectName(Bytes);

impl ObjectName {
    pub(crate) fn new(origin: &Opened, key: &str) -> Self {
        Self([&origin.id[..], key.as_bytes()].concat().into())
    }
}

/// What is known of an object.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) head: Arc<Head>,
    /// The epoch of its fence when the origin was asked.
    pub(crate) epoch: u64,
    /// Before the origin was asked.
    pub(crate) asked_at: Instant,
}

#[derive(Clone)]
struct Footprint;

impl Weighter<ObjectName, Known> for Footprint {
    fn weight(&self, name: &ObjectName, known: &Known) -> u64 {
        name.0.len() as u64 + known.head.footprint()
    }
}

/// Objects of which something is known, or is about to be.
pub(crate) struct KnownObjects {
    table: Cache<ObjectName, Known, Footprint>,
    asking: Arc<Mutex<Asking>>,
}

type Asking = HashMap<(ObjectName, u64), watch::Receiver<()>>;

/// The one who asks for an object. The others wait until it is dropped.
pub(crate) struct Asker {
    asking: Arc<Mutex<Asking>>,
    of: (ObjectName, u64),
    _done: watch::Sender<()>,
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.asking.lock().remove(&self.of);
    }
}

/// Whether the caller is to ask, or somebody does.
pub(crate) enum Turn {
    Ask(Asker),
    Wait(watch::Receiver<()>),
}

impl KnownObjects {
    pub(crate) fn new() -> Self {
        let count = (MOST_BYTES / USUAL_BYTES) as usize;
        Self { table: Cache::with_weighter(count, MOST_BYTES, Footprint), asking: Arc::default() }
    }

    pub(crate) fn get(&self, name: &ObjectName) -> Option<Known> {
        self.table.get(name)
    }

    pub(crate) fn learn(&self, name: ObjectName, known: Known) {
        self.table.insert(name, known);
    }

    /// Whether it was known.
    pub(crate) fn forget(&self, name: &ObjectName) -> bool {
        self.table.remove(name).is_some()
    }

    /// Only who read the same epoch may share an answer: it was asked for after the last write.
    pub(crate) fn turn(&self, name: &ObjectName, epoch: u64) -> Turn {
        let of = (name.clone(), epoch);
        let mut asking = self.asking.lock();
        if let Some(waiting) = asking.get(&of) {
            return Turn::Wait(waiting.clone());
        }
        let (done, waiting) = watch::channel(());
        asking.insert(of.clone(), waiting);
        Turn::Ask(Asker { asking: self.asking.clone(), of, _done: done })
    }
}
