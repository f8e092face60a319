//! In which order entries are evicted.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::str::FromStr;

use striate_core::ChunkId;

use super::nodes::{Nodes, Queue, Slot};

/// In which order cached data are evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// What was read longest ago goes first (EC-Cache, and best for blocks of language models).
    #[default]
    Lru,
    /// What was read once goes first (Yang et al., "FIFO queues are all you need for cache eviction", SOSP'23; best where
    /// popularity is skewed, and under scans).
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

/// The small queue of S3-FIFO has one page in so many.
const SMALL_SHARE: u64 = 10;
/// S3-FIFO counts so many reads.
const MOST_READS: u8 = 3;
/// Entries that are looked at for one that nobody reads, before an eviction is given up.
const MOST_LOOKS: usize = 256;

/// The entries of a shard in the order of their eviction.
#[derive(Debug, Default)]
pub(super) struct Order {
    eviction: Eviction,
    /// New entries, with S3-FIFO.
    small: Queue,
    /// All others.
    main: Queue,
    ghosts: Ghosts,
}

impl Order {
    pub(super) fn new(eviction: Eviction) -> Self {
        Self { eviction, ..Self::default() }
    }

    pub(super) fn pages(&self) -> u64 {
        self.small.pages + self.main.pages
    }

    /// An entry is new.
    pub(super) fn admit(&mut self, nodes: &mut Nodes, slot: Slot) {
        let is_known = match self.eviction {
            Eviction::Lru => true,
            Eviction::S3Fifo => self.ghosts.take(nodes.get(slot).chunk),
        };
        nodes.get_mut(slot).is_in_main = is_known;
        self.queue(is_known).push(nodes, slot);
    }

    /// An entry is read.
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

    /// An entry goes for another reason than space.
    pub(super) fn remove(&mut self, nodes: &mut Nodes, slot: Slot) {
        let is_in_main = nodes.get(slot).is_in_main;
        self.queue(is_in_main).remove(nodes, slot);
    }

    /// Takes the next one out that nobody reads. `None` if there is none, or not among the first few.
    pub(super) fn evict(&mut self, nodes: &mut Nodes) -> Option<Slot> {
        for _ in 0..MOST_LOOKS {
            let is_of_small =
                self.small.len > 0 && (self.small.pages * SMALL_SHARE > self.pages() || self.main.len == 0);
            let slot = self.queue(!is_of_small).pop(nodes)?;
            let node = nodes.get_mut(slot);
            if !node.payload.is_idle() {
                self.queue(!is_of_small).push(nodes, slot);
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

    /// Bytes of what it remembers of entries that are gone.
    pub(super) fn bytes(&self) -> usize {
        self.ghosts.bytes()
    }

    fn queue(&mut self, is_main: bool) -> &mut Queue {
        if is_main { &mut self.main } else { &mut self.small }
    }
}

/// Names that left the small queue not long ago. One that comes back and leaves again may be forgotten early.
#[derive(Debug, Default)]
struct Ghosts {
    known: HashSet<ChunkId>,
    order: VecDeque<ChunkId>,
}

impl Ghosts {
    fn insert(&mut self, chunk: ChunkId, most: usize) {
        if self.known.insert(chunk) {
            self.order.push_back(chunk);
        }
        while self.order.len() > most.max(1) {
            let oldest = self.order.pop_front();
            oldest.map(|chunk| self.known.remove(&chunk));
        }
    }

    /// Whether a name is among them, and no more.
    fn take(&mut self, chunk: ChunkId) -> bool {
        self.known.remove(&chunk)
    }

    fn bytes(&self) -> usize {
        self.known.capacity() * 8 / 7 * (size_of::<ChunkId>() + 1)
            + self.order.capacity() * size_of::<ChunkId>()
    }
}
