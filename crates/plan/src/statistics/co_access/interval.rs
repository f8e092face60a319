//! The requests of a sliding interval, and for each block the requests that include it.
//!
//! ```text
//! requests   | r0       | r1    | r2          |      oldest first; each has the next `len` accesses
//! accesses   | A  B  C  | B  D  | A  B  C  D  |      oldest first; each knows its request
//!              |  └───────┘└──────┼──┘     │        and the next access to the same block
//!              └──────────────────┘        ┆
//! blocks     A: first access, last access, how many
//! ```
//!
//! Accesses leave at the front of `accesses`. The leaving access is the first in its block's list, so removing it costs
//! O(1). Requests and accesses are numbered modulo 2³², and fewer than 2³⁰ of each exist at a time.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};

use striate_core::StripeId;

/// A request.
#[derive(Clone, Copy, Debug)]
struct Request {
    /// Number of its first access.
    first: u32,
    /// Number of different blocks in it.
    len: u32,
}

/// A block in a request.
#[derive(Clone, Copy, Debug)]
struct Access {
    /// Position of the block in `blocks`.
    slot: u32,
    /// Number of its request.
    request: u32,
    /// Number of the block's next access, unless this is its last.
    next: u32,
}

/// A block of the interval.
#[derive(Clone, Copy, Debug)]
struct BlockAccesses {
    id: StripeId,
    /// Numbers of its oldest and its newest access.
    first: u32,
    last: u32,
    /// Number of its accesses; an entry with none is free.
    count: u32,
}

/// Uses the same hash in every run, so that memory use is reproducible too: when a table with removals grows depends on
/// where its entries lie. A fixed hash is safe, because only the store chooses stripe numbers.
type Slots = HashMap<StripeId, u32, BuildHasherDefault<DefaultHasher>>;

/// The interval. Its owner limits its contents.
#[derive(Clone, Debug, Default)]
pub(super) struct Interval {
    requests: VecDeque<Request>,
    accesses: VecDeque<Access>,
    /// Numbers of the front elements.
    oldest_request: u32,
    oldest_access: u32,
    slots: Slots,
    blocks: Vec<BlockAccesses>,
    free: Vec<u32>,
}

impl Interval {
    pub(super) fn requests(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn accesses(&self) -> usize {
        self.accesses.len()
    }

    pub(super) fn blocks(&self) -> usize {
        self.slots.len()
    }

    /// Returns the blocks, each with the number of requests for it, in no order.
    pub(super) fn counts(&self) -> impl Iterator<Item = (StripeId, usize)> {
        self.blocks.iter().filter(|entry| entry.count > 0).map(|entry| (entry.id, entry.count as usize))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        // A hash table keeps one byte per slot beside the entry, and fills seven of eight slots.
        let table = self.slots.capacity() * 8 / 7 * (size_of::<(StripeId, u32)>() + 1);
        self.requests.capacity() * size_of::<Request>()
            + self.accesses.capacity() * size_of::<Access>()
            + self.blocks.capacity() * size_of::<BlockAccesses>()
            + self.free.capacity() * size_of::<u32>()
            + table
    }

    /// Begins a new request, the newest.
    pub(super) fn begin(&mut self) {
        let first = self.oldest_access.wrapping_add(self.accesses.len() as u32);
        self.requests.push_back(Request { first, len: 0 });
    }

    /// Adds a block to the newest request, which does not contain it yet.
    pub(super) fn add(&mut self, block: StripeId) {
        let number = self.oldest_access.wrapping_add(self.accesses.len() as u32);
        let request = self.newest();
        let slot = self.slot_of(block, number);
        let entry = &mut self.blocks[slot as usize];
        entry.count += 1;
        let before = std::mem::replace(&mut entry.last, number);
        self.accesses.push_back(Access { slot, request, next: number });
        let before = self.place(before);
        self.accesses[before].next = number;
        if let Some(newest) = self.requests.back_mut() {
            newest.len += 1;
        }
    }

    /// Returns the slot of a block; a new block has its first access at `number`.
    fn slot_of(&mut self, block: StripeId, number: u32) -> u32 {
        if let Some(&slot) = self.slots.get(&block) {
            return slot;
        }
        let new = BlockAccesses { id: block, first: number, last: number, count: 0 };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.blocks[slot as usize] = new;
                slot
            }
            None => {
                self.blocks.push(new);
                self.blocks.len() as u32 - 1
            }
        };
        self.slots.insert(block, slot);
        slot
    }

    /// Returns whether the newest request contains this block.
    pub(super) fn is_in_newest(&self, block: StripeId) -> bool {
        let Some(entry) = self.block_accesses(block) else { return false };
        self.accesses[self.place(entry.last)].request == self.newest()
    }

    /// Removes the oldest request.
    pub(super) fn remove_oldest(&mut self) {
        let Some(request) = self.requests.pop_front() else { return };
        self.oldest_request = self.oldest_request.wrapping_add(1);
        for access in self.accesses.drain(..request.len as usize) {
            let entry = &mut self.blocks[access.slot as usize];
            entry.count -= 1;
            entry.first = access.next;
            if entry.count == 0 {
                self.slots.remove(&entry.id);
                self.free.push(access.slot);
            }
        }
        self.oldest_access = self.oldest_access.wrapping_add(request.len);
    }

    /// Returns the number of requests for a block.
    pub(super) fn count(&self, block: StripeId) -> usize {
        self.block_accesses(block).map_or(0, |entry| entry.count as usize)
    }

    /// Returns the number of requests for both blocks, by a merge of the two ordered lists.
    pub(super) fn count_together(&self, one: StripeId, other: StripeId) -> usize {
        let (mut a, mut b) = (self.requests_of(one).peekable(), self.requests_of(other).peekable());
        let mut together = 0;
        while let (Some(&of_one), Some(&of_other)) = (a.peek(), b.peek()) {
            match of_one.cmp(&of_other) {
                std::cmp::Ordering::Less => drop(a.next()),
                std::cmp::Ordering::Greater => drop(b.next()),
                std::cmp::Ordering::Equal => {
                    together += 1;
                    a.next();
                    b.next();
                }
            }
        }
        together
    }

    /// Returns every other block in the requests for `block`, with the number of these requests.
    pub(super) fn partners(&self, block: StripeId) -> Vec<(StripeId, u32)> {
        let mut times = vec![0_u32; self.blocks.len()];
        let mut met = Vec::new();
        for request in self.requests_of(block) {
            for access in self.accesses_of(request) {
                let slot = access.slot as usize;
                if times[slot] == 0 && self.blocks[slot].id != block {
                    met.push(slot);
                }
                times[slot] += 1;
            }
        }
        met.into_iter().map(|slot| (self.blocks[slot].id, times[slot])).collect()
    }

    /// Returns the block of an access, counted from the oldest.
    pub(super) fn access(&self, index: usize) -> StripeId {
        self.blocks[self.accesses[index].slot as usize].id
    }

    /// Returns the blocks of a request, counted from the oldest.
    pub(super) fn blocks_of(&self, request: usize) -> impl Iterator<Item = StripeId> + '_ {
        self.accesses_of(request).map(|access| self.blocks[access.slot as usize].id)
    }

    fn newest(&self) -> u32 {
        self.oldest_request.wrapping_add(self.requests.len() as u32).wrapping_sub(1)
    }

    fn block_accesses(&self, block: StripeId) -> Option<&BlockAccesses> {
        self.slots.get(&block).map(|&slot| &self.blocks[slot as usize])
    }

    /// Returns the position of an access in `accesses`.
    fn place(&self, number: u32) -> usize {
        number.wrapping_sub(self.oldest_access) as usize
    }

    /// Returns the requests for a block, counted from the oldest, ascending.
    pub(super) fn requests_of(&self, block: StripeId) -> impl Iterator<Item = usize> + '_ {
        let (mut number, count) =
            self.block_accesses(block).map_or((0, 0), |entry| (entry.first, entry.count));
        (0..count).map(move |_| {
            let access = self.accesses[self.place(number)];
            number = access.next;
            access.request.wrapping_sub(self.oldest_request) as usize
        })
    }

    fn accesses_of(&self, request: usize) -> impl Iterator<Item = &Access> + '_ {
        let Request { first, len } = self.requests[request];
        let first = self.place(first);
        self.accesses.range(first..first + len as usize)
    }
}

#[cfg(test)]
impl Interval {
    /// Numbers requests and accesses from here on; the interval must be empty.
    pub(super) fn start_at(&mut self, number: u32) {
        (self.oldest_request, self.oldest_access) = (number, number);
    }
}
