use proptest::prelude::*;
use striate_runtime::Runtime;

use super::*;

const MIB: usize = 1 << 20;
const KIB: usize = 1 << 10;
const TOTAL: usize = 64 * MIB;
const HONEST: Payer = Payer(1_000);

/// A ledger in its own time.
struct World {
    ledger: Ledger,
    began: Instant,
    now: Instant,
}

impl World {
    fn new() -> Self {
        let now = Runtime::real().now();
        Self { ledger: Ledger::new(TOTAL), began: now, now }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// Takes or waits. Returns the ticket of one that waits.
    fn ask(&mut self, payer: Payer, len: usize, arrival: Option<u64>) -> Option<u64> {
        let want = Want { payer, len, arrival };
        if self.ledger.take(want, self.now) {
            return None;
        }
        let ticket = self.ledger.enter(want);
        self.serve();
        self.ledger.is_waiting(ticket).then_some(ticket)
    }

    fn serve(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.ledger.serve(self.now)).collect()
    }

    /// Begins an upload that has `len` bytes and then stalls. Returns it, and its ticket if it waits.
    fn upload(&mut self, payer: Payer, len: usize) -> (u64, Option<u64>) {
        let arrival = self.ledger.begin_arrival(payer);
        let mut waits = None;
        for step in [len.min(64 * KIB), len.saturating_sub(64 * KIB)] {
            if step > 0 && waits.is_none() {
                waits = self.ask(payer, step, Some(arrival));
            }
        }
        if waits.is_none() {
            self.ledger.await_more(arrival, len, self.now);
        }
        (arrival, waits)
    }

    /// Ends uploads that were cut.
    fn end(&mut self, arrivals: &[u64]) {
        for arrival in arrivals {
            let (payer, held) = (self.ledger.arrivals[arrival].payer, self.ledger.held_by(*arrival));
            self.ledger.end_arrival(*arrival);
            self.ledger.give_back(payer, held);
        }
        self.serve();
    }

    fn check(&self) {
        let ledger = &self.ledger;
        let held: usize = ledger.accounts.values().map(|account| account.held).sum();
        assert_eq!(ledger.free + held, TOTAL);
        let arriving: usize = ledger.arrivals.values().map(|arrival| arrival.held).sum();
        assert_eq!(ledger.small_bytes + ledger.partial_bytes, arriving);
    }
}

#[test]
fn small_bodies_never_wait_behind_large_requests() {
    let mut world = World::new();
    assert_eq!(world.ask(Payer(1), 48 * MIB, None), None);
    assert!(world.ask(Payer(2), 16 * MIB, None).is_some(), "some memory is left for small ones");
    for _ in 0..64 {
        assert_eq!(world.ask(Payer(3), 64 * KIB, None), None);
    }
    world.check();
}

#[test]
fn payers_are_served_in_turn_by_bytes_and_each_holds_three_quarters_at_most() {
    let mut world = World::new();
    assert_eq!(world.ask(Payer(1), 30 * MIB, None), None);
    assert_eq!(world.ask(Payer(2), 30 * MIB, None), None);
    let greedy: Vec<_> = (0..20).map(|_| world.ask(Payer(1), 4 * MIB, None).unwrap()).collect();
    let modest = world.ask(Payer(3), 4 * MIB, None).unwrap();
    world.ledger.give_back(Payer(2), 4 * MIB);
    assert_eq!(world.serve(), [modest], "the one that has had less goes first");
    world.ledger.give_back(Payer(2), 26 * MIB);
    world.ledger.give_back(Payer(3), 4 * MIB);
    assert_eq!(world.serve(), greedy[..4], "30 MiB and 16 MiB are less than 48 MiB");
    assert_eq!(world.ask(Payer(4), 12 * MIB, None), None, "the others find room");
    world.check();
}

#[test]
fn uploads_hold_half_and_the_furthest_along_may_end() {
    let mut world = World::new();
    let uploads: Vec<_> = (0..40).map(|_| world.upload(Payer(1), MIB)).collect();
    let waiting = uploads.iter().filter(|(_, waits)| waits.is_some()).count();
    assert_eq!(waiting, 8, "32 MiB are half");
    assert_eq!(world.ask(Payer(2), 12 * MIB, None), None, "reads find room beside them");
    let (first, _) = uploads[0];
    assert_eq!(world.ask(Payer(1), 3 * MIB, Some(first)), None);
    assert!(world.ask(Payer(1), MIB, Some(uploads[1].0)).is_some());
    world.check();
}

/// 600 uploads that stall at 100 KB: nobody waits for longer than it takes to end some of them.
#[test]
fn who_waits_has_the_slowest_uploads_cut_and_no_more_of_them_than_needed() {
    let mut world = World::new();
    let mut uploads = Vec::new();
    for number in 0..600 {
        uploads.push(world.upload(Payer(1 + number % 200), 100_000).0);
        world.pass(Duration::from_millis(1));
    }
    let honest = world.ledger.begin_arrival(HONEST);
    assert_eq!(world.ask(HONEST, 64 * KIB, Some(honest)), None, "small ones do not wait");
    let ticket = world.ask(HONEST, MIB - 64 * KIB, Some(honest)).expect("uploads hold their half");
    assert_eq!(world.ledger.cut_for(ticket, world.now), [0_u64; 0], "none is known to be slow yet");
    world.pass(SLOW);
    let cut = world.ledger.cut_for(ticket, world.now);
    let freed: usize = cut.iter().map(|arrival| world.ledger.held_by(*arrival)).sum();
    assert!((MIB..MIB + 100_000).contains(&freed), "{freed} bytes of {} uploads", cut.len());
    assert_eq!(cut[..3], uploads[..3], "the slowest first");
    assert!(world.ledger.cut_for(ticket, world.now).is_empty(), "those are about to end");
    world.end(&cut);
    assert!(!world.ledger.is_waiting(ticket));
    world.check();
}

#[test]
fn slow_payers_cut_nobody_and_are_served_last() {
    let mut world = World::new();
    for _ in 0..8 {
        world.upload(Payer(1), 4 * MIB);
    }
    world.pass(SLOW * 2);
    let honest = world.ledger.begin_arrival(HONEST);
    world.ask(HONEST, 64 * KIB, Some(honest));
    let ticket = world.ask(HONEST, MIB, Some(honest)).unwrap();
    let cut = world.ledger.cut_for(ticket, world.now);
    assert_eq!(cut.len(), 1);
    let (_, again) = world.upload(Payer(1), MIB);
    assert!(again.is_some(), "there is no room");
    world.end(&cut);
    assert!(!world.ledger.is_waiting(ticket));
    world.upload(HONEST, 1_900 * KIB);
    let (_, blocked) = world.upload(Payer(1), 100 * KIB);
    let blocked = blocked.unwrap();
    assert!(world.ledger.cut_for(blocked, world.now).is_empty(), "its payer is slow");
    assert_eq!(world.ledger.pressing(world.now), 0);
    world.pass(SLOW_FOR);
    assert!(!world.ledger.cut_for(blocked, world.now).is_empty());
    world.ledger.leave(blocked);
    world.ledger.forget(world.now);
    world.check();
}

#[test]
fn a_payer_that_sends_quickly_what_was_cut_is_no_longer_slow() {
    let mut world = World::new();
    for _ in 0..8 {
        world.upload(Payer(1), 4 * MIB);
    }
    world.pass(SLOW);
    let honest = world.ledger.begin_arrival(HONEST);
    let ticket = world.ask(HONEST, MIB, Some(honest)).unwrap();
    let cut = world.ledger.cut_for(ticket, world.now);
    world.end(&cut);
    for (len, is_slow) in [(3 * MIB, true), (MIB, false)] {
        assert!(world.ledger.is_slow(Payer(1), world.now));
        let (quick, _) = world.upload(Payer(1), len);
        world.ledger.resize(quick, |_| len);
        world.ledger.complete_arrival(quick, world.now);
        assert_eq!(world.ledger.is_slow(Payer(1), world.now), is_slow, "{len}");
    }
}

/// A sender that stalls with most of a block costs the most, one that keeps moving the least, whatever the lumps.
#[test]
fn slowness_is_how_long_bytes_were_held_for_want_of_more() {
    let mut world = World::new();
    let stalled = world.upload(Payer(1), 3_900 * KIB).0;
    let steady = world.ledger.begin_arrival(Payer(2));
    let parked = world.upload(Payer(3), MIB).0;
    world.ledger.end_wait(parked, world.now);
    for second in 1..=10 {
        world.ask(Payer(2), 400 * KIB, Some(steady));
        world.ledger.await_more(steady, second * 400 * KIB, world.now);
        world.pass(Duration::from_secs(1));
    }
    let age = |id: &u64| world.ledger.arrivals[id].mean_age(world.now);
    assert_eq!(age(&stalled), Duration::from_secs(10));
    assert_eq!(age(&steady), Duration::from_millis(5_500), "half of the time, and half of a lump");
    assert_eq!(age(&parked), Duration::ZERO, "it waits for memory");
    assert_eq!(world.now - world.began, Duration::from_secs(10));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// However many uploads of whole blocks there are, all of them end, if their senders send.
    #[test]
    fn uploads_never_wait_for_each_other_for_ever(
        payers in prop::collection::vec(0_u64..3, 1..300),
        seed in any::<u64>(),
    ) {
        let mut world = World::new();
        let steps = [64 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB];
        // Each: payer, arrival, number of steps it has, its ticket while it waits.
        let mut uploads: Vec<(Payer, u64, usize, Option<u64>)> = payers
            .iter()
            .map(|payer| (Payer(payer + 1), world.ledger.begin_arrival(Payer(payer + 1)), 0, None))
            .collect();
        let mut dice = seed;
        while !uploads.is_empty() {
            let mut has_moved = false;
            // Every one of them gets its turn, in another order each time.
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let turn = dice as usize % uploads.len();
            uploads.rotate_left(turn);
            let mut ended = Vec::new();
            for (payer, arrival, have, ticket) in &mut uploads {
                if ticket.is_some_and(|ticket| world.ledger.is_waiting(ticket)) {
                    continue;
                }
                has_moved = true;
                // One that waited was served.
                *have += usize::from(ticket.take().is_some());
                if *have < steps.len() {
                    *ticket = world.ask(*payer, steps[*have], Some(*arrival));
                    *have += usize::from(ticket.is_none());
                    continue;
                }
                // It is written, and its memory is free again.
                world.ledger.end_arrival(*arrival);
                world.ledger.give_back(*payer, 4 * MIB);
                world.serve();
                ended.push(*arrival);
            }
            uploads.retain(|(_, arrival, ..)| !ended.contains(arrival));
            world.check();
            prop_assert!(has_moved, "{} uploads wait for each other", uploads.len());
        }
        prop_assert_eq!(world.ledger.free(), TOTAL);
    }
}
