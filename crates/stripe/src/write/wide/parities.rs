//! New generations of a wide stripe's parities when one of its data chunks changes.
//!
//! They are made where the old ones are. The difference crosses racks once for the global parities, and once more for the local one
//! unless that is in the chunk's rack: the first global parity is made by the difference, the others by what has changed in the first, in
//! their rack (ECWide §4.3). Only ranges that differ are sent.

use std::ops::Range;

use futures::future::try_join_all;
use striate_codec::{ChecksumChange, gf256};
use striate_core::{ChunkId, Generation, SiteId};
use striate_meta::records::{GarbageChunk, Stripe};
use striate_site::Window;

use super::seal::verify_made;
use crate::error::StripeError;
use crate::table::OpenedStripe;
use crate::write::change::{FileAt, StripeChange};
use crate::write::writes::Writes;

/// What a data chunk of a wide stripe was, compared with what it is to be.
pub(super) struct Difference {
    /// The parities that change, with the chunk's coefficients in them.
    pub(super) parities: Vec<(usize, u8)>,
    /// The files whose sum it is: those that there are of the old and the new one.
    pub(super) files: Vec<FileAt>,
    /// Where it is not zero, in order.
    pub(super) ranges: Vec<Range<u32>>,
    /// What it does to checksums of chunks as long as the parities.
    pub(super) checksums: ChecksumChange,
}

/// The parities that a position has a part in, with its coefficients. `None` where one of them is lost.
pub(super) fn parities_of(wide: &OpenedStripe, position: usize) -> Option<Vec<(usize, u8)>> {
    let rows = (wide.code.k()..wide.code.n()).map(|index| (index, wide.code.row(index)[position]));
    let parities: Vec<(usize, u8)> = rows.filter(|&(_, factor)| factor != 0).collect();
    let is_lost = |&(index, _): &(usize, u8)| wide.record.locations[index].site == 0;
    (!parities.iter().any(is_lost)).then_some(parities)
}

/// Where new generations of parities go: they stay where they are.
pub(super) fn places_of(record: &Stripe, parities: &[(usize, u8)]) -> Vec<(usize, SiteId)> {
    parities.iter().map(|&(index, _)| (index, SiteId(record.locations[index].site))).collect()
}

/// Makes the new generation of each parity that changes, and reads it back from its medium. The record then says what they are.
pub(super) async fn make_parities(
    writes: &Writes,
    change: &mut StripeChange<'_>,
    before: &Stripe,
    difference: &Difference,
    generation: Generation,
) -> Result<(), StripeError> {
    for &(index, factor) in &difference.parities {
        let crc32c = difference.checksums.apply(before.locations[index].crc32c, factor);
        change.record.locations[index].crc32c = crc32c;
    }
    let (change, locals) = (&*change, change.code.k() + change.code.local_groups().len());
    let parity = |index: usize, generation: u32| FileAt {
        chunk: ChunkId { stripe: change.id, index: index as u8, generation: Generation(generation) },
        len: change.record.chunk_len,
        site: SiteId(before.locations[index].site),
    };
    let make = |index: usize, terms: Vec<(u8, FileAt)>| async move {
        let old = parity(index, before.locations[index].generation);
        let window = |range: &Range<u32>| change.window(old.site, &terms, range);
        let windows = difference.ranges.iter().map(window).collect();
        amend(writes, change, index, generation, old, windows).await
    };
    let is_local = |&(index, _): &(usize, u8)| index < locals;
    let first_global = difference.parities.iter().copied().find(|of| !is_local(of));
    let follows = |of: &&(usize, u8)| !is_local(of) && Some(**of) != first_global;
    let (following, direct): (Vec<_>, Vec<_>) = difference.parities.iter().partition(follows);
    try_join_all(
        direct.into_iter().map(|&(index, factor)| {
            make(index, difference.files.iter().map(|&file| (factor, file)).collect())
        }),
    )
    .await?;
    let Some((first, of_first)) = first_global else { return Ok(()) };
    let changed = [before.locations[first].generation, generation.0].map(|of| parity(first, of));
    try_join_all(following.into_iter().map(|&(index, factor)| {
        let by = gf256::div(factor, of_first);
        make(index, changed.map(|file| (by, file)).to_vec())
    }))
    .await?;
    Ok(())
}

/// Has a site make another generation of a chunk, whose checksum the record says, and reads it back from its medium.
pub(super) async fn amend(
    writes: &Writes,
    change: &StripeChange<'_>,
    index: usize,
    generation: Generation,
    old: FileAt,
    windows: Vec<Window>,
) -> Result<(), StripeError> {
    change.amend(index, generation, old, windows).await?;
    verify_made(writes, change, index, old.site, generation).await
}

/// Names the parities that were made; answers the files that were named before.
pub(super) fn name_parities(
    change: &StripeChange<'_>,
    record: &mut Stripe,
    parities: &[(usize, u8)],
    generation: Generation,
) -> Vec<GarbageChunk> {
    let name = |&(index, _): &(usize, u8)| {
        let made = change.record.locations[index].crc32c;
        name_content(record, index, generation, made)
    };
    parities.iter().map(name).collect()
}

/// Names another file with another content as a chunk, where the old one is; answers that.
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
