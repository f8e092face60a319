//! Preparation: settles what needs no search, and splits the rest into components.
//!
//! - A block that needs every chunk it has opens the sites of all of them. Together with the sites that cost nothing
//!   they are *settled*: open, and paid.
//! - A block whose transfers all cost the same takes what it can from settled sites; only what it still lacks is its
//!   need in the search.
//! - Every plan pays the least of a block's transfers need_i times, so that amount is subtracted.
//! - Blocks that share no undecided site, directly or through other blocks, are independent.
//!
//! O(chunks), with a sort of each component's sites.

use super::component::{Choice, Component};
use super::{AccessBlock, AccessError, AccessOption, AccessProblem};

/// Memory kept between problems, and the results of preparation.
#[derive(Debug, Default)]
pub struct Preparation {
    /// Whether the use of each site is settled, so that it is open.
    pub settled: Vec<bool>,
    /// What every plan pays: o_j of the settled sites and the least transfers.
    pub constant: f64,
    /// The first block of each component.
    heads: Vec<usize>,
    /// The next block in the component of each block.
    next: Vec<usize>,
    /// Whether each block needs the search.
    is_searched: Vec<bool>,
    /// The parent of each site in the tree of its component.
    parents: Vec<usize>,
    /// The last block so far of each component, at the root of its sites.
    tails: Vec<usize>,
    /// Number of undecided blocks of the current component with a chunk on each site.
    degrees: Vec<usize>,
    /// The number of each site in the current component.
    local: Vec<usize>,
    /// The last block seen with a chunk on each site.
    last_block: Vec<usize>,
    /// The options of a block by cost: the transfer, and whether the site is undecided.
    order: Vec<(f64, bool)>,
}

const NONE: usize = usize::MAX;

impl Preparation {
    /// Settles what it can, and finds the components.
    pub fn run(&mut self, problem: &AccessProblem) -> Result<(), AccessError> {
        let sites = problem.overheads().len();
        self.reset(sites, problem.block_count());
        self.validate(problem)?;
        self.settle(problem);
        for block in problem.blocks() {
            let is_searched = !self.is_settled(block);
            self.is_searched.push(is_searched);
            if is_searched {
                self.constant += block.need as f64 * least_transfer(block);
                self.join_sites(block);
            }
        }
        self.list_components(problem);
        Ok(())
    }

    pub fn component_count(&self) -> usize {
        self.heads.len()
    }

    /// Builds component `index` into `component`.
    pub fn build(&mut self, problem: &AccessProblem, index: usize, component: &mut Component) {
        component.clear();
        let mut block = self.heads[index];
        while block != NONE {
            let access_block = problem.block(block);
            let (is_flat, least) = (is_flat(access_block), least_transfer(access_block));
            let mut need = access_block.need;
            for option in access_block.options {
                if is_flat && self.settled[option.site] {
                    need -= 1;
                    continue;
                }
                if self.degrees[option.site] == 0 {
                    component.sites.push(option.site);
                }
                self.degrees[option.site] += 1;
            }
            let undecided =
                access_block.options.iter().filter(|option| !(is_flat && self.settled[option.site]));
            component.push_block(
                need,
                undecided.map(|option| Choice { site: option.site, transfer: option.transfer - least }),
            );
            block = self.next[block];
        }
        let settled = &self.settled;
        let overhead = |site: usize| if settled[site] { 0.0 } else { problem.overheads()[site] };
        component.finish(overhead, &self.degrees, &mut self.local);
        component.sites.iter().for_each(|&site| self.degrees[site] = 0);
    }

    fn reset(&mut self, sites: usize, blocks: usize) {
        self.constant = 0.0;
        self.heads.clear();
        self.is_searched.clear();
        self.next.clear();
        self.next.resize(blocks, NONE);
        self.settled.clear();
        self.settled.resize(sites, false);
        self.parents.clear();
        self.parents.extend(0..sites);
        for list in [&mut self.tails, &mut self.last_block] {
            list.clear();
            list.resize(sites, NONE);
        }
        for list in [&mut self.degrees, &mut self.local] {
            list.clear();
            list.resize(sites, 0);
        }
    }

    fn validate(&mut self, problem: &AccessProblem) -> Result<(), AccessError> {
        let is_cost = |cost: f64| cost.is_finite() && cost >= 0.0;
        if let Some(&cost) = problem.overheads().iter().find(|cost| !is_cost(**cost)) {
            return Err(AccessError::NotACost { cost });
        }
        for (block, access_block) in problem.blocks().enumerate() {
            for &AccessOption { site, transfer } in access_block.options {
                let last = self.last_block.get_mut(site).ok_or(AccessError::UnknownSite { block, site })?;
                if std::mem::replace(last, block) == block {
                    return Err(AccessError::SiteTwice { block, site });
                }
                if !is_cost(transfer) {
                    return Err(AccessError::NotACost { cost: transfer });
                }
            }
            if access_block.options.len() < access_block.need {
                return Err(AccessError::TooFewOptions {
                    block,
                    need: access_block.need,
                    options: access_block.options.len(),
                });
            }
        }
        Ok(())
    }

    fn settle(&mut self, problem: &AccessProblem) {
        for (site, &overhead) in problem.overheads().iter().enumerate() {
            self.settled[site] = overhead == 0.0;
        }
        for block in problem.blocks().filter(|block| block.need == block.options.len()) {
            for option in block.options {
                if !std::mem::replace(&mut self.settled[option.site], true) {
                    self.constant += problem.overheads()[option.site];
                }
            }
        }
    }

    /// Returns whether settled sites have the cheapest chunks that this block needs, and if so adds their cost.
    fn is_settled(&mut self, block: AccessBlock<'_>) -> bool {
        let Self { settled, order, .. } = self;
        let cost_of = |option: &AccessOption| (option.transfer, !settled[option.site]);
        order.clear();
        order.extend(block.options.iter().map(cost_of));
        order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let cheapest = &order[..block.need];
        let is_settled = cheapest.iter().all(|&(_, is_undecided)| !is_undecided);
        if is_settled {
            self.constant += cheapest.iter().map(|(transfer, _)| transfer).sum::<f64>();
        }
        is_settled
    }

    /// Joins the undecided sites of a block into one tree.
    fn join_sites(&mut self, block: AccessBlock<'_>) {
        let mut first = NONE;
        for option in block.options.iter().filter(|option| !self.settled[option.site]) {
            let root = find(&mut self.parents, option.site);
            if first == NONE {
                first = root;
            }
            self.parents[root] = first;
        }
    }

    /// Links the blocks of each component, in order.
    fn list_components(&mut self, problem: &AccessProblem) {
        for (block, access_block) in
            problem.blocks().enumerate().filter(|(block, _)| self.is_searched[*block])
        {
            let undecided = access_block.options.iter().find(|option| !self.settled[option.site]);
            let site = undecided.expect("a block whose sites are all settled is settled").site;
            let root = find(&mut self.parents, site);
            match std::mem::replace(&mut self.tails[root], block) {
                NONE => self.heads.push(block),
                tail => self.next[tail] = block,
            }
        }
    }
}

/// Returns the root of a site's tree; halves the path to it.
fn find(parents: &mut [usize], mut site: usize) -> usize {
    while parents[site] != site {
        parents[site] = parents[parents[site]];
        site = parents[site];
    }
    site
}

fn least_transfer(block: AccessBlock<'_>) -> f64 {
    block.options.iter().map(|option| option.transfer).fold(f64::INFINITY, f64::min)
}

/// Returns whether every chunk costs the same to transfer.
fn is_flat(block: AccessBlock<'_>) -> bool {
    block.options.windows(2).all(|pair| pair[0].transfer == pair[1].transfer)
}
