//! The payload of a packed data chunk: objects in key order, then their directory.
//!
//! ```text
//! 0           entries in key order, each at a multiple of 8
//! dir_offset  directory, for each entry: shared u16 | rest_len u16 | rest of the row's key | offset u32 | len u32 | crc32c u32
//! …           zeros
//! end − 32    magic "STRIPACK" | format u16 | 0 u16 | entries u32 | dir_offset u32 | dir_len u32 | dir_crc32c u32 | footer_crc32c u32
//! ```
//!
//! Objects that replaced dead ones lie anywhere before the directory, which then ends at the footer.
//!
//! Numbers are big-endian. `shared` is the length of the prefix that a key has in common with the one before
//! it. A key is that of a metadata row: the rows decide which objects are live, and the directory only says
//! which rows to read. It does not name its stripe.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use striate_codec::crc32c;

/// Length of the footer in bytes.
pub const FOOTER_LEN: u32 = 32;
const MAGIC: &[u8; 8] = b"STRIPACK";
const FORMAT: u16 = 1;
/// Alignment of objects in bytes.
const ALIGNMENT: usize = 8;
/// Bytes of a directory entry besides its key.
const ENTRY_LEN: usize = 16;
/// Maximum length of a row's key in bytes.
const MAX_KEY_LEN: usize = u16::MAX as usize;

/// An object in a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionEntry {
    /// Key of the object's row.
    pub key: Bytes,
    /// Offset in the payload in bytes.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
    /// CRC-32C of the object's bytes.
    pub crc32c: u32,
}

/// Location of a partition's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionFooter {
    /// Number of objects in the partition.
    pub entries: u32,
    /// Offset of the directory in the payload in bytes.
    pub dir_offset: u32,
    /// Length of the directory in bytes.
    pub dir_len: u32,
    dir_crc32c: u32,
}

/// Why a payload is not a partition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no partition: {0}")]
pub struct PartitionError(&'static str);

/// A partition being filled.
#[derive(Debug)]
pub struct PartitionBuilder {
    payload: BytesMut,
    /// Offset of the next object.
    end: usize,
    directory: Directory,
    /// Bytes of the objects, without padding.
    object_bytes: u64,
}

/// A directory under construction.
#[derive(Debug, Default)]
struct Directory {
    bytes: BytesMut,
    entries: u32,
    last_key: Bytes,
}

impl Directory {
    fn list(&mut self, entry: &PartitionEntry) {
        let pairs = self.last_key.iter().zip(&entry.key);
        let shared = pairs.take_while(|(before, now)| before == now).count();
        let rest = &entry.key[shared..];
        self.bytes.put_u16(shared as u16);
        self.bytes.put_u16(rest.len() as u16);
        self.bytes.put_slice(rest);
        self.bytes.put_u32(entry.offset);
        self.bytes.put_u32(entry.len);
        self.bytes.put_u32(entry.crc32c);
        self.entries += 1;
        self.last_key = entry.key.clone();
    }

    /// Returns the footer for this directory at `dir_offset`.
    fn footer(&self, dir_offset: usize) -> BytesMut {
        let mut footer = BytesMut::with_capacity(FOOTER_LEN as usize);
        footer.put_slice(MAGIC);
        footer.put_u16(FORMAT);
        footer.put_u16(0);
        footer.put_u32(self.entries);
        footer.put_u32(dir_offset as u32);
        footer.put_u32(self.bytes.len() as u32);
        footer.put_u32(crc32c(&self.bytes));
        footer.put_u32(crc32c(&footer));
        footer
    }
}

/// Returns the maximum size of an object's directory entry in bytes.
pub fn entry_room(key: &[u8]) -> usize {
    ENTRY_LEN + key.len()
}

/// Returns the offset of an object placed after `end`.
pub fn object_start(end: u32) -> u32 {
    end.next_multiple_of(ALIGNMENT as u32)
}

/// Builds the tail of a partition of `len` bytes in which objects lie anywhere: the directory and the footer.
/// Returns the offset of the tail and its bytes, or `None` when an object is in its way.
pub fn partition_tail(len: u32, entries: &[PartitionEntry]) -> Option<(u32, Bytes)> {
    let mut directory = Directory::default();
    entries.iter().for_each(|entry| directory.list(entry));
    let objects_end = entries.iter().map(|entry| entry.offset as usize + entry.len as usize).max()?;
    let dir_offset = (len as usize).checked_sub(directory.bytes.len() + FOOTER_LEN as usize)?;
    let footer = directory.footer(dir_offset);
    directory.bytes.extend_from_slice(&footer);
    (objects_end <= dir_offset).then(|| (dir_offset as u32, directory.bytes.freeze()))
}

impl PartitionBuilder {
    /// Creates an empty partition of `len` bytes, at least [`FOOTER_LEN`].
    pub fn new(len: u32) -> Self {
        let payload = BytesMut::zeroed(len.max(FOOTER_LEN) as usize);
        Self { payload, end: 0, directory: Directory::default(), object_bytes: 0 }
    }

    /// Whether it has no objects.
    pub fn is_empty(&self) -> bool {
        self.directory.entries == 0
    }

    /// Number of objects, and their bytes.
    pub fn objects(&self) -> (u64, u64) {
        (self.directory.entries.into(), self.object_bytes)
    }

    /// Bytes of the objects with their padding.
    pub fn filled(&self) -> usize {
        self.end
    }

    /// Whether another object of `len` bytes fits.
    pub fn fits(&self, key: &[u8], len: usize) -> bool {
        let directory = self.directory.bytes.len() + entry_room(key);
        key.len() <= MAX_KEY_LEN
            && aligned(self.end + len) + directory + FOOTER_LEN as usize <= self.payload.len()
    }

    /// Adds an object, if it fits. Keys must be in ascending order.
    pub fn push(&mut self, key: Bytes, pieces: &[Bytes]) -> Option<PartitionEntry> {
        let len: usize = pieces.iter().map(Bytes::len).sum();
        if !self.fits(&key, len) {
            return None;
        }
        let offset = self.end;
        for piece in pieces {
            self.payload[self.end..self.end + piece.len()].copy_from_slice(piece);
            self.end += piece.len();
        }
        let crc32c = crc32c(&self.payload[offset..self.end]);
        self.end = aligned(self.end);
        let entry = PartitionEntry { key, offset: offset as u32, len: len as u32, crc32c };
        self.object_bytes += len as u64;
        self.directory.list(&entry);
        Some(entry)
    }

    /// Returns the payload of the chunk.
    pub fn finish(self) -> Bytes {
        let Self { mut payload, end, directory, .. } = self;
        payload[end..end + directory.bytes.len()].copy_from_slice(&directory.bytes);
        let footer = directory.footer(end);
        let at = payload.len() - FOOTER_LEN as usize;
        payload[at..].copy_from_slice(&footer);
        payload.freeze()
    }
}

impl PartitionFooter {
    /// Parses the footer of a partition of `payload_len` bytes from its last [`FOOTER_LEN`] bytes.
    ///
    /// # Errors
    /// [`PartitionError`] when the bytes are not a valid footer.
    pub fn parse(mut bytes: &[u8], payload_len: u32) -> Result<Self, PartitionError> {
        if bytes.len() != FOOTER_LEN as usize || payload_len < FOOTER_LEN {
            return Err(PartitionError("it is too short"));
        }
        let checked = &bytes[..FOOTER_LEN as usize - 4];
        if !bytes.starts_with(MAGIC) {
            return Err(PartitionError("it does not end as one"));
        }
        let expected = crc32c(checked);
        bytes.advance(MAGIC.len());
        let (format, _) = (bytes.get_u16(), bytes.get_u16());
        let (entries, dir_offset, dir_len) = (bytes.get_u32(), bytes.get_u32(), bytes.get_u32());
        let footer = Self { entries, dir_offset, dir_len, dir_crc32c: bytes.get_u32() };
        if bytes.get_u32() != expected {
            return Err(PartitionError("its footer does not match its checksum"));
        }
        if format != FORMAT {
            return Err(PartitionError("a newer program wrote it"));
        }
        let end = dir_offset.checked_add(dir_len);
        if end.is_none_or(|end| end > payload_len - FOOTER_LEN) {
            return Err(PartitionError("its directory lies outside it"));
        }
        Ok(footer)
    }

    /// Parses the objects from the directory's bytes.
    ///
    /// # Errors
    /// [`PartitionError`] when the directory is damaged.
    pub fn entries(&self, directory: &[u8]) -> Result<Vec<PartitionEntry>, PartitionError> {
        if directory.len() != self.dir_len as usize || crc32c(directory) != self.dir_crc32c {
            return Err(PartitionError("its directory does not match its checksum"));
        }
        let (mut rest, mut last) = (directory, Vec::new());
        let mut entries = Vec::with_capacity((self.entries as usize).min(directory.len() / ENTRY_LEN));
        while rest.has_remaining() {
            let entry = next_entry(&mut rest, &mut last).ok_or(PartitionError("its directory is cut off"))?;
            if entry.offset.checked_add(entry.len).is_none_or(|end| end > self.dir_offset) {
                return Err(PartitionError("an object lies outside it"));
            }
            entries.push(entry);
        }
        match entries.len() == self.entries as usize {
            true => Ok(entries),
            false => Err(PartitionError("its directory has another number of objects")),
        }
    }
}

/// Parses the next entry of a directory; `last` is the key before it.
fn next_entry(rest: &mut &[u8], last: &mut Vec<u8>) -> Option<PartitionEntry> {
    let shared = rest.try_get_u16().ok()? as usize;
    let len = rest.try_get_u16().ok()? as usize;
    if shared > last.len() || len > rest.len() {
        return None;
    }
    last.truncate(shared);
    last.extend_from_slice(&rest[..len]);
    rest.advance(len);
    let offset = rest.try_get_u32().ok()?;
    let len = rest.try_get_u32().ok()?;
    let crc32c = rest.try_get_u32().ok()?;
    Some(PartitionEntry { key: Bytes::copy_from_slice(last), offset, len, crc32c })
}

fn aligned(at: usize) -> usize {
    at.next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn footer(payload: &[u8]) -> Result<PartitionFooter, PartitionError> {
        PartitionFooter::parse(&payload[payload.len() - FOOTER_LEN as usize..], payload.len() as u32)
    }

    fn entries(payload: &[u8]) -> Result<Vec<PartitionEntry>, PartitionError> {
        let footer = footer(payload)?;
        let (from, len) = (footer.dir_offset as usize, footer.dir_len as usize);
        footer.entries(&payload[from..from + len])
    }

    proptest! {
        #[test]
        fn what_was_packed_is_found_again_until_nothing_fits(
            objects in prop::collection::btree_map("[a-c]{1,6}(/[a-z]{0,4})?", prop::collection::vec(any::<u8>(), 1..90), 0..30),
            len in 32u32..2_000,
        ) {
            let objects: BTreeMap<String, Vec<u8>> = objects;
            let mut builder = PartitionBuilder::new(len);
            let mut packed = Vec::new();
            for (key, bytes) in &objects {
                let (key, bytes) = (Bytes::from(key.clone()), Bytes::from(bytes.clone()));
                let fits = builder.fits(&key, bytes.len());
                let half = bytes.len() / 2;
                let entry = builder.push(key, &[bytes.slice(..half), bytes.slice(half..)]);
                prop_assert_eq!(entry.is_some(), fits);
                packed.extend(entry);
            }
            let packed_bytes = packed.iter().map(|entry| u64::from(entry.len)).sum();
            prop_assert_eq!(builder.objects(), (packed.len() as u64, packed_bytes));
            let payload = builder.finish();
            prop_assert_eq!(payload.len(), len as usize);
            let found = entries(&payload).unwrap();
            prop_assert_eq!(&found, &packed);
            for entry in found {
                let bytes = &payload[entry.offset as usize..(entry.offset + entry.len) as usize];
                prop_assert_eq!(bytes, &objects[std::str::from_utf8(&entry.key).unwrap()][..]);
                prop_assert_eq!(crc32c(bytes), entry.crc32c);
                prop_assert_eq!(entry.offset % 8, 0);
            }
        }

        #[test]
        fn the_end_of_a_partition_lists_objects_that_lie_anywhere(
            objects in prop::collection::btree_map("[a-c]{1,6}", (0u32..700, 1u32..90), 1..20), len in 32u32..1_200,
        ) {
            let entry = |(key, (offset, len)): (String, (u32, u32))| {
                PartitionEntry { key: key.into(), offset: object_start(offset), len, crc32c: offset }
            };
            let objects: Vec<PartitionEntry> = objects.into_iter().map(entry).collect();
            let room: usize = objects.iter().map(|entry| entry_room(&entry.key)).sum();
            let end = objects.iter().map(|entry| entry.offset + entry.len).max().unwrap();
            let fits = end as usize + room + FOOTER_LEN as usize <= len as usize;
            match partition_tail(len, &objects) {
                None => prop_assert!(!fits),
                Some((from, tail)) => {
                    let mut payload = vec![7; len as usize];
                    prop_assert!(from >= end);
                    payload[from as usize..].copy_from_slice(&tail);
                    prop_assert_eq!(entries(&payload).unwrap(), objects);
                }
            }
        }

        #[test]
        fn a_flipped_bit_of_footer_or_directory_is_found_and_any_bytes_are_no_reason_to_panic(
            at in 0usize..200, bit in 0u8..8, noise in prop::collection::vec(any::<u8>(), 32..200),
        ) {
            let mut builder = PartitionBuilder::new(256);
            for key in ["o/b\0key-1", "o/b\0key-2", "o/b\0other"] {
                builder.push(Bytes::from(key), &[Bytes::from(key)]).unwrap();
            }
            let payload = builder.finish();
            let from = footer(&payload).unwrap().dir_offset as usize;
            let mut broken = payload.to_vec();
            let end = from + footer(&payload).unwrap().dir_len as usize;
            let places: Vec<usize> = (from..end).chain(payload.len() - 32..payload.len()).collect();
            broken[places[at % places.len()]] ^= 1 << bit;
            prop_assert!(entries(&broken).is_err());
            let _ = entries(&noise);
        }
    }

    #[test]
    fn an_entry_costs_sixteen_bytes_and_what_its_key_does_not_share() {
        let mut builder = PartitionBuilder::new(4_096);
        for number in 0..20 {
            builder
                .push(
                    Bytes::from(format!("o/bucket\0folder/object-{number:04}")),
                    &[Bytes::from_static(b"x")],
                )
                .unwrap();
        }
        let payload = builder.finish();
        assert!(footer(&payload).unwrap().dir_len < 20 * 18 + 30, "{:?}", footer(&payload));
    }
}
