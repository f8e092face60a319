//! Forms: how a chunk's bytes and checksums are laid out in its record.
//!
//! | form | format | granules | checksums | for |
//! |--|--|--|--|--|
//! | coarse | 1 | 64 KiB | a table in the header | what releases before 0.2.0 read |
//! | fine | 2 | 4 KiB | a table in the header | chunks of up to [`PAGED_FROM`] bytes |
//! | paged | 2 | 4,092 bytes | behind each granule | longer chunks: partitions of packed objects |
//!
//! ```text
//! fine   | header, table | payload, as it lies in memory                             |
//! paged  | header | granule, checksum | granule, checksum | … | rest, checksum |
//!                 \_ one page of disk _/
//! ```
//!
//! A small range of a paged chunk takes one read of the one or two pages that hold it: neither header nor table is
//! needed to verify them. Making the pages copies the chunk. Chunks of large objects, which are written while a
//! client waits and are read whole, therefore stay fine: they go to the disk straight from where they lie in
//! memory. The table of a fine chunk is at most 4 KiB long, and is read together with the first granules or kept
//! in memory (module `tables`).
//!
//! The stored checksum of a granule is its CRC-32C combined with the chunk's name and the granule's position, so that
//! intact bytes of another chunk or position do not pass (design.md §10.12).

use bytes::Bytes;
use striate_codec::{crc32c, crc32c_append, crc32c_combine};
use striate_core::{ChunkId, GRANULE_LEN, SMALL_GRANULE_LEN};
use striate_runtime::{Buffer, BufferPool};

use super::record::{ALIGNMENT, FIXED_LEN};
use crate::filesystem::DIRECT_ALIGNMENT;
use crate::granule::granule_count;

/// Length in bytes of a granule with its checksum, in a paged chunk.
pub(super) const PAGE: usize = 4096;

const CHECKSUM_LEN: usize = 4;

/// Length in bytes of a granule of a paged chunk.
const PAGE_PAYLOAD: usize = PAGE - CHECKSUM_LEN;

/// Longer chunks are paged. No chunk of a split object is longer, unless its bucket asked
/// for blocks of more than 4 MiB.
pub(super) const PAGED_FROM: usize = 4 << 20;

/// Layout of a chunk's bytes and checksums in its record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Form {
    #[default]
    Coarse,
    Fine,
    Paged,
}

impl Form {
    /// Returns the record format that introduced the form.
    pub fn version(self) -> u8 {
        match self {
            Form::Coarse => 1,
            Form::Fine | Form::Paged => 2,
        }
    }

    /// Returns the length in bytes of a granule; the last one of a chunk may be shorter.
    pub fn granule_len(self) -> usize {
        match self {
            Form::Coarse => GRANULE_LEN,
            Form::Fine => SMALL_GRANULE_LEN,
            Form::Paged => PAGE_PAYLOAD,
        }
    }

    /// Returns the number of checksums in the header of a chunk of `len` bytes.
    pub fn table_len(self, len: u32) -> usize {
        match self {
            Form::Coarse | Form::Fine => granule_count(len, self.granule_len()),
            Form::Paged => 0,
        }
    }

    /// Returns the length in bytes of a chunk record's header and table, for a payload of `len` bytes.
    pub fn header_len(self, len: u32) -> usize {
        FIXED_LEN + (4 * self.table_len(len)).next_multiple_of(ALIGNMENT as usize)
    }

    /// Returns the length in bytes of what follows the header: the payload, and the checksums of a paged chunk.
    pub fn stored_len(self, len: u32) -> usize {
        match self {
            Form::Coarse | Form::Fine => len as usize,
            Form::Paged => len as usize + CHECKSUM_LEN * granule_count(len, PAGE_PAYLOAD),
        }
    }

    /// Returns the length in bytes of a chunk's whole record with its padding.
    pub fn record_len(self, len: u32) -> u64 {
        ((self.header_len(len) + self.stored_len(len)) as u64).next_multiple_of(ALIGNMENT)
    }

    /// Returns the seal that the checksums of `chunk` are verified with.
    pub fn seal(self, chunk: ChunkId) -> Seal {
        Seal { form: self, chunk, name: crc32c(&chunk.to_bytes()) }
    }
}

/// Binds checksums to the name of a chunk and the positions of its granules.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seal {
    form: Form,
    chunk: ChunkId,
    /// CRC-32C of the chunk's name.
    name: u32,
}

impl Seal {
    /// Returns the stored checksum of granule `granule`, from the plain CRC-32C of its `len` bytes.
    ///
    /// Coarse: the CRC-32C of name, offset and bytes. Fine and paged: the plain CRC-32C XORed with a word of name and
    /// position. This is as good, because a CRC with a name before the bytes amounts to the same, and it needs no
    /// polynomial product for every 4 KiB.
    pub fn of(&self, granule: usize, plain: u32, len: usize) -> u32 {
        /// Odd, so that no two positions in a chunk share a word.
        const STEP: u32 = 0x9E37_79B1;
        match self.form {
            Form::Coarse => {
                let mut identity = [0; ChunkId::ENCODED_LEN + 4];
                identity[..ChunkId::ENCODED_LEN].copy_from_slice(&self.chunk.to_bytes());
                let offset = (granule * GRANULE_LEN) as u32;
                identity[ChunkId::ENCODED_LEN..].copy_from_slice(&offset.to_be_bytes());
                crc32c_combine(crc32c(&identity), plain, len as u64)
            }
            Form::Fine | Form::Paged => plain ^ self.name.wrapping_add((granule as u32).wrapping_mul(STEP)),
        }
    }

    /// Returns whether granule `granule` has these bytes, given its `stored` checksum.
    pub fn matches(&self, granule: usize, bytes: &[u8], stored: u32) -> bool {
        self.of(granule, crc32c(bytes), bytes.len()) == stored
    }
}

/// Returns the pages of a chunk, which begin at a page boundary in memory, and the CRC-32C of its payload.
pub(super) fn make_pages(chunk: ChunkId, payload: &[u8], buffers: &BufferPool) -> (Bytes, u32) {
    let mut maker = PageMaker::new(chunk, payload.len() as u32, buffers);
    maker.append(payload);
    maker.finish()
}

/// Builds the pages of a chunk while its payload arrives in pieces.
#[derive(Debug)]
pub(super) struct PageMaker {
    seal: Seal,
    buffer: Buffer,
    /// Offset of the first page in the buffer: at a page boundary in memory.
    start: usize,
    /// Length of the payload in bytes; `at` is how many have arrived.
    len: usize,
    at: usize,
    /// The CRC-32C of what has arrived of the current granule; `crc32c_before` is that of all granules before it.
    granule_crc32c: u32,
    crc32c_before: u32,
}

impl PageMaker {
    /// Creates the pages of a chunk whose payload will have `len` bytes.
    pub fn new(chunk: ChunkId, len: u32, buffers: &BufferPool) -> Self {
        let buffer = buffers.take(Form::Paged.stored_len(len) + DIRECT_ALIGNMENT);
        let start = buffer.as_ptr().align_offset(DIRECT_ALIGNMENT);
        let seal = Form::Paged.seal(chunk);
        Self { seal, buffer, start, len: len as usize, at: 0, granule_crc32c: 0, crc32c_before: 0 }
    }

    /// Appends the next bytes of the payload. Panics if there are more than announced.
    pub fn append(&mut self, mut bytes: &[u8]) {
        assert!(bytes.len() <= self.len - self.at, "a payload longer than was told");
        while !bytes.is_empty() {
            let (granule, within) = (self.at / PAGE_PAYLOAD, self.at % PAGE_PAYLOAD);
            let (part, rest) = bytes.split_at(bytes.len().min(PAGE_PAYLOAD - within));
            let page = &mut self.buffer[self.start + granule * PAGE..];
            page[within..within + part.len()].copy_from_slice(part);
            self.granule_crc32c = crc32c_append(self.granule_crc32c, part);
            self.at += part.len();
            let filled = within + part.len();
            if filled == PAGE_PAYLOAD || self.at == self.len {
                let plain = std::mem::take(&mut self.granule_crc32c);
                let checksum = self.seal.of(granule, plain, filled).to_le_bytes();
                page[filled..filled + CHECKSUM_LEN].copy_from_slice(&checksum);
                self.crc32c_before = crc32c_combine(self.crc32c_before, plain, filled as u64);
            }
            bytes = rest;
        }
    }

    /// Returns the pages and the CRC-32C of the payload, all of which must have arrived.
    pub fn finish(self) -> (Bytes, u32) {
        assert_eq!(self.at, self.len, "a payload shorter than was told");
        let stored = self.start..self.start + Form::Paged.stored_len(self.len as u32);
        (self.buffer.freeze().slice(stored), self.crc32c_before)
    }
}

/// Verifies `pages`, which are those of `seal`'s chunk starting with page `first`.
///
/// # Errors
/// The number of the first page that does not match its checksum.
pub(super) fn check_pages(seal: &Seal, first: usize, pages: &[u8]) -> Result<(), usize> {
    for (at, page) in pages.chunks(PAGE).enumerate() {
        check_page(seal, first + at, page)?;
    }
    Ok(())
}

/// As [`check_pages`], and moves the payload bytes together at the front of `pages`; returns their number.
pub(super) fn join_pages(seal: &Seal, first: usize, pages: &mut [u8]) -> Result<usize, usize> {
    let (mut from, mut to) = (0, 0);
    while from < pages.len() {
        let end = pages.len().min(from + PAGE);
        let len = check_page(seal, first + from / PAGE, &pages[from..end])?;
        // While they are still in the nearest cache.
        pages.copy_within(from..from + len, to);
        (from, to) = (end, to + len);
    }
    Ok(to)
}

/// Returns the number of a page's bytes before its checksum, if they match it.
fn check_page(seal: &Seal, number: usize, page: &[u8]) -> Result<usize, usize> {
    let (bytes, stored) = page.split_last_chunk::<CHECKSUM_LEN>().ok_or(number)?;
    match seal.matches(number, bytes, u32::from_le_bytes(*stored)) {
        true => Ok(bytes.len()),
        false => Err(number),
    }
}
