//! The connected peers: how fast each moves bytes, and which are cut first.
//!
//! A connection costs descriptors and memory for as long as its peer likes, unless it is watched. One sweeper checks
//! all connections in every tick (a second; less for a short window): connections have no timers, and serving takes no lock. A
//! peer that is waited for must move [`Limits::min_rate`] over the last [`Limits::rate_window`] of such waiting. While
//! memory is short, ours or what the system holds of responses, the last [`Limits::pressed_window`] counts, and the
//! slowest are cut first. When connections run out, one is closed whose peer never sent a valid signature, idle or
//! sending, of the address that has the most of these; else an idle one: one of the address with most connections, and
//! of those the one that has been idle for longest. What is closed may still send a last response, or finish a request
//! that began at that very moment; a few connections may be ending so, and one more breaks the first of them off.
//!
//! Waiting for the store does not count against a peer, and a lump of bytes counts for the whole window: a peer that
//! moves twice the minimum on average finishes, however the network chops its bytes.

mod in_flight;
mod peer;
mod rate;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use striate_listen::AddressCounts;
use striate_listen::descriptors::ending;
use striate_runtime::Runtime;

use crate::audit::RequestMetrics;
use crate::documents::FairPool;
use crate::options::Limits;
use rate::Rate;

pub(crate) use in_flight::{InFlight, KeyLimits};
pub(crate) use peer::{Peer, PeerWait, SendBuffer};

/// Minimum number of ticks in a window.
const TICKS: u32 = 30;
/// Maximum length of a tick.
const LONGEST_TICK: Duration = Duration::from_secs(1);
/// Minimum length of a tick: tests have short windows.
const SHORTEST_TICK: Duration = Duration::from_millis(5);
/// Memory for what is not signed, as a part of that for documents: one in this many.
const UNSIGNED_PART: usize = 8;
/// Part of the window by which senders are judged while memory is short. What they sent is seen at
/// once, while receivers move in lumps of the size of their buffers; and what has arrived of a body
/// cannot be dropped and read again.
const SENDERS_PART: usize = 3;
/// Bytes in two awaited ticks below which a receiver is slow, so that the system should take little for it. (The bytes
/// of the tick in which its request began are not known.)
const SLOW_BELOW: u64 = 1 << 20;
/// One in this many of the peers below the minimum rate is cut in a tick while memory is short.
const CUT_SHARE: usize = 4;
/// Minimum number of peers cut in such a tick.
const CUT_AT_LEAST: usize = 8;

/// All connections of a gateway.
pub(crate) struct Peers {
    limits: Limits,
    metrics: Arc<dyn RequestMetrics>,
    /// Memory for what is not signed: heads and forms.
    unsigned: Arc<FairPool>,
    table: Mutex<PeerTable>,
}

#[derive(Default)]
struct PeerTable {
    last: u64,
    connections: HashMap<u64, WatchedPeer>,
    by_address: AddressCounts,
    /// Those of the connections that have made room for others, and count no more; the first one first.
    ending: VecDeque<u64>,
}

struct WatchedPeer {
    peer: Arc<Peer>,
    /// `None` for a trusted proxy.
    address: Option<IpAddr>,
    rate: Rate,
    /// Number of requests that had begun at the last tick.
    begun: u32,
    /// Number of ticks without a request.
    idle: u32,
    /// Number of ticks in which nobody had signed its request.
    unknown: u32,
    /// Whether it has made room for another.
    is_ending: bool,
}

/// An admitted connection; forgotten when dropped.
pub(crate) struct AdmittedPeer {
    peers: Arc<Peers>,
    number: u64,
    /// Peer of the connection.
    pub peer: Arc<Peer>,
}

/// Why a connection was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerLimit {
    /// All connections are in use, and none can make room.
    Connections,
    /// All connections of its address are in use.
    Address,
}

impl PeerLimit {
    /// Returns the name in metrics.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Address => "connections_of_address",
        }
    }
}

impl Peers {
    pub fn new(limits: Limits, metrics: Arc<dyn RequestMetrics>) -> Arc<Self> {
        let unsigned = FairPool::new(limits.buffered_bytes / UNSIGNED_PART, "unsigned", Arc::clone(&metrics));
        Arc::new(Self { limits, metrics, unsigned, table: Mutex::default() })
    }

    /// Returns the memory for what is not signed.
    pub fn unsigned(&self) -> &Arc<FairPool> {
        &self.unsigned
    }

    /// Admits a connection. If all of its address are in use, an idle one of that address makes room; if all are, one
    /// that is idle or below the minimum rate.
    ///
    /// # Errors
    /// The limit that is reached.
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> Result<AdmittedPeer, PeerLimit> {
        let address = self.limits.trusted_proxies.counted(address);
        let mut table = self.table.lock();
        if address.is_some_and(|address| table.by_address.of(address) >= self.limits.connections_per_address)
        {
            let number = table.idle(|watched| watched.address == address);
            self.make_room(&mut table, number.ok_or(PeerLimit::Address)?);
        }
        if table.connections.len() - table.ending.len() >= self.limits.connections {
            let number = table.dispensable(self.pressed_ticks(), self.least(self.pressed_ticks()));
            self.make_room(&mut table, number.ok_or(PeerLimit::Connections)?);
        }
        table.last += 1;
        let number = table.last;
        let peer = Arc::new(Peer::from(address, Arc::clone(&self.unsigned)));
        let watched = WatchedPeer {
            peer: Arc::clone(&peer),
            address,
            rate: Rate::default(),
            begun: 0,
            idle: 0,
            unknown: 0,
            is_ending: false,
        };
        table.connections.insert(number, watched);
        table.by_address.add(address);
        Ok(AdmittedPeer { peers: Arc::clone(self), number, peer })
    }

    fn make_room(&self, table: &mut PeerTable, number: u64) {
        table.end(number);
        self.metrics.cut("room");
        if table.ending.len() > ending(self.limits.connections)
            && let Some(number) = table.ending.pop_front()
            && let Some(watched) = table.connections.remove(&number)
        {
            watched.peer.break_off();
        }
    }

    /// Sweeps all connections until the task is dropped. `is_pressed` returns whether memory is short.
    pub async fn watch(&self, runtime: &Runtime, is_pressed: impl Fn() -> bool) {
        loop {
            runtime.sleep(self.tick()).await;
            self.sweep(is_pressed());
        }
    }

    /// Ends a tick: counts the bytes that moved, and cuts peers that are too slow.
    pub fn sweep(&self, is_pressed: bool) {
        let mut table = self.table.lock();
        let (ticks, pressed_ticks) = (self.ticks(), self.pressed_ticks());
        let least = self.least(ticks);
        table.connections.values_mut().for_each(|watched| watched.tick(ticks));
        let held: u64 = table.connections.values().map(|watched| watched.peer.held()).sum();
        let is_pressed = is_pressed || held > self.limits.unsent_bytes;
        let mut slow = Vec::new();
        for watched in table.connections.values_mut() {
            if watched.peer.waits() == PeerWait::NotForPeer {
                if watched.is_ending && watched.peer.is_idle() {
                    // A request had just begun when it made room.
                    watched.peer.cut();
                }
                continue;
            }
            if watched.rate.of_last(ticks).is_some_and(|bytes| bytes < least) {
                watched.cut();
                self.metrics.cut("rate");
            } else if is_pressed {
                let ticks = match watched.peer.waits() {
                    PeerWait::ForBody => pressed_ticks.div_ceil(SENDERS_PART),
                    _ => pressed_ticks,
                };
                let bytes = watched.rate.of_last(ticks).filter(|&bytes| bytes < self.least(ticks));
                slow.extend(bytes.map(|bytes| (bytes / ticks as u64, Arc::clone(&watched.peer))));
            }
        }
        slow.sort_by_key(|(bytes_per_tick, _)| *bytes_per_tick);
        let most = (slow.len() / CUT_SHARE).max(CUT_AT_LEAST);
        for (_, peer) in slow.iter().take(most) {
            peer.cut();
            self.metrics.cut("memory");
        }
    }

    /// Returns the length of a tick.
    fn tick(&self) -> Duration {
        (self.limits.rate_window / TICKS).clamp(SHORTEST_TICK, LONGEST_TICK)
    }

    /// Returns the number of ticks in a window.
    fn ticks(&self) -> usize {
        (self.limits.rate_window.as_secs_f64() / self.tick().as_secs_f64()).round().max(1.0) as usize
    }

    /// Returns the number of ticks in the window that counts while memory is short.
    fn pressed_ticks(&self) -> usize {
        let ticks = self.limits.pressed_window.as_secs_f64() / self.tick().as_secs_f64();
        (ticks.ceil() as usize).clamp(1, self.ticks())
    }

    /// Returns the number of bytes that a peer must move in `ticks`.
    fn least(&self, ticks: usize) -> u64 {
        (self.limits.min_rate as f64 * self.tick().as_secs_f64() * ticks as f64) as u64
    }
}

impl PeerTable {
    /// Returns the connections that have not made room yet.
    fn staying(&self) -> impl Iterator<Item = (&u64, &WatchedPeer)> {
        self.connections.iter().filter(|(_, watched)| !watched.is_ending)
    }

    /// Returns the idle connection that is missed least, of those that `may_go`.
    fn idle(&self, may_go: impl Fn(&WatchedPeer) -> bool) -> Option<u64> {
        let idle = self.staying().filter(|(_, watched)| watched.peer.is_idle() && may_go(watched));
        let rank = |(number, watched): (&u64, &WatchedPeer)| {
            let weight = self.by_address.weight(watched.address);
            // The oldest of those that have been idle for equally long, so that no new connection is cut.
            ((!watched.peer.is_known(), weight, watched.idle, std::cmp::Reverse(*number)), *number)
        };
        idle.map(rank).max().map(|(_, number)| number)
    }

    /// Returns a connection that nobody has signed a request on for a tick, of the address that has the most of them; if
    /// there is none, an idle connection; then any that nobody has signed; then the slowest of those that moved less than
    /// `least` bytes in their last `ticks`.
    fn dispensable(&self, ticks: usize, least: u64) -> Option<u64> {
        if let Some(number) = self.unknown(|watched| watched.unknown > 0) {
            return Some(number);
        }
        if let Some(number) = self.idle(|_| true) {
            return Some(number);
        }
        if let Some(number) = self.unknown(|_| true) {
            return Some(number);
        }
        let rated = self.staying().filter(|(_, watched)| watched.peer.waits() != PeerWait::NotForPeer);
        let rated = rated.filter_map(|(number, watched)| Some((watched.rate.of_last(ticks)?, *number)));
        rated.filter(|(bytes, _)| *bytes < least).min().map(|(_, number)| number)
    }

    /// Returns the oldest connection whose sender is not known, of the address that has the most of them.
    fn unknown(&self, is_wanted: impl Fn(&WatchedPeer) -> bool) -> Option<u64> {
        let mut by_address: HashMap<Option<IpAddr>, (usize, u64)> = HashMap::new();
        for (number, watched) in self.staying() {
            if watched.is_unknown() && is_wanted(watched) {
                let (count, oldest) = by_address.entry(watched.address).or_insert((0, *number));
                // Behind a trusted proxy are many.
                *count = if watched.address.is_some() { *count + 1 } else { 1 };
                *oldest = (*oldest).min(*number);
            }
        }
        let most =
            by_address.into_values().max_by_key(|(count, oldest)| (*count, std::cmp::Reverse(*oldest)));
        most.map(|(_, oldest)| oldest)
    }

    /// Makes a connection end. It counts no more, and is watched until it has ended.
    fn end(&mut self, number: u64) {
        let Some(watched) = self.connections.get_mut(&number) else { return };
        watched.is_ending = true;
        watched.peer.cut();
        self.by_address.remove(watched.address);
        self.ending.push_back(number);
    }

    fn forget(&mut self, number: u64) {
        match self.connections.remove(&number) {
            Some(watched) if watched.is_ending => self.ending.retain(|other| *other != number),
            Some(watched) => self.by_address.remove(watched.address),
            None => {}
        }
    }
}

impl WatchedPeer {
    /// Whether nobody has signed the request that is arriving, or none on an idle connection. A response that is being
    /// sent is not disturbed.
    fn is_unknown(&self) -> bool {
        match self.peer.is_idle() {
            true => !self.peer.is_known(),
            false => self.peer.waits() == PeerWait::ForBody && !self.peer.is_signed(),
        }
    }

    fn tick(&mut self, window: usize) {
        let (begun, moved) = (self.peer.begun(), self.peer.moved());
        if begun != self.begun {
            (self.begun, self.idle) = (begun, 0);
            self.rate.restart(moved);
        }
        self.unknown = if self.is_unknown() { self.unknown.saturating_add(1) } else { 0 };
        match self.peer.is_idle() {
            true => self.idle = self.idle.saturating_add(1),
            false => {
                let waits = self.peer.waits();
                self.rate.tick(moved, waits != PeerWait::NotForPeer, window);
                if waits == PeerWait::ForReceiver
                    && self.rate.of_last(2).is_some_and(|bytes| bytes < SLOW_BELOW)
                {
                    self.peer.bound();
                }
            }
        }
    }

    fn cut(&mut self) {
        self.peer.cut();
        // It gets another window to take its last response.
        self.rate.restart(self.peer.moved());
    }
}

impl Drop for AdmittedPeer {
    fn drop(&mut self) {
        self.peers.table.lock().forget(self.number);
    }
}

#[cfg(test)]
mod tests;
