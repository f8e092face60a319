//! Write and read throughput of the chunk store: `disk_bench [DIRECTORY [STORES LEN]]`.
//!
//! 16 writers, each waiting for its acknowledgement, use one store, and then six, where a stripe has one chunk on each.
//! Reads come from the page cache: `try_read` on one thread, `read` (through the blocking pool) by 16 readers.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use striate_core::{ChunkId, ChunkRange, Generation, StripeId};
use striate_runtime::Runtime;
use striate_site::granule::granule_crcs;
use striate_site::{ChunkStore, DiskStore, DiskStoreOptions, RealFileSystem};

const WRITERS: u64 = 16;
const LENS: [usize; 4] = [2560, 25 * 1024, 256 * 1024, 1024 * 1024];
const DURATION: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = Runtime::real();
    let root = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let root = root.join(format!("striate-disk-bench-{}", std::process::id()));
    println!("stores  chunk B  stripes/s  chunks/s   MB/s  disk B/chunk-B  try_read/s  read/s");
    let one: Vec<usize> = std::env::args().skip(2).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let all = [1, 6].into_iter().flat_map(|stores| LENS.map(|len| (stores, len)));
    let runs = if let [stores, len] = one[..] { vec![(stores as u64, len)] } else { all.collect() };
    for (stores, len) in runs {
        run(&runtime, &root, stores, len).await?;
        std::fs::remove_dir_all(&root)?;
    }
    Ok(())
}

fn chunk(stripe: u64, index: u64) -> ChunkId {
    ChunkId { stripe: StripeId::new(1, stripe), index: index as u8, generation: Generation(1) }
}

async fn run(
    runtime: &Runtime,
    root: &std::path::Path,
    count: u64,
    len: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut stores = Vec::new();
    for i in 0..count {
        let path = root.join(i.to_string());
        let store = DiskStore::open(runtime, Arc::new(RealFileSystem), &path, DiskStoreOptions::default())?;
        stores.push(Arc::new(store));
    }
    let payload = striate_site::conformance::payload(1, len);
    let crcs = granule_crcs(&payload, striate_core::SMALL_GRANULE_LEN);
    let next = Arc::new(AtomicU64::new(0));
    let started = runtime.now();
    let writers = (0..WRITERS).map(|_| {
        let (stores, payload, crcs, next, runtime) =
            (stores.clone(), payload.clone(), crcs.clone(), next.clone(), runtime.clone());
        runtime.clone().spawn(async move {
            while runtime.now() - started < DURATION {
                let stripe = next.fetch_add(1, Ordering::Relaxed);
                let writes = stores.iter().enumerate().map(|(i, store)| {
                    store.write(chunk(stripe, i as u64), payload.clone(), Some(crcs.clone()))
                });
                join_all(writes).await.into_iter().collect::<Result<Vec<_>, _>>().expect("written");
            }
        })
    });
    for writer in join_all(writers).await {
        writer?;
    }
    let seconds = (runtime.now() - started).as_secs_f64();
    let stripes = next.load(Ordering::Relaxed);
    let status = stores[0].status();
    let (cached, blocking) = read_rates(runtime, &stores[0], stripes, len).await;
    println!(
        "{count:6} {len:8} {:10.0} {:9.0} {:6.0} {:15.3} {cached:11.0} {blocking:7.0}",
        stripes as f64 / seconds,
        (stripes * count) as f64 / seconds,
        (stripes * count) as f64 * len as f64 / seconds / 1e6,
        status.disk_bytes as f64 / status.payload_bytes as f64,
    );
    for store in stores {
        store.close().await?;
    }
    Ok(())
}

/// Returns the reads of whole chunks per second: `try_read` on one thread, `read` by 16 tasks.
async fn read_rates(runtime: &Runtime, store: &Arc<DiskStore>, stripes: u64, len: usize) -> (f64, f64) {
    let range = move |i: u64| ChunkRange { chunk: chunk(i * 7919 % stripes, 0), offset: 0, len: len as u32 };
    let started = runtime.now();
    let mut reads = 0;
    while runtime.now() - started < DURATION / 3 {
        for _ in 0..64 {
            reads += u64::from(store.try_read(range(reads)).is_some_and(|result| result.is_ok()));
        }
    }
    let cached = reads as f64 / (runtime.now() - started).as_secs_f64();
    let total = Arc::new(AtomicU64::new(0));
    let started = runtime.now();
    let readers = (0..WRITERS).map(|_| {
        let (store, total, runtime) = (store.clone(), total.clone(), runtime.clone());
        runtime.clone().spawn(async move {
            while runtime.now() - started < DURATION / 3 {
                let i = total.fetch_add(1, Ordering::Relaxed);
                store.read(range(i)).await.expect("read");
            }
        })
    });
    join_all(readers).await;
    (cached, total.load(Ordering::Relaxed) as f64 / (runtime.now() - started).as_secs_f64())
}
