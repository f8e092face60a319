//! Ranges around losses: reads fetch the same columns of other chunks, and no more of them than the code needs.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use striate_client::{ClientError, ClientOptions, ReadRange};
use striate_core::{ChunkId, ChunkRange, FencingEpoch, GRANULE_LEN};
use striate_runtime::Runtime;
use striate_site::{ChunkInfo, ChunkPage, ChunkStore, MemoryStore, SiteError, StoreStatus};

use crate::cluster::{BUCKET, Cluster, in_virtual_time, noise, with_policy};

const MIB: usize = 1 << 20;
/// Bytes that a site reads and verifies at once.
const GRANULE: usize = GRANULE_LEN;

/// A store that records its reads.
#[derive(Debug)]
struct RecordingStore {
    inner: MemoryStore,
    reads: Mutex<Vec<ChunkRange>>,
}

#[async_trait::async_trait]
impl ChunkStore for RecordingStore {
    async fn write(
        &self,
        chunk: ChunkId,
        payload: Bytes,
        granule_crcs: Option<Arc<[u32]>>,
    ) -> Result<(), SiteError> {
        self.inner.write(chunk, payload, granule_crcs).await
    }

    async fn read(&self, range: ChunkRange) -> Result<Bytes, SiteError> {
        self.reads.lock().push(range);
        self.inner.read(range).await
    }

    fn try_read(&self, _: ChunkRange) -> Option<Result<Bytes, SiteError>> {
        None
    }

    async fn delete(&self, chunks: &[ChunkId], epoch: FencingEpoch) -> Result<(), SiteError> {
        self.inner.delete(chunks, epoch).await
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        self.inner.list(from, limit).await
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        self.inner.verify(chunk).await
    }

    fn status(&self) -> StoreStatus {
        self.inner.status()
    }
}

/// A store with this read policy and one object of one block.
struct OneBlock {
    cluster: Cluster,
    stores: Vec<Arc<RecordingStore>>,
    bytes: Vec<u8>,
}

impl OneBlock {
    async fn open(runtime: Runtime, profile: &str, policy: &str, len: usize) -> Self {
        let options = with_policy(policy);
        let profile: striate_core::Profile = profile.parse().unwrap();
        let sites = profile.code.chunk_count();
        let mut options = ClientOptions { profile, block_len: 16 << 20, ..options };
        options.stripes.in_flight_bytes = 256 << 20;
        let store = |_| RecordingStore { inner: MemoryStore::new(1 << 40), reads: Mutex::default() };
        let stores: Vec<Arc<RecordingStore>> = (0..sites).map(|site| Arc::new(store(site))).collect();
        let meta = Arc::new(striate_meta::MemoryStore::new(runtime.clone()));
        let on = stores.iter().map(|store| store.clone() as Arc<dyn ChunkStore>).collect();
        let cluster = Cluster::open_on(runtime, meta, options, on).await;
        let bytes = noise(len, 3);
        cluster.put("object", &bytes).await.unwrap();
        Self { cluster, stores, bytes }
    }

    /// Returns the store that holds a chunk of the block, and the chunk's name.
    async fn holder(&self, index: usize) -> (&RecordingStore, ChunkId) {
        for store in &self.stores {
            let page = store.inner.list(None, 10).await.unwrap();
            if let Some(chunk) = page.chunks.iter().find(|chunk| usize::from(chunk.chunk.index) == index) {
                return (store, chunk.chunk);
            }
        }
        panic!("no store holds chunk {index}");
    }

    async fn lose(&self, index: usize) {
        let (store, chunk) = self.holder(index).await;
        assert!(store.inner.lose(chunk));
    }

    /// Reads a range, checks its bytes, and returns the sites' reads for it.
    async fn read(&self, range: std::ops::Range<usize>) -> Vec<ChunkRange> {
        self.stores.iter().for_each(|store| store.reads.lock().clear());
        let wanted = ReadRange::Bytes { first: range.start as u64, last: Some(range.end as u64 - 1) };
        let read = self.cluster.read_range(BUCKET, "object", wanted).await.unwrap();
        assert_eq!(read, self.bytes[range]);
        self.stores.iter().flat_map(|store| store.reads.lock().clone()).collect()
    }
}

/// Returns the bytes that sites move for some reads: whole granules.
fn moved(reads: &[ChunkRange]) -> usize {
    let granules = |range: &ChunkRange| {
        let (start, end) = (range.offset as usize, (range.offset + range.len) as usize);
        end.div_ceil(GRANULE) - start / GRANULE
    };
    reads.iter().map(granules).sum::<usize>() * GRANULE
}

/// Reads 4 KiB of a block of 4 MiB while the site of their chunk is away: at most k granules are moved, also by
/// policies that plan, and one granule without a loss.
#[test]
fn a_small_range_around_a_lost_site_moves_one_granule_of_k_chunks() {
    for (seed, policy) in (0..).zip([
        "normal",
        "adaptive",
        "cost-model",
        "random",
        "late-binding(1)",
        "least-loaded",
        "published",
    ]) {
        in_virtual_time(seed, async |runtime| {
            let block = OneBlock::open(runtime, "rs(4,2)", policy, 4 * MIB).await;
            let range = MIB + 300_000..MIB + 304_096;
            let whole = block.read(range.clone()).await;
            assert!(moved(&whole) <= 2 * GRANULE && whole.len() == 1, "{policy}: {whole:?}");
            block.lose(1).await;
            let reads = block.read(range).await;
            let around: Vec<_> = reads.iter().filter(|read| read.chunk.index != 1).collect();
            assert_eq!(around.len(), 4, "{policy}: {reads:?}");
            assert!(
                around.iter().all(|read| (read.offset, read.len) == (300_000, 4_096)),
                "{policy}: {reads:?}"
            );
            let of_others: Vec<ChunkRange> = around.into_iter().copied().collect();
            assert!(moved(&of_others) <= 4 * GRANULE, "{policy}: {reads:?}");
        });
    }
}

/// An LRC computes a lost chunk's columns from its local group.
#[test]
fn a_range_of_a_local_code_is_read_from_its_group() {
    in_virtual_time(21, async |runtime| {
        let block = OneBlock::open(runtime, "lrc(12,3,2)", "adaptive", 12 * MIB).await;
        block.lose(5).await;
        let reads = block.read(5 * MIB + 10..5 * MIB + 110).await;
        let mut around: Vec<u8> =
            reads.iter().map(|read| read.chunk.index).filter(|&index| index != 5).collect();
        around.sort_unstable();
        assert_eq!(around, [4, 6, 7, 13], "the group of chunks 4 to 7, and its parity");
        // Two losses in a group need its equation and a global one.
        block.lose(6).await;
        block.read(5 * MIB + 10..6 * MIB + 110).await;
    });
}

/// Includes a code with three global parities. The losses come in the order that hurts most.
#[test]
fn ranges_of_all_codes_are_read_around_as_many_losses_as_they_survive() {
    for (seed, profile) in (0..).zip(["rs(4,2)", "rs(2,1)", "lrc(12,3,2)", "lrc(4,2,3)", "replica(3)"]) {
        in_virtual_time(seed, async |runtime| {
            let block = OneBlock::open(runtime, profile, "adaptive", 1_000_003).await;
            let code: striate_codec::Code = profile.parse().unwrap();
            for lost in 0..code.tolerance() {
                block.lose(lost).await;
                for range in [0..1, 999_990..1_000_003, 200_000..700_001, 0..1_000_003, 499_999..500_002] {
                    block.read(range).await;
                }
            }
        });
    }
}

/// A range from the middle of the first chunk to the middle of the last, with the first one lost. The pieces of the
/// stripe share their requests, so that no byte of a chunk is requested twice.
#[test]
fn pieces_of_a_stripe_share_what_arrives() {
    in_virtual_time(22, async |runtime| {
        let block = OneBlock::open(runtime, "rs(4,2)", "normal", 4 * MIB).await;
        block.lose(0).await;
        let reads = block.read(MIB / 2..3 * MIB + MIB / 2).await;
        for (number, one) in reads.iter().enumerate() {
            for other in reads[number + 1..].iter().filter(|other| other.chunk == one.chunk) {
                let overlap =
                    one.offset.max(other.offset)..(one.offset + one.len).min(other.offset + other.len);
                assert!(overlap.is_empty(), "asked for twice: {one:?} and {other:?}");
            }
        }
        let bytes: usize = reads.iter().map(|read| read.len as usize).sum();
        // Wasted: half of the first. Read: two whole ones, half of the fourth, its other half, and half of a parity.
        assert_eq!(bytes, 4 * MIB, "{reads:?}");
    });
}

/// A parity that passes its own checksums but belongs to another block: the bytes decoded from it do not match the
/// block's checksum, and the block is read from its data chunks. If these are lost too, the read fails and never
/// returns wrong bytes.
#[test]
fn a_block_that_decodes_to_wrong_bytes_is_read_from_its_data_chunks() {
    for seed in 0..20 {
        in_virtual_time(seed, async |runtime| {
            let block = OneBlock::open(runtime, "rs(4,2)", "random", MIB).await;
            for index in [4, 5] {
                let (store, chunk) = block.holder(index).await;
                let len = block.bytes.len() / 4;
                assert!(store.inner.lose(chunk));
                store.inner.write(chunk, noise(len, 99).into(), None).await.unwrap();
            }
            for _ in 0..5 {
                block.read(0..MIB).await;
            }
            block.lose(2).await;
            let error = block.cluster.read("object").await.unwrap_err();
            assert!(matches!(error, ClientError::Unreadable { .. }), "{error}");
            assert!(error.to_string().contains("do not match their checksum"), "{error}");
        });
    }
}
