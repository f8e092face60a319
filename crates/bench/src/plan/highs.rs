//! HiGHS on the paper's integer program and on a smaller one, with one thread.

use std::num::NonZeroU32;

use highs::{Col, HighsModelStatus, RowProblem, Sense};
use striate_plan::solver::access::AccessProblem;

/// Formulation of the problem for the solver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formulation {
    /// Eq. 1–3 as published: s_ij and a_j binary, |Q|·a_j ≥ Σ_i s_ij.
    Published,
    /// As few binaries and as tight as we know how: a_j only, if the transfers of a block cost the same from every
    /// site; otherwise s_ij ≤ a_j with s_ij continuous.
    Reduced,
}

impl Formulation {
    pub fn name(self) -> &'static str {
        match self {
            Formulation::Published => "the published",
            Formulation::Reduced => "a reduced",
        }
    }
}

/// Result of HiGHS.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// Least cost found; infinite if no solution was found.
    pub cost: f64,
    /// True if the cost was proved optimal.
    pub is_optimal: bool,
}

/// Solves a problem until its optimum is proved or `limit_s` seconds have passed.
pub fn solve(problem: &AccessProblem, formulation: Formulation, limit_s: f64) -> Verdict {
    let (model, constant) = match formulation {
        Formulation::Published => (published(problem), 0.0),
        Formulation::Reduced if is_uniform(problem) => (cover(problem), transfers(problem)),
        Formulation::Reduced => (tight(problem), 0.0),
    };
    let verdict = prove(model, limit_s);
    Verdict { cost: verdict.cost + constant, ..verdict }
}

/// Minimises a model until its optimum is proved or `limit_s` seconds have passed.
pub fn prove(model: RowProblem, limit_s: f64) -> Verdict {
    let mut model = model.optimise(Sense::Minimise);
    model.make_quiet();
    model.set_threads(NonZeroU32::MIN);
    model.set_option("parallel", "off");
    model.set_option("mip_rel_gap", 0.0);
    model.set_option("mip_abs_gap", 1e-7);
    model.set_option("time_limit", limit_s);
    let solved = model.solve();
    let is_optimal = solved.status() == HighsModelStatus::Optimal;
    let objective = solved.objective_value();
    let cost = if objective.is_finite() { objective } else { f64::INFINITY };
    Verdict { cost, is_optimal }
}

fn is_uniform(problem: &AccessProblem) -> bool {
    problem.blocks().all(|block| block.options.windows(2).all(|pair| pair[0].transfer == pair[1].transfer))
}

/// Returns the transfer cost of a uniform problem, which is the same in every plan.
fn transfers(problem: &AccessProblem) -> f64 {
    let of = |block: striate_plan::solver::access::AccessBlock<'_>| {
        block.options.first().map_or(0.0, |option| block.need as f64 * option.transfer)
    };
    problem.blocks().map(of).sum()
}

fn sites(model: &mut RowProblem, problem: &AccessProblem) -> Vec<Col> {
    problem.overheads().iter().map(|&overhead| model.add_integer_column(overhead, 0..=1)).collect()
}

fn published(problem: &AccessProblem) -> RowProblem {
    let mut model = RowProblem::default();
    let accessed = sites(&mut model, problem);
    let mut fetched_at: Vec<Vec<(Col, f64)>> = vec![Vec::new(); accessed.len()];
    for block in problem.blocks() {
        let mut row = Vec::new();
        for option in block.options {
            let fetched = model.add_integer_column(option.transfer, 0..=1);
            fetched_at[option.site].push((fetched, -1.0));
            row.push((fetched, 1.0));
        }
        model.add_row(block.need as f64.., row);
    }
    for (site, mut row) in fetched_at.into_iter().enumerate().filter(|(_, row)| !row.is_empty()) {
        row.push((accessed[site], problem.block_count() as f64));
        model.add_row(0.0.., row);
    }
    model
}

fn cover(problem: &AccessProblem) -> RowProblem {
    let mut model = RowProblem::default();
    let accessed = sites(&mut model, problem);
    for block in problem.blocks() {
        let row: Vec<(Col, f64)> = block.options.iter().map(|option| (accessed[option.site], 1.0)).collect();
        model.add_row(block.need as f64.., row);
    }
    model
}

fn tight(problem: &AccessProblem) -> RowProblem {
    let mut model = RowProblem::default();
    let accessed = sites(&mut model, problem);
    for block in problem.blocks() {
        let mut row = Vec::new();
        for option in block.options {
            let fetched = model.add_column(option.transfer, 0..=1);
            model.add_row(0.0.., vec![(accessed[option.site], 1.0), (fetched, -1.0)]);
            row.push((fetched, 1.0));
        }
        model.add_row(block.need as f64.., row);
    }
    model
}
