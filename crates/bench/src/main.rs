//! Benchmarks: each runs Striate beside its peers in one process or one run, alternating, and prints one line per claim.
//!
//! Wall-clock time is what is measured here, so this crate alone reads the clock directly.

#![allow(clippy::disallowed_methods, reason = "benchmarks measure wall-clock time")]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[cfg(any(feature = "plan-bench", feature = "movement-bench"))]
mod claims;
#[cfg(feature = "codec-bench")]
mod codec;
#[cfg(feature = "meta-bench")]
mod meta;
#[cfg(feature = "movement-bench")]
mod movement;
#[cfg(feature = "plan-bench")]
mod plan;
mod s3;
#[cfg(any(feature = "codec-bench", feature = "plan-bench", feature = "movement-bench"))]
mod stopwatch;

/// Measures Striate beside its peers.
#[derive(Parser)]
#[command(name = "striate-bench", version)]
struct Arguments {
    #[command(subcommand)]
    benchmark: Benchmark,
}

/// What to measure.
#[derive(Subcommand)]
enum Benchmark {
    /// Encode and decode beside ISA-L and klauspost/reedsolomon; exits with 1 if a claim does not hold.
    #[cfg(feature = "codec-bench")]
    Codec(codec::Options),
    /// Transactions, gets and scans of each metadata engine.
    #[cfg(feature = "meta-bench")]
    Meta(meta::Options),
    /// Candidate moves that the movement search evaluates in a second; exits with 1 if a claim does not hold.
    #[cfg(feature = "movement-bench")]
    Movement,
    /// Plan reads of many blocks beside HiGHS; exits with 1 if a claim does not hold.
    #[cfg(feature = "plan-bench")]
    Plan(plan::Options),
    /// Load an S3 endpoint with PUTs or GETs and print operations per second and latencies as JSON.
    S3(Box<s3::Options>),
}

fn main() -> ExitCode {
    match Arguments::parse().benchmark {
        #[cfg(feature = "codec-bench")]
        Benchmark::Codec(options) => codec::run(&options),
        #[cfg(feature = "meta-bench")]
        Benchmark::Meta(options) => meta::run(&options),
        #[cfg(feature = "movement-bench")]
        Benchmark::Movement => movement::run(),
        #[cfg(feature = "plan-bench")]
        Benchmark::Plan(options) => plan::run(&options),
        Benchmark::S3(options) => s3::run(&options),
    }
}
