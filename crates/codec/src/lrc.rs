//! Azure's local reconstruction codes (Huang et al., ATC'12), as used by SoCC'17 and ECWide.
//!
//! # Construction
//! Take the parity rows of rs(k, g+1): row 0 is all ones, and every square submatrix of the g+1 rows is invertible. Split
//! row 0 into l local parities, each the XOR of one group of data chunks; rows 1..=g are the global parities. (This is
//! how Pyramid codes, Huang et al. 2007, are made from an MDS code.)
//!
//! The groups are consecutive. Those of lrc(k, l, g) have k/l data chunks each. Those of wide(k, r, f) have r, the last
//! one the remainder, and g = f − 1. Nothing below depends on the sizes of the groups.
//!
//! # Why any g+1 losses decode
//! Let e data chunks be lost with t local and s global parities, e + t + s ≤ g + 1.
//! - t = 0: the local parities add up to row 0, so g + 1 − s ≥ e rows of the MDS matrix are at hand, and the e×e
//!   submatrix on the lost columns is invertible.
//! - t ≥ 1: g − s ≥ e + t − 1 ≥ e global rows are at hand: the same.
//!
//! So everything rests on the minors of that (g+1)×k matrix. The tests check *all* of them for every accepted parameter
//! set (the rows of a smaller k are a prefix of those of a larger one). They also check the erasures themselves, one by
//! one, for every accepted set of at most 20 chunks. [`MAX_K`] is the limit up to which that is affordable. Larger sets
//! would be correct too, by Cauchy's determinant, but are not accepted untested.
//!
//! # Maximal recoverability
//! A code is maximally recoverable if it decodes every loss that some code with the same groups could: at most one loss
//! in each group after taking away g losses anywhere. Up to 20 chunks the points of the columns are chosen (by a seeded
//! search whose results are the table in `lrc_points.rs`) so that as many such losses as possible decode;
//! [`recoverability`] measures the fraction.

use std::ops::Range;

use striate_splitmix::SplitMix64;

use crate::chunk_set::ChunkSet;
use crate::code::{Code, natural_points, scaled_cauchy_rows};
use crate::lrc_points::SEEDS;
use crate::spec::CodeSpec;

/// The largest k accepted for g = 1, 2, …: the limit up to which all minors can be tested.
pub const MAX_K: [usize; 8] = [254, 253, 252, 128, 64, 48, 36, 32];

/// Checks lrc(k, l, g), and says why it is not accepted.
pub(crate) fn check_parameters(k: usize, l: usize, g: usize) -> Result<(), String> {
    if l == 0 {
        return Err("without local groups it is rs(k,r): use that".to_string());
    }
    if !k.is_multiple_of(l) {
        return Err(format!("the {k} data chunks do not divide into {l} equal groups"));
    }
    if k / l < 2 {
        return Err("groups of a single data chunk would only copy it: use fewer groups".to_string());
    }
    check_globals(k, g)
}

/// Checks the parameters of any LRC with k data chunks and g global parities, and says why they are not accepted.
pub(crate) fn check_globals(k: usize, g: usize) -> Result<(), String> {
    if g == 0 {
        return Err("at least one global parity is needed".to_string());
    }
    match MAX_K.get(g - 1) {
        None => Err(format!("at most {} global parities are tested and accepted", MAX_K.len())),
        Some(max) if k > *max => {
            Err(format!("with {g} global parities at most {max} data chunks are accepted"))
        }
        Some(_) => Ok(()),
    }
}

/// The largest n for which points are chosen for maximal recoverability, and all losses are tested one by one.
pub const SMALL_N: usize = 20;

/// The points of the columns: 0, 1, …, k−1, or for small codes with equal groups the result of the search.
pub(crate) fn points(spec: CodeSpec) -> Vec<u8> {
    let (k, groups, g) = (spec.data_count(), spec.local_groups(), spec.tolerance() - 1);
    let l = groups.len();
    if groups.iter().any(|group| group.len() * l != k) {
        return natural_points(k);
    }
    let found = SEEDS
        .binary_search_by_key(&(k, l, g), |(k, l, g, _)| (usize::from(*k), usize::from(*l), usize::from(*g)));
    match found {
        Ok(index) => seeded_points(k, g, u64::from(SEEDS[index].3)),
        Err(_) => natural_points(k),
    }
}

/// Returns k distinct points of at most 254 − g, shuffled by [`SplitMix64`] from a seed.
pub fn seeded_points(k: usize, g: usize, seed: u64) -> Vec<u8> {
    let mut points = natural_points(255 - g);
    let mut random = SplitMix64::new(seed);
    for index in 0..k {
        let other = index + below(&mut random, points.len() - index);
        points.swap(index, other);
    }
    points.truncate(k);
    points
}

/// Returns the parity rows, one per group and then `g` global ones, row by row.
pub(crate) fn parity_rows(points: &[u8], groups: &[Range<usize>], g: usize) -> Vec<u8> {
    let k = points.len();
    let mut rows = vec![0u8; groups.len() * k];
    for (row, group) in rows.chunks_exact_mut(k).zip(groups) {
        row[group.clone()].fill(1);
    }
    rows.extend_from_slice(&scaled_cauchy_rows(points, g + 1)[k..]);
    rows
}

/// The share of the losses decodable by some code with these groups that this code decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recoverability {
    /// Losses of l + g chunks that a maximally recoverable code decodes.
    pub possible: u64,
    /// Losses among them that this code decodes.
    pub decoded: u64,
}

impl Recoverability {
    /// True if this code decodes all possible losses.
    pub fn is_maximal(&self) -> bool {
        self.possible == self.decoded
    }

    /// The share decoded / possible.
    pub fn fraction(&self) -> f64 {
        self.decoded as f64 / self.possible as f64
    }
}

/// Counts over every loss of exactly l + g chunks of a code with l local groups and g global parities. (Every smaller
/// decodable loss is part of a larger decodable one, so these decide.) Costs one rank per loss; meant for at most some
/// 20 chunks.
pub fn recoverability(code: &Code) -> Recoverability {
    let mut counts = Recoverability { possible: 0, decoded: 0 };
    for_each_subset(code.n(), code.parity_count(), &mut |lost| counts.count(code, lost));
    counts
}

/// Counts over `samples` random losses of l + g chunks. Half of them are anywhere. The other half are one in each group
/// and g more anywhere, most of which are decodable.
pub fn sampled_recoverability(code: &Code, samples: u64, seed: u64) -> Recoverability {
    let mut counts = Recoverability { possible: 0, decoded: 0 };
    let (k, n) = (code.k(), code.n());
    let mut random = SplitMix64::new(seed);
    for sample in 0..samples {
        let mut lost = ChunkSet::EMPTY;
        if sample.is_multiple_of(2) {
            for (local, group) in code.local_groups().iter().enumerate() {
                let member = below(&mut random, group.len() + 1);
                lost.insert(if member == group.len() { k + local } else { group.start + member });
            }
        }
        while lost.len() < code.parity_count() {
            lost.insert(below(&mut random, n));
        }
        counts.count(code, &lost.iter().collect::<Vec<_>>());
    }
    counts
}

/// Whether some code with the same groups and as many global parities decodes the loss of these chunks: at most one in
/// each group after taking away as many as there are global parities.
pub fn is_decodable_by_any(code: &Code, lost: &[usize]) -> bool {
    let mut in_group = vec![0usize; code.local_groups().len()];
    let mut globals = 0;
    for index in lost {
        match code.local_group_of(*index) {
            Some(group) => in_group[group] += 1,
            None => globals += 1,
        }
    }
    let beyond_local: usize = in_group.iter().map(|count| count.saturating_sub(1)).sum();
    beyond_local + globals <= code.parity_count() - in_group.len()
}

impl Recoverability {
    /// Counts one loss.
    fn count(&mut self, code: &Code, lost: &[usize]) {
        if is_decodable_by_any(code, lost) {
            let rest = ChunkSet::first(code.n()).difference(&lost.iter().copied().collect());
            self.possible += 1;
            self.decoded += u64::from(code.is_sufficient_set(&rest));
        }
    }
}

/// Returns a number below a small `limit`. The points of codes depend on it: it must never change.
fn below(random: &mut SplitMix64, limit: usize) -> usize {
    (random.next() % limit as u64) as usize
}

/// Calls `visit` with every subset of `size` of the numbers 0..n, in lexicographic order.
pub fn for_each_subset(n: usize, size: usize, visit: &mut impl FnMut(&[usize])) {
    fn extend(n: usize, size: usize, chosen: &mut Vec<usize>, visit: &mut impl FnMut(&[usize])) {
        if chosen.len() == size {
            return visit(chosen);
        }
        let first = chosen.last().map_or(0, |last| last + 1);
        for next in first..=n - (size - chosen.len()) {
            chosen.push(next);
            extend(n, size, chosen, visit);
            chosen.pop();
        }
    }
    if size <= n {
        extend(n, size, &mut Vec::with_capacity(size), visit);
    }
}
