//! Conformance suite for chunk stores, as a library: it runs on the store in memory, the one on disk, and any other.
//!
//! [`run`] checks the rules one by one. [`check_against_model`] runs any sequence of [`Operation`]s against a map and
//! reopens the store in between; property tests draw the sequences. Both panic with the rule that was broken.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use striate_codec::crc32c;
use striate_core::{ChunkId, ChunkRange, FencingEpoch, GRANULE_LEN, Generation, SMALL_GRANULE_LEN, StripeId};

use crate::api::SiteError;
use crate::granule;
use crate::store::{ChunkInfo, ChunkStore, HeldResources};

/// A place for one store, empty at first.
#[async_trait]
pub trait StoreUnderTest: Send {
    /// Opens the store; if it is already open, closes it first. A durable store must then
    /// hold everything it acknowledged.
    async fn open(&mut self) -> Arc<dyn ChunkStore>;

    /// Damages the first byte of a stored chunk's payload on the medium.
    async fn damage(&mut self, chunk: ChunkId);
}

/// One step of [`check_against_model`]. Chunks come from a small set, so that steps collide.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Writes a chunk of the given length, with the content its name determines or with other bytes.
    Write {
        /// Number of the chunk.
        chunk: u8,
        /// Length of the payload in bytes.
        len: u32,
        /// Whether to write other bytes than the name determines.
        other_bytes: bool,
        /// Passes the checksums of granules of this length in bytes.
        with_crcs: Option<usize>,
    },
    /// Reads a range, which may extend past the end.
    Read {
        /// Number of the chunk.
        chunk: u8,
        /// First byte.
        offset: u32,
        /// Number of bytes.
        len: u32,
    },
    /// Deletes chunks.
    Delete {
        /// Numbers of the chunks.
        chunks: Vec<u8>,
        /// The executor's epoch.
        epoch: u64,
    },
    /// Verifies a chunk.
    Verify {
        /// Number of the chunk.
        chunk: u8,
    },
    /// Closes and reopens the store.
    Reopen,
}

/// Returns a chunk's name from three numbers.
pub fn chunk_id(stripe: u64, index: u8, generation: u32) -> ChunkId {
    ChunkId { stripe: StripeId::new(7, stripe), index, generation: Generation(generation) }
}

/// Returns `len` incompressible bytes that `seed` determines.
pub fn payload(seed: u64, len: usize) -> Bytes {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

fn range(chunk: ChunkId, offset: usize, len: usize) -> ChunkRange {
    ChunkRange { chunk, offset: offset as u32, len: len as u32 }
}

/// Reads with `read` and `try_read`, and checks that they agree.
async fn read(store: &dyn ChunkStore, range: ChunkRange) -> Result<Bytes, SiteError> {
    let result = store.read(range).await;
    if let Some(quick) = store.try_read(range) {
        assert_eq!(quick, result, "try_read and read of {range:?} agree");
    }
    result
}

/// Checks every rule, each on a new store.
pub async fn run<F: FnMut() -> Box<dyn StoreUnderTest>>(mut new: F) {
    ranges_over_granule_borders(&mut *new()).await;
    chunks_in_pieces(&mut *new()).await;
    names_are_immutable(&mut *new()).await;
    bad_requests_are_refused(&mut *new()).await;
    deletes_and_fencing(&mut *new()).await;
    lists_in_order_by_pages(&mut *new()).await;
    damage_is_found(&mut *new()).await;
    status_counts(&mut *new()).await;
}

/// A chunk written in pieces equals the one written whole, and a dropped draft leaves nothing.
async fn chunks_in_pieces(place: &mut dyn StoreUnderTest) {
    let store = place.open().await;
    for (number, piece_len) in [(1u64, 1usize), (2, 4_000), (3, 4_092), (4, 70_000), (5, 200_000)] {
        let (chunk, bytes) = (chunk_id(number, 0, 1), payload(number, 150_001));
        let Some(mut dropped) = store.draft(chunk, bytes.len() as u32) else { return };
        dropped.append(&bytes[..piece_len.min(bytes.len())]);
        drop(dropped);
        assert_eq!(store.verify(chunk).await, Err(SiteError::Missing(chunk)));
        let mut draft = store.draft(chunk, bytes.len() as u32).expect("as before");
        bytes.chunks(piece_len).for_each(|piece| draft.append(piece));
        draft.store(HeldResources::default()).await.expect("stored");
        assert_eq!(store.verify(chunk).await.map(|info| info.crc32c), Ok(crc32c(&bytes)));
        assert_eq!(read(&*store, range(chunk, 3, 140_000)).await, Ok(bytes.slice(3..140_003)));
        store.write(chunk, bytes, None).await.expect("it is the same chunk");
    }
    let store = place.open().await;
    assert_eq!(read(&*store, range(chunk_id(2, 0, 1), 0, 150_001)).await, Ok(payload(2, 150_001)));
}

async fn ranges_over_granule_borders(subject: &mut dyn StoreUnderTest) {
    let mut store = subject.open().await;
    let lens = [1, 511, 4096, GRANULE_LEN - 1, GRANULE_LEN, GRANULE_LEN + 1, 3 * GRANULE_LEN + 17];
    for (i, len) in lens.into_iter().enumerate() {
        let bytes = payload(i as u64, len);
        let crcs = [None, Some(GRANULE_LEN), Some(SMALL_GRANULE_LEN)][i % 3];
        let crcs = crcs.map(|granule_len| granule::granule_crcs(&bytes, granule_len));
        store.write(chunk_id(i as u64, i as u8, 1), bytes, crcs).await.expect("a write succeeds");
    }
    for reopened in [false, true] {
        if reopened {
            store = subject.open().await;
        }
        for (i, len) in lens.into_iter().enumerate() {
            let (chunk, bytes) = (chunk_id(i as u64, i as u8, 1), payload(i as u64, len));
            for offset in [0, 1, len / 2, GRANULE_LEN - 1, GRANULE_LEN, GRANULE_LEN + 1, len - 1, len] {
                for count in [0, 1, 2, 100, GRANULE_LEN, GRANULE_LEN + 2, len.saturating_sub(offset)] {
                    let result = read(&*store, range(chunk, offset, count)).await;
                    if offset + count <= len {
                        assert_eq!(result.expect("in range"), bytes.slice(offset..offset + count));
                    } else {
                        assert!(matches!(result, Err(SiteError::BadRequest(_))), "past the end: {result:?}");
                    }
                }
            }
            let info = ChunkInfo { chunk, len: len as u32, crc32c: crc32c(&bytes) };
            assert_eq!(store.verify(chunk).await, Ok(info));
        }
    }
}

async fn names_are_immutable(subject: &mut dyn StoreUnderTest) {
    let store = subject.open().await;
    let chunk = chunk_id(1, 2, 3);
    let bytes = payload(1, 100_000);
    for _ in 0..2 {
        store.write(chunk, bytes.clone(), None).await.expect("the same name with the same bytes");
    }
    let refused = store.write(chunk, payload(2, 100_000), None).await;
    assert!(matches!(refused, Err(SiteError::BadRequest(_))), "other bytes: {refused:?}");
    let refused = store.write(chunk, bytes.slice(1..), None).await;
    assert!(matches!(refused, Err(SiteError::BadRequest(_))), "another length: {refused:?}");
    let store = subject.open().await;
    let refused = store.write(chunk, payload(2, 100_000), None).await;
    assert!(matches!(refused, Err(SiteError::BadRequest(_))), "after a reopen: {refused:?}");
    assert_eq!(read(&*store, range(chunk, 0, 100_000)).await, Ok(bytes));
    assert_eq!(store.status().chunks, 1);
    // Another generation, index or stripe is another chunk.
    for other in [chunk_id(1, 2, 4), chunk_id(1, 3, 3), chunk_id(2, 2, 3)] {
        assert_eq!(read(&*store, range(other, 0, 1)).await, Err(SiteError::Missing(other)));
        store.write(other, payload(9, 10), None).await.expect("another name");
    }
}

async fn bad_requests_are_refused(subject: &mut dyn StoreUnderTest) {
    let store = subject.open().await;
    let chunk = chunk_id(1, 1, 1);
    let refused = store.write(chunk, Bytes::new(), None).await;
    assert!(matches!(refused, Err(SiteError::BadRequest(_))), "an empty payload: {refused:?}");
    let refused = store.write(chunk, payload(1, 10), Some(Arc::new([1, 2]))).await;
    assert!(matches!(refused, Err(SiteError::BadRequest(_))), "too many checksums: {refused:?}");
    assert_eq!(read(&*store, range(chunk, 0, 1)).await, Err(SiteError::Missing(chunk)));
    assert_eq!(store.verify(chunk).await, Err(SiteError::Missing(chunk)));
    store.write(chunk, payload(1, 10), None).await.expect("a write");
    let huge = ChunkRange { chunk, offset: u32::MAX, len: u32::MAX };
    assert!(matches!(read(&*store, huge).await, Err(SiteError::BadRequest(_))));
}

async fn deletes_and_fencing(subject: &mut dyn StoreUnderTest) {
    let store = subject.open().await;
    let (a, b, c) = (chunk_id(1, 0, 1), chunk_id(1, 0, 2), chunk_id(2, 0, 1));
    for (i, chunk) in [a, b, c].into_iter().enumerate() {
        store.write(chunk, payload(i as u64, 1000), None).await.expect("a write");
    }
    store.delete(&[a, chunk_id(9, 9, 9)], FencingEpoch(5)).await.expect("missing chunks are no error");
    assert_eq!(read(&*store, range(a, 0, 1)).await, Err(SiteError::Missing(a)));
    assert!(read(&*store, range(b, 0, 1)).await.is_ok(), "another generation stays");
    let fenced = SiteError::Fenced { given: FencingEpoch(4), seen: FencingEpoch(5) };
    assert_eq!(store.delete(&[b], FencingEpoch(4)).await, Err(fenced.clone()));
    store.delete(&[], FencingEpoch(5)).await.expect("the same epoch again");

    let store = subject.open().await;
    assert_eq!(read(&*store, range(a, 0, 1)).await, Err(SiteError::Missing(a)), "deleted stays deleted");
    assert_eq!(store.delete(&[b], FencingEpoch(4)).await, Err(fenced), "the epoch is kept");
    store.delete(&[], FencingEpoch(8)).await.expect("an epoch without chunks counts");
    let store = subject.open().await;
    let fenced = SiteError::Fenced { given: FencingEpoch(7), seen: FencingEpoch(8) };
    assert_eq!(store.delete(&[b], FencingEpoch(7)).await, Err(fenced.clone()));
    assert!(read(&*store, range(b, 0, 1000)).await.is_ok(), "a fenced delete removes nothing");
    store.delete(&[c], FencingEpoch::NONE).await.expect("one's own chunks can always be removed");
    assert_eq!(read(&*store, range(c, 0, 1)).await, Err(SiteError::Missing(c)));
    assert_eq!(
        store.delete(&[b], FencingEpoch(7)).await,
        Err(fenced),
        "which fences nobody and frees nobody"
    );

    store.write(a, payload(0, 1000), None).await.expect("a deleted name may be written again");
    let store = subject.open().await;
    assert_eq!(read(&*store, range(a, 0, 1000)).await, Ok(payload(0, 1000)));
}

async fn lists_in_order_by_pages(subject: &mut dyn StoreUnderTest) {
    let store = subject.open().await;
    assert_eq!(store.list(None, 10).await.expect("an empty list").chunks, []);
    let mut names: Vec<_> = (0..40).map(|i| chunk_id(i * 37 % 11, (i % 3) as u8, i as u32)).collect();
    for chunk in &names {
        store.write(*chunk, payload(1, 10), None).await.expect("a write");
    }
    names.sort();
    for store in [store, subject.open().await] {
        for limit in [1, 7, 40, 100] {
            let (mut seen, mut from) = (Vec::new(), None);
            loop {
                let page = store.list(from, limit).await.expect("a page");
                assert!(page.chunks.len() <= limit);
                seen.extend(page.chunks.iter().map(|info| info.chunk));
                from = page.next;
                if from.is_none() {
                    break;
                }
            }
            assert_eq!(seen, names, "pages of {limit}");
        }
        let page = store.list(Some(names[5]), 2).await.expect("a page");
        assert_eq!(page.chunks[0].chunk, names[5], "a page starts at its first name");
        assert_eq!(page.chunks[0].crc32c, crc32c(&payload(1, 10)));
    }
}

async fn damage_is_found(subject: &mut dyn StoreUnderTest) {
    let store = subject.open().await;
    let (bad, good) = (chunk_id(1, 1, 1), chunk_id(1, 2, 1));
    let len = 2 * GRANULE_LEN + 5;
    for chunk in [bad, good] {
        store.write(chunk, payload(3, len), None).await.expect("a write");
    }
    subject.damage(bad).await;
    let result = read(&*store, range(bad, 0, 1)).await;
    assert!(matches!(result, Err(SiteError::Corrupt { chunk, .. }) if chunk == bad), "{result:?}");
    let result = store.verify(bad).await;
    assert!(matches!(result, Err(SiteError::Corrupt { chunk, .. }) if chunk == bad), "{result:?}");
    let tail = read(&*store, range(bad, GRANULE_LEN + 1, GRANULE_LEN)).await;
    assert_eq!(tail, Ok(payload(3, len).slice(GRANULE_LEN + 1..2 * GRANULE_LEN + 1)), "other granules");
    assert!(read(&*store, range(good, 0, len)).await.is_ok());
    assert!(store.verify(good).await.is_ok());
    store.delete(&[bad], FencingEpoch(1)).await.expect("a damaged chunk can be deleted");
}

async fn status_counts(subject: &mut dyn StoreUnderTest) {
    let store = subject.open().await;
    assert_eq!((store.status().chunks, store.status().payload_bytes), (0, 0));
    for i in 0..10 {
        store.write(chunk_id(i, 0, 1), payload(i, 1000), None).await.expect("a write");
    }
    store.delete(&[chunk_id(0, 0, 1), chunk_id(1, 0, 1)], FencingEpoch(1)).await.expect("a delete");
    for store in [store, subject.open().await] {
        let status = store.status();
        assert_eq!((status.chunks, status.payload_bytes), (8, 8000));
        assert!(status.disk_bytes >= 8000);
        assert!(status.capacity_bytes > 0 && status.free_bytes <= status.capacity_bytes);
        assert_eq!(status.suspect, None);
    }
}

/// The contents that a store should have.
#[derive(Debug, Default)]
struct Model {
    chunks: BTreeMap<ChunkId, Bytes>,
    epoch: u64,
}

/// Runs `operations` on a new store and on a map, and compares every result, and all contents at the end.
pub async fn check_against_model(subject: &mut dyn StoreUnderTest, operations: &[Operation]) {
    let mut store = subject.open().await;
    let mut model = Model::default();
    for operation in operations {
        if matches!(operation, Operation::Reopen) {
            store = subject.open().await;
        } else {
            model.apply(&*store, operation).await;
        }
    }
    model.compare(&*store).await;
    model.compare(&*subject.open().await).await;
}

impl Model {
    async fn apply(&mut self, store: &dyn ChunkStore, operation: &Operation) {
        let name = |number: u8| chunk_id(u64::from(number / 4), number % 4, 1);
        match operation {
            Operation::Write { chunk, len, other_bytes, with_crcs } => {
                let bytes = payload(u64::from(*chunk) << 1 | u64::from(*other_bytes), *len as usize);
                let crcs = with_crcs.map(|granule_len| granule::granule_crcs(&bytes, granule_len));
                let result = store.write(name(*chunk), bytes.clone(), crcs).await;
                let allowed = self.chunks.get(&name(*chunk)).is_none_or(|existing| *existing == bytes);
                match &result {
                    Ok(()) => assert!(allowed && !bytes.is_empty(), "{operation:?} had to be refused"),
                    Err(SiteError::BadRequest(_)) => assert!(!allowed || bytes.is_empty(), "{operation:?}"),
                    Err(error) => panic!("{operation:?}: {error}"),
                }
                if result.is_ok() {
                    self.chunks.insert(name(*chunk), bytes);
                }
            }
            Operation::Read { chunk, offset, len } => {
                let result =
                    read(store, ChunkRange { chunk: name(*chunk), offset: *offset, len: *len }).await;
                let (start, end) = (*offset as usize, *offset as usize + *len as usize);
                match self.chunks.get(&name(*chunk)) {
                    None => assert_eq!(result, Err(SiteError::Missing(name(*chunk)))),
                    Some(bytes) if end <= bytes.len() => assert_eq!(result, Ok(bytes.slice(start..end))),
                    Some(_) => assert!(matches!(result, Err(SiteError::BadRequest(_))), "{result:?}"),
                }
            }
            Operation::Delete { chunks, epoch } => {
                let names: Vec<_> = chunks.iter().map(|chunk| name(*chunk)).collect();
                self.delete(store, &names, *epoch).await;
            }
            Operation::Verify { chunk } => {
                let result = store.verify(name(*chunk)).await;
                match self.chunks.get(&name(*chunk)) {
                    None => assert_eq!(result, Err(SiteError::Missing(name(*chunk)))),
                    Some(bytes) => assert_eq!(result.expect("an intact chunk").crc32c, crc32c(bytes)),
                }
            }
            Operation::Reopen => {}
        }
    }

    /// Deletes chunks, which the store must refuse if it has seen a higher epoch.
    async fn delete(&mut self, store: &dyn ChunkStore, names: &[ChunkId], epoch: u64) {
        let result = store.delete(names, FencingEpoch(epoch)).await;
        if (1..self.epoch).contains(&epoch) {
            assert!(matches!(result, Err(SiteError::Fenced { .. })), "{result:?}");
            return;
        }
        result.expect("a delete succeeds");
        self.epoch = self.epoch.max(epoch);
        for name in names {
            self.chunks.remove(name);
        }
    }

    async fn compare(&self, store: &dyn ChunkStore) {
        let page = store.list(None, usize::MAX).await.expect("a list");
        let listed: Vec<_> = page.chunks.iter().map(|info| (info.chunk, info.crc32c)).collect();
        let expected: Vec<_> = self.chunks.iter().map(|(chunk, bytes)| (*chunk, crc32c(bytes))).collect();
        assert_eq!(listed, expected);
        for (chunk, bytes) in &self.chunks {
            assert_eq!(read(store, range(*chunk, 0, bytes.len())).await.as_ref(), Ok(bytes));
        }
        let status = store.status();
        assert_eq!(status.chunks, self.chunks.len() as u64);
        assert_eq!(status.payload_bytes, self.chunks.values().map(|bytes| bytes.len() as u64).sum::<u64>());
    }
}
