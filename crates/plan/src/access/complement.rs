//! The complement: the sites that stay closed, for components in which every transfer costs the same.
//!
//! A plan is then a set of open sites that leaves every block its need, so block i lets at most r_i of its options be
//! closed, and the cheapest plan is the heaviest set of sites that may be closed. Few sites can be closed where
//! blocks are many, and few are in doubt where blocks are few, so this set is searched.
//!
//! The blocks are the lanes of one word: a counter of a few bits for each block, held as that many bit planes, starts
//! r_i below its greatest value. Closing a site adds one to the counters of its blocks, a carry chain of as many steps
//! as there are planes; blocks at the greatest value are *full* and forbid their other sites. A step of the search
//! takes some 20 ns.

use super::component::Component;

/// One bit for each block.
pub type BlockSet = u128;
/// One bit for each site.
pub type SiteSet = u64;

/// How many blocks fit.
pub const MOST_BLOCKS: usize = BlockSet::BITS as usize;
/// How many sites can be searched.
pub const MOST_SITES: usize = SiteSet::BITS as usize;
/// How many bits a counter can have, and so the greatest slack.
pub const MOST_PLANES: usize = 4;

/// The counters of all blocks.
#[derive(Clone, Copy, Debug)]
pub struct Counters<const PLANES: usize>([BlockSet; PLANES]);

impl<const PLANES: usize> Counters<PLANES> {
    /// Counters that are full after `slack(block)` additions.
    pub fn new(blocks: usize, slack: impl Fn(usize) -> usize) -> Self {
        let mut planes = [0; PLANES];
        for block in 0..blocks {
            let start = (1 << PLANES) - 1 - slack(block);
            for (bit, plane) in planes.iter_mut().enumerate() {
                *plane |= ((start >> bit & 1) as BlockSet) << block;
            }
        }
        Self(planes)
    }

    /// The blocks of which no further site may be closed.
    #[inline(always)]
    pub fn full(&self) -> BlockSet {
        self.0.iter().fold(BlockSet::MAX, |all, plane| all & plane)
    }

    /// Counts one site closed of each of these blocks, none of which is full.
    #[inline(always)]
    pub fn add(&mut self, blocks: BlockSet) {
        let mut carry = blocks;
        for plane in &mut self.0 {
            let sum = *plane ^ carry;
            carry &= *plane;
            *plane = sum;
        }
    }
}

/// A component as words: what its blocks let be closed.
#[derive(Debug, Default)]
pub struct Packing {
    /// The blocks of each site.
    pub blocks_at: Vec<BlockSet>,
}

impl Packing {
    /// Whether a component can be searched this way.
    pub fn fits(component: &Component) -> bool {
        let most_slack = (1 << MOST_PLANES) - 1;
        component.is_uniform
            && component.block_count() <= MOST_BLOCKS
            && (0..component.block_count()).all(|block| component.slack(block) <= most_slack)
    }

    pub fn load(&mut self, component: &Component) {
        self.blocks_at.clear();
        let sites = 0..component.site_count();
        self.blocks_at.extend(
            sites.map(|site| component.blocks_at(site).iter().fold(0, |set, block| set | 1 << block)),
        );
    }

    /// Closes sites in this order while their blocks allow it; the sum of their o_j.
    pub fn close_in_order<const PLANES: usize>(
        &self,
        component: &Component,
        counters: &mut Counters<PLANES>,
        order: impl Iterator<Item = usize>,
        closed: &mut [bool],
    ) -> f64 {
        let (mut weight, mut full) = (0.0, counters.full());
        for site in order {
            let blocks = self.blocks_at[site];
            if blocks & full == 0 && !closed[site] {
                counters.add(blocks);
                full = counters.full();
                closed[site] = true;
                weight += component.overheads[site];
            }
        }
        weight
    }

    /// Looks for a heavier set by closing one more site, opening what that is in the way of, and closing whatever
    /// then can be; until no site helps. `trial` is scratch.
    pub fn improve<const PLANES: usize>(
        &self,
        component: &Component,
        start: Counters<PLANES>,
        closed: &mut Vec<bool>,
        trial: &mut Vec<bool>,
        mut weight: f64,
    ) -> f64 {
        let sites = component.site_count();
        let (mut site, mut unhelpful) = (0, 0);
        while unhelpful < sites {
            if !closed[site] {
                let mut counters = start;
                trial.clear();
                trial.resize(sites, false);
                let kept = (0..sites).filter(|&other| closed[other]);
                let first = std::iter::once(site).chain(kept);
                let mut changed = self.close_in_order(component, &mut counters, first, trial);
                changed += self.close_in_order(component, &mut counters, 0..sites, trial);
                if changed > weight * (1.0 + 1e-12) {
                    weight = changed;
                    std::mem::swap(closed, trial);
                    unhelpful = 0;
                }
            }
            unhelpful += 1;
            site = (site + 1) % sites;
        }
        weight
    }
}

/// The search for the heaviest set of sites that may be closed, among sites whose use is in doubt.
#[derive(Debug, Default)]
pub struct Search {
    weights: Vec<f64>,
    blocks_at: Vec<BlockSet>,
    sites_of: Vec<SiteSet>,
    implied: Vec<SiteSet>,
    /// For each eight sites and each subset of them: the sum of their weights, and of their positive reduced costs.
    sums: Vec<[(f64, f64); 256]>,
    reduced: Vec<f64>,
    /// The weight to beat, and the set that has it, if it was found here.
    pub best: f64,
    pub best_closed: Option<SiteSet>,
    /// The greatest weight that an unexplored set may have.
    pub unexplored: f64,
    pub nodes: u64,
    pub limit: u64,
}

/// A node: what is decided so far.
#[derive(Clone, Copy)]
struct Node<const PLANES: usize> {
    candidates: SiteSet,
    closed: SiteSet,
    counters: Counters<PLANES>,
    /// The weight of what is closed, and K + Σ ρ_j over it.
    weight: f64,
    reduced: f64,
}

impl Search {
    pub fn load(&mut self, component: &Component, packing: &Packing, reduced: &[f64], sites: &[usize]) {
        self.weights.clear();
        self.weights.extend(sites.iter().map(|&site| component.overheads[site]));
        self.reduced.clear();
        self.reduced.extend(sites.iter().map(|&site| reduced[site]));
        self.blocks_at.clear();
        self.blocks_at.extend(sites.iter().map(|&site| packing.blocks_at[site]));
        self.sites_of.clear();
        self.sites_of.resize(component.block_count(), 0);
        for (index, &site) in sites.iter().enumerate() {
            component.blocks_at(site).iter().for_each(|&block| self.sites_of[block] |= 1 << index);
        }
        self.implied.clear();
        for (index, &blocks) in self.blocks_at.iter().enumerate() {
            let later = (index + 1..sites.len()).filter(|&other| self.blocks_at[other] & blocks == blocks);
            self.implied.push(later.fold(1 << index, |set, other| set | 1 << other));
        }
        self.sums.clear();
        for first in (0..sites.len()).step_by(8) {
            let mut sums = [(0.0, 0.0); 256];
            for (bit, site) in (first..sites.len().min(first + 8)).enumerate() {
                let (weight, reduced) = (self.weights[site], self.reduced[site].max(0.0));
                for subset in 0..1 << bit {
                    let (a, b) = sums[subset];
                    sums[subset | 1 << bit] = (a + weight, b + reduced);
                }
            }
            self.sums.push(sums);
        }
    }

    pub fn run<const PLANES: usize>(
        &mut self,
        candidates: SiteSet,
        counters: Counters<PLANES>,
        weight: f64,
        reduced: f64,
    ) {
        self.unexplored = f64::NEG_INFINITY;
        self.best_closed = None;
        self.visit(Node { candidates, closed: 0, counters, weight, reduced });
    }

    fn visit<const PLANES: usize>(&mut self, mut node: Node<PLANES>) {
        let full = node.counters.full();
        loop {
            self.nodes += 1;
            if node.candidates == 0 {
                if node.weight > self.best {
                    self.best = node.weight;
                    self.best_closed = Some(node.closed);
                }
                return;
            }
            let bound = self.bound(&node);
            if bound <= self.best {
                return;
            }
            if self.nodes > self.limit {
                self.unexplored = self.unexplored.max(bound);
                return;
            }
            let site = node.candidates.trailing_zeros() as usize;
            let mut child = node;
            child.counters.add(self.blocks_at[site]);
            child.candidates &= !(1 << site);
            child.closed |= 1 << site;
            let mut filled = child.counters.full() & !full;
            while filled != 0 {
                child.candidates &= !self.sites_of[filled.trailing_zeros() as usize];
                filled &= filled - 1;
            }
            child.weight += self.weights[site];
            child.reduced += self.reduced[site];
            self.visit(child);
            node.candidates &= !self.implied[site];
        }
    }

    #[inline(always)]
    fn bound<const PLANES: usize>(&self, node: &Node<PLANES>) -> f64 {
        let (mut weight, mut reduced) = (node.weight, node.reduced);
        let mut rest = node.candidates;
        for sums in &self.sums {
            let (a, b) = sums[(rest & 255) as usize];
            weight += a;
            reduced += b;
            rest >>= 8;
        }
        weight.min(reduced)
    }
}
