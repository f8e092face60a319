//! Changes of a bucket's settings: all that one request names, or nothing.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use striate_core::{Packing, Profile};
use striate_meta::records::{Bucket, Cold};

use crate::bucket_profiles::{Home, change_classes};
use crate::{ClassSetting, Client, ClientError, ColdSetting};

/// Time without a change after which data is cold, where nothing else is said: 30 days.
pub const USUAL_COLD_AFTER: Duration = Duration::from_secs(30 * 24 * 3_600);

/// A change of one setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettingChange<T> {
    /// The bucket has no such setting of its own any more.
    Clear,
    /// The bucket has this setting.
    Set(T),
}

impl<T> From<Option<T>> for SettingChange<T> {
    fn from(setting: Option<T>) -> Self {
        setting.map_or(Self::Clear, Self::Set)
    }
}

/// Changes of a bucket's settings; what is `None` stays as it is.
#[derive(Clone, Debug, Default)]
pub struct BucketChange {
    /// Whether its small objects are packed. A bucket without a setting follows its profile, or else the store.
    pub packing: Option<SettingChange<Packing>>,
    /// How its cold data is sealed. Without a setting no more is sealed; what is sealed stays so.
    pub cold: Option<SettingChange<ColdChange>>,
    /// Profiles of storage classes; classes not named stay as they are. Existing objects keep their profiles until they
    /// are copied.
    pub classes: Vec<ClassSetting>,
}

/// A change of how cold data is sealed; what is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColdChange {
    /// Wide profile.
    pub profile: Option<Profile>,
    /// Seconds without a change after which data is cold.
    pub after_s: Option<u64>,
    /// Whether the profile may need all existing racks.
    #[serde(default)]
    pub without_spare_rack: bool,
}

impl From<ColdSetting> for ColdChange {
    fn from(setting: ColdSetting) -> Self {
        let ColdSetting { profile, after, without_spare_rack } = setting;
        Self { profile: Some(profile), after_s: Some(after.as_secs()), without_spare_rack }
    }
}

impl ColdChange {
    /// Returns the setting after the change; `None` if there is still no profile.
    fn apply(&self, before: Option<&Cold>) -> Option<Cold> {
        let named = self.profile.map(|profile| profile.to_string());
        let profile = named.or_else(|| before.map(|cold| cold.profile.clone()))?;
        let after_s = self.after_s.or(before.map(|cold| cold.after_s)).unwrap_or(USUAL_COLD_AFTER.as_secs());
        Some(Cold { profile, after_s })
    }
}

impl BucketChange {
    fn apply(&self, bucket: &mut Bucket) {
        match self.packing {
            None => {}
            Some(SettingChange::Clear) => bucket.packing.clear(),
            Some(SettingChange::Set(packing)) => bucket.packing = packing.to_string(),
        }
        match &self.cold {
            None => {}
            Some(SettingChange::Clear) => bucket.cold = None,
            Some(SettingChange::Set(cold)) => bucket.cold = cold.apply(bucket.cold.as_ref()),
        }
        change_classes(&mut bucket.classes, &self.classes);
    }
}

impl Client {
    /// Changes settings of a bucket: all that `change` names, or none.
    ///
    /// # Errors
    /// [`ClientError::NoSuchBucket`]; [`ClientError::InvalidArgument`] for what does not fit the store, and for a bucket
    /// whose objects are not on the store's disks.
    pub async fn change_bucket(&self, name: &str, change: BucketChange) -> Result<(), ClientError> {
        let bucket = self.bucket(name).await?;
        let home = self.home_of(&bucket)?;
        if let Some(SettingChange::Set(packing)) = change.packing {
            self.check_packing(packing, home, &self.profile_of_bucket(&bucket)?)?;
        }
        if let Some(SettingChange::Set(cold)) = &change.cold {
            self.check_cold_change(cold, &bucket, home)?;
        }
        self.check_classes(&change.classes, home)?;
        self.update_bucket(name, |bucket| change.apply(bucket)).await
    }

    fn check_cold_change(&self, change: &ColdChange, bucket: &Bucket, home: Home) -> Result<(), ClientError> {
        match change.profile {
            Some(profile) => self.check_cold(&profile, change.without_spare_rack, home),
            None if bucket.cold.is_some() => Ok(()),
            None => {
                let reason = "the bucket has no cold profile; give it one with --cold-profile";
                Err(ClientError::InvalidArgument(reason.to_owned()))
            }
        }
    }

    /// As [`Client::change_bucket`], for packing only; `None` follows the bucket's profile, or else the store. Returns the
    /// previous setting.
    ///
    /// # Errors
    /// As [`Client::change_bucket`].
    pub async fn set_packing(&self, name: &str, packing: Option<Packing>) -> Result<String, ClientError> {
        let before = self.bucket(name).await?.packing;
        let packing = Some(packing.into());
        self.change_bucket(name, BucketChange { packing, ..BucketChange::default() }).await?;
        Ok(before)
    }

    /// Turns the packing of a bucket off, before its packed objects are split. Returns the previous setting.
    ///
    /// # Errors
    /// As [`Client::change_bucket`].
    pub async fn stop_packing(&self, name: &str) -> Result<String, ClientError> {
        self.home_of(&self.bucket(name).await?)?.check_suits("packing is")?;
        self.set_packing(name, Some(Packing::Off)).await
    }

    /// As [`Client::change_bucket`], for the sealing of cold data only; `None` stops it.
    ///
    /// # Errors
    /// As [`Client::change_bucket`].
    pub async fn set_cold(&self, name: &str, cold: Option<ColdSetting>) -> Result<(), ClientError> {
        self.change_bucket(
            name,
            BucketChange { cold: Some(cold.map(ColdChange::from).into()), ..BucketChange::default() },
        )
        .await
    }

    /// As [`Client::change_bucket`], for the profiles of storage classes only.
    ///
    /// # Errors
    /// As [`Client::change_bucket`].
    pub async fn set_classes(&self, name: &str, settings: &[ClassSetting]) -> Result<(), ClientError> {
        self.change_bucket(name, BucketChange { classes: settings.to_vec(), ..BucketChange::default() }).await
    }
}
