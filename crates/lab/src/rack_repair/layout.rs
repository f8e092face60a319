//! The rack of each chunk, for the three schemes that ECWide compares (FAST'21, §2.3 and §3.2).
//!
//! | scheme | code | chunks of a rack |
//! |--|--|--|
//! | combined locality, CL | an LRC | f of one local group |
//! | parity locality, LRC | the same LRC | one |
//! | topology locality, TL | Reed–Solomon | f |

use striate_codec::CodeSpec;
use striate_plan::{WideError, WideGeometry};

/// How chunks are spread over racks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scheme {
    /// Each local group in its own racks, f chunks per rack.
    Combined,
    /// Each chunk in its own rack.
    Flat,
    /// f chunks per rack, in order.
    Topology,
}

/// Returns the rack of each of the n chunks, counted from 0.
///
/// # Errors
/// [`WideError`] for [`Scheme::Combined`] with a code that is not wide.
pub fn racks_of(code: CodeSpec, scheme: Scheme) -> Result<Vec<usize>, WideError> {
    let chunks = 0..code.chunk_count();
    match scheme {
        Scheme::Flat => Ok(chunks.collect()),
        Scheme::Topology => Ok(chunks.map(|chunk| chunk / code.tolerance().max(1)).collect()),
        Scheme::Combined => WideGeometry::new(code).map(|geometry| geometry.parts_of_chunks()),
    }
}

#[cfg(test)]
mod tests {
    use striate_core::{Profile, RackId, SiteId};
    use striate_plan::{PlacementRule, check_placement, repair_by_racks};

    use super::*;

    /// Returns the sums across racks needed to repair each chunk in its own rack.
    fn sums(code: &str, scheme: Scheme) -> Vec<usize> {
        let spec: CodeSpec = code.parse().unwrap();
        let code = spec.build().unwrap();
        let racks: Vec<RackId> =
            racks_of(spec, scheme).unwrap().iter().map(|rack| RackId(format!("rack{rack}"))).collect();
        let racks: Vec<&RackId> = racks.iter().collect();
        let of = |lost: usize| {
            let costs = vec![Some(1.0); code.n()];
            repair_by_racks(&code, lost, &costs, &racks, racks[lost]).unwrap().sums_across_racks
        };
        (0..code.n()).map(of).collect()
    }

    #[test]
    fn a_data_chunk_takes_one_seven_and_sixteen_sums() {
        assert_eq!(sums("wide(64,7,4)", Scheme::Combined)[..63], [1; 63]);
        assert_eq!(sums("wide(64,7,4)", Scheme::Flat)[..63], [7; 63]);
        assert_eq!(sums("rs(64,4)", Scheme::Topology), [16; 68]);
    }

    #[test]
    fn combined_locality_is_what_the_rule_of_wide_stripes_admits() {
        for code in ["wide(32,7,4)", "wide(64,7,4)", "wide(64,11,4)", "wide(96,7,2)", "wide(128,27,4)"] {
            let profile: Profile = code.parse().unwrap();
            let racks = racks_of(profile.code, Scheme::Combined).unwrap();
            let rule = PlacementRule::new(&profile, &profile.code.build().unwrap(), racks.len());
            let sites: Vec<SiteId> = (1..=racks.len() as u32).map(SiteId).collect();
            let ids: Vec<RackId> = racks.iter().map(|rack| RackId(rack.to_string())).collect();
            check_placement(&rule, &sites, |site| ids.get(site.0 as usize - 1)).unwrap();
        }
    }
}
