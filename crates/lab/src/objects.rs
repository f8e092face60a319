//! The objects of a world: initial ones exist as generated blocks, later ones as objects that were written through
//! the real write path.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use striate_client::{
    Client, ClientError, ExpectedDigests, ObjectAttributes, PutBody, PutRequest, WriteCondition,
};
use striate_stripe::ReadStats;

use crate::world::World;

/// Bucket of written objects.
pub const BUCKET: &str = "lab";
/// Maximum restarts of a read because one of its objects was replaced meanwhile.
const MAX_RESTARTS: usize = 8;

/// Change of an object since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    /// The object is in the store, under this key.
    Written(String),
    Deleted,
}

/// Objects that have changed since the start.
#[derive(Debug, Default)]
pub struct Changes(Mutex<BTreeMap<u64, Change>>);

impl World {
    /// Reads objects together, by the client's policy. Returns the statistics of the read and the bytes of the
    /// blocks.
    ///
    /// # Errors
    /// [`ClientError::NoSuchKey`] for a deleted object; other errors as the client returns them.
    pub async fn read_objects(
        &self,
        client: &Client,
        objects: &[u64],
    ) -> Result<(ReadStats, u64), ClientError> {
        let mut restarts = 0;
        loop {
            let mut blocks = Vec::new();
            let began = self.runtime.now();
            let mut is_written = false;
            for &object in objects {
                let change = self.changes.0.lock().get(&object).cloned();
                match change {
                    None => blocks.extend(self.blocks_of(object).map(striate_stripe::StoredBytes::from)),
                    Some(Change::Written(key)) => {
                        is_written = true;
                        blocks.extend(client.blocks_of(BUCKET, &key).await?);
                    }
                    Some(Change::Deleted) => return Err(ClientError::NoSuchKey(object.to_string())),
                }
            }
            let looked_up = self.runtime.now() - began;
            match client.read_blocks(&blocks).await {
                Ok(read) => {
                    let bytes = read.blocks.iter().flatten().map(|piece| piece.len() as u64).sum();
                    let mut stats = read.stats;
                    stats.metadata += looked_up;
                    return Ok((stats, bytes));
                }
                // Blocks of a version that was replaced after its record was read may be gone.
                Err(_) if is_written && restarts < MAX_RESTARTS => restarts += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes an object, replacing it if it exists.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub async fn write_object(
        &self,
        client: &Client,
        object: u64,
        key: String,
        len: u64,
    ) -> Result<(), ClientError> {
        client.put(put(key.clone(), len)).await?;
        self.changes.0.lock().insert(object, Change::Written(key));
        Ok(())
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// As [`Client::delete`].
    pub async fn delete_object(&self, client: &Client, object: u64) -> Result<(), ClientError> {
        let change = self.changes.0.lock().insert(object, Change::Deleted);
        match change {
            Some(Change::Written(key)) => {
                client.delete(BUCKET, &key, WriteCondition::default()).await.map(drop)
            }
            _ => Ok(()),
        }
    }
}

fn put(key: String, len: u64) -> PutRequest {
    PutRequest {
        bucket: BUCKET.to_owned(),
        key,
        attributes: ObjectAttributes::default(),
        condition: WriteCondition::default(),
        profile: None,
        content_len: Some(len),
        digests: ExpectedDigests::default(),
        body: Box::new(Zeros { left: len }),
    }
}

/// A body of zeros whose pieces share one buffer: the contents do not matter, and checksums still match.
struct Zeros {
    left: u64,
}

static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

#[async_trait]
impl PutBody for Zeros {
    async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        let len = self.left.min(ZEROS.len() as u64);
        self.left -= len;
        (len > 0).then(|| Ok(Bytes::from_static(&ZEROS[..len as usize])))
    }
}
