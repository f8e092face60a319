//! The read of one wanted chunk by its predicted end and a share of the load that it adds.
//!
//! ```text
//! minimise T + w X   where   T = max over the sites asked of t_j,   X = Σ over them of t_j,   t_j = q_j + a_j
//! ```
//!
//! q_j is how long a request that comes to site j now waits, a_j how long the site then serves it (the cost of a request and
//! its bytes over the site's rate); t_j is when its task ends there. What may be asked is the chunk itself, a whole copy of it, or
//! any other chunks that determine it (C_i of Hu et al., SoCC'17, §2.1).
//!
//! Least latency first (§2.4) is T alone, and of the sets with one T it takes any: an LRC's local group, say, although its sites
//! are as loaded as the chunk's own, where a set that goes round them ends as soon and leaves them to others. Least marginal load
//! first (Eq. 7) is a sum like X alone, and waits behind long queues for the sake of others. X counts a task by how long it stays
//! at its site, waiting included, because that is for how long it is in the way of what comes next; w is small.
//!
//! **Exact** for codes of which [`Code::cheapest_repair`] is: for each end F that a task may have, the sites that end by F
//! are priced at t_j and the cheapest set of them is taken. The best read is the cheapest set for its own T.
//!
//! **Cost:** one repair equation for each F below the best value found, of which there are at most n; none at all where the
//! chunk's own site ends first. It reads no clock and keeps no state: the caller passes what it knows of the sites.

use striate_codec::{ChunkSet, Code, CodecError};

/// w: what a second of all tasks together weighs beside a second of the read's own time.
pub const SHARE_OF_ADDED_LOAD: f64 = 0.06;

/// A wanted chunk, and when its sites would have served it. Times are in seconds from now, finite and not negative.
#[derive(Clone, Copy, Debug)]
pub struct SingleRead<'a> {
    /// The stripe's code.
    pub code: &'a Code,
    /// i: the wanted chunk's index.
    pub index: usize,
    /// t_j at the site of each of the n chunks; `None` where the chunk cannot be had or is not to be asked for.
    pub ends_s: &'a [Option<f64>],
    /// t_j at the sites of whole copies of chunk i.
    pub copies_s: &'a [f64],
    /// How much later a read ends whose chunk is decoded from others.
    pub decode_s: f64,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A copy of the chunk, by its place among the copies.
    Copy(usize),
    /// Chunks of the stripe: the wanted one alone, or others that determine it.
    Chunks(ChunkSet),
}

/// The least of the reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PredictedRead {
    /// What is asked.
    pub source: Source,
    /// T: when it ends, in seconds.
    pub ends_s: f64,
    /// T + w X, in seconds.
    pub value_s: f64,
}

impl SingleRead<'_> {
    /// The read of least T + w X. Of equal ones the chunk itself comes first, then a copy.
    ///
    /// # Errors
    /// [`CodecError::Insufficient`] when there is no copy and the chunks that can be had do not determine it.
    pub fn least(&self, w: f64) -> Result<PredictedRead, CodecError> {
        let alone = |source, ends_s: f64| PredictedRead { source, ends_s, value_s: ends_s + w * ends_s };
        let itself = self.ends_s[self.index]
            .map(|ends_s| alone(Source::Chunks(std::iter::once(self.index).collect()), ends_s));
        let copies =
            self.copies_s.iter().enumerate().map(|(place, ends_s)| alone(Source::Copy(place), *ends_s));
        let alone = itself.into_iter().chain(copies).reduce(lesser);
        let bound = alone.map_or(f64::INFINITY, |alone| alone.value_s);
        let least = self.least_degraded(w, bound).or(alone);
        least.ok_or_else(|| self.insufficient())
    }

    /// The least degraded read, if it is below `bound`.
    fn least_degraded(&self, w: f64, mut bound: f64) -> Option<PredictedRead> {
        let others = self.ends_s.iter().enumerate().filter(|(index, _)| *index != self.index);
        let mut others: Vec<(usize, f64)> =
            others.filter_map(|(index, ends_s)| Some((index, (*ends_s)?))).collect();
        others.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        let wanted = std::iter::once(self.index).collect();
        let (mut had, mut determines, mut best) = (ChunkSet::EMPTY, false, None);
        let mut costs = vec![None; self.ends_s.len()];
        for (place, &(index, floor)) in others.iter().enumerate() {
            // Whatever ends at this floor has one task there at least.
            if floor + self.decode_s + w * floor >= bound {
                break;
            }
            costs[index] = Some(floor);
            had.insert(index);
            // Sites that end together are looked at together.
            let is_last = others.get(place + 1).is_none_or(|(_, next)| *next > floor);
            determines = determines || self.code.determines(&had, &wanted);
            if !is_last || !determines {
                continue;
            }
            let Ok(equation) = self.code.cheapest_repair(self.index, &costs) else { continue };
            let read = self.degraded(equation.sources.iter().map(|(index, _)| *index).collect(), w);
            if read.value_s < bound {
                bound = read.value_s;
                best = Some(read);
            }
        }
        best
    }

    /// A degraded read of chunks that can be had.
    fn degraded(&self, chunks: ChunkSet, w: f64) -> PredictedRead {
        let ends = || chunks.iter().filter_map(|index| self.ends_s[index]);
        let ends_s = ends().fold(0.0, f64::max) + self.decode_s;
        PredictedRead { source: Source::Chunks(chunks), ends_s, value_s: ends_s + w * ends().sum::<f64>() }
    }

    fn insufficient(&self) -> CodecError {
        let available = self.ends_s.iter().filter(|ends_s| ends_s.is_some()).count();
        CodecError::Insufficient { code: self.code.to_string(), wanted: self.index, available }
    }
}

fn lesser(best: PredictedRead, other: PredictedRead) -> PredictedRead {
    if other.value_s < best.value_s { other } else { best }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::read::options::degraded_options;

    fn code(text: &str) -> Code {
        text.parse().expect("a code")
    }

    fn set(indices: &[usize]) -> ChunkSet {
        indices.iter().copied().collect()
    }

    fn least(code: &Code, ends_s: &[Option<f64>], copies_s: &[f64], w: f64) -> PredictedRead {
        SingleRead { code, index: 0, ends_s, copies_s, decode_s: 0.0 }.least(w).expect("it can be read")
    }

    /// Figure 1 of the paper: the loaded site's chunk is read from its local group, as soon as that ends earlier by more than
    /// the two further tasks weigh.
    #[test]
    fn a_loaded_site_is_relieved_when_it_saves_more_than_the_load_weighs() {
        let code = code("lrc(6,2,2)");
        let read = |own: f64| {
            let mut ends = [Some(10.0); 10];
            ends[0] = Some(own);
            [1, 2, 6].into_iter().for_each(|index| ends[index] = Some(3.0));
            least(&code, &ends, &[], 0.06)
        };
        // (1 + w) t against 3 + 9 w = 3.54.
        assert_eq!(read(3.33).source, Source::Chunks(set(&[0])));
        let degraded = read(3.35);
        assert_eq!(degraded.source, Source::Chunks(set(&[1, 2, 6])));
        assert!((degraded.ends_s - 3.0).abs() < 1e-12 && (degraded.value_s - 3.54).abs() < 1e-12);
    }

    /// The global option of an LRC: it ends no sooner than the local group, but loads only one of its sites.
    #[test]
    fn an_lrc_goes_round_a_loaded_local_group() {
        let code = code("lrc(6,2,2)");
        let mut ends = [Some(1.0); 10];
        ends[0] = Some(30.0);
        [1, 2, 6].into_iter().for_each(|index| ends[index] = Some(20.0));
        let Source::Chunks(chunks) = least(&code, &ends, &[], 0.06).source else { panic!("no copies") };
        assert_eq!((chunks.len(), chunks.intersection(&set(&[1, 2, 6])).len()), (6, 1), "{chunks:?}");
        assert!(!chunks.contains(0) && code.determines(&chunks, &set(&[0])));
    }

    /// Six others end no later than the last of them in any case: the idle ones are among them.
    #[test]
    fn of_sets_that_end_together_the_idlest_sites_are_asked() {
        let code = code("rs(6,3)");
        let mut ends = [Some(3.0); 9];
        ends[0] = Some(10.0);
        [7, 8].into_iter().for_each(|index| ends[index] = Some(1.0));
        let Source::Chunks(chunks) = least(&code, &ends, &[], 0.06).source else { panic!("no copies") };
        assert!(chunks.contains(7) && chunks.contains(8), "{chunks:?}");
    }

    #[test]
    fn copies_serve_a_chunk_whose_site_is_loaded_or_gone() {
        let code = code("rs(2,1)");
        let mut ends = [Some(6.0); 3];
        assert_eq!(least(&code, &ends, &[5.0, 4.0], 0.06).source, Source::Copy(1));
        ends[0] = Some(4.0);
        assert_eq!(
            least(&code, &ends, &[5.0, 4.0], 0.06).source,
            Source::Chunks(set(&[0])),
            "the chunk first"
        );
        assert_eq!(least(&code, &[None; 3], &[5.0, 4.0], 0.06).source, Source::Copy(1));
        let lost = SingleRead { code: &code, index: 0, ends_s: &[None; 3], copies_s: &[], decode_s: 0.0 };
        assert!(lost.least(0.06).is_err());
    }

    proptest! {
        /// Every option is tried: the chunk, its copies, and each set that determines it.
        #[test]
        fn no_option_has_less(
            which in 0usize..5, index in 0usize..6, w in 0.0f64..1.0, decode_s in 0.0f64..1.0, in_steps: bool, down: u16,
            ends in proptest::collection::vec(0.0f64..8.0, 11), copies_s in proptest::collection::vec(0.0f64..8.0, 0..3),
        ) {
            let code = code(["rs(6,3)", "rs(4,2)", "lrc(6,2,2)", "lrc(4,2,1)", "replica(3)"][which]);
            let index = index % code.k();
            let end = |j: usize| if in_steps { ends[j].floor() } else { ends[j] };
            let ends_s: Vec<Option<f64>> =
                (0..code.n()).map(|j| (down >> j & 3 != 3).then(|| end(j))).collect();
            let read = SingleRead { code: &code, index, ends_s: &ends_s, copies_s: &copies_s, decode_s };
            let available: ChunkSet = (0..code.n()).filter(|&j| ends_s[j].is_some()).collect();
            let value = |chunks: &ChunkSet, decode_s: f64| {
                chunks.iter().map(end).fold(0.0, f64::max) + decode_s + w * chunks.iter().map(end).sum::<f64>()
            };
            let mut values: Vec<f64> =
                degraded_options(&code, index, &available).iter().map(|set| value(set, decode_s)).collect();
            values.extend(available.contains(index).then(|| value(&set(&[index]), 0.0)));
            values.extend(copies_s.iter().map(|ends_s| ends_s * (1.0 + w)));
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            match read.least(w) {
                Err(_) => prop_assert!(values.is_empty()),
                Ok(chosen) => {
                    prop_assert!((chosen.value_s - least).abs() <= 1e-9, "{chosen:?}, not {least}");
                    if let Source::Chunks(chunks) = chosen.source {
                        prop_assert!(code.determines(&chunks, &set(&[index])));
                        let decode_s = if chunks.contains(index) { 0.0 } else { decode_s };
                        prop_assert!((value(&chunks, decode_s) - chosen.value_s).abs() <= 1e-9);
                    }
                }
            }
        }
    }
}
