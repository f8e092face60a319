//! The order in which entries are evicted.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::str::FromStr;

use striate_core::ChunkId;

use super::nodes::{Nodes, Queue, Slot};

/// The order in which cached data are evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// Least recently used first (EC-Cache; best for blocks of language models).
    #[default]
    Lru,
    /// Data read only once first (Yang et al., "FIFO queues are all you need for cache eviction", SOSP'23; best for
    /// skewed popularity and scans).
    S3Fifo,
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lru => "lru",
            Self::S3Fifo => "s3-fifo",
        })
    }
}

impl FromStr for Eviction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "lru" => Ok(Self::Lru),
            "s3-fifo" => Ok(Self::S3Fifo),
            _ => Err(format!("{text:?} is not an eviction order; write lru or s3-fifo")),
        }
    }
}

/// S3-FIFO's small queue has at most one page in this many.
const SMALL_SHARE: u64 = 10;
/// Maximum read count of an entry in S3-FIFO.
const MOST_READS: u8 = 3;
/// Number of times that an eviction may meet an entry that is being read before it fails.
const MOST_BUSY: usize = 256;

/// The entries of a shard in their eviction order.
#[derive(Debug, Default)]
pub(super) struct Order {
    eviction: Eviction,
    /// New entries, under S3-FIFO.
    small: Queue,
    /// All other entries.
    main: Queue,
    ghosts: GhostQueue,
}

impl Order {
    pub(super) fn new(eviction: Eviction) -> Self {
        Self { eviction, ..Self::default() }
    }

    pub(super) fn pages(&self) -> u64 {
        self.small.pages + self.main.pages
    }

    /// Adds a new entry.
    pub(super) fn admit(&mut self, nodes: &mut Nodes, slot: Slot) {
        let is_known = match self.eviction {
            Eviction::Lru => true,
            Eviction::S3Fifo => self.ghosts.take(nodes.get(slot).chunk),
        };
        nodes.get_mut(slot).is_in_main = is_known;
        self.queue(is_known).push(nodes, slot);
    }

    /// Records a read of an entry.
    pub(super) fn touch(&mut self, nodes: &mut Nodes, slot: Slot) {
        match self.eviction {
            Eviction::Lru => {
                self.main.remove(nodes, slot);
                self.main.push(nodes, slot);
            }
            Eviction::S3Fifo => {
                let node = nodes.get_mut(slot);
                node.reads = (node.reads + 1).min(MOST_READS);
            }
        }
    }

    /// Removes an entry for a reason other than space.
    pub(super) fn remove(&mut self, nodes: &mut Nodes, slot: Slot) {
        let is_in_main = nodes.get(slot).is_in_main;
        self.queue(is_in_main).remove(nodes, slot);
    }

    /// Returns the entry that [`Order::evict`] considers first.
    pub(super) fn next(&self) -> Option<Slot> {
        if self.is_next_of_small() { self.small.last() } else { self.main.last() }
    }

    fn is_next_of_small(&self) -> bool {
        self.small.len > 0 && (self.small.pages * SMALL_SHARE > self.pages() || self.main.len == 0)
    }

    /// Removes and returns the next entry that is not being read. `None` if it meets `MOST_BUSY` that are being read
    /// before. Any other entry that stays has fewer reads or another queue afterwards, so this ends.
    pub(super) fn evict(&mut self, nodes: &mut Nodes) -> Option<Slot> {
        let mut busy = 0;
        while busy < MOST_BUSY {
            let is_of_small = self.is_next_of_small();
            let slot = self.queue(!is_of_small).pop(nodes)?;
            let node = nodes.get_mut(slot);
            if !node.payload.is_idle() {
                self.queue(!is_of_small).push(nodes, slot);
                busy += 1;
                continue;
            }
            match self.eviction {
                Eviction::Lru => return Some(slot),
                Eviction::S3Fifo if is_of_small && node.reads > 1 => {
                    (node.reads, node.is_in_main) = (0, true);
                    self.main.push(nodes, slot);
                }
                Eviction::S3Fifo if !is_of_small && node.reads > 0 => {
                    node.reads -= 1;
                    self.main.push(nodes, slot);
                }
                Eviction::S3Fifo => {
                    if is_of_small {
                        let most = self.main.len + self.small.len;
                        self.ghosts.insert(nodes.get(slot).chunk, most);
                    }
                    return Some(slot);
                }
            }
        }
        None
    }

    /// Returns the bytes that the memory of evicted names takes.
    pub(super) fn bytes(&self) -> usize {
        self.ghosts.bytes()
    }

    fn queue(&mut self, is_main: bool) -> &mut Queue {
        if is_main { &mut self.main } else { &mut self.small }
    }
}

/// Names that recently left the small queue. A name that returns and leaves again may be forgotten early.
#[derive(Debug, Default)]
struct GhostQueue {
    known: HashSet<ChunkId>,
    order: VecDeque<ChunkId>,
}

impl GhostQueue {
    fn insert(&mut self, chunk: ChunkId, most: usize) {
        if self.known.insert(chunk) {
            self.order.push_back(chunk);
        }
        while self.order.len() > most.max(1) {
            let oldest = self.order.pop_front();
            oldest.map(|chunk| self.known.remove(&chunk));
        }
    }

    /// Removes a name, and returns whether it was known.
    fn take(&mut self, chunk: ChunkId) -> bool {
        self.known.remove(&chunk)
    }

    fn bytes(&self) -> usize {
        self.known.capacity() * 8 / 7 * (size_of::<ChunkId>() + 1)
            + self.order.capacity() * size_of::<ChunkId>()
    }
}
