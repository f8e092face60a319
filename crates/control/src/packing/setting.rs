//! Which buckets are packed: the bucket's own setting decides, else its profile, else the store's setting.

use std::fmt;

use striate_core::packing::FEWEST_SITES;
use striate_core::{Layout, Packing, Profile, StorageClass, Tier, formats};
use striate_meta::keys;
use striate_meta::records::Bucket;
use striate_stripe::{StripeError, Stripes};

use crate::rows::find_record;

/// Decision whether a bucket is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackDecision {
    /// Packed into partitions of at most this many bytes.
    Packs(u32),
    /// Not packed.
    Stays(SkipReason),
}

/// Reason why a bucket is not packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// The bucket is being deleted.
    Deleting,
    /// Its objects are in memory only.
    Volatile,
    /// Its objects are in another S3 store.
    Origin,
    /// Its code has one data chunk: there is nothing to code together.
    Whole,
    /// Older programs of the store could not read packed objects.
    Formats,
    /// The bucket's own setting is off.
    Bucket,
    /// The store's setting is off.
    Store,
    /// There are too few sites for [`Packing::Auto`].
    FewSites,
    /// Its code has more chunks than there are sites.
    WideCode,
}

impl SkipReason {
    /// Returns whether cold data of such a bucket can still be sealed: its stripes are on the store's disks, and
    /// stay.
    pub(crate) fn allows_sealing(self) -> bool {
        match self {
            Self::Deleting | Self::Volatile | Self::Origin | Self::Formats => false,
            Self::Whole | Self::Bucket | Self::Store | Self::FewSites | Self::WideCode => true,
        }
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deleting => "the bucket is being deleted",
            Self::Volatile => "its objects are in memory only",
            Self::Origin => "its objects are in another store",
            Self::Whole => "its code keeps whole copies: packing is for rs and lrc",
            Self::Formats => {
                "older programs do not read packed objects; run `striate admin upgrade finalize` first"
            }
            Self::Bucket => "its own setting is off",
            Self::Store => "the store's --pack is off",
            Self::FewSites => "the store has fewer than six sites, so --pack auto does not apply",
            Self::WideCode => "its code has more chunks than there are sites",
        })
    }
}

/// Returns a bucket's profile: its own, or the store's.
///
/// # Errors
/// [`StripeError::InvalidArgument`] for a text that is not a profile.
pub(crate) fn profile_of(
    stripes: &Stripes,
    bucket: &Bucket,
    default: &Profile,
) -> Result<Profile, StripeError> {
    match bucket.profile.as_str() {
        "" => Ok(*default),
        text => stripes.profiles().parse(text),
    }
}

/// Returns the profile for objects of a class before they are cold: the class's own if it has one that is not wide,
/// else the bucket's, or the store's.
///
/// # Errors
/// [`StripeError::InvalidArgument`] for a text that is not a profile.
pub(crate) fn profile_of_class(
    stripes: &Stripes,
    bucket: &Bucket,
    default: &Profile,
    class: StorageClass,
) -> Result<Profile, StripeError> {
    let own = bucket.profile_of_class(class).map(|text| stripes.profiles().parse(text)).transpose()?;
    match own.filter(|profile| profile.layout != Layout::Wide) {
        Some(profile) => Ok(profile),
        None => profile_of(stripes, bucket, default),
    }
}

/// Returns a bucket's own choice: by its setting, or by the layout of its own profile.
///
/// # Errors
/// [`StripeError::InvalidArgument`] for a text that is neither a setting nor a profile.
pub(crate) fn own_packing(stripes: &Stripes, bucket: &Bucket) -> Result<Option<Packing>, StripeError> {
    if !bucket.packing.is_empty() {
        let invalid = |error: striate_core::PackingError| StripeError::InvalidArgument(error.to_string());
        return bucket.packing.parse().map(Some).map_err(invalid);
    }
    if bucket.profile.is_empty() {
        return Ok(None);
    }
    let is_packed = stripes.profiles().parse(&bucket.profile)?.layout == Layout::Packed;
    // An explicit layout is a choice: unlike `auto` it holds for any number of sites.
    Ok(is_packed.then_some(Packing::Partitions(striate_core::packing::PARTITION_LEN)))
}

/// Returns the longest partition by a bucket's own setting; `usual` if it has none, or the bucket is no longer
/// packed.
///
/// # Errors
/// When the metadata store fails, or the bucket's texts cannot be parsed.
pub(crate) async fn longest_partition(
    stripes: &Stripes,
    bucket: &str,
    usual: u32,
) -> Result<u32, StripeError> {
    let Some(bucket) = find_record(stripes, &keys::bucket(bucket)).await? else { return Ok(usual) };
    let own = own_packing(stripes, &bucket)?;
    Ok(own.and_then(Packing::partition_len).unwrap_or(usual))
}

/// Decides whether a bucket is packed in a store with the setting `store` and the profile `default`.
///
/// # Errors
/// When the bucket's texts cannot be parsed.
pub fn decide_packing(
    stripes: &Stripes,
    bucket: &Bucket,
    default: &Profile,
    store: Packing,
) -> Result<PackDecision, StripeError> {
    let own = own_packing(stripes, bucket)?;
    let stays = |why| Ok(PackDecision::Stays(why));
    if let Some(why) = impossible(stripes, bucket, default)? {
        return stays(why);
    }
    let is_usual = bucket.profile.is_empty() && default.layout == Layout::Packed;
    match own.unwrap_or(store) {
        Packing::Off => stays(if own.is_some() { SkipReason::Bucket } else { SkipReason::Store }),
        Packing::Auto if stripes.sites().len() < FEWEST_SITES && !is_usual => stays(SkipReason::FewSites),
        setting => {
            Ok(setting.partition_len().map_or(PackDecision::Stays(SkipReason::Store), PackDecision::Packs))
        }
    }
}

/// Returns why a bucket cannot be packed, whatever the settings; `None` if it can.
///
/// # Errors
/// When the bucket's profile cannot be parsed.
pub(crate) fn impossible(
    stripes: &Stripes,
    bucket: &Bucket,
    default: &Profile,
) -> Result<Option<SkipReason>, StripeError> {
    if bucket.deleting {
        return Ok(Some(SkipReason::Deleting));
    }
    if bucket.origin.is_some() {
        return Ok(Some(SkipReason::Origin));
    }
    unpackable(stripes, &profile_of(stripes, bucket, default)?)
}

/// Returns why objects with this profile cannot be packed; `None` if they can.
///
/// # Errors
/// When the profile's code cannot be made.
pub(crate) fn unpackable(stripes: &Stripes, profile: &Profile) -> Result<Option<SkipReason>, StripeError> {
    let code = stripes.code(profile)?;
    let reasons = [
        (profile.tier == Tier::Memory, SkipReason::Volatile),
        (code.k() == 1, SkipReason::Whole),
        (stripes.formats().records < formats::PACKED, SkipReason::Formats),
        (code.n() > stripes.sites().len(), SkipReason::WideCode),
    ];
    Ok(reasons.into_iter().find_map(|(is_so, why)| is_so.then_some(why)))
}
