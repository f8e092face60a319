//! Checks whether objects that are in memory only still exist.
//!
//! An object's row stays after its bytes were evicted. So before the gateway reports that such an object exists, or
//! refuses a write because of it, it asks the memory sites, with one request to each for all objects. Evicted objects
//! count as absent.

use std::time::Duration;

use striate_core::{Profile, Tier};
use striate_meta::Row;
use striate_meta::records::{Object, object::Body};
use striate_stripe::remove_gone_from_memory;

use crate::{Client, ClientError};

/// Timeout for a memory site. One that misses it counts as still having its splits.
const ASK_WITHIN: Duration = Duration::from_millis(500);

impl Client {
    /// Returns for each object whether it was in memory only and is gone.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(crate) async fn are_gone(&self, objects: &[&Object]) -> Result<Vec<bool>, ClientError> {
        let mut lists = vec![Vec::new(); objects.len()];
        for (blocks, object) in lists.iter_mut().zip(objects) {
            if may_be_in_memory(object) {
                *blocks = self.inner.stripes.blocks_in_memory(object).await?;
            }
        }
        match lists.iter().all(Vec::is_empty) {
            true => Ok(vec![false; objects.len()]),
            false => Ok(self.inner.stripes.are_gone_from_memory(&lists, ASK_WITHIN).await?),
        }
    }

    /// Returns the error of an object that is gone from memory, and removes its row in the background.
    pub(crate) fn evicted(&self, key: &str, row: &Row, object: &Object) -> ClientError {
        let mut tx = self.transaction();
        if let Err(error) = remove_gone_from_memory(&mut tx, row, object) {
            return error.into();
        }
        let client = self.clone();
        self.inner.runtime.spawn(async move {
            // A failure here is retried by the next reader.
            let _ = client.commit_rows(tx).await;
        });
        ClientError::Evicted(key.to_owned())
    }
}

/// Whether an object's bytes may be in memory only. For a multipart object, its profile decides.
pub(crate) fn may_be_in_memory(object: &Object) -> bool {
    let is_of_memory = || object.profile.parse::<Profile>().is_ok_and(|profile| profile.tier == Tier::Memory);
    match &object.body {
        Some(Body::Memory(_)) => true,
        Some(Body::Uploaded(_)) => is_of_memory(),
        _ => false,
    }
}
