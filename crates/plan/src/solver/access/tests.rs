//! The solver against brute force, on the paper's examples, and in corner cases.

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

/// A problem of blocks (need, sites) whose transfers cost 1 each.
fn even(overheads: &[f64], blocks: &[(usize, &[usize])]) -> AccessProblem {
    let chunks = |sites: &[usize]| sites.iter().map(|&site| (site, 1.0)).collect();
    problem(overheads, &blocks.iter().map(|(need, sites)| (*need, chunks(sites))).collect::<Vec<_>>())
}

/// Returns the least cost over all sets of open sites.
fn least_cost_by_trying_all(problem: &AccessProblem) -> f64 {
    let sites = problem.overheads().len();
    let cost_of = |open: u32| {
        let is_open = |site: usize| open >> site & 1 == 1;
        let mut cost: f64 =
            (0..sites).filter(|&site| is_open(site)).map(|site| problem.overheads()[site]).sum();
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

/// Returns the cost of the plan, after checking it, and its bound.
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

/// Any o_j, often equal or zero.
fn overheads(sites: usize) -> impl Strategy<Value = Vec<f64>> {
    let one = prop_oneof![Just(0.0), (1u8..4).prop_map(f64::from), 0.1f64..20.0];
    proptest::collection::vec(one, sites)
}

/// Blocks of any need on sites below `sites`; z_i and m_j are all one, of few values, or arbitrary.
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

/// `blocks` blocks at random sites, with o_j lognormal around 5 and m_j between 1 and 1 + `spread`.
fn random_problem(
    seed: u64,
    sites: usize,
    (k, r): (usize, usize),
    blocks: usize,
    spread: f64,
) -> AccessProblem {
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

    /// With any budget, the bound holds and the plan is legal.
    #[test]
    fn a_small_budget_gives_a_legal_plan_and_a_true_bound(problem in small_problems(), budget in 0u64..40) {
        let (cost, bound) = solved(&problem, budget);
        let least = least_cost_by_trying_all(&problem);
        prop_assert!(bound <= least * (1.0 + 1e-9) && least <= cost * (1.0 + 1e-9), "{bound} {least} {cost}");
    }
}

/// Figure 2 of the paper: RS(2,1), A on S2, S3, S5 and B on S1, S3, S4; S5 is busy.
#[test]
fn figure_2_avoids_the_busy_site_and_needs_two_sites_after_the_movement() {
    let overheads = [5.0, 5.0, 5.0, 5.0, 20.0];
    let before = even(&overheads, &[(2, &[1, 2, 4]), (2, &[0, 2, 3])]);
    let mut workspace = AccessWorkspace::default();
    let plan = solve(&before, AMPLE, &mut workspace).unwrap();
    assert_eq!((plan.cost, plan.lower_bound), (3.0 * 5.0 + 4.0, 19.0));
    let sites: Vec<usize> =
        plan.chunks.iter().map(|chunk| before.block(chunk.block).options[chunk.option].site).collect();
    assert!(sites.contains(&2) && !sites.contains(&4), "{sites:?}");
    // Figure 2b: A's chunk on S5 has moved to S4.
    let after = even(&overheads, &[(2, &[1, 2, 3]), (2, &[0, 2, 3])]);
    assert_costs(&after, 2.0 * 5.0 + 4.0);
}

/// The slides' gallery of RS(2,1) blocks A to E: a page retrieves A, B and C; then A and E become popular.
#[test]
fn the_gallery_is_read_from_two_sites_and_a_and_e_after_one_movement_too() {
    let (a, b, c) = ([0, 1, 2], [1, 2, 3], [0, 1, 2]);
    let even_sites = [5.0; 6];
    assert_costs(&even(&even_sites, &[(2, &a), (2, &b), (2, &c)]), 2.0 * 5.0 + 6.0);
    let e = [2, 4, 5];
    assert_costs(&even(&even_sites, &[(2, &a), (2, &e)]), 3.0 * 5.0 + 4.0);
    let e_moved = [2, 1, 5];
    assert_costs(&even(&even_sites, &[(2, &a), (2, &e_moved)]), 2.0 * 5.0 + 4.0);
}

#[test]
fn a_request_for_nothing_costs_nothing() {
    assert_costs(&even(&[], &[]), 0.0);
    assert_costs(&even(&[5.0, 3.0], &[]), 0.0);
    assert_costs(&even(&[5.0, 3.0], &[(0, &[0, 1]), (0, &[])]), 0.0);
}

#[test]
fn one_block_is_read_from_its_cheapest_sites() {
    assert_costs(&even(&[4.0, 1.0, 3.0, 2.0], &[(2, &[0, 1, 2, 3])]), 1.0 + 2.0 + 2.0);
    assert_costs(&problem(&[1.0, 1.0, 1.0], &[(1, vec![(0, 3.0), (1, 2.0), (2, 4.0)])]), 3.0);
}

#[test]
fn a_block_that_needs_all_it_has_opens_its_sites_for_the_others() {
    // Late binding with δ = r, or a block that has lost r chunks.
    assert_costs(&even(&[9.0, 9.0, 1.0, 1.0], &[(2, &[0, 1]), (2, &[0, 1, 2, 3])]), 18.0 + 4.0);
}

#[test]
fn sites_that_cost_nothing_are_taken_wherever_they_help() {
    assert_costs(&even(&[0.0, 5.0, 4.0], &[(2, &[0, 1, 2]), (1, &[0, 1])]), 4.0 + 3.0);
    assert_costs(&even(&[0.0; 4], &[(2, &[0, 1, 2, 3]), (3, &[0, 1, 2])]), 5.0);
}

#[test]
fn a_dear_transfer_is_avoided_although_its_site_is_open() {
    // Block 1 needs site 0 in any case. Block 0 had better open site 1 than transfer for 10.
    let chunks = [(1, vec![(0, 10.0), (1, 1.0)]), (1, vec![(0, 1.0)])];
    assert_costs(&problem(&[5.0, 5.0], &chunks), 5.0 + 1.0 + 5.0 + 1.0);
}

#[test]
fn blocks_of_different_codes_share_sites() {
    let blocks: [(usize, &[usize]); 3] = [(1, &[0, 1, 2]), (2, &[2, 3, 4]), (4, &[0, 1, 3, 4, 5, 6])];
    // The third block takes four of its sites: 3 and 4 also serve the second block, and 0 or 1 the first.
    assert_costs(&even(&[2.0; 7], &blocks), 4.0 * 2.0 + 7.0);
}

#[test]
fn late_binding_asks_delta_chunks_more() {
    let sites: [&[usize]; 2] = [&[0, 1, 2, 3], &[2, 3, 4, 5]];
    let cost =
        |delta: usize| solved(&even(&[5.0; 6], &[(2 + delta, sites[0]), (2 + delta, sites[1])]), AMPLE).0;
    assert_eq!([cost(0), cost(1), cost(2)], [2.0 * 5.0 + 4.0, 4.0 * 5.0 + 6.0, 6.0 * 5.0 + 8.0]);
}

#[test]
fn what_has_no_plan_is_refused_by_name() {
    let refused = |problem: &AccessProblem| {
        solve(problem, AMPLE, &mut AccessWorkspace::default()).map(|plan| plan.cost).unwrap_err()
    };
    let error = refused(&even(&[1.0; 3], &[(1, &[0]), (3, &[0, 2])]));
    assert_eq!(error, AccessError::TooFewOptions { block: 1, need: 3, options: 2 });
    assert!(error.to_string().contains("block 1"), "{error}");
    assert_eq!(refused(&even(&[1.0; 3], &[(1, &[2, 0, 2])])), AccessError::SiteTwice { block: 0, site: 2 });
    assert_eq!(refused(&even(&[1.0; 3], &[(1, &[3])])), AccessError::UnknownSite { block: 0, site: 3 });
    assert_eq!(refused(&even(&[-1.0], &[])), AccessError::NotACost { cost: -1.0 });
    let infinite = problem(&[1.0], &[(1, vec![(0, f64::INFINITY)])]);
    assert_eq!(refused(&infinite), AccessError::NotACost { cost: f64::INFINITY });
}

/// Blocks on equal sites, as when neighbouring keys are written together, are solved as one.
#[test]
fn a_hundred_blocks_on_the_same_sites_are_read_from_k_sites() {
    let sites: &[usize] = &[0, 1, 2, 3];
    assert_costs(&even(&[5.0, 4.0, 3.0, 2.0], &[(2, sites); 100]), 5.0 + 200.0);
    let sized = |size: f64| (2, vec![(0, size), (1, 2.0 * size), (2, 3.0 * size), (3, 9.0 * size)]);
    let blocks: Vec<Chunks> = (1..=100).map(|size| sized(f64::from(size))).collect();
    assert_costs(&problem(&[5.0; 4], &blocks), 10.0 + 3.0 * 5050.0);
}

/// Components are independent: the cost is the sum of theirs, however many there are.
#[test]
fn forty_separate_requests_cost_the_sum() {
    let overheads: Vec<f64> = (0..160).map(|site| f64::from(1 + site % 4)).collect();
    let sites: Vec<[usize; 4]> = (0..40).map(|i| [4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3]).collect();
    let blocks: Vec<(usize, &[usize])> = sites.iter().map(|sites| (2, &sites[..])).collect();
    assert_costs(&even(&overheads, &blocks), 40.0 * (1.0 + 2.0 + 2.0));
}

/// Every size yields a legal plan and a bound that a longer search does not refute.
#[test]
fn large_requests_have_legal_plans_and_bounds_that_hold() {
    for (sites, code, blocks) in [
        (32, (2, 2), 100),
        (98, (6, 3), 10),
        (98, (6, 3), 50),
        (98, (6, 3), 100),
        (150, (10, 4), 60),
        (150, (6, 3), 150),
        (150, (20, 4), 20),
    ] {
        for spread in [0.0, 1.0] {
            let problem = random_problem(7, sites, code, blocks, spread);
            let (short, long) = (solved(&problem, 500), solved(&problem, 20_000));
            assert!(
                short.1 <= long.0 * (1.0 + 1e-9) && long.0 <= short.0 * (1.0 + 1e-9),
                "{short:?} {long:?}"
            );
            assert!(long.1 >= 0.9 * long.0, "{sites} sites, {blocks} blocks, {spread}: {long:?}");
        }
    }
}

/// With transfers that differ by next to nothing, the other solver finds the same cost.
#[test]
fn the_search_of_the_complement_agrees_with_branching_on_prices() {
    for seed in 0..40 {
        let blocks = 5 + seed as usize % 12;
        let uniform = random_problem(seed, 32, (2, 2), blocks, 0.0);
        let general = random_problem(seed, 32, (2, 2), blocks, 1e-12);
        let (a, b) = (solved(&uniform, AMPLE), solved(&general, AMPLE));
        assert!((a.0 - b.0).abs() < 1e-8 * a.0 && a.0 == a.1 && b.0 == b.1, "seed {seed}: {a:?} {b:?}");
    }
}

/// A site that cannot be asked has no options; the plan is that of a problem without it.
#[test]
fn an_unavailable_site_is_as_if_it_were_not_there() {
    for seed in 0..20 {
        let whole = random_problem(seed, 20, (2, 2), 12, 0.5);
        let mut without = AccessProblem::new(whole.overheads().iter().copied());
        let mut dear = AccessProblem::new(
            whole.overheads().iter().enumerate().map(|(site, &cost)| if site == 3 { 1e6 } else { cost }),
        );
        for block in whole.blocks() {
            without.push_block(block.need, block.options.iter().copied().filter(|option| option.site != 3));
            dear.push_block(block.need, block.options.iter().copied());
        }
        let (a, b) = (solved(&without, AMPLE), solved(&dear, AMPLE));
        assert!((a.0 - b.0).abs() < 1e-9 * a.0, "seed {seed}: {a:?} {b:?}");
    }
}

#[test]
fn a_workspace_serves_problem_after_problem_as_a_new_one_would() {
    let mut workspace = AccessWorkspace::default();
    for seed in 0..60 {
        let sites = [8, 98, 20, 150][seed as usize % 4];
        let problem = random_problem(seed, sites, (2, 2), 1 + seed as usize % 30, (seed % 2) as f64);
        let again = solve(&problem, 3_000, &mut workspace).unwrap();
        let mut new = AccessWorkspace::default();
        assert_eq!(again, solve(&problem, 3_000, &mut new).unwrap(), "seed {seed}");
    }
}

#[test]
fn the_checker_finds_each_fault() {
    let problem = even(&[5.0, 4.0, 3.0], &[(2, &[0, 1, 2])]);
    let chunk = |block, option| AccessChunk { block, option };
    let check = |chunks: &[AccessChunk], cost, lower_bound| {
        check_access(&problem, &AccessPlan { chunks, cost, lower_bound, work: 0 })
    };
    let both = [chunk(0, 1), chunk(0, 2)];
    assert_eq!(check(&both, 9.0, 9.0), Ok(()));
    assert_eq!(check(&both, 9.0, 0.0), Ok(()));
    assert_eq!(check(&both[..1], 5.0, 5.0), Err(AccessFault::TooFew { block: 0, fetched: 1, need: 2 }));
    assert_eq!(check(&[both[0]; 2], 5.0, 5.0), Err(AccessFault::Twice { block: 0, option: 1 }));
    assert_eq!(check(&[chunk(0, 3)], 5.0, 5.0), Err(AccessFault::NoSuchOption { block: 0, option: 3 }));
    assert_eq!(check(&[chunk(1, 0)], 5.0, 5.0), Err(AccessFault::NoSuchOption { block: 1, option: 0 }));
    assert_eq!(check(&both, 8.0, 8.0), Err(AccessFault::Cost { actual: 9.0, claimed: 8.0 }));
    assert_eq!(check(&both, 9.0, 9.5), Err(AccessFault::LowerBound { cost: 9.0, lower_bound: 9.5 }));
}
