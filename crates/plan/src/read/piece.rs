//! Pieces, and the plans of queries for them.

use striate_codec::{ChunkSet, Code};
use striate_core::{SiteId, StripeId};

use crate::cost::SiteCost;

/// A piece of a query: the same columns of some chunks of one stripe. Only the number of columns matters to a plan.
#[derive(Clone, Copy, Debug)]
pub struct QueryPiece<'a> {
    /// The stripe.
    pub stripe: StripeId,
    /// The stripe's code.
    pub code: &'a Code,
    /// The site of each of its n chunks; site 0 for a missing chunk.
    pub sites: &'a [SiteId],
    /// Sites that have a whole copy of the wanted chunk, if one chunk is wanted. In plans they are chunks n, n + 1, …
    pub copies: &'a [SiteId],
    /// Bytes of each chunk: z_i if whole chunks are read.
    pub len: u32,
    /// The data chunks to deliver.
    pub wanted: ChunkSet,
    /// Chunks that were requested before and are not requested again.
    pub requested: ChunkSet,
    /// Requested chunks that arrived or are still expected. They count towards determining the wanted ones.
    pub awaited: ChunkSet,
}

impl<'a> QueryPiece<'a> {
    /// Creates a piece of all data chunks of a stripe, with no requests so far.
    pub fn whole(stripe: StripeId, code: &'a Code, sites: &'a [SiteId], len: u32) -> Self {
        Self::part(stripe, code, sites, len, ChunkSet::first(code.k()))
    }

    /// Creates a piece of some data chunks of a stripe, with no requests so far.
    pub fn part(stripe: StripeId, code: &'a Code, sites: &'a [SiteId], len: u32, wanted: ChunkSet) -> Self {
        let (requested, awaited) = (ChunkSet::EMPTY, ChunkSet::EMPTY);
        Self { stripe, code, sites, copies: &[], len, wanted, requested, awaited }
    }

    /// Returns whether the piece wants all data chunks. Any sufficient set then serves, and extra chunks can help. Any
    /// other piece takes its own chunks, or a set that determines them.
    pub fn takes_any(&self) -> bool {
        self.wanted.len() == self.code.k()
    }

    /// Returns the site of a chunk, or of a copy of the wanted chunk.
    ///
    /// # Panics
    /// If the piece has no such chunk.
    pub fn site_of(&self, index: usize) -> SiteId {
        let n = self.sites.len();
        if index < n { self.sites[index] } else { self.copies[index - n] }
    }

    /// Returns the sites of all existing chunks and copies.
    pub fn all_sites(&self) -> impl Iterator<Item = SiteId> {
        self.sites.iter().chain(self.copies).copied().filter(|site| site.0 != 0)
    }

    /// Returns whether the awaited chunks determine the wanted ones.
    pub fn is_determined(&self) -> bool {
        self.code.determines(&self.awaited, &self.wanted)
    }

    /// Returns the cost of a chunk beyond asking its site: its transfer, and for a parity the decoding of a data chunk
    /// from k others.
    pub(crate) fn chunk_cost(&self, index: usize, site_cost: SiteCost) -> f64 {
        site_cost.transfer(self.len) + self.decoding_cost(index, site_cost)
    }

    /// Returns the cost of decoding a data chunk from k others if the chunk is a parity, and 0 otherwise.
    pub(crate) fn decoding_cost(&self, index: usize, site_cost: SiteCost) -> f64 {
        let k = self.code.k();
        let is_parity = (k..self.code.n()).contains(&index) && k > 1;
        if is_parity { site_cost.decode_per_byte * (k as f64 * f64::from(self.len)) } else { 0.0 }
    }

    /// Returns the available chunks that were not requested yet, ascending.
    pub fn available(&self, can_be_asked: &dyn Fn(SiteId) -> bool) -> impl Iterator<Item = usize> {
        let (sites, requested) = (self.sites, self.requested);
        (0..sites.len()).filter(move |&index| {
            sites[index].0 != 0 && !requested.contains(index) && can_be_asked(sites[index])
        })
    }
}

/// One chunk of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueryChunk {
    /// Position of its piece in the query.
    pub piece: usize,
    /// Index of the chunk in the stripe; copies of the wanted chunk have indices from n.
    pub index: usize,
}

/// The request to one site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteRead {
    /// The site.
    pub site: SiteId,
    /// The chunks, in the order of the query.
    pub chunks: Vec<QueryChunk>,
}

/// The plan of a query: at most one request per site, ascending by site.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueryPlan {
    /// The requests to the sites.
    pub reads: Vec<SiteRead>,
    /// Number of requested chunks beyond a determining set (δ).
    pub extra_chunks: usize,
    /// Cost of the plan, if the policy minimises it.
    pub cost: Option<PlanCost>,
    /// Whether the plan was found before, for this query or one that contains it.
    pub is_cached: bool,
}

impl QueryPlan {
    /// Creates the plan that requests these chunks, each from its site.
    pub fn of_chunks(mut chosen: Vec<(SiteId, QueryChunk)>) -> Self {
        chosen.sort_unstable();
        let groups = chosen.chunk_by(|a, b| a.0 == b.0);
        let read = |group: &[(SiteId, QueryChunk)]| SiteRead {
            site: group[0].0,
            chunks: group.iter().map(|(_, chunk)| *chunk).collect(),
        };
        Self { reads: groups.map(read).collect(), ..Self::default() }
    }

    /// Returns the number of chunks requested.
    pub fn chunk_count(&self) -> usize {
        self.reads.iter().map(|read| read.chunks.len()).sum()
    }
}

/// The cost of a plan, in requests to an idle site: by EC-Store's Eq. 1, or T + w X of [`crate::solver::makespan`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanCost {
    /// Cost of this plan.
    pub cost: f64,
    /// Lower bound of the cost of any plan. Equal to `cost` if the plan is proven optimal.
    pub lower_bound: f64,
}

impl PlanCost {
    /// Returns the largest part of the cost that another plan could save; 0 if this one is optimal.
    pub fn gap(&self) -> f64 {
        if self.cost > 0.0 { (1.0 - self.lower_bound / self.cost).max(0.0) } else { 0.0 }
    }
}
