//! Records: what a segment is made of.
//!
//! ```text
//! record, at a multiple of 8 bytes of its segment; numbers are little-endian
//!   0   4  magic "SRec"
//!   4   1  format version: 1, and 2 for chunks that are fine or paged
//!   5   1  kind: 1 chunk, 2 tombstone, 3 fence, 4 mark, 5 gap
//!   6   1  index            chunk and tombstone, else 0
//!   7   1  form             chunk of format 2: 0 fine, 1 paged (module `form`); else 0
//!   8  16  stripe           big-endian; chunk and tombstone, else 0
//!  24   4  generation       chunk and tombstone, else 0
//!  28   4  payload length   chunk; the zeros that follow a gap; else 0
//!  32   4  payload CRC-32C  chunk; segment number of the copy that a tombstone covers; else 0
//!  36   4  header CRC-32C   of nonce, segment number, offset, bytes 0..36 and 40.. of the header, table
//!  40   8  sequence         chunk: its place in the order of all writes and deletes of the store;
//!                           tombstone: covers every copy with this sequence or a lower one
//!  48   8  epoch            tombstone and fence only (a chunk's table begins here)
//!      4·g table            chunk that is not paged: the g granule checksums, and a zero if g is odd
//!          payload          chunk; of a paged one with the checksums in between
//!          zeros            to the next multiple of 8
//! ```
//!
//! A granule's checksum covers its chunk's name and its position besides its bytes (module `form`). It is derived from
//! the plain CRC-32C of the granule, without reading the bytes again. The plain CRC-32C of the whole payload is stored
//! beside it for listings.
//!
//! The header's checksum begins with the segment's nonce, a random number that no client knows. Bytes that a client
//! stored *inside* a payload therefore never pass for a record when a scan searches for the next header behind damage.
//! The checksum also covers the record's place, so that a misdirected write does not pass either.
//!
//! Crash argument: a record counts only if its header passes, and, where it may be torn (behind the last mark of its
//! segment), only if its whole payload passes too. A *mark* states that everything before it in its segment was durable
//! when it was written.

use striate_codec::{crc32c, crc32c_append};
use striate_core::{ChunkId, FencingEpoch, Generation, StripeId};

use super::form::{Form, PAGE, check_pages};
use super::index::Location;
use crate::granule::{MAX_CHUNK_LEN, granule_len};

/// The newest format version of records and segments that this program reads.
pub(super) const FORMAT_VERSION: u8 = 2;

/// Length in bytes of the part that every record has.
pub(super) const FIXED_LEN: usize = 48;

/// Alignment of records in bytes.
pub(super) const ALIGNMENT: u64 = 8;

pub(super) const MAGIC: [u8; 4] = *b"SRec";

const EPOCH_LEN: usize = 8;
const CRC_FIELD: std::ops::Range<usize> = 36..40;

/// The place of a record, which its header's checksum covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub nonce: u64,
    pub segment: u32,
    pub offset: u64,
}

/// Content of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Chunk(ChunkRecord),
    /// Deletes all copies of `chunk` with `sequence` or lower; one of them lies in segment `target`.
    Tombstone {
        chunk: ChunkId,
        sequence: u64,
        target: u32,
        epoch: FencingEpoch,
    },
    /// Refuses deletes below `epoch`.
    Fence {
        epoch: FencingEpoch,
    },
    /// Everything before this record in its segment was durable when this was written.
    Mark,
    /// A filler, followed by `len` zeros.
    Gap {
        len: u32,
    },
}

/// The header of a chunk's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChunkRecord {
    pub chunk: ChunkId,
    pub form: Form,
    /// Length in bytes of the payload, without checksums.
    pub len: u32,
    pub crc32c: u32,
    pub sequence: u64,
    /// Stored checksums of the granules; empty for a paged chunk.
    pub table: Vec<u32>,
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordError {
    /// More bytes are needed to decide: this many from the start of the record.
    Needs(usize),
    /// The bytes are not a record.
    Damaged,
    /// A valid record of a newer format.
    NewerVersion(u8),
}

/// Length of a tombstone's record in bytes.
pub(super) const TOMBSTONE_LEN: u64 = (FIXED_LEN + EPOCH_LEN) as u64;

impl ChunkRecord {
    /// Creates a record from the plain checksums of the granules, none for a paged chunk. Its sequence is set later.
    pub fn new(chunk: ChunkId, form: Form, len: u32, crc32c: u32, plain: &[u32]) -> Self {
        let (seal, full) = (form.seal(chunk), form.granule_len());
        let kept = |(i, crc): (usize, &u32)| seal.of(i, *crc, granule_len(len, i, full));
        let table = plain.iter().enumerate().map(kept).collect();
        Self { chunk, form, len, crc32c, sequence: 0, table }
    }

    /// Checks the bytes of granules from `first` on, of a chunk that is not paged.
    ///
    /// # Errors
    /// The number of the first granule that does not match.
    pub fn check_granules(&self, first: usize, bytes: &[u8]) -> Result<(), usize> {
        let seal = self.form.seal(self.chunk);
        for (at, granule) in bytes.chunks(self.form.granule_len()).enumerate() {
            let number = first + at;
            let is_whole = granule.len() == granule_len(self.len, number, self.form.granule_len());
            if !is_whole || !seal.matches(number, granule, self.table[number]) {
                return Err(number);
            }
        }
        Ok(())
    }

    /// Checks `stored`, the bytes after the header from byte `from` on. `from` is a multiple of 64 KiB, where granules
    /// and pages begin.
    ///
    /// # Errors
    /// The number of the first granule that does not match.
    pub fn check_stored(&self, from: usize, stored: &[u8]) -> Result<(), usize> {
        match self.form {
            Form::Coarse | Form::Fine => self.check_granules(from / self.form.granule_len(), stored),
            Form::Paged => check_pages(&self.form.seal(self.chunk), from / PAGE, stored),
        }
    }

    /// Returns the location of this record at `offset` of segment number `segment`.
    pub fn location(&self, segment: u32, offset: u32) -> Location {
        Location { segment, offset, len: self.len, crc32c: self.crc32c, form: self.form }
    }

    /// Returns the length in bytes of header and table.
    pub fn header_len(&self) -> usize {
        self.form.header_len(self.len)
    }

    /// Returns the length in bytes of what follows header and table.
    pub fn stored_len(&self) -> usize {
        self.form.stored_len(self.len)
    }
}

impl Record {
    /// Returns the length in bytes on disk, including payload and padding.
    pub fn len(&self) -> u64 {
        match self {
            Record::Chunk(chunk) => chunk.form.record_len(chunk.len),
            Record::Tombstone { .. } | Record::Fence { .. } => TOMBSTONE_LEN,
            Record::Mark => FIXED_LEN as u64,
            Record::Gap { len } => FIXED_LEN as u64 + u64::from(*len),
        }
    }

    /// Returns the format version that a reader must support.
    pub fn version(&self) -> u8 {
        match self {
            Record::Chunk(chunk) => chunk.form.version(),
            Record::Tombstone { .. } | Record::Fence { .. } | Record::Mark | Record::Gap { .. } => 1,
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
        out.extend_from_slice(&[self.version(), kind, chunk.index, self.form_byte()]);
        out.extend_from_slice(&chunk.stripe.to_bytes());
        out.extend_from_slice(&chunk.generation.0.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&word.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&sequence.to_le_bytes());
        match self {
            Record::Chunk(chunk) => {
                chunk.table.iter().for_each(|crc| out.extend_from_slice(&crc.to_le_bytes()));
                out.resize(start + chunk.header_len(), 0);
            }
            Record::Tombstone { epoch, .. } | Record::Fence { epoch } => {
                out.extend_from_slice(&epoch.0.to_le_bytes());
            }
            Record::Mark | Record::Gap { .. } => {}
        }
        let crc = header_crc(place, &out[start..]);
        out[start..][CRC_FIELD].copy_from_slice(&crc.to_le_bytes());
    }

    fn form_byte(&self) -> u8 {
        match self {
            Record::Chunk(chunk) if chunk.form == Form::Paged => 1,
            _ => 0,
        }
    }

    /// Decodes header and table at the start of `bytes`, which may be longer or too short.
    pub fn decode(bytes: &[u8], place: Place) -> Result<Record, RecordError> {
        if bytes.len() < FIXED_LEN {
            return Err(RecordError::Needs(FIXED_LEN));
        }
        if bytes[..4] != MAGIC {
            return Err(RecordError::Damaged);
        }
        let (version, kind) = (bytes[4], bytes[5]);
        let payload_len = read_u32(bytes, 28);
        // Of a newer version, only the beginning of the header can be relied on.
        let form = match (version, bytes[7]) {
            (1, 0) => Form::Coarse,
            (2.., 0) => Form::Fine,
            (2.., 1) => Form::Paged,
            _ => return Err(RecordError::Damaged),
        };
        let header_len = match kind {
            1 if payload_len > 0 && payload_len as usize <= MAX_CHUNK_LEN => form.header_len(payload_len),
            2 | 3 => FIXED_LEN + EPOCH_LEN,
            4 | 5 => FIXED_LEN,
            _ => return Err(RecordError::Damaged),
        };
        if bytes.len() < header_len {
            return Err(RecordError::Needs(header_len));
        }
        let header = &bytes[..header_len];
        if header_crc(place, header) != read_u32(header, CRC_FIELD.start) {
            return Err(RecordError::Damaged);
        }
        if version > FORMAT_VERSION {
            return Err(RecordError::NewerVersion(version));
        }
        Ok(Self::decode_checked(kind, form, header))
    }

    fn decode_checked(kind: u8, form: Form, header: &[u8]) -> Record {
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
                let table = words.take(form.table_len(len)).collect();
                Record::Chunk(ChunkRecord { chunk, form, len, crc32c: read_u32(header, 32), sequence, table })
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
    use crate::granule::granule_crcs;

    const PLACE: Place = Place { nonce: 77, segment: 3, offset: 4096 };

    const FORMS: [Form; 3] = [Form::Coarse, Form::Fine, Form::Paged];

    fn record(chunk: ChunkId, form: Form, payload: &[u8]) -> ChunkRecord {
        let len = payload.len() as u32;
        let plain = granule_crcs(payload, form.granule_len());
        ChunkRecord::new(chunk, form, len, crc32c(payload), &plain[..form.table_len(len)])
    }

    fn any_record() -> impl Strategy<Value = Record> {
        let chunk = any::<(u128, u8, u32)>().prop_map(|(stripe, index, generation)| ChunkId {
            stripe: StripeId(stripe),
            index,
            generation: Generation(generation),
        });
        prop_oneof![
            (chunk.clone(), prop::sample::select(&FORMS[..]), 1usize..200_000, any::<u64>()).prop_map(
                |(chunk, form, len, sequence)| {
                    let record = record(chunk, form, &crate::conformance::payload(1, len));
                    Record::Chunk(ChunkRecord { sequence, ..record })
                }
            ),
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
                prop_assert_eq!(Record::decode(&bytes, other), Err(RecordError::Damaged));
            }
            let bit = bit.index(header_len * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!matches!(Record::decode(&bytes, PLACE), Ok(_) | Err(RecordError::NewerVersion(_))));
        }
    }

    #[test]
    fn a_granule_passes_only_under_its_own_name_and_place() {
        let chunk = crate::conformance::chunk_id(1, 2, 3);
        for form in [Form::Coarse, Form::Fine] {
            let granule_len = form.granule_len();
            let payload = vec![5; 3 * granule_len];
            let header = record(chunk, form, &payload);
            let granule = &payload[..granule_len];
            assert_eq!(header.check_granules(1, granule), Ok(()));
            for other in [(9, 2, 3), (1, 9, 3), (1, 2, 9)] {
                let other = crate::conformance::chunk_id(other.0, other.1, other.2);
                let header = ChunkRecord { chunk: other, ..header.clone() };
                assert_eq!(header.check_granules(1, granule), Err(1));
            }
            assert_ne!(header.table[0], header.table[1], "equal bytes at other offsets differ");
        }
    }
}
