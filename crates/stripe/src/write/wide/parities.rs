//! Makes new generations of a wide stripe's parities when some of its data chunks change.
//!
//! They are made where the old ones are. The difference of one chunk crosses racks once for the global parities, and
//! once more for the local one unless that is in the chunk's rack: the difference makes the first global parity, and
//! what has changed in that makes the others, in their rack (ECWide §4.3). For several chunks, each rack sends each
//! parity the sum it needs. That is more than sending their differences one after the other, but each parity is read
//! and written once. Only ranges that differ are sent.

use std::ops::Range;

use futures::future::try_join_all;
use striate_codec::{ChecksumChange, Code, gf256};
use striate_core::{ChunkId, Generation, SiteId};
use striate_meta::records::{GarbageChunk, Stripe};
use striate_site::Window;

use super::seal::verify_made;
use crate::error::StripeError;
use crate::table::OpenedStripe;
use crate::write::change::{LocatedFile, StripeChange};
use crate::write::writes::Writes;

/// Difference of a data chunk of a wide stripe before and after a change.
pub(super) struct Difference {
    pub(super) position: usize,
    /// Files whose sum the difference is: those of the old and the new chunk that exist.
    pub(super) files: Vec<LocatedFile>,
    /// Effect of the difference on checksums of chunks as long as the parities.
    pub(super) checksums: ChecksumChange,
}

/// Returns the parities that depend on the chunks at these positions. `None` if one of them is lost.
pub(super) fn parities_of(wide: &OpenedStripe, positions: &[usize]) -> Option<Vec<usize>> {
    let has_part = |index: &usize| {
        let row = wide.code.row(*index);
        positions.iter().any(|&position| row[position] != 0)
    };
    let parities: Vec<usize> = (wide.code.k()..wide.code.n()).filter(has_part).collect();
    let is_there = |&index: &usize| wide.record.locations[index].site != 0;
    parities.iter().all(is_there).then_some(parities)
}

/// Returns the places of new generations of parities: those of the old ones.
pub(super) fn places_of(record: &Stripe, parities: &[usize]) -> Vec<(usize, SiteId)> {
    parities.iter().map(|&index| (index, SiteId(record.locations[index].site))).collect()
}

/// Returns the effect on a parity of data chunks that change together: each difference with the chunk's coefficient.
fn parts<'a>(code: &Code, index: usize, differences: &'a [Difference]) -> Vec<(u8, &'a Difference)> {
    let row = code.row(index);
    let factor_of = |difference: &'a Difference| (row[difference.position], difference);
    differences.iter().map(factor_of).filter(|&(factor, _)| factor != 0).collect()
}

/// Makes the new generation of each parity that changes, and reads it back from its medium. The record then describes
/// the new ones. The data chunks change only in `ranges`.
pub(super) async fn make_parities(
    writes: &Writes,
    change: &mut StripeChange<'_>,
    before: &Stripe,
    (parities, differences): (&[usize], &[Difference]),
    ranges: &[Range<u32>],
    generation: Generation,
) -> Result<(), StripeError> {
    update_checksums(change, before, parities, differences);
    let (change, locals) = (&*change, change.code.k() + change.code.local_groups().len());
    let parity = |index: usize, generation: u32| LocatedFile {
        chunk: ChunkId { stripe: change.id, index: index as u8, generation: Generation(generation) },
        len: change.record.chunk_len,
        site: SiteId(before.locations[index].site),
    };
    let make = |index: usize, terms: Vec<(u8, LocatedFile)>| async move {
        let old = parity(index, before.locations[index].generation);
        let windows = ranges.iter().map(|range| change.window(old.site, &terms, range)).collect();
        amend(writes, change, index, generation, old, windows).await
    };
    let parts = |index: usize| parts(&change.code, index, differences);
    let files = |index: usize| -> Vec<(u8, LocatedFile)> {
        let files_of = |(factor, difference): (u8, &Difference)| {
            difference.files.iter().map(|&file| (factor, file)).collect::<Vec<_>>()
        };
        parts(index).into_iter().flat_map(files_of).collect()
    };
    let first_global = parities.iter().copied().find(|&index| index >= locals);
    // The effect of several chunks on one parity is no multiple of their effect on another.
    let follows =
        |index: &&usize| differences.len() == 1 && **index >= locals && Some(**index) != first_global;
    let (following, direct): (Vec<usize>, Vec<usize>) = parities.iter().partition(follows);
    try_join_all(direct.into_iter().map(|index| make(index, files(index)))).await?;
    let (Some(first), [_]) = (first_global, differences) else { return Ok(()) };
    let changed = [before.locations[first].generation, generation.0].map(|number| parity(first, number));
    let first_factor = parts(first)[0].0;
    try_join_all(following.into_iter().map(|index| {
        let by = gf256::div(parts(index)[0].0, first_factor);
        make(index, changed.map(|file| (by, file)).to_vec())
    }))
    .await?;
    Ok(())
}

/// Puts the checksums of the parities after the change into the record.
fn update_checksums(
    change: &mut StripeChange<'_>,
    before: &Stripe,
    parities: &[usize],
    differences: &[Difference],
) {
    for &index in parities {
        let old_crc32c = before.locations[index].crc32c;
        let parts = parts(&change.code, index, differences);
        let add =
            |crc32c, (factor, difference): (u8, &Difference)| difference.checksums.apply(crc32c, factor);
        change.record.locations[index].crc32c = parts.into_iter().fold(old_crc32c, add);
    }
}

/// Lets a site make a new generation of a chunk, whose checksum is in the record, and reads it back from its medium.
pub(super) async fn amend(
    writes: &Writes,
    change: &StripeChange<'_>,
    index: usize,
    generation: Generation,
    old: LocatedFile,
    windows: Vec<Window>,
) -> Result<(), StripeError> {
    change.amend(index, generation, old, windows).await?;
    verify_made(writes, change, index, old.site, generation).await
}

/// Names the new parities. Returns the files named before.
pub(super) fn name_parities(
    change: &StripeChange<'_>,
    record: &mut Stripe,
    parities: &[usize],
    generation: Generation,
) -> Vec<GarbageChunk> {
    let name = |&index: &usize| {
        let crc32c = change.record.locations[index].crc32c;
        name_content(record, index, generation, crc32c)
    };
    parities.iter().map(name).collect()
}

/// Names a new file with other content for a chunk, at the same site. Returns the old file.
pub(super) fn name_content(
    record: &mut Stripe,
    index: usize,
    generation: Generation,
    crc32c: u32,
) -> GarbageChunk {
    let location = &mut record.locations[index];
    let replaced = location.to_garbage(index);
    (location.generation, location.crc32c) = (generation.0, crc32c);
    location.content_version += 1;
    replaced
}
