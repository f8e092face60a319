//! What a code says of the ways to read its chunks, whichever stripe it is.
//!
//! Of a Reed–Solomon code any k chunks are all. Of an LRC the rest of a chunk's local group is that chunk, and k chunks are all
//! when no more than its data chunks' number is taken of a local group: that is so for a code that recovers all that its
//! parities can (a *maximally recoverable* one); so the final plan is checked with the code itself.

use striate_codec::{ChunkSet, Code};

use super::options::local_group;
use crate::solver::piece_options::UNGROUPED;

/// The ways to read the chunks of a code.
#[derive(Clone, Debug)]
pub(super) struct CodeOptions {
    code: Code,
    /// The local group of each chunk.
    groups: Vec<usize>,
    /// Chunks of a local group that tell anything new at most: the data chunks of the largest. A shorter last group may
    /// so be taken with its local parity, which tells nothing new; the check of the final plan finds that.
    pub(super) cap: usize,
    /// The rest of each data chunk's local group.
    local: Vec<Option<ChunkSet>>,
}

/// Those of the codes that were met.
#[derive(Debug, Default)]
pub(super) struct KnownCodes(Vec<CodeOptions>);

impl KnownCodes {
    /// Those of a code. A store has a handful of them.
    pub(super) fn of(&mut self, code: &Code) -> &CodeOptions {
        let known = self.0.iter().position(|known| known.code.spec() == code.spec());
        let place = known.unwrap_or_else(|| {
            self.0.push(CodeOptions::new(code));
            self.0.len() - 1
        });
        &self.0[place]
    }
}

impl CodeOptions {
    fn new(code: &Code) -> Self {
        let (k, n) = (code.k(), code.n());
        let cap = code.local_groups().iter().map(|group| group.len()).max().unwrap_or(0);
        let groups = (0..n).map(|chunk| code.local_group_of(chunk).unwrap_or(UNGROUPED)).collect();
        let local = (0..k).map(|chunk| local_group(code, chunk)).collect();
        Self { code: code.clone(), groups, cap, local }
    }

    /// The local group of a chunk, or [`UNGROUPED`].
    pub(super) fn group(&self, chunk: usize) -> usize {
        self.groups[chunk]
    }

    /// The rest of a data chunk's local group.
    pub(super) fn local(&self, chunk: usize) -> Option<&ChunkSet> {
        self.local[chunk].as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every set of k chunks within the caps is all of the stripe, by the code's own judgement.
    #[test]
    fn k_chunks_within_the_caps_are_enough() {
        for text in
            ["rs(4,2)", "lrc(6,2,2)", "lrc(6,3,2)", "lrc(4,2,1)", "lrc(4,2,3)", "lrc(12,3,2)", "replica(3)"]
        {
            let code: Code = text.parse().expect("a code");
            let mut known = KnownCodes::default();
            let options = known.of(&code);
            striate_codec::lrc::for_each_subset(code.n(), code.k(), &mut |chunks| {
                let in_group =
                    |group: usize| chunks.iter().filter(|&&chunk| options.group(chunk) == group).count();
                let is_within = chunks.iter().all(|&chunk| {
                    options.group(chunk) == UNGROUPED || in_group(options.group(chunk)) <= options.cap
                });
                assert_eq!(code.is_sufficient(chunks), is_within, "{text}: {chunks:?}");
            });
        }
    }

    #[test]
    fn a_code_is_looked_at_once() {
        let mut known = KnownCodes::default();
        for text in ["rs(4,2)", "lrc(6,2,2)", "rs(4,2)"] {
            known.of(&text.parse().expect("a code"));
        }
        assert_eq!(known.0.len(), 2);
        let lrc = known.of(&"lrc(6,2,2)".parse().expect("a code"));
        assert_eq!(lrc.local(4).map(|rest| rest.iter().collect()), Some(vec![3, 5, 7]));
    }
}
