//! What wide stripes require of a cluster, and which wide codes fit a cluster.
//!
//! A cluster needs one rack more than a stripe uses, and in each rack one site more than a stripe uses there. If a
//! stripe is in all racks, a lost rack cannot be rebuilt before it returns; and if it is on all sites of a rack, a lost
//! chunk finds no site in its rack.

use std::collections::BTreeSet;

use striate_codec::CodeSpec;

use super::geometry::WideGeometry;

impl WideGeometry {
    /// Returns the number of racks that a cluster must have: z, and one to rebuild a lost rack in.
    pub fn racks_needed(&self) -> usize {
        self.z() + 1
    }

    /// Returns the number of sites that each rack must have: c, and one to rebuild a lost chunk on.
    pub fn sites_per_rack_needed(&self) -> usize {
        self.c() + 1
    }

    /// Checks that stripes fit a cluster of this many racks with this many sites each.
    ///
    /// # Errors
    /// [`Misfit`] with the arithmetic, and with the codes that would fit.
    pub fn check_fits(&self, racks: usize, sites_per_rack: usize) -> Result<(), Misfit> {
        if racks >= self.racks_needed() && sites_per_rack >= self.sites_per_rack_needed() {
            return Ok(());
        }
        let fitting = fitting_codes(self.f(), racks, sites_per_rack);
        let wanted = Box::new(self.clone());
        Err(Misfit { wanted, racks, sites_per_rack, smaller: 0, has_spare: true, fitting })
    }

    /// Returns how many of the racks, given their numbers of sites, have enough sites for stripes.
    pub fn roomy_racks(&self, rack_sizes: &[usize]) -> usize {
        rack_sizes.iter().filter(|&&sites| sites >= self.sites_per_rack_needed()).count()
    }

    /// Checks that stripes fit these racks, given their numbers of sites. Racks that are too small do not count.
    ///
    /// # Errors
    /// [`Misfit`] with the arithmetic, and with the codes that would fit.
    pub fn check_fits_racks(&self, rack_sizes: &[usize]) -> Result<(), Misfit> {
        let roomy = self.roomy_racks(rack_sizes);
        if roomy >= self.racks_needed() {
            return Ok(());
        }
        let is_roomy = |&sites: &usize| sites >= self.sites_per_rack_needed();
        let (racks, sites_per_rack) = match roomy {
            // Even the largest rack is too small.
            0 => (rack_sizes.len(), rack_sizes.iter().copied().max().unwrap_or_default()),
            _ => (roomy, rack_sizes.iter().copied().filter(is_roomy).min().unwrap_or_default()),
        };
        let fitting = fitting_codes_of_racks(self.f(), rack_sizes);
        let smaller = rack_sizes.len() - racks;
        let wanted = Box::new(self.clone());
        Err(Misfit { wanted, racks, sites_per_rack, smaller, has_spare: true, fitting })
    }
}

/// Returns the wide codes that fit a cluster of this many racks with this many sites each and tolerate `tolerance`
/// losses. For each number of racks that a local group may span, it is the code with the most data chunks. Codes with
/// the least redundancy come first; each further one is repaired with fewer chunks across racks. None fits if racks
/// have a single site, or there are fewer than 3.
pub fn fitting_codes(tolerance: usize, racks: usize, sites_per_rack: usize) -> Vec<WideGeometry> {
    let rack_limit = tolerance.min(sites_per_rack.saturating_sub(1));
    let Some(z) = racks.checked_sub(1).filter(|_| rack_limit > 0 && tolerance >= 2) else {
        return Vec::new();
    };
    // A stripe has no chunks for more racks.
    let z = z.min(striate_codec::MAX_CHUNKS);
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

/// As [`fitting_codes`], for racks with these numbers of sites. A code uses all racks of at least some size, and places
/// no more chunks in any of them than in the smallest.
fn fitting_codes_of_racks(tolerance: usize, rack_sizes: &[usize]) -> Vec<WideGeometry> {
    let useful: Vec<usize> = rack_sizes.iter().map(|&sites| sites.min(tolerance + 1)).collect();
    let smallest: BTreeSet<usize> = useful.iter().copied().collect();
    let codes = smallest.into_iter().flat_map(|sites| {
        let racks = useful.iter().filter(|&&useful_sites| useful_sites >= sites).count();
        fitting_codes(tolerance, racks, sites)
    });
    least_redundant_first(codes.collect())
}

/// Sorts by redundancy, and drops codes that need no fewer chunks across racks for a repair than one before them.
fn least_redundant_first(mut codes: Vec<WideGeometry>) -> Vec<WideGeometry> {
    let order = |code: &WideGeometry| (code.redundancy(), code.repair_chunks());
    codes.sort_by(|a, b| order(a).partial_cmp(&order(b)).expect("both are numbers"));
    let mut fewest = usize::MAX;
    codes.retain(|code| {
        let is_better = code.repair_chunks() < fewest;
        fewest = fewest.min(code.repair_chunks());
        is_better
    });
    codes
}

/// How a stripe of any code uses racks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RackUse {
    /// n.
    pub(crate) chunks: usize,
    /// z.
    pub(crate) racks: usize,
    /// c.
    pub(crate) rack_limit: usize,
    /// Whether the cluster is to have one rack more, to rebuild a lost one in.
    pub(crate) has_spare: bool,
}

impl RackUse {
    /// Returns what a cluster lacks for such stripes, as arithmetic; `None` if they fit.
    pub(crate) fn lacking(self, racks: usize, sites_per_rack: usize) -> Option<String> {
        let Self { chunks: n, racks: z, rack_limit: c, has_spare } = self;
        let mut reasons = Vec::new();
        if racks < z + usize::from(has_spare) {
            let spare = match has_spare {
                true => format!(", and a lost rack is rebuilt in one more: {z} + 1 = {} racks", z + 1),
                false => String::new(),
            };
            reasons.push(format!("its {n} chunks fill {z} racks at {c} a rack{spare}, there are {racks}"));
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
    /// The geometry that does not fit.
    pub wanted: Box<WideGeometry>,
    /// Number of racks that count.
    pub racks: usize,
    /// Sites in each of these racks.
    pub sites_per_rack: usize,
    /// Number of further racks, which have fewer sites and do not count.
    pub smaller: usize,
    /// Whether one rack more than a stripe uses is asked for.
    pub has_spare: bool,
    /// The codes that fit, least redundancy first.
    pub fitting: Vec<WideGeometry>,
}

impl Misfit {
    /// Returns the misfit as told to those who do without the spare rack.
    pub fn without_spare_rack(self) -> Self {
        Self { has_spare: false, ..self }
    }

    /// Returns the arithmetic, without the codes that would fit.
    pub fn reason(&self) -> String {
        let geometry = &self.wanted;
        let (chunks, racks, rack_limit) = (geometry.n(), geometry.z(), geometry.c());
        let use_of_racks = RackUse { chunks, racks, rack_limit, has_spare: self.has_spare };
        let lacking = use_of_racks.lacking(self.racks, self.sites_per_rack).unwrap_or_default();
        match self.smaller {
            0 => lacking,
            smaller => {
                format!(
                    "{lacking} with {} sites or more, and {smaller} with fewer",
                    geometry.sites_per_rack_needed()
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
                    let (chunks, s) =
                        (code.repair_chunks(), if code.repair_chunks() == 1 { "" } else { "s" });
                    format!("{profile} ({redundancy:.4} ×, {chunks} chunk{s} across racks a repair)")
                });
                text += &format!(". What fits: {}", each.collect::<Vec<_>>().join(", "));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn geometry(data: usize, locality: usize, tolerance: usize) -> WideGeometry {
        WideGeometry::new(CodeSpec::Wide { data, locality, tolerance }).unwrap()
    }

    fn numbers(of: &WideGeometry) -> (usize, usize, usize, usize) {
        (of.n(), of.k(), of.r(), of.z())
    }

    proptest! {
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
    fn however_many_racks_there_are_a_stripe_uses_no_more_than_it_has_chunks_for() {
        let most: Vec<_> = fitting_codes(4, 1_000, 3).iter().map(numbers).collect();
        assert!(!most.is_empty());
        for racks in [1_000_000_000, usize::MAX] {
            assert_eq!(fitting_codes(4, racks, 3).iter().map(numbers).collect::<Vec<_>>(), most);
        }
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
    fn a_code_is_offered_with_the_chunks_that_a_repair_takes() {
        let fitting = vec![geometry(42, 15, 4), geometry(10, 5, 3)];
        let wanted = Box::new(geometry(128, 27, 4));
        let text = Misfit { wanted, racks: 13, sites_per_rack: 5, smaller: 0, has_spare: true, fitting };
        let text = text.to_string();
        assert!(text.contains(", 3 chunks across racks a repair), wide(10,5,3) ("), "{text}");
        assert!(text.ends_with(", 1 chunk across racks a repair)"), "{text}");
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
        // If no rack is large enough, the message describes the largest ones.
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
            // Racks of equal size give the same result as the check by counts.
            let even = vec![size; sizes.len()];
            prop_assert_eq!(wanted.check_fits_racks(&even), wanted.check_fits(even.len(), size));
        }
    }
}
