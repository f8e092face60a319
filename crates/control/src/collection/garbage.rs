//! The deleter: removes chunks that nothing names any more (design.md §10.3).
//!
//! A garbage row is consumed when this process has known it for longer than the grace, which is longer than the
//! longest read of one block. Only the monotonic clock of this process measures the age; a restart resets it. Rows that
//! name whole segments or lists of stripes are first expanded into rows of single stripes. These do not wait again: no
//! object has named their stripes for the grace. The parts of deleted multipart objects and uploads are expanded after
//! the grace too.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use striate_core::{ChunkId, Generation, SiteId, StripeId};
use striate_meta::records::{Block, Garbage, ManifestSegment, Stripe};
use striate_meta::store::limits;
use striate_meta::{Commit, Row, ScanRange, Transaction, keys};
use striate_runtime::Instant;
use striate_site::DeleteRequest;
use striate_stripe::{StripeError, Stripes, id16, release_and_leave_debt, release_stripe, stripe_id};

use crate::collection::parts::{abandoned_parts, take_down as take_down_parts};
use crate::rows::{Rows, retired_sites};

/// Garbage rows consumed together.
const BATCH: usize = 64;
/// Maximum number of operations to release one listed stripe, plus the deletion of the list. Most stripes take 4.
const MOST_OF_STRIPE: usize = 7;
/// Blocks of a segment released in one transaction: about 6 operations each.
const SEGMENT_BATCH: usize = 14;
/// Approximate number of stripes of segments released in one round: their rows are in memory, and other garbage waits
/// meanwhile.
const MOST_EXPANDED: usize = 1 << 12;
/// Shortest pause between two rounds.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// What became of garbage rows.
#[derive(Default)]
struct Consumed {
    /// How many were consumed.
    count: u64,
    /// Rows of single stripes into which others were expanded, and whose chunks nobody uses any more.
    unread: Vec<Bytes>,
}

impl Consumed {
    /// Whether no more segments are to be expanded in this round.
    fn is_full(&self) -> bool {
        self.unread.len() >= MOST_EXPANDED
    }
}

/// Consumes garbage rows. Keep one per process, because it remembers the rows' ages.
#[derive(Debug, Default)]
pub struct GarbageCollector {
    first_seen: HashMap<Bytes, Instant>,
    /// True if the last round left segments to the next one.
    is_cut_short: bool,
}

impl GarbageCollector {
    /// Runs rounds until the task is dropped, at intervals of a quarter of the grace, but at least 100 ms. A round
    /// that was cut short is followed by the next one after 100 ms.
    pub fn run(mut self, stripes: Stripes) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let pause = (stripes.options().garbage_grace / 4).max(SHORTEST_PAUSE);
            loop {
                stripes.runtime().sleep(if self.is_cut_short { SHORTEST_PAUSE } else { pause }).await;
                if let Err(error) = self.round(&stripes).await {
                    tracing::warn!(%error, "garbage collection failed; will retry");
                }
            }
        })
    }

    /// Processes all garbage rows once; returns how many were consumed.
    ///
    /// # Errors
    /// When the metadata store fails; the next round continues.
    pub async fn round(&mut self, stripes: &Stripes) -> Result<u64, StripeError> {
        self.is_cut_short = false;
        let retired = retired_sites(stripes).await?;
        let now = stripes.runtime().now();
        let grace = stripes.options().garbage_grace;
        // A site that does not answer is not asked again in this round: each request would time out again.
        let mut silent: BTreeSet<SiteId> = BTreeSet::new();
        let (mut listed, mut consumed) = (BTreeSet::new(), Consumed::default());
        let mut rows = Rows::with_prefix(keys::GARBAGE);
        while let Some(page) = rows.next(stripes).await? {
            let mut due = Vec::new();
            for row in page {
                listed.insert(row.key.clone());
                let first = *self.first_seen.entry(row.key.clone()).or_insert(now);
                if now.duration_since(first) >= grace {
                    due.push(row);
                }
            }
            for batch in due.chunks(BATCH) {
                consume(stripes, batch, &retired, &mut silent, &mut consumed).await?;
            }
        }
        self.take_parts_down(stripes, now, &mut listed).await?;
        self.is_cut_short = consumed.is_full();
        self.first_seen.retain(|key, _| listed.contains(key));
        self.first_seen.extend(consumed.unread.into_iter().map(|row| (row, now - grace)));
        Ok(consumed.count)
    }

    /// Releases the parts of deleted multipart objects and uploads; their chunks become garbage.
    async fn take_parts_down(
        &mut self,
        stripes: &Stripes,
        now: Instant,
        listed: &mut BTreeSet<Bytes>,
    ) -> Result<(), StripeError> {
        let mut last = None;
        loop {
            let page = abandoned_parts(stripes, last.as_ref(), BATCH).await?;
            for abandoned in &page {
                let first = *self.first_seen.entry(abandoned.row.clone()).or_insert(now);
                listed.insert(abandoned.row.clone());
                if now.duration_since(first) >= stripes.options().garbage_grace
                    && let Err(error) = take_down_parts(stripes, abandoned).await
                {
                    tracing::warn!(%error, "removing the parts of an upload failed; will retry");
                }
            }
            match page.into_iter().last() {
                Some(abandoned) => last = Some(abandoned),
                None => return Ok(()),
            }
        }
    }
}

/// Removes the chunks that the rows name, except those on `silent` sites, then deletes the rows whose removals all
/// succeeded. Sites that do not answer join the silent ones.
async fn consume(
    stripes: &Stripes,
    rows: &[Row],
    retired: &BTreeSet<SiteId>,
    silent: &mut BTreeSet<SiteId>,
    consumed: &mut Consumed,
) -> Result<(), StripeError> {
    let mut by_site: BTreeMap<SiteId, Vec<ChunkId>> = BTreeMap::new();
    let mut records = Vec::with_capacity(rows.len());
    for row in rows {
        let record: Garbage = row.record()?;
        if let Some(segment) = &record.segment {
            take_down(stripes, row, segment, consumed).await?;
            continue;
        }
        if !record.stripes.is_empty() {
            take_down_listed(stripes, row, &record.stripes, &mut consumed.unread).await?;
            continue;
        }
        let chunks = chunks_of(&record)?;
        for &(site, chunk) in chunks.iter().filter(|(site, _)| !retired.contains(site)) {
            by_site.entry(site).or_default().push(chunk);
        }
        records.push((row, chunks));
    }
    by_site.retain(|site, _| !silent.contains(site));
    let delete = |(id, chunks): (SiteId, Vec<ChunkId>)| async move {
        let request = DeleteRequest { chunks, epoch: stripes.epoch() };
        match stripes.site(id) {
            Some(site) => site.delete(request).await.is_err().then_some(id),
            None => Some(id),
        }
    };
    silent.extend(join_all(by_site.into_iter().map(delete)).await.into_iter().flatten());
    let mut tx = stripes.transaction();
    for (row, chunks) in &records {
        if chunks.iter().all(|(site, _)| !silent.contains(site)) {
            tx.delete(row.key.clone());
        }
    }
    let removed = tx.writes.len() as u64;
    if removed > 0 {
        stripes.meta().commit(tx).await?;
    }
    consumed.count += removed;
    Ok(())
}

/// Returns the chunks that a stripe's garbage row names, with their sites.
///
/// # Errors
/// [`StripeError::Inconsistent`] when the row names no stripe.
pub(crate) fn chunks_of(record: &Garbage) -> Result<Vec<(SiteId, ChunkId)>, StripeError> {
    let stripe = StripeId::from_bytes(id16(&record.stripe, "a garbage row's stripe")?);
    let chunk = |chunk: &striate_meta::records::GarbageChunk| {
        let generation = Generation(chunk.generation);
        (SiteId(chunk.site), ChunkId { stripe, index: chunk.index as u8, generation })
    };
    Ok(record.chunks.iter().map(chunk).collect())
}

/// Releases split stripes whose objects were packed, as many per transaction as fit. The last transaction deletes the
/// list.
async fn take_down_listed(
    stripes: &Stripes,
    list: &Row,
    listed: &[Bytes],
    unread: &mut Vec<Bytes>,
) -> Result<(), StripeError> {
    let ids = listed.iter().map(stripe_id).collect::<Result<Vec<_>, _>>()?;
    let mut tx = stripes.transaction();
    for batch in ids.chunks(BATCH) {
        let keys: Vec<Bytes> = batch.iter().map(|&id| keys::stripe(id)).collect();
        for (&id, row) in batch.iter().zip(stripes.meta().get_many(&keys).await?) {
            let Some(row) = row else { continue };
            if tx.preconditions.len() + tx.writes.len() + MOST_OF_STRIPE > limits::MAX_OPERATIONS {
                let full = std::mem::replace(&mut tx, stripes.transaction());
                if let Commit::Conflict { .. } = stripes.meta().commit(full).await? {
                    // A repair changed one of the stripes; the next round reads it again.
                    return Ok(());
                }
            }
            tx.require_unchanged(row.key.clone(), Some(&row));
            let stripe = row.record()?;
            release_and_leave_debt(&mut tx, id, &stripe);
            unread.extend(unread_row(&tx, id, &stripe));
        }
    }
    tx.delete(list.key.clone());
    stripes.meta().commit(tx).await?;
    Ok(())
}

/// Returns the garbage row that `tx` writes for a stripe that no object has named for the grace, unless a service may
/// still be writing the stripe's chunks.
fn unread_row(tx: &Transaction, id: StripeId, stripe: &Stripe) -> Option<Bytes> {
    stripe.entries.is_empty().then(|| keys::garbage(&id.to_bytes(), tx.id.0))
}

/// Deletes a segment's block rows and releases its stripes in batches; the last batch deletes the garbage row. The next
/// round continues once this one has released enough.
async fn take_down(
    stripes: &Stripes,
    garbage: &Row,
    segment: &ManifestSegment,
    consumed: &mut Consumed,
) -> Result<(), StripeError> {
    let id = id16(&segment.id, "a garbage row's segment")?;
    while !consumed.is_full() {
        let blocks = stripes.meta().scan(ScanRange::prefix(&keys::blocks(&id)), SEGMENT_BATCH).await?;
        let mut tx = stripes.transaction();
        if blocks.is_empty() {
            tx.delete(garbage.key.clone());
            stripes.meta().commit(tx).await?;
            return Ok(());
        }
        for block in blocks {
            let record: Block = block.record()?;
            tx.delete(block.key);
            let Ok(stripe) = stripe_id(&record.stripe) else { continue };
            let Some(row) = stripes.meta().get(&keys::stripe(stripe)).await? else { continue };
            tx.require_unchanged(keys::stripe(stripe), Some(&row));
            let record = row.record()?;
            release_stripe(&mut tx, stripe, &record);
            consumed.unread.extend(unread_row(&tx, stripe, &record));
        }
        if let Commit::Conflict { .. } = stripes.meta().commit(tx).await? {
            // A repair changed one of the stripes; the next round reads it again.
            return Ok(());
        }
    }
    Ok(())
}
