//! The solver against brute force, and in corner cases.

use proptest::prelude::*;

use super::instances::{Pieces, Shape, USUAL_QUEUE};
use super::*;
use crate::solver::piece_options::tests::{Slots, choices_of, one, push_all, small_pieces};
use crate::solver::piece_options::{NoOption, Slot, UNGROUPED};

fn problem(weight: f64, request: f64, queues: &[f64], pieces: &[Vec<Slots>]) -> MakespanProblem {
    let mut problem = MakespanProblem::default();
    problem.reset(weight, request, queues.iter().copied());
    push_all(pieces, &mut problem.pieces);
    problem
}

fn solved(problem: &MakespanProblem) -> (f64, f64, Vec<Vec<usize>>) {
    let mut workspace = MakespanWorkspace::default();
    let plan = solve(problem, &mut workspace).expect("a problem with a plan");
    check_makespan(problem, &plan).expect("a legal plan");
    let sites =
        |piece| plan.picks_of(piece).iter().map(|&pick| problem.pieces.slots()[pick as usize].site).collect();
    (plan.cost, plan.lower_bound, (0..problem.pieces.piece_count()).map(sites).collect())
}

/// Returns the least T + w X over all plans, by brute force.
fn least_cost_by_trying_all(problem: &MakespanProblem) -> f64 {
    let choices: Vec<Vec<Vec<Slot>>> =
        (0..problem.pieces.piece_count()).map(|piece| choices_of(&problem.pieces, piece)).collect();
    let mut least = f64::INFINITY;
    try_all(problem, &choices, &mut Vec::new(), &mut least);
    least
}

fn try_all<'a>(
    problem: &MakespanProblem,
    choices: &'a [Vec<Vec<Slot>>],
    taken: &mut Vec<&'a Slot>,
    least: &mut f64,
) {
    let Some((first, rest)) = choices.split_first() else {
        let mut loads = vec![None; problem.queues().len()];
        let mut added_load = 0.0;
        for slot in taken {
            *loads[slot.site].get_or_insert(problem.request()) += slot.transfer;
            added_load += slot.load();
        }
        added_load += problem.request() * loads.iter().flatten().count() as f64;
        let ends = loads.iter().zip(problem.queues()).filter_map(|(load, queue)| Some((*load)? + queue));
        *least = least.min(ends.fold(0.0, f64::max) + problem.weight() * added_load);
        return;
    };
    for choice in first {
        taken.extend(choice);
        try_all(problem, rest, taken, least);
        taken.truncate(taken.len() - choice.len());
    }
}

/// Up to three pieces over up to seven sites: one chunk of a small code each, or a whole block of one.
fn small_problem() -> impl Strategy<Value = MakespanProblem> {
    let queue = prop_oneof![Just(0.0), 0.0f64..3.0, 5.0f64..30.0];
    let weight = prop_oneof![Just(0.06), Just(0.0), 0.0f64..1.0];
    let request = prop_oneof![Just(0.0), 0.0f64..4.0];
    (proptest::collection::vec(queue, 7), small_pieces(3), weight, request)
        .prop_map(|(queues, pieces, weight, request)| problem(weight, request, &queues, &pieces))
}

proptest! {
    /// No bound is above the optimum, and no plan below it.
    #[test]
    fn the_optimum_lies_between_the_bound_and_the_plan(problem in small_problem()) {
        let least = least_cost_by_trying_all(&problem);
        let (cost, lower_bound, _) = solved(&problem);
        prop_assert!(lower_bound <= least * (1.0 + 1e-9), "bound {lower_bound} above {least}");
        prop_assert!(cost >= least * (1.0 - 1e-9), "cost {cost} below {least}");
    }

    /// The cost of one piece is its latency plus w times the load it adds. The plan is optimal, and the bound proves
    /// it, except for the c of sites that an option of less load would use.
    #[test]
    fn one_piece_is_read_at_its_best(problem in small_problem()) {
        let mut single = MakespanProblem::default();
        single.reset(problem.weight(), problem.request(), problem.queues().iter().copied());
        single.pieces.push_piece();
        for option in problem.pieces.options(0) {
            single.pieces.push_option(option.need, option.cap, option.slots.iter().copied());
        }
        let least = least_cost_by_trying_all(&single);
        let (cost, lower_bound, _) = solved(&single);
        prop_assert!((cost - least).abs() <= 1e-9 * least.max(1.0), "{cost} instead of {least}");
        if single.request() == 0.0 {
            prop_assert!(lower_bound >= least * (1.0 - 1e-9), "bound {lower_bound} of {least}");
        }
    }
}

/// Over many small problems, the mean plan is within 0.2% of the optimum.
#[test]
fn plans_are_near_the_optimum_in_the_mean() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let (mut sum, mut worst) = (0.0, 0.0f64);
    const PROBLEMS: usize = 400;
    for _ in 0..PROBLEMS {
        let problem = small_problem().new_tree(&mut runner).expect("a problem").current();
        let least = least_cost_by_trying_all(&problem);
        let gap = if least > 0.0 { solved(&problem).0 / least - 1.0 } else { 0.0 };
        (sum, worst) = (sum + gap, worst.max(gap));
    }
    let mean = sum / PROBLEMS as f64;
    assert!(mean <= 0.002, "{:.3}% in the mean, {:.1}% at worst", 100.0 * mean, 100.0 * worst);
}

/// A chunk behind a queue is read around if its local group is sooner by more than w times the load that this adds.
#[test]
fn a_degraded_read_must_be_worth_the_load_that_it_adds() {
    let around = |queue: f64| {
        let piece = vec![(1, 0, vec![one(0)]), (3, 0, vec![one(1), one(2), one(3)])];
        solved(&problem(0.06, 1.0, &[queue, 0.0, 0.0, 0.0], &[piece])).2[0].len()
    };
    // Compares 2 + q + 0.06 · 2 with 2 + 0.06 · 6.
    assert_eq!((around(0.23), around(0.25)), (1, 3));
}

/// Two objects of one hot chunk: one is read from it, the other around it.
#[test]
fn pieces_of_one_chunk_go_different_ways() {
    let piece = || vec![(1, 0, vec![one(0)]), (2, 0, vec![one(1), one(2)])];
    let (cost, _, sites) = solved(&problem(0.06, 0.0, &[0.0; 3], &[piece(), piece()]));
    let mut lens: Vec<usize> = sites.iter().map(Vec::len).collect();
    lens.sort_unstable();
    assert_eq!(lens, [1, 2]);
    assert!((cost - (1.0 + 0.06 * 3.0)).abs() < 1e-12, "{cost}");
}

/// The site that ends last anyway hides those that end earlier: the second piece is not read around its short queue.
#[test]
fn only_the_last_site_counts() {
    let far = vec![(1, 0, vec![one(0)])];
    let near = vec![(1, 0, vec![one(1)]), (2, 0, vec![one(2), one(3)])];
    let (_, _, sites) = solved(&problem(0.06, 0.0, &[20.0, 10.0, 0.0, 0.0], &[far, near]));
    assert_eq!(sites, [vec![0], vec![1]]);
}

/// Copies are further slots of the chunk's own option.
#[test]
fn the_copy_behind_the_shorter_queue_is_read() {
    let piece = vec![(1, 0, vec![one(0), one(1)]), (2, 0, vec![one(2), one(3)])];
    assert_eq!(solved(&problem(0.06, 1.0, &[5.0, 0.0, 0.0, 0.0], &[piece])).2, [vec![1]]);
}

/// At most three slots of a group are taken: the fourth cheap one does not help.
#[test]
fn no_more_of_a_group_than_its_cap_are_read() {
    let slots: Vec<_> = (0..6).map(|site| (site, 1.0, 0.0, if site < 4 { 0 } else { UNGROUPED })).collect();
    let (_, _, sites) = solved(&problem(0.06, 0.0, &[0.0, 0.0, 0.0, 0.0, 9.0, 9.0], &[vec![(4, 3, slots)]]));
    assert!(sites[0].contains(&4) || sites[0].contains(&5), "{sites:?}");
}

/// If requests are expensive, chunks are read from sites that are asked anyway.
#[test]
fn a_site_that_is_asked_anyway_costs_no_further_request() {
    let fixed = || vec![(1, 0, vec![one(0)])];
    let block = vec![(1, 0, vec![one(1), one(0)])];
    let (_, _, sites) = solved(&problem(1.0, 5.0, &[0.0; 2], &[fixed(), block.clone()]));
    assert_eq!(sites[1], [0]);
    let (_, _, sites) = solved(&problem(1.0, 0.1, &[0.0; 2], &[fixed(), block]));
    assert_eq!(sites[1], [1]);
}

#[test]
fn a_piece_without_an_option_has_no_plan() {
    let mut problem = MakespanProblem::default();
    problem.reset(USUAL_WEIGHT, 1.0, [0.0; 3]);
    problem.pieces.push_piece();
    let slot = |site| Slot { site, transfer: 1.0, extra: 0.0, group: 0 };
    assert!(!problem.pieces.push_option(4, 9, (0..3).map(slot)));
    assert!(!problem.pieces.push_option(3, 2, (0..3).map(slot)));
    let mut workspace = MakespanWorkspace::default();
    assert_eq!(solve(&problem, &mut workspace), Err(NoOption { piece: 0 }));
    problem.pieces.push_option(2, 2, (0..3).map(slot));
    assert!(solve(&problem, &mut workspace).is_ok());
    problem.reset(USUAL_WEIGHT, 1.0, [0.0; 3]);
    let plan = solve(&problem, &mut workspace).expect("nothing to read");
    assert_eq!((plan.picks.len(), plan.cost, plan.gap()), (0, 0.0, 0.0));
}

/// Plans of all shapes are legal and repeatable, and the bounds are tight where queues decide.
#[test]
fn instances_have_legal_plans_that_do_not_depend_on_what_came_before() {
    let (mut problem, mut workspace) = (MakespanProblem::default(), MakespanWorkspace::default());
    let mut gaps = Vec::new();
    for pieces in [Pieces::Rs, Pieces::Lrc, Pieces::LrcWithCopies, Pieces::HalfSplit, Pieces::Local] {
        for (sites, count, request) in [(32, 1, 0.0), (32, 20, 0.0), (98, 20, 5.0), (98, 100, 0.0)] {
            let shape = Shape { sites, count, pieces, queue: USUAL_QUEUE, request, weight: USUAL_WEIGHT };
            for seed in 0..5 {
                shape.draw(seed, &mut problem);
                let plan = solve(&problem, &mut workspace).expect("a plan");
                check_makespan(&problem, &plan).expect("a legal plan");
                let (picks, gap) = (plan.picks.to_vec(), plan.gap());
                let mut other = MakespanWorkspace::default();
                assert_eq!(solve(&problem, &mut other).expect("a plan").picks, picks);
                if request == 0.0 && pieces != Pieces::Local {
                    gaps.push(gap);
                }
            }
        }
    }
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    assert!(mean < 0.03, "{mean}");
}
