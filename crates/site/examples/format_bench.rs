//! Measures the cost of chunk format 2 relative to format 1, as ratios of processor time: `format_bench [DIRECTORY]`.
//!
//! Both sides of a comparison take turns, and the median of the ratios of neighbouring turns is printed, so that a busy
//! machine disturbs both alike. Above 1, format 2 costs more. At the end it prints how much cold small ranges read from
//! the disk, as the kernel counts it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use striate_codec::Code;
use striate_core::{ChunkId, ChunkRange, Formats, FormatsInForce, Generation, StripeId};
use striate_runtime::Runtime;
use striate_site::conformance::payload;
use striate_site::granule::granule_crcs;
use striate_site::{ChunkStore, DiskStore, DiskStoreOptions, RealFileSystem};

const TURNS: usize = 41;
const MIB: usize = 1 << 20;
/// Bytes that one turn writes, and reads.
const BYTES: usize = 32 * MIB;

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn median(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN)
}

fn granule_lengths() {
    let code: Code = Code::rs(4, 2).expect("a code");
    let block = payload(1, 4 * MIB);
    let data: Vec<&[u8]> = block.chunks(MIB).collect();
    let mut parity = vec![0; 2 * MIB];
    let mut encode = |granule_len: usize| {
        let started = cpu();
        for _ in 0..8 {
            let mut parity: Vec<&mut [u8]> = parity.chunks_mut(MIB).collect();
            let sums = code.encode_and_checksum(&data, &mut parity, granule_len).expect("encoded");
            std::hint::black_box((0..6).map(|chunk| sums.chunk_checksum(chunk)).fold(0, |a, b| a ^ b));
        }
        (cpu() - started).as_secs_f64()
    };
    for granule_len in [32 << 10, 16 << 10, 8 << 10, 4 << 10, 2 << 10, 1 << 10] {
        let ratios = (0..TURNS).map(|_| {
            let long = encode(64 << 10);
            encode(granule_len) / long
        });
        println!(
            "encode 4 MiB, rs(4,2), granules of {granule_len:6} over 64 KiB: {:.3}",
            median(ratios.collect())
        );
        println!("   one turn: {:.0} us a block", encode(granule_len) / 8.0 * 1e6);
    }
    let check = |granule_len: usize| {
        let started = cpu();
        for _ in 0..8 {
            std::hint::black_box(granule_crcs(&block, granule_len));
        }
        (cpu() - started).as_secs_f64()
    };
    for granule_len in [16 << 10, 8 << 10, 4 << 10, 2 << 10, 1 << 10] {
        let ratios = (0..TURNS).map(|_| {
            let long = check(64 << 10);
            check(granule_len) / long
        });
        println!(
            "checksums of 4 MiB, granules of {granule_len:6} over 64 KiB: {:.3}",
            median(ratios.collect())
        );
        println!("   one turn: {:.0} us", check(granule_len) / 8.0 * 1e6);
    }
}

fn chunk(number: usize) -> ChunkId {
    ChunkId { stripe: StripeId::new(1, number as u64), index: 0, generation: Generation(1) }
}

/// A store with chunks of one length.
struct Side {
    store: DiskStore,
    bytes: Bytes,
    crcs: Option<Arc<[u32]>>,
    written: usize,
}

impl Side {
    fn new(
        runtime: &Runtime,
        root: &std::path::Path,
        formats: Formats,
        paged_from: usize,
        len: usize,
    ) -> Self {
        let name = format!("{}-{paged_from}-{len}", formats.chunks);
        let formats = FormatsInForce::new(formats);
        let options =
            DiskStoreOptions { formats: formats.clone(), paged_from, ..DiskStoreOptions::default() };
        let store =
            DiskStore::open(runtime, Arc::new(RealFileSystem), &root.join(name), options).expect("opens");
        let room = payload(1, len + 4096);
        let start = room.as_ptr().align_offset(4096);
        let bytes = room.slice(start..start + len);
        let crcs = Some(granule_crcs(&bytes, formats.get().granule_len()));
        Self { store, bytes, crcs, written: 0 }
    }

    async fn write(&mut self) -> f64 {
        let started = cpu();
        for _ in 0..BYTES / self.bytes.len() {
            self.store
                .write(chunk(self.written), self.bytes.clone(), self.crcs.clone())
                .await
                .expect("written");
            self.written += 1;
        }
        (cpu() - started).as_secs_f64()
    }

    /// Reads `count` ranges. Returns `None` if the page cache did not hold all of them.
    fn read(&self, len: usize, count: usize) -> Option<f64> {
        let (started, mut missed) = (cpu(), 0);
        for number in 0..count {
            let at = if len == self.bytes.len() { 0 } else { number * 7919 * 512 % (self.bytes.len() - len) };
            let range = ChunkRange { chunk: chunk(number % 4), offset: at as u32, len: len as u32 };
            match self.store.try_read(range) {
                Some(read) => drop(read.expect("intact")),
                None => missed += 1,
            }
        }
        (missed * 20 < count).then(|| (cpu() - started).as_secs_f64())
    }
}

/// Returns the number of bytes that this process has read from a disk.
fn disk_bytes() -> u64 {
    let counts = std::fs::read_to_string("/proc/self/io").expect("Linux");
    let line = counts.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    line.and_then(|bytes| bytes.parse().ok()).expect("a count")
}

/// Measures reads of cold ranges. Chunks that were written past the page cache are cold.
async fn cold_ranges(runtime: &Runtime, root: &std::path::Path, formats: Formats, len: usize) {
    const RANGES: u64 = 500;
    let mut side = Side::new(runtime, root, formats, 4 * MIB, len);
    let turns = 4 * len.max(BYTES) / BYTES;
    for _ in 0..turns {
        side.write().await;
    }
    let before = disk_bytes();
    for number in 0..RANGES {
        let place = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
        let at = place % (len - 4096) as u64;
        let range =
            ChunkRange { chunk: chunk((place >> 24) as usize % side.written), offset: at as u32, len: 4096 };
        // As a site does.
        if side.store.try_read(range).is_none() {
            side.store.read(range).await.expect("intact");
        }
    }
    let each = (disk_bytes() - before) as f64 / RANGES as f64 / 1024.0;
    println!("cold range of 4 KiB, format {}, chunks of {len}: {each:.1} KiB from the disk", formats.chunks);
}

#[tokio::main]
async fn main() {
    granule_lengths();
    let runtime = Runtime::real();
    let root = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let root = root.join(format!("striate-format-bench-{}", std::process::id()));
    for (len, paged_from) in [
        (2560, usize::MAX),
        (100 << 10, usize::MAX),
        (MIB, usize::MAX),
        (MIB, 0),
        (8 * MIB, usize::MAX),
        (8 * MIB, 0),
        (32 * MIB, 0),
    ] {
        let mut old = Side::new(&runtime, &root, Formats::OLDEST, paged_from, len);
        let mut new = Side::new(&runtime, &root, Formats::NEWEST, paged_from, len);
        let turns = if len < MIB { 1 } else { 7 };
        let (mut writes, mut us) = (Vec::new(), 0.0);
        for _ in 0..turns {
            if len < MIB {
                // A few chunks are enough.
                for side in [&mut old, &mut new] {
                    for number in 0..4 {
                        side.store
                            .write(chunk(number), side.bytes.clone(), side.crcs.clone())
                            .await
                            .expect("written");
                    }
                }
                continue;
            }
            us = old.write().await;
            writes.push(new.write().await / us);
        }
        let form = if paged_from == 0 { "paged" } else { "fine" };
        println!("chunks of {len}, {form} over coarse:");
        if !writes.is_empty() {
            println!("  write {:.3} (format 1: {:.0} us a MiB)", median(writes), us * 1e6 / 32.0);
        }
        // Brings the chunks into the page cache.
        for side in [&old, &new] {
            for number in 0..4 {
                let range = ChunkRange { chunk: chunk(number), offset: 0, len: len as u32 };
                side.store.read(range).await.expect("read");
            }
        }
        for size in [len, 4096.min(len)] {
            let count = (BYTES / size).clamp(4, 4000);
            let mut us = 0.0;
            let ratios = (0..TURNS).filter_map(|_| {
                let (old, new) = old.read(size, count).zip(new.read(size, count))?;
                us = old;
                Some(new / old)
            });
            let ratio = median(ratios.collect());
            println!("  read of {size} {ratio:.3} (format 1: {:.2} us)", us * 1e6 / count as f64);
        }
    }
    for (formats, len) in [
        (Formats::OLDEST, 32 * MIB),
        (Formats::NEWEST, 32 * MIB),
        (Formats::OLDEST, MIB),
        (Formats::NEWEST, MIB),
    ] {
        cold_ranges(&runtime, &root.join("cold"), formats, len).await;
    }
    std::fs::remove_dir_all(&root).expect("removed");
}
