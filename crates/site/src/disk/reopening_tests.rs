//! Tests of opening a store anew while its process runs.

use std::collections::BTreeMap;

use futures::FutureExt;

use super::*;
use crate::conformance::{chunk_id, payload};
use crate::filesystem::{Call, Fault, SimulatedFileSystem};

fn options() -> DiskStoreOptions {
    DiskStoreOptions {
        segment_len: Some(6000),
        direct_bytes: 900,
        reserve_bytes: Some(0),
        compact_step_bytes: 2500,
        ..DiskStoreOptions::default()
    }
}

/// Opens a store whose directory has an identity.
fn open(fs: &SimulatedFileSystem) -> ReopenableStore {
    let root = Path::new("/disk");
    fs.create_directories(&identity::striate_directory(root)).expect("created");
    if fs.identify(&identity::identity_path(root)).is_err() {
        fs.create(&identity::identity_path(root)).expect("created");
        fs.sync_directory(&identity::striate_directory(root)).expect("synced");
    }
    let runtime = Runtime::deterministic(1, Duration::ZERO);
    ReopenableStore::open(&runtime, Arc::new(fs.clone()), root, options()).expect("opens")
}

fn block_on<F: Future>(future: F) -> F::Output {
    future.now_or_never().expect("done inline")
}

fn name(number: u64) -> ChunkId {
    chunk_id(number, 0, 1)
}

fn content(number: u64) -> Bytes {
    payload(number, 300 + 40 * number as usize)
}

fn write(store: &ReopenableStore, number: u64) -> Result<(), SiteError> {
    block_on(store.write(name(number), content(number), None))
}

fn read(store: &ReopenableStore, number: u64) -> Result<Bytes, SiteError> {
    let range = ChunkRange { chunk: name(number), offset: 0, len: content(number).len() as u32 };
    block_on(store.read(range))
}

/// Makes the store suspect by two failed syncs; the write of chunk `number` gets no acknowledgement.
fn fail(fs: &SimulatedFileSystem, store: &ReopenableStore, number: u64) {
    fs.inject(Fault { call: Call::Sync, after: 0, count: u64::MAX, errno: 5 });
    assert!(matches!(write(store, number), Err(SiteError::Suspect(_))));
    fs.heal();
    assert!(store.failure().is_some());
}

type ChangeOfStore = fn(&ReopenableStore);

/// The bytes of all files.
fn copy(fs: &SimulatedFileSystem) -> BTreeMap<PathBuf, Vec<u8>> {
    let bytes = |path: &PathBuf| {
        let mut copied = Vec::new();
        fs.damage(path, |bytes| copied = bytes.clone());
        copied
    };
    fs.files().into_iter().map(|path| (path.clone(), bytes(&path))).collect()
}

/// Puts a copy in the place of all files.
fn put_back(fs: &SimulatedFileSystem, copied: &BTreeMap<PathBuf, Vec<u8>>) {
    for path in fs.files() {
        fs.unlink(&path).expect("removed");
    }
    for (path, content) in copied {
        fs.create(path).expect("created");
        fs.damage(path, |bytes| bytes.clone_from(content));
    }
    fs.sync_directory(Path::new("/disk/.striate/chunks")).expect("synced");
    fs.sync_directory(Path::new("/disk/.striate")).expect("synced");
}

#[test]
fn a_suspect_store_works_again_after_a_full_recovery_and_has_what_it_acknowledged() {
    for seed in 0..20 {
        let fs = SimulatedFileSystem::new(seed, 1 << 30);
        let store = open(&fs);
        (0..12).for_each(|number| write(&store, number).expect("written"));
        block_on(store.delete(&[name(3), name(7)], FencingEpoch(5))).expect("deleted");
        fail(&fs, &store, 20);
        assert_eq!(read(&store, 1), Ok(content(1)), "reads go on");
        store.reopen().expect("the disk works again");
        assert_eq!(store.failure(), None);
        assert_eq!(store.status().suspect, None);
        let check = |store: &ReopenableStore| {
            for number in 0..12 {
                match number {
                    3 | 7 => {
                        assert!(matches!(read(store, number), Err(SiteError::Missing(_))), "{number} is back")
                    }
                    _ => assert_eq!(read(store, number), Ok(content(number))),
                }
            }
            assert!(matches!(read(store, 20), Err(SiteError::Missing(_))), "it was condemned");
            let stale = block_on(store.delete(&[], FencingEpoch(4)));
            assert!(matches!(stale, Err(SiteError::Fenced { .. })), "{stale:?}");
        };
        check(&store);
        write(&store, 30).expect("written");
        drop(store);
        let store = open(&fs.after_power_cut());
        check(&store);
        assert_eq!(read(&store, 30), Ok(content(30)));
    }
}

#[test]
fn a_disk_that_still_fails_stays_suspect_and_is_tried_again() {
    let fs = SimulatedFileSystem::new(1, 1 << 30);
    let store = open(&fs);
    write(&store, 1).expect("written");
    fail(&fs, &store, 2);
    for call in [Call::Create, Call::Sync, Call::SyncDirectory, Call::Unlink] {
        fs.inject(Fault { call, after: 0, count: u64::MAX, errno: 30 });
        assert!(matches!(store.reopen(), Err(DiskStoreError::Io { .. })), "{call:?}");
        fs.heal();
        assert!(store.failure().is_some());
        assert!(matches!(write(&store, 4), Err(SiteError::Suspect(_))));
        assert_eq!(read(&store, 1), Ok(content(1)), "reads go on");
    }
    store.reopen().expect("the disk works again");
    write(&store, 4).expect("written");
}

/// What could not be condemned when it failed is condemned before a scan believes the page cache.
#[test]
fn a_record_that_a_failed_sync_lost_does_not_come_back_from_the_page_cache() {
    for seed in 0..20 {
        let fs = SimulatedFileSystem::new(seed, 1 << 30);
        let store = open(&fs);
        write(&store, 1).expect("written");
        fs.inject(Fault { call: Call::Sync, after: 0, count: u64::MAX, errno: 5 });
        fs.inject(Fault { call: Call::Create, after: 0, count: u64::MAX, errno: 5 });
        assert!(matches!(write(&store, 2), Err(SiteError::Suspect(_))));
        fs.heal();
        store.reopen().expect("the disk works again");
        assert!(matches!(read(&store, 2), Err(SiteError::Missing(_))), "only the page cache had it");
        write(&store, 2).expect("written again");
        let store = open(&fs.after_power_cut());
        assert_eq!(read(&store, 2), Ok(content(2)));
    }
}

#[test]
fn a_directory_that_comes_back_is_opened_and_nothing_is_made_while_it_is_away() {
    let fs = SimulatedFileSystem::new(1, 1 << 30);
    let store = open(&fs);
    (0..8).for_each(|number| write(&store, number).expect("written"));
    let disk = copy(&fs);
    put_back(&fs, &BTreeMap::new());
    assert!(matches!(write(&store, 9), Err(SiteError::Suspect(_))), "it has vanished");
    assert!(matches!(store.reopen(), Err(DiskStoreError::Io { .. })));
    assert_eq!(fs.files(), Vec::<PathBuf>::new(), "an empty mount point stays empty");
    put_back(&fs, &disk);
    store.reopen().expect("it is back");
    (0..8).for_each(|number| assert_eq!(read(&store, number), Ok(content(number))));
    write(&store, 9).expect("written");
}

#[test]
fn a_copy_from_before_the_last_change_is_refused() {
    let changes: [(&str, ChangeOfStore); 4] = [
        ("a write", |store| write(store, 9).expect("written")),
        ("a delete", |store| block_on(store.delete(&[name(2)], FencingEpoch::NONE)).expect("deleted")),
        ("a fencing epoch", |store| block_on(store.delete(&[], FencingEpoch(7))).expect("fenced")),
        ("many changes", |store| {
            (10..40).for_each(|number| write(store, number).expect("written"));
            block_on(store.delete(&(0..30).map(name).collect::<Vec<_>>(), FencingEpoch(8))).expect("deleted");
            for _ in 0..100 {
                store.current().compact_step();
            }
        }),
    ];
    for (what, change) in changes {
        let fs = SimulatedFileSystem::new(1, 1 << 30);
        let store = open(&fs);
        (0..8).for_each(|number| write(&store, number).expect("written"));
        let old = copy(&fs);
        change(&store);
        let disk = copy(&fs);
        put_back(&fs, &old);
        assert!(matches!(write(&store, 50), Err(SiteError::Suspect(_))), "{what}");
        let refused = store.reopen();
        assert!(matches!(refused, Err(DiskStoreError::Older { .. })), "{what}: {refused:?}");
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("older copy of this disk"), "{text}");
        put_back(&fs, &disk);
        store.reopen().expect("the disk itself is taken back");
        write(&store, 50).expect("written");
    }
}

#[test]
fn what_a_compaction_removed_is_not_missed() {
    let fs = SimulatedFileSystem::new(1, 1 << 30);
    let store = open(&fs);
    (0..30).for_each(|number| write(&store, number).expect("written"));
    block_on(store.delete(&(0..25).map(name).collect::<Vec<_>>(), FencingEpoch(1))).expect("deleted");
    fs.inject(Fault { call: Call::SyncDirectory, after: 1, count: 1, errno: 5 });
    for _ in 0..100 {
        store.current().compact_step();
    }
    fs.heal();
    fail(&fs, &store, 40);
    store.reopen().expect("the disk works again");
    (25..30).for_each(|number| assert_eq!(read(&store, number), Ok(content(number))));
}
