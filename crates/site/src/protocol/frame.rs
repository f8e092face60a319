//! The binary parts of the protocol: frames of chunk bytes, read requests, the head of a write.
//!
//! Numbers are little-endian, chunk names as [`ChunkId::to_bytes`] encodes them (big-endian, so that they sort). A
//! reply is a sequence of frames in an HTTP/1.1 body; nothing follows the last.
//!
//! ```text
//! frame     0        4       5    8        12        16                       68
//!           | item   | status| 0  | len    | crc32c  | load report            | len bytes …
//!           | u32    | u8    |    | u32    | u32     | 52 bytes               |
//!
//! load      0          8          12       16  18  20          28       36     44     52
//!           | sequence | queue    |workers |cpu|io | queue     | chunks | used | free |
//!           | u64      | requests | u32    |permille| bytes    |        |      | bytes|
//!
//! read      0          1    4       8               16     24               24 + 32·count
//!           | priority | 0  | count | deadline, µs  | id   | count × range
//! range     0          21   24       28      32
//!           | chunk    | 0  | offset | len   |
//!
//! cancel    0    8
//!           | id | id …
//!
//! write     0       21         22       24    28            32           32 + 4·granules
//!           | chunk | priority | 0      | len | granules    | crc32c of each granule | len bytes …
//! ```
//!
//! `item` is the index of the range in the request, or the number of the slice. With status 0 the bytes are those of
//! the range or slice; otherwise they are the detail of the error: the chunk's name, the two epochs, or a text. The
//! checksum covers the bytes of the frame, so that damage on the network is detected; a damaged header shows as an
//! impossible length, item or status. A deadline counts from the arrival of the request; all ones means none. A read's
//! id is random, so that other clients do not cancel it by accident.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use striate_codec::crc32c;
use striate_core::{ChunkId, ChunkRange, FencingEpoch, LoadReport};

use super::limits::{MAX_CANCELLED, MAX_CHUNK_LEN, MAX_ERROR_LEN, MAX_RANGES};
use crate::api::{Priority, SiteError};
use crate::granule;

/// Length of a frame's header in bytes.
pub(crate) const FRAME_HEADER_LEN: usize = 16 + LOAD_LEN;
/// Length of the fixed part of a read request in bytes.
pub const READ_HEAD_LEN: usize = 24;
/// Length of one range of a read request in bytes.
pub const RANGE_LEN: usize = 32;
/// Length of the fixed part of a write's head in bytes.
pub(crate) const WRITE_HEAD_LEN: usize = 32;

/// The part of a frame before its bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FrameHeader {
    /// Index of the range, or number of the slice.
    pub item: u32,
    /// 0, or the code of an error.
    pub status: u8,
    /// Number of bytes that follow.
    pub len: u32,
    /// CRC-32C of these bytes.
    pub crc32c: u32,
    /// Load of the site.
    pub load: LoadReport,
}

impl FrameHeader {
    /// Encodes the header.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(FRAME_HEADER_LEN);
        out.put_u32_le(self.item);
        out.put_u8(self.status);
        out.put_bytes(0, 3);
        out.put_u32_le(self.len);
        out.put_u32_le(self.crc32c);
        put_load(&mut out, &self.load);
        out.freeze()
    }

    /// The inverse of [`FrameHeader::encode`].
    pub fn decode(bytes: &[u8; FRAME_HEADER_LEN]) -> Self {
        let mut input = &bytes[..];
        let (item, status) = (input.get_u32_le(), input.get_u8());
        input.advance(3);
        let (len, crc32c) = (input.get_u32_le(), input.get_u32_le());
        Self { item, status, len, crc32c, load: get_load(&mut input) }
    }
}

/// Encodes a frame as its header and its bytes.
pub(crate) fn encode_frame(item: u32, result: Result<Bytes, SiteError>, load: LoadReport) -> (Bytes, Bytes) {
    let (status, bytes) = match result {
        Ok(bytes) => (0, bytes),
        Err(error) => encode_error(&error),
    };
    let header = FrameHeader { item, status, len: bytes.len() as u32, crc32c: crc32c(&bytes), load };
    (header.encode(), bytes)
}

/// Length of an encoded load report in bytes.
pub const LOAD_LEN: usize = 52;

/// Appends a load report.
pub(crate) fn put_load(out: &mut BytesMut, load: &LoadReport) {
    out.put_u64_le(load.sequence);
    out.put_u32_le(load.queue_requests);
    out.put_u32_le(load.workers);
    out.put_u16_le(load.cpu_permille);
    out.put_u16_le(load.io_permille);
    out.put_u64_le(load.queue_bytes);
    out.put_u64_le(load.chunks);
    out.put_u64_le(load.used_bytes);
    out.put_u64_le(load.free_bytes);
}

/// Reads a load report from the front of `input`.
///
/// # Panics
/// If fewer than [`LOAD_LEN`] bytes are left.
pub(crate) fn get_load(input: &mut &[u8]) -> LoadReport {
    LoadReport {
        sequence: input.get_u64_le(),
        queue_requests: input.get_u32_le(),
        workers: input.get_u32_le(),
        cpu_permille: input.get_u16_le(),
        io_permille: input.get_u16_le(),
        queue_bytes: input.get_u64_le(),
        chunks: input.get_u64_le(),
        used_bytes: input.get_u64_le(),
        free_bytes: input.get_u64_le(),
    }
}

const MISSING: u8 = 1;
const CORRUPT: u8 = 2;
const BAD_REQUEST: u8 = 3;
const NO_SPACE: u8 = 4;
const BUSY: u8 = 5;
const DEADLINE: u8 = 6;
const FENCED: u8 = 7;
const SUSPECT: u8 = 8;
const UNAVAILABLE: u8 = 9;

/// Encodes an error as status byte and detail.
pub(crate) fn encode_error(error: &SiteError) -> (u8, Bytes) {
    let named = |chunk: &ChunkId, reason: &str| Bytes::from([&chunk.to_bytes(), text(reason)].concat());
    match error {
        SiteError::Missing(chunk) => (MISSING, named(chunk, "")),
        SiteError::Corrupt { chunk, reason } => (CORRUPT, named(chunk, reason)),
        SiteError::BadRequest(reason) => (BAD_REQUEST, Bytes::copy_from_slice(text(reason))),
        SiteError::NoSpace => (NO_SPACE, Bytes::new()),
        SiteError::Busy => (BUSY, Bytes::new()),
        SiteError::Deadline => (DEADLINE, Bytes::new()),
        SiteError::Fenced { given, seen } => {
            (FENCED, Bytes::from([given.0.to_le_bytes(), seen.0.to_le_bytes()].concat()))
        }
        SiteError::Suspect(reason) => (SUSPECT, Bytes::copy_from_slice(text(reason))),
        SiteError::Unavailable(reason) => (UNAVAILABLE, Bytes::copy_from_slice(text(reason))),
    }
}

/// Truncates a reason so that it fits a frame together with a chunk's name.
fn text(reason: &str) -> &[u8] {
    let end = (0..=reason.len().min(MAX_ERROR_LEN - 64)).rev().find(|&end| reason.is_char_boundary(end));
    &reason.as_bytes()[..end.unwrap_or(0)]
}

/// The inverse of [`encode_error`]; `None` if it is not an error of this protocol.
pub(crate) fn decode_error(status: u8, detail: &[u8]) -> Option<SiteError> {
    let reason = || String::from_utf8_lossy(detail).into_owned();
    Some(match status {
        MISSING => SiteError::Missing(ChunkId::from_bytes(detail)?),
        CORRUPT => {
            let (chunk, reason) = detail.split_at_checked(ChunkId::ENCODED_LEN)?;
            let reason = String::from_utf8_lossy(reason).into_owned();
            SiteError::Corrupt { chunk: ChunkId::from_bytes(chunk)?, reason }
        }
        BAD_REQUEST => SiteError::BadRequest(reason()),
        NO_SPACE => SiteError::NoSpace,
        BUSY => SiteError::Busy,
        DEADLINE => SiteError::Deadline,
        FENCED => {
            let mut input = (detail.len() == 16).then_some(detail)?;
            let mut epoch = || FencingEpoch(input.get_u64_le());
            SiteError::Fenced { given: epoch(), seen: epoch() }
        }
        SUSPECT => SiteError::Suspect(reason()),
        UNAVAILABLE => SiteError::Unavailable(reason()),
        _ => return None,
    })
}

/// Encodes a priority as a number.
pub(crate) fn encode_priority(priority: Priority) -> u8 {
    match priority {
        Priority::Foreground => 0,
        Priority::Repair => 1,
        Priority::Background => 2,
    }
}

/// The inverse of [`encode_priority`].
///
/// # Errors
/// A text if there is no such priority.
pub(crate) fn decode_priority(number: u8) -> Result<Priority, String> {
    match number {
        0 => Ok(Priority::Foreground),
        1 => Ok(Priority::Repair),
        2 => Ok(Priority::Background),
        other => Err(format!("there is no priority {other}")),
    }
}

/// A read request on the wire, with the deadline as time left.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadBody {
    /// Identifier by which the read can be cancelled.
    pub id: u64,
    /// Ranges to read.
    pub ranges: Vec<ChunkRange>,
    /// Priority in the site's queue.
    pub priority: Priority,
    /// Time left until the deadline.
    pub time_left: Option<Duration>,
}

impl ReadBody {
    /// Encodes the request.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(READ_HEAD_LEN + self.ranges.len() * RANGE_LEN);
        out.put_u8(encode_priority(self.priority));
        out.put_bytes(0, 3);
        out.put_u32_le(self.ranges.len() as u32);
        out.put_u64_le(self.time_left.map_or(u64::MAX, |left| left.as_micros() as u64));
        out.put_u64_le(self.id);
        for range in &self.ranges {
            out.put_slice(&range.chunk.to_bytes());
            out.put_bytes(0, 3);
            out.put_u32_le(range.offset);
            out.put_u32_le(range.len);
        }
        out.freeze()
    }

    /// The inverse of [`ReadBody::encode`].
    ///
    /// # Errors
    /// A text that describes the fault: a length that does not match the count, too many ranges, an empty one.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let (mut head, ranges) =
            bytes.split_at_checked(READ_HEAD_LEN).ok_or("the read request is cut off")?;
        let priority = decode_priority(head.get_u8())?;
        head.advance(3);
        let (count, left_us, id) = (head.get_u32_le() as usize, head.get_u64_le(), head.get_u64_le());
        if count == 0 || count > MAX_RANGES {
            return Err(format!("{count} ranges; allowed are 1 to {MAX_RANGES}"));
        }
        if ranges.len() != count * RANGE_LEN {
            return Err(format!("{count} ranges in {} bytes", ranges.len()));
        }
        let ranges = ranges.chunks_exact(RANGE_LEN).map(decode_range).collect::<Result<_, _>>()?;
        let time_left = (left_us != u64::MAX).then(|| Duration::from_micros(left_us));
        Ok(Self { id, ranges, priority, time_left })
    }
}

fn decode_range(bytes: &[u8]) -> Result<ChunkRange, String> {
    let (chunk, mut rest) = bytes.split_at(ChunkId::ENCODED_LEN);
    let chunk = ChunkId::from_bytes(chunk).expect("the length is right");
    rest.advance(3);
    let (offset, len) = (rest.get_u32_le(), rest.get_u32_le());
    if len > MAX_CHUNK_LEN || offset.checked_add(len).is_none() {
        return Err(format!("a range of {len} bytes from {offset} of chunk {chunk}"));
    }
    Ok(ChunkRange { chunk, offset, len })
}

/// Encodes the ids of the reads to cancel.
pub(crate) fn encode_cancel(ids: &[u64]) -> Bytes {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

/// The inverse of [`encode_cancel`].
///
/// # Errors
/// A text if the bytes are not a list of ids, or too many.
pub(crate) fn decode_cancel(bytes: &[u8]) -> Result<Vec<u64>, String> {
    let (ids, rest) = bytes.as_chunks::<8>();
    if ids.is_empty() || ids.len() > MAX_CANCELLED || !rest.is_empty() {
        return Err(format!("{} bytes; allowed are 1 to {MAX_CANCELLED} ids of 8", bytes.len()));
    }
    Ok(ids.iter().map(|id| u64::from_le_bytes(*id)).collect())
}

/// The part of a write before the chunk's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteHead {
    /// Name of the chunk.
    pub chunk: ChunkId,
    /// Priority in the site's queue.
    pub priority: Priority,
    /// Length of the chunk in bytes.
    pub len: u32,
    /// CRC-32C of each granule, of 64 KiB or of 4 KiB: their number says which.
    pub granule_crcs: Vec<u32>,
}

impl WriteHead {
    /// Encodes the head.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(WRITE_HEAD_LEN + self.granule_crcs.len() * 4);
        out.put_slice(&self.chunk.to_bytes());
        out.put_u8(encode_priority(self.priority));
        out.put_bytes(0, 2);
        out.put_u32_le(self.len);
        out.put_u32_le(self.granule_crcs.len() as u32);
        self.granule_crcs.iter().for_each(|crc| out.put_u32_le(*crc));
        out.freeze()
    }

    /// Returns the length of the whole head, which its fixed part determines.
    ///
    /// # Errors
    /// A text if the length is not allowed or does not match the number of granules.
    pub(crate) fn full_len(fixed: &[u8; WRITE_HEAD_LEN]) -> Result<usize, String> {
        let mut lengths = &fixed[24..];
        let (len, granules) = (lengths.get_u32_le(), lengths.get_u32_le() as usize);
        if len == 0 || len > MAX_CHUNK_LEN {
            return Err(format!("a chunk of {len} bytes; allowed are 1 to {MAX_CHUNK_LEN}"));
        }
        if granule::granule_len_of_count(granules, len).is_none() {
            return Err(format!("{granules} granule checksums for a chunk of {len} bytes"));
        }
        Ok(WRITE_HEAD_LEN + granules * 4)
    }

    /// The inverse of [`WriteHead::encode`], for bytes of the length that [`WriteHead::full_len`] returned.
    ///
    /// # Errors
    /// A text that describes the fault.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let (fixed, mut crcs) = bytes.split_first_chunk().ok_or("the head of the write is cut off")?;
        if Self::full_len(fixed)? != bytes.len() {
            return Err("the head of the write has a wrong length".to_owned());
        }
        let chunk = ChunkId::from_bytes(&fixed[..ChunkId::ENCODED_LEN]).expect("the length is right");
        let priority = decode_priority(fixed[ChunkId::ENCODED_LEN])?;
        let len = (&fixed[24..]).get_u32_le();
        let granule_crcs = (0..crcs.len() / 4).map(|_| crcs.get_u32_le()).collect();
        Ok(Self { chunk, priority, len, granule_crcs })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use striate_core::{GRANULE_LEN, Generation, SMALL_GRANULE_LEN, StripeId};

    use super::*;

    fn chunk_ids() -> impl Strategy<Value = ChunkId> {
        (any::<u128>(), any::<u8>(), any::<u32>()).prop_map(|(stripe, index, generation)| ChunkId {
            stripe: StripeId(stripe),
            index,
            generation: Generation(generation),
        })
    }

    fn loads() -> impl Strategy<Value = LoadReport> {
        (any::<[u64; 5]>(), any::<[u32; 2]>(), any::<[u16; 2]>()).prop_map(|(numbers, requests, shares)| {
            let [sequence, queue_bytes, chunks, used_bytes, free_bytes] = numbers;
            let [queue_requests, workers] = requests;
            let [cpu_permille, io_permille] = shares;
            LoadReport {
                sequence,
                queue_requests,
                queue_bytes,
                workers,
                cpu_permille,
                io_permille,
                chunks,
                used_bytes,
                free_bytes,
            }
        })
    }

    fn errors() -> impl Strategy<Value = SiteError> {
        prop_oneof![
            chunk_ids().prop_map(SiteError::Missing),
            (chunk_ids(), ".*").prop_map(|(chunk, reason)| SiteError::Corrupt { chunk, reason }),
            ".*".prop_map(SiteError::BadRequest),
            Just(SiteError::NoSpace),
            Just(SiteError::Busy),
            Just(SiteError::Deadline),
            any::<(u64, u64)>().prop_map(|(given, seen)| SiteError::Fenced {
                given: FencingEpoch(given),
                seen: FencingEpoch(seen),
            }),
            ".*".prop_map(SiteError::Suspect),
            ".*".prop_map(SiteError::Unavailable),
        ]
    }

    proptest! {
        #[test]
        fn frames_survive_their_bytes(item: u32, bytes: Vec<u8>, load in loads()) {
            let (header, payload) = encode_frame(item, Ok(Bytes::from(bytes.clone())), load);
            let decoded = FrameHeader::decode(header[..].try_into().unwrap());
            let (len, crc32c) = (bytes.len() as u32, crc32c(&bytes));
            prop_assert_eq!(decoded, FrameHeader { item, status: 0, len, crc32c, load });
            prop_assert_eq!(&payload[..], &bytes[..]);
        }

        #[test]
        fn every_error_survives_its_bytes(error in errors()) {
            let (status, detail) = encode_error(&error);
            prop_assert!(status != 0 && detail.len() <= MAX_ERROR_LEN);
            prop_assert_eq!(decode_error(status, &detail), Some(error));
        }

        #[test]
        fn read_requests_survive_their_bytes_and_no_shorter_ones_pass(
            ranges in prop::collection::vec((chunk_ids(), 0u32..1000, 1u32..MAX_CHUNK_LEN), 1..20),
            time_left in prop::option::of(0u64..u64::from(u32::MAX)),
            id: u64,
        ) {
            let ranges = ranges.into_iter().map(|(chunk, offset, len)| ChunkRange { chunk, offset, len });
            let time_left = time_left.map(Duration::from_micros);
            let body = ReadBody { id, ranges: ranges.collect(), priority: Priority::Repair, time_left };
            let bytes = body.encode();
            prop_assert_eq!(ReadBody::decode(&bytes), Ok(body));
            prop_assert!(ReadBody::decode(&bytes[..bytes.len() - 1]).is_err());
        }

        #[test]
        fn cancellations_survive_their_bytes_and_no_shorter_ones_pass(
            ids in prop::collection::vec(any::<u64>(), 1..=MAX_CANCELLED),
        ) {
            let bytes = encode_cancel(&ids);
            prop_assert_eq!(decode_cancel(&bytes), Ok(ids));
            prop_assert!(decode_cancel(&bytes[..bytes.len() - 1]).is_err());
        }

        #[test]
        fn write_heads_survive_their_bytes(chunk in chunk_ids(), len in 1..=MAX_CHUNK_LEN, short: bool) {
            let granule_len = if short { SMALL_GRANULE_LEN } else { GRANULE_LEN };
            let granule_crcs = (0..granule::granule_count(len, granule_len) as u32).collect();
            let head = WriteHead { chunk, priority: Priority::Background, len, granule_crcs };
            let bytes = head.encode();
            prop_assert_eq!(WriteHead::full_len(bytes.first_chunk().unwrap()), Ok(bytes.len()));
            prop_assert_eq!(WriteHead::decode(&bytes), Ok(head));
        }

        #[test]
        fn no_bytes_make_the_decoders_panic(bytes: Vec<u8>, status: u8) {
            let _ = ReadBody::decode(&bytes);
            let _ = decode_cancel(&bytes);
            let _ = WriteHead::decode(&bytes);
            let _ = decode_error(status, &bytes);
        }
    }
}
