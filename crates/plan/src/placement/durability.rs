//! Acknowledgement: which chunks of a stripe must be durable before its write is acknowledged.
//!
//! All n chunks must be durable, or enough that the stripe decodes after *any* `surplus` further losses. The code
//! decides that ([`Code::survives`]), not a count: k + 1 chunks of an LRC may not decode at all. If the code tolerates
//! no loss, as `none` does, all n are needed whatever the surplus.
//!
//! If there are fewer sites than chunks, the parities that cover the fewest data chunks are left out first: an LRC's
//! local parities make repairs cheap, but its global ones replace any chunk. The data chunks of `lrc(12,3,2)` and one
//! global parity survive any loss. With the three local parities instead of global ones, two more sites are needed for
//! the same.

use std::cmp::Reverse;

use striate_codec::{ChunkSet, Code};

/// Decides whether a write whose `held` chunks are durable may be acknowledged; `surplus` is s. The store uses
/// [`is_durable`]; the lab plants faulty rules to check that they are found.
pub type DurabilityRule = fn(code: &Code, held: &ChunkSet, surplus: usize) -> bool;

/// Returns whether all n chunks are held, or the held ones decode after any `surplus` further losses.
pub fn is_durable(code: &Code, held: &ChunkSet, surplus: usize) -> bool {
    held.len() >= code.n() || code.survives(held, surplus)
}

/// Returns the chunks of a stripe to write to `sites` sites: all n if they suffice. Otherwise all data chunks and the
/// parities that cover the most of them; with fewer than k sites, some of the data chunks.
pub fn chunks_to_write(code: &Code, sites: usize) -> ChunkSet {
    let (k, n) = (code.k(), code.n());
    let covered = |chunk: usize| code.row(chunk).iter().filter(|coefficient| **coefficient != 0).count();
    if sites >= n {
        return ChunkSet::first(n);
    }
    let mut parities: Vec<usize> = (k..n).collect();
    // The sort is stable: among parities that cover equally many chunks, the first ones stay.
    parities.sort_by_key(|parity| Reverse(covered(*parity)));
    (0..k).chain(parities).take(sites).collect()
}

/// Returns the minimum number of sites with which this rule can acknowledge a write.
pub fn fewest_sites(code: &Code, surplus: usize, rule: DurabilityRule) -> usize {
    let suffices = |sites: &usize| rule(code, &chunks_to_write(code, *sites), surplus);
    (code.k()..code.n()).find(suffices).unwrap_or(code.n())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Code {
        text.parse().unwrap()
    }

    fn fewest(text: &str, surplus: usize) -> usize {
        fewest_sites(&code(text), surplus, is_durable)
    }

    #[test]
    fn an_mds_code_needs_k_sites_and_the_surplus_but_never_more_than_n() {
        assert_eq!([0, 1, 2, 3, 255].map(|surplus| fewest("rs(4,2)", surplus)), [4, 5, 6, 6, 6]);
        assert_eq!([0, 1, 2, 9].map(|surplus| fewest("replica(3)", surplus)), [1, 2, 3, 3]);
        assert_eq!([0, 1].map(|surplus| fewest("rs(2,1)", surplus)), [2, 3]);
    }

    #[test]
    fn without_redundancy_all_chunks_are_needed_and_enough() {
        assert_eq!([0, 1, 7].map(|surplus| fewest("none", surplus)), [1; 3]);
        assert_eq!([0, 1].map(|surplus| fewest("rs(3,0)", surplus)), [3; 2]);
        assert!(is_durable(&code("none"), &ChunkSet::first(1), 1));
        assert!(!is_durable(&code("none"), &ChunkSet::EMPTY, 0));
    }

    #[test]
    fn an_lrc_keeps_its_global_parities_when_sites_are_few() {
        assert_eq!([0, 1, 2, 3].map(|surplus| fewest("lrc(12,3,2)", surplus)), [12, 13, 14, 17]);
        let chosen: Vec<usize> = chunks_to_write(&code("lrc(12,3,2)"), 15).iter().collect();
        assert_eq!(chosen, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 15, 16]);
    }

    #[test]
    fn any_number_of_sites_beyond_the_fewest_does_as_well() {
        for text in ["none", "replica(3)", "rs(4,2)", "lrc(4,2,1)", "lrc(6,2,2)", "lrc(12,3,2)"] {
            for surplus in 0..4 {
                for sites in fewest(text, surplus)..=code(text).n() + 1 {
                    let chunks = chunks_to_write(&code(text), sites);
                    assert_eq!(chunks.len(), sites.min(code(text).n()));
                    assert!(
                        is_durable(&code(text), &chunks, surplus),
                        "{text} on {sites} sites, s = {surplus}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_lost_group_of_an_lrc_is_not_durable_though_k_and_one_more_chunks_are() {
        let code = code("lrc(12,3,2)");
        let held: ChunkSet = (4..17).collect();
        assert!(!is_durable(&code, &held, 1) && !is_durable(&code, &held, 0));
    }
}
