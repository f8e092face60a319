//! Granules of a chunk: their checksums, the ranges that cover them, and the checks that every store makes on its
//! input (design.md §10.12).
//!
//! The checksums that come with a chunk are those of granules of 64 KiB or of 4 KiB; their number says
//! which. A store that keeps the other kind derives it. Checksums of long granules are combined from those
//! of short ones without reading the bytes. Checksums of short granules are computed from the bytes, which
//! must then agree with the given ones.

use std::ops::Range;
use std::sync::Arc;

use striate_codec::{crc32c, crc32c_combine};
use striate_core::{ChunkRange, GRANULE_LEN, SMALL_GRANULE_LEN};

use crate::api::SiteError;

/// The longest payload a store accepts, in bytes. A record's length field is trusted only up to this value, so that a
/// damaged header cannot ask for gigabytes.
pub(crate) const MAX_CHUNK_LEN: usize = 256 * 1024 * 1024;

/// Number of short granules in a long one.
const SHORT_IN_LONG: usize = GRANULE_LEN / SMALL_GRANULE_LEN;

/// Returns the number of granules of `granule_len` bytes in a chunk of `len` bytes.
pub(crate) fn granule_count(len: u32, granule_len: usize) -> usize {
    (len as usize).div_ceil(granule_len)
}

/// Returns the length in bytes of granule `granule` of a chunk of `len` bytes; the last may be shorter than `full`.
pub fn granule_len(len: u32, granule: usize, full: usize) -> usize {
    (len as usize - granule * full).min(full)
}

/// Computes the plain CRC-32C of each granule of `granule_len` bytes of `payload`.
pub fn granule_crcs(payload: &[u8], granule_len: usize) -> Arc<[u32]> {
    payload.chunks(granule_len).map(crc32c).collect()
}

/// Combines the CRC-32C of a whole payload of `len` bytes from those of its granules of `full` bytes.
pub(crate) fn payload_crc(granules: &[u32], len: u32, full: usize) -> u32 {
    let crcs = granules.iter().enumerate();
    crcs.fold(0, |crc, (i, granule)| crc32c_combine(crc, *granule, granule_len(len, i, full) as u64))
}

/// Returns the granule length for which a chunk of `len` bytes has `count` checksums; `None` if there is no such
/// length. A chunk of one short granule also has one long one, with the same checksum.
pub(crate) fn granule_len_of_count(count: usize, len: u32) -> Option<usize> {
    [GRANULE_LEN, SMALL_GRANULE_LEN].into_iter().find(|full| granule_count(len, *full) == count)
}

/// Returns the granules of `full` bytes that `range` touches.
pub(crate) fn covering(range: &ChunkRange, full: usize) -> Range<usize> {
    let end = range.offset as usize + range.len as usize;
    range.offset as usize / full..end.div_ceil(full)
}

/// Combines the checksums of the long granules of a chunk of `len` bytes from those of its short ones.
pub(crate) fn combine_short(short: &[u32], len: u32) -> Arc<[u32]> {
    let combine = |(long, crcs): (usize, &[u32])| {
        let len = granule_len(len, long, GRANULE_LEN) as u32;
        payload_crc(crcs, len, SMALL_GRANULE_LEN)
    };
    short.chunks(SHORT_IN_LONG).enumerate().map(combine).collect()
}

/// Checks the length of a payload before it is stored.
pub(crate) fn check_len(payload: &[u8]) -> Result<(), SiteError> {
    if payload.is_empty() {
        return Err(SiteError::BadRequest("a chunk has at least one byte".into()));
    }
    if payload.len() > MAX_CHUNK_LEN {
        return Err(SiteError::BadRequest(format!(
            "a chunk of {} bytes is longer than {MAX_CHUNK_LEN}",
            payload.len()
        )));
    }
    Ok(())
}

/// Checks a payload before it is stored, and returns the checksums of its granules of `wanted_len` bytes, long or
/// short. `given_crcs` of that length are trusted.
pub(crate) fn check_write(
    payload: &[u8],
    given_crcs: Option<Arc<[u32]>>,
    wanted_len: usize,
) -> Result<Arc<[u32]>, SiteError> {
    check_len(payload)?;
    let Some(given_crcs) = given_crcs else { return Ok(granule_crcs(payload, wanted_len)) };
    let len = payload.len() as u32;
    let given_len = granule_len_of(&given_crcs, len)?;
    if granule_count(len, wanted_len) == given_crcs.len() {
        return Ok(given_crcs);
    }
    if given_len < wanted_len {
        return Ok(combine_short(&given_crcs, len));
    }
    let short = granule_crcs(payload, wanted_len);
    match combine_short(&short, len) == given_crcs {
        true => Ok(short),
        false => Err(damaged()),
    }
}

/// Returns the CRC-32C of a payload of `len` bytes, combined from the checksums that came with it.
pub(crate) fn payload_crc_of(granule_crcs: &[u32], len: u32) -> Result<u32, SiteError> {
    Ok(payload_crc(granule_crcs, len, granule_len_of(granule_crcs, len)?))
}

fn granule_len_of(granule_crcs: &[u32], len: u32) -> Result<usize, SiteError> {
    let len_of_each = granule_len_of_count(granule_crcs.len(), len);
    len_of_each.ok_or_else(|| {
        SiteError::BadRequest(format!("{} granule checksums for {len} bytes", granule_crcs.len()))
    })
}

/// The error for bytes that do not match the checksums that came with them.
pub(crate) fn damaged() -> SiteError {
    SiteError::BadRequest(
        "the chunk was damaged on its way: it does not match the checksums that came with it".into(),
    )
}

/// Refuses a range that extends past the end of its chunk of `len` bytes.
pub(crate) fn check_range(range: &ChunkRange, len: u32) -> Result<(), SiteError> {
    if u64::from(range.offset) + u64::from(range.len) > u64::from(len) {
        return Err(SiteError::BadRequest(format!(
            "bytes {}+{} of chunk {}, which has {len}",
            range.offset, range.len, range.chunk
        )));
    }
    Ok(())
}

/// Verifies the long granules that `range` touches of a chunk in memory.
pub(crate) fn verify_range(payload: &[u8], granules: &[u32], range: &ChunkRange) -> Result<(), SiteError> {
    let len = payload.len() as u32;
    check_range(range, len)?;
    for i in covering(range, GRANULE_LEN) {
        let start = i * GRANULE_LEN;
        if crc32c(&payload[start..start + granule_len(len, i, GRANULE_LEN)]) != granules[i] {
            let reason = format!("granule {i} does not match its checksum");
            return Err(SiteError::Corrupt { chunk: range.chunk, reason });
        }
    }
    Ok(())
}

/// Checks a write to an existing name: it succeeds if length and CRC-32C are the same.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::conformance::payload;

    proptest! {
        #[test]
        fn checksums_of_either_granules_give_the_others(len in 1usize..300_000, seed: u64, flipped: prop::sample::Index) {
            let bytes = payload(seed, len);
            let [long, short] = [GRANULE_LEN, SMALL_GRANULE_LEN].map(|full| granule_crcs(&bytes, full));
            for given in [&long, &short] {
                prop_assert_eq!(check_write(&bytes, Some(given.clone()), GRANULE_LEN), Ok(long.clone()));
                prop_assert_eq!(check_write(&bytes, Some(given.clone()), SMALL_GRANULE_LEN), Ok(short.clone()));
                prop_assert_eq!(payload_crc_of(given, len as u32), Ok(crc32c(&bytes)));
            }
            let mut damaged = bytes.to_vec();
            damaged[flipped.index(len)] ^= 4;
            // Where both granule lengths give the same number, the checksums are trusted as they
            // are; readers detect the damage.
            let is_detected = check_write(&damaged, Some(long), SMALL_GRANULE_LEN).is_err();
            prop_assert_eq!(is_detected, len > SMALL_GRANULE_LEN);
        }
    }
}
