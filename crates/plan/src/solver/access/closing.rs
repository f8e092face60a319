//! The search for the heaviest set of sites that can be closed, among sites whose use is in doubt.
//!
//! Depth first. A node is a set of closed sites and the *candidates* that may join it. Two candidates are *rivals* when
//! they share a block that lets only one more be closed; of pairwise rivals, a *clique*, at most one can be closed. Two
//! bounds cut a node off:
//!
//! - the weights of all candidates, and with the prices y of the dual Σ r_i·y_i + Σ ρ_j over what is closed and over
//!   the candidates with positive ρ_j, both by tables of six sites;
//! - cliques that cover the candidates, each counted with its heaviest site.
//!
//! Otherwise candidates are covered from the lightest on until they could make a better set: one of the rest must be
//! closed in any better set, and the node branches on these only. A site that was branched on is left open after that,
//! and so is every lighter one with the same blocks and more: exchanging the two would have been as good. A node takes
//! 0.1 to 0.3 µs.

use super::complement::{BlockSet, Counters, Packing};
use super::component::Component;
use super::dual::{Decision, Dual};

/// One bit for each site.
type SiteSet = u64;

/// How many sites can be searched.
pub const MOST_SITES: usize = SiteSet::BITS as usize;

/// Sites of a table of sums: more make fewer look-ups of a node and longer preparation.
const TABLE_SITES: usize = 6;

/// Work units of a node.
const NODE_WORK: u64 = 4;

/// The search, and its memory.
#[derive(Debug, Default)]
pub struct Closing {
    /// The sites that are searched, by descending o_j. All that follows is by position in this list.
    sites: Vec<usize>,
    weights: Vec<f64>,
    reduced: Vec<f64>,
    blocks_at: Vec<BlockSet>,
    /// The sites of each block.
    sites_of: Vec<SiteSet>,
    /// Of each site: itself, and the sites that stay open with it.
    implied: Vec<SiteSet>,
    /// For each six sites and each subset of them: the sum of the weights, and that of the positive ρ_j.
    sums: Vec<[(f64, f64); 1 << TABLE_SITES]>,
    /// For each depth: the rivals of each site in the parent. The first is that of the root, of no rivals.
    rivals: Vec<[SiteSet; MOST_SITES]>,
    /// Of each site and each other: the rivals that closing the one makes for the other, in blocks that let two be
    /// closed at the root.
    made_rivals: Vec<SiteSet>,
    /// The blocks of which `made_rivals` does not speak.
    other_blocks: BlockSet,
    /// The cliques of a cover: the weight of the heaviest member, and the rivals of all.
    cliques: Vec<(f64, SiteSet)>,
    /// The weight to beat, and the set that has it, once one is found.
    heaviest: f64,
    found: Option<SiteSet>,
    /// The greatest weight that a set may have which the limit kept from being looked at.
    heaviest_unexplored: f64,
    /// The least cost of a plan of that kind.
    pub unexplored: f64,
    /// Work units spent, and when to stop.
    pub work: u64,
    pub limit: u64,
}

#[derive(Clone, Copy)]
struct Node {
    candidates: SiteSet,
    closed: SiteSet,
    counters: Counters,
    /// The blocks that let one more be closed, when the rivals were last brought up to date.
    one_left: BlockSet,
    /// The weight of what is closed.
    weight: f64,
    /// Σ r_i·y_i + Σ ρ_j over what is closed.
    priced: f64,
}

impl Closing {
    /// Looks for plans that cost less than `best` among those that the decisions of `dual` allow, at most
    /// [`MOST_SITES`] of which are open. Leaves the sites of the cheapest in `open` and gives its cost, if there is one.
    pub fn run(
        &mut self,
        component: &Component,
        packing: &Packing,
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

    /// The node of what is decided; `None` when that closes too many sites of a block.
    fn root(&mut self, component: &Component, packing: &Packing, dual: &Dual) -> Option<Node> {
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

    fn load(&mut self, component: &Component, packing: &Packing, dual: &Dual) {
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

    /// The node that closes one candidate more.
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

    /// The greatest weight that the sums allow.
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

    /// Adds the rivals that closing a site has made to those of the parent.
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

    /// Whether cliques cover the candidates whose heaviest members are too light together.
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

    /// The heaviest candidates, those that are left when the lightest are covered as long as they are too light.
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

/// The last site of a set that is not empty. Sites are ordered by descending weight.
#[inline(always)]
fn lightest(sites: SiteSet) -> usize {
    (SiteSet::BITS - 1 - sites.leading_zeros()) as usize
}

/// The blocks of a set.
#[inline(always)]
fn ones(mut set: BlockSet) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = set.trailing_zeros() as usize;
        let is_left = set != 0;
        set &= set.wrapping_sub(1);
        is_left.then_some(first)
    })
}

/// The sites of a set.
#[inline(always)]
fn sites_in(mut set: SiteSet) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = set.trailing_zeros() as usize;
        let is_left = set != 0;
        set &= set.wrapping_sub(1);
        is_left.then_some(first)
    })
}
