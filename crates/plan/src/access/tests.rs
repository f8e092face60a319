//! The solver against brute force, against the papers' examples, and in corners.

use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::seq::index::sample;
use rand::{Rng, SeedableRng};

use super::*;

const AMPLE: u64 = 10_000_000;

/// A block: its need, and its chunks as (site, transfer).
type Chunks = (usize, Vec<(usize, f64)>);

fn problem(overheads: &[f64], blocks: &[Chunks]) -> AccessProblem {
    let mut problem = AccessProblem::new(overheads.iter().copied());
    for (need, chunks) in blocks {
        problem.push_block(*need, chunks.iter().map(|&(site, transfer)| AccessOption { site, transfer }));
    }
    problem
}

/// Blocks (need, sites) whose transfers cost 1 each.
fn even(overheads: &[f64], blocks: &[(usize, &[usize])]) -> AccessProblem {
    let chunks = |sites: &[usize]| sites.iter().map(|&site| (site, 1.0)).collect();
    problem(overheads, &blocks.iter().map(|(need, sites)| (*need, chunks(sites))).collect::<Vec<_>>())
}

/// The least cost over all sets of open sites.
fn least_cost_by_trying_all(problem: &AccessProblem) -> f64 {
    let sites = problem.overheads().len();
    let cost_of = |open: u32| {
        let is_open = |site: usize| open >> site & 1 == 1;
        let mut cost: f64 = (0..sites).filter(|&site| is_open(site)).map(|site| problem.overheads()[site]).sum();
        for block in problem.blocks() {
            let open = block.options.iter().filter(|option| is_open(option.site));
            let mut transfers: Vec<f64> = open.map(|option| option.transfer).collect();
            if transfers.len() < block.need {
                return f64::INFINITY;
            }
            transfers.sort_by(f64::total_cmp);
            cost += transfers[..block.need].iter().sum::<f64>();
        }
        cost
    };
    (0..1 << sites).map(cost_of).fold(f64::INFINITY, f64::min)
}

/// The cost of the plan, checked, and what is proved about it.
fn solved(problem: &AccessProblem, budget: u64) -> (f64, f64) {
    let mut workspace = AccessWorkspace::default();
    let plan = solve(problem, budget, &mut workspace).expect("a problem with a plan");
    check_access(problem, &plan).expect("a legal plan");
    (plan.cost, plan.lower_bound)
}

fn assert_costs(problem: &AccessProblem, cost: f64) {
    let (found, bound) = solved(problem, AMPLE);
    assert!((found - cost).abs() < 1e-9 && bound == found, "{found} with bound {bound}, not {cost}");
}

/// Some o_j that are often equal or zero, or any.
fn overheads(sites: usize) -> impl Strategy<Value = Vec<f64>> {
    let one = prop_oneof![Just(0.0), (1u8..4).prop_map(f64::from), 0.1f64..20.0];
    proptest::collection::vec(one, sites)
}

/// Blocks of any need on sites below `sites`; z_i and m_j that are all one, of few values, or any.
fn blocks(sites: usize) -> impl Strategy<Value = Vec<Chunks>> {
    let rates = prop_oneof![
        Just(vec![1.0; sites]),
        proptest::collection::vec((0u8..3).prop_map(f64::from), sites),
        proptest::collection::vec(0.0f64..3.0, sites),
    ];
    let block = (proptest::collection::vec(any::<bool>(), sites), any::<u8>(), 0.5f64..4.0);
    (rates, proptest::collection::vec(block, 0..8)).prop_map(|(rates, blocks)| {
        let chunks_of = |(has, need, size): (Vec<bool>, u8, f64)| {
            let chunks = has.iter().zip(&rates).enumerate().filter(|(_, (has, _))| **has);
            let chunks: Vec<_> = chunks.map(|(site, (_, rate))| (site, rate * size)).collect();
            (usize::from(need) % (chunks.len() + 1), chunks)
        };
        blocks.into_iter().map(chunks_of).collect()
    })
}

fn small_problems() -> impl Strategy<Value = AccessProblem> {
    let parts = (1usize..10).prop_flat_map(|sites| (overheads(sites), blocks(sites)));
    parts.prop_map(|(overheads, blocks)| problem(&overheads, &blocks))
}

/// `blocks` blocks at random sites, o_j lognormal around 5, m_j between 1 and 1 + `spread`.
fn random_problem(seed: u64, sites: usize, (k, r): (usize, usize), blocks: usize, spread: f64) -> AccessProblem {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut problem = AccessProblem::new((0..sites).map(|_| 5.0 * rng.random_range(-1.0f64..1.0).exp()));
    let rates: Vec<f64> = (0..sites).map(|_| 1.0 + spread * rng.random::<f64>()).collect();
    for _ in 0..blocks {
        let placed = sample(&mut rng, sites, k + r);
        problem.push_block(k, placed.iter().map(|site| AccessOption { site, transfer: rates[site] }));
    }
    problem
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn plans_cost_what_trying_all_sets_of_sites_finds(problem in small_problems()) {
        let (cost, bound) = solved(&problem, AMPLE);
        let least = least_cost_by_trying_all(&problem);
        prop_assert!((cost - least).abs() <= 1e-9 * least, "{cost} instead of {least}");
        prop_assert_eq!(bound, cost);
    }

    /// Whatever the budget, the bound holds and the plan is legal.
    #[test]
    fn a_small_budget_gives_a_legal_plan_and_a_true_bound(problem in small_problems(), budget in 0u64..40) {
        let (cost, bound) = solved(&problem, budget);
        let least = least_cost_by_trying_all(&problem);
        prop_assert!(bound <= least * (1.0 + 1e-9) && least <= cost * (1.0 + 1e-9), "{bound} {least} {cost}");
    }
}
