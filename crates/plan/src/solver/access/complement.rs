//! The complement of a plan: the sites that stay closed, if every transfer costs the same.
//!
//! A plan is then a set of open sites that leaves every block its need. Block i lets at most r_i of its options be
//! closed (its *slack*), and the cheapest plan closes the heaviest possible set of sites, by their o_j.
//!
//! The blocks are the lanes of one word. Each has a counter of a few bits, held in that many bit planes, which starts
//! its slack below the maximum. Closing a site adds one to the counters of its blocks, with a carry chain of one step
//! per plane. A block at the maximum is *full*.

use super::component::Component;

/// A set of blocks, one bit for each.
pub type BlockSet = u128;

/// Maximum number of blocks.
const MOST_BLOCKS: usize = BlockSet::BITS as usize;
/// Bits per counter.
const PLANES: usize = 4;
/// Maximum slack that a counter can represent.
const MOST_SLACK: usize = (1 << PLANES) - 1;

/// The counters of all blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters([BlockSet; PLANES]);

impl Counters {
    /// Creates counters that are full after `slack(block)` additions.
    fn new(blocks: usize, slack: impl Fn(usize) -> usize) -> Self {
        let mut planes = [0; PLANES];
        for block in 0..blocks {
            let start = MOST_SLACK - slack(block);
            for (bit, plane) in planes.iter_mut().enumerate() {
                *plane |= ((start >> bit & 1) as BlockSet) << block;
            }
        }
        Self(planes)
    }

    /// Returns the blocks that let no more sites be closed.
    #[inline(always)]
    pub fn full(&self) -> BlockSet {
        self.0.iter().fold(BlockSet::MAX, |all, plane| all & plane)
    }

    /// Returns the blocks that let one more site be closed.
    #[inline(always)]
    pub fn one_left(&self) -> BlockSet {
        self.0[1..].iter().fold(!self.0[0], |all, plane| all & plane)
    }

    /// Returns the blocks that let two more sites be closed.
    #[inline(always)]
    pub fn two_left(&self) -> BlockSet {
        self.0[2..].iter().fold(self.0[0] & !self.0[1], |all, plane| all & plane)
    }

    /// Counts one site of each of these blocks as closed. None of the blocks may be full.
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

/// A component packed into machine words.
#[derive(Debug, Default)]
pub struct PackedComponent {
    /// The blocks of each site.
    pub blocks_at: Vec<BlockSet>,
    /// The counters while every site is open.
    pub start: Counters,
    /// Whether each site is closed, according to the last greedy search.
    pub closed: Vec<bool>,
    trial: Vec<bool>,
}

impl PackedComponent {
    /// Returns whether a component fits this representation.
    pub fn fits(component: &Component) -> bool {
        component.is_uniform
            && component.block_count() <= MOST_BLOCKS
            && (0..component.block_count()).all(|block| component.slack(block) <= MOST_SLACK)
    }

    /// Loads a component that fits.
    pub fn load(&mut self, component: &Component) {
        let blocks_at = |site| component.blocks_at(site).iter().fold(0, |set, block| set | 1 << block);
        self.blocks_at.clear();
        self.blocks_at.extend((0..component.site_count()).map(blocks_at));
        self.start = Counters::new(component.block_count(), |block| component.slack(block));
    }

    /// Closes sites in this order where the blocks allow it, then improves the set: it closes one more site, opens the
    /// lightest ones that prevent it, and closes whatever then can be closed, until no site helps or `limit` is
    /// reached. Records the set in `closed` and returns the sum of its o_j. A trial takes two steps of some 2 ns for
    /// each site. Sites that are in no heavier set are skipped, given that no set weighs more than `most`, nor more
    /// than `most` + ρ_j if it includes site j.
    pub fn close_greedily(
        &mut self,
        component: &Component,
        order: impl Iterator<Item = usize>,
        most: f64,
        reduced: &[f64],
        work: &mut u64,
        limit: u64,
    ) -> f64 {
        let sites = component.site_count();
        let (mut closed, mut trial) = (std::mem::take(&mut self.closed), std::mem::take(&mut self.trial));
        closed.clear();
        closed.resize(sites, false);
        let mut weight = self.close(component, &mut self.start.clone(), order, &mut closed);
        let (mut site, mut unhelpful) = (0, 0);
        while unhelpful < sites && *work < limit {
            unhelpful += 1;
            if !closed[site] && most + reduced[site].min(0.0) > weight {
                *work += 1 + sites as u64 / SITES_PER_WORK;
                trial.clear();
                trial.resize(sites, false);
                let mut counters = self.start;
                // Sites are ordered by weight, so the lightest are those that find their blocks full.
                let kept = (0..sites).filter(|&other| closed[other]);
                let mut changed =
                    self.close(component, &mut counters, std::iter::once(site).chain(kept), &mut trial);
                changed += self.close(component, &mut counters, 0..sites, &mut trial);
                if changed > weight * (1.0 + f64::EPSILON * sites as f64) {
                    weight = changed;
                    std::mem::swap(&mut closed, &mut trial);
                    unhelpful = 0;
                }
            }
            site = (site + 1) % sites;
        }
        (self.closed, self.trial) = (closed, trial);
        weight
    }

    /// Closes sites in this order where the blocks allow it. Returns the sum of their o_j.
    fn close(
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
}

/// Number of sites for which a trial costs one work unit.
const SITES_PER_WORK: u64 = 12;
