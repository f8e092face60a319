//! What a load direction table of the paper's size costs: 90 nodes and 2,004 partitions, with the demands of a fit's requests.

use std::time::Duration;

use striate_codec::ChunkSet;
use striate_plan::read::options::{degraded_options, one_degraded_option};
use striate_plan::{DirectionProblem, LoadDirection};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::simulation::place;
use super::{FITS, NODES, PARTITIONS, Table, requests};

/// Times of each table, of which the least counts.
const ROUNDS: usize = 5;
/// Seconds of requests that make the demands.
const DEMANDS_S: f64 = 800.0;

/// A table, and what it took.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    /// Code, options and norm.
    pub name: String,
    /// Milliseconds.
    pub ms: f64,
    /// By what part of its value another table may be better.
    pub gap: f64,
}

type Solve = fn(&DirectionProblem) -> LoadDirection;

/// Problem (1) of a table of the paper: each partition with the normal read and one degraded read, or all of them.
pub fn problem(table: Table, all_options: bool) -> DirectionProblem {
    let (code, mut rng) = (table.code(), SmallRng::seed_from_u64(1));
    let placed = place(&code, 1);
    let mut demands = vec![1.0; PARTITIONS];
    for request in requests::draw(&FITS[2], table, DEMANDS_S, 1) {
        demands[request.partition] += f64::from(request.bytes) / DEMANDS_S;
    }
    let mut problem =
        DirectionProblem::new((0..NODES).map(|_| (rng.random_range(0.0..1_000.0f64).powi(2), 1.0)));
    let all = ChunkSet::first(code.n());
    for (partition, demand) in demands.into_iter().enumerate() {
        let (sites, index) = (&placed[partition / code.k()], partition % code.k());
        let degraded = match all_options {
            true => degraded_options(&code, index, &all),
            false => one_degraded_option(&code, index, &all, &mut rng).into_iter().collect(),
        };
        let nodes = |option: ChunkSet| option.iter().map(|chunk| sites[chunk].0 as usize - 1).collect();
        let normal = std::iter::once(index).collect();
        let options: Vec<Vec<usize>> = std::iter::once(normal).chain(degraded).map(nodes).collect();
        problem.push_partition(demand, options.iter().map(Vec::as_slice));
    }
    problem
}

/// Times the tables of both codes, with one degraded read and all, by both norms. `uptime` is the machine's real clock.
pub fn measure(uptime: impl Fn() -> Duration) -> Vec<Timed> {
    let norms: [(&str, Solve); 2] =
        [("ℓ2", DirectionProblem::least_squares), ("ℓ∞", DirectionProblem::least_maximum)];
    let mut timed = Vec::new();
    for table in [Table::One, Table::Two] {
        for (options, all_options) in [("one degraded read", false), ("all", true)] {
            let problem = problem(table, all_options);
            for (norm, solve) in norms {
                let (mut ms, mut gap) = (f64::INFINITY, 0.0);
                for _ in 0..ROUNDS {
                    let began = uptime();
                    let direction = std::hint::black_box(solve(&problem));
                    ms = ms.min((uptime() - began).as_secs_f64() * 1e3);
                    gap = 1.0 - direction.lower_bound / direction.value;
                }
                timed.push(Timed { name: format!("{}, {options}, {norm}", table.code()), ms, gap });
            }
        }
    }
    timed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_the_papers_size_are_proved_optimal() {
        let timed = measure(|| Duration::ZERO);
        assert_eq!(timed.len(), 8);
        assert!(timed.iter().all(|table| table.gap <= 1e-5), "{timed:?}");
        assert_eq!(problem(Table::One, false).len(), PARTITIONS);
    }
}
