//! A shard of a cache: its entries behind one lock.

use std::collections::HashMap;
use std::sync::Arc;

use striate_core::{ChunkId, cached};

use super::arena::{PAGE_LEN, Payload};
use super::nodes::{Node, Nodes, Slot};
use super::order::{Eviction, Order};

/// Entries and their eviction orders, one for data and one for parities.
#[derive(Debug, Default)]
pub(super) struct Shard {
    slots: HashMap<ChunkId, Slot>,
    nodes: Nodes,
    data: Order,
    parities: Order,
    /// Heap bytes of all nodes.
    heap_bytes: usize,
    payload_bytes: u64,
}

/// What is needed to read an entry.
pub(super) struct Entry {
    pub(super) payload: Payload,
    pub(super) granules: Arc<[u32]>,
    pub(super) crc32c: u32,
}

/// An evicted entry. Dropping it frees its pages.
pub(super) struct EvictedEntry {
    pub(super) is_parity: bool,
    pub(super) _payload: Payload,
}

impl From<&Node> for Entry {
    fn from(node: &Node) -> Self {
        Self { payload: node.payload.clone(), granules: Arc::clone(&node.granules), crc32c: node.crc32c }
    }
}

impl Shard {
    pub(super) fn new(eviction: Eviction) -> Self {
        Self { data: Order::new(eviction), parities: Order::new(eviction), ..Self::default() }
    }

    /// Returns an entry without counting it as read.
    pub(super) fn peek(&self, chunk: ChunkId) -> Option<Entry> {
        Some(self.nodes.get(*self.slots.get(&chunk)?).into())
    }

    /// Returns whether there is an entry that is not known to be damaged.
    pub(super) fn has(&self, chunk: ChunkId) -> bool {
        self.slots.get(&chunk).is_some_and(|slot| !self.nodes.get(*slot).is_damaged)
    }

    /// Returns an entry and counts it as read at the tick `now`.
    pub(super) fn read(&mut self, chunk: ChunkId, now: u64) -> Option<Entry> {
        let slot = *self.slots.get(&chunk)?;
        self.nodes.get_mut(slot).used_at = now;
        let order = if cached::is_parity(chunk) { &mut self.parities } else { &mut self.data };
        order.touch(&mut self.nodes, slot);
        Some(self.nodes.get(slot).into())
    }

    /// Marks an entry as damaged: its bytes have changed.
    pub(super) fn mark_damaged(&mut self, chunk: ChunkId) {
        if let Some(slot) = self.slots.get(&chunk) {
            self.nodes.get_mut(*slot).is_damaged = true;
        }
    }

    /// Returns whether an entry is known to be damaged.
    pub(super) fn is_damaged(&self, chunk: ChunkId) -> bool {
        self.slots.get(&chunk).is_some_and(|slot| self.nodes.get(*slot).is_damaged)
    }

    /// Adds a new entry at the tick `now`.
    pub(super) fn insert(&mut self, mut node: Node, now: u64) {
        let chunk = node.chunk;
        node.used_at = now;
        self.heap_bytes += node.heap_bytes();
        self.payload_bytes += node.payload.len() as u64;
        let slot = self.nodes.insert(node);
        self.slots.insert(chunk, slot);
        let order = if cached::is_parity(chunk) { &mut self.parities } else { &mut self.data };
        order.admit(&mut self.nodes, slot);
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, chunk: ChunkId) -> Option<Node> {
        let slot = self.slots.remove(&chunk)?;
        let order = if cached::is_parity(chunk) { &mut self.parities } else { &mut self.data };
        order.remove(&mut self.nodes, slot);
        self.take_node(slot)
    }

    /// Returns the tick at which the entry that is evicted next was used last.
    pub(super) fn next_used_at(&self, parity_percent: u64) -> Option<u64> {
        let (data, parities) = (self.data.next(), self.parities.next());
        let slot = if self.has_many_parities(parity_percent) { parities.or(data) } else { data.or(parities) };
        slot.map(|slot| self.nodes.get(slot).used_at)
    }

    fn has_many_parities(&self, parity_percent: u64) -> bool {
        let (parities, data) = (self.parities.pages(), self.data.pages());
        parities * 100 > (parities + data) * parity_percent
    }

    /// Evicts the next entry. Parities go first while they occupy more than `parity_percent` of the pages.
    pub(super) fn evict(&mut self, parity_percent: u64) -> Option<EvictedEntry> {
        let orders = match self.has_many_parities(parity_percent) {
            true => [&mut self.parities, &mut self.data],
            false => [&mut self.data, &mut self.parities],
        };
        let slot = orders.into_iter().find_map(|order| order.evict(&mut self.nodes))?;
        let node = self.take_node(slot)?;
        self.slots.remove(&node.chunk);
        Some(EvictedEntry { is_parity: cached::is_parity(node.chunk), _payload: node.payload })
    }

    fn take_node(&mut self, slot: Slot) -> Option<Node> {
        let node = self.nodes.remove(slot)?;
        self.heap_bytes -= node.heap_bytes();
        self.payload_bytes -= node.payload.len() as u64;
        Some(node)
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the payload bytes of all chunks.
    pub(super) fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// Returns the bytes in pages of data and in pages of parities.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.data.pages() * PAGE_LEN as u64, self.parities.pages() * PAGE_LEN as u64)
    }

    /// Returns the bytes used besides the pages of entries.
    pub(super) fn index_bytes(&self) -> u64 {
        let map = self.slots.capacity() * 8 / 7 * (size_of::<(ChunkId, Slot)>() + 1);
        (map + self.nodes.bytes() + self.data.bytes() + self.parities.bytes() + self.heap_bytes) as u64
    }
}
