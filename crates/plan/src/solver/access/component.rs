//! A part of a problem that shares no undecided site with the rest, prepared for the search.

use std::ops::Range;

/// A chunk that may be fetched, within a component.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Position of the site in the component.
    pub site: usize,
    /// m_j · z_i, less the minimum over the block's options.
    pub transfer: f64,
}

/// Blocks connected by undecided sites.
///
/// Sites are ordered by descending o_j; of equal ones, those with fewer blocks come first. The search for closed sites
/// branches in this order. Sites whose use is settled cost nothing here and are open from the start.
#[derive(Debug, Default)]
pub struct Component {
    /// Position of each site in the problem.
    pub sites: Vec<usize>,
    /// o_j of each site.
    pub overheads: Vec<f64>,
    /// Number of chunks that each block needs.
    pub needs: Vec<usize>,
    /// Whether all transfers of each block cost the same, so that only the open sites matter.
    pub is_uniform: bool,
    block_ends: Vec<usize>,
    choices: Vec<Choice>,
    site_ends: Vec<usize>,
    blocks_at: Vec<usize>,
    transfers_at: Vec<f64>,
    keys: Vec<(u64, usize)>,
    merged: Vec<bool>,
}

impl Component {
    pub fn block_count(&self) -> usize {
        self.needs.len()
    }

    pub fn site_count(&self) -> usize {
        self.sites.len()
    }

    /// Returns the options of a block, ascending by site.
    pub fn choices(&self, block: usize) -> &[Choice] {
        &self.choices[range(&self.block_ends, block)]
    }

    /// Returns the blocks that have a chunk on a site, ascending.
    pub fn blocks_at(&self, site: usize) -> &[usize] {
        &self.blocks_at[range(&self.site_ends, site)]
    }

    /// Returns the costs of transfers of the chunks on a site, in the order of `blocks_at`.
    pub fn transfers_at(&self, site: usize) -> &[f64] {
        &self.transfers_at[range(&self.site_ends, site)]
    }

    /// Returns how many of a block's options may stay closed.
    pub fn slack(&self, block: usize) -> usize {
        self.choices(block).len() - self.needs[block]
    }

    pub fn clear(&mut self) {
        self.sites.clear();
        self.overheads.clear();
        self.needs.clear();
        self.block_ends.clear();
        self.choices.clear();
        self.is_uniform = true;
    }

    /// Adds a block. The sites of its choices may be any numbers until [`Component::finish`].
    pub fn push_block(&mut self, need: usize, choices: impl IntoIterator<Item = Choice>) {
        let start = self.choices.len();
        self.choices.extend(choices);
        self.is_uniform &= self.choices[start..].iter().all(|choice| choice.transfer == 0.0);
        self.needs.push(need);
        self.block_ends.push(self.choices.len());
    }

    /// Sorts the sites and everything by them, and merges blocks. `degree` holds the number of blocks that each of the
    /// problem's sites has here. The choices so far refer to sites as `local` does; its entries for these sites are
    /// overwritten.
    pub fn finish(&mut self, overhead: impl Fn(usize) -> f64, degree: &[usize], local: &mut [usize]) {
        self.sites.sort_unstable_by(|&a, &b| {
            let by_cost = overhead(b).total_cmp(&overhead(a));
            by_cost.then_with(|| (degree[a], a).cmp(&(degree[b], b)))
        });
        self.overheads.extend(self.sites.iter().map(|&site| overhead(site)));
        for (index, &site) in self.sites.iter().enumerate() {
            local[site] = index;
        }
        for block in 0..self.needs.len() {
            let choices = &mut self.choices[range(&self.block_ends, block)];
            choices.iter_mut().for_each(|choice| choice.site = local[choice.site]);
            choices.sort_unstable_by_key(|choice| choice.site);
        }
        self.merge_blocks();
        self.index_sites();
    }

    /// Merges blocks on the same sites. If transfers do not differ, the greatest need decides. With equal needs and the
    /// same order of transfers, the blocks fetch from the same sites, so their costs add up.
    fn merge_blocks(&mut self) {
        self.keys.clear();
        self.merged.clear();
        self.merged.resize(self.needs.len(), false);
        for block in 0..self.needs.len() {
            let key = self.choices(block).iter().fold(0u64, |key, choice| key.wrapping_add(mix(choice.site)));
            self.keys.push((key, block));
        }
        self.keys.sort_unstable();
        let mut found = false;
        for first in 0..self.keys.len() {
            let (key, into) = self.keys[first];
            if self.merged[into] {
                continue;
            }
            for second in first + 1..self.keys.len() {
                let (other, block) = self.keys[second];
                if other != key {
                    break;
                }
                if !self.merged[block] && self.merge(block, into) {
                    self.merged[block] = true;
                    found = true;
                }
            }
        }
        if found {
            self.remove_merged();
        }
    }

    /// Merges `block` into the block `into` if possible. Returns whether it did.
    fn merge(&mut self, block: usize, into: usize) -> bool {
        let (from, to) = (range(&self.block_ends, block), range(&self.block_ends, into));
        let same_sites = from.len() == to.len()
            && from.clone().zip(to.clone()).all(|(a, b)| self.choices[a].site == self.choices[b].site);
        if !same_sites {
            return false;
        }
        let is_flat = |of: Range<usize>| self.choices[of].iter().all(|choice| choice.transfer == 0.0);
        if is_flat(from.clone()) && is_flat(to.clone()) {
            self.needs[into] = self.needs[into].max(self.needs[block]);
            return true;
        }
        if self.needs[into] != self.needs[block] || !self.order_alike(from.clone(), to.clone()) {
            return false;
        }
        for (a, b) in from.zip(to) {
            self.choices[b].transfer += self.choices[a].transfer;
        }
        true
    }

    /// Returns whether no two sites are ordered one way by one block's transfers and the opposite way by the other's.
    fn order_alike(&self, from: Range<usize>, to: Range<usize>) -> bool {
        let (a, b) = (&self.choices[from], &self.choices[to]);
        (0..a.len()).all(|i| {
            (0..i).all(|j| {
                let (x, y) =
                    (a[i].transfer.total_cmp(&a[j].transfer), b[i].transfer.total_cmp(&b[j].transfer));
                x != y.reverse() || x.is_eq()
            })
        })
    }

    fn remove_merged(&mut self) {
        let (mut kept, mut written) = (0, 0);
        for block in 0..self.needs.len() {
            if self.merged[block] {
                continue;
            }
            let of = range(&self.block_ends, block);
            let length = of.len();
            // The ends of earlier blocks are not read again.
            self.choices.copy_within(of, written);
            written += length;
            self.needs[kept] = self.needs[block];
            self.block_ends[kept] = written;
            kept += 1;
        }
        self.needs.truncate(kept);
        self.block_ends.truncate(kept);
        self.choices.truncate(written);
    }

    /// Indexes the blocks of each site by counting.
    fn index_sites(&mut self) {
        self.site_ends.clear();
        self.site_ends.resize(self.sites.len(), 0);
        self.choices.iter().for_each(|choice| self.site_ends[choice.site] += 1);
        let mut start = 0;
        for end in &mut self.site_ends {
            start += std::mem::replace(end, start);
        }
        self.blocks_at.clear();
        self.blocks_at.resize(self.choices.len(), 0);
        self.transfers_at.clear();
        self.transfers_at.resize(self.choices.len(), 0.0);
        for block in 0..self.needs.len() {
            for choice in &self.choices[range(&self.block_ends, block)] {
                let at = &mut self.site_ends[choice.site];
                self.blocks_at[*at] = block;
                self.transfers_at[*at] = choice.transfer;
                *at += 1;
            }
        }
    }
}

/// Returns part `index` of a sequence that `ends` cuts into parts.
fn range(ends: &[usize], index: usize) -> Range<usize> {
    let start = if index == 0 { 0 } else { ends[index - 1] };
    start..ends[index]
}

/// Spreads a number over 64 bits, so that sums of different sets differ.
fn mix(number: usize) -> u64 {
    striate_splitmix::finalise((number as u64).wrapping_add(1).wrapping_mul(striate_splitmix::GAMMA))
}
