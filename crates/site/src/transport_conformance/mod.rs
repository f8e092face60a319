//! Conformance suite for implementations of [`Site`], as functions that run on any of them.
//!
//! The caller puts its kind of site over a [`GatedStore`]: in this process, behind TCP, or behind a
//! modelled network. Nothing here waits by sleeping: the gate reports when a read has begun, and the site's
//! own load report shows what waits.

mod gated_store;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use striate_codec::{accumulate, crc32c};
use striate_core::{ChunkId, ChunkRange, FencingEpoch, Generation, LoadReport, StripeId};
use striate_runtime::{JoinHandle, Runtime};

use crate::api::{
    AssembleRequest, CombineRequest, DeleteRequest, LocalTerm, Priority, ReadReply, ReadRequest, Site,
    SiteError, Window, WriteRequest,
};
use crate::queue::QueueLimits;
pub use gated_store::GatedStore;

/// Runs the whole suite. `make` creates a new site over the given store.
///
/// # Panics
/// When the site violates a rule.
pub async fn run<F, M>(runtime: Runtime, mut make: M)
where
    M: FnMut(Arc<GatedStore>, QueueLimits) -> F,
    F: Future<Output = Arc<dyn Site>>,
{
    let mut subject = async |workers, requests| {
        let store = Arc::new(GatedStore::default());
        let limits = QueueLimits { requests, workers, ..QueueLimits::default() };
        let site = make(Arc::clone(&store), limits).await;
        Subject { runtime: runtime.clone(), store, site }
    };
    subject(4, 100).await.answers_every_range_exactly().await;
    subject(2, 100).await.answers_in_order_of_arrival().await;
    subject(1, 100).await.takes_cancelled_reads_out_of_the_queue().await;
    subject(1, 100).await.serves_by_priority().await;
    subject(1, 2).await.refuses_what_does_not_fit_the_queue().await;
    subject(1, 100).await.drops_what_has_not_begun_at_its_deadline().await;
    subject(2, 100).await.passes_every_error_on().await;
    subject(2, 100).await.reports_fresh_load().await;
    subject(1, 100).await.tells_those_who_watch().await;
    subject(2, 100).await.keeps_lists_verifies_and_deletes().await;
    subject(2, 100).await.combines_its_chunks().await;
    subject(2, 100).await.assembles_a_chunk_that_is_what_it_must_be().await;
    subject(2, 100).await.makes_a_chunk_out_of_another_with_windows().await;
}

/// Returns a chunk's name.
pub fn chunk(number: u64) -> ChunkId {
    ChunkId { stripe: StripeId::new(1, number), index: (number % 6) as u8, generation: Generation(1) }
}

/// Returns a chunk of `len` bytes as a term of a sum.
pub fn term(by: u8, number: u64, len: u32) -> LocalTerm {
    LocalTerm { by, chunk: chunk(number), len }
}

/// Returns bytes that differ from chunk to chunk and from position to position.
pub fn payload(number: u64, len: usize) -> Bytes {
    (0..len as u64).map(|i| (i.wrapping_mul(31 + 2 * number) >> 3 ^ number ^ i) as u8).collect()
}

/// Returns chunk 1 of 10,000 bytes with these windows, each sum of which is chunk 3 times 7.
fn first_chunk_with(windows: &[Window]) -> Vec<u8> {
    let mut content = payload(1, 10_000).to_vec();
    for window in windows {
        let (offset, len) = window.place();
        let range = offset as usize..(offset + len) as usize;
        match window {
            Window::Sum(_) => accumulate(7, &payload(3, 10_000)[range.clone()], &mut content[range]),
            Window::Bytes { bytes, .. } => content[range].copy_from_slice(bytes),
        }
    }
    content
}

struct Subject {
    runtime: Runtime,
    store: Arc<GatedStore>,
    site: Arc<dyn Site>,
}

fn whole(number: u64, len: u32) -> ChunkRange {
    ChunkRange { chunk: chunk(number), offset: 0, len }
}

impl Subject {
    async fn write(&self, number: u64, len: usize) -> Result<LoadReport, SiteError> {
        let payload = payload(number, len);
        let priority = Priority::Foreground;
        self.site.write(WriteRequest { chunk: chunk(number), payload, granule_crcs: None, priority }).await
    }

    /// Writes chunks 1 to `count` of `len` bytes.
    async fn fill(&self, count: u64, len: usize) {
        for number in 1..=count {
            self.write(number, len).await.expect("the write is accepted");
        }
    }

    fn start_read(
        &self,
        ranges: Vec<ChunkRange>,
        priority: Priority,
        time_left: Option<Duration>,
    ) -> JoinHandle<Vec<ReadReply>> {
        let deadline = time_left.map(|left| self.runtime.now() + left);
        let replies = self.site.read(ReadRequest { ranges, priority, deadline });
        self.runtime.spawn(replies.collect())
    }

    async fn read(&self, ranges: Vec<ChunkRange>) -> Vec<ReadReply> {
        self.start_read(ranges, Priority::Foreground, None).await.expect("the read ends")
    }

    async fn load(&self) -> LoadReport {
        self.site.status().await.expect("the site answers").load
    }

    /// Completes when the site reports this number of requests waiting or being served.
    async fn wait_for_requests(&self, requests: u32) -> LoadReport {
        let arrived = async {
            loop {
                let load = self.load().await;
                if load.queue_requests == requests {
                    return load;
                }
                tokio::task::yield_now().await;
            }
        };
        let load = self.runtime.timeout(Duration::from_secs(30), arrived).await;
        load.unwrap_or_else(|_| panic!("the queue never had {requests} requests"))
    }

    async fn answers_every_range_exactly(self) {
        self.fill(3, 200_000).await;
        let ranges: Vec<_> = (0..60u32)
            .map(|i| ChunkRange { chunk: chunk(u64::from(i % 3) + 1), offset: i * 2_000, len: 1 + i * 1_000 })
            .collect();
        let mut replies = self.read(ranges.clone()).await;
        replies.sort_by_key(|reply| reply.item);
        assert_eq!(replies.len(), ranges.len());
        for (item, (reply, range)) in replies.iter().zip(&ranges).enumerate() {
            let all = payload(range.chunk.stripe.sequence(), 200_000);
            let start = range.offset as usize;
            assert_eq!(reply.item, item);
            assert_eq!(reply.result, Ok(all.slice(start..start + range.len as usize)));
        }
        let past_the_end = ChunkRange { chunk: chunk(1), offset: 199_999, len: 2 };
        let replies = self.read(vec![past_the_end, whole(9, 1), whole(2, 5)]).await;
        let of = |item| replies.iter().find(|reply| reply.item == item).expect("it is answered");
        assert!(matches!(of(0).result, Err(SiteError::BadRequest(_))), "{:?}", of(0).result);
        assert_eq!(of(1).result, Err(SiteError::Missing(chunk(9))));
        assert_eq!(of(2).result, Ok(payload(2, 5)));
        assert!(self.read(Vec::new()).await.is_empty());
    }

    async fn answers_in_order_of_arrival(self) {
        self.fill(2, 1_000).await;
        self.store.hold(chunk(1));
        let ranges = vec![whole(1, 1_000), whole(2, 1_000)];
        let request = ReadRequest { ranges, priority: Priority::Foreground, deadline: None };
        let mut replies = self.site.read(request);
        assert_eq!(replies.next().await.expect("a reply").item, 1);
        self.store.release(chunk(1));
        assert_eq!(replies.next().await.expect("a reply").item, 0);
        assert!(replies.next().await.is_none());
    }

    async fn takes_cancelled_reads_out_of_the_queue(self) {
        self.fill(4, 1_000).await;
        self.store.hold(chunk(1));
        let first = self.start_read(vec![whole(1, 1_000)], Priority::Foreground, None);
        self.store.wait_begun(chunk(1)).await;
        let others = vec![whole(2, 1_000), whole(3, 500), whole(4, 100)];
        let second = self.start_read(others, Priority::Foreground, None);
        assert_eq!(self.wait_for_requests(2).await.queue_bytes, 2_600);
        second.abort();
        assert_eq!(self.wait_for_requests(1).await.queue_bytes, 1_000);
        self.store.release(chunk(1));
        assert_eq!(first.await.expect("the read ends")[0].result, Ok(payload(1, 1_000)));
        assert_eq!(self.store.take_begun(), [chunk(1)]);
        assert_eq!(self.wait_for_requests(0).await.queue_bytes, 0);
    }

    async fn serves_by_priority(self) {
        self.fill(4, 100).await;
        self.store.hold(chunk(1));
        let mut reads = vec![self.start_read(vec![whole(1, 100)], Priority::Foreground, None)];
        self.store.wait_begun(chunk(1)).await;
        let later = [(2, Priority::Background), (3, Priority::Repair), (4, Priority::Foreground)];
        for (waiting, (number, priority)) in later.into_iter().enumerate() {
            reads.push(self.start_read(vec![whole(number, 100)], priority, None));
            self.wait_for_requests(waiting as u32 + 2).await;
        }
        self.store.release(chunk(1));
        for read in reads {
            assert!(read.await.expect("the read ends")[0].result.is_ok());
        }
        assert_eq!(self.store.take_begun(), [1, 4, 3, 2].map(chunk));
    }

    async fn refuses_what_does_not_fit_the_queue(self) {
        self.fill(2, 100).await;
        self.store.hold(chunk(1));
        let served = self.start_read(vec![whole(1, 100)], Priority::Foreground, None);
        self.store.wait_begun(chunk(1)).await;
        let waiting = self.start_read(vec![whole(2, 100)], Priority::Foreground, None);
        self.wait_for_requests(2).await;
        let refused = self.read(vec![whole(1, 10), whole(2, 10)]).await;
        assert!(refused.iter().all(|reply| reply.result == Err(SiteError::Busy)) && refused.len() == 2);
        assert_eq!(self.write(3, 100).await, Err(SiteError::Busy));
        assert_eq!(refused[0].load.queue_requests, 2);
        self.store.release(chunk(1));
        for read in [served, waiting] {
            assert!(read.await.expect("the read ends")[0].result.is_ok());
        }
        self.wait_for_requests(0).await;
        assert!(self.write(3, 100).await.is_ok());
    }

    async fn drops_what_has_not_begun_at_its_deadline(self) {
        self.fill(2, 100).await;
        self.store.hold(chunk(1));
        let served = self.start_read(vec![whole(1, 100)], Priority::Foreground, None);
        self.store.wait_begun(chunk(1)).await;
        for left in [Duration::ZERO, Duration::from_millis(40)] {
            let late = self.start_read(vec![whole(2, 100)], Priority::Foreground, Some(left));
            assert_eq!(late.await.expect("the read ends")[0].result, Err(SiteError::Deadline));
        }
        self.wait_for_requests(1).await;
        self.store.release(chunk(1));
        assert!(served.await.expect("the read ends")[0].result.is_ok());
        assert_eq!(self.store.take_begun(), [chunk(1)]);
    }

    async fn passes_every_error_on(self) {
        self.fill(1, 100).await;
        let errors = [
            SiteError::Missing(chunk(1)),
            SiteError::Corrupt { chunk: chunk(1), reason: "granule 0".to_owned() },
            SiteError::BadRequest("no".to_owned()),
            SiteError::NoSpace,
            SiteError::Busy,
            SiteError::Deadline,
            SiteError::Fenced { given: FencingEpoch(3), seen: FencingEpoch(4) },
            SiteError::Suspect("it failed".to_owned()),
            SiteError::Unavailable("it is gone".to_owned()),
        ];
        for error in errors {
            self.store.fail_with(Some(error.clone()));
            assert_eq!(self.read(vec![whole(1, 100)]).await[0].result, Err(error.clone()));
            assert_eq!(self.write(2, 10).await, Err(error.clone()));
            let request = DeleteRequest { chunks: vec![chunk(1)], epoch: FencingEpoch(1) };
            assert_eq!(self.site.delete(request).await, Err(error.clone()));
            assert_eq!(self.site.list(None, 1).await.expect_err("it fails"), error);
            assert_eq!(self.site.verify(chunk(1)).await, Err(error.clone()));
        }
        self.store.fail_with(None);
        assert_eq!(self.read(vec![whole(1, 100)]).await[0].result, Ok(payload(1, 100)));
    }

    async fn reports_fresh_load(self) {
        let mut last = self.write(1, 100).await.expect("the write is accepted");
        self.store.hold(chunk(1));
        let held = self.start_read(vec![whole(1, 70)], Priority::Foreground, None);
        self.store.wait_begun(chunk(1)).await;
        for number in 2..5 {
            let load = self.write(number, 100).await.expect("the write is accepted");
            assert!(load.sequence > last.sequence, "{load:?} after {last:?}");
            assert_eq!((load.queue_requests, load.queue_bytes), (1, 70));
            assert_eq!(self.site.last_load().queue_requests, 1);
            last = load;
        }
        self.store.release(chunk(1));
        let reply = held.await.expect("the read ends").remove(0);
        assert!(reply.load.sequence > last.sequence);
        assert_eq!(self.load().await.queue_requests, 0);
        assert_eq!(self.site.last_load().queue_requests, 0);
    }

    async fn tells_those_who_watch(self) {
        self.fill(1, 1_000).await;
        let mut reports = self.site.watch();
        let mut wait_for = async |requests, bytes| {
            loop {
                let report = reports.next().await.expect("the site pushes").expect("without an error");
                if (report.queue_requests, report.queue_bytes) == (requests, bytes) {
                    return report;
                }
            }
        };
        let first = wait_for(0, 0).await;
        self.store.hold(chunk(1));
        let held = self.start_read(vec![whole(1, 70)], Priority::Foreground, None);
        let busy = wait_for(1, 70).await;
        assert!(busy.sequence > first.sequence, "{busy:?} after {first:?}");
        assert_eq!(self.site.last_load().queue_requests, 1);
        self.store.release(chunk(1));
        held.await.expect("the read ends");
        wait_for(0, 0).await;
        assert_eq!(self.site.last_load().queue_requests, 0);
    }

    async fn keeps_lists_verifies_and_deletes(self) {
        self.fill(5, 70_000).await;
        assert!(self.write(1, 70_000).await.is_ok(), "the same bytes again are accepted");
        assert!(matches!(self.write(1, 69_999).await, Err(SiteError::BadRequest(_))));
        assert!(matches!(self.write(6, 0).await, Err(SiteError::BadRequest(_))));
        let info = self.site.verify(chunk(2)).await.expect("the chunk is good");
        assert_eq!((info.len, info.crc32c), (70_000, striate_codec::crc32c(&payload(2, 70_000))));
        let request = DeleteRequest { chunks: vec![chunk(2), chunk(77)], epoch: FencingEpoch(5) };
        self.site.delete(request).await.expect("the delete is accepted");
        let older = DeleteRequest { chunks: vec![chunk(3)], epoch: FencingEpoch(4) };
        let fenced = SiteError::Fenced { given: FencingEpoch(4), seen: FencingEpoch(5) };
        assert_eq!(self.site.delete(older).await, Err(fenced));
        let (mut listed, mut from) = (Vec::new(), None);
        loop {
            let page = self.site.list(from, 2).await.expect("the site lists");
            assert!(page.chunks.len() <= 2);
            listed.extend(page.chunks.iter().map(|info| info.chunk));
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        assert_eq!(listed, [1, 3, 4, 5].map(chunk));
        let status = self.site.status().await.expect("the site answers");
        assert_eq!((status.site, status.rack), (self.site.id(), self.site.rack()));
        assert_eq!((status.store.chunks, status.store.payload_bytes), (4, 280_000));
    }

    async fn combines_its_chunks(self) {
        self.fill(3, 10_000).await;
        let request = CombineRequest {
            offset: 1_000,
            len: 7_777,
            slice_len: 2_000,
            // The last chunk is declared shorter than it is.
            local: vec![term(1, 1, 10_000), term(7, 2, 10_000), term(0xa5, 3, 4_444)],
            upstream: Vec::new(),
            priority: Priority::Repair,
        };
        let mut expected = vec![0; 7_777];
        for LocalTerm { by, chunk, len } in &request.local {
            let all = payload(chunk.stripe.sequence(), 10_000);
            let end = 8_777.min(*len as usize);
            accumulate(*by, &all[1_000..end], &mut expected[..end - 1_000]);
        }
        let slices: Vec<_> = self.site.combine(request.clone()).collect().await;
        let slices: Vec<_> = slices.into_iter().map(|slice| slice.expect("the chunks are there")).collect();
        assert_eq!(slices.iter().map(Bytes::len).collect::<Vec<_>>(), [2_000, 2_000, 2_000, 1_777]);
        assert_eq!(slices.concat(), expected);

        let missing =
            CombineRequest { local: vec![term(3, 1, 10_000), term(2, 8, 10_000)], ..request.clone() };
        let slices: Vec<_> = self.site.combine(missing).collect().await;
        assert_eq!(slices, [Err(SiteError::Missing(chunk(8)))]);
        let nothing = CombineRequest { local: Vec::new(), ..request };
        let slices: Vec<_> = self.site.combine(nothing).collect().await;
        assert!(matches!(&slices[..], [Err(SiteError::BadRequest(_))]), "{slices:?}");
    }

    async fn assembles_a_chunk_that_is_what_it_must_be(self) {
        self.fill(3, 10_000).await;
        let combination = CombineRequest {
            offset: 0,
            len: 10_000,
            slice_len: 3_000,
            local: vec![term(1, 1, 10_000), term(7, 3, 10_000)],
            upstream: Vec::new(),
            priority: Priority::Repair,
        };
        let mut expected = payload(1, 10_000).to_vec();
        accumulate(7, &payload(3, 10_000), &mut expected);
        let crc32c = crc32c(&expected);
        let request = AssembleRequest { chunk: chunk(9), crc32c, combination, windows: Vec::new() };
        self.site.assemble(request.clone()).await.expect("it is what it must be");
        let info = self.site.verify(chunk(9)).await.expect("it is there");
        assert_eq!(self.site.has(vec![chunk(10), chunk(9)]).await, Ok(vec![false, true]));
        assert_eq!((info.len, info.crc32c), (10_000, request.crc32c));
        self.site.assemble(request.clone()).await.expect("the same chunk again is accepted");

        let other = AssembleRequest { chunk: chunk(10), crc32c: request.crc32c ^ 1, ..request.clone() };
        assert!(matches!(self.site.assemble(other).await, Err(SiteError::BadRequest(_))));
        let tail = CombineRequest { offset: 1, len: 9_999, ..request.combination.clone() };
        let tail = AssembleRequest { chunk: chunk(10), combination: tail, ..request.clone() };
        assert!(matches!(self.site.assemble(tail).await, Err(SiteError::BadRequest(_))));
        let lost = CombineRequest { local: vec![term(1, 8, 10_000)], ..request.combination.clone() };
        let lost = AssembleRequest { chunk: chunk(10), combination: lost, ..request };
        assert_eq!(self.site.assemble(lost).await.err(), Some(SiteError::Missing(chunk(8))));
        assert_eq!(self.site.verify(chunk(10)).await.err(), Some(SiteError::Missing(chunk(10))));
    }

    async fn makes_a_chunk_out_of_another_with_windows(self) {
        self.fill(3, 10_000).await;
        let sum = |offset, len, slice_len, local| CombineRequest {
            offset,
            len,
            slice_len,
            local,
            upstream: Vec::new(),
            priority: Priority::Background,
        };
        // Ranges within a slice, across several, and up to the end, with other slices than the chunk's.
        let added = |offset, len| Window::Sum(sum(offset, len, 700, vec![term(7, 3, 10_000)]));
        let new = payload(2, 5_000);
        let windows = vec![
            added(0, 100),
            Window::Bytes { offset: 100, bytes: new.slice(..3_500) },
            added(3_700, 1),
            added(4_000, 5_000),
            Window::Bytes { offset: 9_990, bytes: new.slice(..10) },
        ];
        let expected = first_chunk_with(&windows);
        let combination = sum(0, 10_000, 3_000, vec![term(1, 1, 10_000)]);
        let request = AssembleRequest { chunk: chunk(9), crc32c: crc32c(&expected), combination, windows };
        self.site.assemble(request.clone()).await.expect("it is what it must be");
        let read = self.read(vec![whole(9, 10_000)]).await.pop().expect("an answer").result;
        assert_eq!(read, Ok(Bytes::from(expected)));

        let with = |windows| AssembleRequest { chunk: chunk(10), windows, ..request.clone() };
        let refused = [
            vec![added(0, 100)],
            vec![added(0, 100), added(99, 1)],
            vec![added(9_999, 2)],
            vec![Window::Bytes { offset: 5, bytes: Bytes::new() }],
            vec![Window::Bytes { offset: 1, bytes: payload(2, 10_000) }],
        ];
        for windows in refused {
            let error = self.site.assemble(with(windows.clone())).await.err();
            assert!(matches!(error, Some(SiteError::BadRequest(_))), "{windows:?}: {error:?}");
        }
        let lost = Window::Sum(sum(5, 10, 10, vec![term(1, 8, 10_000)]));
        assert_eq!(self.site.assemble(with(vec![lost])).await.err(), Some(SiteError::Missing(chunk(8))));
        assert_eq!(self.site.verify(chunk(10)).await.err(), Some(SiteError::Missing(chunk(10))));
    }
}
