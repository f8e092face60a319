//! The geometry of wide stripes with combined locality: which rack holds which part of (n, k, r, z) CL (ECWide §3.4),
//! and what a cluster must have for it.
//!
//! n = k + ⌈k/r⌉ + f − 1 chunks are ⌈k/r⌉ local groups of at most r data chunks and a local parity, and f − 1 global
//! parities. A rack holds at most c ≤ f chunks (Eq. 1), so that it may be lost, and those of one local group, so that
//! a lost chunk is repaired by one partial sum from each other rack of its group. Two racks differ from the rest: the
//! last of a group holds its local parity, and one rack holds the global parities, and the local parity of a group
//! that fills its own racks but for that one.
//!
//! (136,128,27,34): 29 racks of 4 data chunks, 4 of 3 and a local parity, and one of 3 global parities and the fifth
//! local one.
//!
//! A cluster needs one rack more than a stripe uses, and one site a rack more than a stripe uses there: where a
//! stripe is in all racks, a lost one cannot be rebuilt before it is back, and where it is on all sites of a rack, a
//! lost chunk finds no site in its rack.

use std::collections::BTreeSet;
use std::ops::Range;

use striate_codec::{CodeSpec, CodecError};
use striate_core::{Profile, Spread};

/// What one rack holds of a wide stripe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RackPart {
    /// The local group that its chunks are of; `None` if all of them are global parities.
    pub group: Option<usize>,
    /// Data chunks.
    pub data: usize,
    /// Whether it holds the group's local parity.
    pub has_local: bool,
    /// Global parities.
    pub globals: usize,
}

impl RackPart {
    /// Parities that it holds.
    pub fn parities(&self) -> usize {
        self.globals + usize::from(self.has_local)
    }

    /// Chunks that it holds.
    pub fn chunks(&self) -> usize {
        self.data + self.parities()
    }
}

/// (n, k, r, z) CL with at most c chunks in a rack.
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
    /// The numbers are not those of a code.
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
}

impl WideGeometry {
    /// The geometry of a wide code whose racks hold f chunks, the most they may (§3.2).
    ///
    /// # Errors
    /// [`WideError`] for other codes.
    pub fn new(spec: CodeSpec) -> Result<Self, WideError> {
        Self::with_rack_limit(spec, spec.tolerance())
    }

    /// The geometry of a wide profile: its code, with as many chunks in a rack as its spread says.
    ///
    /// # Errors
    /// As [`WideGeometry::with_rack_limit`].
    pub fn of_profile(profile: &Profile) -> Result<Self, WideError> {
        match profile.spread {
            Spread::Racks(limit) => Self::with_rack_limit(profile.code, limit),
            Spread::Tolerance | Spread::Flat => Self::new(profile.code),
        }
    }

    /// The same with at most `rack_limit` chunks in a rack, c.
    ///
    /// # Errors
    /// [`WideError`] for other codes, and where c exceeds f.
    pub(crate) fn with_rack_limit(spec: CodeSpec, rack_limit: usize) -> Result<Self, WideError> {
        let CodeSpec::Wide { data, locality, tolerance } = spec else { return Err(WideError::NotWide(spec)) };
        spec.check()?;
        if !(1..=tolerance).contains(&rack_limit) {
            return Err(WideError::RackLimit { rack_limit, tolerance });
        }
        let parts = parts_of(data, locality, tolerance, rack_limit);
        Ok(Self { data, locality, tolerance, rack_limit, parts })
    }

    /// The code.
    pub fn spec(&self) -> CodeSpec {
        CodeSpec::Wide { data: self.data, locality: self.locality, tolerance: self.tolerance }
    }

    /// The profile: the code, and its spread where racks hold fewer chunks than the code tolerates to lose.
    pub fn profile(&self) -> String {
        match self.rack_limit == self.tolerance {
            true => self.spec().to_string(),
            false => format!("{} spread racks({})", self.spec(), self.rack_limit),
        }
    }

    /// n, the chunks of a stripe.
    pub fn n(&self) -> usize {
        self.spec().chunk_count()
    }

    /// k, its data chunks.
    pub fn k(&self) -> usize {
        self.data
    }

    /// r, the data chunks of a local group at most.
    pub fn r(&self) -> usize {
        self.locality
    }

    /// z, the racks of a stripe.
    pub fn z(&self) -> usize {
        self.parts.len()
    }

    /// c, the chunks of a stripe in a rack at most.
    pub fn c(&self) -> usize {
        self.rack_limit
    }

    /// f, the losses that it tolerates.
    pub fn f(&self) -> usize {
        self.tolerance
    }

    /// What each of the z racks holds: those of the local groups in their order, then those of the global parities.
    pub fn parts(&self) -> &[RackPart] {
        &self.parts
    }

    /// Of each of the n chunks, which of the z racks it is in: data in their order, the local parity of a group beside its last data
    /// chunks or the global parities.
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

    /// Local groups.
    pub fn groups(&self) -> usize {
        self.data.div_ceil(self.locality)
    }

    /// The data chunks of a local group.
    pub fn group_data(&self, group: usize) -> Range<usize> {
        group * self.locality..self.data.min((group + 1) * self.locality)
    }

    /// The local parity of a group.
    pub fn local_parity(&self, group: usize) -> usize {
        self.data + group
    }

    /// The global parities.
    pub fn global_parities(&self) -> Range<usize> {
        self.data + self.groups()..self.n()
    }

    /// n / k, bytes stored for a byte.
    pub fn redundancy(&self) -> f64 {
        self.n() as f64 / self.data as f64
    }

    /// Chunks sent across racks to repair a data chunk or local parity of a group: one from each other rack of it.
    pub fn group_repair_chunks(&self, group: usize) -> usize {
        self.parts.iter().filter(|part| part.group == Some(group)).count() - 1
    }

    /// The same of the group where they are most: (r + 1)/f − 1 (Table 4).
    pub fn repair_chunks(&self) -> usize {
        (0..self.groups()).map(|group| self.group_repair_chunks(group)).max().unwrap_or(0)
    }

    /// Chunks sent across racks to repair a global parity: one from each other rack that holds data.
    pub(crate) fn global_repair_chunks(&self) -> usize {
        self.parts.iter().filter(|part| part.data > 0).count()
    }

    /// C, the mean of chunks sent across racks over the n chunks of a stripe (§3.6).
    pub fn mean_repair_chunks(&self) -> f64 {
        let of_groups: usize = (0..self.groups())
            .map(|group| (self.group_data(group).len() + 1) * self.group_repair_chunks(group))
            .sum();
        let of_globals = (self.tolerance - 1) * self.global_repair_chunks();
        (of_groups + of_globals) as f64 / self.n() as f64
    }

    /// Partial sums sent across racks to make all parities of a stripe whose data chunks stay where they are: f − 1
    /// from each rack with data for the global ones, and one from each but its own for a local one.
    pub fn sealing_chunks(&self) -> usize {
        let of_locals = |group: usize| {
            self.parts
                .iter()
                .filter(|part| part.group == Some(group) && !part.has_local && part.data > 0)
                .count()
        };
        (self.tolerance - 1) * self.global_repair_chunks() + (0..self.groups()).map(of_locals).sum::<usize>()
    }

    /// Racks that a cluster must have: z, and one in which a lost one is rebuilt.
    pub fn racks_needed(&self) -> usize {
        self.z() + 1
    }

    /// Sites that each rack must have: c, and one on which a lost chunk is rebuilt.
    pub fn sites_per_rack_needed(&self) -> usize {
        self.rack_limit + 1
    }

    /// Whether stripes fit a cluster of so many racks of so many sites each.
    ///
    /// # Errors
    /// [`Misfit`] with the arithmetic, and with what would fit.
    pub fn check_fits(&self, racks: usize, sites_per_rack: usize) -> Result<(), Misfit> {
        if racks >= self.racks_needed() && sites_per_rack >= self.sites_per_rack_needed() {
            return Ok(());
        }
        let fitting = fitting_codes(self.tolerance, racks, sites_per_rack);
        Err(Misfit { wanted: Box::new(self.clone()), racks, sites_per_rack, smaller: 0, fitting })
    }

    /// Of racks with so many sites each, how many have the sites that stripes need.
    pub fn roomy_racks(&self, rack_sizes: &[usize]) -> usize {
        rack_sizes.iter().filter(|&&sites| sites >= self.sites_per_rack_needed()).count()
    }

    /// Whether stripes fit racks with so many sites each. Racks that are too small for them do not count.
    ///
    /// # Errors
    /// [`Misfit`] with the arithmetic, and with what would fit.
    pub fn check_fits_racks(&self, rack_sizes: &[usize]) -> Result<(), Misfit> {
        let roomy = self.roomy_racks(rack_sizes);
        if roomy >= self.racks_needed() {
            return Ok(());
        }
        let is_roomy = |&sites: &usize| sites >= self.sites_per_rack_needed();
        let (racks, sites_per_rack) = match roomy {
            // The largest is too small.
            0 => (rack_sizes.len(), rack_sizes.iter().copied().max().unwrap_or_default()),
            _ => (roomy, rack_sizes.iter().copied().filter(is_roomy).min().unwrap_or_default()),
        };
        let fitting = fitting_codes_of_racks(self.tolerance, rack_sizes);
        let smaller = rack_sizes.len() - racks;
        Err(Misfit { wanted: Box::new(self.clone()), racks, sites_per_rack, smaller, fitting })
    }
}

/// What each rack holds.
fn parts_of(data: usize, locality: usize, tolerance: usize, rack_limit: usize) -> Vec<RackPart> {
    let mut globals: Vec<RackPart> = Vec::new();
    let mut left = tolerance - 1;
    while left > 0 {
        let here = left.min(rack_limit);
        globals.push(RackPart { globals: here, ..RackPart::default() });
        left -= here;
    }
    let mut parts = Vec::new();
    for group in 0..data.div_ceil(locality) {
        let mut left = locality.min(data - group * locality);
        let part = |data, has_local| RackPart { group: Some(group), data, has_local, globals: 0 };
        let beside_globals = globals.last_mut().filter(|last| {
            left.is_multiple_of(rack_limit) && last.group.is_none() && last.globals < rack_limit
        });
        let is_beside_globals = beside_globals.is_some();
        if let Some(last) = beside_globals {
            *last = RackPart { group: Some(group), has_local: true, ..*last };
        }
        while left >= rack_limit {
            parts.push(part(rack_limit, false));
            left -= rack_limit;
        }
        if !is_beside_globals {
            parts.push(part(left, true));
        }
    }
    parts.extend(globals);
    parts
}

/// The wide codes that fit a cluster of so many racks of so many sites each and tolerate `tolerance` losses: for each
/// number of racks that a local group may span, the code with the most data chunks. Those with the least redundancy
/// come first; each further one is repaired with fewer chunks across racks. None where racks have a single site, or
/// are fewer than 3.
pub fn fitting_codes(tolerance: usize, racks: usize, sites_per_rack: usize) -> Vec<WideGeometry> {
    let rack_limit = tolerance.min(sites_per_rack.saturating_sub(1));
    let Some(z) = racks.checked_sub(1).filter(|_| rack_limit > 0 && tolerance >= 2) else {
        return Vec::new();
    };
    let most = (z * rack_limit).min(striate_codec::MAX_CHUNKS);
    let largest = |locality: Option<usize>| {
        (2..=most).rev().find_map(|data| {
            let locality = locality.unwrap_or(data);
            let spec = CodeSpec::Wide { data, locality, tolerance };
            let geometry = WideGeometry::with_rack_limit(spec, rack_limit).ok()?;
            (locality <= data && geometry.z() <= z).then_some(geometry)
        })
    };
    let mut codes: Vec<WideGeometry> =
        (1..=z).filter_map(|racks| largest(Some(racks * rack_limit - 1))).collect();
    codes.extend(largest(None));
    least_redundant_first(codes)
}

/// The same for racks with so many sites each. A code takes all racks of at least some size, and places no more in any than in the smallest.
fn fitting_codes_of_racks(tolerance: usize, rack_sizes: &[usize]) -> Vec<WideGeometry> {
    let useful: Vec<usize> = rack_sizes.iter().map(|&sites| sites.min(tolerance + 1)).collect();
    let smallest: BTreeSet<usize> = useful.iter().copied().collect();
    let codes = smallest.into_iter().flat_map(|sites| {
        let racks = useful.iter().filter(|&&of| of >= sites).count();
        fitting_codes(tolerance, racks, sites)
    });
    least_redundant_first(codes.collect())
}

/// In the order of their redundancy, without those that are repaired with no fewer chunks across racks than one before them.
fn least_redundant_first(mut codes: Vec<WideGeometry>) -> Vec<WideGeometry> {
    let order = |of: &WideGeometry| (of.redundancy(), of.repair_chunks());
    codes.sort_by(|a, b| order(a).partial_cmp(&order(b)).expect("both are numbers"));
    let mut fewest = usize::MAX;
    codes.retain(|code| {
        let is_better = code.repair_chunks() < fewest;
        fewest = fewest.min(code.repair_chunks());
        is_better
    });
    codes
}

/// How a stripe of any code lies in racks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RackUse {
    /// n.
    pub(crate) chunks: usize,
    /// z.
    pub(crate) racks: usize,
    /// c.
    pub(crate) rack_limit: usize,
}

impl RackUse {
    /// What a cluster lacks for such stripes, as arithmetic; `None` if they fit.
    pub(crate) fn lacking(self, racks: usize, sites_per_rack: usize) -> Option<String> {
        let Self { chunks: n, racks: z, rack_limit: c } = self;
        let mut reasons = Vec::new();
        if racks <= z {
            reasons.push(format!(
                "its {n} chunks fill {z} racks at {c} a rack, and a lost rack is rebuilt in one more: {z} + 1 = {} racks, \
                 there are {racks}",
                z + 1
            ));
        }
        if sites_per_rack <= c {
            reasons.push(format!(
                "a rack holds {c} of its chunks, each on a site, and a lost one is rebuilt on one more: {c} + 1 = {} sites a \
                 rack, there are {sites_per_rack}",
                c + 1
            ));
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// A wide code that does not fit a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.explain())]
pub struct Misfit {
    /// What does not fit.
    pub wanted: Box<WideGeometry>,
    /// Racks that there are.
    pub racks: usize,
    /// Sites in each of them.
    pub sites_per_rack: usize,
    /// Further racks, which have fewer sites and do not count.
    pub smaller: usize,
    /// What fits, that with the least redundancy first.
    pub fitting: Vec<WideGeometry>,
}

impl Misfit {
    /// The arithmetic without what would fit instead.
    pub fn reason(&self) -> String {
        let of = &self.wanted;
        let use_of_racks = RackUse { chunks: of.n(), racks: of.z(), rack_limit: of.c() };
        let lacking = use_of_racks.lacking(self.racks, self.sites_per_rack).unwrap_or_default();
        match self.smaller {
            0 => lacking,
            smaller => {
                format!(
                    "{lacking} with {} sites or more, and {smaller} with fewer",
                    of.sites_per_rack_needed()
                )
            }
        }
    }

    fn explain(&self) -> String {
        let mut text = format!("{} does not fit: {}", self.wanted.profile(), self.reason());
        match self.fitting.as_slice() {
            [] => text.push_str(". No wide code fits: use rs(k,r) or lrc(k,l,g)"),
            fitting => {
                let each = fitting.iter().map(|code| {
                    let (profile, redundancy) = (code.profile(), code.redundancy());
                    format!(
                        "{profile} ({redundancy:.4} ×, {} chunks across racks a repair)",
                        code.repair_chunks()
                    )
                });
                text += &format!(". What fits: {}", each.collect::<Vec<_>>().join(", "));
            }
        }
        text
    }
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

    /// How many racks hold so many (data chunks, local parities, global parities).
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
        // (k, r, f), data or local at most, global, C, sealing; by a program that draws the trees.
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

        #[test]
        fn codes_that_are_offered_fit_and_trade_redundancy_for_traffic(
            tolerance in 2usize..6, racks in 0usize..60, sites in 0usize..9,
        ) {
            let offered = fitting_codes(tolerance, racks, sites);
            for code in &offered {
                prop_assert_eq!(code.check_fits(racks, sites), Ok(()));
                prop_assert_eq!(code.f(), tolerance);
            }
            for pair in offered.windows(2) {
                prop_assert!(pair[0].redundancy() < pair[1].redundancy());
                prop_assert!(pair[0].repair_chunks() > pair[1].repair_chunks());
            }
        }
    }

    #[test]
    fn thirteen_racks_are_offered_the_codes_of_twelve() {
        let offered: Vec<_> = fitting_codes(4, 13, 5).iter().map(numbers).collect();
        for code in [(48, 44, 44, 12), (48, 42, 15, 12), (48, 41, 11, 12), (48, 39, 7, 12)] {
            assert!(offered.contains(&code), "{code:?} of {offered:?}");
        }
        let redundancies: Vec<String> =
            fitting_codes(4, 13, 5).iter().map(|code| format!("{:.3}", code.redundancy())).collect();
        assert_eq!(redundancies[0], "1.091");
    }

    #[test]
    fn a_refusal_has_the_arithmetic_and_a_code_that_fits() {
        assert_eq!(geometry(128, 27, 4).check_fits(35, 5), Ok(()));
        let refusal = geometry(128, 27, 4).check_fits(13, 4).unwrap_err().to_string();
        for part in [
            "136 chunks fill 34 racks",
            "34 + 1 = 35 racks, there are 13",
            "4 + 1 = 5 sites",
            "spread racks(3)",
        ] {
            assert!(refusal.contains(part), "{part:?} of {refusal}");
        }
        let refusal = geometry(128, 27, 4).check_fits(34, 5).unwrap_err().to_string();
        assert!(
            refusal.contains("34 + 1 = 35 racks, there are 34") && refusal.contains("What fits: "),
            "{refusal}"
        );
        let refusal = geometry(128, 27, 4).check_fits(2, 1).unwrap_err().to_string();
        assert!(refusal.contains("No wide code fits"), "{refusal}");
    }

    #[test]
    fn racks_that_are_too_small_do_not_count() {
        let wide = geometry(42, 15, 4);
        let sizes = |roomy: usize, small: &[usize]| [vec![5; roomy], small.to_vec()].concat();
        assert_eq!(wide.check_fits_racks(&sizes(13, &[])), Ok(()));
        assert_eq!(wide.check_fits_racks(&sizes(13, &[1])), Ok(()));
        let refusal = wide.check_fits_racks(&sizes(12, &[1])).unwrap_err().to_string();
        for part in ["12 + 1 = 13 racks, there are 12 with 5 sites or more, and 1 with fewer", "What fits: "]
        {
            assert!(refusal.contains(part), "{part:?} of {refusal}");
        }
        // Where no rack is large enough, the largest ones are told of.
        let refusal = wide.check_fits_racks(&[&[4; 9][..], &[3; 2]].concat()).unwrap_err().to_string();
        for part in ["racks, there are 11; ", "sites a rack, there are 4. What fits: ", "spread racks(3)"] {
            assert!(refusal.contains(part), "{part:?} of {refusal}");
        }
    }

    proptest! {
        #[test]
        fn codes_that_are_offered_fit_racks_of_many_sizes(
            tolerance in 2usize..6, sizes in proptest::collection::vec(0usize..9, 1..30), size in 0usize..9,
        ) {
            let wanted = WideGeometry::new(CodeSpec::Wide { data: 90, locality: 30, tolerance }).unwrap();
            if let Err(misfit) = wanted.check_fits_racks(&sizes) {
                prop_assert_eq!(misfit.racks + misfit.smaller, sizes.len());
                for code in &misfit.fitting {
                    prop_assert_eq!(code.check_fits_racks(&sizes), Ok(()));
                }
            }
            // Racks of one size are what they always were.
            let even = vec![size; sizes.len()];
            prop_assert_eq!(wanted.check_fits_racks(&even), wanted.check_fits(even.len(), size));
        }
    }

    #[test]
    fn racks_that_hold_more_than_the_code_tolerates_to_lose_are_refused() {
        let spec = CodeSpec::Wide { data: 128, locality: 27, tolerance: 4 };
        let refusal = WideGeometry::with_rack_limit(spec, 5).unwrap_err().to_string();
        assert!(refusal.contains("1 to 4"), "{refusal}");
        assert!(matches!(WideGeometry::new("rs(4,2)".parse().unwrap()), Err(WideError::NotWide(_))));
    }
}
