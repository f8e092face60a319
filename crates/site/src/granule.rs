//! Granules of a chunk: their checksums, the ranges that cover them, and the checks every store makes on what it
//! is handed (design.md §10.12).
//!
//! Checksums that come with a chunk are those of granules of 64 KiB or of 4 KiB: their number tells which. A store that
//! keeps the others derives them: long granules' from short ones' without another look at the bytes, short ones' from
//! the bytes, which must then agree with what was told.

use std::ops::Range;
use std::sync::Arc;

use striate_codec::{crc32c, crc32c_combine};
use striate_core::{ChunkRange, GRANULE_LEN, SMALL_GRANULE_LEN};

use crate::api::SiteError;

/// The longest payload a store accepts, in bytes. A record's length field is trusted only below it, so that a
/// damaged header cannot ask for gigabytes.
pub(crate) const MAX_CHUNK_LEN: usize = 256 * 1024 * 1024;

/// Short granules in a long one.
const SHORT_IN_LONG: usize = GRANULE_LEN / SMALL_GRANULE_LEN;

/// Number of granules of `granule_len` bytes of a chunk of `len` bytes.
pub(crate) fn granule_count(len: u32, granule_len: usize) -> usize {
    (len as usize).div_ceil(granule_len)
}

/// Length in bytes of granule `granule` of a chunk of `len` bytes; the last may be shorter than `full`.
pub fn granule_len(len: u32, granule: usize, full: usize) -> usize {
    (len as usize - granule * full).min(full)
}

/// The plain CRC-32C of each granule of `granule_len` bytes of `payload`.
pub fn granule_crcs(payload: &[u8], granule_len: usize) -> Arc<[u32]> {
    payload.chunks(granule_len).map(crc32c).collect()
}

/// The CRC-32C of a whole payload of `len` bytes, combined from that of its granules of `full` bytes.
pub(crate) fn payload_crc(granules: &[u32], len: u32, full: usize) -> u32 {
    let crcs = granules.iter().enumerate();
    crcs.fold(0, |crc, (i, granule)| crc32c_combine(crc, *granule, granule_len(len, i, full) as u64))
}

/// The length of the granules of which `count` checksums came with a chunk of `len` bytes; `None` if there is no such
/// length. A chunk of one short granule has one long one, which is the same.
pub(crate) fn told_granule_len(count: usize, len: u32) -> Option<usize> {
    [GRANULE_LEN, SMALL_GRANULE_LEN].into_iter().find(|full| granule_count(len, *full) == count)
}

/// The granules of `full` bytes that `range` touches.
pub(crate) fn covering(range: &ChunkRange, full: usize) -> Range<usize> {
    let end = range.offset as usize + range.len as usize;
    range.offset as usize / full..end.div_ceil(full)
}

/// The checksums of long granules, combined from those of short ones, of a chunk of `len` bytes.
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

/// Checks a payload before it is stored, and answers the checksums of its granules of `wanted` bytes, which are long or
/// short ones. `given` are trusted, if they are those.
pub(crate) fn check_write(
    payload: &[u8],
    given: Option<Arc<[u32]>>,
    wanted: usize,
) -> Result<Arc<[u32]>, SiteError> {
    check_len(payload)?;
    let Some(given) = given else { return Ok(granule_crcs(payload, wanted)) };
    let len = payload.len() as u32;
    let told = told_len(&given, len)?;
    if granule_count(len, wanted) == given.len() {
        return Ok(given);
    }
    if told < wanted {
        return Ok(combine_short(&given, len));
    }
    let short = granule_crcs(payload, wanted);
    match combine_short(&short, len) == given {
        true => Ok(short),
        false => Err(damaged()),
    }
}

/// The CRC-32C of a payload of `len` bytes, as it follows from the checksums that came with it.
pub(crate) fn told_crc(given: &[u32], len: u32) -> Result<u32, SiteError> {
    Ok(payload_crc(given, len, told_len(given, len)?))
}

fn told_len(given: &[u32], len: u32) -> Result<usize, SiteError> {
    let told = told_granule_len(given.len(), len);
    told.ok_or_else(|| SiteError::BadRequest(format!("{} granule checksums for {len} bytes", given.len())))
}

/// The bytes are not those whose checksums came with them.
pub(crate) fn damaged() -> SiteError {
    SiteError::BadRequest(
        "the chunk was damaged on its way: it does not match the checksums that came with it".into(),
    )
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

/// Verifies what `range` touches of a chunk that is in memory, by the checksums of its long granules.
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
                prop_assert_eq!(told_crc(given, len as u32), Ok(crc32c(&bytes)));
            }
            let mut damaged = bytes.to_vec();
            damaged[flipped.index(len)] ^= 4;
            // Where the numbers of granules agree, the checksums are trusted as they are; readers will see.
            let is_seen = check_write(&damaged, Some(long), SMALL_GRANULE_LEN).is_err();
            prop_assert_eq!(is_seen, len > SMALL_GRANULE_LEN);
        }
    }
}
