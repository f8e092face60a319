//! Reading many blocks at once: which chunks are asked of which sites (design.md §5, EC-Store §IV-B).
//!
//! A *query* names blocks; each has n chunks on n sites, of which any sufficient set will do. A
//! [`ReadPolicy`] chooses the chunks of every block, and the choice is grouped by site, because a site is asked
//! once however many chunks it gives (the o_j of EC-Store Eq. 1 is paid for a request, not for a chunk).
//!
//! Cost: O(chunks of the query), and a sort by site; by the cost model, what [`access::solve`] takes besides.

use std::fmt;
use std::str::FromStr;

use rand::Rng;
use striate_codec::{Code, CodecError};
use striate_core::SiteId;

use crate::access::{self, AccessOption, AccessProblem, AccessWorkspace, BUDGET_OF_200_US};
use crate::cost::SiteCost;

/// How the chunks of a query are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReadPolicy {
    /// The data chunks, so that nothing is decoded; others only in the place of those that cannot be had.
    #[default]
    Normal,
    /// Any sufficient set, each as likely: k random chunks of an MDS code (the papers' EC), a random copy of a
    /// replicated block (R).
    Random,
    /// A random sufficient set and `extra_reads` (δ) chunks more; the first sufficient ones to arrive are used
    /// (EC-Store's EC+LB, EC-Cache's k+Δ).
    LateBinding {
        /// δ: chunks asked beyond a sufficient set.
        extra_reads: usize,
        /// Takes back what is still queued at the sites once a block is complete.
        cancel: bool,
    },
    /// The chunks on the sites of least cost; each chunk chosen makes its site dearer for the rest of the
    /// query (load-aware R, for replicated blocks).
    LeastLoaded,
    /// The chunks of the whole query that cost least by EC-Store's Eq. 1, of which the number of sites is a part: the
    /// optimal plan, or the best found in about 200 µs (EC+C, and EC+C+LB with extra reads). The first sufficient ones to
    /// arrive are used, and what is still queued for a complete block is taken back.
    CostModel {
        /// δ: chunks asked beyond a sufficient set.
        extra_reads: usize,
    },
    /// The cost model as published: a heuristic, a cache of optimal plans that are found in the background, and costs from
    /// probes alone ([`crate::published`]; the paper's EC+C, and EC+C+LB with extra reads, which are not taken back).
    Published {
        /// δ: chunks asked beyond a sufficient set.
        extra_reads: usize,
    },
    /// The cost model, with one extra read only while queues are short, and other chunks asked when some are later
    /// than predicted. When queues are short and what is late is for the client to say ([`QueryBlock::awaited`]).
    Adaptive,
}

/// Why a text is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a read policy: write adaptive, normal, random, least-loaded, cost-model, cost-model(D), \
     published, published(D), late-binding(D) or late-binding(D,keep), where D is the number of extra chunks"
)]
pub struct PolicyError(String);

/// A block of a query.
#[derive(Clone, Copy, Debug)]
pub struct QueryBlock<'a> {
    /// Its code.
    pub code: &'a Code,
    /// The site of each of its n chunks; site 0 means that the chunk does not exist.
    pub sites: &'a [SiteId],
    /// z_i: the length of each chunk, in bytes.
    pub chunk_len: u32,
    /// Chunks that were asked for before, and are not asked for again.
    pub asked: &'a [usize],
    /// Of those, the ones that came or are still expected: they count towards a sufficient set.
    pub awaited: &'a [usize],
}

impl<'a> QueryBlock<'a> {
    /// A block of which nothing was asked for.
    pub fn new(code: &'a Code, sites: &'a [SiteId], chunk_len: u32) -> Self {
        Self { code, sites, chunk_len, asked: &[], awaited: &[] }
    }

    /// What a chunk costs, its site asked: its transfer, and for a parity the decoding of a data chunk from k others.
    pub(crate) fn chunk_cost(&self, index: usize, of: SiteCost) -> f64 {
        let k = self.code.k();
        let decoded = if index >= k && k > 1 { k as f64 * f64::from(self.chunk_len) } else { 0.0 };
        of.transfer(self.chunk_len) + of.decode_per_byte * decoded
    }
}

/// One chunk of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueryChunk {
    /// Position of its block in the query.
    pub block: usize,
    /// Its index in the block's stripe.
    pub index: usize,
}

/// What one site is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteRead {
    /// The site.
    pub site: SiteId,
    /// The chunks, in the order of the query.
    pub chunks: Vec<QueryChunk>,
}

/// The plan of a query: each site at most once, in ascending order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueryPlan {
    /// What the sites are asked.
    pub reads: Vec<SiteRead>,
    /// What it costs, if the policy minimises that.
    pub cost: Option<PlanCost>,
    /// It was found before, for this query or one that contains it (the published policy).
    pub is_cached: bool,
}

impl QueryPlan {
    /// Chunks that are asked for.
    pub fn chunk_count(&self) -> usize {
        self.reads.iter().map(|read| read.chunks.len()).sum()
    }
}

/// What a plan costs by EC-Store's Eq. 1, where asking an idle site costs 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanCost {
    /// Of this plan.
    pub cost: f64,
    /// No plan costs less. Equal to `cost` if the plan was proved optimal.
    pub lower_bound: f64,
}

impl PlanCost {
    /// What part of its cost another plan may save at most; 0 when this one is optimal.
    pub fn gap(&self) -> f64 {
        if self.cost > 0.0 { (1.0 - self.lower_bound / self.cost).max(0.0) } else { 0.0 }
    }
}

impl ReadPolicy {
    /// δ: chunks asked beyond a sufficient set; of [`ReadPolicy::Adaptive`], while queues are short.
    pub fn extra_reads(self) -> usize {
        match self {
            Self::LateBinding { extra_reads, .. }
            | Self::CostModel { extra_reads }
            | Self::Published { extra_reads } => extra_reads,
            Self::Adaptive => 1,
            _ => 0,
        }
    }

    /// δ whatever the queues are.
    pub fn certain_extra_reads(self) -> usize {
        if self == Self::Adaptive { 0 } else { self.extra_reads() }
    }

    /// Whether reads that are no longer needed are taken back.
    pub fn cancels(self) -> bool {
        !matches!(self, Self::LateBinding { cancel: false, .. } | Self::Published { .. })
    }
}

impl fmt::Display for ReadPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Normal => f.write_str("normal"),
            Self::Random => f.write_str("random"),
            Self::LeastLoaded => f.write_str("least-loaded"),
            Self::Adaptive => f.write_str("adaptive"),
            Self::CostModel { extra_reads: 0 } => f.write_str("cost-model"),
            Self::CostModel { extra_reads } => write!(f, "cost-model({extra_reads})"),
            Self::Published { extra_reads: 0 } => f.write_str("published"),
            Self::Published { extra_reads } => write!(f, "published({extra_reads})"),
            Self::LateBinding { extra_reads, cancel: true } => write!(f, "late-binding({extra_reads})"),
            Self::LateBinding { extra_reads, cancel: false } => write!(f, "late-binding({extra_reads},keep)"),
        }
    }
}

impl FromStr for ReadPolicy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let error = || PolicyError(text.to_owned());
        match text {
            "normal" => return Ok(Self::Normal),
            "random" => return Ok(Self::Random),
            "least-loaded" => return Ok(Self::LeastLoaded),
            "adaptive" => return Ok(Self::Adaptive),
            "cost-model" => return Ok(Self::CostModel { extra_reads: 0 }),
            "published" => return Ok(Self::Published { extra_reads: 0 }),
            _ => {}
        }
        let (name, inner) = text.strip_suffix(')').and_then(|rest| rest.split_once('(')).ok_or_else(error)?;
        let (number, cancel) = match inner.strip_suffix(",keep") {
            Some(number) => (number, false),
            None => (inner, true),
        };
        let extra_reads = number.trim().parse().map_err(|_| error())?;
        match name {
            "late-binding" => Ok(Self::LateBinding { extra_reads, cancel }),
            "cost-model" if cancel => Ok(Self::CostModel { extra_reads }),
            "published" if cancel => Ok(Self::Published { extra_reads }),
            _ => Err(error()),
        }
    }
}

/// Plans queries; what it keeps from one to the next is memory.
#[derive(Debug, Default)]
pub struct QueryPlanner {
    problem: AccessProblem,
    workspace: AccessWorkspace,
    /// The problem's sites, ascending.
    sites: Vec<SiteId>,
    /// The chunks of the plan of least cost.
    cheapest: Vec<QueryChunk>,
}

impl QueryPlanner {
    /// Plans a query of a sufficient set and `extra_reads` (δ) chunks more of every block. `cost` is what a site
    /// costs, or `None` when it cannot be asked.
    ///
    /// # Errors
    /// [`CodecError::Insufficient`] when a block's chunks that can be had do not determine it.
    pub fn plan(
        &mut self,
        policy: ReadPolicy,
        extra_reads: usize,
        blocks: &[QueryBlock<'_>],
        cost: impl Fn(SiteId) -> Option<SiteCost>,
        rng: &mut impl Rng,
    ) -> Result<QueryPlan, CodecError> {
        let plan_cost = match policy {
            ReadPolicy::CostModel { .. } | ReadPolicy::Adaptive => {
                self.find_cheapest(blocks, extra_reads, &cost, rng)
            }
            _ => None,
        };
        let mut chosen: Vec<(SiteId, QueryChunk)> = Vec::with_capacity(blocks.len() * 4);
        let mut order = Vec::new();
        for (block, of) in blocks.iter().enumerate() {
            order.clear();
            order.extend(available(of, &cost));
            match policy {
                ReadPolicy::Normal => {}
                // What a published plan does not deliver is read at random.
                ReadPolicy::Random | ReadPolicy::LateBinding { .. } | ReadPolicy::Published { .. } => {
                    shuffle(&mut order, rng)
                }
                ReadPolicy::LeastLoaded => sort_by_cost(&mut order, of.sites, &cost, &chosen),
                // Others come behind: some sets of k chunks of a local reconstruction code are not sufficient.
                ReadPolicy::CostModel { .. } | ReadPolicy::Adaptive => order
                    .sort_by_key(|&index| self.cheapest.binary_search(&QueryChunk { block, index }).is_err()),
            }
            order.splice(0..0, of.awaited.iter().copied());
            let enough = sufficient_prefix(of.code, &order)?.max(of.awaited.len());
            let asked = order.iter().take(enough + extra_reads).skip(of.awaited.len());
            chosen.extend(asked.map(|&index| (of.sites[index], QueryChunk { block, index })));
        }
        Ok(QueryPlan { reads: group_by_site(chosen), cost: plan_cost, is_cached: false })
    }

    /// Solves Eq. 1 for k + δ chunks of every block, or as many as there are. Nothing is cheapest if there is no plan.
    fn find_cheapest(
        &mut self,
        blocks: &[QueryBlock<'_>],
        extra_reads: usize,
        cost: &impl Fn(SiteId) -> Option<SiteCost>,
        rng: &mut impl Rng,
    ) -> Option<PlanCost> {
        let Self { problem, workspace, sites, cheapest } = self;
        cheapest.clear();
        sites.clear();
        sites.extend(blocks.iter().flat_map(|of| available(of, cost).map(|index| of.sites[index])));
        sites.sort_unstable();
        sites.dedup();
        // Among plans that cost the same, clients that see the same loads shall not all choose one.
        let mut drawn = |site: &SiteId| asking(cost(*site)) * rng.random_range(0.99..1.01);
        problem.reset(sites.iter().map(&mut drawn));
        for of in blocks {
            let need = (of.code.k() + extra_reads).saturating_sub(of.awaited.len());
            let need = need.min(available(of, cost).count());
            let option = |index: usize| {
                let site = sites.binary_search(&of.sites[index]).unwrap_or_else(|place| place);
                let transfer = cost(of.sites[index]).map_or(0.0, |cost| of.chunk_cost(index, cost));
                AccessOption { site, transfer }
            };
            problem.push_block(need, available(of, cost).map(option));
        }
        let plan = access::solve(problem, BUDGET_OF_200_US, workspace).ok()?;
        debug_assert_eq!(access::check_access(problem, &plan), Ok(()));
        let of_site = |of: &QueryBlock<'_>, index: usize| sites.binary_search(&of.sites[index]);
        let mut is_asked = vec![false; sites.len()];
        let mut counts = vec![0; blocks.len()];
        for chunk in plan.chunks {
            counts[chunk.block] += 1;
            is_asked[problem.block(chunk.block).options[chunk.option].site] = true;
        }
        for (block, of) in blocks.iter().enumerate() {
            let on_asked = |&index: &usize| of_site(of, index).is_ok_and(|site| is_asked[site]);
            let mut chosen: Vec<usize> = available(of, cost).filter(on_asked).collect();
            prefer_data(&mut chosen, |index| {
                cost(of.sites[index]).map_or(0.0, |cost| of.chunk_cost(index, cost))
            });
            let chosen = chosen.into_iter().take(counts[block]);
            cheapest.extend(chosen.map(|index| QueryChunk { block, index }));
        }
        cheapest.sort_unstable();
        Some(PlanCost { cost: plan.cost, lower_bound: plan.lower_bound })
    }
}

/// Orders a block's chunks on sites that are asked anyway: data first, which needs no decoding, where its transfer costs
/// about as little as the cheapest one, then by what the transfer costs.
fn prefer_data(chunks: &mut [usize], transfer: impl Fn(usize) -> f64) {
    const ABOUT: f64 = 1.25;
    let least = chunks.iter().map(|&index| transfer(index)).fold(f64::INFINITY, f64::min);
    let key = |index: usize| Some(transfer(index)).filter(|cost| *cost > ABOUT * least).unwrap_or(least);
    chunks.sort_by(|&a, &b| key(a).total_cmp(&key(b)).then(a.cmp(&b)));
}

/// o_j of a site; nothing of one that cannot be asked.
pub(crate) fn asking(cost: Option<SiteCost>) -> f64 {
    cost.map_or(0.0, |cost| cost.asking.max(0.0))
}

/// The chunks of a block that can be had and were not asked for.
pub(crate) fn available<Cost>(
    block: &QueryBlock<'_>,
    cost: &impl Fn(SiteId) -> Option<Cost>,
) -> impl Iterator<Item = usize> {
    let (sites, asked) = (block.sites, block.asked);
    (0..sites.len())
        .filter(move |&index| sites[index].0 != 0 && !asked.contains(&index) && cost(sites[index]).is_some())
}

fn shuffle(order: &mut [usize], rng: &mut impl Rng) {
    for last in (1..order.len()).rev() {
        order.swap(last, rng.random_range(0..=last));
    }
}

/// By the site's cost and what this query already asks of it. The sort is stable: equals stay in code order,
/// data chunks first.
fn sort_by_cost(
    order: &mut [usize],
    sites: &[SiteId],
    cost: &impl Fn(SiteId) -> Option<SiteCost>,
    chosen: &[(SiteId, QueryChunk)],
) {
    let cost_of = |index: &usize| {
        let site = sites[*index];
        let asked = chosen.iter().filter(|(other, _)| *other == site).count();
        cost(site).map_or(f64::INFINITY, |cost| cost.asking) + asked as f64
    };
    order.sort_by(|a, b| cost_of(a).total_cmp(&cost_of(b)));
}

/// How many chunks of `order`, from its front, determine the block.
fn sufficient_prefix(code: &Code, order: &[usize]) -> Result<usize, CodecError> {
    let enough = (code.k()..=order.len()).find(|&count| code.is_sufficient(&order[..count]));
    match enough {
        Some(count) => Ok(count),
        None => {
            let wanted: Vec<usize> = (0..code.k()).collect();
            code.decode_plan(order, &wanted).map(|_| order.len())
        }
    }
}

pub(crate) fn group_by_site(mut chosen: Vec<(SiteId, QueryChunk)>) -> Vec<SiteRead> {
    chosen.sort_unstable();
    let groups = chosen.chunk_by(|a, b| a.0 == b.0);
    groups
        .map(|group| SiteRead { site: group[0].0, chunks: group.iter().map(|(_, chunk)| *chunk).collect() })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    const POLICIES: [ReadPolicy; 9] = [
        ReadPolicy::Normal,
        ReadPolicy::Random,
        ReadPolicy::LateBinding { extra_reads: 1, cancel: true },
        ReadPolicy::LateBinding { extra_reads: 2, cancel: false },
        ReadPolicy::LeastLoaded,
        ReadPolicy::CostModel { extra_reads: 0 },
        ReadPolicy::CostModel { extra_reads: 1 },
        ReadPolicy::Adaptive,
        ReadPolicy::Published { extra_reads: 1 },
    ];

    const CHUNK_LEN: u32 = 50_000;

    fn code(text: &str) -> Code {
        text.parse().expect("a code")
    }

    fn sites(first: u32, count: usize) -> Vec<SiteId> {
        (first..).take(count).map(SiteId).collect()
    }

    fn plan(policy: ReadPolicy, blocks: &[QueryBlock<'_>], seed: u64) -> QueryPlan {
        let rng = &mut SmallRng::seed_from_u64(seed);
        QueryPlanner::default()
            .plan(policy, policy.extra_reads(), blocks, |_| Some(SiteCost::of_asking(1.0)), rng)
            .expect("enough chunks")
    }

    proptest! {
        /// Every plan is legal: chunks that exist, on sites that can be asked, each once, sufficient for each
        /// block, with no more than δ beyond; or the losses are truly too many.
        #[test]
        fn plans_ask_each_site_once_for_sufficient_chunks(
            which in 0usize..4, policy in 0usize..9, down: u16, gone: u16, seed: u64, overlap in 1u32..5,
        ) {
            let code = code(["rs(2,2)", "rs(4,2)", "lrc(6,2,2)", "replica(3)"][which]);
            let policy = POLICIES[policy];
            let mut placed: Vec<Vec<SiteId>> = (0..3).map(|i| sites(1 + i * overlap, code.n())).collect();
            placed[1].iter_mut().enumerate().for_each(|(i, site)| if gone >> i & 1 == 1 { site.0 = 0 });
            let is_up = |site: SiteId| down >> (site.0 % 16) & 1 == 0;
            let blocks: Vec<_> = placed.iter().map(|sites| QueryBlock::new(&code, sites, CHUNK_LEN)).collect();
            let had = |block: &QueryBlock<'_>| -> Vec<usize> {
                (0..code.n()).filter(|&i| block.sites[i].0 != 0 && is_up(block.sites[i])).collect()
            };
            let cost = |site| is_up(site).then_some(SiteCost::of_asking(f64::from(site.0)));
            let rng = &mut SmallRng::seed_from_u64(seed);
            match QueryPlanner::default().plan(policy, policy.extra_reads(), &blocks, cost, rng) {
                Err(_) => prop_assert!(blocks.iter().any(|block| !code.is_sufficient(&had(block)))),
                Ok(plan) => {
                    prop_assert!(plan.reads.is_sorted_by(|a, b| a.site < b.site));
                    for (number, block) in blocks.iter().enumerate() {
                        let asked = plan.reads.iter().flat_map(|read| {
                            read.chunks.iter().filter(|c| c.block == number).map(|c| (read.site, c.index))
                        });
                        let asked: Vec<(SiteId, usize)> = asked.collect();
                        let indices: Vec<usize> = asked.iter().map(|(_, index)| *index).collect();
                        prop_assert!(asked.iter().all(|&(site, index)| block.sites[index] == site && is_up(site)));
                        prop_assert_eq!(indices.iter().collect::<HashSet<_>>().len(), indices.len());
                        prop_assert!(code.is_sufficient(&indices));
                        if code.tolerance() == code.parity_count() {
                            let most = (code.k() + policy.extra_reads()).min(had(block).len());
                            prop_assert_eq!(indices.len(), most);
                        }
                    }
                }
            }
        }

        #[test]
        fn policies_survive_their_text(which in 0usize..9) {
            prop_assert_eq!(POLICIES[which].to_string().parse(), Ok(POLICIES[which]));
        }
    }

    #[test]
    fn a_random_read_takes_every_chunk_as_often_as_any_other() {
        let (code, sites) = (code("rs(2,2)"), sites(1, 4));
        let block = QueryBlock::new(&code, &sites, CHUNK_LEN);
        let mut counts = [0; 4];
        for seed in 0..4_000 {
            for read in plan(ReadPolicy::Random, &[block], seed).reads {
                read.chunks.iter().for_each(|chunk| counts[chunk.index] += 1);
            }
        }
        // 2,000 expected, with a standard deviation of 32.
        assert!(counts.iter().all(|count| (1_850..2_150).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_normal_read_takes_the_data_chunks() {
        let (code, sites) = (code("rs(4,2)"), sites(1, 6));
        let asked = plan(ReadPolicy::Normal, &[QueryBlock::new(&code, &sites, CHUNK_LEN)], 1);
        assert_eq!(asked.reads.iter().map(|read| read.site.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
    }

    #[test]
    fn the_least_loaded_read_avoids_busy_sites_and_spreads_over_equals() {
        let (code, sites) = (code("replica(3)"), sites(1, 3));
        let blocks = [QueryBlock::new(&code, &sites, CHUNK_LEN); 4];
        let cost = |site: SiteId| Some(SiteCost::of_asking(if site.0 == 2 { 9.0 } else { 1.0 }));
        let rng = &mut SmallRng::seed_from_u64(1);
        let asked = QueryPlanner::default().plan(ReadPolicy::LeastLoaded, 0, &blocks, cost, rng).unwrap();
        let counts: Vec<_> = asked.reads.iter().map(|read| (read.site.0, read.chunks.len())).collect();
        assert_eq!(counts, [(1, 2), (3, 2)]);
    }

    /// Blocks on overlapping sites: few sites are asked, and a dear one only if nothing else will do.
    #[test]
    fn the_cost_model_asks_few_and_cheap_sites() {
        let code = code("rs(2,2)");
        let placed = [[1, 2, 3, 4], [3, 4, 5, 6], [3, 4, 7, 8]].map(|of| of.map(SiteId));
        let blocks = [0, 1, 2].map(|block| QueryBlock::new(&code, &placed[block], CHUNK_LEN));
        let asked = |cost: fn(SiteId) -> Option<SiteCost>| {
            let policy = ReadPolicy::CostModel { extra_reads: 0 };
            let plan =
                QueryPlanner::default().plan(policy, 0, &blocks, cost, &mut SmallRng::seed_from_u64(1));
            plan.unwrap().reads.iter().map(|read| read.site.0).collect::<Vec<_>>()
        };
        assert_eq!(asked(|_| Some(SiteCost::of_asking(1.0))), [3, 4]);
        assert_eq!(asked(|site| Some(SiteCost::of_asking(if site.0 == 3 { 9.0 } else { 1.0 }))).len(), 4);
        assert!(!asked(|site| (site.0 != 4).then_some(SiteCost::of_asking(1.0))).contains(&4));
    }

    /// A block of which chunk 1 came and chunk 0 is late: one more completes it, and not chunk 0 again.
    #[test]
    fn what_was_asked_before_is_counted_if_awaited_and_not_asked_again() {
        let (code, sites) = (code("rs(2,2)"), sites(1, 4));
        for policy in POLICIES {
            let block =
                QueryBlock { asked: &[0, 1], awaited: &[1], ..QueryBlock::new(&code, &sites, CHUNK_LEN) };
            let rng = &mut SmallRng::seed_from_u64(1);
            let plan = QueryPlanner::default()
                .plan(policy, 0, &[block], |_| Some(SiteCost::of_asking(1.0)), rng)
                .unwrap();
            let asked: Vec<_> = plan.reads.iter().flat_map(|read| &read.chunks).collect();
            assert!(matches!(asked[..], [QueryChunk { index: 2 | 3, .. }]), "{policy}: {asked:?}");
        }
    }

    /// All six sites have a chunk of each block: four are asked, and of each block the chunks of lowest index there.
    #[test]
    fn the_cost_model_prefers_data_chunks_on_the_sites_that_it_asks() {
        let (code, sites) = (code("rs(4,2)"), sites(1, 6));
        let cost = |site: SiteId| Some(SiteCost::of_asking(if site.0 == 2 { 3.0 } else { 1.0 }));
        let block = QueryBlock::new(&code, &sites, CHUNK_LEN);
        let mut decoded = 0;
        for seed in 0..20 {
            let rng = &mut SmallRng::seed_from_u64(seed);
            let plan =
                QueryPlanner::default().plan(ReadPolicy::Adaptive, 1, &[block, block], cost, rng).unwrap();
            let asked: Vec<u32> = plan.reads.iter().map(|read| read.site.0).collect();
            assert_eq!(asked, [1, 3, 4, 5, 6], "five of six, without the dear one");
            let rng = &mut SmallRng::seed_from_u64(seed);
            let plan = QueryPlanner::default()
                .plan(ReadPolicy::Adaptive, 0, &[block], |_| Some(SiteCost::of_asking(1.0)), rng)
                .unwrap();
            decoded += usize::from(plan.reads.iter().any(|read| read.site.0 > 4));
        }
        assert!(decoded > 10, "which sites are asked is drawn among equals: {decoded} of 20");
    }

    /// Two blocks whose data lies on different sites of the same six: four sites would do for both, if decoding were free.
    #[test]
    fn the_cost_model_asks_more_sites_where_decoding_is_dear() {
        let code = code("rs(4,2)");
        let placed = [[1, 2, 3, 4, 5, 6], [3, 4, 5, 6, 1, 2]].map(|of| of.map(SiteId));
        let blocks = [0, 1].map(|block| QueryBlock::new(&code, &placed[block], CHUNK_LEN));
        let plan = |decode_per_byte| {
            let cost = |_| Some(SiteCost { decode_per_byte, ..SiteCost::of_asking(1.0) });
            let rng = &mut SmallRng::seed_from_u64(1);
            QueryPlanner::default().plan(ReadPolicy::Adaptive, 0, &blocks, cost, rng).unwrap()
        };
        assert_eq!(plan(0.0).reads.len(), 4);
        let dear = plan(1e-4);
        assert_eq!(dear.reads.len(), 6);
        assert!(dear.reads.iter().flat_map(|read| &read.chunks).all(|chunk| chunk.index < 4), "{dear:?}");
    }

    #[test]
    fn what_is_no_policy_is_refused_with_the_way_out() {
        for text in
            ["", "Random", "late-binding", "late-binding(x)", "late-binding(1,keep", "cost-model(1,keep)"]
        {
            let error = text.parse::<ReadPolicy>().unwrap_err().to_string();
            assert!(
                error.contains("late-binding(D,keep)") && error.contains(&format!("{text:?}")),
                "{error}"
            );
        }
    }
}
