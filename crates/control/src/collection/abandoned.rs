//! Abandoned puts: what dead writers left behind (design.md §10.3).
//!
//! A writer is dead when its lease has expired. The collector deletes the intent's row first, which fences whatever
//! the writer may still try. Only then does it list the chunks, read the stripes' records and, last, the garbage
//! rows: a chunk that belongs to no record can never be named any more. If a garbage row names the chunk, the deleter
//! removes it after the grace, because a stripe that was overwritten or deleted may still be read. Other chunks were
//! never named and are removed at once. This order misses nothing, because the transaction that deletes a record
//! writes its garbage row.
//!
//! The writer's range also covers stripes that it has finished. An unnamed chunk of such a stripe may belong to a
//! repair or a move in progress, which is fenced before the chunk becomes garbage.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::BoxFuture;
use striate_core::{ChunkId, Generation, SiteId, StripeId};
use striate_meta::records::{Garbage, Intent, ManifestSegment, PendingSegment};
use striate_meta::{Commit, LeaseId, Row, ScanRange, keys, records};
use striate_site::DeleteRequest;
use striate_stripe::{StripeError, Stripes};

use crate::collection::entries::cancel_dead_changes;
use crate::collection::garbage::{GarbageCollector, chunks_of};
use crate::collection::orphans::{OrphanChunk, collect_orphan, unnamed};
use crate::rows::Rows;

const LIST_PAGE: usize = 1_000;

/// Default interval between two passes over abandoned writes.
pub const COLLECT_EVERY: Duration = Duration::from_secs(60);

/// Collects garbage, and every `pause` what dead writers left behind. Runs until the task is dropped. Run it in one
/// process of a cluster at a time.
pub fn keep_collecting(stripes: Stripes, pause: Duration) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let abandoned = async {
            loop {
                stripes.runtime().sleep(pause).await;
                match collect_abandoned(&stripes).await {
                    Ok(report) if report == AbandonedReport::default() => {}
                    Ok(report) => tracing::info!(?report, "collected what unfinished writes left behind"),
                    Err(error) => {
                        tracing::warn!(%error, "collecting unfinished writes failed; will retry")
                    }
                }
            }
        };
        futures::future::join(abandoned, GarbageCollector::default().run(stripes.clone())).await;
    })
}

/// Results of a pass over abandoned writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AbandonedReport {
    /// Reservations of dead writers that were ended.
    pub intents: u64,
    /// Chunks removed at once.
    pub chunks: u64,
    /// Unfinished segments that became garbage.
    pub segments: u64,
    /// Repairs and moves of dead processes that were cancelled.
    pub changes: u64,
}

/// Collects what writers whose leases have expired left behind.
///
/// # Errors
/// When the metadata store fails. Chunks on sites that do not answer stay as orphans, which verify finds.
pub fn collect_abandoned(stripes: &Stripes) -> BoxFuture<'_, Result<AbandonedReport, StripeError>> {
    Box::pin(async move {
        let mut report = AbandonedReport::default();
        let mut rows = Rows::with_prefix(keys::PENDING);
        while let Some(page) = rows.next(stripes).await? {
            for row in page {
                let record: PendingSegment = row.record()?;
                if !stripes.meta().is_alive(LeaseId(record.lease)).await? {
                    report.segments += u64::from(give_up_segment(stripes, &row).await?);
                }
            }
        }
        let mut rows = Rows::with_prefix(keys::INTENTS);
        while let Some(page) = rows.next(stripes).await? {
            for row in page {
                let record: Intent = row.record()?;
                if stripes.meta().is_alive(LeaseId(record.lease)).await? {
                    continue;
                }
                let mut tx = stripes.transaction();
                tx.require_unchanged(row.key.clone(), Some(&row)).delete(row.key.clone());
                if let Commit::Done(_) = stripes.meta().commit(tx).await? {
                    report.intents += 1;
                    report.chunks += remove_unnamed(stripes, &record).await?;
                }
            }
        }
        report.changes = cancel_dead_changes(stripes).await?;
        Ok(report)
    })
}

/// Turns a pending segment into garbage.
async fn give_up_segment(stripes: &Stripes, row: &Row) -> Result<bool, StripeError> {
    let Some(Ok(id)) = row.key.get(2..).map(<[u8; 16]>::try_from) else { return Ok(false) };
    let segment = ManifestSegment { id: id.to_vec().into(), ..ManifestSegment::default() };
    let garbage = Garbage { segment: Some(segment), ..Garbage::default() };
    let mut tx = stripes.transaction();
    tx.require_unchanged(row.key.clone(), Some(row)).delete(row.key.clone());
    let key = keys::garbage(&id, tx.id.0);
    tx.put(key, records::encode(&garbage));
    Ok(matches!(stripes.meta().commit(tx).await?, Commit::Done(_)))
}

/// Removes the chunks of a fenced reservation that belong to no stripe record and that no garbage row names. Chunks
/// whose stripe has a record that does not name them become garbage.
async fn remove_unnamed(stripes: &Stripes, intent: &Intent) -> Result<u64, StripeError> {
    let first = StripeId::new(intent.writer, intent.first_sequence);
    let end = StripeId::new(intent.writer, intent.first_sequence + u64::from(intent.count));
    let mut removed = 0;
    for view in stripes.sites() {
        let mut from = Some(ChunkId { stripe: first, index: 0, generation: Generation(0) });
        while let Some(start) = from {
            let Ok(page) = view.site.list(Some(start), LIST_PAGE).await else { break };
            let inside: Vec<ChunkId> =
                page.chunks.iter().map(|info| info.chunk).filter(|chunk| chunk.stripe < end).collect();
            from = page.next.filter(|next| next.stripe < end);
            let (of_stripes, chunks): (Vec<OrphanChunk>, Vec<OrphanChunk>) =
                unnamed(stripes, view.site.id(), inside)
                    .await?
                    .into_iter()
                    .partition(|found| found.has_record);
            for OrphanChunk { chunk, .. } in of_stripes {
                if let Err(error) = collect_orphan(stripes, view.site.id(), chunk).await {
                    tracing::warn!(%chunk, site = %view.site.id(), %error, "a chunk of a dead writer was not collected; `striate verify` finds it");
                }
            }
            if chunks.is_empty() {
                continue;
            }
            let garbage = garbage_between(stripes, first, end).await?;
            let chunks: Vec<ChunkId> = chunks
                .into_iter()
                .map(|found| found.chunk)
                .filter(|&chunk| !garbage.contains(&(view.site.id(), chunk)))
                .collect();
            let count = chunks.len() as u64;
            let request = DeleteRequest { chunks, epoch: stripes.epoch() };
            if count > 0 && view.site.delete(request).await.is_ok() {
                removed += count;
            }
        }
    }
    Ok(removed)
}

/// Returns the chunks of stripes from `first` up to `end` that garbage rows name, with their sites.
async fn garbage_between(
    stripes: &Stripes,
    first: StripeId,
    end: StripeId,
) -> Result<BTreeSet<(SiteId, ChunkId)>, StripeError> {
    let start = keys::garbage_of(&first.to_bytes());
    let mut rows = Rows::over(ScanRange { start, end: keys::garbage_of(&end.to_bytes()) });
    let mut garbage = BTreeSet::new();
    while let Some(page) = rows.next(stripes).await? {
        for row in page {
            garbage.extend(chunks_of(&row.record()?)?);
        }
    }
    Ok(garbage)
}
