//! Checks whether the racks suit a wide profile. `pack status` and `status` show the warnings, since sealing cannot
//! fix the racks.

use std::collections::BTreeMap;

use striate_core::RackId;
use striate_meta::keys;
use striate_meta::records::Bucket;
use striate_plan::WideGeometry;
use striate_stripe::{StripeError, Stripes};

use super::durability::durability_warnings_of;
use super::{SealOptions, cold_of, geometry_of};
use crate::packing::journal::sealed_figures;
use crate::rows::Rows;

/// Cold data chunks by rack.
pub(super) type RackCounts = BTreeMap<RackId, u64>;

/// Returns what is wrong with the racks for this geometry, as text. `rack_sizes` are the numbers of sites of the
/// existing racks.
///
/// A wide stripe takes at most c of its k members from a rack. If a rack holds a larger share of the cold data, the
/// rest of it waits forever, however much is sealed.
pub(super) fn warnings(geometry: &WideGeometry, rack_sizes: &[usize], in_racks: &RackCounts) -> Vec<String> {
    let mut warnings: Vec<String> = missing_racks(geometry, rack_sizes).into_iter().collect();
    let all: u64 = in_racks.values().sum();
    let most = geometry.c() as f64 / geometry.k() as f64;
    // A few chunks do not show how the racks are filled.
    if all < 4 * geometry.k() as u64 {
        return warnings;
    }
    for (rack, &count) in in_racks {
        let share = count as f64 / all as f64;
        if share > most {
            warnings.push(format!(
                "{rack} holds {:.1}% of the cold data, and {} takes {:.1}% from a rack at most: the rest waits; move chunks to other \
                 racks, or choose a code with fewer data chunks",
                100.0 * share,
                geometry.profile(),
                100.0 * most
            ));
        }
    }
    warnings
}

/// Warns if no rack is left in which to rebuild a lost one, or if racks have too few sites. A rack counts only if it
/// has all the sites that stripes need there, as when a bucket gets its profile.
fn missing_racks(geometry: &WideGeometry, rack_sizes: &[usize]) -> Option<String> {
    let (profile, z, sites) = (geometry.profile(), geometry.z(), geometry.sites_per_rack_needed());
    let roomy = geometry.roomy_racks(rack_sizes);
    let smaller = rack_sizes.len() - roomy;
    if roomy > z {
        None
    } else if roomy == z && smaller == 0 {
        Some(format!(
            "{profile} uses all {z} racks, so a lost rack cannot be rebuilt until it is back; add a rack"
        ))
    } else if roomy == z {
        Some(format!(
            "{profile} uses all {z} racks that have {sites} sites or more, so a lost rack cannot be rebuilt until it is back; add \
             sites to the smaller racks"
        ))
    } else {
        Some(format!(
            "{profile} needs {} racks with {sites} sites or more, and there are {roomy}: what is lost may not be rebuilt until it \
             is back; add sites or racks",
            geometry.racks_needed()
        ))
    }
}

/// Returns the buckets whose cold data does not suit the racks or becomes less durable, with the warnings as text.
/// They come from the last survey of cold data; if there was none under the bucket's profiles yet, from what is known
/// without one.
///
/// # Errors
/// When the metadata store fails.
pub async fn cold_warnings(stripes: &Stripes) -> Result<BTreeMap<String, Vec<String>>, StripeError> {
    let mut found = BTreeMap::new();
    let mut rows = Rows::with_prefix(keys::BUCKETS);
    while let Some(page) = rows.next(stripes).await? {
        for row in page {
            let bucket: Bucket = row.record()?;
            let Some(options) = cold_of(stripes, &bucket)? else { continue };
            let warnings = warnings_of(stripes, &bucket.name, &options).await?;
            if !warnings.is_empty() {
                found.insert(bucket.name, warnings);
            }
        }
    }
    Ok(found)
}

async fn warnings_of(
    stripes: &Stripes,
    bucket: &str,
    options: &SealOptions,
) -> Result<Vec<String>, StripeError> {
    let survey = sealed_figures(stripes, bucket).await?;
    let survey = survey.filter(|survey| survey.profile == options.profile_texts());
    if let Some(survey) = survey {
        return Ok(survey.warnings);
    }
    let (sizes, nothing) = (stripes.rack_sizes(), RackCounts::new());
    let warnings_under = |profile| Ok(warnings(&geometry_of(profile)?, &sizes, &nothing));
    let each: Vec<Vec<String>> =
        options.profiles().iter().map(warnings_under).collect::<Result<_, StripeError>>()?;
    Ok([each.concat(), durability_warnings_of(stripes, bucket).await?].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn racks(counts: &[u64]) -> RackCounts {
        (1..).zip(counts).map(|(rack, &count)| (RackId(format!("rack{rack}")), count)).collect()
    }

    #[test]
    fn racks_that_hold_too_much_and_a_missing_spare_one_are_named() {
        let geometry = WideGeometry::new("wide(10,5,3)".parse().unwrap()).unwrap();
        assert_eq!((geometry.z(), geometry.c()), (5, 3));
        assert!(warnings(&geometry, &[4; 6], &racks(&[20, 20, 20, 20, 20, 20])).is_empty());
        let few = warnings(&geometry, &[4; 5], &racks(&[3, 1]));
        assert!(few.len() == 1 && few[0].contains("all 5 racks,"), "{few:?}");
        let uneven = warnings(&geometry, &[4; 6], &racks(&[50, 10, 10, 10, 10, 10]));
        assert!(uneven.len() == 1 && uneven[0].starts_with("rack1 holds 50.0%"), "{uneven:?}");
    }

    #[test]
    fn racks_with_too_few_sites_do_not_count() {
        let geometry = WideGeometry::new("wide(10,5,3)".parse().unwrap()).unwrap();
        let of = |sizes: &[usize]| warnings(&geometry, sizes, &RackCounts::new());
        assert!(of(&[4, 4, 4, 4, 4, 9, 1]).is_empty());
        let no_spare = of(&[4, 4, 4, 4, 4, 1]);
        assert!(no_spare.len() == 1 && no_spare[0].contains("all 5 racks that have 4 sites"), "{no_spare:?}");
        let too_few = of(&[4, 4, 4, 3, 3, 3, 3]);
        assert!(
            too_few.len() == 1 && too_few[0].contains("needs 6 racks with 4 sites or more, and there are 3")
        );
    }
}
