//! Measures the embedded engine on real directories.
//!
//! `cargo run --release -p striate-meta --example meta_bench -- [commit|get|scan] [DIRECTORY]`
//!
//! - `commit`: small durable transactions per second with 1, 16 and 64 writers on 3 mirrors, and on 1 mirror for
//!   comparison; each transaction is two puts and a precondition;
//! - `get`: gets per second of 100,000 rows, by 1 and 2 readers;
//! - `scan`: pages of 1,000 rows out of 1,000,000 keys: the last page against the first, forward and backward, and the
//!   time that a start takes.
//!
//! The figures come from a shared machine: compare ratios only.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use striate_core::ClusterId;
use striate_meta::embedded::{DiskId, EmbeddedStore, Layout, MetaDirectory, Options};
use striate_meta::{Commit, MetaStore, Precondition, ScanRange, Transaction, TxId};
use striate_runtime::Runtime;

/// Duration of each measurement of operations per second.
const MEASURE: Duration = Duration::from_secs(3);

struct Bench {
    runtime: Runtime,
    root: PathBuf,
}

impl Bench {
    fn options(&self) -> Options {
        Options { min_free_bytes: 0, ..Options::default() }
    }

    fn layout(&self, mirrors: usize) -> (Layout, Vec<MetaDirectory>) {
        let layout = Layout { cluster: ClusterId(1), total_directories: mirrors, tolerance: mirrors - 1 };
        let directory = |number: usize| {
            let path = self.root.join(format!("disk{number}"));
            std::fs::create_dir_all(&path).expect("the directory can be made");
            MetaDirectory::open(DiskId([number as u8; 16]), path).expect("the directory opens")
        };
        (layout, (0..mirrors).map(directory).collect())
    }

    async fn fresh(&self, mirrors: usize) -> EmbeddedStore {
        // The directory may not exist.
        let _ = std::fs::remove_dir_all(&self.root);
        let (layout, present) = self.layout(mirrors);
        EmbeddedStore::open_or_create(&self.runtime, self.options(), layout, &present)
            .await
            .expect("a new store")
    }

    async fn commits(&self, mirrors: usize, writers: u32) {
        let store = self.fresh(mirrors).await;
        let end = self.runtime.now() + MEASURE;
        let tasks: Vec<_> = (0..writers)
            .map(|writer| {
                let (store, runtime) = (store.clone(), self.runtime.clone());
                self.runtime.spawn(async move {
                    let mut count = 0_u64;
                    while runtime.now() < end {
                        commit_two_rows(&store, u64::from(writer) << 32 | count).await;
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        let mut total = 0;
        for task in tasks {
            total += task.await.expect("a writer ends");
        }
        let rate = total as f64 / MEASURE.as_secs_f64();
        println!("commit: {mirrors} mirrors, {writers:2} writers: {rate:8.0} durable transactions/s");
        store.close().await;
    }

    async fn gets(&self, readers: u64) {
        const ROWS: u64 = 100_000;
        let store = self.fresh(3).await;
        fill(&store, ROWS).await;
        let end = self.runtime.now() + MEASURE;
        let tasks: Vec<_> = (0..readers)
            .map(|reader| {
                let (store, runtime) = (store.clone(), self.runtime.clone());
                self.runtime.spawn(async move {
                    let (mut count, mut number) = (0_u64, reader);
                    while count % 256 != 0 || runtime.now() < end {
                        number = number
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        let row = store.get(&key((number >> 33) % ROWS)).await.expect("a get is answered");
                        assert!(row.is_some());
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        let mut total = 0;
        for task in tasks {
            total += task.await.expect("a reader ends");
        }
        println!("get: {readers} readers: {:8.0} gets/s", total as f64 / MEASURE.as_secs_f64());
        store.close().await;
    }

    async fn scans(&self) {
        const ROWS: u64 = 1_000_000;
        const PAGE: u64 = 1_000;
        let store = self.fresh(3).await;
        let start = self.runtime.now();
        fill(&store, ROWS).await;
        println!("scan: {ROWS} rows written in {:?} on 3 mirrors", self.runtime.now() - start);
        let page = async |from: u64, back: bool| {
            let range = match back {
                false => ScanRange { start: key(from).into(), end: Default::default() },
                true => ScanRange { start: Default::default(), end: key(from).into() },
            };
            let mut times = Vec::new();
            for _ in 0..21 {
                let start = self.runtime.now();
                let rows = match back {
                    false => store.scan(range.clone(), PAGE as usize).await,
                    true => store.scan_back(range.clone(), PAGE as usize).await,
                };
                times.push(self.runtime.now() - start);
                assert_eq!(rows.expect("a scan is answered").len() as u64, PAGE);
            }
            times.sort();
            times[times.len() / 2]
        };
        let (first, last) = (page(0, false).await, page(ROWS - PAGE, false).await);
        let ratio = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
        println!(
            "scan: page of {PAGE}: first {first:?}, last {last:?}, ratio {:.2} (bar 1.5)",
            ratio(last, first)
        );
        let (near, far) = (page(PAGE, true).await, page(ROWS, true).await);
        println!(
            "scan back: page of {PAGE}: at the start {near:?}, at the end {far:?}, ratio {:.2}",
            ratio(far, near)
        );
        store.close().await;
        let start = self.runtime.now();
        let (layout, present) = self.layout(3);
        let store =
            EmbeddedStore::open(&self.runtime, self.options(), layout, &present).await.expect("it opens");
        println!("start with {ROWS} rows after a clean end: {:?}", self.runtime.now() - start);
        for mirror in store.mirrors().await.expect("a status") {
            println!("mirror {}: {} MiB", mirror.path, mirror.file_bytes.unwrap_or(0) >> 20);
        }
        store.close().await;
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("o/bucket\0path/to/object-{number:010}").into_bytes()
}

async fn commit_two_rows(store: &EmbeddedStore, number: u64) {
    let mut tx = Transaction::new(TxId(u128::from(number) + 1));
    let key = format!("o/bucket\0object-{number:016x}");
    tx.require(Precondition::Absent(key.clone().into())).put(key, vec![7; 200]);
    tx.put(format!("s/{number:016x}"), vec![8; 100]);
    assert!(matches!(store.commit(tx).await, Ok(Commit::Done(_))));
}

async fn fill(store: &EmbeddedStore, rows: u64) {
    const EACH: u64 = 90;
    let transactions = (0..rows).step_by(EACH as usize).map(|first| {
        let mut tx = Transaction::new(TxId(1 << 100 | u128::from(first)));
        for number in first..(first + EACH).min(rows) {
            tx.put(key(number), vec![9; 200]);
        }
        tx
    });
    let mut waiting = Vec::new();
    for tx in transactions {
        waiting.push(store.commit(tx));
        if waiting.len() == 64 {
            futures::future::try_join_all(waiting.drain(..)).await.expect("the rows are written");
        }
    }
    futures::future::try_join_all(waiting).await.expect("the rows are written");
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_else(|| "all".to_owned());
    let root =
        arguments.next().map_or_else(|| std::env::temp_dir().join("striate-meta-bench"), PathBuf::from);
    let bench = Arc::new(Bench { runtime: Runtime::real(), root });
    if what == "all" || what == "commit" {
        for (mirrors, writers) in [(1, 16), (3, 1), (3, 16), (3, 64)] {
            bench.commits(mirrors, writers).await;
        }
    }
    if what == "all" || what == "get" {
        bench.gets(1).await;
        bench.gets(2).await;
    }
    if what == "all" || what == "scan" {
        bench.scans().await;
    }
    // Leave nothing behind: this program created the directory.
    let _ = std::fs::remove_dir_all(&bench.root);
}
