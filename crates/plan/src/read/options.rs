//! The read options of one wanted chunk, and which of them is the least (Hu et al., SoCC'17, §2.4).
//!
//! A request for D bytes of chunk i is served by the *normal read*, {i}, or by a *degraded read*: the same columns of
//! chunks that determine i. The degraded reads C_i are any k other chunks of a Reed–Solomon code; in an LRC, the local
//! group or a set with global parities. With Q_j bytes queued at site j, which serves S_j bytes per second, an option
//! is judged by
//!
//! ```text
//! latency         max over its sites of (Q_j + D) / S_j             least latency first (§2.4)
//! marginal load   sum over its sites of D (Q_j + D/2) / S_j         least marginal load first (Eq. 6, 7)
//! ```
//!
//! The second is the increase of ½ Σ (L_j + Q_j)² / S_j, the ℓ2 metric of problem (1): least marginal load first solves
//! (1) for one request. The paper writes its equations for equal S_j and leaves them out.
//!
//! Cost: the least option takes one repair equation of the codec, O(n log n) for Reed–Solomon; the list of all options
//! takes one `determines` for each set of at most k chunks.

use rand::{Rng, RngCore};
use striate_codec::lrc::for_each_subset;
use striate_codec::{ChunkSet, Code, CodecError};

/// A site as these options see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeState {
    /// Q_j: bytes queued before a request that arrives now. Finite and not negative.
    pub queue: f64,
    /// S_j: bytes served per second, or in any unit of time that all sites share. Above 0.
    pub rate: f64,
}

impl NodeState {
    /// Creates a node of a cluster in which all S_j are equal.
    pub fn of_queue(queue: f64) -> Self {
        Self { queue, rate: 1.0 }
    }

    /// Returns the time to serve a task of D = `bytes`: (Q_j + D) / S_j.
    pub fn latency(self, bytes: f64) -> f64 {
        (self.queue + bytes) / self.rate
    }

    /// Returns the marginal load of a task of D = `bytes`, D (Q_j + D/2) / S_j (Eq. 6).
    pub fn marginal_load(self, bytes: f64) -> f64 {
        bytes * (self.queue + bytes / 2.0) / self.rate
    }
}

/// The metric that judges an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionMetric {
    /// The latency of the longest task: problem (1) with the ℓ∞ norm, for one request.
    Latency,
    /// The sum of the marginal loads (Eq. 7): problem (1) with the ℓ2 norm, for one request.
    MarginalLoad,
}

impl OptionMetric {
    /// Returns the metric of an option that asks each of `nodes` for D = `bytes`.
    pub fn of(self, bytes: f64, nodes: impl Iterator<Item = NodeState>) -> f64 {
        match self {
            Self::Latency => nodes.map(|node| node.latency(bytes)).fold(0.0, f64::max),
            Self::MarginalLoad => nodes.map(|node| node.marginal_load(bytes)).sum(),
        }
    }
}

/// A wanted chunk, with the states of its stripe's sites.
#[derive(Clone, Copy, Debug)]
pub struct WantedChunk<'a> {
    /// The stripe's code.
    pub code: &'a Code,
    /// i: the chunk's index.
    pub index: usize,
    /// D: bytes of the chunk.
    pub bytes: f64,
    /// The site of each of the n chunks; `None` for an unavailable chunk or an unknown site.
    pub nodes: &'a [Option<NodeState>],
}

impl WantedChunk<'_> {
    /// Returns the option of least metric: {i}, unless a degraded read is less. Among degraded reads of equal latency
    /// it is the one of least marginal load. Exact for Reed–Solomon codes and for LRCs with at most two global parities
    /// ([`Code::cheapest_repair`]).
    ///
    /// # Errors
    /// [`CodecError::Insufficient`] if the chunks on known sites do not determine it.
    pub fn least_option(&self, metric: OptionMetric) -> Result<ChunkSet, CodecError> {
        let of_one = |node: NodeState| metric.of(self.bytes, std::iter::once(node));
        let Some(normal) = self.nodes[self.index].map(of_one) else { return self.least_degraded(metric) };
        let itself = std::iter::once(self.index).collect();
        // A degraded read is no less than its least task, so idle sites need no search.
        let others =
            (0..self.nodes.len()).filter(|&index| index != self.index).filter_map(|index| self.nodes[index]);
        if others.map(of_one).all(|other| other >= normal) {
            return Ok(itself);
        }
        match self.least_degraded(metric) {
            Ok(degraded) if self.value(metric, &degraded) < normal => Ok(degraded),
            _ => Ok(itself),
        }
    }

    /// Returns the metric of an option, whose sites must be known.
    pub fn value(&self, metric: OptionMetric, option: &ChunkSet) -> f64 {
        metric.of(self.bytes, option.iter().filter_map(|index| self.nodes[index]))
    }

    /// Returns the degraded read of least metric.
    ///
    /// # Errors
    /// [`CodecError::Insufficient`] if there is none.
    pub fn least_degraded(&self, metric: OptionMetric) -> Result<ChunkSet, CodecError> {
        let mut costs: Vec<Option<f64>> =
            self.nodes.iter().map(|node| Some((*node)?.marginal_load(self.bytes))).collect();
        costs[self.index] = None;
        if metric == OptionMetric::Latency {
            let soonest = self.soonest_determining();
            costs
                .iter_mut()
                .enumerate()
                .filter(|(index, _)| !soonest.contains(*index))
                .for_each(|(_, cost)| *cost = None);
        }
        let equation = self.code.cheapest_repair(self.index, &costs)?;
        Ok(equation.sources.iter().map(|(index, _)| *index).collect())
    }

    /// Returns the shortest prefix of the other chunks, in the order in which their tasks end, that determines this
    /// one. Every set that determines it has a task that ends no sooner than the last of these.
    fn soonest_determining(&self) -> ChunkSet {
        let latency = |index: usize| Some((self.nodes[index]?.latency(self.bytes), index));
        let mut order: Vec<(f64, usize)> =
            (0..self.nodes.len()).filter(|&index| index != self.index).filter_map(latency).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        determining_prefix(self.code, self.index, order.into_iter().map(|(_, index)| index))
    }
}

/// Returns the shortest prefix of `order` that determines `chunk`, or all of it if none does.
fn determining_prefix(code: &Code, chunk: usize, order: impl Iterator<Item = usize>) -> ChunkSet {
    let (mut prefix, wanted) = (ChunkSet::EMPTY, std::iter::once(chunk).collect());
    for index in order {
        prefix.insert(index);
        if code.determines(&prefix, &wanted) {
            break;
        }
    }
    prefix
}

/// Returns the rest of a chunk's local group, which determines it; `None` for a code without local groups and for a
/// global parity.
pub fn local_group(code: &Code, chunk: usize) -> Option<ChunkSet> {
    let local = code.local_group_of(chunk)?;
    let members = code.local_groups()[local].clone().chain([code.k() + local]);
    Some(members.filter(|&member| member != chunk).collect())
}

/// Returns the one degraded read that the paper's sampled policies consider (§3.1): the local group of an LRC;
/// otherwise, or if a member of the group is unavailable, a random minimal set of `available` chunks that determines
/// `chunk`. `None` if they do not determine it.
pub fn one_degraded_option(
    code: &Code,
    chunk: usize,
    available: &ChunkSet,
    rng: &mut dyn RngCore,
) -> Option<ChunkSet> {
    if let Some(group) = local_group(code, chunk).filter(|group| group.difference(available).is_empty()) {
        return Some(group);
    }
    let mut order: Vec<usize> = available.iter().filter(|&index| index != chunk).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, rng.random_range(0..=last));
    }
    let prefix: Vec<usize> = determining_prefix(code, chunk, order.into_iter()).iter().collect();
    let plan = code.decode_plan(&prefix, &[chunk]).ok()?;
    Some(plan.sources().iter().copied().collect())
}

/// Returns all degraded reads, C_i: the minimal sets of `available` chunks that determine `chunk`, in ascending order
/// of size. A Reed–Solomon code has C(n−1, k) of them, so this is for tests and codes of some 16 chunks.
pub fn degraded_options(code: &Code, chunk: usize, available: &ChunkSet) -> Vec<ChunkSet> {
    let others: Vec<usize> = available.iter().filter(|&index| index != chunk).collect();
    let wanted: ChunkSet = std::iter::once(chunk).collect();
    let mut options: Vec<ChunkSet> = Vec::new();
    for size in 1..=code.k() {
        for_each_subset(others.len(), size, &mut |places| {
            let set: ChunkSet = places.iter().map(|&place| others[place]).collect();
            let has_part = options.iter().any(|option| option.difference(&set).is_empty());
            if !has_part && code.determines(&set, &wanted) {
                options.push(set);
            }
        });
    }
    options
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    const CODES: [&str; 6] = ["rs(6,3)", "rs(4,2)", "lrc(6,2,2)", "lrc(4,2,1)", "lrc(6,3,2)", "replica(3)"];

    fn code(text: &str) -> Code {
        text.parse().expect("a code")
    }

    fn set(indices: &[usize]) -> ChunkSet {
        indices.iter().copied().collect()
    }

    /// ½ Σ (L_j + Q_j)² / S_j over all sites of the stripe after `option` requested D bytes from each of its sites: the
    /// objective of (1).
    fn l2_after(option: &ChunkSet, bytes: f64, nodes: &[NodeState]) -> f64 {
        let load = |index: usize| if option.contains(index) { bytes } else { 0.0 };
        nodes
            .iter()
            .enumerate()
            .map(|(index, node)| (load(index) + node.queue).powi(2) / node.rate / 2.0)
            .sum()
    }

    fn linf_of(option: &ChunkSet, bytes: f64, nodes: &[NodeState]) -> f64 {
        option.iter().map(|index| (nodes[index].queue + bytes) / nodes[index].rate).fold(0.0, f64::max)
    }

    /// Figure 1: S1 is loaded, and the others of its group (S2, S3, L1) are less so. The traditional scheme still asks
    /// S1.
    #[test]
    fn figure_1_a_loaded_node_is_relieved_by_its_local_group() {
        let code = code("lrc(6,2,2)");
        let option = |s1: f64, metric| {
            let mut queues = [40.0; 10];
            [queues[0], queues[1], queues[2], queues[6]] = [s1, 2.0, 3.0, 1.0];
            let nodes = queues.map(|queue| Some(NodeState::of_queue(queue)));
            WantedChunk { code: &code, index: 0, bytes: 1.0, nodes: &nodes }.least_option(metric).unwrap()
        };
        for metric in [OptionMetric::Latency, OptionMetric::MarginalLoad] {
            assert_eq!(option(10.0, metric), set(&[1, 2, 6]), "{metric:?}");
            assert_eq!(option(3.0, metric), set(&[0]), "{metric:?}: S3 is no sooner");
        }
        // Q1 + ½ against (2 + ½) + (3 + ½) + (1 + ½): the load of three tasks is weighed against that of one.
        assert_eq!(option(6.9, OptionMetric::MarginalLoad), set(&[0]));
        assert_eq!(option(7.1, OptionMetric::MarginalLoad), set(&[1, 2, 6]));
        assert_eq!(option(6.9, OptionMetric::Latency), set(&[1, 2, 6]));
    }

    #[test]
    fn larger_objects_are_less_likely_to_be_read_degraded() {
        let code = code("rs(6,3)");
        let mut nodes = [Some(NodeState::of_queue(1.0)); 9];
        nodes[2] = Some(NodeState::of_queue(20.0));
        let option = |bytes| {
            let wanted = WantedChunk { code: &code, index: 2, bytes, nodes: &nodes };
            wanted.least_option(OptionMetric::MarginalLoad).unwrap()
        };
        assert_eq!(option(5.0).len(), 6);
        assert_eq!(option(6.0), set(&[2]));
    }

    #[test]
    fn slow_sites_count_by_their_rates() {
        let code = code("rs(2,1)");
        let mut nodes = [5.0, 4.0, 4.0].map(|queue| Some(NodeState { queue, rate: 1.0 }));
        let latency = |nodes: &[Option<NodeState>]| {
            WantedChunk { code: &code, index: 0, bytes: 1.0, nodes }
                .least_option(OptionMetric::Latency)
                .unwrap()
        };
        assert_eq!(latency(&nodes), set(&[1, 2]));
        nodes[1] = Some(NodeState { queue: 4.0, rate: 0.5 });
        assert_eq!(latency(&nodes), set(&[0]));
    }

    /// §2.1, §2.5: the sets that serve a degraded read.
    #[test]
    fn the_options_are_those_of_the_paper() {
        let all = |code: &Code| degraded_options(code, 0, &ChunkSet::first(code.n()));
        let rs = all(&code("rs(6,3)"));
        assert_eq!(rs.len(), 28);
        assert!(rs.iter().all(|option| option.len() == 6 && !option.contains(0)));
        let lrc = code("lrc(6,2,2)");
        let options = all(&lrc);
        assert_eq!(options[0], set(&[1, 2, 6]));
        assert_eq!(local_group(&lrc, 0), Some(options[0]));
        assert_eq!(local_group(&lrc, 7), Some(set(&[3, 4, 5])), "a local parity's");
        assert_eq!(local_group(&lrc, 8), None, "a global parity has none");
        assert!(options[1..].iter().all(|option| option.contains(8) || option.contains(9)), "{options:?}");
        assert_eq!(local_group(&code("rs(6,3)"), 0), None);
    }

    #[test]
    fn the_one_option_is_the_local_group_or_a_random_set() {
        let mut rng = SmallRng::seed_from_u64(1);
        let lrc = code("lrc(6,2,2)");
        let all = ChunkSet::first(10);
        assert_eq!(one_degraded_option(&lrc, 4, &all, &mut rng), Some(set(&[3, 5, 7])));
        let without_a_member = all.difference(&set(&[5]));
        let option = one_degraded_option(&lrc, 4, &without_a_member, &mut rng).unwrap();
        assert!(!option.contains(5) && lrc.determines(&option, &set(&[4])));
        let rs = code("rs(6,3)");
        let mut counts = [0; 9];
        for _ in 0..4_000 {
            let option = one_degraded_option(&rs, 4, &ChunkSet::first(9), &mut rng).unwrap();
            assert_eq!(option.len(), 6);
            option.iter().for_each(|index| counts[index] += 1);
        }
        // 3,000 are expected, with a standard deviation of 27.
        assert_eq!(counts[4], 0);
        assert!(
            counts.iter().enumerate().all(|(index, count)| index == 4 || (2_850..3_150).contains(count)),
            "{counts:?}"
        );
        assert_eq!(one_degraded_option(&rs, 0, &ChunkSet::first(6), &mut rng), None);
    }

    proptest! {
        /// §2.4: "an optimal solution to problem (1) for a single request". Evaluates the objective itself for every
        /// option.
        #[test]
        fn least_marginal_load_first_solves_problem_1_for_one_request(
            which in 0usize..6, index in 0usize..6, bytes in 0.1f64..20.0,
            queues in proptest::collection::vec(0.0f64..20.0, 11), rates in proptest::collection::vec(0.2f64..5.0, 11),
            is_homogeneous: bool, down: u16,
        ) {
            let code = code(CODES[which]);
            let index = index % code.k();
            let state = |j: usize| NodeState { queue: queues[j], rate: if is_homogeneous { 1.0 } else { rates[j] } };
            let states: Vec<NodeState> = (0..code.n()).map(state).collect();
            let nodes: Vec<Option<NodeState>> =
                (0..code.n()).map(|j| (down >> j & 3 != 3).then_some(states[j])).collect();
            let available: ChunkSet = (0..code.n()).filter(|&j| nodes[j].is_some()).collect();
            let mut options = degraded_options(&code, index, &available);
            options.extend(available.contains(index).then(|| set(&[index])));
            let wanted = WantedChunk { code: &code, index, bytes, nodes: &nodes };
            if options.is_empty() {
                prop_assert!(wanted.least_option(OptionMetric::MarginalLoad).is_err());
                prop_assert!(wanted.least_option(OptionMetric::Latency).is_err());
                return Ok(());
            }
            let least = |value: &dyn Fn(&ChunkSet) -> f64| options.iter().map(value).fold(f64::INFINITY, f64::min);
            let chosen = wanted.least_option(OptionMetric::MarginalLoad).unwrap();
            let best = least(&|option| l2_after(option, bytes, &states));
            prop_assert!(options.contains(&chosen));
            prop_assert!(l2_after(&chosen, bytes, &states) <= best * (1.0 + 1e-12));
            // Eq. 6 and 7 give its growth.
            let growth = l2_after(&chosen, bytes, &states) - l2_after(&ChunkSet::EMPTY, bytes, &states);
            prop_assert!((growth - wanted.value(OptionMetric::MarginalLoad, &chosen)).abs() < 1e-9 * (1.0 + best));
            // Least latency first solves the same problem with the ℓ∞ norm over the sites that serve the request.
            let chosen = wanted.least_option(OptionMetric::Latency).unwrap();
            let soonest = least(&|option| linf_of(option, bytes, &states));
            prop_assert!(options.contains(&chosen));
            prop_assert!(linf_of(&chosen, bytes, &states) <= soonest * (1.0 + 1e-12));
        }
    }
}
