//! Compares the codec with ISA-L and klauspost/reedsolomon: encoding, and decoding one and r lost chunks.
//!
//! Speed is bytes of input data per second of processor time on one core. Libraries and cases take turns within each
//! round, so that other load on the machine affects all of them alike. Figures are ratios within a round, reported as
//! median and quartiles over the rounds.
//!
//! *Hot* repeats one stripe: at 128 KiB a stripe of 14 chunks fits in an L2 cache, at 1 MiB it does not. *From DRAM*
//! rotates over 2 GiB of stripes, several times the last-level cache of the machines that were measured (which report
//! up to 480 MiB, shared with other tenants). Every stripe is used once per rotation. Some lines may still be found
//! in the cache, for every library alike. Memory is in ordinary 4 KiB pages.

mod cases;
mod isal;
mod klauspost;
mod library;
mod memory;
mod report;

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use cases::{Case, Place};
use klauspost::Klauspost;
use library::{Checksummed, EightChecksums, IsaL, Library, Striate};
use memory::Arena;
use report::Measurements;

/// Options of `striate-bench codec`.
#[derive(clap::Args)]
pub struct Options {
    /// Only what the claims need, in about a minute.
    #[arg(long)]
    quick: bool,
    /// How often everything is measured.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Memory that the stripes of a case rotate over, in MiB, for each of two processes.
    #[arg(long, default_value_t = 2048)]
    arena_mib: usize,
    /// Where to write the figures, one JSON object for each line.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Approximate number of data bytes that one timing covers.
const TIMED_BYTES: usize = 128 << 20;

/// Runs the measurements and prints the claims; fails if one does not hold.
pub fn run(options: &Options) -> ExitCode {
    match measure(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("striate-bench codec: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> io::Result<bool> {
    let mut json: Box<dyn Write> = match &options.out {
        Some(path) => Box::new(File::create(path)?),
        None => Box::new(io::sink()),
    };
    let cases = cases::cases(options.quick);
    let mut arena = Arena::new(options.arena_mib << 20);
    let mut libraries: [Box<dyn Library>; 6] = [
        Box::new(Striate::cached()),
        Box::new(Striate::streaming()),
        Box::new(Checksummed::default()),
        Box::new(EightChecksums),
        Box::new(IsaL::default()),
        Box::new(Klauspost::start(options.arena_mib << 20)?),
    ];
    let names = libraries.each_ref().map(|library| library.name());
    let kernel = striate_codec::Kernel::best().name();
    println!("kernel {kernel}, {} rounds", options.rounds);
    let mut measurements = Measurements::default();
    for round in 0..options.rounds.max(1) {
        for case in &cases {
            // Every library goes first equally often.
            libraries.rotate_left(1);
            for library in libraries.iter_mut().filter(|library| library.has(case)) {
                let nanoseconds = time(library.as_mut(), &mut arena, case)?;
                measurements.add(case, library.name(), nanoseconds);
            }
        }
        eprintln!("round {} of {}", round + 1, options.rounds);
    }
    report::print_speeds(&measurements, &cases, &names, &mut json)?;
    let all_hold = report::print_claims(&measurements, kernel, &mut json)?;
    json.flush()?;
    Ok(all_hold)
}

/// Returns nanoseconds per byte of data.
fn time(library: &mut dyn Library, arena: &mut Arena, case: &Case) -> io::Result<f64> {
    let calls = TIMED_BYTES.div_ceil(case.data_bytes());
    if case.place == Place::Hot {
        // The first call brings the stripe into the caches.
        library.time(arena, case, 1 + calls / 20)?;
    }
    let nanoseconds = library.time(arena, case, calls)?;
    Ok(nanoseconds as f64 / (calls * case.data_bytes()) as f64)
}
