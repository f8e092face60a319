//! The planners allocate nothing once their workspaces have grown.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use rand::rngs::SmallRng;
use rand::seq::index::sample;
use rand::{Rng, SeedableRng};
use striate_plan::solver::access::{AccessOption, AccessProblem, AccessWorkspace, BUDGET_OF_200_US, solve};
use striate_plan::solver::alternatives::{self, AlternativesProblem, AlternativesWorkspace};
use striate_plan::solver::makespan::instances::{Pieces, Shape, USUAL_QUEUE};
use striate_plan::solver::makespan::{self, MakespanProblem, MakespanWorkspace, USUAL_WEIGHT};

const KINDS: [Pieces; 5] = [Pieces::Rs, Pieces::Lrc, Pieces::LrcWithCopies, Pieces::HalfSplit, Pieces::Local];

/// The system's allocator, with a count of each thread's allocations.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is forwarded unchanged, and counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn fill(problem: &mut AccessProblem, seed: u64, sites: usize, blocks: usize, spread: f64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    problem.reset((0..sites).map(|_| rng.random_range(1.0..20.0)));
    for _ in 0..blocks {
        let placed = sample(&mut rng, sites, 4);
        let transfer = |site: usize| 1.0 + spread * site as f64;
        problem.push_block(2, placed.iter().map(|site| AccessOption { site, transfer: transfer(site) }));
    }
}

#[test]
fn solving_allocates_nothing_once_the_workspace_has_grown() {
    let mut workspace = AccessWorkspace::default();
    let mut problem = AccessProblem::default();
    let mut allocations_of = |seed: u64| {
        let spread = if seed.is_multiple_of(2) { 0.0 } else { 0.01 };
        fill(&mut problem, seed, 32, 1 + seed as usize % 40, spread);
        let before = ALLOCATIONS.with(Cell::get);
        solve(&problem, 20_000, &mut workspace).expect("a plan");
        ALLOCATIONS.with(Cell::get) - before
    };
    let first: u64 = (0..400).map(&mut allocations_of).sum();
    let again: u64 = (0..400).map(&mut allocations_of).sum();
    assert!(first > 0 && again == 0, "{first} allocations first, {again} the second time");
}

#[test]
fn planning_packed_objects_allocates_nothing_once_the_workspace_has_grown() {
    let (mut problem, mut workspace) = (MakespanProblem::default(), MakespanWorkspace::default());
    let mut allocations_of = |seed: u64| {
        let (pieces, request) = (KINDS[seed as usize % KINDS.len()], 5.0 * (seed % 2) as f64);
        let (count, weight) = (1 + seed as usize % 40, USUAL_WEIGHT);
        Shape { sites: 32, count, pieces, queue: USUAL_QUEUE, request, weight }.draw(seed, &mut problem);
        let before = ALLOCATIONS.with(Cell::get);
        makespan::solve(&problem, &mut workspace).expect("a plan");
        ALLOCATIONS.with(Cell::get) - before
    };
    let first: u64 = (0..200).map(&mut allocations_of).sum();
    let again: u64 = (0..200).map(&mut allocations_of).sum();
    assert!(first > 0 && again == 0, "{first} allocations first, {again} the second time");
}

#[test]
fn planning_packed_objects_by_cost_allocates_nothing_once_the_workspace_has_grown() {
    let (mut problem, mut workspace) = (AlternativesProblem::default(), AlternativesWorkspace::default());
    let mut allocations_of = |seed: u64| {
        let (pieces, count) = (KINDS[seed as usize % KINDS.len()], 1 + seed as usize % 40);
        alternatives::instances::Shape { sites: 32, count, pieces }.draw(seed, &mut problem);
        let before = ALLOCATIONS.with(Cell::get);
        alternatives::solve(&problem, BUDGET_OF_200_US, &mut workspace).expect("a plan");
        ALLOCATIONS.with(Cell::get) - before
    };
    let first: u64 = (0..200).map(&mut allocations_of).sum();
    let again: u64 = (0..200).map(&mut allocations_of).sum();
    assert!(first > 0 && again == 0, "{first} allocations first, {again} the second time");
}
