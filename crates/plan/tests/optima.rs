//! Compares the access planner with HiGHS. Its optima are in a table, so the test does not need HiGHS.

use striate_plan::solver::access::instances::draw_any;
use striate_plan::solver::access::{AccessProblem, AccessWorkspace, check_access, solve};

/// HiGHS proves costs to 1e-7 of one unit, and accepts integers to 1e-6.
const TOLERANCE: f64 = 2e-6;

#[test]
fn every_optimum_is_that_of_highs() {
    let (mut problem, mut workspace) = (AccessProblem::default(), AccessWorkspace::default());
    let mut compared = 0;
    for line in include_str!("data/access-optima.txt").lines().filter(|line| !line.starts_with('#')) {
        let (seed, cost) = line.split_once(' ').expect("a seed and a cost");
        let cost: f64 = cost.parse().expect("a cost");
        draw_any(seed.parse().expect("a seed"), &mut problem);
        let plan = solve(&problem, u64::MAX, &mut workspace).expect("every instance has a plan");
        check_access(&problem, &plan).expect("a legal plan");
        assert!(plan.is_optimal(), "seed {seed}: not proved");
        assert!(
            (plan.cost - cost).abs() <= TOLERANCE * cost.max(1.0),
            "seed {seed}: {} or {cost}",
            plan.cost
        );
        compared += 1;
    }
    assert!(compared >= 1_900, "only {compared} optima in the table");
}
