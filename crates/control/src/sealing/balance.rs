//! Whether racks suit a wide profile: what `pack status` and `status` warn of, since sealing cannot mend it.

use std::collections::BTreeMap;

use striate_core::RackId;
use striate_meta::keys;
use striate_meta::records::{Bucket, PackedBucket};
use striate_plan::WideGeometry;
use striate_stripe::{StripeError, Stripes};

use super::{SealOptions, cold_of, geometry_of};
use crate::rows::Rows;

/// Cold data chunks by the racks that they are in.
pub(super) type InRacks = BTreeMap<RackId, u64>;

/// What is amiss, in words. `racks` is how many racks there are.
///
/// A wide stripe takes at most c of its k members from a rack. Where one holds a larger share of what is cold, the rest of it waits for
/// ever, however much is sealed.
pub(super) fn warnings(geometry: &WideGeometry, racks: usize, in_racks: &InRacks) -> Vec<String> {
    let mut warnings = Vec::new();
    if racks == geometry.z() {
        warnings.push(format!(
            "{} uses all {racks} racks, so a lost rack cannot be rebuilt until it is back; add a rack",
            geometry.profile()
        ));
    }
    let all: u64 = in_racks.values().sum();
    let most = geometry.c() as f64 / geometry.k() as f64;
    // A few chunks say nothing of how racks are filled.
    if all < 4 * geometry.k() as u64 {
        return warnings;
    }
    for (rack, &count) in in_racks {
        let share = count as f64 / all as f64;
        if share > most {
            warnings.push(format!(
                "{rack} holds {:.1}% of what is cold, and {} takes {:.1}% from a rack at most: the rest waits; move chunks to other \
                 racks, or choose a code with fewer data chunks",
                100.0 * share,
                geometry.profile(),
                100.0 * most
            ));
        }
    }
    warnings
}

/// The buckets whose cold data the racks do not suit, and what is amiss, in words: as the last look at what is cold has found it, or,
/// where there was none under the bucket's profiles yet, whether a spare rack is missing.
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
    let row = stripes.meta().get(&keys::packed_bucket(bucket)).await?;
    let seen: Option<PackedBucket> = row.map(|row| row.record()).transpose()?;
    let seen = seen.and_then(|seen| seen.sealed).filter(|seen| seen.profile == options.profile_texts());
    if let Some(seen) = seen {
        return Ok(seen.warnings);
    }
    let (racks, nothing) = (stripes.rack_count(), InRacks::new());
    let of = |profile| Ok(warnings(&geometry_of(profile)?, racks, &nothing));
    let each: Vec<Vec<String>> = options.profiles().iter().map(of).collect::<Result<_, StripeError>>()?;
    Ok(each.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn racks(counts: &[u64]) -> InRacks {
        (1..).zip(counts).map(|(rack, &count)| (RackId(format!("rack{rack}")), count)).collect()
    }

    #[test]
    fn racks_that_hold_too_much_and_a_missing_spare_one_are_named() {
        let geometry = WideGeometry::new("wide(10,5,3)".parse().unwrap()).unwrap();
        assert_eq!((geometry.z(), geometry.c()), (5, 3));
        assert!(warnings(&geometry, 6, &racks(&[20, 20, 20, 20, 20, 20])).is_empty());
        let few = warnings(&geometry, 5, &racks(&[3, 1]));
        assert!(few.len() == 1 && few[0].contains("all 5 racks"), "{few:?}");
        let uneven = warnings(&geometry, 6, &racks(&[50, 10, 10, 10, 10, 10]));
        assert!(uneven.len() == 1 && uneven[0].starts_with("rack1 holds 50.0%"), "{uneven:?}");
    }
}
