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
use super::dual::{Decision, Dual};

/// One bit for each block.
pub type BlockSet = u128;
/// One bit for each site.
pub type SiteSet = u64;

/// How many blocks fit.
pub const MOST_BLOCKS: usize = BlockSet::BITS as usize;
/// How many sites can be searched.
pub const MOST_SITES: usize = SiteSet::BITS as usize;
/// How many bits a counter has.
const PLANES: usize = 4;
/// The greatest slack that can be counted.
const MOST_SLACK: usize = (1 << PLANES) - 1;

/// The counters of all blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters([BlockSet; PLANES]);

impl Counters {
    /// Counters that are full after `slack(block)` additions.
    pub fn new(blocks: usize, slack: impl Fn(usize) -> usize) -> Self {
        let mut planes = [0; PLANES];
        for block in 0..blocks {
            let start = MOST_SLACK - slack(block);
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

    /// The blocks of which one more site may be closed.
    #[inline(always)]
    pub fn last(&self) -> BlockSet {
        self.0[1..].iter().fold(!self.0[0], |all, plane| all & plane)
    }

    /// The blocks of which two more sites may be closed.
    #[inline(always)]
    pub fn last_but_one(&self) -> BlockSet {
        self.0[2..].iter().fold(self.0[0] & !self.0[1], |all, plane| all & plane)
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
    /// The counters while every site is open.
    pub start: Counters,
}

impl Packing {
    /// Whether a component can be searched this way.
    pub fn fits(component: &Component) -> bool {
        component.is_uniform
            && component.block_count() <= MOST_BLOCKS
            && (0..component.block_count()).all(|block| component.slack(block) <= MOST_SLACK)
    }

    pub fn load(&mut self, component: &Component) {
        self.blocks_at.clear();
        let sites = 0..component.site_count();
        self.blocks_at.extend(
            sites.map(|site| component.blocks_at(site).iter().fold(0, |set, block| set | 1 << block)),
        );
        self.start = Counters::new(component.block_count(), |block| component.slack(block));
    }

    /// Closes sites in this order while their blocks allow it; the sum of their o_j.
    pub fn close_in_order(
        &self,
        component: &Component,
        counters: &mut Counters,
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
    pub fn improve(
        &self,
        component: &Component,
        closed: &mut Vec<bool>,
        trial: &mut Vec<bool>,
        mut weight: f64,
    ) -> f64 {
        let sites = component.site_count();
        let (mut site, mut unhelpful) = (0, 0);
        while unhelpful < sites {
            if !closed[site] {
                let mut counters = self.start;
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
    cliques: Vec<(f64, SiteSet)>,
    rivals: Vec<[SiteSet; MOST_SITES]>,
    made_rivals: Vec<SiteSet>,
    deep: BlockSet,
    /// The sites that are searched, in the order of the component.
    sites: Vec<usize>,
    /// The weight to beat, and the set that has it, once one is found.
    heaviest: f64,
    found: Option<SiteSet>,
    /// The greatest weight that an unexplored set may have.
    heaviest_unexplored: f64,
    /// The least cost that an unexplored plan may have.
    pub unexplored: f64,
    pub work: u64,
    pub limit: u64,
}

/// A node: what is decided so far.
#[derive(Clone, Copy)]
struct Node {
    candidates: SiteSet,
    closed: SiteSet,
    counters: Counters,
    last: BlockSet,
    /// The weight of what is closed, and K + Σ ρ_j over it.
    weight: f64,
    reduced: f64,
}

impl Search {
    fn load(&mut self, component: &Component, packing: &Packing, dual: &Dual) {
        let sites = &self.sites;
        self.weights.clear();
        self.weights.extend(sites.iter().map(|&site| component.overheads[site]));
        self.reduced.clear();
        self.reduced.extend(sites.iter().map(|&site| dual.reduced[site]));
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

    /// Looks for plans that cost less than `best` among those that the decisions of `dual` allow.
    ///
    /// Leaves the sites of the cheapest in `open`, and gives its cost; or nothing when there is none. `unexplored` is
    /// then the least cost that a plan may have which the limit kept from being looked at.
    pub fn run(
        &mut self,
        component: &Component,
        packing: &Packing,
        dual: &Dual,
        best: f64,
        open: &mut [bool],
    ) -> Option<f64> {
        self.unexplored = f64::INFINITY;
        let total: f64 = component.overheads.iter().sum();
        let slacks = (0..component.block_count()).map(|block| component.slack(block) as f64);
        let mut node = Node {
            candidates: 0,
            closed: 0,
            counters: packing.start,
            last: 0,
            weight: 0.0,
            reduced: slacks.zip(&dual.prices).map(|(slack, price)| slack * price).sum(),
        };
        self.sites.clear();
        for site in 0..component.site_count() {
            match dual.decisions[site] {
                Decision::Open => {}
                Decision::Undecided => self.sites.push(site),
                Decision::Closed => {
                    if packing.blocks_at[site] & node.counters.full() != 0 {
                        return None;
                    }
                    node.counters.add(packing.blocks_at[site]);
                    node.weight += component.overheads[site];
                    node.reduced += dual.reduced[site];
                }
            }
        }
        let full = node.counters.full();
        self.sites.retain(|&site| packing.blocks_at[site] & full == 0);
        node.candidates = SiteSet::MAX.checked_shr((MOST_SITES - self.sites.len()) as u32).unwrap_or(0);
        self.load(component, packing, dual);
        self.load_rivals(node.counters);
        self.heaviest = total - best;
        self.found = None;
        self.heaviest_unexplored = f64::NEG_INFINITY;
        self.rivals.clear();
        self.rivals.push([0; MOST_SITES]);
        self.visit(0, None, node);
        self.unexplored = total - self.heaviest_unexplored;
        let closed = self.found?;
        for (site, open) in open.iter_mut().enumerate() {
            *open = dual.decisions[site] != Decision::Closed;
        }
        for (index, &site) in self.sites.iter().enumerate() {
            open[site] = closed >> index & 1 == 0;
        }
        Some(total - self.heaviest)
    }

    /// What closing a site makes of blocks that let two be closed.
    fn load_rivals(&mut self, counters: Counters) {
        let sites = self.weights.len();
        self.made_rivals.clear();
        self.made_rivals.resize(sites * sites, 0);
        let mut blocks = counters.last_but_one();
        self.deep = !blocks;
        blocks &= self.blocks_at.iter().fold(0, |all, blocks| all | blocks);
        while blocks != 0 {
            let together = self.sites_of[blocks.trailing_zeros() as usize];
            let mut closed = together;
            while closed != 0 {
                let made = &mut self.made_rivals[closed.trailing_zeros() as usize * sites..][..sites];
                let mut left = together;
                while left != 0 {
                    made[left.trailing_zeros() as usize] |= together;
                    left &= left - 1;
                }
                closed &= closed - 1;
            }
            blocks &= blocks - 1;
        }
    }

    fn visit(&mut self, depth: usize, closed: Option<usize>, mut node: Node) {
        self.work += 1;
        if node.candidates == 0 {
            if node.weight > self.heaviest {
                self.heaviest = node.weight;
                self.found = Some(node.closed);
            }
            return;
        }
        let bound = self.bound(&node);
        if bound <= self.heaviest {
            return;
        }
        self.update_rivals(depth, closed, &mut node);
        if self.is_covered(depth, &node) {
            return;
        }
        let mut branches = self.uncovered(depth, &node);
        if self.work > self.limit {
            self.heaviest_unexplored = self.heaviest_unexplored.max(bound);
            return;
        }
        let full = node.counters.full();
        while branches != 0 {
            let site = branches.trailing_zeros() as usize;
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
            self.visit(depth + 1, Some(site), child);
            node.candidates &= !self.implied[site];
            branches &= node.candidates;
        }
    }

    /// Any two candidates of a block that lets one more be closed are rivals.
    #[inline(always)]
    fn update_rivals(&mut self, depth: usize, closed: Option<usize>, node: &mut Node) {
        let sites = self.weights.len();
        while self.rivals.len() <= depth + 1 {
            self.rivals.push([0; MOST_SITES]);
        }
        let (above, here) = self.rivals.split_at_mut(depth + 1);
        let (above, here) = (&above[depth], &mut here[0]);
        let last = node.counters.last();
        let mut changed = last & !node.last;
        match closed {
            Some(site) => {
                let made = &self.made_rivals[site * sites..][..sites];
                for ((here, above), made) in here.iter_mut().zip(above).zip(made) {
                    *here = above | made;
                }
                changed &= self.deep;
            }
            None => here[..sites].copy_from_slice(&above[..sites]),
        }
        node.last = last;
        while changed != 0 {
            let together = self.sites_of[changed.trailing_zeros() as usize] & node.candidates;
            let mut left = together;
            while left != 0 {
                here[left.trailing_zeros() as usize & (MOST_SITES - 1)] |= together;
                left &= left - 1;
            }
            changed &= changed - 1;
        }
    }

    #[inline(always)]
    fn bound(&self, node: &Node) -> f64 {
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

    /// Whether cliques cover the candidates whose heaviest are too light together.
    #[inline(always)]
    fn is_covered(&self, depth: usize, node: &Node) -> bool {
        let rivals = &self.rivals[depth + 1];
        let (mut weight, mut left) = (node.weight, node.candidates);
        while left != 0 {
            let mut clique = left;
            let mut site = 0;
            while clique != 0 {
                site = 63 - clique.leading_zeros() as usize;
                left &= !(1 << site);
                clique &= rivals[site] & !(1 << site);
            }
            weight += self.weights[site];
            if weight > self.heaviest {
                return false;
            }
        }
        true
    }

    /// Covers the candidates with cliques, sets of which at most one site can be closed because any two of them share
    /// a block that lets one more be closed; whether the heaviest of each clique are too light together.
    #[inline(always)]
    fn uncovered(&mut self, depth: usize, node: &Node) -> SiteSet {
        let rivals = &self.rivals[depth + 1];
        let (mut weight, mut left) = (node.weight, node.candidates);
        self.cliques.clear();
        while left != 0 {
            let site = 63 - left.leading_zeros() as usize;
            let own = self.weights[site];
            let joined = self.cliques.iter().position(|clique| clique.1 >> site & 1 == 1);
            weight += own - joined.map_or(0.0, |k| self.cliques[k].0);
            if weight > self.heaviest {
                return left;
            }
            left &= !(1 << site);
            let rivals = rivals[site];
            match joined {
                Some(k) => self.cliques[k] = (own, self.cliques[k].1 & rivals),
                None => self.cliques.push((own, rivals)),
            }
        }
        0
    }
}
