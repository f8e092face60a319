//! Records: what a segment is made of.
//!
//! ```text
//! record, at a multiple of 8 bytes of its segment; numbers are little-endian
//!   0   4  magic "SRec"
//!   4   1  format version (1)
//!   5   1  kind: 1 chunk, 2 tombstone, 3 fence, 4 mark, 5 gap
//!   6   1  index            chunk and tombstone, else 0
//!   7   1  zero
//!   8  16  stripe           big-endian; chunk and tombstone, else 0
//!  24   4  generation       chunk and tombstone, else 0
//!  28   4  payload length   chunk; the zeros that follow a gap; else 0
//!  32   4  payload CRC-32C  chunk; segment number of the copy that a tombstone covers; else 0
//!  36   4  header CRC-32C   of nonce, segment number, offset, bytes 0..36 and 40.. of the header, table
//!  40   8  sequence         chunk: its place in the order of all writes and deletes of the store;
//!                           tombstone: covers every copy with this sequence or a lower one
//!  48   8  epoch            tombstone and fence only (a chunk's table begins here)
//!      4·g table            chunk: the g seeded granule checksums, and a zero if g is odd
//!          payload          chunk
//!          zeros            to the next multiple of 8
//! ```
//!
//! A granule's checksum is the CRC-32C of (stripe, index, generation, offset in the chunk) followed by its bytes,
//! so that intact bytes of another chunk or place do not pass (design.md §10.12). It is derived from the plain CRC
//! of the granule, without reading the bytes again. The whole payload's plain CRC-32C is kept beside it for
//! listings.
//!
//! The header's checksum begins with the segment's nonce, a random number of which no client knows: bytes that a
//! client stored *inside* a payload never pass for a record when a scan searches for the next header behind damage.
//! It also covers the record's place, so that a misdirected write does not pass either.
//!
//! Crash argument: a record counts only if its header passes, and, where it may be torn (behind the last mark of
//! its segment), only if its whole payload passes too. A *mark* says that everything before it in its segment was
//! durable when it was written.

use striate_codec::{crc32c, crc32c_append, crc32c_combine};
use striate_core::{ChunkId, FencingEpoch, Generation, StripeId};

use crate::granule::{MAX_CHUNK_LEN, granule_count, granule_len};

/// The format version of records and segments.
pub(super) const FORMAT_VERSION: u8 = 1;

/// Length in bytes of the part that every record has.
pub(super) const FIXED_LEN: usize = 48;

/// Records begin at multiples of this.
pub(super) const ALIGNMENT: u64 = 8;

pub(super) const MAGIC: [u8; 4] = *b"SRec";

const EPOCH_LEN: usize = 8;
const CRC_FIELD: std::ops::Range<usize> = 36..40;

/// Where a record lies. Part of its header's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub nonce: u64,
    pub segment: u32,
    pub offset: u64,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Chunk(ChunkRecord),
    /// `chunk` is deleted as far as copies with `sequence` or lower go; one such copy lies in segment `target`.
    Tombstone {
        chunk: ChunkId,
        sequence: u64,
        target: u32,
        epoch: FencingEpoch,
    },
    /// Deletes below `epoch` are refused.
    Fence {
        epoch: FencingEpoch,
    },
    /// Everything before this record in its segment was durable when this was written.
    Mark,
    /// Says nothing, and has `len` zeros behind it.
    Gap {
        len: u32,
    },
}

/// The header of a chunk's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChunkRecord {
    pub chunk: ChunkId,
    pub len: u32,
    pub crc32c: u32,
    pub sequence: u64,
    /// The seeded granule checksums.
    pub table: Vec<u32>,
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRecord {
    /// More bytes are needed to tell: this many from the record's start.
    Needs(usize),
    /// They are none.
    Damaged,
    /// A valid record of a newer format.
    NewerVersion(u8),
}

/// Length of a chunk record's header and table, for a payload of `len` bytes.
pub(super) fn chunk_header_len(len: u32) -> usize {
    FIXED_LEN + (4 * granule_count(len)).next_multiple_of(ALIGNMENT as usize)
}

/// Length of a chunk's whole record with its padding.
pub(super) fn chunk_record_len(len: u32) -> u64 {
    (chunk_header_len(len) as u64 + u64::from(len)).next_multiple_of(ALIGNMENT)
}

/// Length of a tombstone's record.
pub(super) const TOMBSTONE_LEN: u64 = (FIXED_LEN + EPOCH_LEN) as u64;

/// The seeded checksum of granule `granule` of `chunk`, from the plain CRC-32C of its `len` bytes.
pub(super) fn seeded(chunk: ChunkId, granule: usize, plain: u32, len: usize) -> u32 {
    let mut identity = [0; ChunkId::ENCODED_LEN + 4];
    identity[..ChunkId::ENCODED_LEN].copy_from_slice(&chunk.to_bytes());
    let offset = (granule * striate_core::GRANULE_LEN) as u32;
    identity[ChunkId::ENCODED_LEN..].copy_from_slice(&offset.to_be_bytes());
    crc32c_combine(crc32c(&identity), plain, len as u64)
}

impl ChunkRecord {
    /// From the plain checksums of the granules.
    pub fn new(chunk: ChunkId, len: u32, crc32c: u32, sequence: u64, plain: &[u32]) -> Self {
        let table = plain.iter().enumerate();
        let table = table.map(|(i, crc)| seeded(chunk, i, *crc, granule_len(len, i))).collect();
        Self { chunk, len, crc32c, sequence, table }
    }

    /// Checks the bytes of granule `granule`.
    pub fn granule_matches(&self, granule: usize, bytes: &[u8]) -> bool {
        bytes.len() == granule_len(self.len, granule)
            && self.table[granule] == seeded(self.chunk, granule, crc32c(bytes), bytes.len())
    }
}

impl Record {
    /// Length on disk, payload and padding included.
    pub fn len(&self) -> u64 {
        match self {
            Record::Chunk(chunk) => chunk_record_len(chunk.len),
            Record::Tombstone { .. } | Record::Fence { .. } => TOMBSTONE_LEN,
            Record::Mark => FIXED_LEN as u64,
            Record::Gap { len } => FIXED_LEN as u64 + u64::from(*len),
        }
    }

    /// Appends header and table, without payload and padding, for a record at `place`.
    pub fn encode(&self, place: Place, out: &mut Vec<u8>) {
        let start = out.len();
        let (kind, chunk, len, word, sequence) = match self {
            Record::Chunk(chunk) => (1, chunk.chunk, chunk.len, chunk.crc32c, chunk.sequence),
            Record::Tombstone { chunk, sequence, target, .. } => (2, *chunk, 0, *target, *sequence),
            Record::Fence { .. } => (3, NO_CHUNK, 0, 0, 0),
            Record::Mark => (4, NO_CHUNK, 0, 0, 0),
            Record::Gap { len } => (5, NO_CHUNK, *len, 0, 0),
        };
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[FORMAT_VERSION, kind, chunk.index, 0]);
        out.extend_from_slice(&chunk.stripe.to_bytes());
        out.extend_from_slice(&chunk.generation.0.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&word.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&sequence.to_le_bytes());
        match self {
            Record::Chunk(chunk) => {
                chunk.table.iter().for_each(|crc| out.extend_from_slice(&crc.to_le_bytes()));
                out.resize(start + chunk_header_len(chunk.len), 0);
            }
            Record::Tombstone { epoch, .. } | Record::Fence { epoch } => {
                out.extend_from_slice(&epoch.0.to_le_bytes());
            }
            Record::Mark | Record::Gap { .. } => {}
        }
        let crc = header_crc(place, &out[start..]);
        out[start..][CRC_FIELD].copy_from_slice(&crc.to_le_bytes());
    }

    /// Decodes header and table at the start of `bytes`, which may be longer or too short.
    pub fn decode(bytes: &[u8], place: Place) -> Result<Record, NoRecord> {
        if bytes.len() < FIXED_LEN {
            return Err(NoRecord::Needs(FIXED_LEN));
        }
        if bytes[..4] != MAGIC {
            return Err(NoRecord::Damaged);
        }
        let (version, kind) = (bytes[4], bytes[5]);
        let payload_len = read_u32(bytes, 28);
        let header_len = match kind {
            1 if payload_len > 0 && payload_len as usize <= MAX_CHUNK_LEN => chunk_header_len(payload_len),
            2 | 3 => FIXED_LEN + EPOCH_LEN,
            4 | 5 => FIXED_LEN,
            _ => return Err(NoRecord::Damaged),
        };
        if bytes.len() < header_len {
            return Err(NoRecord::Needs(header_len));
        }
        let header = &bytes[..header_len];
        if header_crc(place, header) != read_u32(header, CRC_FIELD.start) {
            return Err(NoRecord::Damaged);
        }
        if version != FORMAT_VERSION {
            return Err(NoRecord::NewerVersion(version));
        }
        Ok(Self::decode_checked(kind, header))
    }

    fn decode_checked(kind: u8, header: &[u8]) -> Record {
        let stripe: [u8; 16] = header[8..24].try_into().expect("sixteen bytes");
        let chunk = ChunkId {
            stripe: StripeId::from_bytes(stripe),
            index: header[6],
            generation: Generation(read_u32(header, 24)),
        };
        let sequence = read_u64(header, 40);
        match kind {
            1 => {
                let len = read_u32(header, 28);
                let words = header[FIXED_LEN..].chunks_exact(4).map(|word| read_u32(word, 0));
                let table = words.take(granule_count(len)).collect();
                Record::Chunk(ChunkRecord { chunk, len, crc32c: read_u32(header, 32), sequence, table })
            }
            2 => {
                let epoch = FencingEpoch(read_u64(header, FIXED_LEN));
                Record::Tombstone { chunk, sequence, target: read_u32(header, 32), epoch }
            }
            3 => Record::Fence { epoch: FencingEpoch(read_u64(header, FIXED_LEN)) },
            4 => Record::Mark,
            _ => Record::Gap { len: read_u32(header, 28) },
        }
    }
}

const NO_CHUNK: ChunkId = ChunkId { stripe: StripeId(0), index: 0, generation: Generation(0) };

fn header_crc(place: Place, header: &[u8]) -> u32 {
    let mut seed = [0; 20];
    seed[..8].copy_from_slice(&place.nonce.to_le_bytes());
    seed[8..12].copy_from_slice(&place.segment.to_le_bytes());
    seed[12..].copy_from_slice(&place.offset.to_le_bytes());
    let crc = crc32c_append(crc32c(&seed), &header[..CRC_FIELD.start]);
    crc32c_append(crc, &header[CRC_FIELD.end..])
}

pub(super) fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(super) fn read_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::granule::{granule_crcs, payload_crc};

    const PLACE: Place = Place { nonce: 77, segment: 3, offset: 4096 };

    fn record(chunk: ChunkId, payload: &[u8]) -> ChunkRecord {
        let (plain, len) = (granule_crcs(payload), payload.len() as u32);
        ChunkRecord::new(chunk, len, payload_crc(&plain, len), 9, &plain)
    }

    fn any_record() -> impl Strategy<Value = Record> {
        let chunk = any::<(u128, u8, u32)>().prop_map(|(stripe, index, generation)| ChunkId {
            stripe: StripeId(stripe),
            index,
            generation: Generation(generation),
        });
        prop_oneof![
            (chunk.clone(), 1usize..200_000)
                .prop_map(|(chunk, len)| Record::Chunk(record(chunk, &crate::conformance::payload(1, len)))),
            (chunk, any::<(u64, u32, u64)>()).prop_map(|(chunk, (sequence, target, epoch))| {
                Record::Tombstone { chunk, sequence, target, epoch: FencingEpoch(epoch) }
            }),
            any::<u64>().prop_map(|epoch| Record::Fence { epoch: FencingEpoch(epoch) }),
            Just(Record::Mark),
            (0u32..10_000).prop_map(|len| Record::Gap { len }),
        ]
    }

    proptest! {
        #[test]
        fn records_survive_their_bytes_and_no_flipped_bit_or_other_place_passes(
            record in any_record(), bit: prop::sample::Index, more in 0usize..9) {
            let mut bytes = Vec::new();
            record.encode(PLACE, &mut bytes);
            let header_len = bytes.len();
            bytes.resize(header_len + more, 0xA5);
            prop_assert_eq!(Record::decode(&bytes, PLACE), Ok(record));
            for other in [Place { nonce: 78, ..PLACE }, Place { segment: 4, ..PLACE }, Place { offset: 8, ..PLACE }] {
                prop_assert_eq!(Record::decode(&bytes, other), Err(NoRecord::Damaged));
            }
            let bit = bit.index(header_len * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!matches!(Record::decode(&bytes, PLACE), Ok(_) | Err(NoRecord::NewerVersion(_))));
        }
    }

    #[test]
    fn a_granule_passes_only_under_its_own_name_and_place() {
        let chunk = crate::conformance::chunk_id(1, 2, 3);
        let payload = vec![5; 3 * striate_core::GRANULE_LEN];
        let header = record(chunk, &payload);
        let granule = &payload[..striate_core::GRANULE_LEN];
        assert!(header.granule_matches(1, granule));
        for other in [(9, 2, 3), (1, 9, 3), (1, 2, 9)] {
            let other = crate::conformance::chunk_id(other.0, other.1, other.2);
            assert!(!ChunkRecord { chunk: other, ..header.clone() }.granule_matches(1, granule));
        }
        assert_ne!(header.table[0], header.table[1], "equal bytes at other offsets differ");
    }
}
