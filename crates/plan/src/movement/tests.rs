//! The fast evaluation against the slow one, searches that must find the best move, and plans that must be legal.

use proptest::prelude::*;
use striate_core::{RackId, SiteId, StripeId};

use super::gains::AccessGains;
use super::instances::{MovementInstance, MovementShape};
use super::reference::{ReferenceModel, Scale};
use super::requests::RequestGains;
use super::state::MovementState;
use super::*;
use crate::cost::SiteCost;
use crate::placement::rule::PlacementRule;
use crate::statistics::co_access::Partner;
use crate::statistics::site_load::{LoadWeights, SiteLoad};

const AMPLE: MovementBudget = MovementBudget { moves: u64::MAX, patience: usize::MAX };

fn shapes() -> impl Strategy<Value = MovementShape> {
    (3..12_u32, 1..6_u32, 1..4_usize, 0..3_usize, 0..2_usize, 1..8_u64, 1..4_u64, 0..6_u64).prop_map(
        |(more, racks, k, r, extra_reads, blocks, group, partners)| MovementShape {
            sites: (k + r) as u32 + more,
            racks,
            k,
            r,
            extra_reads: extra_reads.min(r),
            blocks,
            group,
            partners,
        },
    )
}

fn state_of(instance: &MovementInstance, objective: Objective) -> MovementState {
    objective.state(instance.sites.clone(), instance.blocks.clone(), &instance.requests, instance.traffic)
}

/// The load of the most loaded site.
fn highest(loads: &[(SiteId, f64)]) -> f64 {
    loads.iter().map(|(_, omega)| *omega).fold(0.0, f64::max)
}

/// Δ of a move as published, from the reference.
fn reference_gain(reference: &ReferenceModel<'_>, of: ChunkMove) -> f64 {
    reference.access(of) + 3.0 * reference.balance(of)
}

fn close(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * (1.0 + one.abs().max(other.abs()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Eq. 5 and 7 of every legal move agree with the planner of reads on states written out.
    #[test]
    fn gains_are_those_of_states_written_out(seed: u64, shape in shapes()) {
        let instance = shape.draw(seed);
        let reference = ReferenceModel::new(&instance, Scale::Published);
        let state = state_of(&instance, Objective::published());
        let mut gains = AccessGains::default();
        for (place, block) in instance.blocks.iter().enumerate() {
            let is_readable = gains.begin_block(&state, place);
            prop_assert_eq!(is_readable, reference.cost(&[block]).is_some());
            if !is_readable {
                continue;
            }
            for wanted in reference.legal_moves(block) {
                let (from, to) = ((wanted.from.0 - 1) as usize, (wanted.to.0 - 1) as usize);
                gains.begin_source(&state, wanted.index);
                let (fast, slow) = (gains.at(&state, to).saved, reference.access(wanted));
                prop_assert!(close(fast, slow), "{fast} instead of {slow} of {wanted:?}");
                let shift = state.loads.shift_of(&state.blocks[place], from);
                let balance = state.loads.published_gain(from, to, shift.total());
                let slow = reference.balance(wanted);
                prop_assert!(close(balance, slow), "{balance} instead of {slow} of {wanted:?}");
                let square = state.loads.square_gain(from, to, shift.total());
                prop_assert!(close(square, reference.square_balance(wanted)));
            }
        }
    }

    /// Whole requests save at least what was predicted for single moves and for groups, according to the planner of
    /// reads on states written out. For requests of one block the prediction is exact.
    #[test]
    fn requests_save_what_is_promised_or_more(seed: u64, shape in shapes()) {
        let instance = shape.draw(seed);
        let reference = ReferenceModel::new(&instance, Scale::Measured);
        let state = state_of(&instance, Objective::improved());
        let mut gains = RequestGains::default();
        for (place, block) in instance.blocks.iter().enumerate() {
            if !gains.begin_block(&state, place) {
                prop_assert!(block.requests.is_empty() || reference.cost(&[block]).is_none());
                continue;
            }
            let known: Vec<&Vec<StripeId>> = block.requests.iter().map(|&at| &instance.requests[at]).collect();
            let before = reference.requests_cost(&known);
            let after = |moves: &[ChunkMove]| {
                let moved = instance.after(moves);
                ReferenceModel::new(&moved, Scale::Measured).requests_cost(&known)
            };
            for wanted in reference.legal_moves(block).into_iter().take(12) {
                gains.begin_source(&state, wanted.index);
                let promised = gains.at(&state, (wanted.to.0 - 1) as usize);
                prop_assert!(close(promised.before, before));
                let saved = before - after(&[wanted]);
                prop_assert!(promised.saved <= saved + 1e-9, "{promised:?}, {saved} of {wanted:?}");
                if known.iter().all(|request| request.len() == 1) {
                    prop_assert!(close(promised.saved, saved), "{promised:?}, {saved} of {wanted:?}");
                }
                let (from, to) = ((wanted.from.0 - 1) as usize, (wanted.to.0 - 1) as usize);
                let mut members = gains.companions(&state, from, 8).to_vec();
                members.retain(|&(member, _)| state.may_take(member, from, to));
                let moves: Vec<ChunkMove> =
                    members.iter().map(|&(member, index)| state.move_of(member, index, from, to)).collect();
                let promised = gains.of_group(&state, &members, from, to);
                let saved = before - after(&moves);
                prop_assert!(promised.saved <= saved + 1e-9, "{promised:?}, {saved} of {moves:?}");
            }
        }
    }

    /// The first plan of a queue is the best one, or the best that does not overload a site. All plans are legal in
    /// their order. An improved plan changes the loads as its requests' plans do, and none raises the imbalance.
    #[test]
    fn a_queue_begins_with_the_best_plan_and_goes_on_with_legal_ones(seed: u64, shape in shapes()) {
        let mut instance = shape.draw(seed);
        // The checker does not count the space that moves free.
        instance.sites.iter_mut().for_each(|site| site.free_bytes = 1 << 40);
        let candidates = || instance.blocks.iter().map(|block| block.id);
        for objective in [Objective::published(), Objective::improved()] {
            let mut state = state_of(&instance, objective);
            let best = select_movement(&state, objective, candidates(), AMPLE).best;
            let mut queue = MovementQueue::new(&state, objective, candidates(), AMPLE);
            let mut moves = Vec::new();
            for place in 0..20 {
                let before = state.site_loads();
                let settled = queue.next_plan(&mut state);
                let gain = |plan: &MovementPlan| plan.gain_of_each();
                if place == 0 {
                    let (found, best) =
                        (settled.as_ref().map(|of| gain(&of.plan)), best.as_ref().map(gain));
                    prop_assert!(found == best || objective.counts_requests() && found < best);
                }
                let Some(SettledPlan { plan, shifts }) = settled else {
                    let after = state.site_loads();
                    prop_assert!(before.iter().zip(&after).all(|(was, is)| close(was.1, is.1)));
                    break;
                };
                if objective.counts_requests() {
                    let chunks: f64 = instance.sites.iter().map(|site| site.load.chunks).sum();
                    let of_chunk = instance.traffic.weights.chunks * instance.sites.len() as f64 / chunks;
                    let stored = of_chunk * plan.moves.len() as f64 + 1e-9;
                    prop_assert!(highest(&state.site_loads()) <= highest(&before) + stored, "{plan:?}");
                    prop_assert!(shifts.iter().map(|(_, shift)| shift).sum::<f64>().abs() < 1e-9, "{shifts:?}");
                }
                prop_assert!(plan.gain > 0.0);
                moves.extend(plan.moves);
            }
            prop_assert_eq!(check_movement(&moves, &instance.sites, &instance.blocks), Ok(()));
        }
    }

    /// With an ample budget the search finds the best of all legal moves, and no illegal one.
    #[test]
    fn the_best_move_is_found(seed: u64, shape in shapes()) {
        let instance = shape.draw(seed);
        let reference = ReferenceModel::new(&instance, Scale::Published);
        let readable = instance.blocks.iter().filter(|block| reference.cost(&[block]).is_some());
        let best = readable
            .flat_map(|block| reference.legal_moves(block))
            .map(|wanted| reference_gain(&reference, wanted))
            .fold(0.0, f64::max);
        let state = state_of(&instance, Objective::published());
        let all = instance.blocks.iter().map(|block| block.id);
        let found = select_movement(&state, Objective::published(), all, AMPLE);
        let gain = found.best.as_ref().map_or(0.0, |plan| plan.gain);
        prop_assert!(close(gain, best) || best < 1e-11, "{gain} instead of {best}");
        if let Some(plan) = found.best {
            prop_assert_eq!(check_movement(&plan.moves, &instance.sites, &instance.blocks), Ok(()));
        }
    }

    /// Successive plans, groups included, are legal, and no improved plan raises the imbalance (most loaded over mean).
    #[test]
    fn improved_plans_are_legal_and_never_raise_the_imbalance(seed: u64, shape in shapes()) {
        let MovementInstance { sites, mut blocks, requests, traffic } = shape.draw(seed);
        let objective = Objective::improved();
        let mut state = objective.state(sites.clone(), blocks.clone(), &requests, traffic);
        let (mut free, mut gained) = (sites, 0.0);
        for _ in 0..30 {
            let all: Vec<StripeId> = blocks.iter().map(|block| block.id).collect();
            let Some(plan) = select_movement(&state, objective, all, AMPLE).best else { break };
            prop_assert_eq!(check_movement(&plan.moves, &free, &blocks), Ok(()));
            let before = highest(&state.site_loads());
            state.apply(&plan.moves);
            prop_assert!(highest(&state.site_loads()) <= before + 1e-9, "{before} grew by {plan:?}");
            gained += plan.gain;
            for done in &plan.moves {
                let block = blocks.iter_mut().find(|block| block.id == done.stripe).expect("known");
                block.sites[done.index] = done.to;
                for site in &mut free {
                    let len = u64::from(block.chunk_len);
                    site.free_bytes += if site.site == done.from { len } else { 0 };
                    site.free_bytes -= if site.site == done.to { len } else { 0 };
                }
            }
        }
        prop_assert!(gained < 30.0);
    }

    /// A search that ends early returns the best so far, and evaluates no more moves than its budget.
    #[test]
    fn an_early_end_leaves_the_best_so_far(seed: u64, shape in shapes(), moves in 0..200_u64) {
        let instance = shape.draw(seed);
        let objective = Objective::published();
        let search = |moves: u64| {
            let state = state_of(&instance, objective);
            let all = instance.blocks.iter().map(|block| block.id);
            select_movement(&state, objective, all, MovementBudget { moves, ..AMPLE })
        };
        let (short, longer) = (search(moves), search(moves + 20));
        prop_assert!(short.evaluated <= moves);
        let gain = |found: &MovementSearch| found.best.as_ref().map_or(0.0, |plan| plan.gain);
        prop_assert!(gain(&short) <= gain(&longer));
    }
}

fn site(number: u32, asking: f64, load: f64) -> MovementSite {
    MovementSite {
        site: SiteId(number),
        rack: RackId(format!("rack{number}")),
        cost: Some(SiteCost { asking, per_byte: 4e-6, decode_per_byte: 0.0 }),
        load: SiteLoad { cpu: load, io: load, chunks: 100.0 },
        free_bytes: 1 << 40,
        takes_chunks: true,
    }
}

fn block(number: u64, sites: &[u32], partners: &[(u64, f64)]) -> MovementBlock {
    let partner = |&(block, likelihood): &(u64, f64)| Partner { block: StripeId::new(1, block), likelihood };
    MovementBlock {
        id: StripeId::new(1, number),
        data_chunks: 2,
        need: 2,
        rule: PlacementRule::at_most(2, sites.len()),
        chunk_len: 50_000,
        sites: sites.iter().copied().map(SiteId).collect(),
        popularity: 0.2,
        partners: partners.iter().map(partner).collect(),
        requests: vec![0],
    }
}

/// A request for blocks 1 and 2.
fn both() -> Vec<StripeId> {
    vec![StripeId::new(1, 1), StripeId::new(1, 2)]
}

/// Figure 2 of the paper: two blocks on different sites are requested together. A move makes them share a site, away
/// from the loaded one, and saves one access, worth avg(o_j).
#[test]
fn as_published_a_chunk_comes_to_a_partners_site_and_saves_an_access() {
    let sites: Vec<MovementSite> =
        (1..=6).map(|number| site(number, 5.0, if number == 1 { 0.9 } else { 0.3 })).collect();
    let blocks = vec![block(1, &[1, 2, 3], &[(2, 1.0)]), block(2, &[4, 5, 6], &[(1, 1.0)])];
    let traffic = Traffic { request_bytes: 1e6, weights: LoadWeights::default() };
    let objective = Objective::published();
    let state = objective.state(sites, blocks, &[both()], traffic);
    let found = select_movement(&state, objective, [StripeId::new(1, 1)], AMPLE);
    let plan = found.best.expect("a plan");
    assert_eq!((plan.moves.len(), plan.moves[0].from), (1, SiteId(1)), "{plan:?}");
    assert!([4, 5, 6].map(SiteId).contains(&plan.moves[0].to));
    assert!((5.0..5.5).contains(&plan.gain), "an access of 5, and some balance: {plan:?}");
    assert_eq!(found.evaluated, 3 * 3);
}

/// Two blocks share a hot site. Moving one of them gains nothing; moving both does.
#[test]
fn improved_blocks_that_are_asked_for_together_leave_a_hot_site_together() {
    let sites: Vec<MovementSite> = (1..=5)
        .map(|number| if number == 1 { site(number, 3.0, 0.9) } else { site(number, 1.0, 0.2) })
        .collect();
    let blocks = vec![block(1, &[1, 2, 0], &[(2, 1.0)]), block(2, &[1, 2, 0], &[(1, 1.0)])];
    let traffic = Traffic { request_bytes: 2e6, weights: LoadWeights::default() };
    let objective = Objective::improved();
    let state = objective.state(sites, blocks, &[both()], traffic);
    let plan = select_movement(&state, objective, [StripeId::new(1, 1)], AMPLE).best.expect("a plan");
    assert_eq!(plan.moves.len(), 2, "{plan:?}");
    assert!(plan.moves.iter().all(|of| of.from == SiteId(1) && of.to == plan.moves[0].to), "{plan:?}");
}

/// Reads of two chunks need only two common sites. Reads that bind late request a third chunk, and need a third site.
#[test]
fn improved_as_many_common_sites_are_sought_as_reads_ask_for() {
    let sites: Vec<MovementSite> =
        (1..=6).map(|number| site(number, 1.0, if number == 5 { 0.5 } else { 0.2 })).collect();
    let traffic = Traffic { request_bytes: 1e7, weights: LoadWeights::default() };
    let objective = Objective::improved();
    let saved = |need: usize| {
        let needing = |block: MovementBlock| MovementBlock { need, ..block };
        let blocks = vec![needing(block(1, &[1, 2, 3, 4], &[])), needing(block(2, &[1, 2, 5, 6], &[]))];
        let state = objective.state(sites.clone(), blocks, &[both()], traffic);
        let found = select_movement(&state, objective, [StripeId::new(1, 2)], AMPLE).best.expect("a plan");
        assert_eq!(found.moves.len(), 1, "{found:?}");
        (found.moves[0].from, found.moves[0].to, found.gain)
    };
    let (_, _, for_balance) = saved(2);
    let (from, to, gain) = saved(3);
    assert!([5, 6].map(SiteId).contains(&from) && [3, 4].map(SiteId).contains(&to), "{from} to {to}");
    assert!(gain > 10.0 * for_balance, "{gain} and {for_balance}");
}

/// Load of recent moves counts at the destination before the sites report it.
#[test]
fn load_that_moved_is_where_its_chunk_went() {
    let sites: Vec<MovementSite> =
        (1..=4).map(|number| site(number, 1.0, if number == 1 { 0.9 } else { 0.1 })).collect();
    let blocks = vec![block(1, &[1, 2], &[])];
    let traffic =
        Traffic { request_bytes: 1e5, weights: LoadWeights { chunks: 0.0, ..LoadWeights::default() } };
    let wanted = ChunkMove { stripe: StripeId::new(1, 1), index: 0, from: SiteId(1), to: SiteId(3) };
    let before = Objective::improved().state(sites, blocks, &[both()], traffic);
    let (mut applied, mut told) = (before.clone(), before.clone());
    applied.apply(&[wanted]);
    told.add_load(wanted.from, -before.load_of(&wanted));
    told.add_load(wanted.to, before.load_of(&wanted));
    assert!(before.load_of(&wanted) > 0.1);
    assert_eq!(applied.site_loads(), told.site_loads());
    assert!(told.site_loads()[2].1 > before.site_loads()[2].1);
}

/// The second block's partner is moving to sites 3 and 4. The second block follows it there, although other sites are
/// less loaded, and the partner itself is not moved again.
#[test]
fn what_is_under_way_counts_where_it_goes_and_is_left_alone() {
    let loads = [0.5, 0.5, 0.2, 0.2, 0.4, 0.4, 0.1, 0.1];
    let sites: Vec<MovementSite> = (1..).zip(loads).map(|(number, load)| site(number, 1.0, load)).collect();
    let blocks = vec![block(1, &[1, 2], &[]), block(2, &[5, 6], &[])];
    let traffic = Traffic { request_bytes: 1e6, weights: LoadWeights::default() };
    let objective = Objective::improved();
    let mut state = objective.state(sites, blocks, &[both()], traffic);
    let [first, second] = [1, 2].map(|number| StripeId::new(1, number));
    let to = |state: &MovementState, block: StripeId| {
        select_movement(state, objective, [block], AMPLE).best.map(|plan| plan.moves[0].to.0)
    };
    assert_eq!(to(&state, first), Some(5), "beside the other");
    assert!([7, 8].map(Some).contains(&to(&state, second)), "away from load");
    let on_its_way = |index, from, to| ChunkMove { stripe: first, index, from: SiteId(from), to: SiteId(to) };
    // The last move does not match: the chunk is no longer at its source.
    state.expect(&[on_its_way(0, 1, 3), on_its_way(1, 2, 4), on_its_way(0, 1, 7)]);
    assert_eq!(to(&state, first), None);
    assert!([3, 4].map(Some).contains(&to(&state, second)), "{:?}", to(&state, second));
}

#[test]
fn a_move_that_does_not_pay_for_itself_is_not_made() {
    let sites: Vec<MovementSite> = (1..=6).map(|number| site(number, 1.0, 0.3)).collect();
    let rare = |number: u64, sites: &[u32], partner: u64| MovementBlock {
        popularity: 2e-4,
        ..block(number, sites, &[(partner, 1.0)])
    };
    let blocks = vec![rare(1, &[1, 2, 3], 2), rare(2, &[4, 5, 6], 1)];
    let traffic = Traffic { request_bytes: 1e6, weights: LoadWeights::default() };
    let found = |objective: Objective| {
        let state = objective.state(sites.clone(), blocks.clone(), &[both()], traffic);
        select_movement(&state, objective, [StripeId::new(1, 1)], AMPLE).best
    };
    assert!(found(Objective::published()).is_some());
    assert_eq!(found(Objective::improved()), None);
}

#[test]
fn each_fault_of_a_plan_is_found() {
    let mut sites: Vec<MovementSite> = (1..=5).map(|number| site(number, 1.0, 0.3)).collect();
    sites[3].takes_chunks = false;
    sites[4].free_bytes = 60_000;
    let mut blocks = vec![block(1, &[1, 2], &[]), block(2, &[1, 2], &[])];
    let wanted = |stripe, index, from, to| ChunkMove {
        stripe: StripeId::new(1, stripe),
        index,
        from: SiteId(from),
        to: SiteId(to),
    };
    let check = |moves: &[ChunkMove], blocks: &[MovementBlock]| check_movement(moves, &sites, blocks);
    assert_eq!(check(&[wanted(1, 0, 1, 3), wanted(2, 1, 2, 5)], &blocks), Ok(()));
    let cases = [wanted(1, 0, 2, 3), wanted(9, 0, 1, 3), wanted(1, 7, 1, 3)];
    assert!(cases.iter().all(|of| check(&[*of], &blocks) == Err(MovementFault::NotThere(*of))));
    assert_eq!(check(&[wanted(1, 0, 1, 4)], &blocks), Err(MovementFault::TakesNone(wanted(1, 0, 1, 4))));
    assert!(matches!(check(&[wanted(1, 0, 1, 2)], &blocks), Err(MovementFault::Placement(_))));
    assert!(matches!(check(&[wanted(1, 0, 1, 1)], &blocks), Err(MovementFault::Placement(_))));
    let both = [wanted(1, 0, 1, 5), wanted(2, 0, 1, 5)];
    assert_eq!(check(&both, &blocks), Err(MovementFault::NoSpace(both[1])));
    blocks[0].rule = PlacementRule::at_most(0, 3);
    assert!(matches!(check(&[wanted(1, 0, 1, 3)], &blocks), Err(MovementFault::Placement(_))));
}

/// With any number of candidates, the first evaluation leaves enough budget to make a plan.
#[test]
fn half_of_a_budget_is_left_for_plans() {
    let shape =
        MovementShape { sites: 12, racks: 12, k: 2, r: 2, extra_reads: 0, blocks: 64, group: 1, partners: 6 };
    let instance = shape.draw(1);
    for objective in [Objective::published(), Objective::improved()] {
        let mut state = state_of(&instance, objective);
        let all = instance.blocks.iter().map(|block| block.id);
        let ample = MovementQueue::new(&state, objective, all.clone(), AMPLE).evaluated;
        let scarce = MovementBudget { moves: ample / 2, ..AMPLE };
        let mut queue = MovementQueue::new(&state, objective, all, scarce);
        assert!(queue.next_plan(&mut state).is_some(), "{queue:?}");
    }
}
