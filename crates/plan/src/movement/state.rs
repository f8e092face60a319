//! C: where chunks are, and what is known of blocks and sites.

use std::collections::HashMap;

use striate_core::{RackId, SiteId, StripeId};

use super::loads::Loads;
use crate::cost::SiteCost;
use crate::placement::rule::PlacementRule;
use crate::statistics::co_access::Partner;
use crate::statistics::site_load::{LoadWeights, SiteLoad};

/// A site, as movement sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct MovementSite {
    /// Its number.
    pub site: SiteId,
    /// Its failure domain.
    pub rack: RackId,
    /// o_j and m_j; `None` while it does not answer.
    pub cost: Option<SiteCost>,
    /// What ω_j is made of.
    pub load: SiteLoad,
    /// Bytes that it can still take.
    pub free_bytes: u64,
    /// It takes new chunks: it is well and not drained.
    pub takes_chunks: bool,
}

/// A block, as movement sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct MovementBlock {
    /// Its stripe.
    pub id: StripeId,
    /// k_b: its data chunks.
    pub data_chunks: usize,
    /// Chunks that a read asks for: k_b, and δ more where reads bind late. Moves then bring together the sites of all of these.
    pub need: usize,
    /// Which places its chunks may have.
    pub rule: PlacementRule,
    /// z_b: length of each chunk, in bytes.
    pub chunk_len: u32,
    /// The site of each of its n chunks; site 0 where there is none.
    pub sites: Vec<SiteId>,
    /// P(b ∈ Q): the share of requests that ask for it.
    pub popularity: f64,
    /// λ_{b,i} of the blocks that are asked for with it. Those that are not in the state do not count.
    pub partners: Vec<Partner>,
    /// Positions of requests that ask for it, by which moves of it are judged where whole requests count.
    pub requests: Vec<usize>,
}

/// What is true of all requests together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Σ_b P(b ∈ Q)·need_b·z_b: the bytes that a request reads from all sites, in the mean.
    pub request_bytes: f64,
    /// What each part of ω_j counts.
    pub weights: LoadWeights,
}

/// One chunk and where it shall go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkMove {
    /// The stripe.
    pub stripe: StripeId,
    /// The chunk's index in it.
    pub index: usize,
    /// S_s, where it is.
    pub from: SiteId,
    /// S_d, where it shall be.
    pub to: SiteId,
}

/// The unit of costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CostScale {
    /// o_j is 5 in the mean over the sites that answer, m_j z_i = 1 (§V-B3).
    Published,
    /// As measured.
    Measured,
}

/// C, and what moves are judged by.
#[derive(Clone, Debug)]
pub struct MovementState {
    /// Ascending.
    pub(super) sites: Vec<MovementSite>,
    pub(super) blocks: Vec<Placed>,
    /// The blocks of sampled requests.
    pub(super) requests: Vec<Vec<usize>>,
    by_id: HashMap<StripeId, usize>,
    pub(super) loads: Loads,
    scale: CostScale,
    /// o_j in the unit of costs.
    pub(super) asking: Vec<f64>,
    /// Chunks that were moved.
    changes: u64,
}

/// A block with sites and partners by their positions.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub id: StripeId,
    pub data_chunks: usize,
    pub need: usize,
    pub rule: PlacementRule,
    pub chunk_len: u32,
    pub popularity: f64,
    /// The site of each chunk; `None` where there is none, or an unknown one.
    pub at: Vec<Option<usize>>,
    pub partners: Vec<(usize, f64)>,
    pub requests: Vec<usize>,
    /// The chunks that can be read, ascending by site.
    pub choices: Vec<Choice>,
    /// How many moves there had been when it was moved the last time.
    pub changed: u64,
    /// A move of one of its chunks is under way.
    pub is_moving: bool,
}

/// A chunk that a read may choose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    pub site: usize,
    /// o_j.
    pub asking: f64,
    /// m_j z_b, and decoding if it is a parity.
    pub transfer: f64,
}

impl Placed {
    pub(super) fn is_at(&self, site: usize) -> bool {
        self.at.contains(&Some(site))
    }

    /// The chunks that can be read when the one with `index` has left.
    pub(super) fn choices_without(&self, index: usize) -> impl Iterator<Item = Choice> + '_ {
        self.choices.iter().copied().filter(move |choice| Some(choice.site) != self.at[index])
    }

    /// It has as many chunks as a read asks for.
    pub(super) fn is_readable(&self) -> bool {
        self.choices.len() >= self.need
    }
}

impl MovementState {
    /// The state of these blocks on these sites, with costs as the paper has them or as measured.
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
        let place_of = |site: SiteId| sites.binary_search_by_key(&site, |known| known.site).ok();
        let placed = blocks.iter().map(|block| Placed {
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
        let blocks: Vec<Placed> = placed.collect();
        let known =
            |request: &Vec<StripeId>| request.iter().filter_map(|id| by_id.get(id).copied()).collect();
        let requests = requests.iter().map(known).collect();
        let mut state = Self { sites, blocks, requests, by_id, loads, scale, asking, changes: 0 };
        (0..state.blocks.len()).for_each(|block| state.list_choices(block));
        state
    }

    /// The place of a block.
    pub(super) fn place_of(&self, block: StripeId) -> Option<usize> {
        self.by_id.get(&block).copied()
    }

    /// The chunk of `block` with `index`, at `site`; `None` if the site does not answer.
    pub(super) fn choice(&self, block: usize, index: usize, site: usize) -> Option<Choice> {
        let cost = self.sites[site].cost?;
        let of = &self.blocks[block];
        let transfer = match self.scale {
            CostScale::Published => 1.0,
            CostScale::Measured if index >= of.data_chunks && of.data_chunks > 1 => {
                let decoded = of.data_chunks as f64 * f64::from(of.chunk_len);
                cost.transfer(of.chunk_len) + cost.decode_per_byte * decoded
            }
            CostScale::Measured => cost.transfer(of.chunk_len),
        };
        Some(Choice { site, asking: self.asking[site], transfer })
    }

    /// Whether `site` may take the chunk of `block` that is at `from`.
    pub(super) fn may_take(&self, block: usize, from: usize, site: usize) -> bool {
        let (of, to) = (&self.blocks[block], &self.sites[site]);
        let is_free = to.takes_chunks && to.cost.is_some() && to.free_bytes >= u64::from(of.chunk_len);
        if !is_free || of.is_moving || of.is_at(site) {
            return false;
        }
        let Some(index) = of.at.iter().position(|&at| at == Some(from)) else { return false };
        let places = of.at.iter().enumerate();
        let places = places.filter_map(|(chunk, at)| Some((chunk, &self.sites[(*at)?].rack)));
        of.rule.admits(index, &to.rack, places)
    }

    /// Takes note that a chunk has moved: where it is, what is stored, and the sites' space.
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

    /// How many moves there had been when a block of the request was moved the last time.
    pub(super) fn request_changed(&self, request: usize) -> u64 {
        self.requests[request].iter().map(|&block| self.blocks[block].changed).max().unwrap_or(0)
    }

    /// Takes note of moves that were made, each with the load that its chunk takes along.
    pub fn apply(&mut self, moves: &[ChunkMove]) {
        for done in moves {
            let load = self.load_of(done);
            self.add_load(done.from, -load);
            self.add_load(done.to, load);
            self.relocate(std::slice::from_ref(done));
        }
    }

    /// Takes note of moves that are under way: their chunks count where they go, and until then no other chunk of these stripes
    /// is moved.
    pub fn expect(&mut self, moves: &[ChunkMove]) {
        for wanted in moves {
            let Some(block) = self.place_of(wanted.stripe) else { continue };
            self.blocks[block].is_moving = true;
            let from = self.sites.binary_search_by_key(&wanted.from, |known| known.site).ok();
            if from.is_some() && self.blocks[block].at.get(wanted.index) == Some(&from) {
                self.relocate(std::slice::from_ref(wanted));
            }
        }
    }

    /// Takes note of moves that were made, and of no load.
    pub(super) fn relocate(&mut self, moves: &[ChunkMove]) {
        for done in moves {
            let to = self.sites.binary_search_by_key(&done.to, |known| known.site);
            if let (Some(block), Ok(to)) = (self.place_of(done.stripe), to)
                && done.index < self.blocks[block].at.len()
            {
                self.relocate_chunk(block, done.index, to);
            }
        }
    }

    /// The dynamic load (processor and disk) that a move takes along.
    pub fn load_of(&self, wanted: &ChunkMove) -> f64 {
        let from = self.sites.binary_search_by_key(&wanted.from, |known| known.site);
        match (self.place_of(wanted.stripe), from) {
            (Some(block), Ok(from)) => self.loads.shift_of(&self.blocks[block], from).dynamic,
            _ => 0.0,
        }
    }

    /// The length of the chunk, in bytes; 0 for a stripe that the state does not have.
    pub fn chunk_len_of(&self, wanted: &ChunkMove) -> u32 {
        self.place_of(wanted.stripe).map_or(0, |block| self.blocks[block].chunk_len)
    }

    /// Takes note of load that a site has, or has no more where it is negative, beside what it told.
    pub fn add_load(&mut self, site: SiteId, dynamic: f64) {
        if let Ok(place) = self.sites.binary_search_by_key(&site, |known| known.site) {
            self.loads.add(place, dynamic);
        }
    }

    /// Bytes that it takes.
    pub fn memory_bytes(&self) -> usize {
        let of_block = |block: &Placed| {
            size_of::<Placed>()
                + block.at.capacity() * size_of::<Option<usize>>()
                + block.partners.capacity() * size_of::<(usize, f64)>()
                + block.requests.capacity() * size_of::<usize>()
                + block.choices.capacity() * size_of::<Choice>()
        };
        let of_sites = self.sites.capacity() * (size_of::<MovementSite>() + 3 * size_of::<f64>());
        of_sites
            + self.blocks.iter().map(of_block).sum::<usize>()
            + self.requests.iter().map(|request| request.capacity() * size_of::<usize>()).sum::<usize>()
            + self.by_id.capacity() * size_of::<(StripeId, usize)>()
    }

    /// ω_j of every site, ascending by its number.
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
    let of = |site: &MovementSite| site.cost.map_or(0.0, |cost| cost.asking);
    let answer = sites.iter().filter(|site| site.cost.is_some()).count();
    let mean = sites.iter().map(of).sum::<f64>() / answer.max(1) as f64;
    let unit = match scale {
        CostScale::Published if mean > 0.0 => 5.0 / mean,
        _ => 1.0,
    };
    sites.iter().map(|site| of(site) * unit).collect()
}

fn partners_of(block: &MovementBlock, by_id: &HashMap<StripeId, usize>) -> Vec<(usize, f64)> {
    let others = block.partners.iter().filter(|partner| partner.block != block.id);
    others.filter_map(|partner| Some((*by_id.get(&partner.block)?, partner.likelihood))).collect()
}
