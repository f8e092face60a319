//! Requests whose optimum cannot be proved in microseconds: the quality of the plan found within the work budget.

use std::io;

use striate_plan::solver::access::instances::Shape;
use striate_plan::solver::access::{AccessProblem, AccessWorkspace, solve};

use super::highs::{self, Formulation};
use super::{Extent, speed};
use crate::claims::{Claims, Requirement, quantile, sorted};

/// Work units of the long run that plans are compared with; it takes some seconds.
const LONG_RUN: u64 = 40_000_000;

/// Claims the cost above the better of HiGHS (reduced model) and our own long run, and the planning time.
pub fn claim_gaps(claims: &mut Claims, extent: &Extent) -> io::Result<()> {
    let (mut problem, mut workspace) = (AccessProblem::default(), AccessWorkspace::default());
    for (hot, title) in [(0.0, ""), (0.2, ", 20% hot sites")] {
        for blocks in [20, 50, 100] {
            let shape = Shape { sites: 98, k: 6, r: 3, blocks, hot, spread: 0.0 };
            let (mut above, mut bounds, mut times, mut by_highs) =
                (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for seed in 0..extent.gap_instances {
                shape.draw(seed, &mut problem);
                let run = speed::run(&problem, extent.budget, &mut workspace);
                let own = solve(&problem, LONG_RUN, &mut workspace).expect("a plan").cost;
                let theirs = highs::solve(&problem, Formulation::Reduced, extent.gap_limit_s).cost;
                above.push(100.0 * (run.cost / own.min(theirs) - 1.0));
                by_highs.push(100.0 * (theirs / own.min(theirs) - 1.0));
                bounds.push(100.0 * run.gap);
                times.push(run.time_us);
            }
            let mean = |sample: &[f64]| sample.iter().sum::<f64>() / sample.len() as f64;
            let spread = format!(
                "greatest {:.2}; proved to be within {:.2} in the mean; HiGHS after {} s {:.2}; {} instances",
                above.iter().copied().fold(0.0, f64::max),
                mean(&bounds),
                extent.gap_limit_s,
                mean(&by_highs),
                above.len()
            );
            let claim = format!("{}{title}: cost above the best known, mean, %", speed::name(&shape));
            claims.judge(&claim, Requirement::AtMost(1.0), mean(&above), &spread, true)?;
            let times = sorted(times);
            let spread = format!("fastest {:.0}, slowest {:.0}", times[0], quantile(&times, 1.0));
            let claim = format!("{}{title}: processor time of that plan, median, µs", speed::name(&shape));
            claims.judge(&claim, Requirement::AtMost(200.0), quantile(&times, 0.5), &spread, true)?;
        }
    }
    Ok(())
}
