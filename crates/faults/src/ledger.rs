//! What was taken from the cluster: how many chunks of each stripe the injector has destroyed, and may still destroy.
//!
//! No more chunks of a stripe may be lost than its code bears, counting those that a write has left out (debt). Of a write
//! that is under way it is only known that what it leaves decodes after any `write_surplus` further losses, so that many
//! disks may lose chunks, and none where the code bears no loss, until the next repair is complete and every operation
//! has ended that was under way at the loss. One disk more may lose chunks
//! where every operation has ended that was under way at the last loss and every stripe that is committed has a chunk to
//! spare: a second failure during repair. The injector asks here before it destroys anything.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;
use striate_core::{ChunkId, SiteId};
use striate_runtime::{Instant, Runtime};

/// Messages that were sent before a loss have arrived after this time.
pub const MESSAGES_ARRIVE: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub struct Ledger {
    runtime: Runtime,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Chunks that were destroyed since the last complete repair, and where.
    hurt: BTreeSet<(ChunkId, SiteId)>,
    /// Disks that have lost something since the last complete repair, and when they last did.
    victims: BTreeMap<SiteId, Instant>,
    /// Operations that may write, by number, and when they began.
    under_way: BTreeMap<u64, Instant>,
    next: u64,
}

impl Ledger {
    /// Nothing was taken.
    pub fn new(runtime: Runtime) -> Self {
        Self { runtime, state: Mutex::default() }
    }

    /// Whether a disk may lose anything, when so many disks may lose something at a time.
    pub fn may_hurt(&self, site: SiteId, disks: usize) -> bool {
        let state = self.state.lock();
        state.victims.contains_key(&site) || state.victims.len() < disks
    }

    /// A disk loses something now.
    pub fn hurt(&self, site: SiteId, chunks: impl IntoIterator<Item = ChunkId>) {
        let mut state = self.state.lock();
        state.victims.insert(site, self.runtime.now());
        state.hurt.extend(chunks.into_iter().map(|chunk| (chunk, site)));
    }

    /// Chunks that were destroyed since the last complete repair, and where.
    pub fn taken(&self) -> BTreeSet<(ChunkId, SiteId)> {
        self.state.lock().hurt.clone()
    }

    /// Whether the injector has damaged this chunk.
    pub fn is_hurt(&self, site: SiteId, chunk: ChunkId) -> bool {
        self.state.lock().hurt.contains(&(chunk, site))
    }

    /// Whether anything was taken and not yet made good.
    pub fn has_victims(&self) -> bool {
        !self.state.lock().victims.is_empty()
    }

    /// An operation begins that may write.
    pub fn begin(&self) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        let number = state.next;
        state.under_way.insert(number, self.runtime.now());
        number
    }

    /// It has ended, or its process has died.
    pub fn end(&self, operation: u64) {
        self.state.lock().under_way.remove(&operation);
    }

    /// Whether the losses so far concern only what was named before now: everything that was under way then has ended.
    pub fn is_settled(&self) -> bool {
        let state = self.state.lock();
        let now = self.runtime.now();
        state.victims.values().all(|&lost_at| {
            now >= lost_at + MESSAGES_ARRIVE && state.under_way.values().all(|&began_at| began_at > lost_at)
        })
    }

    /// All chunks of all stripes that protect something are good again. Of the others these are `damaged` still.
    pub fn made_good(&self, damaged: &BTreeSet<(ChunkId, SiteId)>) {
        let mut state = self.state.lock();
        state.victims.clear();
        state.hurt.retain(|hurt| damaged.contains(hurt));
    }
}
