//! A bucket's origin, ready for requests.

use std::time::Duration;

use sha2::{Digest, Sha256};
use striate_client::ClientError;
use striate_meta::records;
use striate_s3::KeyStore;
use striate_s3_client::Signer;
use striate_stripe::MemoryBlock;

use crate::failures::Failures;

/// Block length in bytes of an origin whose record has none.
const USUAL_BLOCK_LEN: u32 = 4 << 20;

/// A bucket of another store.
pub(crate) struct OriginBucket {
    pub(crate) endpoint: String,
    /// Name of the bucket at the origin.
    pub(crate) bucket: String,
    /// Access key that signs requests; empty if they are not signed.
    pub(crate) access_key: String,
    pub(crate) signer: Option<Signer>,
    /// Time for which knowledge of an object is used.
    pub(crate) ttl: Duration,
    /// Length of a block in bytes.
    pub(crate) block_len: u64,
    /// Distinguishes this bucket from others of the same name.
    pub(crate) id: [u8; 16],
    pub(crate) failures: Failures,
}

/// Context under which a secret is sealed.
pub(crate) fn sealed_as(id: &[u8]) -> String {
    format!("origin {:02x?}", id)
}

impl OriginBucket {
    /// Opens the origin in a bucket's record.
    ///
    /// # Errors
    /// If the cluster's sealing key does not decrypt the secret, or the record is malformed.
    pub(crate) fn new(record: &records::Origin, keys: &KeyStore) -> Result<Self, ClientError> {
        let wrong =
            |reason: String| ClientError::Inconsistent { what: "a bucket's origin".to_owned(), reason };
        let id = record.id[..].try_into().map_err(|_| wrong("its id does not have 16 bytes".to_owned()))?;
        let signer = match record.access_key.as_str() {
            "" => None,
            access_key => {
                let secret = keys.open_sealed(&sealed_as(&record.id), &record.secret);
                let secret = secret.map_err(|error| wrong(error.to_string()))?;
                Some(Signer::new(access_key.to_owned(), secret.to_string(), record.region.clone()))
            }
        };
        Ok(Self {
            endpoint: record.endpoint.trim_end_matches('/').to_owned(),
            bucket: record.bucket.clone(),
            access_key: record.access_key.clone(),
            signer,
            ttl: Duration::from_millis(record.ttl_ms),
            block_len: if record.block_len == 0 { USUAL_BLOCK_LEN } else { record.block_len }.into(),
            id,
            failures: Failures::default(),
        })
    }

    /// The blocks of one version of an object of `size` bytes.
    pub(crate) fn blocks(&self, key: &str, etag: &str, size: u64) -> Blocks {
        let mut hash = Sha256::new();
        hash.update(self.id);
        hash.update(self.block_len.to_be_bytes());
        hash.update(size.to_be_bytes());
        hash.update((key.len() as u64).to_be_bytes());
        hash.update(key);
        hash.update(etag);
        Blocks { content: hash.finalize().into(), len: self.block_len, size }
    }
}

/// The blocks of one version of an object. Nobody can choose a key or an ETag whose blocks get the names of others.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    content: [u8; 32],
    pub(crate) len: u64,
    size: u64,
}

impl Blocks {
    /// Returns a block by its number.
    pub(crate) fn block(&self, number: u64) -> MemoryBlock {
        let hash: [u8; 32] =
            Sha256::new().chain_update(self.content).chain_update(number.to_be_bytes()).finalize().into();
        let content = u128::from_be_bytes(hash[..16].try_into().unwrap_or_default());
        let len = (self.end(number) - number * self.len) as u32;
        MemoryBlock { content, len, crc32c: None, placed: None }
    }

    /// The end of a block, as an offset in its object.
    pub(crate) fn end(&self, number: u64) -> u64 {
        ((number + 1) * self.len).min(self.size)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn origin(id: u8, block_len: u64) -> OriginBucket {
        OriginBucket {
            endpoint: String::new(),
            bucket: String::new(),
            access_key: String::new(),
            signer: None,
            ttl: Duration::ZERO,
            block_len,
            id: [id; 16],
            failures: Failures::default(),
        }
    }

    #[test]
    fn every_field_changes_the_name() {
        let blocks = [
            origin(1, 4).blocks("k", "e", 10),
            origin(2, 4).blocks("k", "e", 10),
            origin(1, 5).blocks("k", "e", 10),
            origin(1, 4).blocks("ke", "", 10),
            origin(1, 4).blocks("k", "f", 10),
            origin(1, 4).blocks("k", "e", 11),
        ];
        let names: BTreeSet<u128> =
            blocks.iter().flat_map(|of| [0, 1].map(|number| of.block(number).content)).collect();
        assert_eq!(names.len(), 2 * blocks.len());
        let lens: Vec<u32> = (0..3).map(|number| blocks[0].block(number).len).collect();
        assert_eq!(lens, [4, 4, 2]);
    }
}
