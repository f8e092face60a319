//! Every store against a map, with random operations and reopenings.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use proptest::prelude::*;
use striate_core::{ChunkId, Formats, FormatsInForce, GRANULE_LEN, SMALL_GRANULE_LEN};
use striate_runtime::Runtime;
use striate_site::conformance::{Operation, StoreUnderTest, check_against_model};
use striate_site::filesystem::SimulatedFileSystem;
use striate_site::{ChunkStore, DiskStore, DiskStoreOptions, MemoryStore};

struct InMemory(Arc<MemoryStore>);

#[async_trait]
impl StoreUnderTest for InMemory {
    async fn open(&mut self) -> Arc<dyn ChunkStore> {
        self.0.clone()
    }

    async fn damage(&mut self, chunk: ChunkId) {
        assert!(self.0.corrupt(chunk, 0));
    }
}

/// A store on a simulated disk. Each reopening closes it, drops it or loses the snapshot, in turn.
struct OnDisk {
    fs: SimulatedFileSystem,
    store: Option<Arc<DiskStore>>,
    opened: usize,
    /// Number of openings before chunk format 2 is in force.
    old_openings: usize,
}

#[async_trait]
impl StoreUnderTest for OnDisk {
    async fn open(&mut self) -> Arc<dyn ChunkStore> {
        self.opened += 1;
        if let Some(store) = self.store.take() {
            store.close().await.expect("closed");
            if self.opened.is_multiple_of(2) {
                let snapshot = Path::new("/disk/.striate/chunks/index.snapshot");
                self.fs.damage(snapshot, |bytes| bytes.clear());
            }
        }
        let is_old = self.opened <= self.old_openings;
        let options = DiskStoreOptions {
            segment_len: Some(300_000),
            reserve_bytes: Some(0),
            formats: FormatsInForce::new(if is_old { Formats::OLDEST } else { Formats::NEWEST }),
            paged_from: 100_000,
            table_bytes: 2_000,
            ..Default::default()
        };
        let runtime = Runtime::deterministic(self.opened as u64, Duration::ZERO);
        let store = DiskStore::open(&runtime, Arc::new(self.fs.clone()), Path::new("/disk"), options);
        let store = self.store.insert(Arc::new(store.expect("opened")));
        for _ in 0..3 {
            store.compact_step();
        }
        store.clone()
    }

    async fn damage(&mut self, _: ChunkId) {
        unreachable!("the model damages nothing")
    }
}

fn any_operation() -> impl Strategy<Value = Operation> {
    let len = prop_oneof![4 => 0u32..3000, 1 => 60_000u32..200_000];
    let crcs = prop::sample::select(vec![None, Some(GRANULE_LEN), Some(SMALL_GRANULE_LEN)]);
    prop_oneof![
        6 => (0u8..12, len, prop::bool::weighted(0.1), crcs).prop_map(|(chunk, len, other_bytes, with_crcs)| {
            Operation::Write { chunk, len, other_bytes, with_crcs }
        }),
        3 => (0u8..12, 0u32..200_000, 0u32..100_000)
            .prop_map(|(chunk, offset, len)| Operation::Read { chunk, offset, len }),
        2 => (prop::collection::vec(0u8..12, 0..4), 0u64..6)
            .prop_map(|(chunks, epoch)| Operation::Delete { chunks, epoch }),
        1 => (0u8..12).prop_map(|chunk| Operation::Verify { chunk }),
        1 => Just(Operation::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn the_stores_behave_as_a_map(
        operations in prop::collection::vec(any_operation(), 1..60), old_openings in 0usize..4
    ) {
        let mut memory = InMemory(Arc::default());
        check_against_model(&mut memory, &operations).now_or_never().expect("done inline");
        let fs = SimulatedFileSystem::new(1, 1 << 30);
        let mut disk = OnDisk { fs, store: None, opened: 0, old_openings };
        check_against_model(&mut disk, &operations).now_or_never().expect("done inline");
    }
}
