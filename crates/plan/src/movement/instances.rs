//! Random states for tests and benchmarks, the same for the same seed.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use striate_core::{RackId, SiteId, StripeId};

use super::state::{ChunkMove, MovementBlock, MovementSite, Traffic};
use crate::cost::SiteCost;
use crate::placement::rule::PlacementRule;
use crate::statistics::co_access::Partner;
use crate::statistics::site_load::{LoadWeights, SiteLoad};

/// How states are drawn: groups of blocks on random sites, requested together with their neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovementShape {
    /// Number of sites.
    pub sites: u32,
    /// Number of racks; sites are assigned round robin.
    pub racks: u32,
    /// Data chunks of each block.
    pub k: usize,
    /// Parity chunks of each block.
    pub r: usize,
    /// δ: chunks that reads request beyond k.
    pub extra_reads: usize,
    /// Number of blocks.
    pub blocks: u64,
    /// Number of consecutive blocks on the same sites.
    pub group: u64,
    /// Partners of each block.
    pub partners: u64,
}

/// A drawn state, before an objective assigns costs.
#[derive(Clone, Debug, PartialEq)]
pub struct MovementInstance {
    /// The sites.
    pub sites: Vec<MovementSite>,
    /// The blocks.
    pub blocks: Vec<MovementBlock>,
    /// Sets of neighbouring blocks that were requested together.
    pub requests: Vec<Vec<StripeId>>,
    /// The traffic of the whole store.
    pub traffic: Traffic,
}

impl MovementInstance {
    /// Returns the instance after these moves.
    #[must_use]
    pub fn after(&self, moves: &[ChunkMove]) -> Self {
        let mut moved = self.clone();
        for done in moves {
            let block = moved.blocks.iter_mut().find(|block| block.id == done.stripe);
            if let Some(site) = block.and_then(|block| block.sites.get_mut(done.index)) {
                *site = done.to;
            }
        }
        moved
    }
}

impl MovementShape {
    /// Draws a state. One site in eight takes no chunks, one in sixteen is unreachable, and one in ten is nearly full.
    /// One block in fifty lacks a chunk.
    pub fn draw(&self, seed: u64) -> MovementInstance {
        let mut rng = SmallRng::seed_from_u64(seed);
        let sites: Vec<MovementSite> = (0..self.sites).map(|site| self.draw_site(site, &mut rng)).collect();
        let mut blocks: Vec<MovementBlock> =
            (0..self.blocks).map(|block| self.draw_block(seed, block, &mut rng)).collect();
        let requests = self.draw_requests(&mut blocks, &mut rng);
        let bytes = |block: &MovementBlock| block.popularity * block.need as f64 * f64::from(block.chunk_len);
        let request_bytes = blocks.iter().map(bytes).sum();
        MovementInstance {
            sites,
            blocks,
            requests,
            traffic: Traffic { request_bytes, weights: LoadWeights::default() },
        }
    }

    /// Draws two requests that begin at each block, of at most half its partners plus itself. Each block records the
    /// first 16 requests for it.
    fn draw_requests(&self, blocks: &mut [MovementBlock], rng: &mut SmallRng) -> Vec<Vec<StripeId>> {
        const KNOWN: usize = 16;
        let mut requests = Vec::new();
        for first in 0..self.blocks {
            for _ in 0..2 {
                let len = rng.random_range(1..=(self.partners / 2 + 1).min(self.blocks));
                let request = (0..len).map(|distance| (first + distance) % self.blocks);
                for block in request.clone() {
                    let known = &mut blocks[block as usize].requests;
                    if known.len() < KNOWN {
                        known.push(requests.len());
                    }
                }
                requests.push(request.map(|block| StripeId::new(1, block)).collect());
            }
        }
        requests
    }

    fn draw_site(&self, site: u32, rng: &mut SmallRng) -> MovementSite {
        let answers = rng.random_range(0..16) > 0;
        let asking = 1.0 + rng.random::<f64>() * 4.0;
        let cost = SiteCost { asking, per_byte: rng.random::<f64>() * 8e-6, decode_per_byte: 1e-7 };
        let chunks = rng.random_range(10..100_u32);
        MovementSite {
            site: SiteId(site + 1),
            rack: RackId(format!("rack{}", site % self.racks)),
            cost: answers.then_some(cost),
            load: SiteLoad { cpu: rng.random(), io: rng.random(), chunks: f64::from(chunks) },
            free_bytes: if rng.random_range(0..10) == 0 { 60_000 } else { 1 << 40 },
            takes_chunks: rng.random_range(0..8) > 0,
        }
    }

    fn draw_block(&self, seed: u64, block: u64, rng: &mut SmallRng) -> MovementBlock {
        let n = self.k + self.r;
        let racks = self.racks.min(self.sites) as usize;
        let rule = PlacementRule::at_most(n.div_ceil(racks).max(self.r), n);
        let mut in_rack = vec![0; racks];
        let mut sites = Vec::new();
        let mut of_group = SmallRng::seed_from_u64(seed ^ (block / self.group.max(1) + 1).rotate_left(32));
        for site in rand::seq::index::sample(&mut of_group, self.sites as usize, self.sites as usize) {
            if sites.len() < n && in_rack[site % racks] < rule.rack_limit() {
                in_rack[site % racks] += 1;
                sites.push(SiteId(site as u32 + 1));
            }
        }
        if rng.random_range(0..50) == 0 {
            sites[0] = SiteId(0);
        }
        let neighbour = |distance: u64| StripeId::new(1, (block + distance) % self.blocks);
        let partner =
            |distance: u64| Partner { block: neighbour(distance), likelihood: rng.random_range(0.05..1.0) };
        let partners = (1..=self.partners.min(self.blocks.saturating_sub(1))).map(partner).collect();
        MovementBlock {
            id: StripeId::new(1, block),
            data_chunks: self.k,
            need: self.k + self.extra_reads,
            rule,
            chunk_len: if block.is_multiple_of(3) { 50_000 } else { 500_000 },
            sites,
            popularity: rng.random_range(0.001..0.05),
            partners,
            requests: Vec::new(),
        }
    }
}
