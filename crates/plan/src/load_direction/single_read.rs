//! The read of one wanted chunk by its predicted end and a share of the load that it adds: objective B of a query with one
//! piece.
//!
//! ```text
//! minimise T + w X   where   T = max over the sites asked of (q_j + a_j),   X = Σ over them of a_j
//! ```
//!
//! q_j is how long a request that comes to site j now waits, a_j how long the site then serves it (the cost of a request and
//! its bytes over the site's rate). What may be asked is the chunk itself, a whole copy of it, or any other chunks
//! that determine it (C_i of Hu et al., SoCC'17, §2.1). Least latency first is w = 0 with a_j = 0 for the request itself; least marginal
//! load first weighs a task by the queue that it joins. Here a task weighs the same wherever it goes, so that long queues
//! are left early and idle sites are not filled for little.
//!
//! **Exact** for codes of which [`Code::cheapest_repair`] is: for each end F that a task may have, the sites that end by F
//! are priced at a_j and the cheapest set of them is taken. The best plan is the cheapest set for its own T.
//!
//! **Cost:** one repair equation for each F below the best value found, of which there are at most n; none at all where the
//! chunk's own site ends first. It reads no clock and remembers nothing: whoever calls says what is known of the sites.

use striate_codec::{ChunkSet, Code, CodecError};

/// w: a second of added load weighs as much as so many seconds of the read's own time. Above some 0.1 reads wait where they
/// need not; below it nothing changes as long as queues are fresh.
pub const SHARE_OF_ADDED_LOAD: f64 = 0.06;

/// What asking a site means, in seconds. Both are finite and not negative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Task {
    /// q_j: how long it waits.
    pub waits_s: f64,
    /// a_j: how long it is served.
    pub takes_s: f64,
}

impl Task {
    /// When it ends.
    pub fn ends_s(self) -> f64 {
        self.waits_s + self.takes_s
    }
}

/// A wanted chunk, and what is known of the sites that could serve it.
#[derive(Clone, Copy, Debug)]
pub struct SingleRead<'a> {
    /// The stripe's code.
    pub code: &'a Code,
    /// i: the wanted chunk's index.
    pub index: usize,
    /// The task at the site of each of the n chunks; `None` where the chunk cannot be had or is not to be asked for.
    pub tasks: &'a [Option<Task>],
    /// The tasks at the sites of whole copies of chunk i.
    pub copies: &'a [Task],
    /// Seconds of decoding, which count as added load where the chunk is decoded.
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
    /// T: when its last task ends, in seconds.
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
        let alone = |source, task: Task| PredictedRead {
            source,
            ends_s: task.ends_s(),
            value_s: task.ends_s() + w * task.takes_s,
        };
        let itself = self.tasks[self.index]
            .map(|task| alone(Source::Chunks(std::iter::once(self.index).collect()), task));
        let copies = self.copies.iter().enumerate().map(|(place, task)| alone(Source::Copy(place), *task));
        let best = itself.into_iter().chain(copies).reduce(|best, other| lesser(best, other));
        match best {
            Some(best) => Ok(self.least_degraded(w, best.value_s).map_or(best, |other| lesser(best, other))),
            None => self.least_degraded(w, f64::INFINITY).ok_or_else(|| self.insufficient()),
        }
    }

    /// The least degraded read, if it is below `bound`.
    fn least_degraded(&self, w: f64, bound: f64) -> Option<PredictedRead> {
        let mut others: Vec<(usize, Task)> = self
            .tasks
            .iter()
            .enumerate()
            .filter_map(|(index, task)| Some((index, (*task)?)))
            .filter(|(index, _)| *index != self.index)
            .collect();
        others.sort_by(|(_, a), (_, b)| a.ends_s().total_cmp(&b.ends_s()));
        let least_takes = others.iter().map(|(_, task)| task.takes_s).fold(f64::INFINITY, f64::min);
        let mut best: Option<PredictedRead> = None;
        let mut costs = vec![None; self.tasks.len()];
        let mut determines = false;
        let (mut had, wanted): (ChunkSet, ChunkSet) =
            (ChunkSet::EMPTY, std::iter::once(self.index).collect());
        for (place, (index, task)) in others.iter().enumerate() {
            let floor = task.ends_s();
            if floor + w * (least_takes + self.decode_s) >= best.map_or(bound, |best| best.value_s) {
                break;
            }
            costs[*index] = Some(task.takes_s);
            had.insert(*index);
            // Sites that end together are looked at together.
            let is_last = others.get(place + 1).is_none_or(|(_, next)| next.ends_s() > floor);
            determines = determines || self.code.determines(&had, &wanted);
            if !is_last || !determines {
                continue;
            }
            let Ok(equation) = self.code.cheapest_repair(self.index, &costs) else { continue };
            let chunks: ChunkSet = equation.sources.iter().map(|(index, _)| *index).collect();
            let read = self.degraded(chunks, w);
            if read.value_s < best.map_or(bound, |best| best.value_s) {
                best = Some(read);
            }
        }
        best
    }

    /// A degraded read of chunks that can be had.
    fn degraded(&self, chunks: ChunkSet, w: f64) -> PredictedRead {
        let tasks = || chunks.iter().filter_map(|index| self.tasks[index]);
        let ends_s = tasks().map(Task::ends_s).fold(0.0, f64::max);
        let added: f64 = tasks().map(|task| task.takes_s).sum::<f64>() + self.decode_s;
        PredictedRead { source: Source::Chunks(chunks), ends_s, value_s: ends_s + w * added }
    }

    fn insufficient(&self) -> CodecError {
        let available = self.tasks.iter().filter(|task| task.is_some()).count();
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

    fn task(waits_s: f64, takes_s: f64) -> Task {
        Task { waits_s, takes_s }
    }

    fn least(code: &Code, tasks: &[Option<Task>], copies: &[Task], w: f64) -> PredictedRead {
        SingleRead { code, index: 0, tasks, copies, decode_s: 0.0 }.least(w).expect("it can be read")
    }

    /// Figure 1 of the paper: the loaded site's chunk is read from its local group, as soon as that ends earlier by more than
    /// the two further tasks weigh.
    #[test]
    fn a_loaded_site_is_relieved_when_it_saves_more_than_the_load_weighs() {
        let code = code("lrc(6,2,2)");
        let read = |waits: f64| {
            let mut tasks = [Some(task(9.0, 1.0)); 10];
            tasks[0] = Some(task(waits, 1.0));
            [1, 2, 6].into_iter().for_each(|index| tasks[index] = Some(task(2.0, 1.0)));
            least(&code, &tasks, &[], 0.06)
        };
        assert_eq!(read(2.11).source, Source::Chunks(set(&[0])));
        let degraded = read(2.13);
        assert_eq!(degraded.source, Source::Chunks(set(&[1, 2, 6])));
        assert!((degraded.ends_s - 3.0).abs() < 1e-12 && (degraded.value_s - 3.18).abs() < 1e-12);
    }

    /// The global option of an LRC: one site of the local group is loaded too.
    #[test]
    fn an_lrc_goes_round_a_loaded_local_group() {
        let code = code("lrc(6,2,2)");
        let mut tasks = [Some(task(1.0, 1.0)); 10];
        [0, 1].into_iter().for_each(|index| tasks[index] = Some(task(30.0, 1.0)));
        let Source::Chunks(chunks) = least(&code, &tasks, &[], 0.06).source else { panic!("no copies") };
        assert!(!chunks.contains(0) && !chunks.contains(1) && chunks.len() == 6, "{chunks:?}");
        assert!(code.determines(&chunks, &set(&[0])));
    }

    #[test]
    fn copies_serve_a_chunk_whose_site_is_loaded_or_gone() {
        let code = code("rs(2,1)");
        let mut tasks = [Some(task(5.0, 1.0)); 3];
        let copies = [task(4.0, 1.0), task(3.0, 1.0)];
        assert_eq!(least(&code, &tasks, &copies, 0.06).source, Source::Copy(1));
        tasks[0] = Some(task(3.0, 1.0));
        assert_eq!(least(&code, &tasks, &copies, 0.06).source, Source::Chunks(set(&[0])), "the chunk first");
        assert_eq!(least(&code, &[None; 3], &copies, 0.06).source, Source::Copy(1));
        let lost = SingleRead { code: &code, index: 0, tasks: &[None; 3], copies: &[], decode_s: 0.0 };
        assert!(lost.least(0.06).is_err());
    }

    proptest! {
        /// Every option is tried: the chunk, its copies, and each set that determines it.
        #[test]
        fn no_option_has_less(
            which in 0usize..5, index in 0usize..6, w in 0.0f64..1.0, decode_s in 0.0f64..1.0,
            waits in proptest::collection::vec(0u32..8, 11), takes in proptest::collection::vec(0.1f64..3.0, 11),
            copies in proptest::collection::vec((0.0f64..8.0, 0.1f64..3.0), 0..3), same: bool, down: u16,
        ) {
            let code = code(["rs(6,3)", "rs(4,2)", "lrc(6,2,2)", "lrc(4,2,1)", "replica(3)"][which]);
            let index = index % code.k();
            let takes_s = |j: usize| if same { 1.0 } else { takes[j] };
            let tasks: Vec<Option<Task>> = (0..code.n())
                .map(|j| (down >> j & 3 != 3).then(|| task(f64::from(waits[j]), takes_s(j))))
                .collect();
            let copies: Vec<Task> = copies.iter().map(|&(waits, takes)| task(waits, takes)).collect();
            let read = SingleRead { code: &code, index, tasks: &tasks, copies: &copies, decode_s };
            let available: ChunkSet = (0..code.n()).filter(|&j| tasks[j].is_some()).collect();
            let value = |chunks: &ChunkSet, decode_s: f64| {
                let ends = chunks.iter().map(|j| tasks[j].unwrap().ends_s()).fold(0.0, f64::max);
                ends + w * (chunks.iter().map(|j| tasks[j].unwrap().takes_s).sum::<f64>() + decode_s)
            };
            let mut values: Vec<f64> =
                degraded_options(&code, index, &available).iter().map(|set| value(set, decode_s)).collect();
            values.extend(available.contains(index).then(|| value(&set(&[index]), 0.0)));
            values.extend(copies.iter().map(|copy| copy.ends_s() + w * copy.takes_s));
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
