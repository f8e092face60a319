//! The modelled disk: a chunk store that takes virtual time.
//!
//! Requests take as long as the disk's [`Medium`] determines. The real queue in front of it limits how many chunks
//! are served at once.
//!
//! Contents are generated stripes, which need no memory, and written chunks, which are kept in memory. A write is
//! durable when it is acknowledged. A crash loses some of the writes that were not acknowledged, keeps others, and
//! answers no request; durable writes exist after the restart. A hung disk answers no request either, but pending
//! requests may be answered when it resumes.
//!
//! There is no page cache: `try_read` always returns `None`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::{Poll, Waker};

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::SmallRng;
use striate_core::{ChunkId, ChunkRange, FencingEpoch, SiteId};
use striate_runtime::Runtime;
use striate_site::{ChunkInfo, ChunkPage, ChunkStore, MemoryStore, SiteError, StoreStatus};
use striate_virtual_network::{Event, Trace};

use crate::calibration::SiteModel;
use crate::contents::GeneratedStripes;
use crate::medium::Medium;

/// The modelled disk of one site.
#[derive(Debug)]
pub struct ModelledStore {
    runtime: Runtime,
    trace: Trace,
    site: SiteId,
    generated: Arc<GeneratedStripes>,
    kept: MemoryStore,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    medium: Medium,
    /// Decides what survives a crash.
    rng: SmallRng,
    read_bytes: u64,
    /// Generated chunks that were deleted or lost, and their bytes.
    gone: BTreeSet<ChunkId>,
    gone_bytes: u64,
    /// Writes that are not durable yet, by number.
    unsynced: Vec<(u64, ChunkId, Bytes)>,
    next_write: u64,
    /// Number of crashes; an operation that began before the last one is not answered.
    crashes: u64,
    down: bool,
    hung: bool,
    /// Operations that wait for a hung disk to resume.
    waiting: Vec<Waker>,
}

impl ModelledStore {
    /// Creates a disk with its share of `generated`, and room for `capacity_bytes` of written chunks.
    pub fn new(
        runtime: Runtime,
        trace: Trace,
        site: SiteId,
        model: SiteModel,
        generated: Arc<GeneratedStripes>,
        capacity_bytes: u64,
    ) -> Self {
        let state = State {
            medium: Medium::new(model, runtime.rng(), runtime.now()),
            rng: runtime.rng(),
            read_bytes: 0,
            gone: BTreeSet::new(),
            gone_bytes: 0,
            unsynced: Vec::new(),
            next_write: 0,
            crashes: 0,
            down: false,
            hung: false,
            waiting: Vec::new(),
        };
        let kept = MemoryStore::new(capacity_bytes).with_medium(u64::from(site.0));
        Self { runtime, trace, site, generated, kept, state: Mutex::new(state) }
    }

    /// Returns the bytes that reads took from the disk so far: the load of EC-Store Table II.
    pub fn read_bytes(&self) -> u64 {
        self.state.lock().read_bytes
    }

    /// Returns true if the disk has crashed and not restarted.
    pub fn is_down(&self) -> bool {
        self.state.lock().down
    }

    /// Fault: the site dies at this instant. Each write that was not durable may survive or not.
    pub fn crash(&self) {
        self.trace.record(Event::Fault, u64::from(self.site.0), 1);
        let mut state = self.state.lock();
        state.down = true;
        state.crashes += 1;
        state.go_on();
        for (_, chunk, payload) in std::mem::take(&mut state.unsynced) {
            if state.rng.random() {
                // Only a full disk or a clash refuses the write; then it has not survived.
                let _ = self.kept.write(chunk, payload, None).now_or_never();
            }
        }
    }

    /// Restarts the site with what was durable.
    pub fn restart(&self) {
        self.trace.record(Event::Fault, u64::from(self.site.0), 2);
        self.state.lock().down = false;
    }

    /// Fault: the disk answers no requests from now on, while its site still reports its status.
    pub fn hang(&self) {
        self.trace.record(Event::Fault, u64::from(self.site.0), 3);
        self.state.lock().hung = true;
    }

    /// Resumes a hung disk; waiting requests proceed.
    pub fn resume(&self) {
        self.trace.record(Event::Fault, u64::from(self.site.0), 4);
        self.state.lock().go_on();
    }

    async fn until_resumed(&self) {
        std::future::poll_fn(|context| {
            let mut state = self.state.lock();
            if !state.hung {
                return Poll::Ready(());
            }
            if !state.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                state.waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Fault: flips a bit of a written chunk. Returns false if it does not exist.
    pub fn corrupt(&self, chunk: ChunkId) -> bool {
        self.kept.corrupt(chunk, 0)
    }

    /// Fault: a chunk vanishes.
    pub fn lose(&self, chunk: ChunkId) {
        self.kept.lose(chunk);
        self.forget(chunk);
    }

    /// Records that a generated chunk no longer exists.
    fn forget(&self, chunk: ChunkId) {
        let mut state = self.state.lock();
        if self.generated.has(self.site, chunk) && state.gone.insert(chunk) {
            state.gone_bytes += u64::from(self.generated.chunk_len(chunk.stripe).unwrap_or_default());
        }
    }

    /// Serves a request for as long as the model determines; fails if the site has crashed before or meanwhile.
    async fn serve(&self, chunk: ChunkId, bytes: u64, is_first: bool) -> Result<(), SiteError> {
        let (took, crashes) = {
            let mut state = self.state.lock();
            if state.down {
                return Err(crashed());
            }
            (state.medium.service_time(self.runtime.now(), bytes, is_first), state.crashes)
        };
        self.trace.record(Event::Begun, u64::from(self.site.0), chunk.stripe.sequence());
        self.runtime.sleep(took).await;
        self.until_resumed().await;
        if self.state.lock().crashes != crashes {
            return Err(crashed());
        }
        Ok(())
    }

    async fn contents(&self, range: ChunkRange) -> Result<Bytes, SiteError> {
        match self.kept.read(range).await {
            Err(SiteError::Missing(_)) if !self.state.lock().gone.contains(&range.chunk) => {
                self.generated.read(self.site, range)
            }
            kept => kept,
        }
    }

    async fn read_as(&self, range: ChunkRange, is_first: bool) -> Result<Bytes, SiteError> {
        self.serve(range.chunk, u64::from(range.len), is_first).await?;
        let read = self.contents(range).await?;
        self.state.lock().read_bytes += read.len() as u64;
        Ok(read)
    }
}

impl State {
    fn go_on(&mut self) {
        self.hung = false;
        self.waiting.drain(..).for_each(Waker::wake);
    }
}

fn crashed() -> SiteError {
    SiteError::Unavailable("the site has crashed".to_owned())
}

#[async_trait]
impl ChunkStore for ModelledStore {
    async fn write(
        &self,
        chunk: ChunkId,
        payload: Bytes,
        granule_crcs: Option<Arc<[u32]>>,
    ) -> Result<(), SiteError> {
        let number = {
            let mut state = self.state.lock();
            let number = state.next_write;
            state.next_write += 1;
            state.unsynced.push((number, chunk, payload.clone()));
            number
        };
        let served = self.serve(chunk, payload.len() as u64, true).await;
        self.state.lock().unsynced.retain(|(other, ..)| *other != number);
        served?;
        self.kept.write(chunk, payload, granule_crcs).await?;
        self.trace.record(Event::Changed, u64::from(self.site.0), chunk.stripe.sequence());
        Ok(())
    }

    async fn read(&self, range: ChunkRange) -> Result<Bytes, SiteError> {
        self.read_as(range, false).await
    }

    async fn read_first(&self, range: ChunkRange) -> Result<Bytes, SiteError> {
        self.read_as(range, true).await
    }

    fn try_read(&self, _range: ChunkRange) -> Option<Result<Bytes, SiteError>> {
        None
    }

    async fn delete(&self, chunks: &[ChunkId], epoch: FencingEpoch) -> Result<(), SiteError> {
        let Some(first) = chunks.first() else { return self.kept.delete(chunks, epoch).await };
        self.serve(*first, 0, true).await?;
        self.kept.delete(chunks, epoch).await?;
        chunks.iter().for_each(|&chunk| self.forget(chunk));
        self.trace.record(Event::Changed, u64::from(self.site.0), first.stripe.sequence());
        Ok(())
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        let limit = limit.max(1);
        let kept = self.kept.list(from, limit).await?;
        let state = self.state.lock();
        let generated = self.generated.chunks_of(self.site, from);
        let listed = generated.filter(|info| !state.gone.contains(&info.chunk)).take(limit + 1);
        let all: BTreeMap<ChunkId, ChunkInfo> =
            listed.chain(kept.chunks).map(|info| (info.chunk, info)).collect();
        // Each source either has more than a page, or all of its chunks are here.
        let next = [kept.next, all.keys().nth(limit).copied()].into_iter().flatten().min();
        Ok(ChunkPage { chunks: all.into_values().take(limit).collect(), next })
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        let info = match self.kept.verify(chunk).await {
            Err(SiteError::Missing(_)) => {
                let len = self.generated.chunk_len(chunk.stripe).ok_or(SiteError::Missing(chunk))?;
                let range = ChunkRange { chunk, offset: 0, len };
                let bytes = self.contents(range).await?;
                ChunkInfo { chunk, len: range.len, crc32c: striate_codec::crc32c(&bytes) }
            }
            kept => kept?,
        };
        self.serve(chunk, u64::from(info.len), true).await?;
        Ok(info)
    }

    fn status(&self) -> StoreStatus {
        let kept = self.kept.status();
        let (chunks, bytes) = self.generated.stored_at(self.site);
        let (gone, gone_bytes) = {
            let state = self.state.lock();
            (state.gone.len() as u64, state.gone_bytes)
        };
        let bytes = bytes - gone_bytes;
        StoreStatus {
            chunks: kept.chunks + chunks - gone,
            payload_bytes: kept.payload_bytes + bytes,
            disk_bytes: kept.disk_bytes + bytes,
            free_bytes: kept.free_bytes.saturating_sub(bytes),
            ..kept
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use striate_core::{Generation, StripeId};
    use striate_runtime::run_in_virtual_time;
    use striate_site::conformance::{self, StoreUnderTest};

    use super::*;
    use crate::calibration::Calibration;

    fn store(runtime: &Runtime, model: SiteModel, capacity_bytes: u64) -> ModelledStore {
        let stripes = GeneratedStripes::new("none", "replica(1)".parse().unwrap(), 1);
        let trace = Trace::new(runtime.clone());
        ModelledStore::new(runtime.clone(), trace, SiteId(1), model, Arc::new(stripes), capacity_bytes)
    }

    struct Kept(Arc<ModelledStore>);

    #[async_trait]
    impl StoreUnderTest for Kept {
        async fn open(&mut self) -> Arc<dyn ChunkStore> {
            self.0.crash();
            self.0.restart();
            self.0.clone()
        }

        async fn damage(&mut self, chunk: ChunkId) {
            assert!(self.0.corrupt(chunk));
        }
    }

    #[test]
    fn the_modelled_store_conforms_and_loses_nothing_durable_in_a_crash() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let store = || Box::new(Kept(Arc::new(store(&runtime, Calibration::A.site, 1 << 40))));
            conformance::run(|| store() as Box<dyn StoreUnderTest>).await;
        });
    }

    fn chunk(number: u64) -> ChunkId {
        ChunkId { stripe: StripeId::new(1, number), index: 0, generation: Generation(1) }
    }

    #[test]
    fn a_crash_answers_no_unsynced_write_and_loses_some_of_them_whole() {
        let survivors: Vec<u64> = (0..20)
            .map(|seed| {
                run_in_virtual_time(seed, Duration::ZERO, |runtime| async move {
                    let store = Arc::new(store(&runtime, Calibration::D.site, 1 << 40));
                    let writes: Vec<_> = (0..10)
                        .map(|number| {
                            let store = Arc::clone(&store);
                            let payload = Bytes::from(vec![number as u8; 1_000]);
                            runtime.spawn(async move { store.write(chunk(number), payload, None).await })
                        })
                        .collect();
                    runtime.sleep(Duration::from_millis(1)).await;
                    store.crash();
                    for write in writes {
                        assert!(matches!(write.await.unwrap(), Err(SiteError::Unavailable(_))));
                    }
                    let range = ChunkRange { chunk: chunk(0), offset: 0, len: 1 };
                    assert!(matches!(store.read(range).await, Err(SiteError::Unavailable(_))));
                    store.restart();
                    let page = store.list(None, 100).await.unwrap();
                    assert!(page.chunks.iter().all(|info| info.len == 1_000));
                    page.chunks.len() as u64
                })
            })
            .collect();
        assert!(survivors.iter().any(|&count| count < 10) && survivors.iter().any(|&count| count > 0));
    }

    #[test]
    fn a_hung_disk_answers_nobody_until_it_goes_on_or_its_site_dies() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let store = Arc::new(store(&runtime, Calibration::D.site, 1 << 40));
            store.write(chunk(1), Bytes::from_static(b"0123456789"), None).await.unwrap();
            let range = ChunkRange { chunk: chunk(1), offset: 0, len: 10 };
            for dies in [false, true] {
                let begin = |store: &Arc<ModelledStore>| {
                    let store = Arc::clone(store);
                    runtime.spawn(async move { store.read(range).await })
                };
                let before = begin(&store);
                store.hang();
                let reads = [before, begin(&store)];
                runtime.sleep(Duration::from_secs(3_600)).await;
                assert!(reads.iter().all(|read| !read.is_finished()));
                if dies {
                    store.crash()
                } else {
                    store.resume()
                }
                for read in reads {
                    let read = read.await.unwrap();
                    assert_eq!(matches!(read, Err(SiteError::Unavailable(_))), dies, "{read:?}");
                }
                store.restart();
                assert_eq!(store.read(range).await.unwrap().len(), 10);
            }
        });
    }

    /// A listing returns generated and written chunks in one order, page by page, without deleted ones.
    #[test]
    fn a_listing_has_generated_and_written_chunks() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let mut stripes = GeneratedStripes::new("rs(2,2)", "rs(2,2)".parse().unwrap(), 100);
            for first in 0..20 {
                stripes.add(&[1, 2, 3, 4].map(|site| SiteId((first + site) % 5)), 100);
            }
            let (trace, model) = (Trace::new(runtime.clone()), Calibration::A.site);
            let stripes = Arc::new(stripes);
            let store =
                ModelledStore::new(runtime.clone(), trace, SiteId(1), model, stripes.clone(), 1 << 40);
            let generated: Vec<ChunkId> = stripes.chunks_of(SiteId(1), None).map(|info| info.chunk).collect();
            assert_eq!(generated.len(), 16);
            let moved = ChunkId { generation: Generation(2), ..generated[5] };
            for written in [chunk(1), chunk(2), moved] {
                store.write(written, Bytes::from_static(b"0"), None).await.unwrap();
            }
            store.delete(&generated[3..4], FencingEpoch(1)).await.unwrap();
            store.lose(generated[9]);
            let gone = [generated[3], generated[9]];
            let mut expected: Vec<ChunkId> = generated.into_iter().filter(|id| !gone.contains(id)).collect();
            expected.extend([chunk(1), chunk(2), moved]);
            expected.sort_unstable();
            for limit in [1, 2, 3, 17, 18, 100] {
                let (mut listed, mut from) = (Vec::new(), None);
                loop {
                    let page = store.list(from, limit).await.unwrap();
                    assert!(!page.chunks.is_empty() && page.chunks.len() <= limit);
                    listed.extend(page.chunks);
                    from = page.next;
                    if from.is_none() {
                        break;
                    }
                }
                assert!(listed.iter().map(|info| info.chunk).eq(expected.iter().copied()), "limit {limit}");
                for info in listed {
                    assert_eq!(store.verify(info.chunk).await.unwrap(), info);
                }
            }
        });
    }

    #[test]
    fn a_full_disk_refuses_and_still_deletes() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let store = store(&runtime, Calibration::A.site, 10);
            store.write(chunk(1), Bytes::from_static(b"0123456789"), None).await.unwrap();
            let refused = store.write(chunk(2), Bytes::from_static(b"0"), None).await;
            assert_eq!(refused, Err(SiteError::NoSpace));
            store.delete(&[chunk(1)], FencingEpoch(1)).await.unwrap();
            store.write(chunk(2), Bytes::from_static(b"0"), None).await.unwrap();
        });
    }
}
