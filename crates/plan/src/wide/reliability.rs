//! Mean time to data loss (MTTDL) of a stripe, by a Markov chain over its failed nodes (ECWide §3.6).
//!
//! In state i, i of n nodes have failed. Nodes fail independently at rate λ: i → i + 1 at (n − i)λ. One failed node is
//! rebuilt at μ = ε(N − 1)B/(C·S): the N − 1 others share C·S bytes of repair traffic, each with a share ε of its
//! bandwidth B. If several have failed, repair is urgent and takes the time T to start: μ' = 1/T from state to state.
//! Data is lost at f + 1 failures.
//!
//! [`NeglectedEffects`] drops two of the paper's assumptions: a share of the patterns of more than f failures decodes,
//! and racks fail with all their nodes. The failing nodes and racks are random: the state only counts them.
//!
//! MTTDLs reach 10¹⁵ years and rates differ by ten orders of magnitude, so solving the linear equations by subtraction
//! would lose all digits. States are eliminated one by one as in Grassmann, Taksar and Heyman (1985), which only adds,
//! multiplies and divides positive numbers. Cost: O(states³), for f + 1 states and those beyond f that decode.

use crate::wide::geometry::WideGeometry;
use crate::wide::trade_off::Scheme;

/// Seconds in a year of 365 days.
const YEAR_S: f64 = 365.0 * 86_400.0;

/// Parameters of nodes and network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hardware {
    /// N: nodes in the cluster.
    pub nodes: usize,
    /// S: bytes stored per node.
    pub capacity_bytes: f64,
    /// B: bytes per second that a node sends.
    pub bandwidth_bytes_per_s: f64,
    /// ε: share of the bandwidth available to repair.
    pub repair_share: f64,
    /// T: seconds until several failures are noticed and their urgent repair ends.
    pub urgent_repair_s: f64,
    /// 1/λ: mean years until a node fails.
    pub node_mttf_years: f64,
}

impl Default for Hardware {
    /// The paper's parameters: N = 400, S = 16 TiB, B = 1 Gb/s, ε = 0.1, T = 30 minutes, 1/λ = 4 years.
    fn default() -> Self {
        Self {
            nodes: 400,
            capacity_bytes: 16.0 * (1u64 << 40) as f64,
            bandwidth_bytes_per_s: 1e9 / 8.0,
            repair_share: 0.1,
            urgent_repair_s: 1_800.0,
            node_mttf_years: 4.0,
        }
    }
}

/// The properties of a code that determine its MTTDL.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StripeModel {
    /// n: chunks of a stripe.
    pub chunks: usize,
    /// f: number of arbitrary failures that lose nothing.
    pub tolerance: usize,
    /// C: mean number of chunks sent across racks to repair one.
    pub repair_chunks: f64,
    /// Racks of a stripe.
    pub racks: usize,
    /// Maximum number of chunks in a rack.
    pub rack_limit: usize,
}

impl From<&Scheme> for StripeModel {
    fn from(scheme: &Scheme) -> Self {
        Self {
            chunks: scheme.chunks(),
            tolerance: scheme.tolerance(),
            repair_chunks: scheme.mean_repair_chunks(),
            racks: scheme.racks(),
            rack_limit: scheme.rack_limit(),
        }
    }
}

/// Effects that the paper neglects.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NeglectedEffects {
    /// Failures of one rack per year, each of which destroys its nodes. The repair of its contents is urgent.
    pub rack_failures_per_year: f64,
    /// Shares of the patterns of f + 1, f + 2, … failures that decode; none decodes beyond the list. Shares decrease,
    /// because every part of a decodable pattern decodes.
    pub decodable: Vec<f64>,
    /// Shares of the decodable patterns among those that contain a whole rack. They are smaller where a rack holds f
    /// chunks of one local group, because its loss uses up all global parities.
    pub decodable_with_rack: Vec<f64>,
}

impl NeglectedEffects {
    /// Returns the shares of a code that decodes every pattern that any code with these local groups could decode. They
    /// are an upper bound for the code itself, whose shares can be counted or sampled from its matrix. MDS codes decode
    /// nothing beyond f.
    pub fn at_most(scheme: &Scheme, rack_failures_per_year: f64) -> Self {
        let groups = scheme.local_groups();
        let (f, parities) = (scheme.tolerance(), scheme.chunks() - scheme.data());
        if groups.is_empty() {
            return Self { rack_failures_per_year, ..Self::default() };
        }
        let random = |losses| most_decodable(&groups, f - 1, losses);
        let with_rack = |losses| match scheme {
            Scheme::Combined(geometry) => most_decodable_with_rack(geometry, losses),
            _ => random(losses),
        };
        Self {
            rack_failures_per_year,
            decodable: (f + 1..=parities).map(random).collect(),
            decodable_with_rack: (f + 1..=parities).map(with_rack).collect(),
        }
    }
}

impl StripeModel {
    /// Returns the mean years until data is lost, by the paper's model.
    pub fn mttdl_years(&self, hardware: &Hardware) -> f64 {
        self.relaxed_mttdl_years(hardware, &NeglectedEffects::default())
    }

    /// Returns the mean years until data is lost if racks fail too and some patterns of more than f failures decode.
    pub fn relaxed_mttdl_years(&self, hardware: &Hardware, relaxed: &NeglectedEffects) -> f64 {
        let beyond = relaxed.decodable.len().max(relaxed.decodable_with_rack.len());
        let mut chain = Chain::new(self.tolerance + 1 + beyond);
        let node_rate = 1.0 / (hardware.node_mttf_years * YEAR_S);
        let rack_rate = self.racks as f64 * relaxed.rack_failures_per_year / YEAR_S;
        for failed in 0..chain.states() {
            let before = self.share(failed, &relaxed.decodable);
            let survived = |share: f64| if before > 0.0 { (share / before).min(1.0) } else { 0.0 };
            let of_node = survived(self.share(failed + 1, &relaxed.decodable));
            chain.fail(failed, 1, (self.chunks - failed) as f64 * node_rate, of_node);
            for (lost, chance) in self.newly_failed(failed).into_iter().enumerate().skip(1) {
                let of_rack = survived(self.share(failed + lost, &relaxed.decodable_with_rack));
                chain.fail(failed, lost, rack_rate * chance, of_rack);
            }
            if failed > 0 {
                chain.add(failed, failed - 1, self.repair_rate(hardware, failed));
            }
        }
        chain.time_to_absorption() / YEAR_S
    }

    /// Returns μ or μ', depending on the number of failed nodes.
    fn repair_rate(&self, hardware: &Hardware, failed: usize) -> f64 {
        let Hardware { nodes, capacity_bytes, bandwidth_bytes_per_s, repair_share, urgent_repair_s, .. } =
            *hardware;
        match failed {
            1 => {
                let bytes_per_s = repair_share * (nodes.max(2) - 1) as f64 * bandwidth_bytes_per_s;
                bytes_per_s / (self.repair_chunks * capacity_bytes)
            }
            _ => 1.0 / urgent_repair_s,
        }
    }

    /// Returns the share of patterns of this many failures that decode; `beyond` holds the shares beyond f.
    fn share(&self, failed: usize, beyond: &[f64]) -> f64 {
        match failed.checked_sub(self.tolerance + 1) {
            None => 1.0,
            Some(index) => beyond.get(index).copied().unwrap_or(0.0),
        }
    }

    /// Returns the probabilities that the failure of a full rack takes 0, 1, … working nodes when `failed` random ones
    /// of the n have failed.
    fn newly_failed(&self, failed: usize) -> Vec<f64> {
        let limit = self.rack_limit.min(self.chunks);
        let ways = |already: usize| {
            choose(limit, already) * choose(self.chunks - limit, failed - already)
                / choose(self.chunks, failed)
        };
        let mut chances = vec![0.0; limit + 1];
        (0..=limit.min(failed)).for_each(|already| chances[limit - already] += ways(already));
        chances
    }
}

/// Returns the share of the patterns of `losses` lost chunks that a maximally recoverable code decodes: a local parity
/// repairs one loss in its group, and the global parities repair the rest. `groups` counts the chunks of each local
/// group, parity included.
pub(crate) fn most_decodable(groups: &[usize], globals: usize, losses: usize) -> f64 {
    most_decodable_beside(groups, globals, &vec![0; groups.len() + 1], losses)
}

/// As [`most_decodable`], for patterns that contain all chunks of a random rack.
pub(crate) fn most_decodable_with_rack(geometry: &WideGeometry, losses: usize) -> f64 {
    let groups: Vec<usize> =
        (0..geometry.groups()).map(|group| geometry.group_data(group).len() + 1).collect();
    let shares = geometry.parts().iter().map(|part| {
        let mut lost = vec![0; groups.len() + 1];
        part.group.into_iter().for_each(|group| lost[group] = part.data + usize::from(part.has_local));
        lost[groups.len()] = part.globals;
        most_decodable_beside(&groups, geometry.f() - 1, &lost, losses.saturating_sub(part.chunks()))
    });
    shares.sum::<f64>() / geometry.z() as f64
}

/// Returns the share for `more` further losses, where `lost` counts the chunks lost in each group and of the global
/// parities.
fn most_decodable_beside(groups: &[usize], globals: usize, lost: &[usize], more: usize) -> f64 {
    // ways[beyond][lost]: patterns of `lost` further chunks that need `beyond` of the global parities.
    let none = vec![vec![0.0; more + 1]; globals + 1];
    let mut ways = none.clone();
    ways[0][0] = 1.0;
    let parts = groups.iter().map(|&size| (size, 1)).chain([(globals, 0)]);
    for ((size, local), &already) in parts.zip(lost) {
        let mut next = none.clone();
        for (beyond, of_beyond) in ways.iter().enumerate() {
            for (before, count) in of_beyond.iter().enumerate() {
                for here in 0..=(size - already).min(more - before) {
                    if let Some(of) = next.get_mut(beyond + (already + here).saturating_sub(local)) {
                        of[before + here] += count * choose(size - already, here);
                    }
                }
            }
        }
        ways = next;
    }
    let left = groups.iter().sum::<usize>() + globals - lost.iter().sum::<usize>();
    let decodable: f64 = ways.iter().map(|of| of[more]).sum();
    if more > left { 0.0 } else { decodable / choose(left, more) }
}

/// Returns the number of ways to choose k of n.
fn choose(n: usize, k: usize) -> f64 {
    if k > n {
        return 0.0;
    }
    (0..k).map(|index| (n - index) as f64 / (index + 1) as f64).product()
}

/// A Markov chain in continuous time that starts in state 0 and is absorbed eventually.
struct Chain {
    /// rates[from][to].
    rates: Vec<Vec<f64>>,
    /// Rates of absorption.
    ends: Vec<f64>,
}

impl Chain {
    fn new(states: usize) -> Self {
        Self { rates: vec![vec![0.0; states]; states], ends: vec![0.0; states] }
    }

    fn states(&self) -> usize {
        self.ends.len()
    }

    fn add(&mut self, from: usize, to: usize, rate: f64) {
        self.rates[from][to] += rate;
    }

    fn absorb(&mut self, from: usize, rate: f64) {
        self.ends[from] += rate;
    }

    /// Adds `lost` more failures at `rate`: the share `survived` leads to another state, and the rest is absorbed.
    fn fail(&mut self, failed: usize, lost: usize, rate: f64, survived: f64) {
        if survived > 0.0 {
            self.add(failed, failed + lost, rate * survived);
        }
        self.absorb(failed, rate * (1.0 - survived));
    }

    /// Returns the mean time to absorption. Repeatedly eliminates the last state: transitions to it are redirected to
    /// its successors, and the time spent in it is added to that of its predecessors.
    fn time_to_absorption(mut self) -> f64 {
        let mut times = vec![1.0; self.states()];
        for last in (1..self.states()).rev() {
            let leaving = self.rates[last][..last].iter().sum::<f64>() + self.ends[last];
            let onward = self.rates[last].clone();
            for from in 0..last {
                let share = self.rates[from][last] / leaving;
                // A transition back to `from` is no step at all.
                for to in (0..last).filter(|to| *to != from) {
                    self.rates[from][to] += share * onward[to];
                }
                self.ends[from] += share * self.ends[last];
                times[from] += share * times[last];
            }
        }
        times[0] / self.ends[0]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use striate_codec::{CodeSpec, lrc::recoverability};

    use super::*;

    /// The six codes of §3.6. All of them lose data at five failures here, although (16,12,6) Azure-LRC tolerates three
    /// by Table 3.
    fn codes() -> [StripeModel; 6] {
        let combined = WideGeometry::new(CodeSpec::Wide { data: 128, locality: 27, tolerance: 4 }).unwrap();
        let schemes = [
            Scheme::Rs { data: 12, tolerance: 4 },
            Scheme::Lrc { data: 12, locality: 6, tolerance: 3 },
            Scheme::Rs { data: 128, tolerance: 4 },
            Scheme::Topology { data: 128, tolerance: 4 },
            Scheme::Lrc { data: 128, locality: 15, tolerance: 4 },
            Scheme::Combined(combined),
        ];
        schemes.map(|scheme| StripeModel { tolerance: 4, ..StripeModel::from(&scheme) })
    }

    fn hardware(mttf_years: f64, gbit_per_s: f64) -> Hardware {
        Hardware {
            node_mttf_years: mttf_years,
            bandwidth_bytes_per_s: gbit_per_s * 1e9 / 8.0,
            ..Hardware::default()
        }
    }

    #[test]
    fn all_cells_of_tables_5_and_6_come_out() {
        let table_5 = [2.0, 4.0, 10.0].map(|years| hardware(years, 1.0));
        let table_6 = [0.5, 1.0, 10.0].map(|bandwidth| hardware(4.0, bandwidth));
        let cells = [
            ([2.47e11, 7.87e12, 7.66e14], [3.96e12, 7.87e12, 7.83e13]),
            ([4.38e11, 1.40e13, 1.36e15], [7.00e12, 1.40e13, 1.39e14]),
            ([6.33e5, 1.53e7, 1.20e9], [1.01e7, 1.53e7, 1.09e8]),
            ([1.61e6, 4.64e7, 4.24e9], [2.57e7, 4.64e7, 4.20e8]),
            ([2.06e6, 6.20e7, 5.82e9], [3.29e7, 6.20e7, 5.85e8]),
            ([5.82e6, 1.82e8, 1.75e10], [9.30e7, 1.82e8, 1.78e9]),
        ];
        for (code, (of_5, of_6)) in codes().into_iter().zip(cells) {
            let expected = of_5.iter().chain(&of_6);
            for (hardware, expected) in table_5.iter().chain(&table_6).zip(expected) {
                let years = code.mttdl_years(hardware);
                assert!((years / expected - 1.0).abs() < 0.005, "{code:?}: {years:e}, expected {expected:e}");
            }
        }
    }

    #[test]
    fn combined_locality_gains_what_the_paper_says() {
        let years = codes().map(|code| code.mttdl_years(&Hardware::default()));
        // The paper's gain is the quotient minus one.
        for (other, gain) in [(2, 10.90), (3, 2.92), (4, 1.94)] {
            let found = years[5] / years[other] - 1.0;
            assert!((found / gain - 1.0).abs() < 0.005, "{found}, expected {gain}");
        }
    }

    proptest! {
        #[test]
        fn a_chain_that_goes_step_by_step_takes_as_long_as_its_recursion(
            ups in proptest::collection::vec(1e-9f64..1.0, 1..8), downs in proptest::collection::vec(1e-9f64..1.0, 8),
        ) {
            let mut chain = Chain::new(ups.len());
            let (mut total, mut step) = (0.0, 0.0);
            for (state, &up) in ups.iter().enumerate() {
                let down = if state > 0 { downs[state] } else { 0.0 };
                step = 1.0 / up + down / up * step;
                total += step;
                match state + 1 == ups.len() {
                    true => chain.absorb(state, up),
                    false => chain.add(state, state + 1, up),
                }
                if state > 0 {
                    chain.add(state, state - 1, down);
                }
            }
            let found = chain.time_to_absorption();
            prop_assert!((found / total - 1.0).abs() < 1e-9, "{found} {total}");
        }

        #[test]
        fn decoding_beyond_f_helps_and_failing_racks_harm(
            share in 0.01f64..1.0, rate in 1e-6f64..1.0, which in 0usize..6,
        ) {
            let (code, hardware) = (codes()[which], Hardware::default());
            let relaxed = |decodable: Vec<f64>, rate| {
                code.relaxed_mttdl_years(&hardware, &NeglectedEffects { rack_failures_per_year: rate, decodable, ..NeglectedEffects::default() })
            };
            let strict = code.mttdl_years(&hardware);
            prop_assert!(relaxed(vec![share], 0.0) > strict);
            prop_assert!(relaxed(vec![share, share / 2.0], 0.0) > relaxed(vec![share], 0.0));
            prop_assert!(relaxed(vec![], rate) < strict);
            prop_assert!(relaxed(vec![], rate) < relaxed(vec![share], rate));
        }
    }

    #[test]
    fn a_rack_of_one_node_fails_as_that_node_does() {
        let code = StripeModel::from(&Scheme::Rs { data: 12, tolerance: 4 });
        let relaxed = NeglectedEffects { rack_failures_per_year: 0.25, ..NeglectedEffects::default() };
        let both = code.relaxed_mttdl_years(&hardware(4.0, 1.0), &relaxed);
        let twice = code.mttdl_years(&hardware(2.0, 1.0));
        assert!((both / twice - 1.0).abs() < 1e-3, "{both:e} {twice:e}");
    }

    #[test]
    fn nothing_decodable_and_no_failing_rack_is_the_papers_chain_and_all_decodable_is_one_more_loss_tolerated()
     {
        for code in codes() {
            let hardware = Hardware::default();
            let relaxed = |decodable| NeglectedEffects { decodable, ..NeglectedEffects::default() };
            let none = code.relaxed_mttdl_years(&hardware, &relaxed(vec![0.0, 0.0]));
            let all = code.relaxed_mttdl_years(&hardware, &relaxed(vec![1.0]));
            let more = StripeModel { tolerance: code.tolerance + 1, ..code }.mttdl_years(&hardware);
            assert!((none / code.mttdl_years(&hardware) - 1.0).abs() < 1e-9);
            assert!((all / more - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn the_share_that_can_decode_is_that_which_counting_finds() {
        for (k, l, g) in [(4usize, 2usize, 1usize), (4, 2, 2), (6, 2, 2), (6, 3, 1)] {
            let code: striate_codec::Code = format!("lrc({k},{l},{g})").parse().unwrap();
            let counted = recoverability(&code);
            let all = choose(k + l + g, l + g);
            let share = most_decodable(&vec![k / l + 1; l], g, l + g);
            assert!((share - counted.possible as f64 / all).abs() < 1e-12, "lrc({k},{l},{g}): {share}");
            assert_eq!(most_decodable(&vec![k / l + 1; l], g, g + 1), 1.0);
        }
        // Of (136,128,27), most losses of five decode, and none of more than there are parities.
        assert_eq!(most_decodable(&[28, 28, 28, 28, 21], 3, 9), 0.0);
        let five = most_decodable(&[28, 28, 28, 28, 21], 3, 5);
        assert!((0.9..1.0).contains(&five), "{five}");
    }

    #[test]
    fn a_rack_and_one_more_chunk_decode_unless_the_rack_took_all_that_could_repair_it() {
        let geometry = WideGeometry::new(CodeSpec::Wide { data: 128, locality: 27, tolerance: 4 }).unwrap();
        assert_eq!(most_decodable_with_rack(&geometry, 4), 1.0);
        // The loss of a rack of a group uses up its local parity and all global ones, so the fifth loss must be in
        // another group. The loss of the rack of the globals and the fifth local parity leaves the local parities of
        // the other four groups.
        let of_four = 28.0 * (132.0 - 24.0 - 3.0) / 132.0;
        let of_fifth = 5.0 * (132.0 - 17.0 - 3.0) / 132.0;
        let of_globals = (132.0 - 20.0) / 132.0;
        let expected = (of_four + of_fifth + of_globals) / 34.0;
        let found = most_decodable_with_rack(&geometry, 5);
        assert!((found - expected).abs() < 1e-9, "{found}, expected {expected}");
        assert!(found < most_decodable(&[28, 28, 28, 28, 21], 3, 5));
    }

    #[test]
    fn local_groups_are_what_survives_a_rack_and_a_node() {
        let racks_fail = |scheme: &Scheme| {
            let relaxed = NeglectedEffects::at_most(scheme, 0.05);
            StripeModel::from(scheme).relaxed_mttdl_years(&Hardware::default(), &relaxed)
        };
        let geometry = WideGeometry::new(CodeSpec::Wide { data: 128, locality: 27, tolerance: 4 }).unwrap();
        let combined = Scheme::Combined(geometry);
        let strict = NeglectedEffects { rack_failures_per_year: 0.05, ..NeglectedEffects::default() };
        let without = StripeModel::from(&combined).relaxed_mttdl_years(&Hardware::default(), &strict);
        assert!(racks_fail(&combined) > 3.0 * without);
        assert!(without > racks_fail(&Scheme::Topology { data: 128, tolerance: 4 }));
    }
}
