//! Who holds the byte budget, who waits for it, and who has to go: decisions only, without time or tasks of its own.
//!
//! Memory is held by *payers*: a payer is one access key at one address. Bytes of a body that has not arrived in full
//! (an [`Arrival`]: one block of one put) are held at the mercy of its sender; all other bytes are held for work that
//! ends by itself. The rules:
//!
//! - A body of at most `small_len` bytes never waits behind a larger request, and some memory is left for such bodies.
//! - Of the others that wait, the payer that holds the least is served first (max-min fairness). A payer holds at most
//!   three quarters of the budget.
//! - Arrivals hold at most half of the budget, so that reads and blocks being written always find room. An arrival that
//!   would exceed this waits; its sender is not read meanwhile.
//! - Whoever waits has the slowest arrivals cut at once: those whose bytes were held the longest for want of more
//!   ([`Arrival::mean_age`]), if that is more than [`SLOW`], and more than twice as long as the waiter's own.
//!   A payer one of whose arrivals was cut is *slow* for [`SLOW_FOR`], or until it has sent as much quickly. It waits
//!   behind the others and cuts nobody; its arrivals are cut however young they are. Arrivals of all slow payers hold at
//!   most a quarter of the budget, small ones another quarter. A payer that is alone is not treated as slow.
//!
//! Arrivals grow in steps, so two of them could hold a part each and wait for the rest. They do not deadlock: the
//! arrival that is furthest along may exceed the arrivals' half, and the other half is held by work that ends. If it
//! is the furthest along and its sender is slow, it is not waiting, and is cut when somebody waits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use striate_runtime::Instant;

/// Mean age of an arrival's bytes from which it may be cut.
pub(crate) const SLOW: Duration = Duration::from_secs(1);
/// How long a payer counts as slow after one of its arrivals was cut.
const SLOW_FOR: Duration = Duration::from_secs(300);
/// Maximum length in bytes of a small request, in a budget that is not small itself.
const SMALL: usize = 64 << 10;
/// A small request is at most one part in this many of the budget.
const SMALL_PART: usize = 64;
/// Part of the budget, one in this many, that is left for small requests.
const LEFT_FOR_SMALL: usize = 16;

/// Who pays for memory: one access key at one address, as a number; [`Payer::STORE`] is the store itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Payer(u64);

impl Payer {
    /// The store itself: no limit but the whole budget applies to it.
    pub const STORE: Self = Self(0);

    /// Returns the payer of that name.
    pub fn named<'a>(name: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut number = 0;
        for part in name {
            for bytes in part.chunks(8) {
                let word = bytes.iter().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
                number = striate_splitmix::hash(number ^ word);
            }
            number = striate_splitmix::hash(number ^ part.len() as u64);
        }
        Self(number.max(1))
    }
}

/// What a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    pub payer: Payer,
    pub len: usize,
    /// Set if an arrival grows by `len` bytes.
    pub arrival: Option<u64>,
}

/// One block of a body that is arriving.
#[derive(Debug)]
struct Arrival {
    payer: Payer,
    /// Bytes taken from the budget.
    held: usize,
    /// Bytes that have arrived.
    arrived: usize,
    /// Bytes that have arrived times the nanoseconds for which more were awaited.
    byte_ns: u128,
    /// Since when more bytes are awaited; `None` while the sender is not waited for.
    awaited: Option<Instant>,
    is_cut: bool,
}

#[derive(Debug, Default)]
struct Account {
    held: usize,
    waiting: usize,
    arrivals: usize,
    slow_until: Option<Instant>,
    /// Bytes that it has to send quickly to be no longer slow.
    owed: usize,
}

/// The state of a budget.
#[derive(Debug)]
pub(crate) struct Ledger {
    total: usize,
    free: usize,
    accounts: BTreeMap<Payer, Account>,
    waiting: BTreeMap<u64, Want>,
    arrivals: BTreeMap<u64, Arrival>,
    /// Bytes that small arrivals hold.
    small_bytes: usize,
    /// Bytes that the other arrivals hold.
    partial_bytes: usize,
    last: u64,
}

/// Why a request is not served now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// Not enough is free. Those behind wait too, so that large requests are served at all.
    Free,
    /// A limit of its payer or of arrivals. Others may pass.
    Limit,
}

/// What is the case while those who wait are looked at.
struct Present {
    /// The arrival that is furthest along.
    furthest: Option<u64>,
    /// Bytes that arrivals of slow payers hold, without small ones.
    slow_bytes: usize,
    now: Instant,
}

impl Arrival {
    /// Returns for how long its bytes were held on average while the sender was awaited.
    fn mean_age(&self, now: Instant) -> Duration {
        let more = self.awaited.map_or(0, |since| now.saturating_duration_since(since).as_nanos());
        let byte_ns = self.byte_ns + more * self.arrived as u128;
        Duration::from_nanos((byte_ns / (self.arrived as u128).max(1)) as u64)
    }

    fn settle(&mut self, now: Instant) {
        if let Some(since) = self.awaited.take() {
            self.byte_ns += now.saturating_duration_since(since).as_nanos() * self.arrived as u128;
        }
    }
}

impl Ledger {
    pub fn new(total: usize) -> Self {
        Self {
            total,
            free: total,
            accounts: BTreeMap::new(),
            waiting: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            small_bytes: 0,
            partial_bytes: 0,
            last: 0,
        }
    }

    pub fn free(&self) -> usize {
        self.free
    }

    /// Maximum length of a small request in bytes.
    pub fn small_len(&self) -> usize {
        SMALL.min(self.total / SMALL_PART)
    }

    /// Maximum number of bytes that one request of `payer` takes. Longer ones count as this many.
    pub fn most_of(&self, payer: Payer) -> usize {
        match payer {
            Payer::STORE => self.total,
            _ => (self.total - self.total / 4).max(1),
        }
    }

    /// Puts a request into the queue. Returns its ticket; [`Ledger::serve`] says when it is served.
    pub fn enter(&mut self, want: Want) -> u64 {
        self.last += 1;
        self.waiting.insert(self.last, want);
        self.account(want.payer, |account| account.waiting += 1);
        self.last
    }

    /// Takes the bytes of a request at once, if nobody waits.
    pub fn take(&mut self, want: Want, now: Instant) -> bool {
        let is_free = self.waiting.is_empty() && self.lack(&want, &self.present(now)).is_none();
        if is_free {
            self.hand_over(want);
        }
        is_free
    }

    /// Whether some request waits for bytes that are not free.
    pub fn is_short(&self, now: Instant) -> bool {
        let present = self.present(now);
        self.waiting.values().any(|want| self.lack(want, &present) == Some(Lack::Free))
    }

    /// Whether a request waits.
    pub fn is_waiting(&self, ticket: u64) -> bool {
        self.waiting.contains_key(&ticket)
    }

    /// Number of requests that wait, without those of slow payers.
    pub fn pressing(&self, now: Instant) -> usize {
        self.waiting.values().filter(|want| !self.is_slow(want.payer, now)).count()
    }

    /// Bytes that an arrival holds.
    pub fn held_by(&self, arrival: u64) -> usize {
        self.arrivals.get(&arrival).map_or(0, |arrival| arrival.held)
    }

    /// Takes a request out of the queue. Returns whether it was there.
    pub fn leave(&mut self, ticket: u64) -> bool {
        let Some(want) = self.waiting.remove(&ticket) else { return false };
        self.account(want.payer, |account| account.waiting -= 1);
        true
    }

    /// Takes the bytes for the next request that can be served. Returns its ticket, `None` if there is none.
    pub fn serve(&mut self, now: Instant) -> Option<u64> {
        if self.waiting.is_empty() {
            return None;
        }
        let ticket = self.next(now)?;
        let want = self.waiting[&ticket];
        self.leave(ticket);
        self.hand_over(want);
        Some(ticket)
    }

    fn hand_over(&mut self, want: Want) {
        self.free -= want.len;
        self.account(want.payer, |account| account.held += want.len);
        if let Some(arrival) = want.arrival {
            self.resize(arrival, |held| held + want.len);
        }
    }

    /// Returns bytes that are not an arrival's.
    pub fn give_back(&mut self, payer: Payer, len: usize) {
        self.free += len;
        self.account(payer, |account| account.held -= len);
    }

    /// Moves held bytes to another payer.
    pub fn transfer(&mut self, from: Payer, to: Payer, len: usize) {
        self.account(from, |account| account.held -= len);
        self.account(to, |account| account.held += len);
    }

    /// Begins a block that arrives.
    pub fn begin_arrival(&mut self, payer: Payer) -> u64 {
        self.last += 1;
        let arrival = Arrival { payer, held: 0, arrived: 0, byte_ns: 0, awaited: None, is_cut: false };
        self.arrivals.insert(self.last, arrival);
        self.account(payer, |account| account.arrivals += 1);
        self.last
    }

    /// Records that a block has arrived in full. A payer that sends as much quickly as was cut is no longer slow.
    pub fn complete_arrival(&mut self, arrival: u64, now: Instant) {
        if let Some(complete) = self.arrivals.get(&arrival)
            && complete.mean_age(now) < SLOW / 2
        {
            let (payer, held) = (complete.payer, complete.held);
            self.account(payer, |account| {
                account.owed = account.owed.saturating_sub(held);
                account.slow_until = account.slow_until.filter(|_| account.owed > 0);
            });
        }
        self.end_arrival(arrival);
    }

    /// Ends an arrival; its bytes stay with its payer, for work that ends by itself, or are to be given back.
    pub fn end_arrival(&mut self, arrival: u64) {
        self.resize(arrival, |_| 0);
        if let Some(ended) = self.arrivals.remove(&arrival) {
            self.account(ended.payer, |account| account.arrivals -= 1);
        }
    }

    /// Records that more than `arrived` bytes of a block are awaited.
    pub fn await_more(&mut self, arrival: u64, arrived: usize, now: Instant) {
        if let Some(arrival) = self.arrivals.get_mut(&arrival) {
            arrival.settle(now);
            (arrival.arrived, arrival.awaited) = (arrived, Some(now));
        }
    }

    /// Records that the sender of a block is not waited for any more.
    pub fn end_wait(&mut self, arrival: u64, now: Instant) {
        if let Some(arrival) = self.arrivals.get_mut(&arrival) {
            arrival.settle(now);
        }
    }

    /// Cuts the slowest arrivals for one that waits, unless its payer is slow itself. Returns them; each gives back what
    /// it holds when it ends. Those who wait ask again when they were not served meanwhile.
    pub fn cut_for(&mut self, ticket: u64, now: Instant) -> Vec<u64> {
        let Some(want) = self.waiting.get(&ticket).copied() else { return Vec::new() };
        if self.is_slow(want.payer, now) || self.is_at_limit(&want) {
            return Vec::new();
        }
        let own = want.arrival.and_then(|id| self.arrivals.get(&id));
        let least = SLOW.max(own.map_or(Duration::ZERO, |arrival| arrival.mean_age(now)) * 2);
        // One that waits for memory is not waiting for its sender; of slow payers it goes all the same.
        let parked: BTreeSet<u64> = self.waiting.values().filter_map(|want| want.arrival).collect();
        // Those of slow payers first: a machine without processor time to spare makes everybody seem slow.
        let mut slowest = Vec::new();
        for (id, arrival) in self.arrivals.iter().filter(|(_, arrival)| !arrival.is_cut && arrival.held > 0) {
            let (age, is_slow) = (arrival.mean_age(now), self.is_slow(arrival.payer, now));
            if is_slow || (age >= least && !parked.contains(id)) {
                slowest.push((is_slow, age, *id));
            }
        }
        slowest.sort_by(|one, other| other.cmp(one));
        let needed = self.needed(&(want, ticket), now);
        let leaving = self.arrivals.values().filter(|arrival| arrival.is_cut);
        let (mut freed, mut cut) = (leaving.map(|arrival| arrival.held).sum::<usize>(), Vec::new());
        for (_, _, id) in slowest {
            if freed >= needed {
                break;
            }
            freed += self.cut_one(id, now);
            cut.push(id);
        }
        cut
    }

    /// Returns the bytes that those who wait need up to one of them in turn, without slow payers.
    fn needed(&self, (last, ticket): &(Want, u64), now: Instant) -> usize {
        let last = self.turn(last, *ticket, now);
        let is_before = |(ticket, want): &(&u64, &Want)| {
            let turn = self.turn(want, **ticket, now);
            !turn.0 && turn <= last && !self.is_at_limit(want)
        };
        // A small arrival that grows takes what it holds along.
        let len_of = |want: &Want| match want.arrival.and_then(|id| self.arrivals.get(&id)) {
            Some(arrival) if arrival.held <= self.small_len() => want.len + arrival.held,
            _ => want.len,
        };
        self.waiting.iter().filter(is_before).map(|(_, want)| len_of(want)).sum()
    }

    /// Returns when it is the turn of one that waits: slow payers are the last, then those that hold more. The store
    /// paces itself.
    fn turn(&self, want: &Want, ticket: u64, now: Instant) -> (bool, usize, u64) {
        let account = self.accounts.get(&want.payer).filter(|_| want.payer != Payer::STORE);
        (self.is_slow(want.payer, now), account.map_or(0, |account| account.held), ticket)
    }

    fn cut_one(&mut self, id: u64, now: Instant) -> usize {
        let Some(arrival) = self.arrivals.get_mut(&id) else { return 0 };
        arrival.is_cut = true;
        let (payer, held) = (arrival.payer, arrival.held);
        let tickets: Vec<u64> = self
            .waiting
            .iter()
            .filter(|(_, want)| want.arrival == Some(id))
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in tickets {
            self.leave(ticket);
        }
        self.account(payer, |account| {
            account.slow_until = Some(now + SLOW_FOR);
            account.owed += held;
        });
        held
    }

    /// Whether a payer has to give way: it is slow, and somebody who is not asks for memory or holds some. Alone it
    /// harms nobody, and keeps its share.
    fn is_slow(&self, payer: Payer, now: Instant) -> bool {
        let is_marked = |account: &Account| account.slow_until.is_some_and(|until| now < until);
        let is_active = |account: &Account| account.held + account.waiting + account.arrivals > 0;
        self.accounts.get(&payer).is_some_and(is_marked)
            && self.accounts.iter().any(|(other, account)| {
                ![payer, Payer::STORE].contains(other) && is_active(account) && !is_marked(account)
            })
    }

    /// Returns the ticket to be served next, if it can be served now.
    fn next(&self, now: Instant) -> Option<u64> {
        let present = self.present(now);
        // Small ones first, in their order. They need so little that those behind can wait for it.
        for (ticket, want) in self.waiting.iter().filter(|(_, want)| self.is_small(want)) {
            match self.lack(want, &present) {
                None => return Some(*ticket),
                Some(Lack::Free) => return None,
                Some(Lack::Limit) => {}
            }
        }
        // The furthest along passes all others, so that arrivals never wait for each other.
        let is_furthest = |want: &Want| want.arrival.is_some() && want.arrival == present.furthest;
        let first = self.waiting.iter().find(|(_, want)| is_furthest(want));
        if let Some((ticket, want)) = first
            && self.lack(want, &present).is_none()
        {
            return Some(*ticket);
        }
        let turns = self.waiting.iter().map(|(ticket, want)| self.turn(want, *ticket, now));
        let mut turns: Vec<(bool, usize, u64)> = turns.collect();
        turns.sort();
        for (_, _, ticket) in turns {
            match self.lack(&self.waiting[&ticket], &present) {
                None => return Some(ticket),
                Some(Lack::Free) => return None,
                Some(Lack::Limit) => {}
            }
        }
        None
    }

    /// Whether a request is small, or is a part of a small body.
    fn is_small(&self, want: &Want) -> bool {
        let arrival = want.arrival.and_then(|id| self.arrivals.get(&id));
        want.len + arrival.map_or(0, |arrival| arrival.held) <= self.small_len()
    }

    /// Returns why a request cannot be served now.
    fn lack(&self, want: &Want, present: &Present) -> Option<Lack> {
        let (is_small, is_store) = (self.is_small(want), want.payer == Payer::STORE);
        if want.arrival.is_some() && want.arrival == present.furthest {
            return (self.free < want.len).then_some(Lack::Free);
        }
        if self.is_at_limit(want) {
            return Some(Lack::Limit);
        }
        if let Some(id) = want.arrival
            && let Some(arrival) = self.arrivals.get(&id)
        {
            let is_slow = self.is_slow(want.payer, present.now);
            // What a small arrival holds counts among the others' bytes once it is large.
            let joins = if arrival.held <= self.small_len() { arrival.held + want.len } else { want.len };
            let exceeds = match is_small {
                true => is_slow && self.small_bytes + want.len > self.total / 4,
                false => {
                    self.partial_bytes + joins > self.total / 2
                        || (is_slow && present.slow_bytes + joins > self.total / 4)
                }
            };
            if exceeds {
                return Some(Lack::Limit);
            }
        }
        let left = if is_small || is_store { 0 } else { self.total / LEFT_FOR_SMALL };
        (self.free < want.len + left).then_some(Lack::Free)
    }

    /// Whether a payer holds as much as it may, so that only its own memory can serve the request.
    fn is_at_limit(&self, want: &Want) -> bool {
        let held = self.accounts.get(&want.payer).map_or(0, |account| account.held);
        want.payer != Payer::STORE && held > 0 && held + want.len > self.most_of(want.payer)
    }

    fn present(&self, now: Instant) -> Present {
        let (mut furthest, mut slow_bytes) = (None, 0);
        for (id, arrival) in self.arrivals.iter().filter(|(_, arrival)| arrival.held > 0) {
            if arrival.held > self.small_len() && self.is_slow(arrival.payer, now) {
                slow_bytes += arrival.held;
            }
            // The oldest of several.
            if !arrival.is_cut && furthest.is_none_or(|(held, _)| arrival.held > held) {
                furthest = Some((arrival.held, *id));
            }
        }
        Present { furthest: furthest.map(|(_, id)| id), slow_bytes, now }
    }

    /// Changes what an arrival holds, in the sums of arrivals only.
    fn resize(&mut self, id: u64, len: impl FnOnce(usize) -> usize) {
        let small = self.small_len();
        let Some(arrival) = self.arrivals.get_mut(&id) else { return };
        let before = arrival.held;
        arrival.held = len(before);
        let after = arrival.held;
        *(if before <= small { &mut self.small_bytes } else { &mut self.partial_bytes }) -= before;
        *(if after <= small { &mut self.small_bytes } else { &mut self.partial_bytes }) += after;
    }

    /// Changes an account, and forgets it once nothing remains to be known of it.
    fn account(&mut self, payer: Payer, change: impl FnOnce(&mut Account)) {
        let account = self.accounts.entry(payer).or_default();
        change(account);
        if account.held == 0 && account.waiting == 0 && account.arrivals == 0 && account.slow_until.is_none()
        {
            self.accounts.remove(&payer);
        }
    }

    /// Forgets payers that are slow no more.
    pub fn forget(&mut self, now: Instant) {
        self.accounts.retain(|_, account| {
            account.slow_until = account.slow_until.filter(|until| now < *until);
            account.owed = if account.slow_until.is_some() { account.owed } else { 0 };
            account.held > 0 || account.waiting > 0 || account.arrivals > 0 || account.slow_until.is_some()
        });
    }
}

#[cfg(test)]
mod tests;
