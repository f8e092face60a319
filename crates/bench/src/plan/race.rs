//! Compares optima with HiGHS, instance by instance.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use striate_plan::solver::access::instances::{Shape, draw_any};
use striate_plan::solver::access::{AccessProblem, AccessWorkspace};

use super::highs::{self, Formulation};
use super::{AMPLE, Extent, speed};
use crate::claims::{Claims, Requirement};

/// Relative tolerance between costs: HiGHS's integrality tolerance is 1e-6.
const TOLERANCE: f64 = 1e-6;
/// Seconds after which HiGHS gives up on an instance.
const LIMIT_S: f64 = 60.0;

/// Compares instances of every kind, and of the shapes that are timed.
pub fn claim_optima(claims: &mut Claims, extent: &Extent) -> io::Result<()> {
    let paper = |blocks| Shape { sites: 32, k: 2, r: 2, blocks, hot: 0.2, spread: 0.0 };
    let wide = |blocks, spread| Shape { sites: 98, k: 6, r: 3, blocks, hot: 0.0, spread };
    let shapes = [paper(5), paper(10), paper(20), wide(5, 0.0), wide(10, 0.0), wide(5, 1.0), wide(10, 1.0)];
    for formulation in [Formulation::Published, Formulation::Reduced] {
        let mut tally = Tally::default();
        let mut problem = AccessProblem::default();
        for seed in 0..extent.race_instances {
            draw_any(seed, &mut problem);
            tally.compare(&problem, formulation);
        }
        for shape in shapes {
            for seed in 0..extent.race_instances / 40 {
                shape.draw(seed, &mut problem);
                tally.compare(&problem, formulation);
            }
        }
        let claim = format!(
            "{} random instances, optima that differ from HiGHS's, {} model",
            tally.compared,
            formulation.name()
        );
        let spread = format!("{} not proved by HiGHS, {} not by us", tally.unproved_by_highs, tally.unproved);
        claims.judge(
            &claim,
            Requirement::AtMost(0.0),
            tally.different as f64,
            &spread,
            tally.unproved == 0,
        )?;
    }
    Ok(())
}

#[derive(Default)]
struct Tally {
    workspace: AccessWorkspace,
    compared: usize,
    different: usize,
    unproved: usize,
    unproved_by_highs: usize,
}

impl Tally {
    fn compare(&mut self, problem: &AccessProblem, formulation: Formulation) {
        let own = speed::run(problem, AMPLE, &mut self.workspace);
        let verdict = highs::solve(problem, formulation, LIMIT_S);
        self.compared += 1;
        self.unproved += usize::from(own.gap > 0.0);
        if !verdict.is_optimal {
            self.unproved_by_highs += 1;
        } else if (own.cost - verdict.cost).abs() > TOLERANCE * own.cost.max(1.0) {
            self.different += 1;
            eprintln!("own {} and HiGHS's {} differ: {problem:?}", own.cost, verdict.cost);
        }
    }
}

/// Writes the optima that HiGHS proves for the instances of seeds 0, 1, …: one line each, with the seed and the cost.
pub fn write_optima(path: &Path, instances: u64) -> io::Result<()> {
    let mut text = String::from(
        "# Optima of access problems by HiGHS: seed of instances::draw_any, least cost. Written by striate-bench plan.\n",
    );
    let mut problem = AccessProblem::default();
    for seed in 0..instances {
        draw_any(seed, &mut problem);
        let verdict = highs::solve(&problem, Formulation::Published, LIMIT_S);
        if verdict.is_optimal {
            writeln!(text, "{seed} {:.6}", verdict.cost).expect("a string takes any text");
        }
    }
    std::fs::write(path, text)
}
