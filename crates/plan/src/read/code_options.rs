//! The ways to read the chunks that a code offers, independent of the stripe.
//!
//! Any k chunks of a Reed–Solomon code determine the stripe. In an LRC, the rest of a chunk's local group determines
//! that chunk. k chunks determine the stripe if no local group contributes more chunks than it has data chunks. That
//! holds for a code that recovers all losses that its parities allow (a *maximally recoverable* code), so the code
//! itself checks the final plan.

use striate_codec::{ChunkSet, Code};

use super::options::local_group;
use crate::solver::piece_options::UNGROUPED;

/// The ways to read the chunks of a code.
#[derive(Clone, Debug)]
pub(super) struct CodeOptions {
    code: Code,
    /// The local group of each chunk.
    groups: Vec<usize>,
    /// Maximum number of chunks of a local group that are independent: the data chunks of the largest group. A shorter
    /// last group may thus be read together with its local parity, which adds nothing; the check of the final plan
    /// detects that.
    pub(super) cap: usize,
    /// The rest of each data chunk's local group.
    local: Vec<Option<ChunkSet>>,
}

/// The options of the codes seen so far.
#[derive(Debug, Default)]
pub(super) struct KnownCodes(Vec<CodeOptions>);

impl KnownCodes {
    /// Returns the options of a code. A store has only a handful of codes.
    pub(super) fn of(&mut self, code: &Code) -> &CodeOptions {
        let existing = self.0.iter().position(|options| options.code.spec() == code.spec());
        let place = existing.unwrap_or_else(|| {
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

    /// Returns the local group of a chunk, or [`UNGROUPED`].
    pub(super) fn group(&self, chunk: usize) -> usize {
        self.groups[chunk]
    }

    /// Returns the rest of a data chunk's local group.
    pub(super) fn local(&self, chunk: usize) -> Option<&ChunkSet> {
        self.local[chunk].as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the code's own judgement, exactly the sets of k chunks within the caps determine the stripe.
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
