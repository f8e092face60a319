//! Orphans: chunks that nothing names and nothing can name any more (design.md §10.3).
//!
//! A put or a repair that ends at the wrong moment leaves orphans. So do a fenced writer that keeps writing, and a
//! disk whose damage brings back deleted chunks. Verify counts them. On request they become garbage, which the
//! deleter removes after its grace. This is not automatic, because metadata restored from an export is older than the
//! chunks on the sites.
//!
//! A chunk is an orphan only if all of this holds, checked in this order after the site has listed it:
//! - No intent covers its stripe, so no put can name it later: a range is never reserved again.
//! - The stripe's record does not name it, nor does an open entry of the stripe, which is a repair or a move in
//!   progress. If the chunk has the record's own generation, it may belong to a repair: the transaction that makes it
//!   garbage takes a new generation, which fences that repair.
//! - The metadata knows its writer and its generation. Otherwise the metadata may be older than the chunks, which may
//!   then be the only remains of an object.

use std::collections::BTreeSet;

use futures::future::BoxFuture;
use serde::Serialize;
use striate_core::{ChunkId, SiteId, StripeId};
use striate_meta::records::{Cluster, Garbage, GarbageChunk, Intent, Stripe};
use striate_meta::{Commit, Row, ScanRange, keys, records};
use striate_stripe::{StripeError, Stripes, add_garbage, is_named};

use crate::rows::{Rows, find_record};

/// Chunks of a site listed in one page.
const LIST_PAGE: usize = 1_000;
/// Attempts to decide about a chunk whose stripe keeps changing.
const ATTEMPTS: usize = 8;

/// Chunks on sites that no metadata names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OrphanReport {
    /// Orphan chunks.
    pub orphans: u64,
    /// Chunks of writers or generations that the metadata does not know; they are left alone.
    pub unexplained: u64,
}

/// Action on an orphan.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OrphanAction {
    Counted,
    MadeGarbage,
}

/// Makes a chunk garbage if nothing names it. No intent may cover its range any more.
///
/// # Errors
/// When the metadata store fails, or the stripe's record keeps changing.
pub(crate) async fn collect_orphan(
    stripes: &Stripes,
    site: SiteId,
    chunk: ChunkId,
) -> Result<(), StripeError> {
    for _ in 0..ATTEMPTS {
        if judge(stripes, site, chunk, OrphanAction::MadeGarbage, &mut OrphanReport::default()).await? {
            return Ok(());
        }
    }
    Err(StripeError::Busy)
}

/// Makes the orphans on all sites garbage; returns what this call found. Skips sites that do not answer.
///
/// # Errors
/// When the metadata store fails; completed changes remain.
pub fn collect_orphans(stripes: &Stripes) -> BoxFuture<'_, Result<OrphanReport, StripeError>> {
    Box::pin(async move { examine(stripes, OrphanAction::MadeGarbage).await })
}

/// Counts the orphans on all sites, except those that are garbage already.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn count_orphans(stripes: &Stripes) -> Result<OrphanReport, StripeError> {
    examine(stripes, OrphanAction::Counted).await
}

async fn examine(stripes: &Stripes, found: OrphanAction) -> Result<OrphanReport, StripeError> {
    let mut report = OrphanReport::default();
    for view in stripes.sites().into_iter().filter(|view| view.readable) {
        let mut from = None;
        // A site that fails is scanned in the next pass.
        while let Ok(page) = view.site.list(from, LIST_PAGE).await {
            let listed = page.chunks.iter().map(|info| info.chunk).collect();
            classify(stripes, view.site.id(), listed, found, &mut report).await?;
            from = page.next;
            if from.is_none() {
                break;
            }
        }
    }
    Ok(report)
}

/// Checks the chunks that a site has listed.
async fn classify(
    stripes: &Stripes,
    site: SiteId,
    listed: Vec<ChunkId>,
    found: OrphanAction,
    report: &mut OrphanReport,
) -> Result<(), StripeError> {
    let unnamed = unnamed(stripes, site, listed).await?;
    if unnamed.is_empty() {
        return Ok(());
    }
    let reserved = ReservedNames::read(stripes).await?;
    for OrphanChunk { chunk, .. } in unnamed.into_iter().filter(|found| !reserved.covers(found.chunk.stripe))
    {
        match chunk.stripe.writer() > reserved.newest_writer {
            true => report.unexplained += 1,
            // If the stripe changes meanwhile, the next pass decides.
            false => drop(judge(stripes, site, chunk, found, report).await?),
        }
    }
    Ok(())
}

/// A chunk that no stripe record names on its site.
pub(crate) struct OrphanChunk {
    pub(crate) chunk: ChunkId,
    /// The stripe has a record: a repair or a move may be about to name the chunk.
    pub(crate) has_record: bool,
}

/// Returns the site's chunks that no stripe record names there.
pub(crate) async fn unnamed(
    stripes: &Stripes,
    site: SiteId,
    chunks: Vec<ChunkId>,
) -> Result<Vec<OrphanChunk>, StripeError> {
    let keys: Vec<_> = chunks.iter().map(|chunk| keys::stripe(chunk.stripe)).collect();
    let rows = stripes.meta().get_many(&keys).await?;
    let mut unnamed = Vec::new();
    for (chunk, row) in chunks.into_iter().zip(rows) {
        let stripe: Option<Stripe> = row.map(|row| row.record()).transpose()?;
        if !stripe.as_ref().is_some_and(|stripe| is_named(stripe, site, chunk)) {
            unnamed.push(OrphanChunk { chunk, has_record: stripe.is_some() });
        }
    }
    Ok(unnamed)
}

/// Stripe names that puts may still use, and the last writer that the metadata has registered.
struct ReservedNames {
    /// Writer, first sequence number and the one after the last.
    ranges: BTreeSet<(u64, u64, u64)>,
    newest_writer: u64,
}

impl ReservedNames {
    async fn read(stripes: &Stripes) -> Result<Self, StripeError> {
        let cluster: Cluster = find_record(stripes, &keys::cluster()).await?.unwrap_or_default();
        let mut ranges = BTreeSet::new();
        let mut rows = Rows::with_prefix(keys::INTENTS);
        while let Some(page) = rows.next(stripes).await? {
            for row in page {
                let Intent { writer, first_sequence, count, .. } = row.record()?;
                ranges.insert((writer, first_sequence, first_sequence + u64::from(count)));
            }
        }
        Ok(Self { ranges, newest_writer: cluster.next_writer })
    }

    fn covers(&self, stripe: StripeId) -> bool {
        let (writer, sequence) = (stripe.writer(), stripe.sequence());
        let before = self.ranges.range(..=(writer, sequence, u64::MAX)).next_back();
        before.is_some_and(|&(range_writer, _, end)| range_writer == writer && sequence < end)
    }
}

/// Decides about a chunk that no intent covers. Returns `false` if its stripe's record has changed meanwhile.
async fn judge(
    stripes: &Stripes,
    site: SiteId,
    chunk: ChunkId,
    found: OrphanAction,
    report: &mut OrphanReport,
) -> Result<bool, StripeError> {
    let key = keys::stripe(chunk.stripe);
    let row = stripes.meta().get(&key).await?;
    let record: Option<Stripe> = row.as_ref().map(Row::record).transpose()?;
    let is_named = record.as_ref().is_some_and(|record| is_named(record, site, chunk));
    if is_named || is_garbage(stripes, site, chunk).await? {
        return Ok(true);
    }
    if record.as_ref().is_some_and(|record| record.generation < chunk.generation.0) {
        report.unexplained += 1;
        return Ok(true);
    }
    let is_decided =
        found == OrphanAction::Counted || make_garbage(stripes, site, chunk, row.as_ref(), record).await?;
    report.orphans += u64::from(is_decided);
    Ok(is_decided)
}

/// Returns `false` if the stripe's row is no longer `row`.
async fn make_garbage(
    stripes: &Stripes,
    site: SiteId,
    chunk: ChunkId,
    row: Option<&Row>,
    record: Option<Stripe>,
) -> Result<bool, StripeError> {
    let key = keys::stripe(chunk.stripe);
    let mut tx = stripes.transaction();
    tx.require_unchanged(key.clone(), row);
    if let Some(mut record) = record.filter(|record| record.generation == chunk.generation.0) {
        record.generation += 1;
        tx.put(key, records::encode(&record));
    }
    add_garbage(&mut tx, chunk.stripe, vec![GarbageChunk::of(chunk, site)]);
    let done = matches!(stripes.meta().commit(tx).await?, Commit::Done(_));
    if done {
        tracing::info!(%chunk, %site, "queued an orphan for deletion");
    }
    Ok(done)
}

async fn is_garbage(stripes: &Stripes, site: SiteId, chunk: ChunkId) -> Result<bool, StripeError> {
    let prefix = keys::garbage_of(&chunk.stripe.to_bytes());
    let mut rows = Rows::over(ScanRange::prefix(&prefix));
    while let Some(page) = rows.next(stripes).await? {
        for row in page {
            let garbage: Garbage = row.record()?;
            let is_it = |listed: &GarbageChunk| {
                (listed.index, listed.site, listed.generation)
                    == (u32::from(chunk.index), site.0, chunk.generation.0)
            };
            if garbage.chunks.iter().any(is_it) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
