//! Verify: reads every chunk from its medium, past the page cache, and compares it with the stripe record.
//!
//! Damage becomes debt, which the repair service repays. Afterwards the sites' chunks are listed and compared with
//! the metadata, and unnamed ones are counted ([`crate::collection::orphans`]).

use std::ops::ControlFlow;

use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use serde::Serialize;
use striate_core::{ChunkId, Generation, SiteId};
use striate_meta::records::{Location, Stripe};
use striate_meta::{Commit, Row, keys};
use striate_plan::LeavingRacks;
use striate_site::{ChunkInfo, SiteError};
use striate_stripe::{StripeError, Stripes, file_of, has_place, own_locations};

use crate::collection::orphans::count_orphans;
use crate::hot_copies::drop_copies_where;
use crate::repair::stripe::strays;
use crate::rows::Rows;

/// Stripes examined concurrently.
const CONCURRENCY: usize = 8;
/// Maximum number of damaged chunks that a report names.
const NAMED: usize = 50;

/// Progress of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifyProgress {
    /// Stripes examined.
    pub stripes: u64,
    /// Chunks read and found good.
    pub chunks: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Chunks found missing or damaged, and those known to be missing (debt).
    pub damaged: u64,
}

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Progress at the end.
    pub progress: VerifyProgress,
    /// Stripes with damage, or with chunks in racks that their groups do not need, now in debt.
    pub queued: u64,
    /// Chunks on sites that did not answer.
    pub unknown: u64,
    /// Chunks that no metadata names; only counted.
    pub orphans: u64,
    /// Chunks of writers or generations that the metadata does not know: the metadata may be older than they are.
    pub unexplained: u64,
    /// Whether the verification was stopped before its end.
    pub stopped: bool,
    /// Some of the damage, as text.
    pub examples: Vec<String>,
}

impl VerifyReport {
    /// Returns whether every chunk of every stripe exists and is good.
    pub fn is_clean(&self) -> bool {
        !self.stopped && self.progress.damaged == 0 && self.unknown == 0
    }
}

/// Examines every stripe; calls `progress` after each. `Break` ends it, and the report says so.
///
/// # Errors
/// When the metadata store fails.
pub async fn verify(
    stripes: &Stripes,
    mut progress: impl FnMut(&VerifyProgress) -> ControlFlow<()>,
) -> Result<VerifyReport, StripeError> {
    let mut report = VerifyReport::default();
    let mut rows = Rows::with_prefix(keys::STRIPES);
    while let Some(page) = rows.next(stripes).await? {
        let mut stripes = stream::iter(page).map(|row| examine(stripes, row)).buffer_unordered(CONCURRENCY);
        while let Some(found) = stripes.next().await {
            report.add(found?);
            if progress(&report.progress).is_break() {
                report.stopped = true;
                return Ok(report);
            }
        }
    }
    let found = count_orphans(stripes).await?;
    (report.orphans, report.unexplained) = (found.orphans, found.unexplained);
    Ok(report)
}

/// Result of examining one stripe.
#[derive(Default)]
pub(crate) struct Examination {
    pub(crate) good: Vec<ChunkInfo>,
    pub(crate) damage: Vec<String>,
    pub(crate) unknown: u64,
    queued: bool,
}

impl VerifyReport {
    fn add(&mut self, found: Examination) {
        self.progress.stripes += 1;
        self.progress.chunks += found.good.len() as u64;
        self.progress.bytes += found.good.iter().map(|info| u64::from(info.len)).sum::<u64>();
        self.progress.damaged += found.damage.len() as u64;
        self.unknown += found.unknown;
        self.queued += u64::from(found.queued);
        let room = NAMED.saturating_sub(self.examples.len());
        self.examples.extend(found.damage.into_iter().take(room));
    }
}

/// Reads the chunks of one stripe and compares them with its record. A stripe that is damaged, or has strays, is put in
/// debt.
pub(crate) fn examine(stripes: &Stripes, row: Row) -> BoxFuture<'_, Result<Examination, StripeError>> {
    Box::pin(async move {
        let Some(id) = keys::stripe_of(&row.key) else { return Ok(Examination::default()) };
        let record: Stripe = row.record()?;
        let mut found = Examination::default();
        let k = match stripes.code_of(&record) {
            Ok(code) => code.k(),
            // It must not keep the stripes after it from being examined.
            Err(error) => {
                found.damage.push(format!("stripe {id}: {error}"));
                return Ok(found);
            }
        };
        // A wide stripe's members are examined with the stripes they were written in.
        for (index, location) in own_locations(&record) {
            if has_place(&record, k, index) {
                let chunk = file_of(id, &record, index);
                examine_chunk(stripes, chunk, location, record.chunk_len, &mut found).await;
            }
        }
        examine_copies(stripes, id, &record, &mut found).await?;
        let has_strays = !strays(stripes, &record, &LeavingRacks::default())?.is_empty();
        if !found.damage.is_empty() || has_strays {
            found.queued = put_in_debt(stripes, &row, id).await?;
            if !found.queued {
                // The record changed during the examination: the differences may not be damage.
                return Ok(Examination { good: found.good, ..Examination::default() });
            }
        }
        Ok(found)
    })
}

/// Reads a chunk of `len` bytes and compares it with its location in the stripe's record.
async fn examine_chunk(
    stripes: &Stripes,
    chunk: ChunkId,
    location: &Location,
    len: u32,
    found: &mut Examination,
) {
    let site = SiteId(location.site);
    if site == SiteId(0) {
        return found.damage.push(format!("chunk {chunk}: never written (debt)"));
    }
    let Some(handle) = stripes.site(site) else {
        return found.damage.push(format!("chunk {chunk}: site {site} is not here"));
    };
    match handle.verify(chunk).await {
        Ok(info) if info.crc32c == location.crc32c && info.len == len => found.good.push(info),
        Ok(_) => found.damage.push(format!("chunk {chunk} on site {site}: not the bytes of the encoding")),
        Err(error @ (SiteError::Missing(_) | SiteError::Corrupt { .. } | SiteError::Suspect(_))) => {
            found.damage.push(format!("site {site}: {error}"));
        }
        Err(_) => found.unknown += 1,
    }
}

/// Reads the copies of a stripe's chunks. A bad copy is not damage: it is dropped.
async fn examine_copies(
    stripes: &Stripes,
    id: striate_core::StripeId,
    record: &Stripe,
    found: &mut Examination,
) -> Result<(), StripeError> {
    let mut wrong = Vec::new();
    for copy in &record.copies {
        let chunk = ChunkId { stripe: id, index: copy.index as u8, generation: Generation(copy.generation) };
        let Some(handle) = stripes.site(SiteId(copy.site)) else { continue };
        let crc = record.locations.get(copy.index as usize).map(|location| location.crc32c);
        match handle.verify(chunk).await {
            Ok(info) if Some(info.crc32c) == crc && info.len == record.chunk_len => found.good.push(info),
            Ok(_) | Err(SiteError::Missing(_) | SiteError::Corrupt { .. }) => wrong.push(*copy),
            Err(_) => found.unknown += 1,
        }
    }
    if !wrong.is_empty() {
        drop_copies_where(stripes, id, |copy| wrong.contains(copy)).await?;
    }
    Ok(())
}

/// Puts the stripe in debt. Returns `false` if its record is no longer the one that was examined.
pub(super) async fn put_in_debt(
    stripes: &Stripes,
    row: &Row,
    id: striate_core::StripeId,
) -> Result<bool, StripeError> {
    let mut tx = stripes.transaction();
    tx.require_unchanged(row.key.clone(), Some(row)).put(keys::debt(id), bytes::Bytes::new());
    Ok(matches!(stripes.meta().commit(tx).await?, Commit::Done(_)))
}
