//! Which connections are admitted, and which make room for others.
//!
//! A listener has a number of places for connections. When all are taken, the next one is still admitted if some other
//! only waits for its peer: for a handshake, for the head of a request, for the peer to take a response. So nobody can
//! close a port by opening connections and leaving them. Of those that wait, the address with the most connections gives
//! up a place first ([`AddressCounts::weight`]), and of its connections the one that has waited for the longest. An
//! attack from one address takes places from itself; one from many addresses must renew its connections faster than an
//! honest peer needs for a handshake or a request.
//!
//! The natural alternative, to refuse what exceeds a limit, is what an attacker wants: one who holds all places refuses
//! everybody else, for as long as connections may live.
//!
//! Trusted proxies ([`Networks`]) stand for many clients: there the address is not counted, only the wait.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::addresses::AddressCounts;
use crate::networks::Networks;

/// Limits of a listener.
#[derive(Clone, Debug)]
pub struct AdmissionLimits {
    /// Number of connections.
    pub connections: usize,
    /// Number of connections of one address (for IPv6: one network of 64 bits).
    pub per_address: usize,
    /// Proxies, whose addresses are not counted.
    pub trusted: Networks,
}

/// The places of a listener. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Admission {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limits: AdmissionLimits,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Counts admissions and waits: what has waited for longest has the smallest number.
    last: u64,
    guests: HashMap<u64, Entry>,
    by_address: AddressCounts,
}

#[derive(Debug)]
struct Entry {
    /// `None` for a trusted proxy, and where there are no addresses.
    address: Option<IpAddr>,
    /// When it began to wait for its peer; `None` while it does not.
    waits_since: Option<u64>,
    evict: watch::Sender<bool>,
}

/// An admitted connection, which waits for its peer until [`Guest::works`]; forgotten when dropped.
#[derive(Debug)]
pub struct Guest {
    shared: Arc<Shared>,
    number: u64,
    evicted: watch::Receiver<bool>,
}

/// Why a connection is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// All connections of its address are at work.
    #[error("too many connections of one address")]
    Address,
    /// All connections are at work.
    #[error("too many connections")]
    Connections,
}

impl Admission {
    /// Creates the places of a listener.
    pub fn new(limits: AdmissionLimits) -> Self {
        Self { shared: Arc::new(Shared { limits, table: Mutex::default() }) }
    }

    /// Admits a connection from `address`, which waits for its peer. One that waits for its own makes room if need be.
    ///
    /// # Errors
    /// The limit that is reached, if no connection under it waits for its peer.
    pub fn admit(&self, address: Option<IpAddr>) -> Result<Guest, Refusal> {
        let limits = &self.shared.limits;
        let address = address.and_then(|address| limits.trusted.counted(address));
        let mut table = self.shared.table.lock();
        if address.is_some_and(|address| table.by_address.of(address) >= limits.per_address.max(1)) {
            table.evict(|entry| entry.address == address).ok_or(Refusal::Address)?;
        }
        if table.guests.len() >= limits.connections.max(1) {
            table.evict(|_| true).ok_or(Refusal::Connections)?;
        }
        table.last += 1;
        let number = table.last;
        let (evict, evicted) = watch::channel(false);
        table.guests.insert(number, Entry { address, waits_since: Some(number), evict });
        table.by_address.add(address);
        Ok(Guest { shared: Arc::clone(&self.shared), number, evicted })
    }

    /// Returns the number of connections that are admitted.
    pub fn connections(&self) -> usize {
        self.shared.table.lock().guests.len()
    }
}

impl Table {
    /// Evicts, of the connections that wait for their peers, one of the address with most connections, and there the
    /// one that has waited for longest.
    fn evict(&mut self, may_go: impl Fn(&Entry) -> bool) -> Option<()> {
        let waiting = self.guests.iter().filter(|(_, entry)| may_go(entry));
        let ranked = waiting.filter_map(|(number, entry)| {
            let weight = self.by_address.weight(entry.address);
            Some(((weight, std::cmp::Reverse(entry.waits_since?)), *number))
        });
        let (_, number) = ranked.max()?;
        let entry = self.forget(number)?;
        entry.evict.send_replace(true);
        Some(())
    }

    fn forget(&mut self, number: u64) -> Option<Entry> {
        let entry = self.guests.remove(&number)?;
        self.by_address.remove(entry.address);
        Some(entry)
    }
}

impl Guest {
    /// Records that the connection is at work, so that it keeps its place.
    pub fn works(&self) {
        if let Some(entry) = self.shared.table.lock().guests.get_mut(&self.number) {
            entry.waits_since = None;
        }
    }

    /// Records that the connection waits for its peer again.
    pub fn waits(&self) {
        let mut table = self.shared.table.lock();
        table.last += 1;
        let now = table.last;
        if let Some(entry) = table.guests.get_mut(&self.number) {
            entry.waits_since = Some(now);
        }
    }

    /// Completes when the connection must make room for another.
    pub async fn evicted(&self) {
        // The sender lives until the eviction, or as long as this guest.
        let _ = self.evicted.clone().wait_for(|evicted| *evicted).await;
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.shared.table.lock().forget(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of connections that count as usual.
    const USUAL: usize = 4;

    fn admission(connections: usize, per_address: usize, trusted: &str) -> Admission {
        let trusted = trusted.split(',').filter(|text| !text.is_empty());
        let trusted = trusted.map(|text| text.parse::<crate::networks::Network>().unwrap()).collect();
        Admission::new(AdmissionLimits { connections, per_address, trusted })
    }

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    fn is_evicted(guest: &Guest) -> bool {
        *guest.evicted.borrow()
    }

    #[test]
    fn the_address_with_most_connections_gives_up_the_one_that_waits_for_longest() {
        let admission = admission(10, 100, "");
        let honest: Vec<Guest> = (0..USUAL).map(|_| admission.admit(address(1)).unwrap()).collect();
        let many: Vec<Guest> = (0..6).map(|_| admission.admit(address(2)).unwrap()).collect();
        many[0].works();
        let next = admission.admit(address(3)).unwrap();
        let evicted = || many.iter().map(is_evicted).collect::<Vec<_>>();
        assert_eq!(evicted(), [false, true, false, false, false, false]);
        many[0].waits();
        let another = admission.admit(address(3)).unwrap();
        assert_eq!(evicted(), [false, true, true, false, false, false], "the first waits anew");
        let third = admission.admit(address(3)).unwrap();
        assert!(is_evicted(&honest[0]), "up to the usual number, the longest wait decides");
        drop((many, next, another, third));
        assert_eq!(admission.connections(), 3);
    }

    #[test]
    fn an_address_at_its_limit_gives_up_its_own_and_is_refused_when_all_of_it_is_at_work() {
        let admission = admission(100, 2, "10.0.0.9");
        let guests: Vec<Guest> = (0..2).map(|_| admission.admit(address(1)).unwrap()).collect();
        let third = admission.admit(address(1)).unwrap();
        assert_eq!([&guests[0], &guests[1], &third].map(is_evicted), [true, false, false]);
        guests[1].works();
        third.works();
        assert_eq!(admission.admit(address(1)).err(), Some(Refusal::Address));
        let other = admission.admit(address(2)).unwrap();
        let behind: Vec<Guest> = (0..50).map(|_| admission.admit(address(9)).unwrap()).collect();
        assert!(
            behind.iter().chain([&other]).all(|guest| !is_evicted(guest)),
            "a trusted proxy is not counted"
        );
    }

    #[test]
    fn nothing_is_admitted_when_all_are_at_work_and_a_dropped_connection_frees_its_place() {
        let admission = admission(2, 100, "");
        let guests: Vec<Guest> = (1..3).map(|last| admission.admit(address(last)).unwrap()).collect();
        guests.iter().for_each(Guest::works);
        assert_eq!(admission.admit(None).err(), Some(Refusal::Connections));
        drop(guests);
        assert_eq!(admission.connections(), 0);
        admission.admit(None).unwrap();
    }

    #[tokio::test]
    async fn an_evicted_connection_learns_of_it() {
        let admission = admission(1, 1, "");
        let first = admission.admit(address(1)).unwrap();
        let second = admission.admit(address(2)).unwrap();
        first.evicted().await;
        // What happens to a connection that has made room changes nobody else's place.
        first.works();
        drop(first);
        assert_eq!(admission.connections(), 1);
        drop(second);
    }
}
