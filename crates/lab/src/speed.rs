//! The speed of the lab in real time, and the memory of a large world.
//!
//! The measurement covers the whole real path: the look-up of stripe records, the planner, the client's requests, the
//! modelled network, the real queues, late results, and decoding with its checksum.

use std::sync::Arc;
use std::time::Duration;

use striate_baselines::random::Random;
use striate_client::ClientError;
use striate_plan::ReadPolicy;
use striate_runtime::{Runtime, run_in_virtual_time};

use crate::calibration::Calibration;
use crate::drive::{DriveOptions, drive};
use crate::workload::EcStoreScans;
use crate::world::{World, WorldOptions};

/// Results of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Number of sites in the world.
    pub sites: u32,
    /// Number of blocks in the world.
    pub blocks: u32,
    /// Real time to build the world, in seconds.
    pub build_s: f64,
    /// Number of chunk reads.
    pub chunk_reads: u64,
    /// Virtual time that passed, in seconds.
    pub virtual_s: f64,
    /// Real time of the run, in seconds.
    pub real_s: f64,
    /// Peak memory of this process so far, in bytes; `None` if the system does not report it.
    pub peak_memory_bytes: Option<u64>,
}

impl Speed {
    /// Returns the chunk reads per minute of real time.
    pub fn chunk_reads_per_minute(&self) -> f64 {
        60.0 * self.chunk_reads as f64 / self.real_s
    }
}

/// Runs EC-Store's measured workload, RS(2,2) with random chunks, 100 closed-loop clients, for `length` of
/// virtual time. `clock` is the machine's real clock.
///
/// # Errors
/// If the world cannot be built.
pub fn measure(
    sites: u32,
    blocks: u32,
    length: Duration,
    seed: u64,
    clock: &Runtime,
) -> Result<Speed, ClientError> {
    let profile = "rs(2,2)".parse().expect("a profile");
    let policy = ReadPolicy::new(Random::default());
    let options = WorldOptions { sites, ..WorldOptions::ec_store(Calibration::P, profile, blocks, policy) };
    let clock = clock.clone();
    run_in_virtual_time(seed, Duration::ZERO, move |runtime| async move {
        let began = clock.uptime();
        let world = Arc::new(World::build(runtime, &options).await?);
        let built = clock.uptime();
        let drive_options = DriveOptions {
            clients: 100,
            rate_per_s: None,
            length,
            operations: None,
            interval: length,
            client_work: Duration::from_secs_f64(options.calibration.client_work_ms / 1e3),
        };
        let virtual_began = world.runtime.now();
        let measured = drive(&world, drive_options, EcStoreScans::measured(u64::from(blocks), 1.0)).await;
        Ok(Speed {
            sites,
            blocks,
            build_s: (built - began).as_secs_f64(),
            chunk_reads: measured.chunks,
            virtual_s: (world.runtime.now() - virtual_began).as_secs_f64(),
            real_s: (clock.uptime() - built).as_secs_f64(),
            peak_memory_bytes: peak_memory_bytes(),
        })
    })
}

/// Returns the process's high-water mark, as Linux counts it.
fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
