//! The geometry of wide stripes with combined locality: which rack holds which part of (n, k, r, z) CL (ECWide §3.4).
//!
//! A stripe has n = k + ⌈k/r⌉ + f − 1 chunks: ⌈k/r⌉ local groups, each of at most r data chunks and one local parity,
//! and f − 1 global parities. A rack holds at most c ≤ f chunks (Eq. 1), so that it may be lost. It holds chunks of one
//! local group only, so a lost chunk is repaired from one partial sum of each other rack of its group. Two kinds of
//! racks differ from the rest. The last rack of a group holds its local parity. One rack holds the global parities, and
//! the local parity of a group whose data chunks fill its own racks exactly.
//!
//! (136,128,27,34): 29 racks of 4 data chunks, 4 racks of 3 data chunks and a local parity, and one rack of 3 global
//! parities and the fifth local one.

use std::ops::Range;

use striate_codec::{CodeSpec, CodecError};
use striate_core::{Profile, Spread};

/// The chunks of a wide stripe in one rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RackPart {
    /// The local group of its chunks; `None` if all of them are global parities.
    pub group: Option<usize>,
    /// Number of data chunks.
    pub data: usize,
    /// Whether it holds the group's local parity.
    pub has_local: bool,
    /// Number of global parities.
    pub globals: usize,
}

impl RackPart {
    /// Returns the number of parities.
    pub fn parities(&self) -> usize {
        self.globals + usize::from(self.has_local)
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> usize {
        self.data + self.parities()
    }
}

/// (n, k, r, z) CL with at most c chunks per rack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WideGeometry {
    data: usize,
    locality: usize,
    tolerance: usize,
    rack_limit: usize,
    parts: Vec<RackPart>,
}

/// Why there is no such geometry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WideError {
    /// The numbers do not define a code.
    #[error(transparent)]
    Code(#[from] CodecError),
    /// A code of another kind.
    #[error("{0} is not a wide code: write wide(k,r,f)")]
    NotWide(CodeSpec),
    /// Eq. 1 does not hold.
    #[error(
        "a rack of {rack_limit} chunks: it must hold 1 to {tolerance}, as many as the code tolerates to lose (c ≤ f)"
    )]
    RackLimit {
        /// c.
        rack_limit: usize,
        /// f.
        tolerance: usize,
    },
    /// A spread that ignores racks.
    #[error(
        "{0} spread flat: a rack holds at most f chunks of a wide stripe, and its local groups lie in whole racks; leave \"spread flat\" out"
    )]
    Flat(CodeSpec),
}

impl WideGeometry {
    /// Returns the geometry of a wide code whose racks hold f chunks, the maximum (§3.2).
    ///
    /// # Errors
    /// [`WideError`] for other codes.
    pub fn new(spec: CodeSpec) -> Result<Self, WideError> {
        Self::with_rack_limit(spec, spec.tolerance())
    }

    /// Returns the geometry of a wide profile: its code, with the number of chunks per rack from its spread.
    ///
    /// # Errors
    /// As [`WideGeometry::with_rack_limit`], and [`WideError::Flat`] if the profile ignores racks.
    pub fn of_profile(profile: &Profile) -> Result<Self, WideError> {
        match profile.spread {
            Spread::Racks(limit) => Self::with_rack_limit(profile.code, limit),
            Spread::Tolerance => Self::new(profile.code),
            Spread::Flat => Self::new(profile.code).and(Err(WideError::Flat(profile.code))),
        }
    }

    /// Returns the geometry with at most `rack_limit` chunks per rack, c.
    ///
    /// # Errors
    /// [`WideError`] for other codes, and if c exceeds f.
    pub(crate) fn with_rack_limit(spec: CodeSpec, rack_limit: usize) -> Result<Self, WideError> {
        let CodeSpec::Wide { data, locality, tolerance } = spec else { return Err(WideError::NotWide(spec)) };
        spec.check()?;
        if !(1..=tolerance).contains(&rack_limit) {
            return Err(WideError::RackLimit { rack_limit, tolerance });
        }
        let parts = parts_of(data, locality, tolerance, rack_limit);
        Ok(Self { data, locality, tolerance, rack_limit, parts })
    }

    /// Returns the code.
    pub fn spec(&self) -> CodeSpec {
        CodeSpec::Wide { data: self.data, locality: self.locality, tolerance: self.tolerance }
    }

    /// Returns the profile: the code, with its spread if racks hold fewer chunks than the code can lose.
    pub fn profile(&self) -> String {
        match self.rack_limit == self.tolerance {
            true => self.spec().to_string(),
            false => format!("{} spread racks({})", self.spec(), self.rack_limit),
        }
    }

    /// Returns n, the number of chunks of a stripe.
    pub fn n(&self) -> usize {
        self.spec().chunk_count()
    }

    /// Returns k, the number of data chunks.
    pub fn k(&self) -> usize {
        self.data
    }

    /// Returns r, the maximum number of data chunks of a local group.
    pub fn r(&self) -> usize {
        self.locality
    }

    /// Returns z, the number of racks of a stripe.
    pub fn z(&self) -> usize {
        self.parts.len()
    }

    /// Returns c, the maximum number of chunks of a stripe in a rack.
    pub fn c(&self) -> usize {
        self.rack_limit
    }

    /// Returns f, the number of losses that the code tolerates.
    pub fn f(&self) -> usize {
        self.tolerance
    }

    /// Returns what each of the z racks holds: the racks of the local groups in order, then those of the global
    /// parities.
    pub fn parts(&self) -> &[RackPart] {
        &self.parts
    }

    /// Returns the rack of each of the n chunks, as one of the z racks. Data chunks are in order; a group's local
    /// parity is beside its last data chunks or the global parities.
    pub fn parts_of_chunks(&self) -> Vec<usize> {
        let mut part_of = vec![0; self.n()];
        let mut data: Vec<_> = (0..self.groups()).map(|group| self.group_data(group)).collect();
        let mut globals = self.global_parities();
        for (number, part) in self.parts.iter().enumerate() {
            let mut chunks: Vec<usize> = globals.by_ref().take(part.globals).collect();
            if let Some(group) = part.group {
                chunks.extend(data[group].by_ref().take(part.data));
                chunks.extend(part.has_local.then(|| self.local_parity(group)));
            }
            chunks.into_iter().for_each(|chunk| part_of[chunk] = number);
        }
        part_of
    }

    /// Returns the number of local groups.
    pub fn groups(&self) -> usize {
        self.data.div_ceil(self.locality)
    }

    /// Returns the data chunks of a local group.
    pub fn group_data(&self, group: usize) -> Range<usize> {
        group * self.locality..self.data.min((group + 1) * self.locality)
    }

    /// Returns the local parity of a group.
    pub fn local_parity(&self, group: usize) -> usize {
        self.data + group
    }

    /// Returns the global parities.
    pub fn global_parities(&self) -> Range<usize> {
        self.data + self.groups()..self.n()
    }

    /// Returns n / k, the bytes stored per byte.
    pub fn redundancy(&self) -> f64 {
        self.n() as f64 / self.data as f64
    }

    /// Returns the chunks sent across racks to repair a data chunk or local parity of a group: one from each other rack
    /// of the group.
    pub fn group_repair_chunks(&self, group: usize) -> usize {
        self.parts.iter().filter(|part| part.group == Some(group)).count() - 1
    }

    /// Returns the maximum of [`Self::group_repair_chunks`] over the groups: (r + 1)/f − 1 (Table 4).
    pub fn repair_chunks(&self) -> usize {
        (0..self.groups()).map(|group| self.group_repair_chunks(group)).max().unwrap_or(0)
    }

    /// Returns the chunks sent across racks to repair a global parity: one from each other rack that holds data.
    pub(crate) fn global_repair_chunks(&self) -> usize {
        self.parts.iter().filter(|part| part.data > 0).count()
    }

    /// Returns C, the mean number of chunks sent across racks over the n chunks of a stripe (§3.6).
    pub fn mean_repair_chunks(&self) -> f64 {
        let group_chunks: usize = (0..self.groups())
            .map(|group| (self.group_data(group).len() + 1) * self.group_repair_chunks(group))
            .sum();
        let global_chunks = (self.tolerance - 1) * self.global_repair_chunks();
        (group_chunks + global_chunks) as f64 / self.n() as f64
    }

    /// Returns the partial sums sent across racks to make all parities of a stripe whose data chunks stay in place:
    /// f − 1 from each rack with data for the global parities, and one from each rack of the group except its own for a
    /// local parity.
    pub fn sealing_chunks(&self) -> usize {
        let of_locals = |group: usize| {
            self.parts
                .iter()
                .filter(|part| part.group == Some(group) && !part.has_local && part.data > 0)
                .count()
        };
        (self.tolerance - 1) * self.global_repair_chunks() + (0..self.groups()).map(of_locals).sum::<usize>()
    }
}

/// Computes what each rack holds.
fn parts_of(data: usize, locality: usize, tolerance: usize, rack_limit: usize) -> Vec<RackPart> {
    let mut globals: Vec<RackPart> = Vec::new();
    let mut remaining = tolerance - 1;
    while remaining > 0 {
        let in_rack = remaining.min(rack_limit);
        globals.push(RackPart { globals: in_rack, ..RackPart::default() });
        remaining -= in_rack;
    }
    let mut parts = Vec::new();
    for group in 0..data.div_ceil(locality) {
        let mut remaining = locality.min(data - group * locality);
        let part = |data, has_local| RackPart { group: Some(group), data, has_local, globals: 0 };
        let beside_globals = globals.last_mut().filter(|last| {
            remaining.is_multiple_of(rack_limit) && last.group.is_none() && last.globals < rack_limit
        });
        let is_beside_globals = beside_globals.is_some();
        if let Some(last) = beside_globals {
            *last = RackPart { group: Some(group), has_local: true, ..*last };
        }
        while remaining >= rack_limit {
            parts.push(part(rack_limit, false));
            remaining -= rack_limit;
        }
        if !is_beside_globals {
            parts.push(part(remaining, true));
        }
    }
    parts.extend(globals);
    parts
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn geometry(data: usize, locality: usize, tolerance: usize) -> WideGeometry {
        WideGeometry::new(CodeSpec::Wide { data, locality, tolerance }).unwrap()
    }

    fn numbers(of: &WideGeometry) -> (usize, usize, usize, usize) {
        (of.n(), of.k(), of.r(), of.z())
    }

    /// Returns the number of racks for each combination of (data chunks, local parities, global parities).
    fn counts(of: &WideGeometry) -> BTreeMap<(usize, usize, usize), usize> {
        let mut counts = BTreeMap::new();
        for part in of.parts() {
            *counts.entry((part.data, usize::from(part.has_local), part.globals)).or_default() += 1;
        }
        counts
    }

    #[test]
    fn the_papers_geometries_come_out() {
        assert_eq!(numbers(&geometry(20, 5, 3)), (26, 20, 5, 9));
        assert_eq!(numbers(&geometry(128, 27, 4)), (136, 128, 27, 34));
        assert_eq!(numbers(&geometry(128, 15, 4)), (140, 128, 15, 35));
        assert_eq!(numbers(&geometry(42, 15, 4)), (48, 42, 15, 12));
        let of_racks = counts(&geometry(128, 27, 4));
        assert_eq!(of_racks, BTreeMap::from([((0, 1, 3), 1), ((3, 1, 0), 4), ((4, 0, 0), 29)]));
    }

    #[test]
    fn repairs_and_sealing_send_what_the_trees_send() {
        // (k, r, f), data or local at most, global, C, sealing; the values are from a program that draws the trees.
        let cases = [
            ((128, 27, 4), 6, 33, 6.44, 128),
            ((64, 7, 4), 1, 19, 1.68, 66),
            ((42, 15, 4), 3, 11, 3.50, 42),
            ((39, 7, 4), 1, 11, 1.62, 39),
            ((41, 11, 4), 2, 11, 2.56, 41),
            ((44, 44, 4), 11, 11, 11.0, 44),
            ((20, 5, 3), 1, 8, 1.54, 20),
        ];
        for ((k, r, f), repair, global, mean, sealing) in cases {
            let of = geometry(k, r, f);
            assert_eq!((of.repair_chunks(), of.global_repair_chunks()), (repair, global), "{of:?}");
            assert!((of.mean_repair_chunks() - mean).abs() < 0.005, "{}", of.mean_repair_chunks());
            assert_eq!(of.sealing_chunks(), sealing, "{of:?}");
        }
        assert_eq!([0, 4].map(|group| geometry(128, 27, 4).group_repair_chunks(group)), [6, 5]);
    }

    proptest! {
        #[test]
        fn parts_hold_every_chunk_once_and_each_rack_one_group(
            data in 2usize..200, locality in 2usize..60, tolerance in 2usize..6, limit in 1usize..6,
        ) {
            let spec = CodeSpec::Wide { data, locality, tolerance };
            prop_assume!(spec.check().is_ok() && limit <= tolerance);
            let of = WideGeometry::with_rack_limit(spec, limit).unwrap();
            prop_assert_eq!(of.parts().iter().map(RackPart::chunks).sum::<usize>(), of.n());
            prop_assert!(of.parts().iter().all(|part| (1..=limit).contains(&part.chunks())));
            prop_assert_eq!(of.parts().iter().map(|part| part.globals).sum::<usize>(), tolerance - 1);
            for group in 0..of.groups() {
                let racks: Vec<_> = of.parts().iter().filter(|part| part.group == Some(group)).collect();
                let chunks = of.group_data(group).len() + 1;
                prop_assert_eq!(racks.iter().map(|part| part.data).sum::<usize>() + 1, chunks);
                prop_assert_eq!(racks.iter().filter(|part| part.has_local).count(), 1);
                prop_assert_eq!(racks.len(), chunks.div_ceil(limit), "as few racks as hold it");
            }
            let part_of = of.parts_of_chunks();
            for (number, part) in of.parts().iter().enumerate() {
                let chunks: Vec<usize> = (0..of.n()).filter(|&chunk| part_of[chunk] == number).collect();
                let group = part.group.map_or(0..0, |group| of.group_data(group));
                prop_assert_eq!(chunks.len(), part.chunks());
                prop_assert_eq!(chunks.iter().filter(|chunk| group.contains(chunk)).count(), part.data);
                prop_assert_eq!(chunks.iter().filter(|chunk| of.global_parities().contains(chunk)).count(), part.globals);
            }
        }
    }

    #[test]
    fn racks_that_hold_more_than_the_code_tolerates_to_lose_are_refused() {
        let spec = CodeSpec::Wide { data: 128, locality: 27, tolerance: 4 };
        let refusal = WideGeometry::with_rack_limit(spec, 5).unwrap_err().to_string();
        assert!(refusal.contains("1 to 4"), "{refusal}");
        let of_profile = |text: &str| WideGeometry::of_profile(&text.parse().unwrap());
        assert_eq!(of_profile("wide(128,27,4) spread flat"), Err(WideError::Flat(spec)));
        assert_eq!(of_profile("wide(128,27,4) spread racks(4)"), WideGeometry::new(spec));
        assert!(matches!(WideGeometry::new("rs(4,2)".parse().unwrap()), Err(WideError::NotWide(_))));
    }
}
