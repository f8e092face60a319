//! Which further losses a part of a stripe survives.
//!
//! After losing any s of the chunks H, the rest must still determine the stripe. For an MDS code that is a count: |H| ≥
//! k + s. For other codes it depends on which chunks H are: lrc(12,3,2) cannot decode after losing the four data chunks
//! of a group, but decodes after losing one of each group and a global parity. So the subsets of s chunks are tried one
//! by one with [`Code::is_sufficient_set`], unless a bound decides:
//! - fewer than k + s chunks never suffice;
//! - n − |H| + s ≤ [`Code::tolerance`] losses are always decodable.

use crate::chunk_set::ChunkSet;
use crate::code::Code;

/// Maximum number of subsets to try: a few milliseconds for the widest codes that serve writes.
const MOST_SUBSETS: usize = 20_000;

impl Code {
    /// Whether the chunks `held` determine the whole stripe after the loss of *any* `losses` of them; with `losses` =
    /// 0, whether they determine it now. Indices of n and more are ignored.
    ///
    /// A yes is exact. The result is also no if more than 20,000 subsets would have to be tried. No code with up to 20
    /// chunks needs that many.
    pub fn survives(&self, held: &ChunkSet, losses: usize) -> bool {
        let held = held.intersection(&ChunkSet::first(self.n()));
        if held.len() < self.k().saturating_add(losses) {
            return false;
        }
        if self.is_mds() || self.n() - held.len() + losses <= self.tolerance() {
            return true;
        }
        if subsets(held.len(), losses) > MOST_SUBSETS {
            return false;
        }
        let chunks: Vec<usize> = held.iter().collect();
        self.survives_each(held, &chunks, losses)
    }

    /// Whether `held` is sufficient without any `losses` of `candidates`.
    fn survives_each(&self, held: ChunkSet, candidates: &[usize], losses: usize) -> bool {
        if losses == 0 {
            return self.is_sufficient_set(&held);
        }
        (0..candidates.len().saturating_sub(losses - 1)).all(|first| {
            let mut rest = held;
            rest.remove(candidates[first]);
            self.survives_each(rest, &candidates[first + 1..], losses - 1)
        })
    }
}

/// Number of subsets of `size` elements of a set of `total`; [`usize::MAX`] on overflow.
fn subsets(total: usize, size: usize) -> usize {
    // After i factors the product is the number of subsets of i elements, so the division leaves no remainder.
    let times = |count: usize, i: usize| count.checked_mul(total - i).map(|product| product / (i + 1));
    (0..size.min(total - size)).try_fold(1, times).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Represents subsets of the n chunks as bit masks, and shares no code with the tested function.
    fn survives_by_brute_force(code: &Code, held: u32, losses: u32) -> bool {
        let lost_sets = (0..1u32 << code.n()).filter(|lost| lost & !held == 0 && lost.count_ones() == losses);
        let decodes = |left: u32| {
            let left: Vec<usize> = (0..code.n()).filter(|chunk| left >> chunk & 1 == 1).collect();
            code.decode_plan(&left, &(0..code.k()).collect::<Vec<_>>()).is_ok()
        };
        held.count_ones() >= losses && lost_sets.into_iter().all(|lost| decodes(held & !lost))
    }

    const NAMES: [&str; 14] = [
        "none",
        "replica(2)",
        "replica(4)",
        "rs(1,0)",
        "rs(3,0)",
        "rs(4,2)",
        "rs(2,3)",
        "rs(5,4)",
        "lrc(4,2,1)",
        "lrc(4,2,2)",
        "lrc(4,1,3)",
        "lrc(6,2,2)",
        "lrc(6,3,1)",
        "lrc(8,2,1)",
    ];

    fn codes() -> impl Strategy<Value = Code> {
        prop::sample::select(&NAMES[..]).prop_map(|name| name.parse().unwrap())
    }

    proptest! {
        #[test]
        fn surviving_is_what_trying_every_loss_says(code in codes(), missing: u32, fewer: u32, losses in 0u32..4) {
            // Sets with few missing chunks are the interesting ones.
            let held = !(missing & fewer) & ((1 << code.n()) - 1);
            let set: ChunkSet = (0..code.n()).filter(|chunk| held >> chunk & 1 == 1).collect();
            prop_assert_eq!(
                code.survives(&set, losses as usize),
                survives_by_brute_force(&code, held, losses),
                "{} of {:?}, {} further losses", code, set, losses
            );
        }
    }

    fn without(code: &Code, missing: &[usize]) -> ChunkSet {
        (0..code.n()).filter(|chunk| !missing.contains(chunk)).collect()
    }

    #[test]
    fn of_an_lrc_it_matters_which_chunks_are_missing() {
        let code: Code = "lrc(12,3,2)".parse().unwrap();
        let group = without(&code, &[0, 1, 2, 3]);
        assert_eq!(group.len(), code.k() + 1);
        assert!(!code.survives(&group, 0), "three equations for four chunks");
        let spread = without(&code, &[0, 4, 8, 16]);
        assert_eq!(spread.len(), group.len());
        assert!(code.survives(&spread, 0));
        assert!(
            code.survives(&without(&code, &[12, 13, 14, 15]), 1),
            "any twelve of the data and a global parity"
        );
    }

    #[test]
    fn what_would_take_too_long_to_try_counts_as_not_surviving() {
        let code: Code = "lrc(128,8,2)".parse().unwrap();
        assert!(code.survives(&ChunkSet::first(code.n()), 3), "its tolerance says so");
        assert!(!code.survives(&without(&code, &[0]), 4));
        assert_eq!(subsets(138, 3), 428_536);
        assert_eq!(subsets(250, 125), usize::MAX);
    }
}
