//! Candidate moves (b, s, d) that Algorithm 1 evaluates per second of processor time, with 24 partners for each
//! block. Destinations that the improved objective excludes for balance do not count.

use std::io;
use std::process::ExitCode;

use striate_plan::movement::instances::MovementShape;
use striate_plan::movement::{MovementBudget, Objective, select_movement};

use crate::claims::{Claims, Requirement, quantile, sorted};
use crate::stopwatch::Stopwatch;

/// Number of states that are searched.
const STATES: u64 = 20;
/// Maximum number of moves that each search evaluates.
const MOVES: u64 = 40_000;
const LEAST_PER_SECOND: f64 = 100_000.0;

/// Runs the measurements and prints the claims; fails if one does not hold.
pub fn run() -> ExitCode {
    match measure() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("striate-bench movement: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> io::Result<bool> {
    let mut claims = Claims::new(Box::new(io::sink()));
    let bar = Requirement::AtLeast(LEAST_PER_SECOND);
    let random = MovementShape {
        sites: 32,
        racks: 8,
        k: 2,
        r: 2,
        extra_reads: 0,
        blocks: 2_000,
        group: 1,
        partners: 24,
    };
    for (shape, bar) in [
        (random, bar),
        (MovementShape { group: 8, ..random }, bar),
        (MovementShape { sites: 98, racks: 14, k: 6, r: 3, ..random }, Requirement::Stated),
        (MovementShape { sites: 98, racks: 14, k: 6, r: 3, group: 8, ..random }, Requirement::Stated),
        (MovementShape { sites: 1_000, racks: 50, ..random }, Requirement::Stated),
    ] {
        let MovementShape { sites, k, r, group, partners, .. } = shape;
        let shape_name = format!("{sites} sites, RS({k},{r}), {partners} partners, groups of {group}");
        for (objective, name) in [(Objective::published(), "published"), (Objective::improved(), "improved")]
        {
            let rates = sorted((0..STATES).map(|seed| rate(shape, objective, seed)).collect());
            let claim = format!("{shape_name}, {name}: candidate moves per second");
            let spread = format!("slowest {:.0}, fastest {:.0}", rates[0], quantile(&rates, 1.0));
            claims.judge(&claim, bar, quantile(&rates, 0.5), &spread, true)?;
        }
    }
    Ok(claims.all_hold())
}

/// Returns the moves evaluated per second of processor time in one search.
fn rate(shape: MovementShape, objective: Objective, seed: u64) -> f64 {
    // The improved objective assumes reads that ask for one extra chunk.
    let extra_reads = usize::from(objective.counts_requests());
    let instance = MovementShape { extra_reads, ..shape }.draw(seed);
    let all: Vec<_> = instance.blocks.iter().map(|block| block.id).collect();
    let state = objective.state(instance.sites, instance.blocks, &instance.requests, instance.traffic);
    let watch = Stopwatch::start();
    let budget = MovementBudget { moves: MOVES, patience: usize::MAX };
    let found = std::hint::black_box(select_movement(&state, objective, all, budget));
    found.evaluated as f64 * 1e9 / watch.nanoseconds() as f64
}
