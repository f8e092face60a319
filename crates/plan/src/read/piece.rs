//! Pieces, and the plans of queries for them.

use striate_codec::{ChunkSet, Code};
use striate_core::{SiteId, StripeId};

use crate::cost::SiteCost;

/// A piece of a query: the same columns of some chunks of one stripe. They matter to a plan only by their number.
#[derive(Clone, Copy, Debug)]
pub struct QueryPiece<'a> {
    /// The stripe.
    pub stripe: StripeId,
    /// Its code.
    pub code: &'a Code,
    /// The site of each of its n chunks; site 0 means that the chunk does not exist.
    pub sites: &'a [SiteId],
    /// Sites that have a whole copy of the wanted chunk, where one chunk is wanted. In plans they are chunks n, n + 1, …
    pub copies: &'a [SiteId],
    /// Bytes of each chunk: z_i where whole chunks are read.
    pub len: u32,
    /// The data chunks that it is to deliver.
    pub wanted: ChunkSet,
    /// Chunks that were asked for before, and are not asked for again.
    pub asked: ChunkSet,
    /// Of those, the ones that came or are still expected: they count towards what determines the wanted ones.
    pub awaited: ChunkSet,
}

impl<'a> QueryPiece<'a> {
    /// All data chunks of a stripe, of which nothing was asked for.
    pub fn whole(stripe: StripeId, code: &'a Code, sites: &'a [SiteId], len: u32) -> Self {
        Self::part(stripe, code, sites, len, ChunkSet::first(code.k()))
    }

    /// Some data chunks of a stripe, of which nothing was asked for.
    pub fn part(stripe: StripeId, code: &'a Code, sites: &'a [SiteId], len: u32, wanted: ChunkSet) -> Self {
        let (asked, awaited) = (ChunkSet::EMPTY, ChunkSet::EMPTY);
        Self { stripe, code, sites, copies: &[], len, wanted, asked, awaited }
    }

    /// Whether it wants all data chunks: then any sufficient set will do, and more chunks than that can help. Any other
    /// piece takes its own chunks, or a set that determines them.
    pub fn takes_any(&self) -> bool {
        self.wanted.len() == self.code.k()
    }

    /// The site of a chunk, or of a copy of the wanted one.
    ///
    /// # Panics
    /// For a chunk that the piece does not have.
    pub fn site_of(&self, index: usize) -> SiteId {
        let n = self.sites.len();
        if index < n { self.sites[index] } else { self.copies[index - n] }
    }

    /// The sites of all chunks that exist, and of all copies.
    pub fn all_sites(&self) -> impl Iterator<Item = SiteId> {
        self.sites.iter().chain(self.copies).copied().filter(|site| site.0 != 0)
    }

    /// What was awaited determines what is wanted.
    pub fn is_determined(&self) -> bool {
        self.code.determines(&self.awaited, &self.wanted)
    }

    /// What a chunk costs, its site asked: its transfer, and for a parity the decoding of a data chunk from k others.
    pub(crate) fn chunk_cost(&self, index: usize, of: SiteCost) -> f64 {
        of.transfer(self.len) + self.decoding_cost(index, of)
    }

    /// What the decoding of a data chunk from k others costs for a parity, and nothing for any other chunk.
    pub(crate) fn decoding_cost(&self, index: usize, of: SiteCost) -> f64 {
        let k = self.code.k();
        let is_parity = (k..self.code.n()).contains(&index) && k > 1;
        if is_parity { of.decode_per_byte * (k as f64 * f64::from(self.len)) } else { 0.0 }
    }

    /// The chunks that can be had and were not asked for, ascending.
    pub fn available(&self, can_be_asked: &dyn Fn(SiteId) -> bool) -> impl Iterator<Item = usize> {
        let (sites, asked) = (self.sites, self.asked);
        (0..sites.len())
            .filter(move |&index| sites[index].0 != 0 && !asked.contains(index) && can_be_asked(sites[index]))
    }
}

/// One chunk of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueryChunk {
    /// Position of its piece in the query.
    pub piece: usize,
    /// Its index in the stripe; from n on the copies of the wanted chunk.
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
    /// Of the chunks, those beyond a determining set (δ).
    pub extra_chunks: usize,
    /// What it costs, if the policy minimises that.
    pub cost: Option<PlanCost>,
    /// It was found before, for this query or one that contains it.
    pub is_cached: bool,
}

impl QueryPlan {
    /// The plan that asks for these chunks, each of its site.
    pub fn of_chunks(mut chosen: Vec<(SiteId, QueryChunk)>) -> Self {
        chosen.sort_unstable();
        let groups = chosen.chunk_by(|a, b| a.0 == b.0);
        let read = |group: &[(SiteId, QueryChunk)]| SiteRead {
            site: group[0].0,
            chunks: group.iter().map(|(_, chunk)| *chunk).collect(),
        };
        Self { reads: groups.map(read).collect(), ..Self::default() }
    }

    /// Chunks that are asked for.
    pub fn chunk_count(&self) -> usize {
        self.reads.iter().map(|read| read.chunks.len()).sum()
    }
}

/// What a plan costs where asking an idle site costs 1: by EC-Store's Eq. 1, or T + w X of [`crate::solver::makespan`].
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
