//! Tests sweeps tick by tick, without waiting.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Waker};

use super::*;

/// Counts cuts.
#[derive(Default)]
struct Cuts(Mutex<Vec<&'static str>>);

impl RequestMetrics for Cuts {
    fn request(&self, _: &'static str, _: u16, _: u64, _: u64, _: Duration) {}

    fn connection(&self, _opened: bool) {}

    fn refused(&self, _reason: &'static str) {}

    fn cut(&self, reason: &'static str) {
        self.0.lock().push(reason);
    }
}

/// Limits of 1,000 bytes in each tick of a second; 10 ticks count while memory is short.
fn limits() -> Limits {
    Limits {
        connections: 4,
        connections_per_address: 3,
        min_rate: 1_000,
        rate_window: Duration::from_secs(30),
        pressed_window: Duration::from_secs(10),
        ..Limits::default()
    }
}

fn peers() -> (Arc<Peers>, Arc<Cuts>) {
    let cuts = Arc::new(Cuts::default());
    (Peers::new(limits(), cuts.clone()), cuts)
}

fn address(number: u8) -> IpAddr {
    IpAddr::from([127, 0, 0, number])
}

/// A send buffer for tests: the number of unacknowledged bytes, and how often it was bounded.
#[derive(Clone, Default)]
struct Buffer(Arc<(AtomicU64, AtomicU32)>);

impl Buffer {
    fn of(held: u64) -> Self {
        Self(Arc::new((held.into(), AtomicU32::new(0))))
    }

    fn give(&self, peer: &Peer) {
        peer.is_buffered_by(|| Box::new(self.clone()));
    }
}

impl SendBuffer for Buffer {
    fn unacknowledged(&self) -> u64 {
        self.0.0.load(Ordering::Relaxed)
    }

    fn bound(&self) {
        self.0.1.fetch_add(1, Ordering::Relaxed);
    }
}

fn cx() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

#[test]
fn a_receiver_below_the_minimum_over_the_whole_window_is_cut_and_one_above_it_is_not() {
    let (peers, cuts) = peers();
    let (slow, fast) = (peers.admit(address(1)).ok().unwrap(), peers.admit(address(2)).ok().unwrap());
    for admitted in [&slow, &fast] {
        admitted.peer.begin_request();
        assert!(!admitted.peer.await_receiver(&cx()));
    }
    peers.sweep(false);
    for second in 0..120 {
        for (admitted, bytes, every) in [(&slow, 4_900, 5), (&fast, 10_000, 10)] {
            if second % every == 0 {
                admitted.peer.wrote(bytes);
                admitted.peer.await_receiver(&cx());
            }
        }
        peers.sweep(false);
        let expected = if second < 29 { 0 } else { 1 };
        assert!(cuts.0.lock().len() >= expected, "second {second}");
        if !cuts.0.lock().is_empty() {
            assert!(slow.peer.await_receiver(&cx()), "it is told");
            break;
        }
    }
    assert_eq!(*cuts.0.lock(), ["rate"]);
    assert!(!fast.peer.await_receiver(&cx()));
}

/// The system holds much of a response: what was written of it says nothing, what the peer acknowledges does.
#[test]
fn a_receiver_moves_when_it_takes_what_the_system_holds_for_it() {
    let (peers, cuts) = peers();
    let (slow, stopped) = (peers.admit(address(1)).ok().unwrap(), peers.admit(address(2)).ok().unwrap());
    let buffer = Buffer::of(500_000);
    for (admitted, buffer) in [(&slow, buffer.clone()), (&stopped, Buffer::of(500_000))] {
        admitted.peer.begin_request();
        admitted.peer.wrote(500_000);
        buffer.give(&admitted.peer);
        assert!(!admitted.peer.await_receiver(&cx()));
    }
    for _ in 0..120 {
        buffer.0.0.fetch_sub(2_000, Ordering::Relaxed);
        stopped.peer.await_receiver(&cx());
        assert!(!slow.peer.await_receiver(&cx()));
        peers.sweep(false);
    }
    assert_eq!(cuts.0.lock().len(), 4, "one in each window of the one that takes nothing");
}

#[test]
fn time_in_which_the_store_is_waited_for_does_not_count() {
    let (peers, cuts) = peers();
    let admitted = peers.admit(address(1)).ok().unwrap();
    admitted.peer.begin_request();
    (0..100).for_each(|_| peers.sweep(true));
    assert!(cuts.0.lock().is_empty());
    // And a sender gets a response instead of being cut off.
    assert!(!admitted.peer.await_body(&cx()));
    (0..30).for_each(|_| peers.sweep(false));
    assert_eq!(*cuts.0.lock(), ["rate"]);
    assert!(!admitted.peer.await_receiver(&cx()) && admitted.peer.await_body(&cx()));
}

#[test]
fn while_memory_is_short_the_slowest_go_first_and_those_above_the_minimum_stay() {
    let cuts = Arc::new(Cuts::default());
    let many = Limits { connections: 100, connections_per_address: 100, ..limits() };
    let peers = Peers::new(many, cuts.clone());
    let admitted: Vec<_> = (0..40).map(|_| peers.admit(address(1)).ok().unwrap()).collect();
    for admitted in &admitted {
        admitted.peer.begin_request();
    }
    peers.sweep(false);
    for _ in 0..10 {
        for (number, admitted) in admitted.iter().enumerate() {
            // The first twenty move less than 1,000 bytes a second, each more than the one before.
            admitted.peer.wrote(if number < 20 { 40 * number } else { 2_000 });
            admitted.peer.await_receiver(&cx());
        }
        peers.sweep(false);
    }
    assert!(cuts.0.lock().is_empty(), "ten seconds say nothing while there is room");
    peers.sweep(true);
    assert_eq!(*cuts.0.lock(), ["memory"; 8]);
    let is_cut = |number: usize| admitted[number].peer.await_receiver(&cx());
    assert!((0..8).all(is_cut) && !(8..40).any(is_cut));
    peers.sweep(false);
    assert_eq!(cuts.0.lock().len(), 8, "the pressure is over");
}

#[test]
fn while_memory_is_short_senders_are_judged_sooner() {
    let (peers, cuts) = peers();
    let (sender, receiver) = (peers.admit(address(1)).ok().unwrap(), peers.admit(address(2)).ok().unwrap());
    for admitted in [&sender, &receiver] {
        admitted.peer.begin_request();
    }
    assert!(!sender.peer.await_body(&cx()) && !receiver.peer.await_receiver(&cx()));
    (0..3).for_each(|_| peers.sweep(true));
    assert!(cuts.0.lock().is_empty());
    peers.sweep(true);
    assert!(sender.peer.await_body(&cx()) && !receiver.peer.await_receiver(&cx()));
    assert_eq!(*cuts.0.lock(), ["memory"]);
}

#[test]
fn connections_of_an_address_are_bounded_and_the_longest_idle_one_makes_room() {
    let (peers, cuts) = peers();
    let mut admitted: Vec<_> = (0..3).map(|_| peers.admit(address(1)).ok().unwrap()).collect();
    admitted.iter().for_each(|admitted| admitted.peer.begin_request());
    assert_eq!(peers.admit(address(1)).err(), Some(PeerLimit::Address), "all of the address are at work");
    admitted[1..].iter().for_each(|admitted| admitted.peer.end_request());
    peers.sweep(false);
    admitted.push(peers.admit(address(2)).ok().unwrap());
    let late = peers.admit(address(2)).ok().unwrap();
    assert_eq!(*cuts.0.lock(), ["room"]);
    assert!(admitted[1].peer.await_request(&cx()), "the oldest of the idle ones");
    assert!(!admitted[2].peer.await_request(&cx()) && !admitted[3].peer.await_request(&cx()));
    drop(admitted.remove(1));
    assert_eq!(peers.table.lock().connections.len(), 4);
    for admitted in admitted.iter().chain([&late]) {
        admitted.peer.begin_request();
    }
    assert_eq!(peers.admit(address(3)).err(), Some(PeerLimit::Connections), "all are at work");
    drop(admitted);
    drop(late);
    assert!(peers.table.lock().by_address.is_empty());
}

/// Forms that nobody has signed, from two addresses, beside an idle connection whose last request was signed.
#[test]
fn connections_that_nobody_has_signed_make_room_first_those_of_the_busiest_address() {
    let (peers, cuts) = peers();
    let admitted: Vec<_> = [1, 2, 2, 3].map(|number| peers.admit(address(number)).ok().unwrap()).into();
    let (known, forms) = (&admitted[3], &admitted[..3]);
    known.peer.begin_request();
    known.peer.recognise();
    known.peer.end_request();
    for form in forms {
        form.peer.begin_request();
        form.peer.await_body(&cx());
    }
    peers.sweep(false);
    let late = peers.admit(address(4)).ok().unwrap();
    let is_cut = |admitted: &AdmittedPeer| admitted.peer.await_body(&cx());
    assert!(is_cut(&forms[1]) && !is_cut(&forms[0]) && !is_cut(&forms[2]));
    assert!(!known.peer.await_request(&cx()), "idle, but known");
    late.peer.begin_request();
    late.peer.recognise();
    late.peer.await_body(&cx());
    let _later = peers.admit(address(5)).ok().unwrap();
    assert!(is_cut(&forms[0]) && !is_cut(&late), "one that is signed and sends is left alone");
    assert_eq!(*cuts.0.lock(), ["room"; 2]);
}

#[test]
fn an_idle_connection_on_which_a_request_has_begun_is_not_closed() {
    let (peers, _) = peers();
    let admitted = peers.admit(address(1)).ok().unwrap();
    admitted.peer.cut();
    admitted.peer.begin_request();
    assert!(!admitted.peer.await_request(&cx()));
}

/// Bytes that arrive at the moment in which a connection makes room: it is served, watched, and closed after that.
#[test]
fn a_connection_that_made_room_when_a_request_began_is_watched_until_it_ends() {
    let (peers, cuts) = peers();
    let mut admitted: Vec<_> = (1..5).map(|number| peers.admit(address(number)).ok().unwrap()).collect();
    admitted[1..].iter().for_each(|admitted| admitted.peer.begin_request());
    let _next = peers.admit(address(5)).ok().unwrap();
    let ending = admitted.remove(0);
    ending.peer.begin_request();
    assert!(!ending.peer.await_body(&cx()));
    (0..30).for_each(|_| peers.sweep(false));
    assert_eq!(*cuts.0.lock(), ["room", "rate"]);
    assert!(ending.peer.await_body(&cx()), "it sends nothing");
    ending.peer.stop_waiting(PeerWait::ForBody);
    ending.peer.end_request();
    peers.sweep(false);
    assert!(ending.peer.await_request(&cx()), "it is idle again");
    drop(ending);
    assert!(peers.table.lock().ending.is_empty());
}

/// A fast sender's head comes in one read with much of its body.
#[test]
fn what_comes_behind_a_head_takes_no_memory_for_heads() {
    let small = Limits { buffered_bytes: UNSIGNED_PART << 10, ..limits() };
    let peers = Peers::new(small, Arc::new(Cuts::default()));
    let admitted = peers.admit(address(1)).ok().unwrap();
    let upload = [&b"PUT /bucket/k HTTP/1.1\r\nhost: x\r\n\r\n"[..], &[b'a'; 64 << 10]].concat();
    assert!(admitted.peer.receive_head(&upload));
    admitted.peer.begin_request();
    assert!(admitted.peer.receive_head(&[b'a'; 64 << 10]), "the rest of the body");
    admitted.peer.end_request();
    assert!(!admitted.peer.receive_head(&[b'a'; 64 << 10]), "a head that long");
}

#[test]
fn few_connections_may_be_ending_and_one_more_breaks_the_first_off() {
    let (peers, _) = peers();
    let broken_off =
        |admitted: &AdmittedPeer| futures::FutureExt::now_or_never(admitted.peer.broken_off()).is_some();
    let admitted: Vec<_> = (1..8).map(|number| peers.admit(address(number)).ok().unwrap()).collect();
    let ended: Vec<_> = admitted.iter().map(broken_off).collect();
    assert_eq!(ended, [true, true, false, false, false, false, false], "three made room, one may be ending");
    drop(admitted);
    let table = peers.table.lock();
    assert!(table.connections.is_empty() && table.ending.is_empty() && table.by_address.is_empty());
}

#[test]
fn an_address_at_its_limit_closes_its_own_idle_connection() {
    let (peers, cuts) = peers();
    let admitted: Vec<_> = (0..3).map(|_| peers.admit(address(1)).ok().unwrap()).collect();
    let next = peers.admit(address(1)).ok().unwrap();
    assert_eq!(*cuts.0.lock(), ["room"]);
    assert!(admitted[0].peer.await_request(&cx()) && !next.peer.await_request(&cx()));
}

#[test]
fn a_peer_that_has_signed_is_closed_after_strangers_and_behind_a_trusted_proxy_nobody_is_counted() {
    let trusted = ["127.0.0.1".parse::<striate_listen::networks::Network>().unwrap()];
    let peers = Peers::new(
        Limits { trusted_proxies: trusted.into_iter().collect(), ..limits() },
        Arc::new(Cuts::default()),
    );
    let admitted: Vec<_> = (0..4).map(|_| peers.admit(address(1)).ok().unwrap()).collect();
    admitted[0].peer.begin_request();
    admitted[0].peer.recognise();
    admitted[0].peer.end_request();
    let next = peers.admit(address(1)).ok().unwrap();
    assert!(!admitted[0].peer.await_request(&cx()), "it has signed");
    assert!(admitted[1].peer.await_request(&cx()), "the oldest stranger");
    drop(next);
}

/// A peer that seemed fast leaves much of a response in the system's buffers.
#[test]
fn what_the_system_holds_for_receivers_presses_like_memory_of_ours() {
    for (held, cuts_in_time) in [(60_000, 0), (600_000, 1)] {
        let cuts = Arc::new(Cuts::default());
        let peers = Peers::new(Limits { unsent_bytes: 100_000, ..limits() }, cuts.clone());
        let admitted = peers.admit(address(1)).ok().unwrap();
        admitted.peer.begin_request();
        admitted.peer.wrote(held as usize);
        Buffer::of(held).give(&admitted.peer);
        admitted.peer.await_receiver(&cx());
        // As many ticks as count while memory is short, and fewer than count otherwise.
        (0..12).for_each(|_| peers.sweep(false));
        assert_eq!(cuts.0.lock().len().min(1), cuts_in_time, "{held}");
    }
}

/// A slow receiver is found after two ticks; a fast one and one that waits for the store are never found slow.
#[test]
fn the_system_takes_little_for_slow_receivers_only() {
    let (peers, _) = peers();
    let buffers = [4_000, 2 << 20, 0].map(|bytes| (bytes, Buffer::default()));
    let admitted = buffers.each_ref().map(|_| peers.admit(address(1)).ok().unwrap());
    for ((_, buffer), admitted) in buffers.iter().zip(&admitted) {
        admitted.peer.begin_request();
        buffer.give(&admitted.peer);
    }
    for _ in 0..5 {
        for ((bytes, _), admitted) in buffers.iter().zip(&admitted).take(2) {
            admitted.peer.wrote(*bytes);
            admitted.peer.await_receiver(&cx());
        }
        peers.sweep(false);
    }
    let earned = admitted.each_ref().map(|admitted| admitted.peer.has_earned(20_000));
    assert_eq!(earned, [false, true, false], "the first was given as much, but is slow");
    assert_eq!(buffers.map(|(_, buffer)| buffer.0.1.load(Ordering::Relaxed)), [1, 0, 0]);
}
