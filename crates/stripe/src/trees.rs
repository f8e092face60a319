//! Combine trees over a stripe's files: which sum yields a chunk of a wide stripe, which site adds up which
//! terms (ECWide §4.1), and the request to the site at the root.

use std::ops::Range;

use striate_codec::CodecError;
use striate_core::{ChunkId, RackId, SiteId, StripeId};
use striate_meta::records::Stripe;
use striate_plan::{CombineTerm, CombineTree, repair_by_racks};
use striate_site::{CombineRequest, CombineSource, LocalTerm, Priority};

use crate::table::{OpenedStripe, file_of, len_of};

/// Size of the slices that sites send each other, in bytes.
pub const SLICE_LEN: u32 = 256 << 10;

/// Returns the terms of a sum over a stripe's chunks, each with its site. `equation` lists (coefficient, chunk),
/// `cost` gives the cost of asking a chunk's site, and `rack_of` a site's rack. A site whose rack is unknown
/// gets a rack of its own and shares no sums.
pub(crate) fn terms(
    record: &Stripe,
    equation: &[(u8, usize)],
    cost: impl Fn(usize) -> f64,
    rack_of: impl Fn(SiteId) -> Option<RackId>,
) -> Vec<CombineTerm> {
    let term = |&(coefficient, chunk): &(u8, usize)| {
        let site = SiteId(record.locations[chunk].site);
        let rack = rack_of(site).unwrap_or_else(|| RackId::of_unknown(site));
        CombineTerm { chunk, coefficient, site, rack, cost: cost(chunk) }
    };
    equation.iter().map(term).collect()
}

/// Returns the cost of reading each chunk of a wide stripe while the one at `position` is computed. `None` for
/// that chunk and for every chunk that is unavailable. `cost` gives the costs of the chunks that are files; a
/// hole costs nothing, since its zeros are known.
pub fn costs_in_wide(
    wide: &OpenedStripe,
    position: usize,
    cost: impl Fn(usize) -> Option<f64>,
) -> Vec<Option<f64>> {
    let cost_at = |at: usize| match wide.has_place(at) {
        _ if at == position => None,
        true => cost(at),
        false => Some(0.0),
    };
    (0..wide.code.n()).map(cost_at).collect()
}

/// Expresses the chunk at `position` of a wide stripe as a sum of available chunks, as (coefficient, position).
/// `costs` says which are available. Chooses the sum that sends the fewest partial sums across racks when it is
/// computed in the rack `home_rack`; a hole counts as being in every rack.
///
/// # Errors
/// [`CodecError`] when the available chunks do not determine it.
pub fn equation_in_wide(
    wide: &OpenedStripe,
    position: usize,
    costs: &[Option<f64>],
    home_rack: &RackId,
    rack_of: impl Fn(SiteId) -> RackId,
) -> Result<Vec<(u8, usize)>, CodecError> {
    let rack = |at: usize| match wide.has_place(at) {
        true => rack_of(SiteId(wide.record.locations[at].site)),
        false => home_rack.clone(),
    };
    let racks: Vec<RackId> = (0..wide.code.n()).map(rack).collect();
    let racks: Vec<&RackId> = racks.iter().collect();
    let sources = repair_by_racks(&wide.code, position, costs, &racks, home_rack)?.equation.sources;
    let files = sources.into_iter().filter(|&(at, _)| wide.has_place(at));
    Ok(files.map(|(at, by)| (by, at)).collect())
}

/// Maps the numbers that a tree uses to files and their lengths in bytes.
pub type Files<'a> = &'a (dyn Fn(usize) -> (ChunkId, u32) + Sync);

/// Returns a map from chunk index to file and length in bytes.
pub(crate) fn files_of(id: StripeId, record: &Stripe) -> impl Fn(usize) -> (ChunkId, u32) {
    move |index| (file_of(id, record, index), len_of(record, index))
}

/// Builds the request to the site at the root of `tree` for these columns of the sum. `files` maps the tree's
/// chunks to files and their lengths in bytes.
pub fn combination(
    tree: &CombineTree,
    files: Files<'_>,
    columns: &Range<u32>,
    priority: Priority,
) -> CombineRequest {
    let upstream = tree
        .upstream
        .iter()
        .map(|from| CombineSource { site: from.site, request: combination(from, files, columns, priority) });
    let local = tree.local.iter().map(|&(by, index)| {
        let (chunk, len) = files(index);
        LocalTerm { by, chunk, len }
    });
    CombineRequest {
        offset: columns.start,
        len: columns.end - columns.start,
        slice_len: SLICE_LEN,
        local: local.collect(),
        upstream: upstream.collect(),
        priority,
    }
}
