//! Time of our own solver, and HiGHS's time relative to it.

use std::io;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use striate_baselines::plan_cache::{cost_of, plan_greedily};
use striate_plan::solver::access::instances::Shape;
use striate_plan::solver::access::{AccessProblem, AccessWorkspace, check_access, solve};

use super::highs::{self, Formulation};
use super::{AMPLE, Extent};
use crate::claims::{Claims, Requirement, quantile, sorted};
use crate::stopwatch::Stopwatch;

/// Solutions per instance; the best time counts.
const REPEATS: usize = 5;

/// Microseconds of the fastest repetition, and the plan's cost and gap.
pub struct Run {
    pub time_us: f64,
    pub cost: f64,
    pub gap: f64,
}

/// Solves and checks one instance.
pub fn run(problem: &AccessProblem, budget: u64, workspace: &mut AccessWorkspace) -> Run {
    let time_us = (0..REPEATS).map(|_| time(problem, budget, workspace)).fold(f64::INFINITY, f64::min);
    let plan = solve(problem, budget, workspace).expect("every instance has a plan");
    check_access(problem, &plan).expect("every plan is legal");
    Run { time_us, cost: plan.cost, gap: plan.gap() }
}

/// Optimal plans of one shape, and the bar for the 99th percentile of their times.
struct Case {
    shape: Shape,
    bar: Requirement,
    budget: u64,
    title: &'static str,
    /// Best time of each instance, in µs.
    best_us: Vec<f64>,
}

/// Sites, k, r, and numbers of blocks with the bar in µs if there is one.
type Sizes = (usize, usize, usize, &'static [(usize, Option<f64>)]);

const SIZES: [Sizes; 2] = [
    (32, 2, 2, &[(1, None), (5, None), (10, Some(15.0)), (20, Some(50.0)), (50, None), (100, Some(300.0))]),
    (98, 6, 3, &[(5, None), (10, Some(200.0)), (20, None)]),
];

fn cases(extent: &Extent) -> Vec<Case> {
    let mut cases = Vec::new();
    for (hot, spread, title) in
        [(0.0, 0.0, ""), (0.2, 0.0, ", 20% hot sites"), (0.0, 1.0, ", m_j between 1 and 2")]
    {
        for (sites, k, r, requests) in SIZES {
            for &(blocks, bar) in requests {
                // Beyond 20 blocks, optima with unequal m_j take longer than microseconds.
                let budget = if spread > 0.0 && blocks > 20 { extent.budget } else { AMPLE };
                let bar = bar.filter(|_| spread == 0.0).map_or(Requirement::Stated, Requirement::AtMost);
                let shape = Shape { sites, k, r, blocks, hot, spread };
                let best_us = vec![f64::INFINITY; extent.speed_instances as usize];
                cases.push(Case { shape, bar, budget, title, best_us });
            }
        }
    }
    cases
}

/// Times each instance once per round, after an untimed call. A disturbance of some seconds then affects only one of
/// its times.
pub fn claim_speeds(claims: &mut Claims, extent: &Extent) -> io::Result<()> {
    let mut cases = cases(extent);
    let (mut problem, mut workspace) = (AccessProblem::default(), AccessWorkspace::default());
    for _ in 0..REPEATS {
        for case in &mut cases {
            for (seed, best_us) in case.best_us.iter_mut().enumerate() {
                case.shape.draw(seed as u64, &mut problem);
                time(&problem, case.budget, &mut workspace);
                *best_us = best_us.min(time(&problem, case.budget, &mut workspace));
            }
        }
    }
    cases.iter().try_for_each(|case| claim_speed(claims, case))
}

/// Returns the microseconds of one call.
fn time(problem: &AccessProblem, budget: u64, workspace: &mut AccessWorkspace) -> f64 {
    let watch = Stopwatch::start();
    let plan = solve(std::hint::black_box(problem), budget, workspace);
    std::hint::black_box(plan.expect("every instance has a plan").cost);
    watch.nanoseconds() as f64 / 1e3
}

fn claim_speed(claims: &mut Claims, case: &Case) -> io::Result<()> {
    let (mut problem, mut workspace) = (AccessProblem::default(), AccessWorkspace::default());
    let (mut gaps, mut work) = (Vec::new(), Vec::new());
    for seed in 0..case.best_us.len() as u64 {
        case.shape.draw(seed, &mut problem);
        let plan = solve(&problem, case.budget, &mut workspace).expect("every instance has a plan");
        check_access(&problem, &plan).expect("every plan is legal");
        gaps.push(plan.gap());
        work.push(plan.work as f64);
    }
    let (times, work) = (sorted(case.best_us.clone()), sorted(work));
    let unproved = gaps.iter().filter(|gap| **gap > 0.0).count();
    let spread = format!(
        "median {:.1}, slowest {:.1}; work median {:.0}, p99 {:.0}; {unproved} of {} not proved, mean gap {:.2}%",
        quantile(&times, 0.5),
        quantile(&times, 1.0),
        quantile(&work, 0.5),
        quantile(&work, 0.99),
        gaps.len(),
        100.0 * gaps.iter().sum::<f64>() / gaps.len() as f64
    );
    let claim = format!("{}{}: optimal plan, p99 of processor time, µs", name(&case.shape), case.title);
    claims.judge(&claim, case.bar, quantile(&times, 0.99), &spread, unproved == 0)
}

/// Name of a shape in claims.
pub fn name(shape: &Shape) -> String {
    format!("{} sites, RS({},{}), {} blocks", shape.sites, shape.k, shape.r, shape.blocks)
}

/// States how much more the plans of the published heuristic cost.
pub fn state_heuristic(claims: &mut Claims, extent: &Extent) -> io::Result<()> {
    let (mut problem, mut workspace) = (AccessProblem::default(), AccessWorkspace::default());
    for blocks in [5, 10, 20, 50, 100] {
        let shape = Shape { sites: 32, k: 2, r: 2, blocks, hot: 0.0, spread: 0.0 };
        let mut above = Vec::new();
        for seed in 0..extent.ratio_instances {
            shape.draw(seed, &mut problem);
            let mut rng = SmallRng::seed_from_u64(seed);
            let chunks = plan_greedily(&problem, &mut rng).expect("every instance has a plan");
            let least = solve(&problem, AMPLE, &mut workspace).expect("every instance has a plan").cost;
            above.push(100.0 * (cost_of(&problem, &chunks) / least - 1.0));
        }
        let mean = above.iter().sum::<f64>() / above.len() as f64;
        let above = sorted(above);
        let spread = format!("quartiles {:.1}–{:.1}", quantile(&above, 0.25), quantile(&above, 0.75));
        let claim = format!("{}: cost of the published heuristic above the least, mean, %", name(&shape));
        claims.judge(&claim, Requirement::Stated, mean, &spread, true)?;
    }
    Ok(())
}

/// Claims the speed relative to HiGHS, which is warmed up and gets the better of two runs.
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
            claims.judge(&claim, Requirement::AtLeast(100.0), quantile(&ratios, 0.5), &spread, true)?;
        }
    }
    Ok(())
}

fn time_highs(problem: &AccessProblem, formulation: Formulation) -> f64 {
    let watch = Stopwatch::start();
    std::hint::black_box(highs::solve(problem, formulation, 60.0));
    watch.nanoseconds() as f64 / 1e3
}
