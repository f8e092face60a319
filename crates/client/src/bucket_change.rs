//! Changes of a bucket's settings: all that one request names, or nothing.

use serde::{Deserialize, Serialize};
use striate_core::Packing;
use striate_meta::records::Bucket;

use crate::bucket_profiles::{change_classes, cold_record};
use crate::{ClassSetting, Client, ClientError, ColdSetting};

/// A change of one setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettingChange<T> {
    /// The bucket has no such setting of its own any more.
    Clear,
    /// The bucket has this setting.
    Set(T),
}

impl<T> SettingChange<T> {
    /// Converts the new setting.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> SettingChange<U> {
        match self {
            Self::Clear => SettingChange::Clear,
            Self::Set(setting) => SettingChange::Set(convert(setting)),
        }
    }
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
    pub cold: Option<SettingChange<ColdSetting>>,
    /// Profiles of storage classes; classes not named stay as they are. Existing objects keep their profiles until they
    /// are copied.
    pub classes: Vec<ClassSetting>,
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
            Some(SettingChange::Set(cold)) => bucket.cold = Some(cold_record(cold)),
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
            self.check_cold(cold, home)?;
        }
        self.check_classes(&change.classes, home)?;
        self.update_bucket(name, |bucket| change.apply(bucket)).await
    }

    /// As [`Client::change_bucket`], for the sealing of cold data only; `None` stops it.
    ///
    /// # Errors
    /// As [`Client::change_bucket`].
    pub async fn set_cold(&self, name: &str, cold: Option<ColdSetting>) -> Result<(), ClientError> {
        self.change_bucket(name, BucketChange { cold: Some(cold.into()), ..BucketChange::default() }).await
    }

    /// As [`Client::change_bucket`], for the profiles of storage classes only.
    ///
    /// # Errors
    /// As [`Client::change_bucket`].
    pub async fn set_classes(&self, name: &str, settings: &[ClassSetting]) -> Result<(), ClientError> {
        self.change_bucket(name, BucketChange { classes: settings.to_vec(), ..BucketChange::default() }).await
    }
}
