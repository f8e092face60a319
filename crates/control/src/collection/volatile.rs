//! Removes the rows of objects in volatile buckets that are gone from memory, even if nothing reads them.
//!
//! A rate-limited walk over the rows of such buckets asks the memory sites for the splits of many objects at once.
//! [`striate_stripe::is_gone_from_memory`] decides whether an object is gone, as for a read, which then returns 404
//! and removes the row: an object is never gone while a member site that may hold a split does not answer. The
//! question costs a site an index lookup and does not count as a read, so the walk keeps nothing in memory. Each
//! transaction removes as many rows as it may hold: evictions faster than that would let the metadata grow.

use std::time::Duration;

use striate_core::{Profile, Tier};
use striate_meta::records::{Bucket, MemoryBlock, Object};
use striate_meta::{Commit, Row, keys};
use striate_stripe::{StripeError, Stripes, remove_gone_from_memory};

use crate::rows::Rows;

/// Interval between two walks.
const WALK_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of blocks whose splits are looked up per second.
const BLOCKS_PER_SECOND: f64 = 5_000.0;
/// Approximate number of blocks in one request to each site.
const BLOCKS_AT_ONCE: usize = 1_000;
/// Rows removed by one transaction: each takes one precondition and at most two writes, and a transaction may have
/// 103 of either.
const ROWS_OF_A_TRANSACTION: usize = 50;
/// Timeout for a site's answer.
const ASK_WITHIN: Duration = Duration::from_secs(2);

/// Results of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolatileReport {
    /// Objects examined.
    pub objects: u64,
    /// Objects that were gone, and whose rows were removed.
    pub gone: u64,
}

/// Walks repeatedly until the task is dropped. Run it in one process of a cluster at a time.
pub(crate) async fn keep_sweeping(stripes: Stripes) {
    loop {
        stripes.runtime().sleep(WALK_EVERY).await;
        match sweep_volatile(&stripes).await {
            Ok(report) if report.gone > 0 => {
                tracing::info!(gone = report.gone, of = report.objects, "objects were gone from memory");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "volatile buckets are looked through later"),
        }
    }
}

/// Walks all volatile buckets, and removes the rows of objects that are gone.
///
/// # Errors
/// When the metadata store fails; completed removals remain.
pub async fn sweep_volatile(stripes: &Stripes) -> Result<VolatileReport, StripeError> {
    let mut report = VolatileReport::default();
    let mut buckets = Rows::with_prefix(keys::BUCKETS);
    while let Some(page) = buckets.next(stripes).await? {
        for row in page {
            let bucket: Bucket = row.record()?;
            let is_volatile =
                bucket.profile.parse::<Profile>().is_ok_and(|profile| profile.tier == Tier::Memory);
            if is_volatile && bucket.origin.is_none() {
                sweep_bucket(stripes, &bucket.name, &mut report).await?;
            }
        }
    }
    Ok(report)
}

async fn sweep_bucket(
    stripes: &Stripes,
    bucket: &str,
    report: &mut VolatileReport,
) -> Result<(), StripeError> {
    let mut rows = Rows::with_prefix(&keys::objects(bucket));
    while let Some(page) = rows.next(stripes).await? {
        let mut batch = LookupBatch::default();
        for row in page {
            let object: Object = row.record()?;
            let blocks = stripes.blocks_in_memory(&object).await?;
            report.objects += 1;
            if !blocks.is_empty() {
                batch.add(row, object, blocks);
            }
            if batch.len >= BLOCKS_AT_ONCE {
                report.gone += std::mem::take(&mut batch).sweep(stripes).await?;
            }
        }
        report.gone += batch.sweep(stripes).await?;
    }
    Ok(())
}

/// Objects looked up together.
#[derive(Default)]
struct LookupBatch {
    objects: Vec<(Row, Object)>,
    blocks: Vec<Vec<MemoryBlock>>,
    /// Blocks of all objects.
    len: usize,
}

impl LookupBatch {
    fn add(&mut self, row: Row, object: Object, blocks: Vec<MemoryBlock>) {
        self.len += blocks.len();
        self.objects.push((row, object));
        self.blocks.push(blocks);
    }

    /// Removes the rows of objects that are gone; returns their number. Takes as long as the rate limit demands.
    async fn sweep(self, stripes: &Stripes) -> Result<u64, StripeError> {
        let began = stripes.runtime().now();
        let gone = stripes.are_gone_from_memory(&self.blocks, ASK_WITHIN).await?;
        let gone = self.objects.into_iter().zip(gone).filter(|(_, is_gone)| *is_gone);
        let gone: Vec<(Row, Object)> = gone.map(|(object, _)| object).collect();
        let mut removed = 0;
        for rows in gone.chunks(ROWS_OF_A_TRANSACTION) {
            removed += remove(stripes, rows).await?;
        }
        let least = Duration::from_secs(1).mul_f64(self.len as f64 / BLOCKS_PER_SECOND);
        stripes.runtime().sleep_until(began + least).await;
        Ok(removed)
    }
}

/// Removes the rows that have not changed since they were read, in one transaction; if one has changed, each in its
/// own. Returns their number.
async fn remove(stripes: &Stripes, rows: &[(Row, Object)]) -> Result<u64, StripeError> {
    if remove_together(stripes, rows).await? {
        return Ok(rows.len() as u64);
    }
    let mut removed = 0;
    if rows.len() > 1 {
        for row in rows {
            removed += u64::from(remove_together(stripes, std::slice::from_ref(row)).await?);
        }
    }
    Ok(removed)
}

/// Returns `false` if another process has written one of the objects meanwhile.
async fn remove_together(stripes: &Stripes, rows: &[(Row, Object)]) -> Result<bool, StripeError> {
    let mut tx = stripes.transaction();
    for (row, object) in rows {
        remove_gone_from_memory(&mut tx, row, object)?;
    }
    Ok(matches!(stripes.submit(&tx).await?, Commit::Done(_)))
}
