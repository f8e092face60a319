//! The repair of one chunk with the fewest sums across racks (ECWide §3.4, §4.1).
//!
//! A rack adds up its terms of an equation and sends one sum, however many terms it has. So the cost of an equation is
//! the number of racks that hold its sources, other than the rack where the chunk is made. [`Code::cheapest_repair`]
//! instead minimises the sum of the sources' costs. Among equations with as few racks, the one with the smallest sum is
//! taken.
//!
//! | scheme | equation | sums across racks |
//! |--|--|--|
//! | CL: an LRC with its groups in racks | the local group | (r + 1)/f − 1 |
//! | LRC: each chunk in a rack of its own | the local group | r |
//! | TL: Reed–Solomon in racks | k chunks in the fewest other racks | ⌈(k − its own rack's)/f⌉ |
//! | a global parity | all data, or an equivalent set | the racks that hold data |
//!
//! # Algorithm
//! Racks are left out, one after the other, as long as the rest determines the chunk. Starting with the racks that hold
//! the fewest chunks is optimal for MDS codes, where only the number counts. For codes with local groups, a second
//! attempt first leaves out the racks outside the chunk's group and ends at the group; the better of the two is taken.
//! That is optimal if groups are placed by [`crate::PlacementRule`] (the tests compare with all sets of racks). If they
//! are not, it may take one rack too many.
//!
//! Cost: two `determines` calls for each rack, and one [`Code::cheapest_repair`] for each attempt.

use std::collections::{BTreeMap, BTreeSet};

use striate_codec::{ChunkSet, Code, CodecError, RepairEquation};
use striate_core::RackId;

/// An equation for a lost chunk, and the number of sums it sends across racks.
#[derive(Clone, Debug, PartialEq)]
pub struct RackRepair {
    /// The equation. Its cost is the sum of its sources' costs.
    pub equation: RepairEquation,
    /// Number of racks, other than the chunk's new one, that send a sum.
    pub sums_across_racks: usize,
}

/// Returns the equation for chunk `lost` with the fewest sums across racks, made at a site in the rack `home_rack`.
/// `costs` holds the cost of reading each of the n chunks, in any unit, and `None` for an unreadable chunk; `racks`
/// holds the rack of each chunk.
///
/// # Errors
/// [`CodecError`] if the readable chunks do not determine it, or if `costs` or `racks` do not fit the code.
pub fn repair_by_racks(
    code: &Code,
    lost: usize,
    costs: &[Option<f64>],
    racks: &[&RackId],
    home_rack: &RackId,
) -> Result<RackRepair, CodecError> {
    let cheapest = code.cheapest_repair(lost, costs)?;
    if racks.len() != code.n() {
        return Err(CodecError::ChunkCount { what: "racks", expected: code.n(), actual: racks.len() });
    }
    let search = Search { code, lost, costs, racks, home_rack };
    let mut best = search.judge(cheapest);
    for order in search.orders() {
        let repair = search.judge(code.cheapest_repair(lost, &search.least_racks(&order))?);
        if (repair.sums_across_racks, repair.equation.cost) < (best.sums_across_racks, best.equation.cost) {
            best = repair;
        }
    }
    Ok(best)
}

struct Search<'a> {
    code: &'a Code,
    lost: usize,
    costs: &'a [Option<f64>],
    racks: &'a [&'a RackId],
    home_rack: &'a RackId,
}

impl<'a> Search<'a> {
    fn judge(&self, equation: RepairEquation) -> RackRepair {
        let source_racks: BTreeSet<&RackId> =
            equation.sources.iter().map(|&(source, _)| self.racks[source]).collect();
        let sums_across_racks = source_racks.into_iter().filter(|rack| *rack != self.home_rack).count();
        RackRepair { equation, sums_across_racks }
    }

    /// Returns whether a chunk can be read.
    fn is_source(&self, chunk: usize) -> bool {
        chunk != self.lost && self.costs[chunk].is_some()
    }

    /// Returns the orders in which to try leaving out the other racks with sources.
    fn orders(&self) -> Vec<Vec<&'a RackId>> {
        let mut chunks_in: BTreeMap<&RackId, usize> = BTreeMap::new();
        let sources = (0..self.code.n()).filter(|&chunk| self.is_source(chunk));
        sources.for_each(|chunk| *chunks_in.entry(self.racks[chunk]).or_default() += 1);
        chunks_in.remove(self.home_rack);
        let mut by_chunks: Vec<&RackId> = chunks_in.keys().copied().collect();
        by_chunks.sort_by_key(|rack| chunks_in[rack]);
        let Some(group) = self.code.local_group_of(self.lost) else { return vec![by_chunks] };
        let is_of_group = |chunk: usize| self.code.local_group_of(chunk) == Some(group);
        let group_racks: BTreeSet<&RackId> =
            (0..self.code.n()).filter(|&chunk| is_of_group(chunk)).map(|chunk| self.racks[chunk]).collect();
        let mut outside_first = by_chunks.clone();
        outside_first.sort_by_key(|rack| group_racks.contains(rack));
        vec![by_chunks, outside_first]
    }

    /// Returns the costs of the chunks in the racks that remain when racks are left out in this order while the rest
    /// still determines the lost chunk.
    fn least_racks(&self, order: &[&RackId]) -> Vec<Option<f64>> {
        let mut costs = self.costs.to_vec();
        let wanted: ChunkSet = std::iter::once(self.lost).collect();
        let mut sources: ChunkSet = (0..self.code.n()).filter(|&chunk| self.is_source(chunk)).collect();
        for &rack in order {
            let without: ChunkSet = sources.iter().filter(|&chunk| self.racks[chunk] != rack).collect();
            if self.code.determines(&without, &wanted) {
                sources = without;
            }
        }
        costs
            .iter_mut()
            .enumerate()
            .filter(|(chunk, _)| !sources.contains(*chunk))
            .for_each(|(_, cost)| *cost = None);
        costs
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    fn rack_ids(count: usize) -> Vec<RackId> {
        (0..count).map(|rack| RackId(format!("rack{rack:02}"))).collect()
    }

    /// Returns the sums across racks to repair each chunk in its own rack from the others; chunk i is in rack
    /// `rack_of[i]`.
    fn sums(code: &str, rack_of: &[usize]) -> Vec<usize> {
        let code: Code = code.parse().unwrap();
        let ids = rack_ids(code.n());
        let racks: Vec<&RackId> = rack_of.iter().map(|&rack| &ids[rack]).collect();
        let costs = vec![Some(1.0); code.n()];
        let of = |lost: usize| {
            repair_by_racks(&code, lost, &costs, &racks, racks[lost]).unwrap().sums_across_racks
        };
        (0..code.n()).map(of).collect()
    }

    /// Places each group of a wide code, local parity included, in racks of its own, f chunks per rack. The global
    /// parities join the last rack if they fit, and get another one otherwise.
    fn combined_locality(code: &str) -> Vec<usize> {
        let code: Code = code.parse().unwrap();
        let (k, f) = (code.k(), code.tolerance());
        let mut rack_of = vec![0; code.n()];
        let (mut rack, mut free) = (0, f);
        for (local, group) in code.local_groups().iter().enumerate() {
            for chunk in group.clone().chain([k + local]) {
                if free == 0 {
                    (rack, free) = (rack + 1, f);
                }
                (rack_of[chunk], free) = (rack, free - 1);
            }
            if local + 1 < code.local_groups().len() {
                (rack, free) = (rack + 1, f);
            }
        }
        if free < f - 1 {
            rack += 1;
        }
        (k + code.local_groups().len()..code.n()).for_each(|global| rack_of[global] = rack);
        rack_of
    }

    #[test]
    fn ecwides_figure_2_comes_out_and_topology_locality_better_than_drawn() {
        let flat: Vec<usize> = (0..32).collect();
        assert_eq!(sums("wide(20,2,3)", &flat)[0], 2, "(a) the (32,20,2) Azure-LRC");
        let combined = combined_locality("wide(20,5,3)");
        assert_eq!(combined.iter().max(), Some(&8), "nine racks");
        assert_eq!(sums("wide(20,5,3)", &combined)[..24], [1; 24], "(c) the (26,20,5,9) CL");

        // (b), the (23,20,8) TL: the paper asks all seven other racks. But with the two neighbours of D1, six full
        // racks hold the 20 chunks that are needed. The rack of two chunks is left out, unless the lost chunk is in it.
        let topology: Vec<usize> = (0..23).map(|chunk| chunk / 3).collect();
        let sums = sums("rs(20,3)", &topology);
        assert_eq!((&sums[..21], &sums[21..]), (&[6; 21][..], &[7; 2][..]));
    }

    #[test]
    fn the_widest_code_sends_six_five_or_thirty_three_sums() {
        let rack_of = combined_locality("wide(128,27,4)");
        assert_eq!(
            (rack_of.iter().max(), rack_of[132], rack_of[133]),
            (Some(&33), 33, 33),
            "L5 beside the globals"
        );
        let sums = sums("wide(128,27,4)", &rack_of);
        let expected = |chunk: usize| match chunk {
            0..108 | 128..132 => 6,
            108..128 | 132 => 5,
            _ => 33,
        };
        (0..136).for_each(|chunk| assert_eq!(sums[chunk], expected(chunk), "chunk {chunk}"));
        let mean = sums.iter().sum::<usize>() as f64 / 136.0;
        assert!((mean - 6.44).abs() < 0.005, "{mean}");
    }

    #[test]
    fn topology_locality_of_full_racks_asks_all_other_racks() {
        let rack_of: Vec<usize> = (0..132).map(|chunk| chunk / 4).collect();
        assert_eq!(sums("rs(128,4)", &rack_of), [32; 132]);
    }

    #[test]
    fn a_group_with_a_second_loss_is_repaired_from_everything_else() {
        let code: Code = "wide(20,5,3)".parse().unwrap();
        let ids = rack_ids(9);
        let rack_of = combined_locality("wide(20,5,3)");
        let racks: Vec<&RackId> = rack_of.iter().map(|&rack| &ids[rack]).collect();
        let mut costs = vec![Some(1.0); code.n()];
        costs[1] = None;
        let repair = repair_by_racks(&code, 0, &costs, &racks, racks[0]).unwrap();
        assert_eq!(repair.sums_across_racks, 8);
        (2..20).for_each(|chunk| costs[chunk] = None);
        assert!(repair_by_racks(&code, 0, &costs, &racks, racks[0]).is_err());
    }

    #[test]
    fn of_equations_with_as_few_racks_the_cheapest_is_taken() {
        let code: Code = "rs(4,2)".parse().unwrap();
        let ids = rack_ids(3);
        let racks: Vec<&RackId> = [0, 0, 1, 1, 1, 2].map(|rack: usize| &ids[rack]).to_vec();
        let costs = [None, Some(1.0), Some(9.0), Some(1.0), Some(1.0), Some(1.0)];
        let repair = repair_by_racks(&code, 0, &costs, &racks, &ids[0]).unwrap();
        assert_eq!(
            (repair.sums_across_racks, repair.equation.cost),
            (1, 12.0),
            "rack 2 is cheap, but a rack more"
        );
        let repair = repair_by_racks(&code, 0, &costs, &racks, &ids[2]).unwrap();
        assert_eq!(
            (repair.sums_across_racks, repair.equation.cost),
            (1, 12.0),
            "three of rack 1 and one at home"
        );
    }

    /// Returns the smallest number of other racks whose chunks, with those in `home`, determine the lost one; tries all
    /// sets of racks.
    fn fewest_racks(
        code: &Code,
        lost: usize,
        readable: &[bool],
        rack_of: &[usize],
        home: usize,
    ) -> Option<usize> {
        let count = rack_of.iter().max().map_or(0, |last| last + 1);
        let sets = (0..1u32 << count).filter(|set| set >> home & 1 == 0);
        let of = |set: u32| -> ChunkSet {
            let is_in = |chunk: &usize| rack_of[*chunk] == home || set >> rack_of[*chunk] & 1 == 1;
            (0..code.n()).filter(|chunk| *chunk != lost && readable[*chunk]).filter(is_in).collect()
        };
        let wanted = std::iter::once(lost).collect();
        sets.filter(|&set| code.determines(&of(set), &wanted)).map(|set| set.count_ones() as usize).min()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Holds with up to two more losses, wherever the chunk is made.
        #[test]
        fn no_set_of_racks_is_smaller(
            code in prop::sample::select(vec!["rs(6,3)", "rs(12,4)", "wide(7,3,3)", "wide(10,4,4)", "wide(12,5,3)", "lrc(6,2,2)"]),
            lost in any::<Index>(), more in prop::collection::vec(any::<Index>(), 0..3), home in any::<Index>(),
            spread in prop::collection::vec(0..7usize, 16), prices in prop::collection::vec(0..5i32, 17),
        ) {
            let parsed: Code = code.parse().unwrap();
            let n = parsed.n();
            let rack_of = if parsed.local_groups().is_empty() { spread[..n].to_vec() } else { combined_locality(code) };
            let ids = rack_ids(1 + rack_of.iter().max().unwrap());
            let racks: Vec<&RackId> = rack_of.iter().map(|&rack| &ids[rack]).collect();
            let (lost, home) = (lost.index(n), home.index(ids.len()));
            let mut readable = vec![true; n];
            more.iter().for_each(|chunk| readable[chunk.index(n)] = false);
            let costs: Vec<Option<f64>> = readable.iter().zip(prices).map(|(&is, price)| is.then_some(10f64.powi(price))).collect();
            let found = repair_by_racks(&parsed, lost, &costs, &racks, &ids[home]);
            let fewest = fewest_racks(&parsed, lost, &readable, &rack_of, home);
            prop_assert_eq!(found.ok().map(|repair| repair.sums_across_racks), fewest);
        }
    }
}
