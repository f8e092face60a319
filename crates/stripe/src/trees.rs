//! Combine trees over a stripe's files: who adds up what (ECWide §4.1), and what the site at the root is asked.

use std::ops::Range;

use striate_core::{ChunkId, RackId, SiteId, StripeId};
use striate_meta::records::Stripe;
use striate_plan::{CombineTerm, CombineTree};
use striate_site::{CombineRequest, CombineSource, LocalTerm, Priority};

use crate::table::{file_of, len_of};

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
        let rack = rack_of(site).unwrap_or_else(|| RackId(format!("unknown, of site {site}")));
        CombineTerm { chunk, coefficient, site, rack, cost: cost(chunk) }
    };
    of.iter().map(term).collect()
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
