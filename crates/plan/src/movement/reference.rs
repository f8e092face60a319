//! Eq. 5–8 from scratch, for the tests: writes out the states before and after, solves every query with the planner of
//! reads and shifts each part of the loads.

use striate_core::{SiteId, StripeId};

use super::instances::MovementInstance;
use super::{ChunkMove, MovementBlock, MovementSite, Traffic};
use crate::solver::access::{AccessOption, AccessProblem, AccessWorkspace, solve};
use crate::statistics::site_load::{SiteLoad, load_imbalances, site_loads};

/// Selects one of the two cost models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    Published,
    Measured,
}

pub(super) struct ReferenceModel<'a> {
    pub sites: &'a [MovementSite],
    pub blocks: &'a [MovementBlock],
    pub traffic: Traffic,
    pub scale: Scale,
}

impl<'a> ReferenceModel<'a> {
    pub(super) fn new(instance: &'a MovementInstance, scale: Scale) -> Self {
        Self { sites: &instance.sites, blocks: &instance.blocks, traffic: instance.traffic, scale }
    }

    fn block(&self, of: ChunkMove) -> &'a MovementBlock {
        self.blocks.iter().find(|block| block.id == of.stripe).expect("a block of the state")
    }

    /// Returns b's row of C^{b,s,d}.
    fn moved(&self, of: ChunkMove) -> MovementBlock {
        let mut block = self.block(of).clone();
        assert_eq!(block.sites[of.index], of.from);
        block.sites[of.index] = of.to;
        block
    }

    fn asking(&self, site: usize) -> f64 {
        let costs = || self.sites.iter().filter_map(|site| site.cost).map(|cost| cost.asking);
        let own = self.sites[site].cost.expect("it answers").asking;
        match self.scale {
            Scale::Published => own * 5.0 / (costs().sum::<f64>() / costs().count() as f64),
            Scale::Measured => own,
        }
    }

    /// Returns cost(C, Q); `None` if Q cannot be read.
    pub(super) fn cost(&self, query: &[&MovementBlock]) -> Option<f64> {
        let is_here = |site: &MovementSite| site.cost.is_some();
        let asking = (0..self.sites.len())
            .map(|site| if is_here(&self.sites[site]) { self.asking(site) } else { 0.0 });
        let mut problem = AccessProblem::new(asking);
        for block in query {
            let option = |(index, site): (usize, &SiteId)| {
                let place = self.sites.iter().position(|known| known.site == *site && is_here(known))?;
                let cost = self.sites[place].cost?;
                let len = f64::from(block.chunk_len);
                let k = block.data_chunks;
                let is_parity = index >= k && k > 1;
                let decode = if is_parity { cost.decode_per_byte * k as f64 * len } else { 0.0 };
                let transfer = match self.scale {
                    Scale::Published => 1.0,
                    Scale::Measured => cost.per_byte * len + decode,
                };
                Some(AccessOption { site: place, transfer })
            };
            problem.push_block(block.need, block.sites.iter().enumerate().filter_map(option));
        }
        let mut workspace = AccessWorkspace::default();
        let plan = solve(&problem, 1_000_000, &mut workspace).ok()?;
        assert!(plan.is_optimal());
        Some(plan.cost)
    }

    /// Returns E.
    pub(super) fn access(&self, of: ChunkMove) -> f64 {
        let (before, after) = (self.block(of), self.moved(of));
        let mut saved = 0.0;
        let mut add = |likelihood: f64, before: Option<f64>, after: Option<f64>| {
            if let (Some(before), Some(after)) = (before, after) {
                saved += likelihood * (before - after);
            }
        };
        for partner in &before.partners {
            let other = self.blocks.iter().find(|block| block.id == partner.block);
            let Some(other) = other.filter(|other| other.id != before.id) else { continue };
            add(partner.likelihood, self.cost(&[before, other]), self.cost(&[&after, other]));
        }
        saved
    }

    /// Returns the total cost of these requests, over those of their blocks that can be read.
    pub(super) fn requests_cost(&self, requests: &[&Vec<StripeId>]) -> f64 {
        let cost = |request: &&Vec<StripeId>| {
            let blocks = self.blocks.iter().filter(|block| request.contains(&block.id));
            let readable: Vec<&MovementBlock> =
                blocks.filter(|block| self.cost(&[block]).is_some()).collect();
            self.cost(&readable).expect("each of them can be read")
        };
        requests.iter().map(cost).sum()
    }

    /// Returns the load of every site after the move, which takes a proportional part of the source's processor and
    /// disk load, and one chunk.
    fn loads_after(&self, of: ChunkMove) -> Vec<SiteLoad> {
        let mut loads: Vec<SiteLoad> = self.sites.iter().map(|site| site.load).collect();
        let place = |site: SiteId| self.sites.iter().position(|known| known.site == site).expect("known");
        let (from, to, block) = (place(of.from), place(of.to), self.block(of));
        let weights = self.traffic.weights;
        let dynamic = |load: &SiteLoad| weights.cpu * load.cpu + weights.io * load.io;
        let bytes =
            block.popularity * block.need as f64 / block.sites.len() as f64 * f64::from(block.chunk_len);
        let all: f64 = loads.iter().map(dynamic).sum();
        let part = (all * bytes / self.traffic.request_bytes / dynamic(&loads[from])).min(1.0);
        let taken = SiteLoad { cpu: loads[from].cpu * part, io: loads[from].io * part, chunks: 1.0 };
        for (site, sign) in [(from, -1.0), (to, 1.0)] {
            loads[site].cpu += sign * taken.cpu;
            loads[site].io += sign * taken.io;
            loads[site].chunks += sign * taken.chunks;
        }
        loads
    }

    /// Returns ω_j of every site, before or after a move.
    pub(super) fn omegas(&self, of: Option<ChunkMove>) -> Vec<f64> {
        let before = || self.sites.iter().map(|site| site.load).collect();
        site_loads(&of.map_or_else(before, |of| self.loads_after(of)), self.traffic.weights)
    }

    /// Returns I (Eq. 7).
    pub(super) fn balance(&self, of: ChunkMove) -> f64 {
        let farther = |omegas: Vec<f64>| {
            let imbalances = load_imbalances(&omegas);
            let here = |site: SiteId| self.sites.iter().position(|known| known.site == site).expect("known");
            imbalances[here(of.from)].max(imbalances[here(of.to)])
        };
        farther(self.omegas(None)) - farther(self.omegas(Some(of)))
    }

    /// Returns half the decrease of the mean of (ω_j/ω̃)².
    pub(super) fn square_balance(&self, of: ChunkMove) -> f64 {
        let square = |omegas: Vec<f64>| {
            let mean = omegas.iter().sum::<f64>() / omegas.len() as f64;
            omegas.iter().map(|omega| (omega / mean).powi(2)).sum::<f64>() / omegas.len() as f64
        };
        (square(self.omegas(None)) - square(self.omegas(Some(of)))) / 2.0
    }

    /// Returns all legal moves of a block's chunks.
    pub(super) fn legal_moves(&self, block: &MovementBlock) -> Vec<ChunkMove> {
        let mut moves = Vec::new();
        for (index, &from) in block.sites.iter().enumerate().filter(|(_, site)| site.0 != 0) {
            for to in self.sites {
                let wanted = ChunkMove { stripe: block.id, index, from, to: to.site };
                if super::check_movement(&[wanted], self.sites, self.blocks).is_ok() {
                    moves.push(wanted);
                }
            }
        }
        moves
    }
}
