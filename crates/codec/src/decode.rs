//! Sufficiency and decode plans.
//!
//! Let A be the available data chunks and U the others. An available parity p says Σ_{j∈U} g_pj d_j = p + Σ_{j∈A} g_pj
//! d_j: only |U| unknowns, however large k is. The rows of the available parities, restricted to U, are brought into
//! reduced echelon form ([`ParityBasis`]); a wanted chunk can be computed exactly if its own row restricted to U lies
//! in their span. So a plan for one lost chunk at k = 128 costs a division and 128 products, and chunks that stay
//! unknown do no harm as long as no wanted chunk depends on them.

use crate::chunk_set::ChunkSet;
use crate::code::Code;
use crate::encode::{check_count, check_lengths};
use crate::error::CodecError;
use crate::gf256;
use crate::kernel::{Coefficients, Kernel, Stores};

/// How to compute some chunks from others: a coefficient for each (wanted, source). A plan depends on indices only, so
/// it can be cached and applied to every stripe, or range of a stripe, with the same losses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodePlan {
    sources: Vec<usize>,
    wanted: Vec<usize>,
    coefficients: Coefficients,
}

impl DecodePlan {
    /// The chunks that the plan reads, ascending: the inputs of [`DecodePlan::apply`], in this order. Chunks whose
    /// coefficients would all be zero are left out.
    pub fn sources(&self) -> &[usize] {
        &self.sources
    }

    /// The chunks that the plan computes, in the order of the request: the outputs of [`DecodePlan::apply`], in this
    /// order.
    pub fn wanted(&self) -> &[usize] {
        &self.wanted
    }

    /// The coefficient of `sources()[source]` in `wanted()[wanted]`.
    ///
    /// # Panics
    /// If one of them is out of range.
    pub fn coefficient(&self, wanted: usize, source: usize) -> u8 {
        self.coefficients.get(wanted, source)
    }

    /// Computes the wanted chunks, or the same range of each. All inputs and outputs have the same length.
    pub fn apply(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<(), CodecError> {
        self.apply_with(Kernel::best(), Stores::Cached, inputs, outputs)
    }

    /// [`DecodePlan::apply`] on a given kernel, with given stores.
    pub fn apply_with(
        &self,
        kernel: &Kernel,
        stores: Stores,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<(), CodecError> {
        check_count("sources", self.sources.len(), inputs.len())?;
        check_count("wanted", self.wanted.len(), outputs.len())?;
        let len = outputs.first().map_or(0, |output| output.len());
        check_lengths(len, outputs.iter().map(|output| output.len()))?;
        check_lengths(len, inputs.iter().map(|input| input.len()))?;
        kernel.dot(&self.coefficients, inputs, outputs, stores);
        Ok(())
    }
}

impl Code {
    /// Whether these chunks determine the whole stripe. Indices of n and more are ignored.
    pub fn is_sufficient(&self, available: &[usize]) -> bool {
        self.is_sufficient_set(&available.iter().copied().filter(|index| *index < self.n()).collect())
    }

    /// Whether the chunks of a set determine the whole stripe. Indices of n and more are ignored.
    pub fn is_sufficient_set(&self, available: &ChunkSet) -> bool {
        let available = available.intersection(&ChunkSet::first(self.n()));
        if available.len() < self.k() {
            return false;
        }
        self.is_mds() || {
            let basis = ParityBasis::new(self, &available);
            basis.rows.len() == basis.unknown.len()
        }
    }

    /// Whether the chunks `available` determine the chunks `wanted`: each of these is available or a combination of
    /// available chunks. Available indices of n and more are ignored.
    pub fn determines(&self, available: &ChunkSet, wanted: &ChunkSet) -> bool {
        let available = available.intersection(&ChunkSet::first(self.n()));
        let missing = wanted.difference(&available);
        if missing.is_empty() {
            return true;
        }
        if self.is_mds() {
            return available.len() >= self.k();
        }
        let basis = ParityBasis::new(self, &available);
        missing.iter().all(|chunk| chunk < self.n() && basis.express(self, &available, chunk).is_some())
    }

    /// Plans how to compute the chunks `wanted` from the chunks `available`. Data chunks are used first, then parities
    /// in ascending order, no more of them than needed. A wanted chunk that is available is copied.
    pub fn decode_plan(&self, available: &[usize], wanted: &[usize]) -> Result<DecodePlan, CodecError> {
        let available = self.chunk_set(available)?;
        self.chunk_set(wanted)?;
        let basis = ParityBasis::new(self, &available);
        let mut equations = Vec::with_capacity(wanted.len());
        for chunk in wanted {
            let equation =
                basis.express(self, &available, *chunk).ok_or_else(|| CodecError::Insufficient {
                    code: self.to_string(),
                    wanted: *chunk,
                    available: available.len(),
                })?;
            equations.push(equation);
        }
        let used: ChunkSet = equations.iter().flatten().map(|(source, _)| *source).collect();
        let sources: Vec<usize> = used.iter().collect();
        let mut rows = vec![0u8; wanted.len() * sources.len()];
        for (row, equation) in equations.iter().enumerate() {
            for (source, coefficient) in equation {
                let column =
                    sources.binary_search(source).expect("every source of an equation is in the union");
                rows[row * sources.len() + column] = *coefficient;
            }
        }
        let coefficients = Coefficients::from_rows(wanted.len(), sources.len(), &rows);
        Ok(DecodePlan { sources, wanted: wanted.to_vec(), coefficients })
    }
}

/// The span of the available parities' rows over the unknown data chunks, in reduced row echelon form.
pub(crate) struct ParityBasis {
    /// The data chunks that are not available, ascending.
    unknown: Vec<usize>,
    /// The parities whose rows were independent of those before them.
    chosen: Vec<usize>,
    rows: Vec<BasisRow>,
}

struct BasisRow {
    pivot: usize,
    /// Over `unknown`; 1 at the pivot, 0 at the other rows' pivots.
    values: Vec<u8>,
    /// The row as a combination of the `chosen` parities.
    combination: Vec<u8>,
}

impl ParityBasis {
    /// Adds the available parities in ascending order until they span all unknowns.
    pub(crate) fn new(code: &Code, available: &ChunkSet) -> ParityBasis {
        let unknown: Vec<usize> = (0..code.k()).filter(|index| !available.contains(*index)).collect();
        let mut basis = ParityBasis { unknown, chosen: Vec::new(), rows: Vec::new() };
        for parity in code.k()..code.n() {
            if basis.rows.len() == basis.unknown.len() {
                break;
            }
            if available.contains(parity) {
                basis.insert(code, parity);
            }
        }
        basis
    }

    fn insert(&mut self, code: &Code, parity: usize) {
        let row = code.parity_row(parity);
        let mut values: Vec<u8> = self.unknown.iter().map(|column| row[*column]).collect();
        let mut combination = self.reduce(&mut values);
        let Some(pivot) = values.iter().position(|value| *value != 0) else { return };
        self.chosen.push(parity);
        combination.push(1);
        let scale = gf256::inv(values[pivot]);
        for value in values.iter_mut().chain(&mut combination) {
            *value = gf256::mul(*value, scale);
        }
        for basis_row in &mut self.rows {
            basis_row.combination.push(0);
            let factor = basis_row.values[pivot];
            gf256::accumulate_reference(factor, &values, &mut basis_row.values);
            gf256::accumulate_reference(factor, &combination, &mut basis_row.combination);
        }
        self.rows.push(BasisRow { pivot, values, combination });
    }

    /// Subtracts the basis rows from `values` at their pivots. Returns the combination of chosen parities that was
    /// subtracted.
    fn reduce(&self, values: &mut [u8]) -> Vec<u8> {
        let mut combination = vec![0u8; self.chosen.len()];
        for row in &self.rows {
            let factor = values[row.pivot];
            if factor != 0 {
                gf256::accumulate_reference(factor, &row.values, values);
                gf256::accumulate_reference(factor, &row.combination, &mut combination);
            }
        }
        combination
    }

    /// Expresses `chunk` as a combination of available chunks: pairs of a source and its non-zero coefficient. Returns
    /// `None` if they do not determine it.
    fn express(&self, code: &Code, available: &ChunkSet, chunk: usize) -> Option<Vec<(usize, u8)>> {
        if available.contains(chunk) {
            return Some(vec![(chunk, 1)]);
        }
        let row = code.row(chunk);
        let mut values: Vec<u8> = self.unknown.iter().map(|column| row[*column]).collect();
        let combination = self.reduce(&mut values);
        if values.iter().any(|value| *value != 0) {
            return None;
        }
        let mut on_data = row;
        for (parity, factor) in self.chosen.iter().zip(&combination) {
            gf256::accumulate_reference(*factor, code.parity_row(*parity), &mut on_data);
        }
        let data = on_data.into_iter().enumerate().filter(|(index, _)| available.contains(*index));
        let parities = self.chosen.iter().copied().zip(combination);
        Some(data.chain(parities).filter(|(_, coefficient)| *coefficient != 0).collect())
    }
}
