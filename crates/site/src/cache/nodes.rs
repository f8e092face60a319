//! Entries of a shard, and the queues that order them.

use std::sync::Arc;

use striate_core::ChunkId;

use super::arena::Payload;

/// Index of a node.
pub(super) type Slot = u32;

const NONE: Slot = Slot::MAX;

/// A cached chunk.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) chunk: ChunkId,
    pub(super) payload: Payload,
    /// Checksums of the granules.
    pub(super) granules: Arc<[u32]>,
    pub(super) crc32c: u32,
    /// Whether a read has found the bytes changed in memory.
    pub(super) is_damaged: bool,
    /// Tick of the cache's clock at which it was added or last read.
    pub(super) used_at: u64,
    /// Number of recent reads, as far as the eviction order counts them.
    pub(super) reads: u8,
    /// Whether it is in the main queue of its order, not the small one.
    pub(super) is_in_main: bool,
    before: Slot,
    behind: Slot,
}

impl Node {
    pub(super) fn new(chunk: ChunkId, payload: Payload, granules: Arc<[u32]>, crc32c: u32) -> Self {
        Self {
            chunk,
            payload,
            granules,
            crc32c,
            is_damaged: false,
            used_at: 0,
            reads: 0,
            is_in_main: false,
            before: NONE,
            behind: NONE,
        }
    }

    /// Returns the bytes that the node takes besides its pages and its slot: the checksums, and the
    /// record of where the pages are.
    pub(super) fn heap_bytes(&self) -> usize {
        const COUNTS: usize = 16;
        const RUN: usize = 48;
        (COUNTS + size_of_val(&*self.granules)).next_multiple_of(16) + RUN
    }
}

/// Nodes by slot; free slots are reused.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    nodes: Vec<Option<Node>>,
    free: Vec<Slot>,
}

impl Nodes {
    pub(super) fn insert(&mut self, node: Node) -> Slot {
        match self.free.pop() {
            Some(slot) => {
                self.nodes[slot as usize] = Some(node);
                slot
            }
            None => {
                self.nodes.push(Some(node));
                (self.nodes.len() - 1) as Slot
            }
        }
    }

    /// Removes a node, which must not be in a queue.
    pub(super) fn remove(&mut self, slot: Slot) -> Option<Node> {
        let node = self.nodes.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(node)
    }

    /// Returns the node of a slot in use.
    ///
    /// # Panics
    /// If the slot is free.
    pub(super) fn get(&self, slot: Slot) -> &Node {
        self.nodes[slot as usize].as_ref().expect("queues and the map name slots in use")
    }

    /// As [`Nodes::get`].
    ///
    /// # Panics
    /// If the slot is free.
    pub(super) fn get_mut(&mut self, slot: Slot) -> &mut Node {
        self.nodes[slot as usize].as_mut().expect("queues and the map name slots in use")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().flatten()
    }

    /// Returns the bytes that the slots take.
    pub(super) fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Option<Node>>() + self.free.capacity() * size_of::<Slot>()
    }
}

/// A queue of nodes: push at the front, pop at the back.
#[derive(Debug)]
pub(super) struct Queue {
    front: Slot,
    back: Slot,
    /// Pages of all its nodes.
    pub(super) pages: u64,
    pub(super) len: usize,
}

impl Default for Queue {
    fn default() -> Self {
        Self { front: NONE, back: NONE, pages: 0, len: 0 }
    }
}

impl Queue {
    pub(super) fn push(&mut self, nodes: &mut Nodes, slot: Slot) {
        let front = std::mem::replace(&mut self.front, slot);
        let node = nodes.get_mut(slot);
        (node.before, node.behind) = (NONE, front);
        self.pages += u64::from(node.payload.pages());
        self.len += 1;
        match front {
            NONE => self.back = slot,
            _ => nodes.get_mut(front).before = slot,
        }
    }

    pub(super) fn remove(&mut self, nodes: &mut Nodes, slot: Slot) {
        let node = nodes.get(slot);
        let (before, behind, pages) = (node.before, node.behind, node.payload.pages());
        match before {
            NONE => self.front = behind,
            _ => nodes.get_mut(before).behind = behind,
        }
        match behind {
            NONE => self.back = before,
            _ => nodes.get_mut(behind).before = before,
        }
        self.pages -= u64::from(pages);
        self.len -= 1;
    }

    /// Returns the last node.
    pub(super) fn last(&self) -> Option<Slot> {
        Some(self.back).filter(|slot| *slot != NONE)
    }

    /// Removes and returns the last node.
    pub(super) fn pop(&mut self, nodes: &mut Nodes) -> Option<Slot> {
        let slot = self.last()?;
        self.remove(nodes, slot);
        Some(slot)
    }
}
