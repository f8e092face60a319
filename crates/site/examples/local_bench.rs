//! Measures the cost of the site's own code in a read and a write, above the store: one event loop, a store in memory,
//! chunks of one granule.
//!
//! `cargo run --release -p striate-site --example local_bench`

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use striate_core::{ChunkId, ChunkRange, ClusterId, Generation, RackId, SiteId, StripeId};
use striate_runtime::Runtime;
use striate_site::transport_conformance::GatedStore;
use striate_site::{
    ChunkStore, LocalSite, MemoryStore, Priority, QueueLimits, ReadRequest, Site, SiteIdentity, WriteRequest,
};

/// Counts allocations.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed to the system's allocator unchanged; counting touches no memory of its own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above with this layout, and so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ROUNDS: u64 = 200_000;

fn chunk(number: u64) -> ChunkId {
    ChunkId { stripe: StripeId::new(1, number), index: 0, generation: Generation(1) }
}

fn site(runtime: &Runtime, store: Arc<dyn ChunkStore>) -> LocalSite {
    let identity = SiteIdentity { cluster: ClusterId(1), site: SiteId(1), rack: RackId("r".to_owned()) };
    LocalSite::new(runtime.clone(), identity, store, QueueLimits::default())
}

fn report(name: &str, rounds: u64, elapsed: Duration, allocations: u64) {
    let ns = elapsed.as_nanos() as u64 / rounds;
    println!("{name:<44} {ns:>8} ns   {:>5.1} allocations", allocations as f64 / rounds as f64);
}

fn read_request(count: u64, len: u32) -> ReadRequest {
    let ranges = (0..count).map(|number| ChunkRange { chunk: chunk(number), offset: 0, len }).collect();
    ReadRequest { ranges, priority: Priority::Foreground, deadline: None }
}

async fn measure<F: Future<Output = ()>>(runtime: &Runtime, name: &str, mut work: impl FnMut(u64) -> F) {
    for round in 0..ROUNDS / 10 {
        work(ROUNDS + round).await;
    }
    let (start, before) = (runtime.now(), ALLOCATIONS.load(Ordering::Relaxed));
    for round in 0..ROUNDS {
        work(round).await;
    }
    report(name, ROUNDS, runtime.now() - start, ALLOCATIONS.load(Ordering::Relaxed) - before);
}

async fn run(runtime: Runtime) {
    let payload = Bytes::from(vec![7; 1_024]);
    let write = |number: u64| WriteRequest {
        chunk: chunk(number),
        payload: payload.clone(),
        granule_crcs: None,
        priority: Priority::Foreground,
    };
    let store = Arc::new(MemoryStore::default());
    let inline = site(&runtime, store.clone());
    let gated: Arc<dyn ChunkStore> = Arc::new(GatedStore::default());
    let queued = site(&runtime, gated.clone());
    for number in 0..4 {
        inline.write(write(number)).await.expect("there is room");
        queued.write(write(number)).await.expect("there is room");
    }
    let range = ChunkRange { chunk: chunk(1), offset: 0, len: 1_024 };
    measure(&runtime, "the store alone: try_read", |_| async {
        assert!(store.try_read(range).is_some());
    })
    .await;
    for (name, site, count) in [
        ("read of one range, answered inline", &inline, 1),
        ("read of four ranges, answered inline", &inline, 4),
        ("read of one range, through the queue", &queued, 1),
        ("read of four ranges, through the queue", &queued, 4),
    ] {
        measure(&runtime, name, |_| async {
            let mut replies = site.read(read_request(count, 1_024));
            while let Some(reply) = replies.next().await {
                assert!(reply.result.is_ok());
            }
        })
        .await;
    }
    let range = ChunkRange { chunk: chunk(2), offset: 0, len: 1_024 };
    measure(&runtime, "the store alone: read through the gate", |_| async {
        assert!(gated.read(range).await.is_ok());
    })
    .await;
    measure(&runtime, "the store alone: write again", |round| {
        let store = &store;
        let request = write(round % 4);
        async move { assert!(store.write(request.chunk, request.payload, None).await.is_ok()) }
    })
    .await;
    measure(&runtime, "write again", |round| {
        let (site, request) = (&inline, write(round % 4));
        async move { assert!(site.write(request).await.is_ok()) }
    })
    .await;
    let mut waiting = VecDeque::new();
    measure(&runtime, "cancelled before it was polled", |_| {
        waiting.push_back(queued.read(read_request(1, 1_024)));
        waiting.pop_front();
        tokio::task::yield_now()
    })
    .await;
}

fn main() {
    let event_loop = tokio::runtime::Builder::new_current_thread().enable_all().build();
    event_loop.expect("an event loop").block_on(async { run(Runtime::real()).await });
}
