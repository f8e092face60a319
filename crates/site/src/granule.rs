//! Granules of a chunk: their checksums, the ranges that cover them, and the checks every store makes on what it
//! is handed (design.md §10.12).

use std::ops::Range;
use std::sync::Arc;

use striate_codec::{crc32c, crc32c_combine};
use striate_core::{ChunkRange, GRANULE_LEN};

use crate::api::SiteError;

/// The longest payload a store accepts, in bytes. A record's length field is trusted only below it, so that a
/// damaged header cannot ask for gigabytes.
pub const MAX_CHUNK_LEN: usize = 256 * 1024 * 1024;

/// Number of granules of a chunk of `len` bytes.
pub fn granule_count(len: u32) -> usize {
    (len as usize).div_ceil(GRANULE_LEN)
}

/// Length in bytes of granule `granule` of a chunk of `len` bytes; the last may be shorter.
pub fn granule_len(len: u32, granule: usize) -> usize {
    (len as usize - granule * GRANULE_LEN).min(GRANULE_LEN)
}

/// The plain CRC-32C of each granule of `payload`.
pub fn granule_crcs(payload: &[u8]) -> Arc<[u32]> {
    payload.chunks(GRANULE_LEN).map(crc32c).collect()
}

/// The CRC-32C of a whole payload of `len` bytes, combined from that of its granules.
pub fn payload_crc(granules: &[u32], len: u32) -> u32 {
    let crcs = granules.iter().enumerate();
    crcs.fold(0, |crc, (i, granule)| crc32c_combine(crc, *granule, granule_len(len, i) as u64))
}

/// The granules that `range` touches in a chunk of `len` bytes.
pub(crate) fn covering(range: &ChunkRange) -> Range<usize> {
    let end = range.offset as usize + range.len as usize;
    range.offset as usize / GRANULE_LEN..end.div_ceil(GRANULE_LEN)
}

/// Checks a payload before it is stored and completes its granule checksums.
pub(crate) fn check_write(payload: &[u8], given: Option<Arc<[u32]>>) -> Result<Arc<[u32]>, SiteError> {
    if payload.is_empty() {
        return Err(SiteError::BadRequest("a chunk has at least one byte".into()));
    }
    if payload.len() > MAX_CHUNK_LEN {
        return Err(SiteError::BadRequest(format!(
            "a chunk of {} bytes is longer than {MAX_CHUNK_LEN}",
            payload.len()
        )));
    }
    let granules = given.unwrap_or_else(|| granule_crcs(payload));
    if granules.len() != granule_count(payload.len() as u32) {
        return Err(SiteError::BadRequest(format!(
            "{} granule checksums for {} bytes",
            granules.len(),
            payload.len()
        )));
    }
    Ok(granules)
}

/// Refuses a range that passes the end of its chunk of `len` bytes.
pub(crate) fn check_range(range: &ChunkRange, len: u32) -> Result<(), SiteError> {
    if u64::from(range.offset) + u64::from(range.len) > u64::from(len) {
        return Err(SiteError::BadRequest(format!(
            "bytes {}+{} of chunk {}, which has {len}",
            range.offset, range.len, range.chunk
        )));
    }
    Ok(())
}

/// The answer to a write of a name that is taken: success for the same bytes, told by length and CRC-32C.
pub(crate) fn check_rewrite(
    chunk: striate_core::ChunkId,
    existing: (u32, u32),
    given: (u32, u32),
) -> Result<(), SiteError> {
    if existing == given {
        return Ok(());
    }
    Err(SiteError::BadRequest(format!("chunk {chunk} exists with other bytes; chunks are immutable")))
}
