//! The cost of a load direction table of the paper's size, 90 nodes and 2,004 partitions with the demands of a fit's
//! requests; and tables of several sizes as references for another solver (`prove/proving/load_direction.py`).

use std::time::Duration;

use serde::Serialize;
use striate_codec::ChunkSet;
use striate_plan::read::options::{degraded_options, one_degraded_option};
use striate_plan::{DirectionProblem, LoadDirection};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::placement::place_on;
use super::{FITS, NODES, PARTITIONS, Table, requests};

/// Timings per table; the fastest counts.
const ROUNDS: usize = 5;
/// Seconds of requests from which demands are computed.
const DEMANDS_S: f64 = 800.0;
/// Sizes of the checked tables: nodes and partitions.
const SIZES: [(usize, usize); 4] = [(12, 24), (30, 180), (60, 600), (NODES, PARTITIONS)];

/// A timed table.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedTable {
    /// Code, options and norm.
    pub name: String,
    /// Solving time, in milliseconds.
    pub ms: f64,
    /// Share of its value by which another table may be better.
    pub gap: f64,
}

type Solve = fn(&DirectionProblem) -> LoadDirection;

/// Problem (1) in serialised form.
#[derive(Clone, Debug, Serialize)]
pub struct Instance {
    /// Name of the instance.
    pub name: String,
    /// Each node's Q_j in bytes and S_j in bytes per second.
    pub nodes: Vec<(f64, f64)>,
    /// Each partition's D_i, and the nodes of its options, the normal read first.
    pub partitions: Vec<(f64, Vec<Vec<usize>>)>,
}

/// An instance and its solutions.
#[derive(Clone, Debug, Serialize)]
pub struct SolvedInstance {
    /// The problem.
    pub instance: Instance,
    /// Solution by the ℓ2 norm.
    pub squares: Answer,
    /// Solution by the ℓ∞ norm.
    pub maximum: Answer,
}

/// A solution and its solving time.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// F: value of the objective.
    pub value: f64,
    /// The solver's own lower bound on F.
    pub lower_bound: f64,
    /// Shares of each partition's options.
    pub shares: Vec<Vec<f64>>,
    /// Solving time in milliseconds, the minimum over several rounds.
    pub ms: f64,
}

impl Instance {
    /// Creates a table of one of the paper's codes. Each partition has the normal read and either one degraded read
    /// or all of them.
    pub fn new(table: Table, nodes: usize, partitions: usize, all_options: bool, same_rates: bool) -> Self {
        let (code, mut rng) = (table.code(), SmallRng::seed_from_u64(1));
        let placed = place_on(&code, nodes, partitions, 1);
        let mut demands = vec![1.0; partitions];
        for request in requests::draw(&FITS[2], table, DEMANDS_S, 1) {
            demands[request.partition % partitions] += f64::from(request.bytes) / DEMANDS_S;
        }
        let mut node = |_| {
            let queue = rng.random_range(0.0..1_000.0f64).powi(2);
            (queue, if same_rates { 1.0 } else { rng.random_range(0.3..3.0) })
        };
        let of_nodes = (0..nodes).map(&mut node).collect();
        let all = ChunkSet::first(code.n());
        let of_partition = |(partition, demand): (usize, f64)| {
            let (sites, index) = (&placed[partition / code.k()], partition % code.k());
            let degraded = match all_options {
                true => degraded_options(&code, index, &all),
                false => one_degraded_option(&code, index, &all, &mut rng).into_iter().collect(),
            };
            let nodes = |option: ChunkSet| option.iter().map(|chunk| sites[chunk].0 as usize - 1).collect();
            let normal = std::iter::once(index).collect();
            (demand, std::iter::once(normal).chain(degraded).map(nodes).collect())
        };
        let partitions_of = demands.into_iter().enumerate().map(of_partition).collect();
        let (options, rates) = (
            if all_options { "all degraded reads" } else { "one degraded read" },
            if same_rates { "equal nodes" } else { "unequal nodes" },
        );
        let name = format!("{code}, {nodes} nodes, {partitions} partitions, {options}, {rates}");
        Self { name, nodes: of_nodes, partitions: partitions_of }
    }

    /// Returns the problem for the solver.
    pub fn problem(&self) -> DirectionProblem {
        let mut problem = DirectionProblem::new(self.nodes.iter().copied());
        for (demand, options) in &self.partitions {
            problem.push_partition(*demand, options.iter().map(Vec::as_slice));
        }
        problem
    }
}

/// Solves tables of several sizes. `uptime` is the machine's real clock.
pub fn solve_instances(uptime: impl Fn() -> Duration) -> Vec<SolvedInstance> {
    let mut solved = Vec::new();
    for (nodes, partitions) in SIZES {
        for table in [Table::One, Table::Two] {
            for (all_options, same_rates) in [(false, true), (false, false), (true, false)] {
                let instance = Instance::new(table, nodes, partitions, all_options, same_rates);
                let problem = instance.problem();
                let answer = |solve: Solve| {
                    let (direction, ms) = timed(&uptime, || solve(&problem));
                    let shares = (0..problem.len()).map(|partition| direction.shares(partition).to_vec());
                    let (value, lower_bound) = (direction.value, direction.lower_bound);
                    Answer { value, lower_bound, shares: shares.collect(), ms }
                };
                let squares = answer(DirectionProblem::least_squares);
                let maximum = answer(DirectionProblem::least_maximum);
                solved.push(SolvedInstance { instance, squares, maximum });
            }
        }
    }
    solved
}

/// Times the tables of both codes by both norms, with one degraded read and with all. `uptime` is the machine's real
/// clock.
pub fn measure(uptime: impl Fn() -> Duration) -> Vec<TimedTable> {
    let norms: [(&str, Solve); 2] =
        [("ℓ2", DirectionProblem::least_squares), ("ℓ∞", DirectionProblem::least_maximum)];
    let mut tables = Vec::new();
    for table in [Table::One, Table::Two] {
        for (options, all_options) in [("one degraded read", false), ("all", true)] {
            let problem = Instance::new(table, NODES, PARTITIONS, all_options, true).problem();
            for (norm, solve) in norms {
                let (direction, ms) = timed(&uptime, || solve(&problem));
                let gap = 1.0 - direction.lower_bound / direction.value;
                tables.push(TimedTable { name: format!("{}, {options}, {norm}", table.code()), ms, gap });
            }
        }
    }
    tables
}

/// Returns the result of `run` and the minimum time in milliseconds.
fn timed<T>(uptime: &impl Fn() -> Duration, run: impl Fn() -> T) -> (T, f64) {
    let once = || {
        let began = uptime();
        let answer = std::hint::black_box(run());
        (answer, (uptime() - began).as_secs_f64() * 1e3)
    };
    let first = once();
    (1..ROUNDS).map(|_| once()).fold(first, |best, other| if other.1 < best.1 { other } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_the_papers_size_are_proved_optimal() {
        let timed = measure(|| Duration::ZERO);
        assert_eq!(timed.len(), 8);
        assert!(timed.iter().all(|table| table.gap <= 1e-5), "{timed:?}");
        assert_eq!(Instance::new(Table::One, NODES, PARTITIONS, false, true).problem().len(), PARTITIONS);
    }
}
