//! The solver against brute force, against [`crate::solver::access`], and in corner cases.

use proptest::prelude::*;

use super::instances::{Pieces, Shape};
use super::*;
use crate::solver::access::{self, AccessOption, AccessProblem, AccessWorkspace, BUDGET_OF_200_US};
use crate::solver::piece_options::tests::{Slots, choices_of, one, push_all, small_pieces};
use crate::solver::piece_options::{NoOption, Slot, UNGROUPED};

const AMPLE: u64 = 10_000_000;

fn problem(overheads: &[f64], pieces: &[Vec<Slots>]) -> AlternativesProblem {
    let mut problem = AlternativesProblem::default();
    problem.reset(overheads.iter().copied());
    push_all(pieces, &mut problem.pieces);
    problem
}

/// Returns the cost, the bound, and the sites of each piece.
fn solved(problem: &AlternativesProblem, budget: u64) -> (f64, f64, Vec<Vec<usize>>) {
    let mut workspace = AlternativesWorkspace::default();
    let plan = solve(problem, budget, &mut workspace).expect("a problem with a plan");
    check_alternatives(problem, &plan).expect("a legal plan");
    let site = |&pick: &u32| problem.pieces.slots()[pick as usize].site;
    let sites = |piece| plan.picks_of(piece).iter().map(site).collect();
    (plan.cost, plan.lower_bound, (0..problem.pieces.piece_count()).map(sites).collect())
}

/// Returns the least cost over all sets of open sites and all choices of each piece.
fn least_cost_by_trying_all(problem: &AlternativesProblem) -> f64 {
    let pieces = &problem.pieces;
    let choices: Vec<Vec<Vec<Slot>>> =
        (0..pieces.piece_count()).map(|piece| choices_of(pieces, piece)).collect();
    let cost_of = |open: u32| {
        let is_open = |site: usize| open >> site & 1 == 1;
        let overheads = problem.overheads().iter().enumerate();
        let opened = overheads.filter(|(site, _)| is_open(*site)).map(|(_, overhead)| overhead).sum::<f64>();
        let least = |choices: &Vec<Vec<Slot>>| {
            let possible = choices.iter().filter(|slots| slots.iter().all(|slot| is_open(slot.site)));
            possible.map(|slots| slots.iter().map(Slot::load).sum()).fold(f64::INFINITY, f64::min)
        };
        opened + choices.iter().map(least).sum::<f64>()
    };
    (0..1u32 << problem.overheads().len()).map(cost_of).fold(f64::INFINITY, f64::min)
}

/// Up to four pieces over seven sites.
fn small_problem() -> impl Strategy<Value = AlternativesProblem> {
    let overhead = prop_oneof![Just(0.0), Just(5.0), 0.0f64..3.0, 5.0f64..30.0];
    (proptest::collection::vec(overhead, 7), small_pieces(4))
        .prop_map(|(overheads, pieces)| problem(&overheads, &pieces))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn plans_cost_what_trying_all_sets_of_sites_finds(problem in small_problem()) {
        let (cost, bound, _) = solved(&problem, AMPLE);
        let least = least_cost_by_trying_all(&problem);
        prop_assert!((cost - least).abs() <= 1e-9 * least, "{cost} instead of {least}");
        prop_assert_eq!(bound, cost);
    }

    /// With any budget, no bound is above the optimum and no plan below it.
    #[test]
    fn the_optimum_lies_between_the_bound_and_the_plan(problem in small_problem(), budget in 0u64..60) {
        let (cost, bound, _) = solved(&problem, budget);
        let least = least_cost_by_trying_all(&problem);
        prop_assert!(bound <= least * (1.0 + 1e-9) && least <= cost * (1.0 + 1e-9), "{bound} {least} {cost}");
    }
}

/// [`access`] solves the same problem for blocks alone: both prove the same optimum.
#[test]
fn blocks_alone_cost_what_the_access_solver_finds() {
    let mut blocks = AccessProblem::default();
    for seed in 0..200 {
        access::instances::draw_any(seed, &mut blocks);
        let mut problem = AlternativesProblem::default();
        problem.reset(blocks.overheads().iter().copied());
        for block in blocks.blocks() {
            let slot = |&AccessOption { site, transfer }: &AccessOption| Slot {
                site,
                transfer,
                extra: 0.0,
                group: UNGROUPED,
            };
            problem.pieces.push_piece();
            assert!(problem.pieces.push_option(block.need, 0, block.options.iter().map(slot)));
        }
        let mut workspace = AccessWorkspace::default();
        let theirs = access::solve(&blocks, AMPLE, &mut workspace).expect("a plan");
        let (cost, bound, _) = solved(&problem, AMPLE);
        assert!(theirs.is_optimal() && bound == cost, "seed {seed}: not proved");
        assert!((cost - theirs.cost).abs() <= 1e-9 * cost, "seed {seed}: {cost} instead of {}", theirs.cost);
    }
}

/// How often the budget of a read suffices to prove the optimum: see the module.
#[test]
fn queries_of_ten_objects_are_proved_within_the_budget() {
    let (mut problem, mut workspace) = (AlternativesProblem::default(), AlternativesWorkspace::default());
    for (pieces, of_ten, of_twenty) in [
        (Pieces::Rs, 98, 90),
        (Pieces::Lrc, 98, 50),
        (Pieces::LrcWithCopies, 98, 50),
        (Pieces::HalfSplit, 98, 95),
        (Pieces::Local, 98, 98),
    ] {
        for (count, least) in [(5, 98), (10, of_ten), (20, of_twenty)] {
            let proved = (0..100).filter(|&seed| {
                Shape { sites: 98, count, pieces }.draw(seed, &mut problem);
                let plan = solve(&problem, BUDGET_OF_200_US, &mut workspace).expect("a plan");
                check_alternatives(&problem, &plan).expect("a legal plan");
                plan.is_optimal()
            });
            let proved = proved.count();
            assert!(proved >= least, "{pieces:?}, {count} pieces: {proved} of 100");
        }
    }
}

/// Large queries have legal plans whose bounds a longer search does not refute, and which do not depend on earlier
/// problems.
#[test]
fn large_queries_have_legal_plans_and_bounds_that_hold() {
    let (mut problem, mut workspace) = (AlternativesProblem::default(), AlternativesWorkspace::default());
    for (seed, pieces) in
        (0..).zip([Pieces::Rs, Pieces::Lrc, Pieces::LrcWithCopies, Pieces::HalfSplit, Pieces::Local])
    {
        for (sites, count) in [(32, 20), (32, 100), (98, 50)] {
            Shape { sites, count, pieces }.draw(seed, &mut problem);
            let (cost, bound, _) = solved(&problem, BUDGET_OF_200_US);
            let long = solve(&problem, 20 * BUDGET_OF_200_US, &mut workspace).expect("a plan");
            check_alternatives(&problem, &long).expect("a legal plan");
            assert!(bound <= long.cost * (1.0 + 1e-9) && long.lower_bound <= cost * (1.0 + 1e-9));
            assert!(cost <= 1.1 * long.cost, "{pieces:?}, {count} pieces: {cost}, then {}", long.cost);
            let again = solve(&problem, BUDGET_OF_200_US, &mut workspace).expect("a plan");
            assert_eq!((again.cost, again.lower_bound), (cost, bound));
        }
    }
}

/// Each object's own site costs more than each of its two others, which are the same for all: no object alone would
/// read those.
#[test]
fn objects_meet_on_sites_that_none_of_them_would_ask_alone() {
    let object = |own: usize| vec![(1, 0, vec![one(own)]), (2, 0, vec![one(3), one(4)])];
    let overheads = [4.0, 4.0, 4.0, 3.0, 3.0];
    let alone = solved(&problem(&overheads, &[object(0)]), AMPLE);
    assert_eq!((alone.0, &alone.2), (5.0, &vec![vec![0]]));
    let (cost, bound, sites) = solved(&problem(&overheads, &[object(0), object(1), object(2)]), AMPLE);
    assert_eq!((cost, bound), (2.0 * 3.0 + 6.0, cost));
    assert!(sites.iter().all(|sites| *sites == [3, 4]), "{sites:?}");
}

/// A block opens three sites anyway, and two of them are the rest of an object's group.
#[test]
fn the_local_group_is_read_where_its_sites_are_asked_anyway() {
    let block = vec![(3, 0, vec![one(1), one(2), one(3)])];
    let object = vec![(1, 0, vec![one(0)]), (2, 0, vec![one(1), one(2)])];
    let overheads = [5.0; 4];
    assert_eq!(solved(&problem(&overheads, std::slice::from_ref(&object)), AMPLE).2, [vec![0]]);
    assert_eq!(solved(&problem(&overheads, &[block, object]), AMPLE).2[1], [1, 2]);
}

/// With everything open the first object is read from sites 1 and 2, but site 2 is expensive, and site 1 is useless
/// without it.
#[test]
fn a_site_is_not_settled_for_an_option_that_needs_a_dear_one_too() {
    let first = vec![(1, 0, vec![(0, 10.0, 0.0, UNGROUPED)]), (2, 0, vec![one(1), one(2)])];
    let second = vec![(1, 0, vec![one(1), one(3)])];
    let (cost, bound, sites) = solved(&problem(&[1.0, 5.0, 50.0, 4.0], &[first, second]), AMPLE);
    assert_eq!((cost, bound, sites), (1.0 + 10.0 + 4.0 + 1.0, 16.0, vec![vec![0], vec![3]]));
}

#[test]
fn the_copy_at_the_cheaper_site_is_read() {
    let object = vec![(1, 0, vec![one(0), one(1)]), (2, 0, vec![one(2), one(3)])];
    assert_eq!(solved(&problem(&[9.0, 5.0, 4.0, 4.0], &[object]), AMPLE).2, [vec![1]]);
}

/// At most two slots of a group are taken: the third cheap one does not help.
#[test]
fn no_more_of_a_group_than_its_cap_are_read() {
    let slots = (0..5).map(|site| (site, 1.0, 0.0, if site < 3 { 0 } else { UNGROUPED })).collect();
    assert_eq!(
        solved(&problem(&[1.0, 1.0, 1.0, 5.0, 9.0], &[vec![(3, 2, slots)]]), AMPLE).0,
        2.0 + 5.0 + 3.0
    );
}

/// Objects of one chunk are merged: a hundred of them are proven optimal as soon as one.
#[test]
fn a_hundred_objects_of_one_chunk_are_as_one() {
    let object = |size: f64| {
        let slot = |site: usize| (site, size, 0.1 * size, UNGROUPED);
        vec![(1, 0, vec![slot(0)]), (2, 0, vec![slot(1), slot(2), slot(3)])]
    };
    let objects: Vec<_> = (1..=100).map(|size| object(0.01 * f64::from(size))).collect();
    let (cost, bound, _) = solved(&problem(&[99.0, 5.0, 4.0, 3.0], &objects), 0);
    assert!((cost - (7.0 + 2.0 * 1.1 * 50.5)).abs() < 1e-9 && bound == cost, "{bound} {cost}");
}

#[test]
fn nothing_to_read_costs_nothing_and_a_piece_without_an_option_has_no_plan() {
    assert_eq!(solved(&problem(&[5.0], &[]), AMPLE).0, 0.0);
    assert_eq!(solved(&problem(&[5.0], &[vec![(0, 0, vec![])]]), AMPLE).0, 0.0);
    let mut without = problem(&[5.0], &[vec![(1, 0, vec![one(0)])]]);
    without.pieces.push_piece();
    let mut workspace = AlternativesWorkspace::default();
    assert_eq!(solve(&without, AMPLE, &mut workspace), Err(NoOption { piece: 1 }));
}

#[test]
fn the_checker_finds_each_fault() {
    let problem = problem(&[5.0, 4.0, 3.0], &[vec![(1, 0, vec![one(0)]), (2, 0, vec![one(1), one(2)])]]);
    let check = |picks: &[u32], cost, lower_bound| {
        let ends = &[picks.len()];
        check_alternatives(&problem, &AlternativesPlan { picks, ends, cost, lower_bound, work: 0 })
    };
    assert_eq!(check(&[0], 6.0, 6.0), Ok(()));
    assert_eq!(check(&[2, 1], 9.0, 0.0), Ok(()));
    for picks in [&[][..], &[1], &[1, 1], &[0, 1]] {
        assert_eq!(check(picks, 6.0, 6.0), Err(AlternativesFault::NoOption { piece: 0 }));
    }
    assert_eq!(check(&[0], 5.0, 5.0), Err(AlternativesFault::Cost { actual: 6.0, claimed: 5.0 }));
    assert_eq!(check(&[0], 6.0, 6.5), Err(AlternativesFault::LowerBound { cost: 6.0, lower_bound: 6.5 }));
}
