//! Buckets.
//!
//! Deleting a bucket takes these steps (design.md §10.7). A mark makes every put and every new upload fail from then
//! on (their commits require the bucket's row unchanged). A scan looks for objects, and removes the mark if there are
//! any. The uploads, which do not keep a bucket alive, are aborted. Then the row is removed. Any process that finds
//! the mark finishes the work, so that a deleter that died leaves no bucket locked. A bucket seen empty behind its
//! mark can only be deleted: every step requires the marked row, so that a deleter that was overtaken aborts no
//! upload of a bucket that lives on.

use std::net::Ipv4Addr;

use striate_core::formats::{NOT_ON_DISKS, PACKED};
use striate_core::{Packing, Profile};
use striate_meta::records::{Bucket, Upload, encode};
use striate_meta::{Row, RowPages, ScanRange, keys};
use striate_stripe::id16;

use crate::bucket_profiles::{Home, change_classes, cold_record};
use crate::commit::{CommitFailure, abandon_parts};
use crate::record::check_supported;
use crate::{Client, ClientError, CreateBucket};

/// Attempts of an optimistic change of a bucket.
const MAX_ATTEMPTS: u32 = 64;
/// Maximum number of rows of buckets that are read together.
const PAGE: usize = 1_000;
/// Number of uploads that one transaction aborts, with three operations each.
const UPLOADS_AT_ONCE: usize = 30;

/// Checks a bucket name against S3's rules.
///
/// # Errors
/// [`ClientError::InvalidBucketName`] with the broken rule.
pub fn check_bucket_name(name: &str) -> Result<(), ClientError> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let reason = if !(3..=63).contains(&name.len()) {
        "it needs 3 to 63 characters"
    } else if !name.chars().all(|c| inner(c) || c == '-' || c == '.') {
        "only lower-case letters, digits, dots and hyphens are allowed"
    } else if !name.starts_with(inner) || !name.ends_with(inner) {
        "it must begin and end with a letter or digit"
    } else if name.contains("..") {
        "two dots must not be neighbours"
    } else if name.contains(".-") || name.contains("-.") {
        "a dot and a hyphen must not be neighbours"
    } else if name.parse::<Ipv4Addr>().is_ok() {
        "it must not look like an IP address"
    } else if ["xn--", "sthree-", "amzn-s3-demo-"].iter().any(|prefix| name.starts_with(prefix)) {
        "its prefix is reserved"
    } else if ["-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"]
        .iter()
        .any(|suffix| name.ends_with(suffix))
    {
        "its suffix is reserved"
    } else {
        return Ok(());
    };
    Err(ClientError::InvalidBucketName { name: name.to_owned(), reason: reason.to_owned() })
}

/// Checks the lengths of a new bucket's blocks and groups.
fn check_lengths(request: &CreateBucket) -> Result<(), ClientError> {
    if request.block_len.is_some_and(|len| len == 0 || len > MAX_BLOCK_LEN) {
        return Err(ClientError::InvalidArgument(format!(
            "a block has 1 to {MAX_BLOCK_LEN} bytes, not {}",
            request.block_len.unwrap_or_default()
        )));
    }
    if request.group_len.is_some_and(|len| len == 0 || len > MAX_GROUP_LEN) {
        return Err(ClientError::InvalidArgument(format!(
            "1 to {MAX_GROUP_LEN} neighbouring blocks may go to the same sites, not {}",
            request.group_len.unwrap_or_default()
        )));
    }
    Ok(())
}

impl Client {
    /// Creates a bucket.
    ///
    /// # Errors
    /// [`ClientError::BucketAlreadyOwned`] if the bucket exists, [`ClientError::InvalidBucketName`];
    /// [`ClientError::InvalidArgument`] for lengths out of range and for a profile that this program does not
    /// support.
    pub async fn create_bucket(&self, request: CreateBucket) -> Result<Bucket, ClientError> {
        self.check_new_bucket(&request)?;
        if let Some(profile) = &request.profile {
            self.check_placeable(profile).await?;
        }
        let bucket = self.new_bucket(request);
        let key = keys::bucket(&bucket.name);
        for attempt in 0..MAX_ATTEMPTS {
            match self.bucket(&bucket.name).await {
                // A creation whose first reply was lost finds its own bucket.
                Ok(_) => return Err(ClientError::BucketAlreadyOwned(bucket.name)),
                Err(ClientError::NoSuchBucket(_)) => {}
                Err(error) => return Err(error),
            }
            let mut tx = self.transaction();
            tx.require_unchanged(key.clone(), None);
            tx.put(key.clone(), encode(&bucket));
            if self.commit_rows(tx).await.map_err(CommitFailure::into_error)? {
                return Ok(bucket);
            }
            self.back_off(attempt).await;
        }
        Err(ClientError::Conflict)
    }

    /// Checks that the store can keep such a bucket.
    fn check_new_bucket(&self, request: &CreateBucket) -> Result<(), ClientError> {
        check_bucket_name(&request.name)?;
        if let Some(profile) = &request.profile {
            check_supported(profile, self.inner.stripes.formats())?;
        }
        check_lengths(request)?;
        if request.origin.is_some() && self.inner.stripes.formats().records < NOT_ON_DISKS {
            let reason = "older programs would keep the bucket's objects here; run `striate admin upgrade finalize` first";
            return Err(ClientError::InvalidArgument(reason.to_owned()));
        }
        let profile = request.profile.unwrap_or_else(|| self.default_profile());
        let home = Home::of(request.origin.is_some(), &profile);
        if let Some(packing) = request.packing {
            self.check_packing(packing, home, &profile)?;
        }
        if let Some(cold) = &request.cold {
            self.check_cold(&cold.profile, cold.without_spare_rack, home)?;
        }
        self.check_classes(&request.classes, home)
    }

    /// Returns the record of a new bucket.
    fn new_bucket(&self, request: CreateBucket) -> Bucket {
        let mut classes = Vec::new();
        change_classes(&mut classes, &request.classes);
        Bucket {
            name: request.name,
            created_unix_ms: self.now_unix_ms(),
            owner: request.owner,
            profile: request.profile.map(|profile| profile.to_string()).unwrap_or_default(),
            region: request.region,
            block_len: request.block_len.unwrap_or(0),
            group_len: request.group_len.unwrap_or(0),
            packing: request.packing.map(|packing| packing.to_string()).unwrap_or_default(),
            origin: request.origin,
            cold: request.cold.as_ref().map(cold_record),
            classes,
            tags: request.tags.into_iter().collect(),
            ..Bucket::default()
        }
    }

    /// Checks that a bucket with its objects there, of this profile, may have such a packing setting.
    pub(crate) fn check_packing(
        &self,
        packing: Packing,
        home: Home,
        profile: &Profile,
    ) -> Result<(), ClientError> {
        if self.inner.stripes.formats().records < PACKED {
            let reason = "older programs would lose the bucket's setting of packing; run `striate admin upgrade finalize` first";
            return Err(ClientError::InvalidArgument(reason.to_owned()));
        }
        if packing == Packing::Off {
            return Ok(());
        }
        home.check_suits("packing is")?;
        if profile.code.data_count() < 2 {
            let reason = "the bucket's code keeps whole copies: packing is for rs and lrc";
            return Err(ClientError::InvalidArgument(reason.to_owned()));
        }
        Ok(())
    }

    /// Returns the bucket's record.
    ///
    /// # Errors
    /// [`ClientError::NoSuchBucket`].
    pub async fn bucket(&self, name: &str) -> Result<Bucket, ClientError> {
        Ok(self.bucket_row(name).await?.1)
    }

    /// Returns the record of a bucket without an origin.
    ///
    /// # Errors
    /// [`ClientError::NoSuchBucket`]; [`ClientError::Elsewhere`].
    pub(crate) async fn bucket_here(&self, name: &str) -> Result<Bucket, ClientError> {
        let bucket = self.bucket(name).await?;
        if bucket.origin.is_some() { Err(ClientError::Elsewhere(name.to_owned())) } else { Ok(bucket) }
    }

    /// Returns the bucket's row and record. Finishes a deletion that another process left behind.
    async fn bucket_row(&self, name: &str) -> Result<(Row, Bucket), ClientError> {
        loop {
            let row = self.inner.meta.get(&keys::bucket(name)).await?;
            let row = row.ok_or_else(|| ClientError::NoSuchBucket(name.to_owned()))?;
            let bucket: Bucket = row.record()?;
            if !bucket.deleting {
                return Ok((row, bucket));
            }
            self.settle_deletion(name, &row, bucket).await?;
        }
    }

    /// Lists at most `limit` buckets in the order of their names, after `after`.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn list_buckets(&self, after: &str, limit: usize) -> Result<Vec<Bucket>, ClientError> {
        let mut range = ScanRange::prefix(keys::BUCKETS);
        if !after.is_empty() {
            range.start = [&keys::bucket(after)[..], b"\0"].concat().into();
        }
        let (mut pages, mut buckets) = (RowPages::new(range, limit.min(PAGE)), Vec::new());
        while buckets.len() < limit
            && let Some(page) = pages.next(&*self.inner.meta).await?
        {
            for row in &page {
                let bucket: Bucket = row.record()?;
                if !bucket.deleting {
                    buckets.push(bucket);
                }
            }
        }
        buckets.truncate(limit);
        Ok(buckets)
    }

    /// Deletes a bucket without objects: marks it, checks that it has none, aborts its uploads, deletes it
    /// (design.md §10.7).
    ///
    /// # Errors
    /// [`ClientError::BucketNotEmpty`] when it has objects. Its uploads then stay as they were.
    pub async fn delete_bucket(&self, name: &str) -> Result<(), ClientError> {
        for attempt in 0..MAX_ATTEMPTS {
            let (row, mut bucket) = self.bucket_row(name).await?;
            // Scan before setting the mark, so that a bucket in use is not disturbed.
            if self.has_objects(name).await? {
                return Err(ClientError::BucketNotEmpty(name.to_owned()));
            }
            bucket.deleting = true;
            let mut tx = self.transaction();
            tx.require_unchanged(row.key.clone(), Some(&row));
            tx.put(row.key.clone(), encode(&bucket));
            if self.commit_rows(tx).await.map_err(CommitFailure::into_error)? {
                // The bucket still exists if an object was committed before the mark, or if other callers deleted and
                // recreated it: retry.
                match self.bucket_row(name).await {
                    Err(ClientError::NoSuchBucket(_)) => return Ok(()),
                    Ok(_) => {}
                    Err(error) => return Err(error),
                }
            }
            self.back_off(attempt).await;
        }
        Err(ClientError::Conflict)
    }

    /// Completes a deletion whose mark is in `row`: removes the bucket if it has no objects, otherwise the mark.
    /// After a conflict, another process is working on it and the caller looks again.
    pub(crate) async fn settle_deletion(
        &self,
        name: &str,
        row: &Row,
        mut bucket: Bucket,
    ) -> Result<(), ClientError> {
        let mut tx = self.transaction();
        tx.require_unchanged(row.key.clone(), Some(row));
        if self.has_objects(name).await? {
            bucket.deleting = false;
            tx.put(row.key.clone(), encode(&bucket));
        } else if self.abort_uploads(name, row).await? {
            tx.delete(row.key.clone());
        } else {
            return Ok(());
        }
        self.commit_rows(tx).await.map_err(CommitFailure::into_error)?;
        Ok(())
    }

    /// Aborts all uploads of a bucket whose mark is in `marked`. Returns `false` if the bucket or an upload changed
    /// meanwhile.
    async fn abort_uploads(&self, name: &str, marked: &Row) -> Result<bool, ClientError> {
        let range = ScanRange::prefix(&keys::uploads(name));
        loop {
            let rows = self.inner.meta.scan(range.clone(), UPLOADS_AT_ONCE).await?;
            if rows.is_empty() {
                return Ok(true);
            }
            let mut tx = self.transaction();
            tx.require_unchanged(marked.key.clone(), Some(marked));
            for row in &rows {
                let upload: Upload = row.record()?;
                tx.require_unchanged(row.key.clone(), Some(row));
                tx.delete(row.key.clone());
                abandon_parts(&mut tx, &id16(&upload.id, "an upload")?, Vec::new());
            }
            if !self.commit_rows(tx).await.map_err(CommitFailure::into_error)? {
                return Ok(false);
            }
        }
    }

    async fn has_objects(&self, bucket: &str) -> Result<bool, ClientError> {
        Ok(!self.inner.meta.scan(ScanRange::prefix(&keys::objects(bucket)), 1).await?.is_empty())
    }

    /// Changes a bucket's sub-resources (tags, CORS, documents) atomically. `change` may be called several times.
    ///
    /// # Errors
    /// [`ClientError::NoSuchBucket`]; [`ClientError::Conflict`] when concurrent changes keep winning.
    pub async fn update_bucket<F>(&self, name: &str, change: F) -> Result<(), ClientError>
    where
        F: Fn(&mut Bucket) + Send + Sync,
    {
        for attempt in 0..MAX_ATTEMPTS {
            let (row, mut bucket) = self.bucket_row(name).await?;
            change(&mut bucket);
            let mut tx = self.transaction();
            tx.require_unchanged(row.key.clone(), Some(&row));
            tx.put(row.key.clone(), encode(&bucket));
            if self.commit_rows(tx).await.map_err(CommitFailure::into_error)? {
                return Ok(());
            }
            self.back_off(attempt).await;
        }
        Err(ClientError::Conflict)
    }
}

/// Maximum block length of a bucket, in bytes.
pub const MAX_BLOCK_LEN: u32 = 64 << 20;

/// Maximum number of neighbouring blocks on the same sites: beyond some 8, the sites of the most popular group are
/// the hottest by far.
pub const MAX_GROUP_LEN: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_names_follow_s3s_rules() {
        for name in ["abc", "a-b", "a.b.c", "0-1", "1.2.3", "x".repeat(63).as_str()] {
            assert!(check_bucket_name(name).is_ok(), "{name}");
        }
        let long = "x".repeat(64);
        let bad = [
            "",
            "ab",
            &long,
            "Abc",
            "a_b",
            "-ab",
            "ab-",
            ".ab",
            "ab.",
            "a..b",
            "foo.-bar",
            "foo-.bar",
            "1.2.3.4",
            "xn--abc",
            "abc-s3alias",
            "a/b",
            "a\0b",
            "äöü",
        ];
        for name in bad {
            let error = check_bucket_name(name).unwrap_err().to_string();
            assert!(error.contains("not a bucket name"), "{error}");
        }
    }
}
