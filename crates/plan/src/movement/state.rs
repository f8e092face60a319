//! C: where chunks are, and the properties of blocks and sites.

use std::collections::HashMap;

use striate_core::{RackId, SiteId, StripeId};

use super::loads::Loads;
use crate::cost::SiteCost;
use crate::placement::rule::PlacementRule;
use crate::statistics::co_access::Partner;
use crate::statistics::site_load::{LoadWeights, SiteLoad};

/// A site, as seen by movement.
#[derive(Clone, Debug, PartialEq)]
pub struct MovementSite {
    /// The site's number.
    pub site: SiteId,
    /// Its failure domain.
    pub rack: RackId,
    /// o_j and m_j; `None` while it is unreachable.
    pub cost: Option<SiteCost>,
    /// The components of ω_j.
    pub load: SiteLoad,
    /// Bytes it can still take.
    pub free_bytes: u64,
    /// Whether it takes new chunks: it is healthy and not drained.
    pub takes_chunks: bool,
}

/// A block, as seen by movement.
#[derive(Clone, Debug, PartialEq)]
pub struct MovementBlock {
    /// The block's stripe.
    pub id: StripeId,
    /// k_b: number of data chunks.
    pub data_chunks: usize,
    /// Number of chunks that a read requests: k_b, plus δ if reads bind late. Moves then bring the sites of all of
    /// these together.
    pub need: usize,
    /// The rule for the places of its chunks.
    pub rule: PlacementRule,
    /// z_b: bytes of each chunk.
    pub chunk_len: u32,
    /// The site of each of its n chunks; site 0 for a missing chunk.
    pub sites: Vec<SiteId>,
    /// P(b ∈ Q): the share of requests that include it.
    pub popularity: f64,
    /// λ_{b,i} of the blocks requested with it. Blocks that are not in the state are ignored.
    pub partners: Vec<Partner>,
    /// Positions of requests for it. They judge its moves where whole requests count.
    pub requests: Vec<usize>,
}

/// Properties of all requests together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Σ_b P(b ∈ Q)·need_b·z_b: mean bytes that a request reads from all sites.
    pub request_bytes: f64,
    /// Weights of the parts of ω_j.
    pub weights: LoadWeights,
}

/// The move of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkMove {
    /// The stripe.
    pub stripe: StripeId,
    /// The chunk's index in it.
    pub index: usize,
    /// S_s, the chunk's current site.
    pub from: SiteId,
    /// S_d, the chunk's new site.
    pub to: SiteId,
}

/// The unit of costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CostScale {
    /// Mean o_j of 5 over the reachable sites, and m_j z_i = 1 (§V-B3).
    Published,
    /// As measured.
    Measured,
}

/// C, with everything that judges moves.
#[derive(Clone, Debug)]
pub struct MovementState {
    /// Sites, ascending by number.
    pub(super) sites: Vec<MovementSite>,
    pub(super) blocks: Vec<PlacedBlock>,
    /// The blocks of each sampled request.
    pub(super) requests: Vec<Vec<usize>>,
    by_id: HashMap<StripeId, usize>,
    pub(super) loads: Loads,
    scale: CostScale,
    /// o_j of each site in the unit of costs.
    pub(super) asking: Vec<f64>,
    /// Number of chunk moves applied.
    changes: u64,
}

/// A block whose sites and partners are given as positions.
#[derive(Clone, Debug)]
pub(super) struct PlacedBlock {
    pub id: StripeId,
    pub data_chunks: usize,
    pub need: usize,
    pub rule: PlacementRule,
    pub chunk_len: u32,
    pub popularity: f64,
    /// The site of each chunk; `None` if the chunk is missing or its site unknown.
    pub at: Vec<Option<usize>>,
    pub partners: Vec<(usize, f64)>,
    pub requests: Vec<usize>,
    /// The readable chunks, ascending by site.
    pub choices: Vec<Choice>,
    /// Value of `changes` when it was last moved.
    pub changed: u64,
    /// Whether a move of one of its chunks is under way.
    pub is_moving: bool,
}

/// A chunk that a read may choose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    pub site: usize,
    /// o_j.
    pub asking: f64,
    /// m_j z_b, plus decoding for a parity.
    pub transfer: f64,
}

impl PlacedBlock {
    pub(super) fn is_at(&self, site: usize) -> bool {
        self.at.contains(&Some(site))
    }

    /// Returns the readable chunks without the one at `index`.
    pub(super) fn choices_without(&self, index: usize) -> impl Iterator<Item = Choice> + '_ {
        self.choices.iter().copied().filter(move |choice| Some(choice.site) != self.at[index])
    }

    /// Returns whether it has as many chunks as a read requests.
    pub(super) fn is_readable(&self) -> bool {
        self.choices.len() >= self.need
    }
}

impl MovementState {
    /// Creates the state of these blocks on these sites, with published or measured costs.
    pub(super) fn new(
        mut sites: Vec<MovementSite>,
        blocks: Vec<MovementBlock>,
        requests: &[Vec<StripeId>],
        traffic: Traffic,
        scale: CostScale,
    ) -> Self {
        sites.sort_unstable_by_key(|site| site.site);
        sites.dedup_by_key(|site| site.site);
        let asking = asking_costs(&sites, scale);
        let loads = Loads::new(sites.iter().map(|site| site.load), traffic);
        let by_id: HashMap<StripeId, usize> =
            blocks.iter().enumerate().map(|(place, block)| (block.id, place)).collect();
        let place_of = |site: SiteId| sites.binary_search_by_key(&site, |entry| entry.site).ok();
        let placed = blocks.iter().map(|block| PlacedBlock {
            id: block.id,
            data_chunks: block.data_chunks,
            need: block.need,
            rule: block.rule.clone(),
            chunk_len: block.chunk_len,
            popularity: block.popularity,
            at: block.sites.iter().map(|&site| place_of(site)).collect(),
            partners: partners_of(block, &by_id),
            requests: block.requests.iter().copied().filter(|&place| place < requests.len()).collect(),
            choices: Vec::new(),
            changed: 0,
            is_moving: false,
        });
        let blocks: Vec<PlacedBlock> = placed.collect();
        let blocks_of =
            |request: &Vec<StripeId>| request.iter().filter_map(|id| by_id.get(id).copied()).collect();
        let requests = requests.iter().map(blocks_of).collect();
        let mut state = Self { sites, blocks, requests, by_id, loads, scale, asking, changes: 0 };
        (0..state.blocks.len()).for_each(|block| state.list_choices(block));
        state
    }

    /// Returns the position of a block.
    pub(super) fn place_of(&self, block: StripeId) -> Option<usize> {
        self.by_id.get(&block).copied()
    }

    /// Returns the chunk of `block` with `index` as it would be at `site`; `None` if the site is unreachable.
    pub(super) fn choice(&self, block: usize, index: usize, site: usize) -> Option<Choice> {
        let cost = self.sites[site].cost?;
        let placed = &self.blocks[block];
        let transfer = match self.scale {
            CostScale::Published => 1.0,
            CostScale::Measured if index >= placed.data_chunks && placed.data_chunks > 1 => {
                let decoded = placed.data_chunks as f64 * f64::from(placed.chunk_len);
                cost.transfer(placed.chunk_len) + cost.decode_per_byte * decoded
            }
            CostScale::Measured => cost.transfer(placed.chunk_len),
        };
        Some(Choice { site, asking: self.asking[site], transfer })
    }

    /// Returns whether `site` may take the chunk of `block` that is at `from`.
    pub(super) fn may_take(&self, block: usize, from: usize, site: usize) -> bool {
        let (placed, to) = (&self.blocks[block], &self.sites[site]);
        let is_free = to.takes_chunks && to.cost.is_some() && to.free_bytes >= u64::from(placed.chunk_len);
        if !is_free || placed.is_moving || placed.is_at(site) {
            return false;
        }
        let Some(index) = placed.at.iter().position(|&at| at == Some(from)) else { return false };
        let places = placed.at.iter().enumerate();
        let places = places.filter_map(|(chunk, at)| Some((chunk, &self.sites[(*at)?].rack)));
        placed.rule.admits(index, &to.rack, places)
    }

    /// Records that a chunk has moved: its place, the stored load and the sites' space.
    fn relocate_chunk(&mut self, block: usize, index: usize, to: usize) {
        let Some(from) = self.blocks[block].at[index].replace(to) else { return };
        let len = u64::from(self.blocks[block].chunk_len);
        self.loads.shift_stored(from, to);
        self.sites[from].free_bytes += len;
        self.sites[to].free_bytes = self.sites[to].free_bytes.saturating_sub(len);
        self.changes += 1;
        self.blocks[block].changed = self.changes;
        self.list_choices(block);
    }

    /// Returns the value of `changes` when a block of the request was last moved.
    pub(super) fn request_changed(&self, request: usize) -> u64 {
        self.requests[request].iter().map(|&block| self.blocks[block].changed).max().unwrap_or(0)
    }

    /// Records completed moves, each with the load that its chunk takes along.
    pub fn apply(&mut self, moves: &[ChunkMove]) {
        for chunk_move in moves {
            let load = self.load_of(chunk_move);
            self.add_load(chunk_move.from, -load);
            self.add_load(chunk_move.to, load);
            self.relocate(std::slice::from_ref(chunk_move));
        }
    }

    /// Records moves under way. Their chunks count at their destinations, and no other chunk of these stripes moves
    /// until they are done.
    pub fn expect(&mut self, moves: &[ChunkMove]) {
        for chunk_move in moves {
            let Some(block) = self.place_of(chunk_move.stripe) else { continue };
            self.blocks[block].is_moving = true;
            let from = self.sites.binary_search_by_key(&chunk_move.from, |site| site.site).ok();
            if from.is_some() && self.blocks[block].at.get(chunk_move.index) == Some(&from) {
                self.relocate(std::slice::from_ref(chunk_move));
            }
        }
    }

    /// Records moves without their dynamic load.
    pub(super) fn relocate(&mut self, moves: &[ChunkMove]) {
        for chunk_move in moves {
            let to = self.sites.binary_search_by_key(&chunk_move.to, |site| site.site);
            if let (Some(block), Ok(to)) = (self.place_of(chunk_move.stripe), to)
                && chunk_move.index < self.blocks[block].at.len()
            {
                self.relocate_chunk(block, chunk_move.index, to);
            }
        }
    }

    /// Returns the dynamic load (processor and disk) that a move takes along.
    pub fn load_of(&self, chunk_move: &ChunkMove) -> f64 {
        let from = self.sites.binary_search_by_key(&chunk_move.from, |site| site.site);
        match (self.place_of(chunk_move.stripe), from) {
            (Some(block), Ok(from)) => self.loads.shift_of(&self.blocks[block], from).dynamic,
            _ => 0.0,
        }
    }

    /// Returns the bytes of the chunk; 0 for a stripe that is not in the state.
    pub fn chunk_len_of(&self, chunk_move: &ChunkMove) -> u32 {
        self.place_of(chunk_move.stripe).map_or(0, |block| self.blocks[block].chunk_len)
    }

    /// Adds dynamic load, which may be negative, to what a site reported.
    pub fn add_load(&mut self, site: SiteId, dynamic: f64) {
        if let Ok(place) = self.sites.binary_search_by_key(&site, |entry| entry.site) {
            self.loads.add(place, dynamic);
        }
    }

    /// Returns the memory that the state occupies, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let block_bytes = |block: &PlacedBlock| {
            size_of::<PlacedBlock>()
                + block.at.capacity() * size_of::<Option<usize>>()
                + block.partners.capacity() * size_of::<(usize, f64)>()
                + block.requests.capacity() * size_of::<usize>()
                + block.choices.capacity() * size_of::<Choice>()
        };
        let site_bytes = self.sites.capacity() * (size_of::<MovementSite>() + 3 * size_of::<f64>());
        site_bytes
            + self.blocks.iter().map(block_bytes).sum::<usize>()
            + self.requests.iter().map(|request| request.capacity() * size_of::<usize>()).sum::<usize>()
            + self.by_id.capacity() * size_of::<(StripeId, usize)>()
    }

    /// Returns ω_j of every site, ascending by number.
    pub fn site_loads(&self) -> Vec<(SiteId, f64)> {
        (0..self.sites.len()).map(|site| (self.sites[site].site, self.loads.omega(site))).collect()
    }

    pub(super) fn move_of(&self, block: usize, index: usize, from: usize, to: usize) -> ChunkMove {
        ChunkMove {
            stripe: self.blocks[block].id,
            index,
            from: self.sites[from].site,
            to: self.sites[to].site,
        }
    }

    fn list_choices(&mut self, block: usize) {
        let at = self.blocks[block].at.iter().enumerate();
        let mut choices: Vec<Choice> =
            at.filter_map(|(index, site)| self.choice(block, index, (*site)?)).collect();
        choices.sort_unstable_by_key(|choice| choice.site);
        self.blocks[block].choices = choices;
    }
}

fn asking_costs(sites: &[MovementSite], scale: CostScale) -> Vec<f64> {
    let asking = |site: &MovementSite| site.cost.map_or(0.0, |cost| cost.asking);
    let answer = sites.iter().filter(|site| site.cost.is_some()).count();
    let mean = sites.iter().map(asking).sum::<f64>() / answer.max(1) as f64;
    let unit = match scale {
        CostScale::Published if mean > 0.0 => 5.0 / mean,
        _ => 1.0,
    };
    sites.iter().map(|site| asking(site) * unit).collect()
}

fn partners_of(block: &MovementBlock, by_id: &HashMap<StripeId, usize>) -> Vec<(usize, f64)> {
    let others = block.partners.iter().filter(|partner| partner.block != block.id);
    others.filter_map(|partner| Some((*by_id.get(&partner.block)?, partner.likelihood))).collect()
}
