//! Records: Protobuf messages with the schema version they need (`proto/records.proto`).
//!
//! ```text
//! row value:  | schema version: 1 byte | Protobuf message … |
//! ```
//!
//! A reader refuses versions above [`SCHEMA_VERSION`] instead of guessing.

use bytes::{Bytes, BytesMut};
use prost::Message;

use crate::store::{MetaError, Row};

#[allow(missing_docs, reason = "documented in proto/records.proto")]
mod v1 {
    include!(concat!(env!("OUT_DIR"), "/striate.meta.v1.rs"));
}

pub use v1::*;

/// The newest schema this program understands.
pub const SCHEMA_VERSION: u8 = 1;

/// A row's value for `record`.
pub fn encode(record: &impl Message) -> Bytes {
    let mut value = BytesMut::with_capacity(1 + record.encoded_len());
    value.extend_from_slice(&[SCHEMA_VERSION]);
    record.encode(&mut value).expect("the buffer grows");
    value.freeze()
}

/// The record in a row's value.
///
/// # Errors
/// [`MetaError::Corrupt`] for a newer schema or bytes that are no such message.
pub fn decode<R: Message + Default>(value: &Bytes) -> Result<R, MetaError> {
    match value.first() {
        Some(&SCHEMA_VERSION) => {
            R::decode(value.slice(1..)).map_err(|error| MetaError::Corrupt(error.to_string()))
        }
        Some(&version) => Err(MetaError::Corrupt(format!(
            "a record has schema version {version}, this program knows {SCHEMA_VERSION}; start a newer striate"
        ))),
        None => Err(MetaError::Corrupt("a record is empty".to_owned())),
    }
}

impl Row {
    /// The row's record.
    ///
    /// # Errors
    /// As [`decode`].
    pub fn record<R: Message + Default>(&self) -> Result<R, MetaError> {
        decode(&self.value).map_err(|error| match error {
            MetaError::Corrupt(reason) => {
                MetaError::Corrupt(format!("row {:?}: {reason}", String::from_utf8_lossy(&self.key)))
            }
            other => other,
        })
    }
}
