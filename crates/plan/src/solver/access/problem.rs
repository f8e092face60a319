//! The problem: sites that cost something to access, and blocks that need chunks (EC-Store §IV-B, Eq. 1–3).

/// A chunk of a block that may be fetched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AccessOption {
    /// Position of the site in the problem's sites.
    pub site: usize,
    /// m_j · z_i: the cost of transferring the chunk once its site is accessed, finite and not negative.
    pub transfer: f64,
}

/// A block of the problem.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AccessBlock<'a> {
    /// k_i + δ: number of chunks to fetch.
    pub need: usize,
    /// The available chunks, each on another site.
    pub options: &'a [AccessOption],
}

/// Why a problem has no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AccessError {
    /// Fewer chunks are available than needed.
    #[error("block {block} of the request needs {need} chunks, and {options} can be had")]
    TooFewOptions {
        /// Position of the block in the problem.
        block: usize,
        /// k_i + δ.
        need: usize,
        /// Number of available chunks.
        options: usize,
    },
    /// Two chunks of a block on one site.
    #[error("block {block} of the request has two chunks on site {site}")]
    SiteTwice {
        /// Position of the block in the problem.
        block: usize,
        /// Position of the site in the problem.
        site: usize,
    },
    /// An option refers to a site that the problem does not have.
    #[error("block {block} of the request has a chunk on site {site}, of which there is no cost")]
    UnknownSite {
        /// Position of the block in the problem.
        block: usize,
        /// The position without a site.
        site: usize,
    },
    /// A cost that is negative, infinite or not a number.
    #[error("{cost} is not a cost: costs are finite and not negative")]
    NotACost {
        /// The value given as a cost.
        cost: f64,
    },
}

/// Minimise Σ_j o_j·a_j + Σ_ij m_j·z_i·s_ij, with Σ_j s_ij ≥ need_i for every block i and s_ij ≤ a_j.
///
/// Costs may be in any one unit; the paper's is "a transfer of one chunk", with o_j about 5. A site that cannot be
/// asked has no options; whatever its o_j, it is not accessed. [`AccessProblem::reset`] keeps the memory, so a reused
/// problem allocates nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccessProblem {
    overheads: Vec<f64>,
    needs: Vec<usize>,
    /// The end of each block's options in `options`.
    ends: Vec<usize>,
    options: Vec<AccessOption>,
}

impl AccessProblem {
    /// Creates a problem without blocks, over sites with these o_j.
    pub fn new(overheads: impl IntoIterator<Item = f64>) -> Self {
        let mut problem = Self::default();
        problem.reset(overheads);
        problem
    }

    /// Drops all blocks and sites, and takes these o_j.
    pub fn reset(&mut self, overheads: impl IntoIterator<Item = f64>) {
        self.overheads.clear();
        self.overheads.extend(overheads);
        self.needs.clear();
        self.ends.clear();
        self.options.clear();
    }

    /// Adds a block that needs `need` = k_i + δ of these chunks.
    pub fn push_block(&mut self, need: usize, options: impl IntoIterator<Item = AccessOption>) {
        self.options.extend(options);
        self.needs.push(need);
        self.ends.push(self.options.len());
    }

    /// Returns o_j of every site.
    pub fn overheads(&self) -> &[f64] {
        &self.overheads
    }

    /// Returns the number of blocks.
    pub fn block_count(&self) -> usize {
        self.needs.len()
    }

    /// Returns block `index`, which must exist.
    pub fn block(&self, index: usize) -> AccessBlock<'_> {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        AccessBlock { need: self.needs[index], options: &self.options[start..self.ends[index]] }
    }

    /// Iterates over the blocks in the order in which they were added.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = AccessBlock<'_>> {
        (0..self.needs.len()).map(|index| self.block(index))
    }
}
