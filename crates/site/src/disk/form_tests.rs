//! Chunks of all forms: the cost of a range, its bytes, detection of damage, and which form is written when.

use std::collections::BTreeSet;

use futures::FutureExt;
use proptest::prelude::*;
use striate_core::{Formats, GRANULE_LEN};

use super::form::Form;
use super::*;
use crate::conformance::{chunk_id, payload};
use crate::filesystem::{Reads, SimulatedFileSystem};
use crate::granule;

const MIB: usize = 1 << 20;

fn block_on<F: Future>(future: F) -> F::Output {
    future.now_or_never().expect("done inline")
}

/// Chunks of more than 300,000 bytes are paged.
fn options(formats: &FormatsInForce) -> DiskStoreOptions {
    DiskStoreOptions {
        segment_len: Some(2 << 20),
        reserve_bytes: Some(0),
        formats: formats.clone(),
        paged_from: 300_000,
        ..DiskStoreOptions::default()
    }
}

fn open_with(fs: &SimulatedFileSystem, options: DiskStoreOptions) -> DiskStore {
    let runtime = Runtime::deterministic(1, Duration::ZERO);
    DiskStore::open(&runtime, Arc::new(fs.clone()), Path::new("/disk"), options).expect("opens")
}

fn open(fs: &SimulatedFileSystem, formats: &FormatsInForce) -> DiskStore {
    open_with(fs, options(formats))
}

fn range(number: u64, offset: usize, len: usize) -> ChunkRange {
    ChunkRange { chunk: chunk_id(number, 0, 1), offset: offset as u32, len: len as u32 }
}

fn write(store: &DiskStore, number: u64, bytes: &Bytes) {
    block_on(store.write(chunk_id(number, 0, 1), bytes.clone(), None)).expect("written");
}

fn form(store: &DiskStore, number: u64) -> Form {
    store.shared.state.read().index.get(chunk_id(number, 0, 1)).expect("stored").form
}

/// Checks a read, and returns what it cost.
fn cost(
    fs: &SimulatedFileSystem,
    store: &DiskStore,
    bytes: &Bytes,
    number: u64,
    offset: usize,
    len: usize,
) -> Reads {
    let before = fs.reads();
    let read = block_on(store.read(range(number, offset, len)));
    assert_eq!(read, Ok(bytes.slice(offset..offset + len)), "{offset}+{len}");
    let after = fs.reads();
    Reads { calls: after.calls - before.calls, bytes: after.bytes - before.bytes }
}

#[test]
fn a_cold_small_range_of_a_64_mib_chunk_is_one_small_read() {
    let fs = SimulatedFileSystem::new(1, 1 << 30);
    let formats = FormatsInForce::new(Formats::NEWEST);
    let default = || DiskStoreOptions { formats: formats.clone(), ..DiskStoreOptions::default() };
    let bytes = payload(1, 64 * MIB);
    write(&open_with(&fs, default()), 1, &bytes);
    for offset in [0, 1, 4091, 4092, 5 * MIB + 77, 33 * MIB, 64 * MIB - 4096] {
        // Nothing but the index is in memory.
        let store = open_with(&fs, default());
        let cost = cost(&fs, &store, &bytes, 1, offset, 4096);
        assert_eq!(cost.calls, 1, "at {offset}");
        let pages = (offset + 4095) / 4092 - offset / 4092 + 1;
        assert!(pages <= 3 && cost.bytes <= 4096 * pages as u64, "{} bytes at {offset}", cost.bytes);
    }
    assert_eq!(cost(&fs, &open_with(&fs, default()), &bytes, 1, 0, 64 * MIB).calls, 1);
}

#[test]
fn tables_are_read_once_and_small_chunks_have_none_to_read() {
    for (formats, granule_len) in [(Formats::OLDEST, GRANULE_LEN), (Formats::NEWEST, 4096)] {
        let fs = SimulatedFileSystem::new(1, 1 << 30);
        let formats = FormatsInForce::new(formats);
        let (small, large) = (payload(1, 64 << 10), payload(2, 290_000));
        let store = open(&fs, &formats);
        write(&store, 1, &small);
        write(&store, 2, &large);
        drop(store);
        let store = open(&fs, &formats);
        for offset in [0, 5000, 60_000] {
            assert_eq!(cost(&fs, &store, &small, 1, offset, 4096).calls, 1, "all of it is one read");
        }
        assert_eq!(cost(&fs, &store, &large, 2, 0, 290_000).calls, 1);
        assert_eq!(cost(&fs, &store, &large, 2, 250_000, 100).calls, 2, "the first time");
        for offset in [70_000, 131_072, 280_000] {
            let cost = cost(&fs, &store, &large, 2, offset, 4096);
            assert_eq!(cost.calls, 1, "the table is in memory");
            assert!(cost.bytes <= 2 * granule_len as u64, "{} bytes", cost.bytes);
        }
    }
}

#[test]
fn only_format_1_is_written_until_2_is_in_force_and_each_in_segments_of_its_own() {
    let fs = SimulatedFileSystem::new(1, 1 << 30);
    let formats = FormatsInForce::new(Formats { records: 9, chunks: 1 });
    let (short, long) = (payload(1, 100_000), payload(2, 400_000));
    let store = open(&fs, &formats);
    write(&store, 1, &short);
    write(&store, 2, &long);
    assert_eq!((form(&store, 1), form(&store, 2), versions(&fs)), (Form::Coarse, Form::Coarse, [1].into()));
    block_on(store.close()).expect("closed");
    assert_eq!(snapshot_version(&fs), 1, "what releases before read");
    drop(store);
    let store = open(&fs, &formats);
    formats.raise(Formats { records: 1, chunks: 2 });
    write(&store, 3, &short);
    write(&store, 4, &long);
    let stored = [1, 2, 3, 4].map(|number| form(&store, number));
    assert_eq!(stored, [Form::Coarse, Form::Coarse, Form::Fine, Form::Paged]);
    let version_of = |number: u64| {
        let state = store.shared.state.read();
        let location = state.index.get(chunk_id(number, 0, 1)).expect("stored");
        state.segments[&location.segment].version
    };
    assert_eq!([1, 2, 3, 4].map(version_of), [1, 1, 2, 2]);
    assert_eq!(versions(&fs), [1, 2].into());
    block_on(store.close()).expect("closed");
    assert_eq!(snapshot_version(&fs), 2);
    drop(store);
    // Format 2 can be read whatever is in force, and is compacted into segments that are marked as format 2.
    for with_snapshot in [true, false] {
        if !with_snapshot {
            fs.damage(Path::new("/disk/.striate/chunks/index.snapshot"), Vec::clear);
        }
        let store = open(&fs, &FormatsInForce::default());
        for (number, bytes) in [(1, &short), (2, &long), (3, &short), (4, &long)] {
            assert_eq!(block_on(store.read(range(number, 0, bytes.len()))).as_ref(), Ok(bytes));
            block_on(store.verify(chunk_id(number, 0, 1))).expect("intact");
        }
    }
}

#[test]
fn compaction_keeps_forms_and_pages_stay_pages() {
    let fs = SimulatedFileSystem::new(1, 1 << 30);
    let formats = FormatsInForce::new(Formats::OLDEST);
    let store = open_with(&fs, DiskStoreOptions { segment_len: Some(4 << 20), ..options(&formats) });
    let bytes = |number: u64| payload(number, if number.is_multiple_of(2) { 400_000 } else { 100_000 });
    for number in 0..40 {
        if number == 20 {
            formats.raise(Formats::NEWEST);
        }
        write(&store, number, &bytes(number));
    }
    let kept = [3, 4, 21, 24];
    let before = kept.map(|number| form(&store, number));
    let dead: Vec<_> =
        (0..40).filter(|number| !kept.contains(number)).map(|number| chunk_id(number, 0, 1)).collect();
    block_on(store.delete(&dead, FencingEpoch(1))).expect("deleted");
    while store.compact_step() == CompactionStep::Progress {}
    assert!(store.status().disk_bytes < 3_000_000, "{:?}", store.status());
    for number in kept {
        let bytes = bytes(number);
        assert_eq!(block_on(store.read(range(number, 0, bytes.len()))), Ok(bytes));
    }
    assert_eq!(kept.map(|number| form(&store, number)), before);
    assert_eq!(before, [Form::Coarse, Form::Coarse, Form::Fine, Form::Paged]);
    let location = store.shared.state.read().index.get(chunk_id(24, 0, 1)).expect("stored");
    let pages = location.offset as usize + location.form.header_len(location.len);
    assert!(pages.is_multiple_of(form::PAGE), "a page of the chunk is a page of the file");
}

#[test]
fn bytes_that_differ_from_their_checksums_are_refused_before_they_are_stored() {
    let fs = SimulatedFileSystem::new(1, 1 << 30);
    let formats = FormatsInForce::new(Formats::NEWEST);
    let store = open(&fs, &formats);
    for (number, len) in [(1, 100_000), (2, 400_000)] {
        let bytes = payload(number, len);
        let crcs = granule::granule_crcs(&bytes, GRANULE_LEN);
        let mut damaged = bytes.to_vec();
        damaged[70_000] ^= 1;
        let refused = block_on(store.write(chunk_id(number, 0, 1), damaged.into(), Some(crcs.clone())));
        assert!(matches!(refused, Err(SiteError::BadRequest(_))), "{refused:?}");
        block_on(store.write(chunk_id(number, 0, 1), bytes, Some(crcs))).expect("written");
    }
}

fn segments(fs: &SimulatedFileSystem) -> Vec<PathBuf> {
    let is_segment = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "seg");
    fs.files().into_iter().filter(is_segment).collect()
}

/// Returns the format versions in the headers of the segments.
fn versions(fs: &SimulatedFileSystem) -> BTreeSet<u8> {
    let version = |path: &PathBuf| filesystem::read_whole(fs, path).expect("read")[8];
    segments(fs).iter().map(version).collect()
}

fn snapshot_version(fs: &SimulatedFileSystem) -> u8 {
    filesystem::read_whole(fs, Path::new("/disk/.striate/chunks/index.snapshot")).expect("read")[8]
}

/// Stores a chunk in one of the forms, on a disk of its own.
fn stored(form: Form, len: usize) -> (SimulatedFileSystem, FormatsInForce, Bytes) {
    let fs = SimulatedFileSystem::new(1, 1 << 30);
    let formats = FormatsInForce::new(if form == Form::Coarse { Formats::OLDEST } else { Formats::NEWEST });
    let bytes = payload(len as u64, len);
    let paged_from = if form == Form::Paged { 0 } else { usize::MAX };
    let store = open_with(&fs, DiskStoreOptions { paged_from, ..options(&formats) });
    write(&store, 1, &bytes);
    assert_eq!(super::form_tests::form(&store, 1), form);
    (fs, formats, bytes)
}

#[test]
fn a_long_chunk_is_verified_piece_by_piece() {
    for form in [Form::Coarse, Form::Fine, Form::Paged] {
        let (fs, formats, bytes) = stored(form, 3 * MIB + 5);
        let store = open(&fs, &formats);
        let location = store.shared.state.read().index.get(chunk_id(1, 0, 1)).expect("stored");
        let (before, start) = (fs.reads(), location.offset as usize + form.header_len(location.len));
        block_on(store.verify(chunk_id(1, 0, 1))).expect("intact");
        assert_eq!(fs.reads().calls - before.calls, 4, "{form:?}");
        assert!(fs.reads().bytes - before.bytes < (bytes.len() + bytes.len() / 500) as u64, "each byte once");
        for at in [0, MIB - 1, MIB, 2 * MIB, 3 * MIB - 1, form.stored_len(location.len) - 1] {
            let flip = |file: &mut Vec<u8>| file[start + at] ^= 1;
            assert!(fs.damage(&segments(&fs)[0], flip));
            let verified = block_on(store.verify(chunk_id(1, 0, 1)));
            assert!(matches!(verified, Err(SiteError::Corrupt { .. })), "{form:?}, byte {at}: {verified:?}");
            assert!(fs.damage(&segments(&fs)[0], flip));
        }
        block_on(store.verify(chunk_id(1, 0, 1))).expect("intact again");
    }
}

fn any_form() -> impl Strategy<Value = Form> {
    prop::sample::select(&[Form::Coarse, Form::Fine, Form::Paged][..])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_range_of_any_form_is_what_was_written(
        form in any_form(),
        len in prop_oneof![1usize..10_000, 60_000usize..70_000, 1usize..700_000],
        ranges in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<bool>()), 1..12),
    ) {
        let (fs, formats, bytes) = stored(form, len);
        let store = open(&fs, &formats);
        for (offset, count, is_small) in ranges {
            let offset = offset.index(len + 1);
            let rest = len - offset;
            let count = count.index(if is_small { rest.min(5000) } else { rest } + 1);
            let expected = bytes.slice(offset..offset + count);
            prop_assert_eq!(store.try_read(range(1, offset, count)), Some(Ok(expected.clone())));
            prop_assert_eq!(block_on(store.read(range(1, offset, count))), Ok(expected));
        }
        prop_assert!(block_on(store.verify(chunk_id(1, 0, 1))).is_ok());
        let past = block_on(store.read(range(1, len, 1)));
        prop_assert!(matches!(past, Err(SiteError::BadRequest(_))));
    }

    #[test]
    fn a_flipped_bit_is_found_in_any_granule_and_costs_that_granule(
        form in any_form(),
        len in prop_oneof![1usize..10_000, 1usize..300_000],
        flipped: prop::sample::Index,
        bit in 0u8..8,
        keeps_table: bool,
    ) {
        let (fs, formats, bytes) = stored(form, len);
        let store = open(&fs, &formats);
        let location = store.shared.state.read().index.get(chunk_id(1, 0, 1)).expect("stored");
        if keeps_table {
            block_on(store.read(range(1, len - 1, 1))).expect("intact");
        }
        let at = flipped.index(form.stored_len(len as u32));
        let start = location.offset as usize + form.header_len(len as u32);
        let path = &segments(&fs)[0];
        prop_assert!(fs.damage(path, |file| file[start + at] ^= 1 << bit));
        let pace = if form == Form::Paged { form::PAGE } else { form.granule_len() };
        let damaged = at / pace;
        for granule in 0..granule::granule_count(len as u32, form.granule_len()) {
            let from = granule * form.granule_len();
            let count = form.granule_len().min(len - from);
            let read = block_on(store.read(range(1, from, count)));
            if granule == damaged {
                prop_assert!(matches!(read, Err(SiteError::Corrupt { .. })), "granule {}: {:?}", granule, read);
            } else {
                prop_assert_eq!(read, Ok(bytes.slice(from..from + count)));
            }
        }
        let verified = block_on(store.verify(chunk_id(1, 0, 1)));
        prop_assert!(matches!(verified, Err(SiteError::Corrupt { .. })), "{:?}", verified);
    }

    #[test]
    fn pages_of_another_chunk_or_place_do_not_pass(len in 4093usize..60_000, swapped in any::<prop::sample::Index>()) {
        let (fs, formats, _) = stored(Form::Paged, len);
        let store = open_with(&fs, DiskStoreOptions { paged_from: 0, ..options(&formats) });
        write(&store, 2, &payload(len as u64, len));
        let start = |number: u64| {
            let location = store.shared.state.read().index.get(chunk_id(number, 0, 1)).expect("stored");
            location.offset as usize + location.form.header_len(location.len)
        };
        let whole_pages = Form::Paged.stored_len(len as u32) / form::PAGE;
        let page = swapped.index(whole_pages);
        let (first, second) = (start(1) + page * form::PAGE, start(2) + page * form::PAGE);
        // The same bytes under another name.
        fs.damage(&segments(&fs)[0], |file| file.copy_within(second..second + form::PAGE, first));
        let read = block_on(store.read(range(1, page * Form::Paged.granule_len(), 1)));
        prop_assert!(matches!(read, Err(SiteError::Corrupt { .. })), "{:?}", read);
    }
}
