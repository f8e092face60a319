//! Whether sealed data survives as many losses as before: compares a bucket's wide profiles with those its objects
//! are written under.

use striate_core::{Layout, Profile};
use striate_meta::keys;
use striate_meta::records::Bucket;
use striate_stripe::{StripeError, Stripes};

use super::cold_of;
use crate::packing::service::default_profile;
use crate::packing::setting::profile_of;
use crate::rows::find_record;

/// Returns warnings about a bucket's sealing profiles that reduce durability, one for each wide profile. `default` is
/// the store's profile. Profiles that requests choose themselves are not considered.
///
/// # Errors
/// [`StripeError::InvalidArgument`] for a text that is not a profile.
pub fn durability_warnings(
    stripes: &Stripes,
    bucket: &Bucket,
    default: &Profile,
) -> Result<Vec<String>, StripeError> {
    let Some(options) = cold_of(stripes, bucket)? else { return Ok(Vec::new()) };
    let own = profile_of(stripes, bucket, default)?;
    let mut most_durable = own;
    for class in &bucket.classes {
        let profile = stripes.profiles().parse(&class.profile)?;
        if profile.layout != Layout::Wide && profile.code.tolerance() > most_durable.code.tolerance() {
            most_durable = profile;
        }
    }
    let warning = |wide: Profile| {
        // Data that is cold by its age may be of any class. Data sealed for its class was written under the bucket's
        // own profile.
        let narrow = if options.cold_profile == Some(wide) { most_durable } else { own };
        let (before, after) = (narrow.code.tolerance(), wide.code.tolerance());
        (after < before).then(|| {
            format!(
                "{wide} survives {after} losses and {narrow} {before}: sealing makes cold data less durable; choose a wide code \
                 with f = {before} or more"
            )
        })
    };
    Ok(options.profiles().into_iter().filter_map(warning).collect())
}

/// Like `durability_warnings`, for a bucket by its name. Empty if the bucket is gone, or the store has no profile
/// yet.
pub(super) async fn durability_warnings_of(
    stripes: &Stripes,
    bucket: &str,
) -> Result<Vec<String>, StripeError> {
    let Some(default) = default_profile(stripes).await? else { return Ok(Vec::new()) };
    match find_record(stripes, &keys::bucket(bucket)).await? {
        Some(bucket) => durability_warnings(stripes, &bucket, &default),
        None => Ok(Vec::new()),
    }
}
