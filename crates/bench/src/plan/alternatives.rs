//! Plans of queries over packed objects by Eq. 1: the gap to the optimum within the work budget of a read, and the
//! planning time.

use std::io;

use highs::{Col, RowProblem};
use striate_plan::solver::alternatives::instances::Shape;
use striate_plan::solver::alternatives::{
    AlternativesProblem, AlternativesWorkspace, check_alternatives, solve,
};

use super::makespan::{KINDS, LIMIT_S, mean};
use super::{Extent, highs as reference, options};
use crate::claims::{Claims, Requirement, quantile, sorted};
use crate::stopwatch::Stopwatch;

/// Claims the cost above HiGHS's optimum and the processor time of planning.
pub fn claim_gaps(claims: &mut Claims, extent: &Extent) -> io::Result<()> {
    for count in [5, 10, 20] {
        let mut tally = Tally::default();
        for sites in [32, 98] {
            for (pieces, kind) in KINDS {
                let before = tally.gaps.len();
                for seed in 0..extent.makespan_instances {
                    tally.compare(&Shape { sites, count, pieces }, seed, extent.budget);
                }
                println!("   {sites} sites, {kind}: {:.2}", mean(&tally.gaps[before..]));
            }
        }
        let instances = tally.gaps.len();
        let spread = format!(
            "worst {:.2}; {} of {instances} proved, to be within {:.2} in the mean; {} not proved by HiGHS",
            tally.gaps.iter().copied().fold(0.0, f64::max),
            tally.own.iter().filter(|gap| **gap == 0.0).count(),
            mean(&tally.own),
            tally.unproved
        );
        let claim = format!("{count} packed pieces, Eq. 1: cost above the optimum by HiGHS, mean, %");
        claims.judge(&claim, Requirement::AtMost(1.0), mean(&tally.gaps), &spread, tally.below == 0)?;
        let times = sorted(tally.times_us);
        let spread = format!("p99 {:.0}, slowest {:.0}", quantile(&times, 0.99), quantile(&times, 1.0));
        let claim = format!("{count} packed pieces, Eq. 1: processor time of that plan, median, µs");
        claims.judge(&claim, Requirement::AtMost(200.0), quantile(&times, 0.5), &spread, true)?;
    }
    Ok(())
}

#[derive(Default)]
struct Tally {
    problem: AlternativesProblem,
    workspace: AlternativesWorkspace,
    /// Gap to HiGHS's cost, in %.
    gaps: Vec<f64>,
    /// Gap to the plan's own bound, in %.
    own: Vec<f64>,
    times_us: Vec<f64>,
    unproved: usize,
    /// Number of plans below a proved optimum, or bounds above one.
    below: usize,
}

impl Tally {
    fn compare(&mut self, shape: &Shape, seed: u64, budget: u64) {
        shape.draw(seed, &mut self.problem);
        // The first call grows the workspace.
        solve(&self.problem, budget, &mut self.workspace).expect("every instance has a plan");
        let watch = Stopwatch::start();
        let plan = solve(std::hint::black_box(&self.problem), budget, &mut self.workspace);
        self.times_us.push(watch.nanoseconds() as f64 / 1e3);
        let plan = plan.expect("every instance has a plan");
        check_alternatives(&self.problem, &plan).expect("every plan is legal");
        let verdict = reference::prove(model(&self.problem), LIMIT_S);
        let tolerance = 1e-6 * plan.cost.max(1.0);
        let is_below = plan.cost < verdict.cost - tolerance || plan.lower_bound > verdict.cost + tolerance;
        self.below += usize::from(verdict.is_optimal && is_below);
        self.unproved += usize::from(!verdict.is_optimal);
        self.gaps.push(100.0 * (plan.cost / verdict.cost - 1.0).max(0.0));
        self.own.push(100.0 * plan.gap());
    }
}

/// Eq. 1 as an integer program: a for each site, y for each option, and v ≤ y for each slot of an option. v need not
/// be integral: given a and y, options are matroids.
fn model(problem: &AlternativesProblem) -> RowProblem {
    let mut model = RowProblem::default();
    let asked: Vec<Col> =
        problem.overheads().iter().map(|&overhead| model.add_integer_column(overhead, 0..=1)).collect();
    options::read_all(&mut model, &problem.pieces, &asked, |model, slot, is_chosen| {
        let read = model.add_column(slot.load(), 0..=1);
        model.add_row(0.0.., vec![(is_chosen, 1.0), (read, -1.0)]);
        read
    });
    model
}
