//! A bucket's profiles besides its own: the cold profile, and those of storage classes.
//!
//! A class's profile is one that objects are written under, or a wide one. Objects of a class with a wide profile are
//! written under the bucket's profile, and sealed into wide stripes of the class's (`striate_control::seal_bucket`).

use std::collections::BTreeMap;

use striate_core::formats::WIDE;
use striate_core::{Layout, Profile, StorageClass, Tier};
use striate_meta::records::{Bucket, ClassProfile, Cold, Site, site};
use striate_meta::{RowPages, ScanRange, keys};
use striate_plan::WideGeometry;

use crate::record::check_supported;
use crate::{ClassSetting, Client, ClientError, ColdSetting};

/// Number of rows of sites that are read together.
const PAGE: usize = 1_000;

/// Where a bucket's objects are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    Disks,
    Memory,
    OtherStore,
}

impl Home {
    pub(crate) fn of(has_origin: bool, profile: &Profile) -> Self {
        match profile.tier {
            _ if has_origin => Self::OtherStore,
            Tier::Memory => Self::Memory,
            Tier::Disk => Self::Disks,
        }
    }

    /// Checks that the objects are on the store's disks. `setting` is what only such buckets have, and "is" or "are".
    pub(crate) fn check_suits(self, setting: &str) -> Result<(), ClientError> {
        let place = match self {
            Self::Disks => return Ok(()),
            Self::Memory => "in memory only",
            Self::OtherStore => "in another store",
        };
        invalid(format!("the bucket's objects are {place}: {setting} for what is on the store's disks"))
    }
}

fn invalid<T>(reason: impl Into<String>) -> Result<T, ClientError> {
    Err(ClientError::InvalidArgument(reason.into()))
}

pub(crate) fn cold_record(cold: &ColdSetting) -> Cold {
    Cold { profile: cold.profile.to_string(), after_s: cold.after.as_secs() }
}

/// Applies `settings` to a bucket's classes, and keeps these in the order of the classes.
pub(crate) fn change_classes(classes: &mut Vec<ClassProfile>, settings: &[ClassSetting]) {
    for &ClassSetting { class, profile, .. } in settings {
        classes.retain(|record| record.class != class.name());
        let record =
            |profile: Profile| ClassProfile { class: class.name().to_owned(), profile: profile.to_string() };
        classes.extend(profile.map(record));
    }
    classes.sort_by_key(|record| StorageClass::of_row(&record.class));
}

impl Client {
    /// Checks that cold data can be sealed this way on the present racks.
    pub(crate) fn check_cold(
        &self,
        profile: &Profile,
        without_spare_rack: bool,
        home: Home,
    ) -> Result<(), ClientError> {
        self.check_formats()?;
        home.check_suits("cold profiles are")?;
        if profile.layout != Layout::Wide {
            return invalid(format!("{profile} is not a wide profile; write, for example, wide(128,27,4)"));
        }
        self.check_wide(profile, without_spare_rack)
    }

    /// Checks that classes may have such profiles in a bucket with its objects there.
    pub(crate) fn check_classes(&self, settings: &[ClassSetting], home: Home) -> Result<(), ClientError> {
        if settings.is_empty() {
            return Ok(());
        }
        self.check_formats()?;
        home.check_suits("profiles of storage classes are")?;
        let mut named = BTreeMap::new();
        for &ClassSetting { class, profile, without_spare_rack } in settings {
            if named.insert(class, ()).is_some() {
                return invalid(format!("{class} is named twice"));
            }
            let Some(profile) = profile else { continue };
            let checked = match profile.layout {
                Layout::Wide => self.check_wide(&profile, without_spare_rack),
                Layout::Split => self.check_narrow(&profile),
                Layout::Packed => {
                    invalid("the bucket says whether small objects are packed: leave the word out")
                }
            };
            checked.map_err(|error| match error {
                ClientError::InvalidArgument(reason) => {
                    ClientError::InvalidArgument(format!("{class}: {reason}"))
                }
                other => other,
            })?;
        }
        Ok(())
    }

    fn check_formats(&self) -> Result<(), ClientError> {
        if self.inner.stripes.formats().records < WIDE {
            return invalid(
                "older programs do not read wide stripes and classes' profiles; run `striate admin upgrade finalize` first",
            );
        }
        Ok(())
    }

    /// Checks that objects can be written under a class's profile.
    fn check_narrow(&self, profile: &Profile) -> Result<(), ClientError> {
        if profile.tier != Tier::Disk {
            return invalid(format!("{profile} keeps objects in memory only: a bucket of its own does that"));
        }
        check_supported(profile, self.inner.stripes.formats())?;
        let (chunks, sites) = (profile.code.chunk_count(), self.inner.stripes.sites().len());
        match chunks <= sites {
            true => Ok(()),
            false => invalid(format!("{profile} needs {chunks} sites, there are {sites}")),
        }
    }

    /// Checks that the cluster has as many sites as a requested profile has chunks: otherwise every write would leave debt
    /// that nothing can pay. Lost sites count: what they lack is paid once they are replaced.
    pub(crate) async fn check_placeable(&self, profile: &Profile) -> Result<(), ClientError> {
        let (chunks, known) = (profile.code.chunk_count(), self.inner.stripes.sites().len());
        if profile.tier == Tier::Memory || chunks <= known {
            return Ok(());
        }
        // This process does not know sites that were lost before it started.
        let mut members = 0;
        let mut pages = RowPages::new(ScanRange::prefix(keys::SITES), PAGE);
        while let Some(page) = pages.next(&**self.inner.stripes.meta()).await? {
            for row in &page {
                members += usize::from(row.record::<Site>()?.state() != site::State::Retired);
            }
        }
        match members.max(known) {
            sites if chunks <= sites => Ok(()),
            sites => invalid(format!("{profile} needs {chunks} sites, there are {sites}")),
        }
    }

    /// Checks that wide stripes of a profile fit the present racks.
    fn check_wide(&self, profile: &Profile, without_spare_rack: bool) -> Result<(), ClientError> {
        if profile.tier != Tier::Disk {
            return invalid(format!("{profile} is not a wide profile; write, for example, wide(128,27,4)"));
        }
        let geometry = WideGeometry::of_profile(profile)
            .map_err(|error| ClientError::InvalidArgument(error.to_string()))?;
        let sizes = self.inner.stripes.rack_sizes();
        let Err(misfit) = geometry.check_fits_racks(&sizes) else { return Ok(()) };
        match geometry.roomy_racks(&sizes) == geometry.z() {
            true if without_spare_rack => Ok(()),
            true => invalid(format!(
                "{misfit}; with --allow-no-spare-rack it takes all {} racks, and a lost one cannot be rebuilt before it is back",
                geometry.z()
            )),
            false if without_spare_rack => invalid(misfit.without_spare_rack().to_string()),
            false => invalid(misfit.to_string()),
        }
    }

    /// Returns the profile of a new object: the request's, that of its storage class unless wide, the bucket's, or
    /// the cluster's.
    ///
    /// # Errors
    /// [`ClientError::InvalidArgument`] for a malformed or unsupported profile.
    pub(crate) fn profile_for(
        &self,
        wish: Option<Profile>,
        class: StorageClass,
        bucket: &Bucket,
    ) -> Result<Profile, ClientError> {
        let of_bucket = self.profile_of_bucket(bucket)?;
        let Some(profile) = wish else {
            let profile = self.profile_of_class(class, bucket)?.unwrap_or(of_bucket);
            check_supported(&profile, self.inner.stripes.formats())?;
            return Ok(profile);
        };
        if profile.tier != of_bucket.tier {
            return invalid(
                "objects are in memory only in buckets that are volatile, and nowhere else there",
            );
        }
        check_supported(&profile, self.inner.stripes.formats())?;
        Ok(profile)
    }

    /// Returns where the bucket's objects are.
    ///
    /// # Errors
    /// [`ClientError::InvalidArgument`] for a malformed profile.
    pub(crate) fn home_of(&self, bucket: &Bucket) -> Result<Home, ClientError> {
        Ok(Home::of(bucket.origin.is_some(), &self.profile_of_bucket(bucket)?))
    }

    /// Returns the bucket's own profile, or the cluster's.
    ///
    /// # Errors
    /// [`ClientError::InvalidArgument`] for a malformed profile.
    pub(crate) fn profile_of_bucket(&self, bucket: &Bucket) -> Result<Profile, ClientError> {
        match bucket.profile.as_str() {
            "" => Ok(self.default_profile()),
            text => Ok(self.inner.stripes.profiles().parse(text)?),
        }
    }

    /// Returns the profile under which objects of a class are written, if the class has its own and it is not wide.
    pub(crate) fn profile_of_class(
        &self,
        class: StorageClass,
        bucket: &Bucket,
    ) -> Result<Option<Profile>, ClientError> {
        let Some(text) = bucket.profile_of_class(class) else { return Ok(None) };
        let profile = self.inner.stripes.profiles().parse(text)?;
        Ok(Some(profile).filter(|profile| profile.layout != Layout::Wide))
    }
}
