//! How many candidate moves (b, s, d) Algorithm 1 evaluates in a second of processor time, with 24 partners for each block.

use std::io;
use std::process::ExitCode;

use striate_plan::movement::instances::MovementShape;
use striate_plan::movement::{MovementBudget, Objective, select_movement};

use crate::claims::{Bar, Claims, quantile, sorted};
use crate::stopwatch::Stopwatch;

/// States that are searched.
const STATES: u64 = 20;
/// Moves that each search evaluates at most.
const MOVES: u64 = 40_000;
const LEAST_PER_SECOND: f64 = 100_000.0;

/// Measures, and prints the claims; fails if one does not hold.
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
    for (sites, racks, k, r, bar) in [
        (32, 8, 2, 2, Bar::AtLeast(LEAST_PER_SECOND)),
        (98, 14, 6, 3, Bar::Stated),
        (1_000, 50, 2, 2, Bar::Stated),
    ] {
        let shape = MovementShape { sites, racks, k, r, blocks: 2_000, partners: 24 };
        for (objective, name) in [(Objective::published(), "published"), (Objective::improved(), "improved")]
        {
            let rates = sorted((0..STATES).map(|seed| rate(shape, objective, seed)).collect());
            let claim =
                format!("{sites} sites, RS({k},{r}), 24 partners, {name}: candidate moves per second");
            let spread = format!("slowest {:.0}, fastest {:.0}", rates[0], quantile(&rates, 1.0));
            claims.judge(&claim, bar, quantile(&rates, 0.5), &spread, true)?;
        }
    }
    Ok(claims.all_hold())
}

/// Moves evaluated in a second of processor time, in one search.
fn rate(shape: MovementShape, objective: Objective, seed: u64) -> f64 {
    let instance = shape.draw(seed);
    let all: Vec<_> = instance.blocks.iter().map(|block| block.id).collect();
    let mut state = objective.state(instance.sites, instance.blocks, instance.traffic);
    let watch = Stopwatch::start();
    let budget = MovementBudget { moves: MOVES, patience: usize::MAX };
    let found = std::hint::black_box(select_movement(&mut state, objective, all, budget));
    found.evaluated as f64 * 1e9 / watch.nanoseconds() as f64
}
