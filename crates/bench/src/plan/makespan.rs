//! Plans of queries over packed objects: the gap to the optimum, and the planning time.

use std::io;

use highs::{Col, RowProblem};
use striate_plan::solver::makespan::instances::{Pieces, Shape, USUAL_QUEUE};
use striate_plan::solver::makespan::{
    MakespanProblem, MakespanWorkspace, USUAL_WEIGHT, check_makespan, solve,
};

use super::{Extent, highs as reference, options};
use crate::claims::{Claims, Requirement, quantile, sorted};
use crate::stopwatch::Stopwatch;

/// Seconds after which HiGHS gives up on an instance.
pub const LIMIT_S: f64 = 30.0;
/// Timings per instance; the best counts.
const REPEATS: usize = 5;
/// c where asking counts: five transfers of 50 KB, as EC-Store measured.
const REQUEST: f64 = 5.0;
const ASKING: [(f64, &str); 2] = [(0.0, "c = 0"), (REQUEST, "c = 5")];

pub const KINDS: [(Pieces, &str); 5] = [
    (Pieces::Rs, "RS(6,3)"),
    (Pieces::Lrc, "LRC(6,2,2)"),
    (Pieces::LrcWithCopies, "LRC(6,2,2) with copies"),
    (Pieces::HalfSplit, "half split"),
    (Pieces::Local, "LRC(6,2,2), neighbours"),
];

/// Claims the processor time of planning.
pub fn claim_speeds(claims: &mut Claims, extent: &Extent) -> io::Result<()> {
    for (pieces, kind) in KINDS {
        for (request, asking) in ASKING {
            for (count, bar) in [(10, None), (20, None), (100, Some(100.0))] {
                let shape =
                    Shape { sites: 98, count, pieces, queue: USUAL_QUEUE, request, weight: USUAL_WEIGHT };
                let times = (0..extent.speed_instances / 4).map(|seed| best_us(&shape, seed));
                let times = sorted(times.collect());
                let spread =
                    format!("p99 {:.1}, slowest {:.1}", quantile(&times, 0.99), quantile(&times, 1.0));
                let claim = format!(
                    "98 sites, {kind}, {count} pieces, {asking}: processor time of a plan, median, µs"
                );
                let bar = bar.map_or(Requirement::Stated, Requirement::AtMost);
                claims.judge(&claim, bar, quantile(&times, 0.5), &spread, true)?;
            }
        }
    }
    Ok(())
}

/// Returns the microseconds of the fastest of several calls, after one that is not timed.
fn best_us(shape: &Shape, seed: u64) -> f64 {
    let (mut problem, mut workspace) = (MakespanProblem::default(), MakespanWorkspace::default());
    shape.draw(seed, &mut problem);
    let mut time = || {
        let watch = Stopwatch::start();
        let plan = solve(std::hint::black_box(&problem), &mut workspace);
        std::hint::black_box(plan.expect("every instance has a plan").cost);
        watch.nanoseconds() as f64 / 1e3
    };
    time();
    (0..REPEATS).map(|_| time()).fold(f64::INFINITY, f64::min)
}

/// Claims the cost above HiGHS's optimum, with and without c, including short queues, where pieces compete for sites.
pub fn claim_gaps(claims: &mut Claims, extent: &Extent) -> io::Result<()> {
    for (request, asking) in ASKING {
        for count in [5, 10, 20] {
            let mut tally = Tally::default();
            for (queue, sites) in [(USUAL_QUEUE, 32), (USUAL_QUEUE / 5.0, 32), (USUAL_QUEUE, 98)] {
                for (pieces, kind) in KINDS {
                    let shape = Shape { sites, count, pieces, queue, request, weight: USUAL_WEIGHT };
                    let before = tally.gaps.len();
                    for seed in 0..extent.makespan_instances {
                        tally.compare(&shape, seed);
                    }
                    let gaps = &tally.gaps[before..];
                    let worst = gaps.iter().copied().fold(0.0, f64::max);
                    println!(
                        "   {sites} sites, {kind}, queues of {queue}: {:.2}, worst {worst:.2}",
                        mean(gaps)
                    );
                }
            }
            let spread = format!(
                "worst {:.2}; proved to be within {:.2} in the mean; {} of {} not proved by HiGHS",
                tally.gaps.iter().copied().fold(0.0, f64::max),
                mean(&tally.own),
                tally.unproved,
                tally.gaps.len()
            );
            let claim = format!("{count} packed pieces, {asking}: cost above the optimum by HiGHS, mean, %");
            claims.judge(&claim, Requirement::AtMost(1.0), mean(&tally.gaps), &spread, tally.below == 0)?;
        }
    }
    Ok(())
}

pub fn mean(sample: &[f64]) -> f64 {
    sample.iter().sum::<f64>() / sample.len().max(1) as f64
}

#[derive(Default)]
struct Tally {
    problem: MakespanProblem,
    workspace: MakespanWorkspace,
    /// Gap to HiGHS's cost, in %.
    gaps: Vec<f64>,
    /// Gap to the plan's own bound, in %.
    own: Vec<f64>,
    unproved: usize,
    /// Number of plans below a proved optimum, or bounds above one.
    below: usize,
}

impl Tally {
    fn compare(&mut self, shape: &Shape, seed: u64) {
        shape.draw(seed, &mut self.problem);
        let plan = solve(&self.problem, &mut self.workspace).expect("every instance has a plan");
        check_makespan(&self.problem, &plan).expect("every plan is legal");
        let verdict = reference::prove(model(&self.problem), LIMIT_S);
        let tolerance = 1e-6 * plan.cost.max(1.0);
        let is_below = plan.cost < verdict.cost - tolerance || plan.lower_bound > verdict.cost + tolerance;
        self.below += usize::from(verdict.is_optimal && is_below);
        self.unproved += usize::from(!verdict.is_optimal);
        self.gaps.push(100.0 * (plan.cost / verdict.cost - 1.0).max(0.0));
        self.own.push(100.0 * plan.gap());
    }
}

/// T + w X as an integer program: v = 1 for each slot that is read, y for each option, a for each site. One row for
/// each piece and site states that the site is asked.
fn model(problem: &MakespanProblem) -> RowProblem {
    let mut model = RowProblem::default();
    let weight = problem.weight();
    let last = model.add_column(1.0, 0.0..);
    let asked: Vec<Col> = problem
        .queues()
        .iter()
        .map(|_| model.add_integer_column(weight * problem.request(), 0..=1))
        .collect();
    let end = |(queue, &asked): (&f64, &Col)| vec![(last, 1.0), (asked, -(queue + problem.request()))];
    let mut ends: Vec<Vec<(Col, f64)>> = problem.queues().iter().zip(&asked).map(end).collect();
    options::read_all(&mut model, &problem.pieces, &asked, |model, slot, _| {
        let read = model.add_integer_column(weight * slot.load(), 0..=1);
        ends[slot.site].push((read, -slot.transfer));
        read
    });
    for row in ends.into_iter().filter(|row| row.len() > 2) {
        model.add_row(0.0.., row);
    }
    model
}
