//! Records: Protobuf messages with the schema version they need (`proto/records.proto`).
//!
//! ```text
//! row value:  | schema version: 1 byte | Protobuf message … |
//! ```
//!
//! Every kind of record counts its own versions ([`Record`]). A row carries the lowest version whose readers understand
//! it, so older programs can read everything that uses nothing new. A reader refuses versions above the one that it
//! knows instead of guessing. The versions that may be written are chosen for the whole store: see
//! [`striate_core::formats`].

use bytes::{Bytes, BytesMut};
use prost::Message;
use striate_core::{Formats, StorageClass};

use crate::store::{LeaseId, MetaError, MetaStore, Row};

mod stripe;

#[allow(missing_docs, reason = "documented in proto/records.proto")]
mod v1 {
    include!("../proto/records.rs");
}

pub use v1::*;

/// A kind of record.
pub trait Record: Message + Default {
    /// Newest schema version of this kind that this program understands.
    const SCHEMA: u8 = 1;

    /// Returns the schema version that a reader of this record needs.
    fn needs(&self) -> u8 {
        1
    }
}

/// Kinds that have not changed since release 0.1.0.
macro_rules! of_schema_1 {
    ($($kind:ty),* $(,)?) => { $(impl Record for $kind {})* };
}

of_schema_1!(
    AbandonedParts,
    AccessKey,
    Block,
    ClosedSites,
    CopiesWork,
    Fence,
    Intent,
    Leader,
    Migration,
    MovementWork,
    PackedBucket,
    PackingWork,
    PendingSegment,
    Placement,
    Process,
    RepairWork,
    ScrubWork,
    Site,
    Upload,
);

impl Record for Bucket {
    const SCHEMA: u8 = 3;

    /// Version 2 marks a bucket whose objects are elsewhere: an older program would store objects here. Version 3 marks
    /// a bucket whose cold data is sealed or whose classes have profiles: an older program would drop the setting.
    fn needs(&self) -> u8 {
        if self.cold.is_some() || !self.classes.is_empty() {
            return 3;
        }
        if self.origin.is_some() { 2 } else { 1 }
    }
}

impl Bucket {
    /// Returns the profile that a storage class has of its own, as text.
    pub fn profile_of_class(&self, class: StorageClass) -> Option<&str> {
        let named = self.classes.iter().find(|entry| entry.class == class.name());
        named.map(|entry| entry.profile.as_str())
    }
}

impl Object {
    /// Returns the object's storage class.
    pub fn class(&self) -> StorageClass {
        StorageClass::of_row(&self.storage_class)
    }
}

impl Record for Cluster {
    const SCHEMA: u8 = 2;

    /// Version 2 applies as soon as formats newer than release 0.1 are in force: programs of that release then refuse
    /// the store.
    fn needs(&self) -> u8 {
        if self.formats() == Formats::OLDEST { 1 } else { 2 }
    }
}

impl Record for Garbage {
    const SCHEMA: u8 = 2;

    /// Version 2 has stripes: an older program would remove the row and leave their chunks forever.
    fn needs(&self) -> u8 {
        if self.stripes.is_empty() { 1 } else { 2 }
    }
}

impl Record for Object {
    const SCHEMA: u8 = 3;

    /// Version 2 has an extent, version 3 blocks in memory. An older program would read the object as one without a
    /// body.
    fn needs(&self) -> u8 {
        match self.body {
            Some(object::Body::Memory(_)) => 3,
            Some(object::Body::Extent(_)) => 2,
            _ => 1,
        }
    }
}

impl Record for Stripe {
    const SCHEMA: u8 = 4;

    /// Version 2 is for content that a program of release 0.1 would truncate or lose when it rewrites the record,
    /// version 3 for content that only record format 4 has, version 4 for content that only format 6 has.
    fn needs(&self) -> u8 {
        let is_claimed = self.locations.iter().any(|location| !location.wide.is_empty());
        if is_claimed || self.dropped || self.dead || !self.members.is_empty() {
            return 4;
        }
        if !self.copies.is_empty() {
            return 3;
        }
        let has_versions = self.locations.iter().any(|location| location.content_version != 0);
        let is_changing = !self.entries.is_empty();
        if has_versions || is_changing || self.len > u64::from(u32::MAX) { 2 } else { 1 }
    }
}

impl Record for UploadPart {
    const SCHEMA: u8 = 2;

    /// Version 2 has blocks in memory, which an older program would read as no blocks.
    fn needs(&self) -> u8 {
        if matches!(self.body, Some(upload_part::Body::Memory(_))) { 2 } else { 1 }
    }
}

impl ClosedSite {
    /// Returns true if the site is still closed: it is retired, or the process that is about to retire it is alive.
    ///
    /// # Errors
    /// If the metadata store fails.
    pub async fn is_closed(&self, meta: &dyn MetaStore) -> Result<bool, MetaError> {
        Ok(self.lease == 0 || meta.is_alive(LeaseId(self.lease)).await?)
    }
}

impl Cluster {
    /// Returns the formats in force.
    pub fn formats(&self) -> Formats {
        Formats::from_numbers(self.record_format, self.chunk_format)
    }

    /// Puts `formats` in force.
    pub fn set_formats(&mut self, formats: Formats) {
        (self.record_format, self.chunk_format) = (formats.records, formats.chunks);
        self.needs_release = formats.release().to_owned();
    }
}

/// Encodes `record` as a row's value.
pub fn encode(record: &impl Record) -> Bytes {
    let mut value = BytesMut::with_capacity(1 + record.encoded_len());
    value.extend_from_slice(&[record.needs()]);
    record.encode(&mut value).expect("the buffer grows");
    value.freeze()
}

/// Decodes the record in a row's value.
///
/// # Errors
/// [`MetaError::Corrupt`] for a newer schema, or bytes that are not such a message.
pub fn decode<R: Record>(value: &Bytes) -> Result<R, MetaError> {
    match value.first() {
        Some(version) if (1..=R::SCHEMA).contains(version) => {
            R::decode(value.slice(1..)).map_err(|error| MetaError::Corrupt(error.to_string()))
        }
        Some(&version) => Err(MetaError::Corrupt(format!(
            "a record has schema version {version}, this program knows {}; start a newer striate",
            R::SCHEMA
        ))),
        None => Err(MetaError::Corrupt("a record is empty".to_owned())),
    }
}

impl Row {
    /// Decodes the row's record.
    ///
    /// # Errors
    /// As for [`decode`].
    pub fn record<R: Record>(&self) -> Result<R, MetaError> {
        decode(&self.value).map_err(|error| match error {
            MetaError::Corrupt(reason) => {
                MetaError::Corrupt(format!("row {:?}: {reason}", String::from_utf8_lossy(&self.key)))
            }
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stripe and its locations as release 0.1.0 knew them.
    #[derive(Clone, PartialEq, Message)]
    struct OldStripe {
        #[prost(string, tag = "1")]
        profile: String,
        #[prost(uint32, tag = "2")]
        chunk_len: u32,
        #[prost(message, repeated, tag = "3")]
        locations: Vec<OldLocation>,
        #[prost(uint32, tag = "4")]
        generation: u32,
        #[prost(uint32, tag = "5")]
        len: u32,
    }

    #[derive(Clone, PartialEq, Message)]
    struct OldLocation {
        #[prost(uint32, tag = "1")]
        site: u32,
        #[prost(uint32, tag = "2")]
        generation: u32,
        #[prost(fixed32, tag = "3")]
        crc32c: u32,
    }

    fn stripe() -> Stripe {
        let location = |site| Location { site, generation: 2, crc32c: 0xDEAD_BEEF, ..Location::default() };
        Stripe {
            profile: "rs(2,1)".to_owned(),
            chunk_len: 1 << 20,
            locations: (1..=3).map(location).collect(),
            generation: 3,
            len: 2_000_000,
            entries: Vec::new(),
            ..Stripe::default()
        }
    }

    #[test]
    fn records_without_news_are_byte_for_byte_those_of_release_0_1() {
        let location = |site| OldLocation { site, generation: 2, crc32c: 0xDEAD_BEEF };
        let old = OldStripe {
            profile: "rs(2,1)".to_owned(),
            chunk_len: 1 << 20,
            locations: (1..=3).map(location).collect(),
            generation: 3,
            len: 2_000_000,
        };
        let value = encode(&stripe());
        assert_eq!(value[0], 1);
        assert_eq!(value[1..], old.encode_to_vec());
        assert_eq!(decode::<Stripe>(&value).unwrap(), stripe());
        assert_eq!(encode(&Cluster::default())[0], 1);
        assert_eq!(encode(&Object { size: 3, ..Object::default() })[0], 1);
    }

    #[test]
    fn what_an_old_program_would_lose_needs_a_newer_one() {
        let long = Stripe { len: 1 << 32, ..stripe() };
        let mut updated = stripe();
        updated.locations[1].content_version = 1;
        let entry = Entry { generation: 3, places: vec![Place { index: 1, site: 4 }], lease: 5 };
        let changing = Stripe { entries: vec![entry], ..stripe() };
        for stripe in [long, updated, changing] {
            let value = encode(&stripe);
            assert_eq!(value[0], 2);
            assert_eq!(decode::<Stripe>(&value).unwrap(), stripe);
        }
        let mut claimed = stripe();
        claimed.locations[1].wide = vec![7; 16].into();
        let wide = Stripe { members: vec![Member::default()], ..stripe() };
        for stripe in [claimed, wide, Stripe { dropped: true, ..stripe() }] {
            assert_eq!(encode(&stripe)[0], 4);
            assert_eq!(decode::<Stripe>(&encode(&stripe)).unwrap(), stripe);
        }
        let copy = Copy { index: 1, site: 9, generation: 4, content_version: 0 };
        let copied = Stripe { copies: vec![copy], ..stripe() };
        assert_eq!(encode(&copied)[0], 3);
        assert_eq!(decode::<Stripe>(&encode(&copied)).unwrap(), copied);
        let extent = Extent { len: 7, content_version: 9, ..Extent::default() };
        let packed = Object { body: Some(object::Body::Extent(extent)), ..Object::default() };
        assert_eq!(encode(&packed)[0], 2);
        assert_eq!(decode::<Object>(&encode(&packed)).unwrap(), packed);
        let class = ClassProfile { class: "STANDARD_IA".to_owned(), profile: "wide(42,15,4)".to_owned() };
        let with_class = Bucket { classes: vec![class], ..Bucket::default() };
        let with_cold = Bucket { cold: Some(Cold::default()), ..Bucket::default() };
        for bucket in [with_class, with_cold] {
            assert_eq!(encode(&bucket)[0], 3);
            assert_eq!(decode::<Bucket>(&encode(&bucket)).unwrap(), bucket);
        }
        let mut cluster = Cluster::default();
        cluster.set_formats(Formats::OLDEST);
        assert_eq!(encode(&cluster)[0], 1);
        cluster.set_formats(Formats { records: 2, chunks: 1 });
        assert_eq!((encode(&cluster)[0], cluster.needs_release.as_str()), (2, "0.2.0"));
    }

    #[test]
    fn schemas_above_the_kinds_own_are_refused() {
        for (value, known) in [(vec![2], "knows 1"), (vec![0], "version 0"), (vec![], "empty")] {
            let error = decode::<Block>(&value.into()).unwrap_err().to_string();
            assert!(error.contains(known), "{error}");
        }
        let error = decode::<Stripe>(&vec![5].into()).unwrap_err().to_string();
        assert!(error.contains("schema version 5, this program knows 4; start a newer striate"), "{error}");
    }
}
