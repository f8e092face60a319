//! Crash tests (reliability.md): a random workload on the simulated file system, killed at every single call that
//! changes something, with and without a power cut. What was acknowledged must be stored, what was deleted must not
//! come back, and what was not acknowledged is stored whole or not at all. At some step of a workload chunk format 2
//! comes into force, so that its records follow those of format 1.

use std::collections::BTreeMap;

use futures::FutureExt;
use proptest::prelude::*;
use striate_core::Formats;

use super::*;
use crate::conformance::{chunk_id, payload};
use crate::filesystem::{Call, Fault, SimulatedFileSystem};

const CAPACITY: u64 = 1 << 30;

/// Small segments, so that a short workload rolls, compacts and takes snapshots. Some groups are
/// written past the page cache.
fn options() -> DiskStoreOptions {
    DiskStoreOptions {
        segment_len: Some(6000),
        direct_bytes: 900,
        reserve_bytes: Some(0),
        compact_step_bytes: 2500,
        snapshot_after_bytes: u64::MAX,
        paged_from: 500,
        table_bytes: 1000,
        ..DiskStoreOptions::default()
    }
}

fn runtime() -> Runtime {
    Runtime::deterministic(1, Duration::ZERO)
}

fn open(fs: &SimulatedFileSystem) -> Result<DiskStore, DiskStoreError> {
    open_with(fs, Formats::OLDEST)
}

fn open_with(fs: &SimulatedFileSystem, formats: Formats) -> Result<DiskStore, DiskStoreError> {
    let options = DiskStoreOptions { formats: FormatsInForce::new(formats), ..options() };
    DiskStore::open(&runtime(), Arc::new(fs.clone()), Path::new("/disk"), options)
}

/// Polls once: in a deterministic runtime nothing waits.
fn block_on<F: Future>(future: F) -> F::Output {
    future.now_or_never().expect("done inline")
}

/// A client's knowledge of the store.
#[derive(Clone, Debug, Default)]
struct Known {
    chunks: BTreeMap<u8, Fact>,
    epoch: u64,
    /// Formats in force.
    formats: Formats,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fact {
    Stored,
    Deleted,
    /// A write or a delete got no reply.
    Either,
}

/// One step of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Write(u8),
    Delete(Vec<u8>),
    Compact,
    /// A step of compaction while the disk has only so many bytes left.
    CompactWithin(u64),
    Checkpoint,
    Reopen,
    /// Chunk format 2 comes into force.
    Upgrade,
}

/// Runs a step of compaction on a disk with `room` bytes left, which is then as large as before.
fn compact_within(fs: &SimulatedFileSystem, store: &DiskStore, room: u64) -> CompactionStep {
    let Ok(space) = fs.space(Path::new("/disk")) else { return CompactionStep::Failed };
    fs.set_capacity(space.capacity - space.available + room);
    let step = store.compact_step();
    fs.set_capacity(space.capacity);
    step
}

fn name(number: u8) -> ChunkId {
    chunk_id(u64::from(number), 0, 1)
}

/// The number determines length and bytes. From 24 on, chunks have several granules of format 2, and a segment each.
fn content(number: u8) -> Bytes {
    let long = if number < 24 { 0 } else { 8000 };
    payload(u64::from(number), 200 + usize::from(number) * 37 + long)
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..26).prop_map(Step::Write),
        3 => prop::collection::vec(0u8..26, 1..5).prop_map(Step::Delete),
        1 => Just(Step::Upgrade),
        6 => Just(Step::Compact),
        6 => (0u64..12_000).prop_map(Step::CompactWithin),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Reopen),
    ]
}

impl Known {
    /// Runs one step; returns false once the store no longer accepts changes.
    fn step(&mut self, fs: &SimulatedFileSystem, store: &DiskStore, step: &Step) -> bool {
        match step {
            Step::Write(number) => {
                self.chunks.entry(*number).and_modify(|fact| {
                    if *fact == Fact::Deleted {
                        *fact = Fact::Either;
                    }
                });
                let done = block_on(store.write(name(*number), content(*number), None)).is_ok();
                let fact = if done { Fact::Stored } else { Fact::Either };
                let known = self.chunks.entry(*number).or_insert(fact);
                if done || *known != Fact::Stored {
                    *known = fact;
                }
                done
            }
            Step::Delete(numbers) => {
                self.epoch += 1;
                let names: Vec<_> = numbers.iter().map(|number| name(*number)).collect();
                let done = block_on(store.delete(&names, FencingEpoch(self.epoch))).is_ok();
                for number in numbers {
                    match self.chunks.get_mut(number) {
                        Some(fact) if done => *fact = Fact::Deleted,
                        Some(fact) if *fact == Fact::Stored => *fact = Fact::Either,
                        _ => {}
                    }
                }
                if !done {
                    self.epoch -= 1;
                }
                done
            }
            Step::Compact => store.compact_step() != CompactionStep::Failed,
            Step::CompactWithin(room) => {
                compact_within(fs, store, *room);
                !fs.is_dead()
            }
            Step::Checkpoint => store.checkpoint().is_ok(),
            Step::Upgrade => {
                self.formats = Formats::NEWEST;
                store.shared.options.formats.raise(self.formats);
                true
            }
            Step::Reopen => true,
        }
    }

    /// Runs steps until the end, or until the store no longer accepts changes.
    fn run(&mut self, fs: &SimulatedFileSystem, steps: &[Step]) {
        let Ok(mut store) = open_with(fs, self.formats) else { return };
        for step in steps {
            if matches!(step, Step::Reopen) {
                drop(store);
                let Ok(opened) = open_with(fs, self.formats) else { return };
                store = opened;
            } else if !self.step(fs, &store, step) {
                return;
            }
        }
        let _ = block_on(store.close());
    }

    /// Compares the contents of a store with this knowledge.
    fn check(&self, store: &DiskStore) {
        for (number, fact) in &self.chunks {
            let expected = content(*number);
            let range = ChunkRange { chunk: name(*number), offset: 0, len: expected.len() as u32 };
            let result = block_on(store.read(range));
            match (fact, result) {
                (Fact::Stored | Fact::Either, Ok(bytes)) => assert_eq!(bytes, expected, "chunk {number}"),
                (Fact::Deleted | Fact::Either, Err(SiteError::Missing(_))) => {}
                (fact, result) => panic!("chunk {number} is {fact:?}, and reading it gives {result:?}"),
            }
        }
        if self.epoch > 1 {
            let stale = block_on(store.delete(&[], FencingEpoch(self.epoch - 1)));
            assert!(matches!(stale, Err(SiteError::Fenced { .. })), "the epoch went back: {stale:?}");
        }
        let page = block_on(store.list(None, usize::MAX)).expect("a list");
        let status = store.status();
        assert_eq!(status.chunks, page.chunks.len() as u64);
        assert_eq!(status.payload_bytes, page.chunks.iter().map(|info| u64::from(info.len)).sum::<u64>());
        check_accounting(store);
    }
}

/// The accounting in memory equals one rebuilt from the index, and no segment has records newer than its header says.
fn check_accounting(store: &DiskStore) {
    let state = store.shared.state.read();
    let mut live: BTreeMap<u32, u64> = state.segments.keys().map(|number| (*number, 0)).collect();
    for (_, location) in state.index.iter() {
        *live.get_mut(&location.segment).expect("an existing segment") += location.record_len();
        let said = state.segments[&location.segment].version;
        assert!(location.form.version() <= said, "{:?} in a segment of format {said}", location.form);
    }
    for (number, segment) in &state.segments {
        assert_eq!(segment.live_bytes, live[number], "live bytes of segment {number}");
    }
}

/// Checks the contents after a crash: twice (recovery must not change its mind), also without the snapshot, and after
/// all dead records have been compacted away.
fn check_after(known: &Known, fs: &SimulatedFileSystem) {
    let store = open(fs).expect("opens after a crash");
    known.check(&store);
    let first = block_on(store.list(None, usize::MAX)).expect("a list").chunks;
    drop(store);
    fs.damage(Path::new("/disk/.striate/chunks/index.snapshot"), |bytes| bytes.truncate(20));
    let store = open_with(fs, Formats::NEWEST).expect("opens again");
    known.check(&store);
    assert_eq!(block_on(store.list(None, usize::MAX)).expect("a list").chunks, first, "recovery is stable");
    for _ in 0..200 {
        assert_ne!(store.compact_step(), CompactionStep::Failed);
    }
    known.check(&store);
    drop(store);
    let store = open(fs).expect("opens after compaction");
    known.check(&store);
    assert_eq!(
        block_on(store.list(None, usize::MAX)).expect("a list").chunks,
        first,
        "compaction changes nothing"
    );
}

fn kill_everywhere(seed: u64, steps: &[Step]) {
    let complete = SimulatedFileSystem::new(seed, CAPACITY);
    let mut known = Known::default();
    known.run(&complete, steps);
    let changes = complete.changes();
    check_after(&known, &complete.after_power_cut());
    for change in 1..=changes {
        for power_cut in [true, false] {
            let fs = SimulatedFileSystem::new(seed.wrapping_add(change), CAPACITY);
            fs.die_at(change);
            let mut known = Known::default();
            known.run(&fs, steps);
            let after = if power_cut { fs.after_power_cut() } else { fs.after_kill() };
            check_after(&known, &after);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, max_shrink_iters: 60, ..ProptestConfig::default() })]

    #[test]
    fn a_kill_at_any_call_loses_nothing_acknowledged(seed: u64, steps in prop::collection::vec(any_step(), 20..60)) {
        kill_everywhere(seed, &steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn crash_after_crash_loses_nothing_acknowledged(
        seed: u64,
        rounds in prop::collection::vec((prop::collection::vec(any_step(), 5..40), 1u64..60, any::<bool>()), 1..6)
    ) {
        let mut fs = SimulatedFileSystem::new(seed, CAPACITY);
        let mut known = Known::default();
        for (steps, change, power_cut) in rounds {
            fs.die_at(change);
            known.run(&fs, &steps);
            fs = if power_cut { fs.after_power_cut() } else { fs.after_kill() };
        }
        check_after(&known, &fs);
    }

    #[test]
    fn failing_calls_lose_nothing_acknowledged_and_a_new_start_heals(
        seed: u64,
        steps in prop::collection::vec(any_step(), 10..60),
        faults in prop::collection::vec((0usize..6, 0u64..25, 1u64..4, prop::bool::ANY), 1..4),
        power_cut: bool,
    ) {
        fail_calls(seed, &steps, &faults, power_cut);
    }
}

/// A drawn fault: an index into [`CALLS`], how many calls succeed before, how many fail, and
/// whether with ENOSPC instead of EIO.
type Drawn = (usize, u64, u64, bool);

const CALLS: [Call; 6] =
    [Call::Create, Call::Write, Call::Sync, Call::Rename, Call::Unlink, Call::SyncDirectory];
const SYNC: usize = 2;

/// Runs steps while calls fail, and checks what a new start finds.
fn fail_calls(seed: u64, steps: &[Step], faults: &[Drawn], power_cut: bool) {
    let fs = SimulatedFileSystem::new(seed, CAPACITY);
    let mut known = Known::default();
    let store = open(&fs).expect("opens");
    for &(call, after, count, full) in faults {
        fs.inject(Fault { call: CALLS[call], after, count, errno: if full { 28 } else { 5 } });
    }
    for step in steps {
        known.step(&fs, &store, step);
        if !matches!(step, Step::Checkpoint | Step::Reopen) {
            known.check_stored(&store);
        }
    }
    drop(store);
    fs.heal();
    check_after(&known, &if power_cut { fs.after_power_cut() } else { fs.after_kill() });
}

#[test]
fn a_group_cut_off_a_full_disk_never_comes_back() {
    use Step::{Delete, Write};
    for (seed, after) in (0..40).flat_map(|seed| (0..8).map(move |after| (seed, after))) {
        // The second write is acknowledged because the chunk exists: the failed tombstone must not come back.
        let steps = [Write(4), Delete(vec![4]), Write(4)];
        fail_calls(seed, &steps, &[(SYNC, after, 1, true)], true);
    }
}

#[test]
fn a_compaction_carries_no_tombstone_out_of_what_a_condemned_segment_does_not_count() {
    use Step::{Compact, Delete, Write};
    for seed in (0..40).chain([5718040134051936017]) {
        let steps = [
            Write(11),
            Compact,
            Compact,
            Write(4),
            Compact,
            Write(19),
            Delete(vec![0]),
            Delete(vec![11]),
            Compact,
            Write(4),
        ];
        fail_calls(seed, &steps, &[(SYNC, 6, 2, true)], true);
    }
}

#[test]
fn a_store_that_cannot_condemn_a_segment_on_a_full_disk_acknowledges_nothing_more() {
    use Step::{Delete, Write};
    for (seed, after) in (0..40).flat_map(|seed| (2..8).map(move |after| (seed, after))) {
        let steps = [Write(2), Write(15), Delete(vec![0]), Delete(vec![2, 15]), Write(15)];
        fail_calls(seed, &steps, &[(SYNC, after, 4, true)], true);
    }
}

impl Known {
    /// Acknowledged chunks can be read while the disk fails to write.
    fn check_stored(&self, store: &DiskStore) {
        for (number, _) in self.chunks.iter().filter(|(_, fact)| **fact == Fact::Stored) {
            let expected = content(*number);
            let range = ChunkRange { chunk: name(*number), offset: 0, len: expected.len() as u32 };
            assert_eq!(block_on(store.read(range)), Ok(expected), "chunk {number}");
        }
    }
}

/// Damage to the bytes of a segment.
#[derive(Clone, Debug)]
enum Damage {
    Flip(prop::sample::Index, u8),
    Zero(prop::sample::Index, usize),
    Truncate(prop::sample::Index),
    Extend(Vec<u8>),
    /// Copies one part over another: records in the wrong place.
    Misdirect(prop::sample::Index, prop::sample::Index, usize),
}

fn any_damage() -> impl Strategy<Value = Damage> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        (index(), 1u8..).prop_map(|(at, bits)| Damage::Flip(at, bits)),
        (index(), 1usize..4000).prop_map(|(at, len)| Damage::Zero(at, len)),
        index().prop_map(Damage::Truncate),
        prop::collection::vec(any::<u8>(), 1..500).prop_map(Damage::Extend),
        (index(), index(), 1usize..4000).prop_map(|(from, to, len)| Damage::Misdirect(from, to, len)),
    ]
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let len = bytes.len();
        match self {
            Damage::Flip(at, bits) => bytes[at.index(len)] ^= bits,
            Damage::Zero(at, count) => {
                let at = at.index(len);
                bytes[at..len.min(at + count)].fill(0);
            }
            Damage::Truncate(at) => bytes.truncate(at.index(len)),
            Damage::Extend(more) => bytes.extend_from_slice(more),
            Damage::Misdirect(from, to, count) => {
                let (from, to) = (from.index(len), to.index(len));
                let count = (*count).min(len - from.max(to));
                bytes.copy_within(from..from + count, to);
            }
        }
    }

    /// Returns the bytes it may have touched, in a file of `len` bytes.
    fn touches(&self, len: usize) -> std::ops::Range<usize> {
        match self {
            Damage::Flip(at, _) => at.index(len)..at.index(len) + 1,
            Damage::Zero(at, count) => at.index(len)..at.index(len) + count,
            Damage::Truncate(at) => at.index(len)..usize::MAX,
            Damage::Extend(_) => len..usize::MAX,
            Damage::Misdirect(_, to, count) => to.index(len)..to.index(len) + count,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn damage_costs_the_chunks_it_touches_and_wrong_bytes_are_never_served(
        seed: u64, damage in any_damage(), file in any::<prop::sample::Index>(), with_snapshot: bool, closes: bool
    ) {
        let fs = SimulatedFileSystem::new(seed, CAPACITY);
        let store = open(&fs).expect("opens");
        for number in 0..20 {
            if number == 7 {
                store.shared.options.formats.raise(Formats::NEWEST);
            }
            block_on(store.write(name(number), content(number), None)).expect("written");
        }
        let places: BTreeMap<u8, (PathBuf, std::ops::Range<usize>)> = (0..20).map(|number| {
            let state = store.shared.state.read();
            let location = state.index.get(name(number)).expect("stored");
            let start = location.offset as usize;
            let end = start + location.record_len() as usize;
            (number, (state.segments[&location.segment].segment.path.clone(), start..end))
        }).collect();
        if closes {
            block_on(store.close()).expect("closed");
        }
        drop(store);
        let segments: Vec<_> = fs.files().into_iter().filter(|path| path.extension().is_some_and(|e| e == "seg")).collect();
        let hit = segments[file.index(segments.len())].clone();
        let mut touched = 0..0;
        fs.damage(&hit, |bytes| {
            touched = damage.touches(bytes.len());
            damage.apply(bytes);
        });
        if !with_snapshot {
            fs.damage(Path::new("/disk/.striate/chunks/index.snapshot"), |bytes| bytes.truncate(9));
        }
        let store = open(&fs).expect("opens with a damaged segment");
        for (number, (path, place)) in places {
            let expected = content(number);
            let range = ChunkRange { chunk: name(number), offset: 0, len: expected.len() as u32 };
            match block_on(store.read(range)) {
                Ok(bytes) => prop_assert_eq!(bytes, expected),
                Err(error) => {
                    let is_hit = path == hit && place.start < touched.end && touched.start < place.end;
                    prop_assert!(is_hit, "chunk {} was not touched: {}", number, error);
                    prop_assert!(matches!(error, SiteError::Missing(_) | SiteError::Corrupt { .. }), "{}", error);
                }
            }
        }
        block_on(store.write(chunk_id(1000, 0, 1), payload(1, 1000), None)).expect("writes go on");
    }

    #[test]
    fn any_garbage_as_snapshot_or_condemnation_is_survived(seed: u64, garbage in prop::collection::vec(any::<u8>(), 0..300)) {
        let fs = SimulatedFileSystem::new(seed, CAPACITY);
        let store = open(&fs).expect("opens");
        block_on(store.write(name(1), content(1), None)).expect("written");
        block_on(store.close()).expect("closed");
        drop(store);
        fs.damage(Path::new("/disk/.striate/chunks/index.snapshot"), |bytes| *bytes = garbage);
        let store = open(&fs).expect("opens");
        prop_assert_eq!(store.status().chunks, 1);
    }
}

#[test]
fn a_full_disk_refuses_writes_cleanly_and_deletes_give_space_back() {
    let fs = SimulatedFileSystem::new(1, 60_000);
    // Without gaps, so that the arithmetic below counts records only.
    let options = DiskStoreOptions { reserve_bytes: Some(15_000), direct_bytes: usize::MAX, ..options() };
    let store =
        DiskStore::open(&runtime(), Arc::new(fs.clone()), Path::new("/disk"), options).expect("opens");
    let bytes = payload(1, 1500);
    let mut written = Vec::new();
    let refused = loop {
        let chunk = chunk_id(written.len() as u64, 0, 1);
        match block_on(store.write(chunk, bytes.clone(), None)) {
            Ok(()) => written.push(chunk),
            Err(error) => break error,
        }
        assert!(written.len() < 100, "the disk has to fill");
    };
    assert_eq!(refused, SiteError::NoSpace);
    assert!(written.len() >= 25, "only the reserve is kept back: {}", written.len());
    assert_eq!(store.status().suspect, None);
    // Two chunks of three are deleted, spread over all segments.
    let (gone, kept): (Vec<_>, Vec<_>) = written.iter().enumerate().partition(|(i, _)| i % 3 != 0);
    let gone: Vec<_> = gone.into_iter().map(|(_, chunk)| *chunk).collect();
    block_on(store.delete(&gone, FencingEpoch(1))).expect("deletes work on a full disk");
    for _ in 0..200 {
        assert_ne!(store.compact_step(), CompactionStep::Failed);
    }
    let status = store.status();
    assert!(
        status.disk_bytes < 35_000,
        "{} bytes for {} of payload",
        status.disk_bytes,
        status.payload_bytes
    );
    for (_, chunk) in kept {
        assert_eq!(
            block_on(store.read(ChunkRange { chunk: *chunk, offset: 0, len: 1500 })),
            Ok(bytes.clone())
        );
    }
    block_on(store.write(chunk_id(999, 0, 1), bytes, None)).expect("there is room again");
}

/// A store on a full disk whose segments are as long as the disk is: those of an earlier release.
struct FullStore {
    fs: SimulatedFileSystem,
    kept: Vec<ChunkId>,
    gone: Vec<ChunkId>,
}

const FULL_CAPACITY: u64 = 150_000;
const FULL_RESERVE: u64 = FULL_CAPACITY / 10;
const FULL_PAYLOAD: usize = 1_500;

impl FullStore {
    fn open(fs: &SimulatedFileSystem, segment_len: u64) -> DiskStore {
        Self::try_open(fs, segment_len).expect("opens")
    }

    fn try_open(fs: &SimulatedFileSystem, segment_len: u64) -> Result<DiskStore, DiskStoreError> {
        let formats = FormatsInForce::new(Formats::NEWEST);
        let options = DiskStoreOptions {
            segment_len: Some(segment_len),
            reserve_bytes: Some(FULL_RESERVE),
            direct_bytes: usize::MAX,
            paged_from: usize::MAX,
            formats,
            ..options()
        };
        DiskStore::open(&runtime(), Arc::new(fs.clone()), Path::new("/disk"), options)
    }

    /// Fills a disk and deletes every second chunk.
    fn new(seed: u64) -> Self {
        let fs = SimulatedFileSystem::new(seed, FULL_CAPACITY);
        let store = Self::open(&fs, FULL_CAPACITY);
        let chunk = |number: usize| chunk_id(number as u64, 0, 1);
        let bytes = payload(1, FULL_PAYLOAD);
        let write = |number| block_on(store.write(chunk(number), bytes.clone(), None));
        let written = (0..1000).take_while(|number| write(*number).is_ok()).count();
        assert!(written > 60, "{written}");
        let (kept, gone): (Vec<_>, Vec<_>) =
            (0..written).map(chunk).enumerate().partition(|(i, _)| i % 2 == 0);
        let names =
            |list: Vec<(usize, ChunkId)>| list.into_iter().map(|(_, chunk)| chunk).collect::<Vec<_>>();
        let (kept, gone) = (names(kept), names(gone));
        block_on(store.delete(&gone, FencingEpoch(3))).expect("deletes work on a full disk");
        block_on(store.close()).expect("closed");
        Self { fs, kept, gone }
    }

    fn check(&self, store: &DiskStore) {
        let read = |chunk: &ChunkId| {
            block_on(store.read(ChunkRange { chunk: *chunk, offset: 0, len: FULL_PAYLOAD as u32 }))
        };
        for chunk in &self.kept {
            assert_eq!(read(chunk), Ok(payload(1, FULL_PAYLOAD)), "{chunk}");
        }
        for chunk in &self.gone {
            assert!(matches!(read(chunk), Err(SiteError::Missing(_))), "{chunk} is back");
        }
        let stale = block_on(store.delete(&[], FencingEpoch(2)));
        assert!(matches!(stale, Err(SiteError::Fenced { .. })), "the epoch went back: {stale:?}");
        check_accounting(store);
    }

    /// Compacts until there is nothing to do.
    fn compact(store: &DiskStore) {
        let steps = (0..2_000).take_while(|_| store.compact_step() == CompactionStep::Progress).count();
        assert!(steps < 2_000, "compaction ends");
    }
}

#[test]
fn a_full_disk_recovers_within_its_reserve_although_its_segments_are_longer() {
    let full = FullStore::new(1);
    let store = FullStore::open(&full.fs, FULL_CAPACITY / 24);
    let bytes = payload(1, FULL_PAYLOAD);
    assert_eq!(block_on(store.write(chunk_id(9_000, 0, 1), bytes.clone(), None)), Err(SiteError::NoSpace));
    FullStore::compact(&store);
    full.check(&store);
    let write = |number| block_on(store.write(chunk_id(number, 0, 1), bytes.clone(), None));
    let written = (9_000..10_000).take_while(|number| write(*number).is_ok()).count();
    assert!(
        written * 10 >= full.gone.len() * 8,
        "{written} chunks fit where {} were deleted",
        full.gone.len()
    );
    drop(store);
    full.check(&FullStore::open(&full.fs, FULL_CAPACITY / 24));
}

#[test]
fn a_crash_anywhere_in_the_recovery_of_a_full_disk_loses_nothing() {
    let changes = {
        let full = FullStore::new(1);
        let before = full.fs.changes();
        FullStore::compact(&FullStore::open(&full.fs, FULL_CAPACITY / 24));
        full.fs.changes() - before
    };
    assert!(changes > 100, "{changes}");
    for change in 1..=changes {
        for power_cut in [true, false] {
            let mut full = FullStore::new(change);
            full.fs.die_at(full.fs.changes() + change);
            if let Ok(store) = FullStore::try_open(&full.fs, FULL_CAPACITY / 24) {
                let _ = (0..2_000).take_while(|_| store.compact_step() == CompactionStep::Progress).count();
            }
            full.fs = if power_cut { full.fs.after_power_cut() } else { full.fs.after_kill() };
            let store = FullStore::open(&full.fs, FULL_CAPACITY / 24);
            full.check(&store);
            FullStore::compact(&store);
            full.check(&store);
            block_on(store.write(chunk_id(9_000, 0, 1), payload(1, FULL_PAYLOAD), None))
                .expect("there is room again");
            drop(store);
            full.check(&FullStore::open(&full.fs, FULL_CAPACITY / 24));
        }
    }
}

/// A chunk is deleted and written again in one segment, whose end is then cut off: the tombstone there covers a copy
/// before the cut.
#[test]
fn a_tombstone_in_the_end_of_a_segment_outlives_the_cut() {
    let fs = SimulatedFileSystem::new(1, CAPACITY);
    let store = FullStore::open(&fs, 100_000);
    let chunk = |number| chunk_id(number, 0, 1);
    let write = |store: &DiskStore, number| {
        block_on(store.write(chunk(number), payload(number, 2_000), None)).expect("written");
    };
    (0..10).for_each(|number| write(&store, number));
    block_on(store.delete(&[chunk(0), chunk(7), chunk(8)], FencingEpoch(1))).expect("deleted");
    write(&store, 10);
    store.checkpoint().expect("a snapshot");
    drop(store);
    let store = FullStore::open(&fs, 10_000);
    let first = *store.shared.state.read().segments.keys().next().expect("a segment");
    let len = || store.shared.state.read().segments[&first].len;
    let before = len();
    for _ in 0..50 {
        if len() == before {
            compact_within(&fs, &store, FULL_RESERVE + 500);
        }
    }
    assert!(len() < before, "the end was cut off: {before}");
    drop(store);
    let store = FullStore::open(&fs.after_power_cut(), 10_000);
    for number in 0..=10 {
        let read = block_on(store.read(ChunkRange { chunk: chunk(number), offset: 0, len: 2_000 }));
        match number {
            0 | 7 | 8 => assert!(matches!(read, Err(SiteError::Missing(_))), "chunk {number} is back"),
            _ => assert_eq!(read, Ok(payload(number, 2_000)), "chunk {number}"),
        }
    }
}

#[test]
fn a_truly_full_disk_without_a_reserve_fails_whole_groups_and_recovers() {
    let fs = SimulatedFileSystem::new(1, 10_000);
    let store = open(&fs).expect("opens");
    block_on(store.write(name(1), content(1), None)).expect("written");
    fs.inject(Fault { call: Call::Write, after: 0, count: 1, errno: 28 });
    assert_eq!(block_on(store.write(name(2), content(2), None)), Err(SiteError::NoSpace));
    block_on(store.write(name(3), content(3), None)).expect("the next one fits");
    drop(store);
    let store = open(&fs.after_power_cut()).expect("opens");
    for (number, there) in [(1, true), (2, false), (3, true)] {
        let range = ChunkRange { chunk: name(number), offset: 0, len: content(number).len() as u32 };
        assert_eq!(block_on(store.read(range)).is_ok(), there, "chunk {number}");
    }
}

#[test]
fn a_failed_sync_condemns_its_segment_and_two_make_the_store_suspect() {
    let fs = SimulatedFileSystem::new(3, CAPACITY);
    let store = open(&fs).expect("opens");
    block_on(store.write(name(1), content(1), None)).expect("written");
    fs.inject(Fault { call: Call::Sync, after: 0, count: 1, errno: 5 });
    block_on(store.write(name(2), content(2), None)).expect("written anew to another segment");
    let condemned =
        fs.files().iter().filter(|path| path.extension().is_some_and(|e| e == "condemned")).count();
    assert_eq!(condemned, 1);
    fs.inject(Fault { call: Call::Sync, after: 0, count: 10, errno: 5 });
    let refused = block_on(store.write(name(3), content(3), None));
    assert!(matches!(refused, Err(SiteError::Suspect(_))), "{refused:?}");
    fs.heal();
    let refused = block_on(store.write(name(4), content(4), None));
    assert!(matches!(refused, Err(SiteError::Suspect(_))), "{refused:?}");
    assert!(store.status().suspect.is_some());
    for number in [1, 2] {
        let range = ChunkRange { chunk: name(number), offset: 0, len: content(number).len() as u32 };
        assert_eq!(block_on(store.read(range)), Ok(content(number)), "reads go on");
    }
}

/// The process is killed after a segment got its name and before the name was synced; then the segment is written to;
/// then the power is cut. The start in between has to make durable what it finds.
#[test]
fn a_start_after_a_kill_makes_names_and_bytes_durable_before_it_acknowledges() {
    for seed in 0..20 {
        for change in 1..8 {
            let fs = SimulatedFileSystem::new(seed, CAPACITY);
            fs.die_at(change);
            let mut known = Known::default();
            known.run(&fs, &[Step::Write(1)]);
            let fs = fs.after_kill();
            known.step(&fs, &open(&fs).expect("opens"), &Step::Write(2));
            check_after(&known, &fs.after_power_cut());
        }
    }
}

/// A chunk is deleted after its record was copied and before the copy got its name.
#[test]
fn a_chunk_deleted_during_its_compaction_stays_deleted() {
    use Step::{Checkpoint, Compact, Delete, Write};
    let before = [23, 18, 17].map(Write).into_iter().chain([Checkpoint]).chain([20, 9, 22, 4].map(Write));
    let deletes = [Delete(vec![20, 22]), Compact, Compact, Delete(vec![17]), Delete(vec![0])];
    let steps: Vec<_> = before.chain(deletes).chain([Compact, Compact, Compact, Compact]).collect();
    let fs = SimulatedFileSystem::new(0, CAPACITY);
    let (mut known, store) = (Known::default(), open(&fs).expect("opens"));
    for step in &steps {
        assert!(known.step(&fs, &store, step));
    }
    drop(store);
    check_after(&known, &fs.after_kill());
}

/// A compaction ends while the tombstone of a chunk that it moves is being synced: the tombstone names the old place,
/// and once that is gone nothing keeps the tombstone.
#[test]
fn a_chunk_deleted_while_its_compaction_ends_stays_deleted() {
    use Step::{Checkpoint, Compact, Delete, Write};
    for (last, with_snapshot) in [(Compact, false), (Checkpoint, true), (Checkpoint, false)] {
        let fs = SimulatedFileSystem::new(0, CAPACITY);
        let (mut known, store) = (Known::default(), Arc::new(open(&fs).expect("opens")));
        // The first segment is full, and half of it dies.
        for step in (0..19).map(Write).chain([Delete((6..12).collect())]) {
            assert!(known.step(&fs, &store, &step));
        }
        assert_eq!(store.compact_step(), CompactionStep::Progress, "a job has begun");
        let old_place = {
            let state = store.shared.state.read();
            let location = state.index.get(name(1)).expect("stored");
            assert!(state.segments[&location.segment].compacting, "{location:?}");
            location.segment
        };
        let ending = Arc::clone(&store);
        fs.before_next_sync(Box::new(move || {
            while ending.shared.state.read().segments.contains_key(&old_place) {
                assert_eq!(ending.compact_step(), CompactionStep::Progress);
            }
        }));
        assert!(known.step(&fs, &store, &Delete(vec![1])));
        assert!(!store.shared.state.read().segments.contains_key(&old_place), "the job ended in the middle");
        // Then the tombstone's segment is compacted, too.
        for step in [Delete((13..19).collect()), last.clone()].into_iter().chain((0..12).map(|_| Compact)) {
            assert!(known.step(&fs, &store, &step));
        }
        if last == Checkpoint && !with_snapshot {
            fs.unlink(&snapshot::path(&store.shared.directory)).expect("there was one");
        }
        drop(store);
        check_after(&known, &fs.after_kill());
    }
}

#[test]
fn an_unreadable_chunk_is_reported_as_damaged() {
    let fs = SimulatedFileSystem::new(3, CAPACITY);
    let store = open(&fs).expect("opens");
    block_on(store.write(name(1), content(1), None)).expect("written");
    fs.inject(Fault { call: Call::Read, after: 0, count: 1, errno: 5 });
    let range = ChunkRange { chunk: name(1), offset: 0, len: 10 };
    assert!(matches!(block_on(store.read(range)), Err(SiteError::Corrupt { .. })));
    assert_eq!(block_on(store.read(range)), Ok(content(1).slice(..10)));
}

/// Out of descriptors, out of descriptors in the whole system, out of memory, out of threads or locks.
const SHORTAGES: [i32; 4] = [24, 23, 12, 11];

/// Returns whether a condemnation lies beside a segment.
fn has_condemned(fs: &SimulatedFileSystem) -> bool {
    fs.files().iter().any(|path| path.extension().is_some_and(|extension| extension == "condemned"))
}

#[test]
fn a_process_short_of_descriptors_or_memory_condemns_nothing_and_writes_go_on_afterwards() {
    for (errno, call) in
        SHORTAGES.into_iter().flat_map(|e| [Call::Create, Call::Open, Call::Identify].map(|c| (e, c)))
    {
        let fs = SimulatedFileSystem::new(3, CAPACITY);
        let mut known = Known::default();
        let store = open(&fs).expect("opens");
        assert!(known.step(&fs, &store, &Step::Write(1)));
        fs.inject(Fault { call, after: 0, count: u64::MAX, errno });
        let mut refused = 0;
        // More than a segment holds: the shortage meets a segment that rolls.
        for number in 2..20 {
            match block_on(store.write(name(number), content(number), None)) {
                Ok(()) => assert!(known.step(&fs, &store, &Step::Write(number)), "it is stored"),
                Err(SiteError::Busy) => refused += 1,
                Err(error) => panic!("errno {errno} of {call:?}: {error}"),
            }
            store.compact_step();
        }
        assert!(refused > 0 || call == Call::Open, "errno {errno} of {call:?}: a segment rolled");
        assert_eq!(store.status().suspect, None, "errno {errno} of {call:?}");
        assert!(!has_condemned(&fs), "errno {errno} of {call:?}");
        fs.heal();
        for number in 2..30 {
            assert!(known.step(&fs, &store, &Step::Write(number)), "errno {errno} of {call:?}: {number}");
        }
        assert!(known.step(&fs, &store, &Step::Delete(vec![3, 5])));
        drop(store);
        // What was refused does not count after a power cut either.
        check_after(&known, &fs.after_power_cut());
    }
}

#[test]
fn a_failed_write_or_sync_condemns_whatever_its_reason() {
    for (errno, call) in [5, 24, 12, 11].into_iter().flat_map(|e| [Call::Write, Call::Sync].map(|c| (e, c))) {
        let fs = SimulatedFileSystem::new(3, CAPACITY);
        let store = open(&fs).expect("opens");
        block_on(store.write(name(1), content(1), None)).expect("written");
        fs.inject(Fault { call, after: 0, count: 1, errno });
        block_on(store.write(name(2), content(2), None)).expect("written anew to another segment");
        assert!(has_condemned(&fs), "errno {errno} of {call:?}");
        fs.inject(Fault { call, after: 0, count: u64::MAX, errno });
        let refused = block_on(store.write(name(3), content(3), None));
        assert!(matches!(refused, Err(SiteError::Suspect(_))), "errno {errno} of {call:?}: {refused:?}");
    }
}

#[test]
fn names_that_could_not_be_synced_condemn_the_disk() {
    let fs = SimulatedFileSystem::new(3, CAPACITY);
    let store = open(&fs).expect("opens");
    fs.inject(Fault { call: Call::SyncDirectory, after: 0, count: u64::MAX, errno: 12 });
    let refused = block_on(store.write(name(1), content(1), None));
    assert!(matches!(refused, Err(SiteError::Suspect(_))), "{refused:?}");
}

#[test]
fn a_chunk_that_cannot_be_opened_for_want_of_descriptors_is_not_damaged() {
    for errno in SHORTAGES {
        let fs = SimulatedFileSystem::new(3, CAPACITY);
        let store = open(&fs).expect("opens");
        block_on(store.write(name(1), content(1), None)).expect("written");
        drop(store);
        let store = open(&fs).expect("opens");
        store.shared.state.read().segments.values().for_each(|segment| segment.segment.close());
        fs.inject(Fault { call: Call::Open, after: 0, count: 2, errno });
        let range = ChunkRange { chunk: name(1), offset: 0, len: 10 };
        assert_eq!(block_on(store.read(range)), Err(SiteError::Busy));
        assert_eq!(block_on(store.verify(name(1))).map(drop), Err(SiteError::Busy));
        assert_eq!(block_on(store.read(range)), Ok(content(1).slice(..10)));
    }
}

#[test]
fn a_disk_that_cannot_say_what_its_names_lead_to_is_suspect_but_not_called_vanished() {
    let fs = SimulatedFileSystem::new(3, CAPACITY);
    let store = open(&fs).expect("opens");
    fs.inject(Fault { call: Call::Identify, after: 0, count: u64::MAX, errno: 5 });
    match block_on(store.write(name(1), content(1), None)) {
        Err(SiteError::Suspect(reason)) => assert!(reason.contains("cannot be examined"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_directory_that_vanishes_or_is_replaced_takes_no_acknowledgement() {
    for replaced in [false, true] {
        let fs = SimulatedFileSystem::new(3, CAPACITY);
        let store = open(&fs).expect("opens");
        block_on(store.write(name(1), content(1), None)).expect("written");
        for path in fs.files() {
            fs.unlink(&path).expect("removed");
            if replaced {
                fs.create(&path).expect("created");
            }
        }
        let refused = block_on(store.write(name(2), content(2), None));
        assert!(matches!(refused, Err(SiteError::Suspect(_))), "{refused:?}");
    }
}
