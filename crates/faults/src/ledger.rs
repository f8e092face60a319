//! The ledger: which chunks of each stripe the injector has destroyed, and how many more it may destroy.
//!
//! A stripe may lose no more chunks than its code tolerates, including those that its write left out (debt). All that
//! is known of a running write is that its chunks decode after any `write_surplus` further losses. So at most that
//! many disks may lose chunks, and none if the code tolerates no loss, until the next repair is complete and every
//! operation has ended that was running at the loss. One more disk may lose chunks once every operation has ended
//! that was running at the last loss and every committed stripe has a chunk to spare: a second failure during repair.
//! The injector consults the ledger before it destroys anything.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;
use striate_core::{ChunkId, SiteId};
use striate_runtime::{Instant, Runtime};

/// Messages sent before a loss have arrived after this time.
pub const MESSAGES_ARRIVE: Duration = Duration::from_secs(5);

/// Records the chunks that were destroyed since the last complete repair.
#[derive(Debug)]
pub struct Ledger {
    runtime: Runtime,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Chunks destroyed since the last complete repair, and their sites.
    hurt: BTreeSet<(ChunkId, SiteId)>,
    /// Disks that have lost chunks since the last complete repair, and the time of the latest loss.
    victims: BTreeMap<SiteId, Instant>,
    /// Running operations that may write, by number, with their start times.
    under_way: BTreeMap<u64, Instant>,
    next: u64,
}

impl Ledger {
    /// Creates an empty ledger.
    pub fn new(runtime: Runtime) -> Self {
        Self { runtime, state: Mutex::default() }
    }

    /// Returns true if a disk may lose chunks when at most `disks` disks may have losses at a time.
    pub fn may_hurt(&self, site: SiteId, disks: usize) -> bool {
        let state = self.state.lock();
        state.victims.contains_key(&site) || state.victims.len() < disks
    }

    /// Records that a disk loses these chunks now.
    pub fn hurt(&self, site: SiteId, chunks: impl IntoIterator<Item = ChunkId>) {
        let mut state = self.state.lock();
        state.victims.insert(site, self.runtime.now());
        state.hurt.extend(chunks.into_iter().map(|chunk| (chunk, site)));
    }

    /// Returns the chunks destroyed since the last complete repair, and their sites.
    pub fn taken(&self) -> BTreeSet<(ChunkId, SiteId)> {
        self.state.lock().hurt.clone()
    }

    /// Returns true if the injector has damaged this chunk.
    pub fn is_hurt(&self, site: SiteId, chunk: ChunkId) -> bool {
        self.state.lock().hurt.contains(&(chunk, site))
    }

    /// Returns true if losses remain that are not repaired.
    pub fn has_victims(&self) -> bool {
        !self.state.lock().victims.is_empty()
    }

    /// Records the start of an operation that may write; returns its number.
    pub fn begin(&self) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        let number = state.next;
        state.under_way.insert(number, self.runtime.now());
        number
    }

    /// Records the end of an operation, or the death of its process.
    pub fn end(&self, operation: u64) {
        self.state.lock().under_way.remove(&operation);
    }

    /// Returns true if the losses affect only stripes that were committed before now: every operation that was
    /// running at a loss has ended.
    pub fn is_settled(&self) -> bool {
        let state = self.state.lock();
        let now = self.runtime.now();
        state.victims.values().all(|&lost_at| {
            now >= lost_at + MESSAGES_ARRIVE && state.under_way.values().all(|&began_at| began_at > lost_at)
        })
    }

    /// Records that all chunks of all protecting stripes are good again. Of the other stripes, the chunks in
    /// `damaged` still are not.
    pub fn made_good(&self, damaged: &BTreeSet<(ChunkId, SiteId)>) {
        let mut state = self.state.lock();
        state.victims.clear();
        state.hurt.retain(|hurt| damaged.contains(hurt));
    }
}
