//! The cost of a query's plan by EC-Store's Eq. 1, whatever policy chose it, and a lower bound for any plan.
//!
//! A plan is compared with those that read as many chunks of each block, so that extra reads (δ) do not count as a
//! loss. Pieces that want less than a block may use any of their options, whichever the plan chose. The bound comes
//! from the planner's own solvers ([`access::solve`], [`alternatives::solve`]), with more time than a read has. Blocks
//! of codes for which not every set of k chunks suffices may have no plan that reaches the bound.
//!
//! Cost: O(chunks of the query), plus the budget.

use striate_core::SiteId;

use super::cost_model::asking;
use super::piece::{PlanCost, QueryPiece, QueryPlan};
use super::query_options::{QueryOptions, cost_of_chunks};
use crate::cost::SiteCost;
use crate::solver::access::{self, AccessOption, AccessProblem, AccessWorkspace, BUDGET_OF_200_US};
use crate::solver::alternatives::{self, AlternativesProblem, AlternativesWorkspace};

/// Work units spent on the bound: some milliseconds.
const BUDGET: u64 = 20 * BUDGET_OF_200_US;

/// Prices a plan made with these costs; see [`crate::ReadPlanner::plan`].
pub fn price_plan(
    pieces: &[QueryPiece<'_>],
    plan: &QueryPlan,
    cost: impl Fn(SiteId) -> Option<SiteCost>,
) -> PlanCost {
    let mut read = vec![Vec::new(); pieces.len()];
    plan.reads.iter().flat_map(|read| &read.chunks).for_each(|chunk| read[chunk.piece].push(chunk.index));
    let asking_cost: f64 = plan.reads.iter().map(|read| asking(cost(read.site))).sum();
    let piece_costs = pieces.iter().zip(&read).map(|(piece, read)| cost_of_chunks(piece, read, &cost));
    // Begins at 0.0, because the sum of no numbers is −0.0.
    let price = 0.0 + asking_cost + piece_costs.sum::<f64>();
    let lower_bound = match pieces.iter().all(QueryPiece::takes_any) {
        true => bound_of_blocks(pieces, &read, &cost),
        false => bound_of_options(pieces, &read, &cost),
    };
    PlanCost { cost: price, lower_bound: lower_bound.min(price) }
}

/// Returns a lower bound for plans that read as many chunks of each of these blocks.
fn bound_of_blocks(
    blocks: &[QueryPiece<'_>],
    read: &[Vec<usize>],
    cost: impl Fn(SiteId) -> Option<SiteCost>,
) -> f64 {
    let is_available = |site: &SiteId| site.0 != 0 && cost(*site).is_some();
    let mut sites: Vec<SiteId> =
        blocks.iter().flat_map(|block| block.sites.iter().copied()).filter(is_available).collect();
    sites.sort_unstable();
    sites.dedup();
    let mut problem = AccessProblem::new(sites.iter().map(|&site| asking(cost(site))));
    for (block, read) in blocks.iter().zip(read) {
        let option = |index: usize| {
            let site = sites.binary_search(&block.sites[index]).ok()?;
            let transfer = cost(block.sites[index]).map_or(0.0, |cost| block.chunk_cost(index, cost));
            Some(AccessOption { site, transfer })
        };
        problem.push_block(read.len(), (0..block.sites.len()).filter_map(option));
    }
    access::solve(&problem, BUDGET, &mut AccessWorkspace::default())
        .map_or(0.0, |cheapest| cheapest.lower_bound)
}

/// Returns a lower bound for plans that read these pieces by any of their options, and as many chunks of each block.
fn bound_of_options(
    pieces: &[QueryPiece<'_>],
    read: &[Vec<usize>],
    cost: impl Fn(SiteId) -> Option<SiteCost>,
) -> f64 {
    let (mut options, mut problem) = (QueryOptions::default(), AlternativesProblem::default());
    options.reset(pieces, cost);
    problem.reset(options.sites.iter().map(|(_, cost)| asking(Some(*cost))));
    for (piece, read) in pieces.iter().zip(read) {
        problem.pieces.push_piece();
        let is_any =
            piece.requested.is_empty() && options.push_options(piece, read.len(), &mut problem.pieces);
        if !is_any {
            options.push_only(piece, &read.iter().copied().collect(), &mut problem.pieces);
        }
    }
    alternatives::solve(&problem, BUDGET, &mut AlternativesWorkspace::default())
        .map_or(0.0, |cheapest| cheapest.lower_bound)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;
    use striate_codec::Code;
    use striate_core::StripeId;

    use super::*;
    use crate::cost::SiteQueue;
    use crate::read::policy::{ReadPolicy, ReadPurpose, ReadQuery};

    fn placed(seed: u64, blocks: usize) -> Vec<Vec<SiteId>> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let place = |_| {
            rand::seq::index::sample(&mut rng, 12, 4).iter().map(|site| SiteId(site as u32 + 1)).collect()
        };
        (0..blocks).map(place).collect()
    }

    fn priced(
        policy: &str,
        pieces: &[QueryPiece<'_>],
        cost: &dyn Fn(SiteId) -> Option<SiteCost>,
        seed: u64,
    ) -> PlanCost {
        let policy: ReadPolicy = policy.parse().expect("a policy");
        let can_be_asked = |site| cost(site).is_some();
        let (purpose, queue) = (ReadPurpose::Query, &|_| Some(SiteQueue { waiting: 1.0, bytes: 0.0 }));
        let query = ReadQuery { pieces, purpose, can_be_asked: &can_be_asked, cost, queue };
        let plan = policy
            .planner()
            .plan(&query, &mut SmallRng::seed_from_u64(seed))
            .expect("there are enough chunks");
        price_plan(pieces, &plan, cost)
    }

    #[test]
    fn nothing_costs_nothing() {
        let price = price_plan(&[], &QueryPlan::default(), |_| None);
        assert_eq!(format!("{:.2}", price.cost), "0.00");
    }

    #[test]
    fn the_cost_models_plan_is_near_the_bound_and_others_cost_more() {
        let code = Code::rs(2, 2).expect("a code");
        let (mut cheapest, mut others) = (0.0, 0.0);
        for seed in 0..50 {
            let sites = placed(seed, 6);
            let pieces: Vec<_> = (0..)
                .zip(&sites)
                .map(|(id, sites)| QueryPiece::whole(StripeId::new(1, id), &code, sites, 50_000))
                .collect();
            let cost = |site: SiteId| {
                let asking = 1.0 + f64::from(site.0 * 7 % 4);
                let per_byte = f64::from(site.0 % 3) * 4e-6;
                (site.0 != 5).then_some(SiteCost { asking, per_byte, decode_per_byte: 0.0 })
            };
            let best = priced("cost-model", &pieces, &cost, seed);
            // The costs were randomised by 1%, so that equal plans are not always the same one.
            assert!(best.gap() <= 0.02, "{best:?}");
            assert!(best.cost > 0.0 && best.lower_bound > 0.0);
            cheapest += best.cost;
            let price = priced("normal", &pieces, &cost, seed);
            assert!(price.cost >= best.lower_bound * (1.0 - 1e-9), "{price:?} below {best:?}");
            others += price.cost;
        }
        assert!(cheapest < others * 0.9, "{cheapest} instead of {others}");
    }

    #[test]
    fn extra_reads_are_no_gap_and_an_empty_plan_costs_nothing() {
        let code = Code::rs(2, 2).expect("a code");
        let sites: Vec<SiteId> = (1..=4).map(SiteId).collect();
        let pieces = [QueryPiece::whole(StripeId::new(1, 1), &code, &sites, 50_000)];
        let cost =
            |site: SiteId| Some(SiteCost { asking: f64::from(site.0), per_byte: 1e-5, decode_per_byte: 0.0 });
        let price = priced("cost-model(1)", &pieces, &cost, 1);
        assert!((price.cost - (1.0 + 2.0 + 3.0 + 3.0 * 0.5)).abs() < 1e-9 && price.gap() < 1e-9, "{price:?}");
        let nothing = price_plan(&[], &QueryPlan::default(), cost);
        assert_eq!((nothing.cost, nothing.lower_bound, nothing.gap()), (0.0, 0.0, 0.0));
    }

    /// Packed objects beside a block with an extra chunk: the policy that minimises this cost reaches the bound, and
    /// the normal read is above it.
    #[test]
    fn packed_objects_have_a_price_and_a_bound() {
        let (packed, split) = (Code::rs(2, 1).expect("a code"), Code::rs(2, 2).expect("a code"));
        let placed: Vec<Vec<SiteId>> =
            [[1, 2, 3, 0], [1, 4, 3, 0], [2, 3, 4, 5]].map(|sites| sites.map(SiteId).to_vec()).into();
        let pieces = [
            QueryPiece::part(StripeId(1), &packed, &placed[0][..3], 50_000, [0].into_iter().collect()),
            QueryPiece::part(StripeId(2), &packed, &placed[1][..3], 50_000, [1].into_iter().collect()),
            QueryPiece::whole(StripeId(3), &split, &placed[2], 50_000),
        ];
        let cost = |site: SiteId| {
            let asking = if site.0 == 1 { 9.0 } else { 2.0 };
            Some(SiteCost { asking, per_byte: 1e-5, decode_per_byte: 2e-6 })
        };
        // The first object is computed from sites 2 and 3, the second read from its own site 4, and the block's data
        // and parity from the same sites.
        let best = priced("cost-model", &pieces, &cost, 1);
        assert!((best.cost - (3.0 * 2.0 + 5.0 * 0.5 + 2.0 * 0.1)).abs() < 1e-9, "{best:?}");
        assert_eq!(best.gap(), 0.0);
        let normal = priced("normal", &pieces, &cost, 1);
        assert!((normal.cost - (9.0 + 3.0 * 2.0 + 4.0 * 0.5)).abs() < 1e-9, "{normal:?}");
        assert!((normal.lower_bound - best.cost).abs() < 1e-9, "{normal:?}");
        let with_extra = priced("cost-model(1)", &pieces, &cost, 1);
        assert!(with_extra.cost > best.cost && with_extra.gap() < 1e-9, "{with_extra:?}");
    }
}
