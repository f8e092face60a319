//! Memory for what is held whole while it arrives: documents, the fields of forms, and heads that are long.
//!
//! A pool has a limit, and is shared fairly by its *payers*: an access key at an address, or for what nobody has signed
//! yet the address alone. Beyond the limit the payer that holds the most gives way: the oldest of its requests that
//! waits for its peer is cut. A payer that holds the most itself is refused. What is not signed has a pool of its own,
//! so that it never takes memory from requests that are.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use striate_client::Payer;

use crate::audit::RequestMetrics;
use crate::peers::{Peer, PeerWait};
use crate::refusal::Refusal;

/// Memory is reserved in multiples of so many bytes.
const UNIT: usize = 1 << 10;

/// A bounded memory with fair shares.
pub(crate) struct FairPool {
    limit: usize,
    /// Name of the refusals and cuts in metrics.
    name: &'static str,
    metrics: Arc<dyn RequestMetrics>,
    table: Mutex<PoolTable>,
}

#[derive(Default)]
struct PoolTable {
    last: u64,
    total: usize,
    /// Bytes that will be free when the requests that were cut have ended.
    leaving: usize,
    holds: BTreeMap<u64, Held>,
}

struct Held {
    payer: Payer,
    peer: Weak<Peer>,
    len: usize,
    is_cut: bool,
}

/// Memory of a pool; returned when dropped.
pub(crate) struct Hold {
    pool: Arc<FairPool>,
    number: u64,
    len: usize,
}

/// A pool, as one request sees it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct PoolUser {
    pool: Arc<FairPool>,
    payer: Payer,
    peer: Weak<Peer>,
}

impl FairPool {
    pub fn new(limit: usize, name: &'static str, metrics: Arc<dyn RequestMetrics>) -> Arc<Self> {
        Arc::new(Self { limit, name, metrics, table: Mutex::default() })
    }

    /// Returns the pool for a request of `peer` that `payer` answers for.
    pub fn used_by(self: &Arc<Self>, payer: Payer, peer: &Arc<Peer>) -> PoolUser {
        PoolUser { pool: Arc::clone(self), payer, peer: Arc::downgrade(peer) }
    }

    /// Bytes in use.
    #[cfg(test)]
    pub fn taken(&self) -> usize {
        self.table.lock().total
    }
}

impl PoolUser {
    /// Extends `held` to `len` bytes in total.
    ///
    /// # Errors
    /// 503 SlowDown if the pool is used up and this payer holds the most of it.
    pub fn reserve(&self, held: &mut Option<Hold>, len: usize) -> Result<(), Refusal> {
        let len = len.next_multiple_of(UNIT);
        let more = len.saturating_sub(held.as_ref().map_or(0, |held| held.len));
        if more == 0 {
            return Ok(());
        }
        let pool = &self.pool;
        let mut table = pool.table.lock();
        let number = held.as_ref().map(|held| held.number);
        let cut = match table.make_room(self.payer, number, more, pool.limit) {
            Some(cut) => cut,
            None => {
                drop(table);
                pool.metrics.refused(pool.name);
                return Err(Refusal::slow_down());
            }
        };
        let number = table.add(number, self, more);
        drop(table);
        for peer in cut {
            pool.metrics.cut(pool.name);
            peer.cut();
        }
        match held {
            Some(held) => held.len = len,
            None => *held = Some(Hold { pool: Arc::clone(pool), number, len }),
        }
        Ok(())
    }
}

impl PoolTable {
    /// Makes room for `more` bytes of a payer. Returns the peers to be cut for it, `None` if the payer holds the most
    /// itself, or if those that hold the most do not wait for their peers.
    fn make_room(
        &mut self,
        payer: Payer,
        own: Option<u64>,
        more: usize,
        limit: usize,
    ) -> Option<Vec<Arc<Peer>>> {
        let mut cut = Vec::new();
        while self.total - self.leaving + more > limit {
            let mut by_payer: BTreeMap<Payer, usize> = BTreeMap::from([(payer, more)]);
            for held in self.holds.values().filter(|held| !held.is_cut) {
                *by_payer.entry(held.payer).or_default() += held.len;
            }
            // With as many bytes as another, the one that asks gives way.
            let most =
                by_payer.iter().max_by_key(|(one, len)| (**len, **one == payer)).map(|(one, _)| *one)?;
            let is_victim = |number: &u64, held: &Held| {
                !held.is_cut && held.payer == most && Some(*number) != own && most != payer
            };
            let waits = |held: &Held| held.peer.upgrade().filter(|peer| peer.waits() != PeerWait::NotForPeer);
            let victims = self.holds.iter_mut().filter(|(number, held)| is_victim(number, held));
            let (victim, peer) = victims
                .filter_map(|(_, held)| Some((waits(held)?, held)))
                .map(|(peer, held)| (held, peer))
                .next()?;
            victim.is_cut = true;
            self.leaving += victim.len;
            cut.push(peer);
        }
        Some(cut)
    }

    fn add(&mut self, number: Option<u64>, user: &PoolUser, more: usize) -> u64 {
        self.total += more;
        let number = number.unwrap_or_else(|| {
            self.last += 1;
            self.last
        });
        let held = self.holds.entry(number).or_insert_with(|| Held {
            payer: user.payer,
            peer: user.peer.clone(),
            len: 0,
            is_cut: false,
        });
        held.len += more;
        self.leaving += if held.is_cut { more } else { 0 };
        number
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut table = self.pool.table.lock();
        let Some(held) = table.holds.remove(&self.number) else { return };
        table.total -= held.len;
        table.leaving -= if held.is_cut { held.len } else { 0 };
    }
}

/// Returns the bytes that the items of a batch occupy until it ends, from its document's length: short items take some
/// twenty times their text, long keys four times, and there are at most 4,096 items.
pub(crate) fn batch_footprint(len: usize) -> usize {
    (len * 20).min(len * 4 + (2 << 20))
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;
    use crate::audit::NullSink;

    fn pool() -> Arc<FairPool> {
        FairPool::new(100 * UNIT, "documents", Arc::new(NullSink))
    }

    /// Returns a payer of that number, and a peer that is waited for.
    fn one(number: u8) -> (Payer, Arc<Peer>) {
        let peer = Arc::<Peer>::default();
        peer.begin_request();
        peer.await_body(&Context::from_waker(Waker::noop()));
        (Payer::named([&[number][..]]), peer)
    }

    fn is_cut(peer: &Arc<Peer>) -> bool {
        peer.await_body(&Context::from_waker(Waker::noop()))
    }

    #[test]
    fn the_payer_that_holds_the_most_gives_way() {
        let pool = pool();
        let (greedy, first) = one(1);
        let (_, second) = one(1);
        let (mut one_hold, mut other_hold, mut modest_hold) = (None, None, None);
        pool.used_by(greedy, &first).reserve(&mut one_hold, 50 * UNIT).unwrap();
        pool.used_by(greedy, &second).reserve(&mut other_hold, 40 * UNIT).unwrap();
        let (modest, third) = one(2);
        pool.used_by(modest, &third).reserve(&mut modest_hold, 20 * UNIT).unwrap();
        assert!(is_cut(&first) && !is_cut(&second), "the oldest of its requests");
        assert_eq!(pool.taken(), 110 * UNIT, "until it has ended");
        assert_eq!(
            pool.used_by(greedy, &second).reserve(&mut other_hold, 90 * UNIT).unwrap_err().code,
            "SlowDown"
        );
        drop(one_hold);
        pool.used_by(modest, &third).reserve(&mut modest_hold, 55 * UNIT).unwrap();
        assert!(!is_cut(&second));
        drop((other_hold, modest_hold));
        assert_eq!(pool.taken(), 0);
    }

    #[test]
    fn two_hundred_payers_do_not_keep_out_another() {
        let pool = FairPool::new(200 * 64 * UNIT, "unsigned", Arc::new(NullSink));
        let mut holds = Vec::new();
        for number in 0..200 {
            let (payer, peer) = one(number);
            let mut held = None;
            pool.used_by(payer, &peer).reserve(&mut held, 64 * UNIT).unwrap();
            holds.push((held, peer));
        }
        let (payer, peer) = one(250);
        let mut held = None;
        pool.used_by(payer, &peer).reserve(&mut held, 10 * UNIT).unwrap();
        assert_eq!(holds.iter().filter(|(_, peer)| is_cut(peer)).count(), 1);
        assert!(pool.used_by(payer, &peer).reserve(&mut held, 129 * UNIT).is_err(), "it would hold the most");
    }

    #[test]
    fn what_does_not_wait_for_its_peer_is_not_cut() {
        let pool = pool();
        let (busy, peer) = one(1);
        peer.stop_waiting(PeerWait::ForBody);
        let (mut busy_hold, mut held) = (None, None);
        pool.used_by(busy, &peer).reserve(&mut busy_hold, 90 * UNIT).unwrap();
        let (payer, other) = one(2);
        assert!(pool.used_by(payer, &other).reserve(&mut held, 20 * UNIT).is_err());
    }
}
