//! How long our own solver takes, and how much HiGHS takes more.

use std::io;

use striate_plan::access::instances::Shape;
use striate_plan::access::{AccessProblem, AccessWorkspace, check_access, solve};

use super::claims::{Bar, Claims, quantile, sorted};
use super::highs::{self, Formulation};
use super::{AMPLE, Extent};
use crate::stopwatch::Stopwatch;

/// How often each instance is solved; the best time counts.
const REPEATS: usize = 5;

/// Microseconds of the best repetition, and the plan's gap and work.
pub struct Run {
    pub time_us: f64,
    pub cost: f64,
    pub gap: f64,
    pub work: u64,
}

/// Solves and checks one instance.
pub fn run(problem: &AccessProblem, budget: u64, workspace: &mut AccessWorkspace) -> Run {
    let mut nanoseconds = u64::MAX;
    for _ in 0..REPEATS {
        let watch = Stopwatch::start();
        let plan = solve(std::hint::black_box(problem), budget, workspace);
        std::hint::black_box(plan.expect("every instance has a plan").cost);
        nanoseconds = nanoseconds.min(watch.nanoseconds());
    }
    let plan = solve(problem, budget, workspace).expect("every instance has a plan");
    check_access(problem, &plan).expect("every plan is legal");
    Run { time_us: nanoseconds as f64 / 1e3, cost: plan.cost, gap: plan.gap(), work: plan.work }
}

/// What is claimed of optimal plans: sites, code, blocks, and the 99th percentile in µs.
const SPEEDS: [(usize, (usize, usize), usize, Option<f64>); 9] = [
    (32, (2, 2), 1, None),
    (32, (2, 2), 5, None),
    (32, (2, 2), 10, Some(15.0)),
    (32, (2, 2), 20, Some(50.0)),
    (32, (2, 2), 50, None),
    (32, (2, 2), 100, Some(300.0)),
    (98, (6, 3), 5, None),
    (98, (6, 3), 10, Some(200.0)),
    (98, (6, 3), 20, None),
];

pub fn claim_speeds(claims: &mut Claims, extent: &Extent) -> io::Result<()> {
    for (hot, spread, title) in
        [(0.0, 0.0, ""), (0.2, 0.0, ", 20% hot sites"), (0.0, 1.0, ", m_j between 1 and 2")]
    {
        for (sites, (k, r), blocks, bar) in SPEEDS {
            let shape = Shape { sites, k, r, blocks, hot, spread };
            // Beyond 20 blocks optima of problems with unequal m_j are not a matter of microseconds.
            let budget = if spread > 0.0 && blocks > 20 { extent.budget } else { AMPLE };
            let bar = bar.filter(|_| spread == 0.0).map_or(Bar::Stated, Bar::AtMost);
            claim_speed(claims, &shape, bar, budget, extent, title)?;
        }
    }
    Ok(())
}

fn claim_speed(
    claims: &mut Claims,
    shape: &Shape,
    bar: Bar,
    budget: u64,
    extent: &Extent,
    title: &str,
) -> io::Result<()> {
    let (mut problem, mut workspace) = (AccessProblem::default(), AccessWorkspace::default());
    let mut runs = Vec::new();
    for seed in 0..extent.speed_instances {
        shape.draw(seed, &mut problem);
        runs.push(run(&problem, budget, &mut workspace));
    }
    let times = sorted(runs.iter().map(|run| run.time_us).collect());
    let work = sorted(runs.iter().map(|run| run.work as f64).collect());
    let unproved = runs.iter().filter(|run| run.gap > 0.0).count();
    let gap = runs.iter().map(|run| run.gap).sum::<f64>() / runs.len() as f64;
    let spread = format!(
        "median {:.1}, slowest {:.1}; work median {:.0}, p99 {:.0}; {unproved} of {} not proved, mean gap {:.2}%",
        quantile(&times, 0.5),
        quantile(&times, 1.0),
        quantile(&work, 0.5),
        quantile(&work, 0.99),
        runs.len(),
        100.0 * gap
    );
    let claim = format!("{}{title}: optimal plan, p99 of processor time, µs", name(shape));
    claims.judge(&claim, bar, quantile(&times, 0.99), &spread, unproved == 0)
}

/// How a shape is called in claims.
pub fn name(shape: &Shape) -> String {
    format!("{} sites, RS({},{}), {} blocks", shape.sites, shape.k, shape.r, shape.blocks)
}

/// Against HiGHS, which has been called before and is given the better of two runs.
pub fn claim_ratios(claims: &mut Claims, extent: &Extent) -> io::Result<()> {
    let (mut problem, mut workspace) = (AccessProblem::default(), AccessWorkspace::default());
    for blocks in [10, 20] {
        let shape = Shape { sites: 32, k: 2, r: 2, blocks, hot: 0.0, spread: 0.0 };
        for formulation in [Formulation::Published, Formulation::Reduced] {
            let mut ratios = Vec::new();
            let mut theirs = Vec::new();
            for seed in 0..extent.ratio_instances {
                shape.draw(seed, &mut problem);
                let own_us = run(&problem, AMPLE, &mut workspace).time_us;
                let their_us =
                    (0..2).map(|_| time_highs(&problem, formulation)).fold(f64::INFINITY, f64::min);
                ratios.push(their_us / own_us);
                theirs.push(their_us / 1e3);
            }
            let (ratios, theirs) = (sorted(ratios), sorted(theirs));
            let spread = format!(
                "quartiles {:.0}–{:.0}, least {:.0}; HiGHS median {:.2} ms, p99 {:.2} ms",
                quantile(&ratios, 0.25),
                quantile(&ratios, 0.75),
                ratios[0],
                quantile(&theirs, 0.5),
                quantile(&theirs, 0.99)
            );
            let claim = format!("{}: HiGHS / own, {} model", name(&shape), formulation.name());
            claims.judge(&claim, Bar::AtLeast(100.0), quantile(&ratios, 0.5), &spread, true)?;
        }
    }
    Ok(())
}

fn time_highs(problem: &AccessProblem, formulation: Formulation) -> f64 {
    let watch = Stopwatch::start();
    std::hint::black_box(highs::solve(problem, formulation, 60.0));
    watch.nanoseconds() as f64 / 1e3
}
