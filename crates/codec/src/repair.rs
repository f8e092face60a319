//! The cheapest equation for one chunk, given what each other chunk costs to read.
//!
//! An equation for a chunk is a code word of the dual code that is not zero there; its cost is the sum of the costs of
//! the other chunks it touches. Finding the cheapest is easy for each family, in different ways:
//! - MDS codes: any k other chunks do, so the k cheapest.
//! - replicas: the cheapest copy (an MDS code with k = 1).
//! - LRC: a code word of the dual is Σ_j a_j·(local equation j) + Σ_i b_i·(global equation i). For given b the groups
//!   separate, and in each only those a_j matter that cancel some of its chunks, so the best a is found in one pass
//!   over the data. b = 0 is the local group; if it costs more than the least that any other can, all b with at most
//!   two non-zero entries are tried, up to a common factor: g + 255·g(g−1)/2 of them. For g ≤ 2 the result is the
//!   optimum; for g ≥ 3 the equation over the greedily cheapest sufficient set is tried as well, and the result is the
//!   cheapest of these.

use crate::chunk_set::ChunkSet;
use crate::code::Code;
use crate::encode::{check_count, check_lengths};
use crate::error::CodecError;
use crate::gf256;
use crate::kernel::{Coefficients, Kernel, Stores};

/// `lost = Σ coefficient · source`.
#[derive(Debug, Clone, PartialEq)]
pub struct RepairEquation {
    /// The chunk that the equation computes.
    pub lost: usize,
    /// Pairs (chunk index, non-zero coefficient), ascending by index.
    pub sources: Vec<(usize, u8)>,
    /// The sum of the sources' costs.
    pub cost: f64,
}

impl RepairEquation {
    /// Evaluates the equation. `inputs` are the sources' bytes, in the order of `sources`.
    pub fn apply(&self, inputs: &[&[u8]], output: &mut [u8]) -> Result<(), CodecError> {
        check_count("sources", self.sources.len(), inputs.len())?;
        check_lengths(output.len(), inputs.iter().map(|input| input.len()))?;
        let row: Vec<u8> = self.sources.iter().map(|(_, coefficient)| *coefficient).collect();
        Kernel::best().dot(
            &Coefficients::from_rows(1, row.len(), &row),
            inputs,
            &mut [output],
            Stores::Cached,
        );
        Ok(())
    }

    fn new(lost: usize, sources: Vec<(usize, u8)>, costs: &[Option<f64>]) -> RepairEquation {
        let cost = sources.iter().filter_map(|(source, _)| costs[*source]).sum();
        RepairEquation { lost, sources, cost }
    }
}

impl Code {
    /// Returns the cheapest equation for chunk `lost`. `costs` has one entry for each of the n chunks, in any unit;
    /// `None` marks a chunk that cannot be read. The entry of `lost` itself is ignored.
    pub fn cheapest_repair(&self, lost: usize, costs: &[Option<f64>]) -> Result<RepairEquation, CodecError> {
        check_count("costs", self.n(), costs.len())?;
        if lost >= self.n() {
            return Err(CodecError::ChunkIndex { index: lost, limit: self.n() });
        }
        if let Some(index) =
            costs.iter().position(|cost| cost.is_some_and(|cost| cost.is_nan() || cost < 0.0))
        {
            return Err(CodecError::Cost { index });
        }
        let available: Vec<usize> = (0..self.n()).filter(|i| *i != lost && costs[*i].is_some()).collect();
        let equation = if self.local_groups().is_empty() {
            self.repair_from_cheapest(lost, costs, available.clone())
        } else {
            self.cheapest_lrc_repair(lost, costs, &available)
        };
        equation.ok_or_else(|| CodecError::Insufficient {
            code: self.to_string(),
            wanted: lost,
            available: available.len(),
        })
    }

    /// Returns the equation over the first k independent chunks in order of cost. Optimal for MDS codes.
    fn repair_from_cheapest(
        &self,
        lost: usize,
        costs: &[Option<f64>],
        mut candidates: Vec<usize>,
    ) -> Option<RepairEquation> {
        // The sort is stable: among equally cheap chunks, data come first.
        candidates.sort_by(|a, b| costs[*a].partial_cmp(&costs[*b]).expect("costs are numbers"));
        let mut chosen = ChunkSet::EMPTY;
        if self.is_mds() {
            chosen = candidates.into_iter().take(self.k()).collect();
        } else {
            let mut rows = IndependentRows::default();
            for chunk in candidates {
                if rows.insert(self.row(chunk)) {
                    chosen.insert(chunk);
                }
            }
        }
        let plan = self.decode_plan(&chosen.iter().collect::<Vec<_>>(), &[lost]).ok()?;
        let sources = plan
            .sources()
            .iter()
            .enumerate()
            .map(|(column, chunk)| (*chunk, plan.coefficient(0, column)))
            .collect();
        Some(RepairEquation::new(lost, sources, costs))
    }

    fn cheapest_lrc_repair(
        &self,
        lost: usize,
        costs: &[Option<f64>],
        available: &[usize],
    ) -> Option<RepairEquation> {
        let search = LrcSearch { code: self, lost, costs };
        let g = self.parity_count() - self.local_groups().len();
        let mut best = search.local();
        if best.as_ref().is_some_and(|local| local.cost <= search.least_global_cost(g)) {
            return best;
        }
        let mut consider = |equation: Option<RepairEquation>| {
            if let Some(equation) = equation
                && best.as_ref().is_none_or(|best| equation.cost < best.cost)
            {
                best = Some(equation);
            }
        };
        let mut factors = vec![0u8; g];
        for first in 0..g {
            factors[first] = 1;
            consider(search.with_global_factors(&factors));
            for second in first + 1..g {
                for factor in 1..=255 {
                    factors[second] = factor;
                    consider(search.with_global_factors(&factors));
                }
                factors[second] = 0;
            }
            factors[first] = 0;
        }
        if g > 2 {
            consider(self.repair_from_cheapest(lost, costs, available.to_vec()));
        }
        best
    }
}

/// The search for the cheapest word of an LRC's dual code.
struct LrcSearch<'a> {
    code: &'a Code,
    lost: usize,
    costs: &'a [Option<f64>],
}

impl LrcSearch<'_> {
    /// The cost of using chunk `index` in the equation; `None` if it cannot be read.
    fn cost(&self, index: usize) -> Option<f64> {
        if index == self.lost { Some(0.0) } else { self.costs[index] }
    }

    /// The XOR of the lost chunk's own group, if it has one and the rest of the group can be read.
    fn local(&self) -> Option<RepairEquation> {
        let local = self.code.local_group_of(self.lost)?;
        let members = self.code.local_groups()[local].clone().chain([self.code.k() + local]);
        let sources: Option<Vec<(usize, u8)>> = members
            .filter(|member| *member != self.lost)
            .map(|member| self.costs[member].map(|_| (member, 1)))
            .collect();
        Some(RepairEquation::new(self.lost, sources?, self.costs))
    }

    /// A lower bound on the cost of any equation with a global parity. Within a group its coefficients are a
    /// combination of g rows and a row of ones of the matrix all of whose minors are non-zero, so at most g of them
    /// vanish.
    fn least_global_cost(&self, g: usize) -> f64 {
        let cost = |index: usize| self.cost(index).unwrap_or(f64::INFINITY);
        let (n, groups) = (self.code.n(), self.code.local_groups());
        let cheapest_global = (n - g..n).map(cost).fold(f64::INFINITY, f64::min);
        let groups = groups.iter().map(|group| {
            let mut costs: Vec<f64> = group.clone().map(cost).collect();
            costs.sort_by(f64::total_cmp);
            costs[..costs.len().saturating_sub(g)].iter().sum::<f64>()
        });
        cheapest_global + groups.sum::<f64>()
    }

    /// Returns the cheapest equation in which the global equations have these factors b_i, at least one of them not
    /// zero.
    fn with_global_factors(&self, factors: &[u8]) -> Option<RepairEquation> {
        let (k, groups) = (self.code.k(), self.code.local_groups());
        // word[i] is the dual code word's coefficient of chunk i.
        let mut word = vec![0u8; self.code.n()];
        for (global, factor) in factors.iter().enumerate().filter(|(_, factor)| **factor != 0) {
            let parity = k + groups.len() + global;
            word[parity] = *factor;
            self.cost(parity)?;
            gf256::accumulate_reference(*factor, self.code.parity_row(parity), &mut word[..k]);
        }
        for (local, group) in groups.iter().enumerate() {
            let factor = self.best_local_factor(local, &word)?;
            word[k + local] = factor;
            for value in &mut word[group.clone()] {
                *value ^= factor;
            }
        }
        if word[self.lost] == 0 {
            return None;
        }
        let scale = gf256::inv(word[self.lost]);
        let terms = word.iter().enumerate().filter(|(chunk, value)| **value != 0 && *chunk != self.lost);
        let sources = terms.map(|(chunk, value)| (chunk, gf256::mul(*value, scale))).collect();
        Some(RepairEquation::new(self.lost, sources, self.costs))
    }

    /// Returns the factor a_j that makes group `local` cheapest when its data coefficients are those of `word` plus
    /// a_j. A factor that removes the lost chunk from the equation is not allowed. Returns `None` if every factor keeps
    /// a chunk that cannot be read.
    fn best_local_factor(&self, local: usize, word: &[u8]) -> Option<u8> {
        let parity = self.code.k() + local;
        let group = self.code.local_groups()[local].clone();
        // Savings by the chunks that each factor cancels: unreadable chunks, and cost.
        let mut saved = [(0usize, 0.0f64); 256];
        let mut unreadable = 0;
        for chunk in group.clone() {
            let slot = &mut saved[usize::from(word[chunk])];
            match self.cost(chunk) {
                Some(cost) => slot.1 += cost,
                None => {
                    slot.0 += 1;
                    unreadable += 1;
                }
            }
        }
        let lost_is_here = |factor: u8| {
            (self.lost == parity && factor == 0) || (group.contains(&self.lost) && word[self.lost] == factor)
        };
        // Factor 0 saves reading the local parity.
        let candidates = std::iter::once(0).chain(group.clone().map(|chunk| word[chunk]));
        let mut best: Option<(f64, u8)> = None;
        for factor in candidates {
            let slot = saved[usize::from(factor)];
            let parity_cost = if factor == 0 { Some(0.0) } else { self.cost(parity) };
            let Some(parity_cost) = parity_cost else { continue };
            if slot.0 != unreadable || lost_is_here(factor) {
                continue;
            }
            let gain = slot.1 - parity_cost;
            if best.is_none_or(|(best_gain, _)| gain > best_gain) {
                best = Some((gain, factor));
            }
        }
        best.map(|(_, factor)| factor)
    }
}

/// Rows of length k in echelon form, to decide whether another row is independent of them.
#[derive(Default)]
struct IndependentRows {
    /// Pairs (pivot column, row with 1 there).
    rows: Vec<(usize, Vec<u8>)>,
}

impl IndependentRows {
    /// Adds a row if it is independent of the others. Returns whether it was.
    fn insert(&mut self, mut row: Vec<u8>) -> bool {
        for (pivot, earlier) in &self.rows {
            let factor = row[*pivot];
            if factor != 0 {
                gf256::accumulate_reference(factor, earlier, &mut row);
            }
        }
        let Some(pivot) = row.iter().position(|value| *value != 0) else { return false };
        let scale = gf256::inv(row[pivot]);
        for value in &mut row {
            *value = gf256::mul(*value, scale);
        }
        self.rows.push((pivot, row));
        true
    }
}
