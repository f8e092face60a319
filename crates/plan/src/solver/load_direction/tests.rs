//! Tables against their certificates, and against slow and exact solvers.

use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::seq::index::sample;
use rand::{Rng, SeedableRng};
use striate_codec::{ChunkSet, Code};

use super::*;
use crate::read::options::{NodeState, OptionMetric, degraded_options, one_degraded_option};

/// A problem with visible parts: nodes as (Q_j, S_j), partitions as D_i and their options.
#[derive(Clone, Debug)]
struct Instance {
    nodes: Vec<(f64, f64)>,
    partitions: Vec<(f64, Vec<Vec<usize>>)>,
}

impl Instance {
    fn problem(&self) -> DirectionProblem {
        let mut problem = DirectionProblem::new(self.nodes.iter().copied());
        for (demand, options) in &self.partitions {
            problem.push_partition(*demand, options.iter().map(Vec::as_slice));
        }
        problem
    }

    /// Returns L_j + Q_j by Eq. 2, with the shares of `direction`.
    fn totals(&self, direction: &LoadDirection) -> Vec<f64> {
        let mut totals: Vec<f64> = self.nodes.iter().map(|(queue, _)| *queue).collect();
        for (partition, (demand, options)) in self.partitions.iter().enumerate() {
            for (option, share) in options.iter().zip(direction.shares(partition)) {
                option.iter().for_each(|&node| totals[node] += demand * share);
            }
        }
        totals
    }

    /// Checks that Eq. 3 to 5 hold, and that the direction's figures follow from its shares.
    fn check(&self, direction: &LoadDirection, norm: impl Fn(&[f64]) -> f64) -> Result<(), TestCaseError> {
        for partition in 0..self.partitions.len() {
            let shares = direction.shares(partition);
            prop_assert!(shares.iter().all(|share| (0.0..=1.0 + 1e-9).contains(share)), "{shares:?}");
            prop_assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
        }
        let totals = self.totals(direction);
        prop_assert!(totals.iter().zip(&direction.totals).all(|(a, b)| (a - b).abs() <= 1e-9 * (1.0 + a)));
        let value = norm(&totals);
        prop_assert!((value - direction.value).abs() <= 1e-9 * (1.0 + value));
        prop_assert!(direction.lower_bound <= direction.value);
        Ok(())
    }

    fn squares(&self, totals: &[f64]) -> f64 {
        self.nodes.iter().zip(totals).map(|((_, rate), total)| total * total / rate / 2.0).sum()
    }

    fn maximum(&self, totals: &[f64]) -> f64 {
        self.nodes.iter().zip(totals).map(|((_, rate), total)| total / rate).fold(0.0, f64::max)
    }

    /// Returns the least ½ Σ (L_j + Q_j)² / S_j for partitions of two options: the least stationary point over all
    /// faces of the box, where each share is 0, 1 or free.
    fn least_squares_by_faces(&self) -> f64 {
        let count = self.partitions.len();
        let mut least = f64::INFINITY;
        for face in 0..3usize.pow(count as u32) {
            let state: Vec<usize> = (0..count).map(|place| face / 3usize.pow(place as u32) % 3).collect();
            let mut totals: Vec<f64> = self.nodes.iter().map(|(queue, _)| *queue).collect();
            // Column of partition i: the change of the nodes' loads when a share of 1 moves to the normal read.
            let column = |partition: usize, node: usize| {
                let (demand, options) = &self.partitions[partition];
                demand * (f64::from(options[0].contains(&node)) - f64::from(options[1].contains(&node)))
            };
            for (partition, state) in state.iter().enumerate() {
                let (demand, options) = &self.partitions[partition];
                options[usize::from(*state != 1)].iter().for_each(|&node| totals[node] += demand);
            }
            let free: Vec<usize> = (0..count).filter(|&partition| state[partition] == 2).collect();
            let inner = |a: &dyn Fn(usize) -> f64, b: &dyn Fn(usize) -> f64| -> f64 {
                (0..self.nodes.len()).map(|node| a(node) * b(node) / self.nodes[node].1).sum()
            };
            let mut rows: Vec<Vec<f64>> = free
                .iter()
                .map(|&i| {
                    let products =
                        free.iter().map(|&j| inner(&|node| column(i, node), &|node| column(j, node)));
                    products.chain([-inner(&|node| column(i, node), &|node| totals[node])]).collect()
                })
                .collect();
            let Some(shares) = solve_linear(&mut rows) else { continue };
            if shares.iter().any(|share| !(-1e-12..=1.0 + 1e-12).contains(share)) {
                continue;
            }
            for (&partition, share) in free.iter().zip(shares) {
                (0..self.nodes.len()).for_each(|node| totals[node] += share * column(partition, node));
            }
            least = least.min(self.squares(&totals));
        }
        least
    }

    /// Returns the least maximum by the simplex method on a dense tableau, with Bland's rule: maximises u, where
    /// T = T₀ − u and T₀ is the maximum of normal reads.
    fn least_maximum_by_simplex(&self) -> f64 {
        let mut totals: Vec<f64> = self.nodes.iter().map(|(queue, _)| *queue).collect();
        for (demand, options) in &self.partitions {
            options[0].iter().for_each(|&node| totals[node] += demand);
        }
        let begin = self.maximum(&totals);
        let degraded: Vec<(usize, usize)> = (0..self.partitions.len())
            .flat_map(|partition| {
                (1..self.partitions[partition].1.len()).map(move |option| (partition, option))
            })
            .collect();
        let (columns, rows) = (degraded.len() + 1, self.nodes.len() + self.partitions.len());
        let mut tableau = vec![vec![0.0; columns + rows + 1]; rows + 1];
        for (node, (_, rate)) in self.nodes.iter().enumerate() {
            for (place, &(partition, option)) in degraded.iter().enumerate() {
                let (demand, options) = &self.partitions[partition];
                let on = |option: &Vec<usize>| f64::from(option.contains(&node));
                tableau[node][place] = demand * (on(&options[option]) - on(&options[0]));
            }
            tableau[node][columns - 1] = *rate;
            tableau[node][columns + rows] = begin * rate - totals[node];
        }
        for (partition, row) in tableau[self.nodes.len()..rows].iter_mut().enumerate() {
            for (place, &(of, _)) in degraded.iter().enumerate() {
                row[place] = f64::from(of == partition);
            }
            row[columns + rows] = 1.0;
        }
        (0..rows).for_each(|row| tableau[row][columns + row] = 1.0);
        tableau[rows][columns - 1] = -1.0;
        let mut basis: Vec<usize> = (columns..columns + rows).collect();
        while let Some(entering) = (0..columns + rows).find(|&column| tableau[rows][column] < -1e-9) {
            let ratio = |row: usize| tableau[row][columns + rows] / tableau[row][entering];
            let bounding = (0..rows).filter(|&row| tableau[row][entering] > 1e-9);
            let leaving = bounding
                .min_by(|&a, &b| ratio(a).total_cmp(&ratio(b)).then(basis[a].cmp(&basis[b])))
                .expect("the maximum is not below 0");
            let pivot = tableau[leaving][entering];
            tableau[leaving].iter_mut().for_each(|value| *value /= pivot);
            let pivots = tableau[leaving].clone();
            for row in (0..=rows).filter(|&row| row != leaving) {
                let factor = tableau[row][entering];
                tableau[row].iter_mut().zip(&pivots).for_each(|(value, pivot)| *value -= factor * pivot);
            }
            basis[leaving] = entering;
        }
        begin - tableau[rows][columns + rows]
    }
}

/// Gauss–Jordan elimination on rows that end with their right-hand side. Returns `None` for a singular matrix.
fn solve_linear(rows: &mut [Vec<f64>]) -> Option<Vec<f64>> {
    let count = rows.len();
    for column in 0..count {
        let pivot =
            (column..count).max_by(|&a, &b| rows[a][column].abs().total_cmp(&rows[b][column].abs()))?;
        rows.swap(column, pivot);
        if rows[column][column].abs() < 1e-9 {
            return None;
        }
        let scale = rows[column][column];
        rows[column].iter_mut().for_each(|value| *value /= scale);
        let pivots = rows[column].clone();
        for row in (0..count).filter(|&row| row != column) {
            let factor = rows[row][column];
            rows[row].iter_mut().zip(&pivots).for_each(|(value, pivot)| *value -= factor * pivot);
        }
    }
    Some(rows.iter().map(|row| row[count]).collect())
}

/// Random partitions of a code on `sites` sites with random queues and rates; the demands are skewed.
fn instance(code: &str, sites: usize, partitions: usize, all_options: bool, seed: u64) -> Instance {
    let code: Code = code.parse().expect("a code");
    let mut rng = SmallRng::seed_from_u64(seed);
    let node = |rng: &mut SmallRng| (rng.random_range(0.0..30.0f64).powi(2), rng.random_range(0.5..2.0));
    let nodes = (0..sites).map(|_| node(&mut rng)).collect();
    let all = ChunkSet::first(code.n());
    let options_of: Vec<Vec<ChunkSet>> = (0..code.k())
        .map(|index| if all_options { degraded_options(&code, index, &all) } else { Vec::new() })
        .collect();
    let mut order: Vec<usize> = (0..partitions).collect();
    let partition = |rank: usize, rng: &mut SmallRng| {
        let placed = sample(rng, sites, code.n()).into_vec();
        let index = rank % code.k();
        let mut options = options_of[index].clone();
        if !all_options {
            options.extend(one_degraded_option(&code, index, &all, rng));
        }
        let on_sites = |option: &ChunkSet| option.iter().map(|chunk| placed[chunk]).collect();
        let options = std::iter::once(vec![placed[index]]).chain(options.iter().map(on_sites)).collect();
        (20_000.0 / (1.0 + rank as f64).powf(1.2), options)
    };
    order.sort_by_key(|rank| rank * 7919 % partitions.max(1));
    let partitions = order.into_iter().map(|rank| partition(rank, &mut rng)).collect();
    Instance { nodes, partitions }
}

#[test]
fn load_is_levelled_as_far_as_the_options_allow() {
    let direct = |queues: [f64; 2], rates: [f64; 2], demand: f64| {
        let nodes = queues.into_iter().zip(rates).collect();
        let problem = Instance { nodes, partitions: vec![(demand, vec![vec![0], vec![1]])] }.problem();
        [problem.least_squares(), problem.least_maximum()].map(|direction| direction.shares(0)[0])
    };
    let near = |shares: [f64; 2], expected: f64| {
        assert!(shares.iter().all(|share| (share - expected).abs() < 1e-5), "{shares:?} for {expected}");
    };
    near(direct([2.0, 0.0], [1.0, 1.0], 4.0), 0.25);
    near(direct([10.0, 0.0], [1.0, 1.0], 4.0), 0.0);
    near(direct([0.0, 10.0], [1.0, 1.0], 4.0), 1.0);
    // (4x) / 3 = 4 (1 − x): the faster node gets three times as much.
    near(direct([0.0, 0.0], [3.0, 1.0], 4.0), 0.75);
}

#[test]
fn what_is_not_asked_for_is_read_normally_and_nothing_is_a_table_too() {
    let problem =
        Instance { nodes: vec![(5.0, 1.0), (0.0, 1.0)], partitions: vec![(0.0, vec![vec![0], vec![1]])] };
    assert_eq!(problem.problem().least_squares().shares(0), [1.0, 0.0]);
    let nothing = DirectionProblem::new([(3.0, 1.0), (4.0, 2.0)]);
    assert!(nothing.is_empty());
    assert_eq!(
        (nothing.least_squares().value, nothing.least_maximum().value),
        (3.0f64.powi(2) / 2.0 + 4.0, 3.0)
    );
    assert_eq!(DirectionProblem::new([]).least_squares().value, 0.0);
}

/// For a demand that is small compared to the queues, problem (1) has the solution of least marginal load first.
#[test]
fn the_table_of_one_small_request_is_least_marginal_load_first() {
    for seed in 0..200 {
        let mut of = instance(["rs(6,3)", "lrc(6,2,2)"][seed as usize % 2], 12, 1, true, seed);
        of.partitions[0].0 = 1e-6;
        let direction = of.problem().least_squares();
        let chosen =
            direction.shares(0).iter().position(|share| *share > 0.999).expect("one option has it all");
        let load = |option: &Vec<usize>| -> f64 {
            let states =
                option.iter().map(|&node| NodeState { queue: of.nodes[node].0, rate: of.nodes[node].1 });
            OptionMetric::MarginalLoad.of(1e-6, states)
        };
        let loads: Vec<f64> = of.partitions[0].1.iter().map(load).collect();
        let least = loads.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(loads[chosen] <= least * (1.0 + 1e-9), "{seed}: {loads:?}, not {chosen}");
    }
}

#[test]
fn options_are_drawn_by_their_shares() {
    let of =
        Instance { nodes: vec![(2.0, 1.0), (0.0, 1.0)], partitions: vec![(4.0, vec![vec![0], vec![1]])] };
    let direction = of.problem().least_squares();
    let mut rng = SmallRng::seed_from_u64(3);
    let normal = (0..10_000).filter(|_| direction.draw(0, &mut rng) == 0).count();
    // 2,500 are expected, with a standard deviation of 43.
    assert!((2_300..2_700).contains(&normal), "{normal}");
    assert_eq!(draw(&[0.0, 1.0 - 1e-16, 0.0], &mut rng), 1);
    assert_eq!(draw(&[0.0, 0.0], &mut rng), 0, "nothing has a share: the first");
}

/// The paper's size, with one degraded read (§3.1) and with all of them: both solvers converge.
#[test]
fn tables_of_90_nodes_and_2004_partitions_are_proved_optimal() {
    for (code, all) in [("rs(6,3)", false), ("lrc(6,2,2)", false), ("rs(6,3)", true), ("lrc(6,2,2)", true)] {
        let of = instance(code, 90, 2_004, all, 1);
        let problem = of.problem();
        assert_eq!(problem.len(), 2_004);
        let gap = |direction: &LoadDirection| 1.0 - direction.lower_bound / direction.value;
        let (squares, maximum) = (gap(&problem.least_squares()), gap(&problem.least_maximum()));
        assert!(squares <= TOLERANCE_OF_SQUARES, "{code}, all: {all}: {squares:e}");
        assert!(maximum <= TOLERANCE_OF_MAXIMUM, "{code}, all: {all}: {maximum:e}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// With one degraded read beside the normal one, the box-constrained QP and the LP agree with exact solvers.
    #[test]
    fn tables_are_as_good_as_exact_solvers_find(
        which in 0usize..3, sites in 10usize..14, partitions in 1usize..6, seed: u64,
    ) {
        let of = instance(["rs(4,2)", "lrc(4,2,1)", "rs(2,2)"][which], sites, partitions, false, seed);
        let direction = of.problem().least_squares();
        of.check(&direction, |totals| of.squares(totals))?;
        let exact = of.least_squares_by_faces();
        prop_assert!((direction.value - exact).abs() <= 2.0 * TOLERANCE_OF_SQUARES * exact, "{} for {exact}", direction.value);
        prop_assert!(direction.lower_bound <= exact * (1.0 + 1e-9));
        let direction = of.problem().least_maximum();
        of.check(&direction, |totals| of.maximum(totals))?;
        let exact = of.least_maximum_by_simplex();
        prop_assert!((direction.value - exact).abs() <= 2.0 * TOLERANCE_OF_MAXIMUM * exact, "{} for {exact}", direction.value);
        prop_assert!(direction.lower_bound <= exact * (1.0 + 1e-9));
    }

    /// With all degraded reads, no option with a share costs more than the cheapest (the KKT conditions of ℓ2), and the
    /// LP agrees with an exact solver. Further options never raise the optimum.
    #[test]
    fn tables_over_all_options_meet_the_kkt_conditions(which in 0usize..2, partitions in 1usize..5, seed: u64) {
        let code = ["rs(4,2)", "lrc(4,2,1)"][which];
        let of = instance(code, 12, partitions, true, seed);
        let direction = of.problem().least_squares();
        of.check(&direction, |totals| of.squares(totals))?;
        let price = |option: &Vec<usize>| -> f64 {
            option.iter().map(|&node| direction.totals[node] / of.nodes[node].1).sum()
        };
        let mut excess = 0.0;
        for (partition, (demand, options)) in of.partitions.iter().enumerate() {
            let prices: Vec<f64> = options.iter().map(price).collect();
            let least = prices.iter().copied().fold(f64::INFINITY, f64::min);
            let shares = direction.shares(partition);
            excess += prices.iter().zip(shares).map(|(price, share)| demand * share * (price - least)).sum::<f64>();
        }
        prop_assert!(excess <= 2.0 * TOLERANCE_OF_SQUARES * direction.value, "{excess} of {}", direction.value);
        let fewer: Vec<_> =
            of.partitions.iter().map(|(demand, options)| (*demand, options[..2].to_vec())).collect();
        let fewer = Instance { nodes: of.nodes.clone(), partitions: fewer };
        prop_assert!(direction.value <= fewer.problem().least_squares().value * (1.0 + 2.0 * TOLERANCE_OF_SQUARES));
        let direction = of.problem().least_maximum();
        of.check(&direction, |totals| of.maximum(totals))?;
        let exact = of.least_maximum_by_simplex();
        prop_assert!((direction.value - exact).abs() <= 2.0 * TOLERANCE_OF_MAXIMUM * exact, "{} for {exact}", direction.value);
    }
}
