//! Combine trees over a stripe's files: which sum a chunk of a wide stripe is, who adds up what (ECWide §4.1), and what the site at the root
//! is asked.

use std::ops::Range;

use striate_codec::CodecError;
use striate_core::{ChunkId, RackId, SiteId, StripeId};
use striate_meta::records::Stripe;
use striate_plan::{CombineTerm, CombineTree, repair_by_racks};
use striate_site::{CombineRequest, CombineSource, LocalTerm, Priority};

use crate::table::{OpenedStripe, file_of, len_of};

/// Bytes of the slices that sites send each other.
pub const SLICE_LEN: u32 = 256 << 10;

/// The terms of a sum over a stripe's chunks, each with its site: (coefficient, chunk). `cost` says what asking the site of each
/// chunk costs, `rack_of` where a site is; one that is not known has nobody to add up with.
pub(crate) fn terms(
    record: &Stripe,
    of: &[(u8, usize)],
    cost: impl Fn(usize) -> f64,
    rack_of: impl Fn(SiteId) -> Option<RackId>,
) -> Vec<CombineTerm> {
    let term = |&(coefficient, chunk): &(u8, usize)| {
        let site = SiteId(record.locations[chunk].site);
        let rack = rack_of(site).unwrap_or_else(|| RackId::of_unknown(site));
        CombineTerm { chunk, coefficient, site, rack, cost: cost(chunk) }
    };
    of.iter().map(term).collect()
}

/// What reading each chunk of a wide stripe costs, where the one at `position` is to be computed. `None` where a chunk cannot be had, as
/// that one cannot. `cost` says it of the other chunks that are files; a hole is known without being read.
pub fn costs_around(
    wide: &OpenedStripe,
    position: usize,
    cost: impl Fn(usize) -> Option<f64>,
) -> Vec<Option<f64>> {
    let of = |at: usize| match wide.has_place(at) {
        _ if at == position => None,
        true => cost(at),
        false => Some(0.0),
    };
    (0..wide.code.n()).map(of).collect()
}

/// The chunk at a position of a wide stripe as a sum of others that can be had, by their `costs`: (coefficient, position). Of such sums
/// that of the fewest sums across racks where it is made in the rack `home`; a hole is everywhere.
///
/// # Errors
/// [`CodecError`] where the chunks that can be had do not determine it.
pub fn equation_around(
    wide: &OpenedStripe,
    position: usize,
    costs: &[Option<f64>],
    home: &RackId,
    rack_of: impl Fn(SiteId) -> RackId,
) -> Result<Vec<(u8, usize)>, CodecError> {
    let rack = |at: usize| match wide.has_place(at) {
        true => rack_of(SiteId(wide.record.locations[at].site)),
        false => home.clone(),
    };
    let racks: Vec<RackId> = (0..wide.code.n()).map(rack).collect();
    let racks: Vec<&RackId> = racks.iter().collect();
    let sources = repair_by_racks(&wide.code, position, costs, &racks, home)?.equation.sources;
    let files = sources.into_iter().filter(|&(at, _)| wide.has_place(at));
    Ok(files.map(|(at, by)| (by, at)).collect())
}

/// Files with their lengths in bytes, by the numbers that a tree has for them.
pub type Files<'a> = &'a (dyn Fn(usize) -> (ChunkId, u32) + Sync);

/// The files of a stripe's chunks, with their lengths in bytes, by index.
pub(crate) fn files_of(id: StripeId, record: &Stripe) -> impl Fn(usize) -> (ChunkId, u32) {
    move |index| (file_of(id, record, index), len_of(record, index))
}

/// What the site at the root of a tree is asked for these columns of the sum; `files` has the files of the tree's chunks, and their
/// lengths in bytes.
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
