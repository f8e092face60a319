//! Decides whether a copy of an object onto itself re-encodes its bytes, because its new storage class has another
//! code.

use std::collections::{BTreeMap, BTreeSet};

use striate_core::{Layout, Profile, StorageClass, StripeId};
use striate_meta::records::{Bucket, Object, Stripe};
use striate_stripe::wide_of;

use crate::blocks::BlockWalk;
use crate::{Client, ClientError};

/// Number of stripe records read together.
const PAGE: usize = 300;
/// Maximum number of stripes of an object examined: those of the largest object that is copied at once, in parts of 5
/// MiB.
const MOST_STRIPES: usize = 2_048;

impl Client {
    /// Whether the code under which an object is written changes: the class that it enters, or the one that it
    /// leaves, has a profile of its own to write under, and objects of the new class are written under another
    /// profile than the object's.
    ///
    /// # Errors
    /// [`ClientError::InvalidArgument`] for a malformed profile.
    pub(crate) fn is_recoded(
        &self,
        bucket: &Bucket,
        old: &Object,
        class: StorageClass,
    ) -> Result<bool, ClientError> {
        let (before, after) =
            (self.profile_of_class(old.class(), bucket)?, self.profile_of_class(class, bucket)?);
        let leaves = before.filter(|_| old.class() != class);
        if leaves.or(after).is_none() {
            return Ok(false);
        }
        let to_be = self.profile_for(None, class, bucket)?;
        let is = self.inner.stripes.profiles().parse(&old.profile)?;
        // A packed object keeps the profile under which it would be packed again.
        let split = |profile| Profile { layout: Layout::Split, ..profile };
        Ok(split(is) != split(to_be))
    }

    /// Whether an object's bytes are in wide stripes of another profile than its new class's. A sealed stripe keeps
    /// its profile, so only newly written bytes come under the new one. If neither class has a wide profile, both
    /// follow the bucket's cold profile, and nothing is examined.
    ///
    /// # Errors
    /// [`ClientError::InvalidArgument`] for a malformed profile; also when the metadata cannot be read.
    pub(crate) async fn is_sealed_otherwise(
        &self,
        bucket: &Bucket,
        object: &Object,
        class: StorageClass,
    ) -> Result<bool, ClientError> {
        let (before, after) =
            (self.wide_profile_of_class(object.class(), bucket)?, self.wide_profile_of_class(class, bucket)?);
        if before.or(after).is_none() {
            return Ok(false);
        }
        let cold = bucket.cold.as_ref().map(|cold| self.inner.stripes.profiles().parse(&cold.profile));
        let to_be = after.or(cold.transpose()?);
        match self.sealed_profiles(object).await {
            Ok(sealed) => Ok(sealed.into_iter().any(|profile| Some(profile) != to_be)),
            // The object was replaced meanwhile: its replacement is not sealed yet.
            Err(ClientError::Inconsistent { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn wide_profile_of_class(
        &self,
        class: StorageClass,
        bucket: &Bucket,
    ) -> Result<Option<Profile>, ClientError> {
        let own = bucket.profile_of_class(class).map(|text| self.inner.stripes.profiles().parse(text));
        Ok(own.transpose()?.filter(|profile| profile.layout == Layout::Wide))
    }

    /// Returns the profiles of the wide stripes that contain an object's data chunks.
    async fn sealed_profiles(&self, object: &Object) -> Result<Vec<Profile>, ClientError> {
        let Some(body) = object.body.clone() else { return Ok(Vec::new()) };
        let mut walk = BlockWalk::new(self.clone(), body, 0..object.size)?;
        let mut stripes = BTreeSet::new();
        while let Some(span) = walk.next().await? {
            stripes.extend(span.of.stripe());
            if stripes.len() == MOST_STRIPES {
                break;
            }
        }
        let mut wide = BTreeSet::new();
        for (_, record) in self.records_of(stripes).await? {
            wide.extend(record.locations.iter().filter_map(wide_of).map(|(id, _)| id));
        }
        let texts: BTreeSet<String> =
            self.records_of(wide).await?.into_values().map(|record| record.profile).collect();
        Ok(texts.iter().map(|text| self.inner.stripes.profiles().parse(text)).collect::<Result<_, _>>()?)
    }

    /// Returns the records of those stripes that exist.
    async fn records_of(&self, ids: BTreeSet<StripeId>) -> Result<BTreeMap<StripeId, Stripe>, ClientError> {
        let ids: Vec<StripeId> = ids.into_iter().collect();
        let mut records = BTreeMap::new();
        for page in ids.chunks(PAGE) {
            records.extend(self.inner.stripes.records_of(page).await?);
        }
        Ok(records)
    }
}
