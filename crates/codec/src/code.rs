//! One type for every linear code: an n×k generator matrix over GF(2^8) whose first k rows are the identity.
//!
//! Reed–Solomon, Azure-LRC and replication are constructors of [`Code`] (design.md §4, idea 1). Nothing outside this
//! crate asks which family a code belongs to. Differences between families are questions to the matrix: is this set of
//! chunks enough ([`Code::is_sufficient`]), which equation repairs this chunk cheapest ([`Code::cheapest_repair`]),
//! what do these chunks decode to ([`Code::decode_plan`]).
//!
//! Chunk indices: 0..k are the data chunks, k..n the parities. For `lrc(k,l,g)` and `wide(k,r,f)` the local parities come
//! first, then the global ones.
//!
//! # Construction of rs(k, r)
//! Parity row i, column j is 1/(x_i + y_j) with x_i = 255 − i and y_j = j: a Cauchy matrix, of which every square
//! submatrix is invertible, which makes the code MDS. Every column is then divided by its entry in row 0. Scaling a
//! column multiplies minors by non-zero factors, so the code stays MDS, and parity row 0 becomes all ones: a plain XOR,
//! one multiplication less for each data byte.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use crate::chunk_set::ChunkSet;
use crate::error::CodecError;
use crate::gf256;
use crate::kernel::Coefficients;
use crate::lrc;
use crate::spec::CodeSpec;

pub(crate) struct CodeInner {
    pub(crate) spec: CodeSpec,
    pub(crate) k: usize,
    pub(crate) n: usize,
    pub(crate) tolerance: usize,
    /// The data chunks of each local group; empty for a code without local groups.
    pub(crate) local_groups: Vec<Range<usize>>,
    /// The parity rows of the generator matrix, (n−k)×k, row by row.
    pub(crate) parity_rows: Vec<u8>,
    /// The parity rows, prepared for the kernels.
    pub(crate) encoder: Coefficients,
}

/// A systematic linear code over GF(2^8). Cloning shares the matrix.
#[derive(Clone)]
pub struct Code(pub(crate) Arc<CodeInner>);

impl Code {
    /// Reed–Solomon: k data chunks, r parities, any r lost chunks decodable (MDS). k ≥ 1, k + r ≤ 256; r may be 0.
    pub fn rs(k: usize, r: usize) -> Result<Code, CodecError> {
        let spec = CodeSpec::Rs { data: k, parity: r };
        spec.check()?;
        Ok(Code::new(spec, Vec::new(), scaled_cauchy_rows(&natural_points(k), r)))
    }

    /// Azure-LRC: k data chunks in l groups of k/l, one XOR parity per group, g global parities; any g+1 lost chunks
    /// are decodable. See [`crate::lrc`] for the construction and for which parameters are accepted.
    pub fn lrc(k: usize, l: usize, g: usize) -> Result<Code, CodecError> {
        let spec = CodeSpec::Lrc { data: k, local: l, global: g };
        spec.check()?;
        Ok(Code::grouped(spec, &lrc::points(spec)))
    }

    /// ECWide's code: as [`Code::lrc`], but with local groups of r = `locality` data chunks, the last of which may be
    /// shorter, and f − 1 global parities. Any f = `tolerance` lost chunks are decodable.
    pub fn wide(k: usize, locality: usize, tolerance: usize) -> Result<Code, CodecError> {
        let spec = CodeSpec::Wide { data: k, locality, tolerance };
        spec.check()?;
        Ok(Code::grouped(spec, &lrc::points(spec)))
    }

    /// [`Code::lrc`] with other points y_j of the Cauchy matrix, for the search for good ones: k distinct numbers of at
    /// most 254 − g. The tolerance is the same for all points; which larger losses are decodable depends on them.
    pub fn lrc_with_points(k: usize, l: usize, g: usize, points: &[u8]) -> Result<Code, CodecError> {
        let spec = CodeSpec::Lrc { data: k, local: l, global: g };
        spec.check()?;
        let distinct: ChunkSet = points.iter().map(|point| usize::from(*point)).collect();
        if points.len() != k
            || distinct.len() != k
            || points.iter().any(|point| usize::from(*point) > 254 - g)
        {
            let reason = format!("its columns need {k} distinct points of at most {}", 254 - g);
            return Err(CodecError::Parameters { code: spec.to_string(), reason });
        }
        Ok(Code::grouped(spec, points))
    }

    /// Builds the code with the local groups of its spec.
    fn grouped(spec: CodeSpec, points: &[u8]) -> Code {
        let groups = spec.local_groups();
        let rows = lrc::parity_rows(points, &groups, spec.tolerance() - 1);
        Code::new(spec, groups, rows)
    }

    /// n identical copies: k = 1, any n−1 of them may be lost. 1 ≤ n ≤ 256.
    pub fn replica(n: usize) -> Result<Code, CodecError> {
        let spec = CodeSpec::Replica { copies: n };
        spec.check()?;
        Ok(Code::new(spec, Vec::new(), vec![1; n - 1]))
    }

    fn new(spec: CodeSpec, local_groups: Vec<Range<usize>>, parity_rows: Vec<u8>) -> Code {
        let (k, n, tolerance) = (spec.data_count(), spec.chunk_count(), spec.tolerance());
        assert_eq!(parity_rows.len(), (n - k) * k);
        let encoder = Coefficients::from_rows(n - k, k, &parity_rows);
        Code(Arc::new(CodeInner { spec, k, n, tolerance, local_groups, parity_rows, encoder }))
    }

    /// Number of data chunks per stripe.
    pub fn k(&self) -> usize {
        self.0.k
    }

    /// Number of chunks per stripe, parities included.
    pub fn n(&self) -> usize {
        self.0.n
    }

    /// Number of parities per stripe, n − k.
    pub fn parity_count(&self) -> usize {
        self.0.n - self.0.k
    }

    /// The largest t such that *any* t lost chunks can be computed from the others. An LRC decodes many larger losses
    /// too: ask [`Code::is_sufficient`].
    pub fn tolerance(&self) -> usize {
        self.0.tolerance
    }

    /// The data chunks of each local group, in ascending order. The local parity of group i, their XOR, is chunk k + i;
    /// the global parities follow the local ones. Empty for a code without local groups.
    pub fn local_groups(&self) -> &[Range<usize>] {
        &self.0.local_groups
    }

    /// The local group of a data chunk or of a local parity. None for a global parity, and for a code without groups.
    pub fn local_group_of(&self, chunk: usize) -> Option<usize> {
        let groups = self.local_groups();
        match chunk.checked_sub(self.k()) {
            None => groups.iter().position(|group| group.contains(&chunk)),
            Some(parity) => (parity < groups.len()).then_some(parity),
        }
    }

    /// The parameters that the code was made from. For names only.
    pub fn spec(&self) -> CodeSpec {
        self.0.spec
    }

    /// Entry of the generator matrix: chunk `chunk` is Σ_j coefficient(chunk, j) · data chunk j.
    ///
    /// # Panics
    /// If `chunk` ≥ n or `data_index` ≥ k.
    pub fn coefficient(&self, chunk: usize, data_index: usize) -> u8 {
        assert!(chunk < self.n() && data_index < self.k(), "({chunk}, {data_index}) is outside the matrix");
        if chunk < self.k() { u8::from(chunk == data_index) } else { self.parity_row(chunk)[data_index] }
    }

    /// Row `chunk` of the generator matrix: k coefficients.
    ///
    /// # Panics
    /// If `chunk` ≥ n.
    pub fn row(&self, chunk: usize) -> Vec<u8> {
        (0..self.k()).map(|data_index| self.coefficient(chunk, data_index)).collect()
    }

    /// Row `chunk` of the generator matrix, for k ≤ `chunk` < n.
    pub(crate) fn parity_row(&self, chunk: usize) -> &[u8] {
        let start = (chunk - self.0.k) * self.0.k;
        &self.0.parity_rows[start..start + self.0.k]
    }

    /// True if any k chunks determine the stripe.
    pub(crate) fn is_mds(&self) -> bool {
        self.tolerance() == self.parity_count()
    }

    /// Makes a set of indices. Rejects indices of n and more.
    pub(crate) fn chunk_set(&self, indices: &[usize]) -> Result<ChunkSet, CodecError> {
        match indices.iter().find(|index| **index >= self.n()) {
            Some(index) => Err(CodecError::ChunkIndex { index: *index, limit: self.n() }),
            None => Ok(indices.iter().copied().collect()),
        }
    }
}

impl PartialEq for Code {
    fn eq(&self, other: &Code) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.0.spec == other.0.spec && self.0.parity_rows == other.0.parity_rows)
    }
}

impl Eq for Code {}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.spec.fmt(f)
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.spec.fmt(f)
    }
}

impl FromStr for Code {
    type Err = CodecError;

    fn from_str(text: &str) -> Result<Code, CodecError> {
        text.parse::<CodeSpec>()?.build()
    }
}

/// The points y_j = j of the columns.
pub(crate) fn natural_points(k: usize) -> Vec<u8> {
    (0..k).map(|point| u8::try_from(point).expect("k is at most 256")).collect()
}

/// `rows` rows of the Cauchy matrix 1/(x_i + y_j), x_i = 255 − i, with every column scaled so that row 0 is all ones.
/// The points y_j must be distinct and at most 255 − `rows`. Row by row.
pub(crate) fn scaled_cauchy_rows(points: &[u8], rows: usize) -> Vec<u8> {
    let entry = |row: usize, point: u8| gf256::inv((255 - row as u8) ^ point);
    let mut matrix = Vec::with_capacity(rows * points.len());
    for row in 0..rows {
        matrix.extend(points.iter().map(|point| gf256::div(entry(row, *point), entry(0, *point))));
    }
    matrix
}
