//! The store on the real file system.

use std::os::unix::fs::FileExt;

use futures::FutureExt;
use striate_core::Formats;

use super::form::Form;
use super::*;
use crate::conformance::{self, StoreUnderTest};
use crate::filesystem::{RealFileSystem, SimulatedFileSystem};

struct OnDisk {
    runtime: Runtime,
    root: tempfile::TempDir,
    store: Option<Arc<DiskStore>>,
    options: DiskStoreOptions,
    /// Whether to close the store properly before reopening, or just drop it.
    closes: bool,
}

impl OnDisk {
    fn new(runtime: &Runtime, options: DiskStoreOptions, closes: bool) -> Self {
        let root = tempfile::tempdir().expect("a directory");
        Self { runtime: runtime.clone(), root, store: None, options, closes }
    }
}

#[async_trait]
impl StoreUnderTest for OnDisk {
    async fn open(&mut self) -> Arc<dyn ChunkStore> {
        if let Some(store) = self.store.take() {
            match self.closes {
                true => store.close().await.expect("closed"),
                false => drop(store.stop().map(|thread| thread.join())),
            }
            store.shared.lock.lock().take();
        }
        let fs = Arc::new(RealFileSystem);
        let store = DiskStore::open(&self.runtime, fs, self.root.path(), self.options.clone());
        self.store.insert(Arc::new(store.expect("opened"))).clone()
    }

    async fn damage(&mut self, chunk: ChunkId) {
        let store = self.store.as_ref().expect("open");
        let state = store.shared.state.read();
        let location = state.index.get(chunk).expect("stored");
        let offset = u64::from(location.offset) + location.form.header_len(location.len) as u64;
        let path = &state.segments[&location.segment].segment.path;
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("opened");
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).expect("read");
        file.write_all_at(&[byte[0] ^ 1], offset).expect("written");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_disk_store_conforms_with_snapshots_and_without_on_either_runtime() {
    for runtime in [Runtime::real(), Runtime::deterministic(1, Duration::ZERO)] {
        for (closes, options) in [true, false].into_iter().flat_map(|closes| forms().map(|o| (closes, o))) {
            let new = || Box::new(OnDisk::new(&runtime, options.clone(), closes)) as Box<dyn StoreUnderTest>;
            conformance::run(new).await;
        }
    }
}

/// Returns options of stores that write coarse, fine and paged chunks.
fn forms() -> [DiskStoreOptions; 3] {
    let newest =
        DiskStoreOptions { formats: FormatsInForce::new(Formats::NEWEST), ..DiskStoreOptions::default() };
    [DiskStoreOptions::default(), newest.clone(), DiskStoreOptions { paged_from: 0, ..newest }]
}

fn small_segments() -> DiskStoreOptions {
    DiskStoreOptions {
        segment_len: Some(50_000),
        reserve_bytes: Some(0),
        open_files: 4,
        ..Default::default()
    }
}

fn open(runtime: &Runtime, root: &Path, options: DiskStoreOptions) -> Result<DiskStore, DiskStoreError> {
    DiskStore::open(runtime, Arc::new(RealFileSystem), root, options)
}

fn whole(number: u64, len: u32) -> ChunkRange {
    ChunkRange { chunk: conformance::chunk_id(number, 0, 1), offset: 0, len }
}

async fn write(store: &DiskStore, number: u64, len: usize) {
    let bytes = conformance::payload(number, len);
    store.write(conformance::chunk_id(number, 0, 1), bytes, None).await.expect("written");
}

#[test]
fn a_record_costs_little_beside_its_payload() {
    for form in [Form::Coarse, Form::Fine] {
        assert!(form.record_len(2560) <= 2560 + 60);
    }
    assert!(Form::Coarse.record_len(1 << 20) <= (1 << 20) + 120);
    for form in [Form::Fine, Form::Paged] {
        assert!(form.record_len(32 << 20) <= (32 << 20) / 1000 * 1001 + 60, "a thousandth: {form:?}");
    }
}

#[tokio::test]
async fn a_directory_in_use_is_refused_by_name_until_it_is_closed() {
    let root = tempfile::tempdir().expect("a directory");
    let store = open(&Runtime::real(), root.path(), small_segments()).expect("opened");
    let error = open(&Runtime::real(), root.path(), small_segments()).expect_err("in use");
    assert!(matches!(error, DiskStoreError::Locked(_)));
    assert!(error.to_string().contains(root.path().to_str().expect("a name")), "{error}");
    store.close().await.expect("closed");
    open(&Runtime::real(), root.path(), small_segments()).expect("opened again");
    let refused = store.write(conformance::chunk_id(1, 0, 1), Bytes::from_static(b"late"), None).await;
    assert!(matches!(refused, Err(SiteError::Unavailable(_))), "{refused:?}");
}

#[tokio::test]
async fn a_clean_stop_leaves_no_chunk_to_scan() {
    let root = tempfile::tempdir().expect("a directory");
    let store = open(&Runtime::real(), root.path(), small_segments()).expect("opened");
    for number in 0..100 {
        write(&store, number, 3000).await;
    }
    store.close().await.expect("closed");
    let directory = store.shared.directory.clone();
    let open_files = OpenFiles::new(4);
    let recovered = recovery::recover(&RealFileSystem, &directory, &open_files, 50_000).expect("read");
    // The ends of segments are read; none of them is as long as a record.
    assert!(recovered.scanned_bytes < Form::Coarse.record_len(3000), "{}", recovered.scanned_bytes);
    assert_eq!(recovered.state.index.len(), 100);
    std::fs::remove_file(snapshot::path(&directory)).expect("removed");
    let recovered = recovery::recover(&RealFileSystem, &directory, &open_files, 50_000).expect("read");
    assert!(recovered.scanned_bytes > 300_000);
    assert_eq!(recovered.state.index.len(), 100);
}

#[tokio::test]
async fn a_segment_of_a_newer_format_is_refused() {
    let root = tempfile::tempdir().expect("a directory");
    let store = open(&Runtime::real(), root.path(), small_segments()).expect("opened");
    write(&store, 1, 100).await;
    let path = store.shared.state.read().segments.values().next().expect("one").segment.path.clone();
    drop(store);
    let mut bytes = std::fs::read(&path).expect("read");
    bytes[8] = record::FORMAT_VERSION + 1;
    let crc = striate_codec::crc32c(&bytes[..36]);
    bytes[36..40].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&path, bytes).expect("written");
    let error = open(&Runtime::real(), root.path(), small_segments()).expect_err("too new");
    assert!(matches!(error, DiskStoreError::NewerFormat { found: 3, .. }), "{error}");
}

#[tokio::test]
async fn a_removed_directory_makes_the_store_suspect_before_anything_is_acknowledged() {
    let root = tempfile::tempdir().expect("a directory");
    let store = open(&Runtime::real(), root.path(), small_segments()).expect("opened");
    write(&store, 1, 100).await;
    std::fs::remove_dir_all(root.path().join(".striate")).expect("removed");
    let refused = store.write(conformance::chunk_id(2, 0, 1), Bytes::from_static(b"lost"), None).await;
    assert!(matches!(refused, Err(SiteError::Suspect(_))), "{refused:?}");
    assert!(store.status().suspect.expect("a reason").contains("vanished"));
}

/// `rm -rf` reads the names of a directory, removes them, then the directory. A new name in between stops it.
#[tokio::test]
async fn a_directory_that_is_being_wiped_gets_no_new_names_even_while_nobody_writes() {
    for step in ["compaction", "checkpoint", "write"] {
        let root = tempfile::tempdir().expect("a directory");
        let store = open(&Runtime::real(), root.path(), small_segments()).expect("opened");
        if step != "write" {
            for number in 1..40 {
                write(&store, number, 3000).await;
            }
            let deleted: Vec<_> = (1..30).map(|number| conformance::chunk_id(number, 0, 1)).collect();
            store.delete(&deleted, FencingEpoch(1)).await.expect("deleted");
        }
        let chunks = root.path().join(".striate/chunks");
        let names =
            || std::fs::read_dir(&chunks).expect("listed").map(|entry| entry.expect("an entry").path());
        let listed: Vec<_> = names().collect();
        std::fs::remove_file(chunks.join("lock")).expect("removed");
        match step {
            "compaction" => assert_eq!(store.compact_step(), CompactionStep::Idle),
            "checkpoint" => store.checkpoint().expect("nothing to do"),
            _ => drop(store.write(conformance::chunk_id(2, 0, 1), Bytes::from_static(b"lost"), None).await),
        }
        assert!(names().all(|name| listed.contains(&name)), "{step}: a name was added to {listed:?}");
        assert!(store.status().suspect.expect("a reason").contains("vanished"), "{step}");
    }
}

/// Readers run while chunks are deleted and segments compacted: kept chunks stay readable,
/// and their space is not wasted.
#[tokio::test(flavor = "multi_thread")]
async fn reads_go_on_while_segments_are_compacted_away() {
    let root = tempfile::tempdir().expect("a directory");
    let runtime = Runtime::real();
    let store = Arc::new(open(&runtime, root.path(), small_segments()).expect("opened"));
    for number in 0..400 {
        write(&store, number, 3000).await;
    }
    let reading = store.clone();
    let reader = runtime.spawn(async move {
        for i in 0..4000 {
            let number = i * 7 % 40 * 10;
            let read = reading.read(whole(number, 3000)).await;
            assert_eq!(read, Ok(conformance::payload(number, 3000)), "chunk {number}");
        }
    });
    for from in 0..10 {
        let gone: Vec<_> = (from * 40..from * 40 + 40).filter(|number| number % 10 != 0).collect();
        let gone: Vec<_> = gone.into_iter().map(|number| conformance::chunk_id(number, 0, 1)).collect();
        store.delete(&gone, FencingEpoch(1)).await.expect("deleted");
        let compacting = store.clone();
        runtime.run_blocking(move || while compacting.compact_step() == CompactionStep::Progress {}).await;
    }
    reader.await.expect("every read succeeded");
    let status = store.status();
    assert_eq!(status.chunks, 40);
    assert!(status.disk_bytes < 2 * status.payload_bytes, "{} bytes on disk", status.disk_bytes);
    let page = store.list(None, usize::MAX).await.expect("a list");
    for info in page.chunks {
        assert_eq!(store.verify(info.chunk).await, Ok(info));
    }
}

#[tokio::test]
async fn compaction_leaves_a_damaged_chunk_where_it_is() {
    let runtime = Runtime::deterministic(1, Duration::ZERO);
    let mut subject = OnDisk::new(&runtime, small_segments(), true);
    subject.open().await;
    let store = subject.store.clone().expect("open");
    for number in 0..40 {
        write(&store, number, 3000).await;
    }
    subject.damage(conformance::chunk_id(3, 0, 1)).await;
    let gone: Vec<_> = (4..40).map(|number| conformance::chunk_id(number, 0, 1)).collect();
    store.delete(&gone, FencingEpoch(1)).await.expect("deleted");
    while store.compact_step() == CompactionStep::Progress {}
    assert!(matches!(store.read(whole(3, 3000)).await, Err(SiteError::Corrupt { .. })), "not forgotten");
    for number in 0..3 {
        assert_eq!(store.read(whole(number, 3000)).await, Ok(conformance::payload(number, 3000)));
    }
    store.delete(&[conformance::chunk_id(3, 0, 1)], FencingEpoch(1)).await.expect("deleted");
    while store.compact_step() == CompactionStep::Progress {}
    assert!(store.status().disk_bytes < 15_000, "then its segment goes: {}", store.status().disk_bytes);
}

/// Returns bytes that begin `skip` bytes behind a page boundary in memory.
fn at_page(len: usize, skip: usize) -> Bytes {
    let bytes = conformance::payload(len as u64, len);
    let mut room = vec![0; len + 2 * filesystem::DIRECT_ALIGNMENT];
    let start = room.as_ptr().align_offset(filesystem::DIRECT_ALIGNMENT) + skip;
    room[start..start + len].copy_from_slice(&bytes);
    Bytes::from(room).slice(start..start + len)
}

#[tokio::test(flavor = "multi_thread")]
async fn large_chunks_lie_at_pages_and_read_back_with_and_without_a_snapshot() {
    let runtime = Runtime::real();
    for (closes, options) in [true, false].into_iter().flat_map(|closes| forms().map(|o| (closes, o))) {
        let mut disk = OnDisk::new(&runtime, options, closes);
        let lens = [1 << 20, 300_001, 100, (1 << 20) + 4095, 262_144, 5000, 786_432];
        let payloads: Vec<Bytes> = lens.iter().flat_map(|&len| [at_page(len, 0), at_page(len, 8)]).collect();
        let id = |number: usize| conformance::chunk_id(number as u64, 0, 1);
        let store = disk.open().await;
        let writes = payloads.iter().enumerate();
        let writes = writes.map(|(number, bytes)| store.write(id(number), bytes.clone(), None));
        futures::future::try_join_all(writes).await.expect("written");
        for _ in 0..2 {
            let store = disk.open().await;
            for (number, bytes) in payloads.iter().enumerate() {
                let range = ChunkRange { chunk: id(number), offset: 0, len: bytes.len() as u32 };
                assert_eq!(store.read(range).await.as_ref(), Ok(bytes), "chunk {number}");
                store.verify(id(number)).await.expect("intact on the medium");
            }
        }
        let status = store.status();
        let payload_bytes: usize = payloads.iter().map(Bytes::len).sum();
        let most = payload_bytes / 1000 * 1001 + payloads.len() * 2 * filesystem::DIRECT_ALIGNMENT;
        assert!(status.disk_bytes <= most as u64, "gaps are at most two pages for each chunk: {status:?}");
    }
}

/// A hung disk returns no error; it just does not reply.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_hangs_is_suspect_until_it_goes_on() {
    let runtime = Runtime::real();
    for (hung_after, is_hung) in [(Duration::ZERO, true), (DiskStoreOptions::default().hung_after, false)] {
        let fs = SimulatedFileSystem::new(1, 1 << 30);
        let options = DiskStoreOptions { hung_after, reserve_bytes: Some(0), ..DiskStoreOptions::default() };
        let store = DiskStore::open(&runtime, Arc::new(fs.clone()), Path::new("/disk"), options);
        let store = Arc::new(store.expect("opened"));
        let mut hang = fs.hold_next_sync();
        let writing = store.clone();
        let waits = runtime.spawn(async move { write(&writing, 1, 100).await });
        hang.begun().await;
        assert_eq!(store.status().suspect.is_some_and(|reason| reason.contains("hangs")), is_hung);
        let another = store.write(conformance::chunk_id(2, 0, 1), conformance::payload(2, 100), None);
        match another.now_or_never() {
            Some(refused) => assert!(is_hung && matches!(refused, Err(SiteError::Suspect(_))), "{refused:?}"),
            None => assert!(!is_hung, "refused at once"),
        }
        drop(hang);
        waits.await.expect("written");
        store.close().await.expect("closed");
        assert_eq!(store.status().suspect, None);
    }
}
