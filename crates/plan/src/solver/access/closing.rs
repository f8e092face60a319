//! The search for the heaviest set of sites that can be closed, among undecided sites.
//!
//! Depth first. A node is a set of closed sites and the *candidates* that may join it. Two candidates are *rivals* if
//! they share a block that lets only one more site be closed. Of pairwise rivals, a *clique*, at most one can be
//! closed. Two bounds prune a node:
//!
//! - The weights of all candidates; and, with the prices y of the dual, Σ r_i·y_i + Σ ρ_j over the closed sites and
//!   over the candidates with positive ρ_j. Both are looked up in tables of six sites.
//! - Cliques that cover the candidates, each counted with its heaviest site.
//!
//! Otherwise candidates are covered from the lightest up, as long as they could not make a better set. Any better set
//! must close one of the rest, so the node branches only on these. After that, a site that was branched on stays open,
//! and so does every lighter one whose blocks include all of its blocks: exchanging the two would have been as good. A
//! node takes 0.1 to 0.3 µs.

use super::complement::{BlockSet, Counters, PackedComponent};
use super::component::Component;
use super::dual::{Decision, Dual};

/// A set of sites, one bit for each.
type SiteSet = u64;

/// Maximum number of sites that can be searched.
pub const MOST_SITES: usize = SiteSet::BITS as usize;

/// Sites per table of sums: more sites mean fewer look-ups per node and longer preparation.
const TABLE_SITES: usize = 6;

/// Work units of a node.
const NODE_WORK: u64 = 4;

/// The search and its memory.
#[derive(Debug, Default)]
pub struct ClosingSearch {
    /// The searched sites, by descending o_j. All other fields use positions in this list.
    sites: Vec<usize>,
    weights: Vec<f64>,
    reduced: Vec<f64>,
    blocks_at: Vec<BlockSet>,
    /// The sites of each block.
    sites_of: Vec<SiteSet>,
    /// For each site: itself, and the sites that stay open with it.
    implied: Vec<SiteSet>,
    /// For each six sites and each of their subsets: the sum of the weights, and the sum of the positive ρ_j.
    sums: Vec<[(f64, f64); 1 << TABLE_SITES]>,
    /// For each depth: the rivals of each site in the parent. The first entry is that of the root, without rivals.
    rivals: Vec<[SiteSet; MOST_SITES]>,
    /// For each pair of sites: the rivals that the second gains when the first is closed, from blocks that let two
    /// sites be closed at the root.
    made_rivals: Vec<SiteSet>,
    /// The blocks that `made_rivals` does not cover.
    other_blocks: BlockSet,
    /// The cliques of a cover: the weight of the heaviest member, and the common rivals of all.
    cliques: Vec<(f64, SiteSet)>,
    /// The weight to beat, and the set that has it, once one is found.
    heaviest: f64,
    found: Option<SiteSet>,
    /// Upper bound of the weight of sets that the limit left unexplored.
    heaviest_unexplored: f64,
    /// Lower bound of the cost of the corresponding plans.
    pub unexplored: f64,
    /// Work units spent, and the limit at which to stop.
    pub work: u64,
    pub limit: u64,
}

#[derive(Clone, Copy)]
struct Node {
    candidates: SiteSet,
    closed: SiteSet,
    counters: Counters,
    /// The blocks that let one more site be closed, when the rivals were last updated.
    one_left: BlockSet,
    /// The weight of the closed sites.
    weight: f64,
    /// Σ r_i·y_i + Σ ρ_j over the closed sites.
    priced: f64,
}

impl ClosingSearch {
    /// Searches the plans that the decisions of `dual` allow, with at most [`MOST_SITES`] undecided sites, for one that
    /// costs less than `best`. If there is one, stores the open sites of the cheapest in `open` and returns its cost.
    pub fn run(
        &mut self,
        component: &Component,
        packing: &PackedComponent,
        dual: &Dual,
        best: f64,
        open: &mut [bool],
    ) -> Option<f64> {
        self.unexplored = f64::INFINITY;
        let root = self.root(component, packing, dual)?;
        self.load(component, packing, dual);
        self.load_rivals(root.counters);
        let total: f64 = component.overheads.iter().sum();
        self.heaviest = total - best;
        self.found = None;
        self.heaviest_unexplored = f64::NEG_INFINITY;
        self.visit(0, None, root);
        self.unexplored = total - self.heaviest_unexplored;
        let closed = self.found?;
        for (open, decision) in open.iter_mut().zip(&dual.decisions) {
            *open = *decision != Decision::Closed;
        }
        for (index, &site) in self.sites.iter().enumerate() {
            open[site] = closed >> index & 1 == 0;
        }
        Some(total - self.heaviest)
    }

    /// Returns the node of the decided sites; `None` if they close too many sites of a block.
    fn root(&mut self, component: &Component, packing: &PackedComponent, dual: &Dual) -> Option<Node> {
        let slacks = (0..component.block_count()).map(|block| component.slack(block) as f64);
        let priced = slacks.zip(&dual.prices).map(|(slack, price)| slack * price).sum();
        let counters = packing.start;
        let mut root = Node { candidates: 0, closed: 0, counters, one_left: 0, weight: 0.0, priced };
        self.sites.clear();
        for (site, decision) in dual.decisions.iter().enumerate() {
            match decision {
                Decision::Open => {}
                Decision::Undecided => self.sites.push(site),
                Decision::Closed => {
                    if packing.blocks_at[site] & root.counters.full() != 0 {
                        return None;
                    }
                    root.counters.add(packing.blocks_at[site]);
                    root.weight += component.overheads[site];
                    root.priced += dual.reduced[site];
                }
            }
        }
        let full = root.counters.full();
        self.sites.retain(|&site| packing.blocks_at[site] & full == 0);
        root.candidates = SiteSet::MAX.checked_shr((MOST_SITES - self.sites.len()) as u32).unwrap_or(0);
        Some(root)
    }

    fn load(&mut self, component: &Component, packing: &PackedComponent, dual: &Dual) {
        let Self { sites, weights, reduced, blocks_at, sites_of, implied, .. } = self;
        weights.clear();
        weights.extend(sites.iter().map(|&site| component.overheads[site]));
        reduced.clear();
        reduced.extend(sites.iter().map(|&site| dual.reduced[site]));
        blocks_at.clear();
        blocks_at.extend(sites.iter().map(|&site| packing.blocks_at[site]));
        sites_of.clear();
        sites_of.resize(component.block_count(), 0);
        for (index, &site) in sites.iter().enumerate() {
            component.blocks_at(site).iter().for_each(|&block| sites_of[block] |= 1 << index);
        }
        implied.clear();
        for (index, &blocks) in blocks_at.iter().enumerate() {
            let lighter = (index + 1..sites.len()).filter(|&other| blocks_at[other] & blocks == blocks);
            implied.push(lighter.fold(1 << index, |set, other| set | 1 << other));
        }
        self.load_sums();
    }

    fn load_sums(&mut self) {
        self.sums.clear();
        for first in (0..self.sites.len()).step_by(TABLE_SITES) {
            let mut sums = [(0.0, 0.0); 1 << TABLE_SITES];
            for (bit, site) in (first..self.sites.len().min(first + TABLE_SITES)).enumerate() {
                for subset in 0..1 << bit {
                    let (weight, reduced) = sums[subset];
                    sums[subset | 1 << bit] =
                        (weight + self.weights[site], reduced + self.reduced[site].max(0.0));
                }
            }
            self.sums.push(sums);
        }
    }

    fn load_rivals(&mut self, counters: Counters) {
        let sites = self.sites.len();
        self.rivals.resize(self.rivals.len().max(1), [0; MOST_SITES]);
        self.made_rivals.clear();
        self.made_rivals.resize(sites * sites, 0);
        let two_left = counters.two_left() & self.blocks_at.iter().fold(0, |all, blocks| all | blocks);
        self.other_blocks = !two_left;
        for block in ones(two_left) {
            let together = self.sites_of[block];
            for closed in sites_in(together) {
                let made = &mut self.made_rivals[closed * sites..][..sites];
                sites_in(together).for_each(|site| made[site] |= together);
            }
        }
    }

    fn visit(&mut self, depth: usize, closed: Option<usize>, mut node: Node) {
        self.work += NODE_WORK;
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
        if self.is_covered(depth + 1, &node) {
            return;
        }
        if self.work > self.limit {
            self.heaviest_unexplored = self.heaviest_unexplored.max(bound);
            return;
        }
        let full = node.counters.full();
        let mut branches = self.uncovered(depth + 1, &node);
        while branches != 0 {
            let site = branches.trailing_zeros() as usize;
            self.visit(depth + 1, Some(site), self.close(&node, full, site));
            node.candidates &= !self.implied[site];
            branches &= node.candidates;
        }
    }

    /// Returns the node that closes one more candidate.
    #[inline(always)]
    fn close(&self, node: &Node, full: BlockSet, site: usize) -> Node {
        let mut child = *node;
        child.counters.add(self.blocks_at[site]);
        child.candidates &= !(1 << site);
        for block in ones(child.counters.full() & !full) {
            child.candidates &= !self.sites_of[block];
        }
        child.closed |= 1 << site;
        child.weight += self.weights[site];
        child.priced += self.reduced[site];
        child
    }

    /// Returns the upper bound of the weight from the tables of sums.
    #[inline(always)]
    fn bound(&self, node: &Node) -> f64 {
        let (mut weight, mut priced) = (node.weight, node.priced);
        let mut rest = node.candidates;
        for sums in &self.sums {
            let (weights, reduced) = sums[rest as usize & (sums.len() - 1)];
            weight += weights;
            priced += reduced;
            rest >>= TABLE_SITES;
        }
        weight.min(priced)
    }

    /// Adds the rivals made by closing a site to those of the parent.
    #[inline(always)]
    fn update_rivals(&mut self, depth: usize, closed: Option<usize>, node: &mut Node) {
        let sites = self.sites.len();
        if self.rivals.len() == depth + 1 {
            self.rivals.push([0; MOST_SITES]);
        }
        let (above, here) = self.rivals.split_at_mut(depth + 1);
        let (above, here) = (&above[depth], &mut here[0]);
        let one_left = node.counters.one_left();
        let mut changed = one_left & !node.one_left;
        node.one_left = one_left;
        match closed {
            Some(site) => {
                let made = &self.made_rivals[site * sites..][..sites];
                for ((here, above), made) in here.iter_mut().zip(above).zip(made) {
                    *here = above | made;
                }
                changed &= self.other_blocks;
            }
            None => *here = *above,
        }
        for block in ones(changed) {
            let together = self.sites_of[block] & node.candidates;
            sites_in(together).for_each(|site| here[site] |= together);
        }
    }

    /// Returns whether the candidates have a cover by cliques whose heaviest members are together too light.
    #[inline(always)]
    fn is_covered(&self, rivals: usize, node: &Node) -> bool {
        let rivals = &self.rivals[rivals];
        let (mut weight, mut left) = (node.weight, node.candidates);
        while left != 0 {
            let (mut clique, mut site) = (left, 0);
            while clique != 0 {
                site = lightest(clique);
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

    /// Returns the heaviest candidates: those left when the lightest are covered for as long as the cover is too light.
    #[inline(always)]
    fn uncovered(&mut self, rivals: usize, node: &Node) -> SiteSet {
        let rivals = &self.rivals[rivals];
        let (mut weight, mut left) = (node.weight, node.candidates);
        self.cliques.clear();
        while left != 0 {
            let site = lightest(left);
            let own = self.weights[site];
            let joined = self.cliques.iter_mut().find(|clique| clique.1 >> site & 1 == 1);
            weight += own - joined.as_ref().map_or(0.0, |clique| clique.0);
            if weight > self.heaviest {
                break;
            }
            left &= !(1 << site);
            match joined {
                Some(clique) => *clique = (own, clique.1 & rivals[site]),
                None => self.cliques.push((own, rivals[site])),
            }
        }
        left
    }
}

/// Returns the last site of a non-empty set. Sites are ordered by descending weight.
#[inline(always)]
fn lightest(sites: SiteSet) -> usize {
    (SiteSet::BITS - 1 - sites.leading_zeros()) as usize
}

/// Iterates over the blocks of a set.
#[inline(always)]
fn ones(mut set: BlockSet) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = set.trailing_zeros() as usize;
        let is_left = set != 0;
        set &= set.wrapping_sub(1);
        is_left.then_some(first)
    })
}

/// Iterates over the sites of a set.
#[inline(always)]
fn sites_in(mut set: SiteSet) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = set.trailing_zeros() as usize;
        let is_left = set != 0;
        set &= set.wrapping_sub(1);
        is_left.then_some(first)
    })
}
