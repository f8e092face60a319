//! Objects of volatile buckets that are gone from memory: their rows go, also where nobody reads them.
//!
//! A walk over the rows of such buckets, at a bounded rate, asks the memory sites for the splits of many objects at once. An object is
//! gone by the rule of [`striate_stripe::is_gone_from_memory`], by which a read answers 404 and removes the row: never while a site that
//! might have a split is a member and does not answer. Being asked costs a site a look at its index and does not count as a read, so that
//! nothing stays in memory because it was looked at. Rows go as many in a transaction as one may have: evictions that are faster than
//! this would let the metadata grow.

use std::time::Duration;

use striate_core::{Profile, Tier};
use striate_meta::records::{Bucket, MemoryBlock, Object};
use striate_meta::{Commit, Row, keys};
use striate_stripe::{StripeError, Stripes, remove_gone_from_memory};

use crate::rows::Rows;

/// Pause between two walks.
const WALK_EVERY: Duration = Duration::from_secs(60);
/// Blocks of which the splits are asked for in a second, at most.
const BLOCKS_PER_SECOND: f64 = 5_000.0;
/// Blocks of which the splits are asked for in one question to each site, about.
const BLOCKS_AT_ONCE: usize = 1_000;
/// Rows that one transaction removes: each is a precondition and at most two writes, of 103 that there may be of either.
const ROWS_OF_A_TRANSACTION: usize = 50;
/// A site that has not answered by then does not answer.
const ASK_WITHIN: Duration = Duration::from_secs(2);

/// What a walk has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolatileReport {
    /// Objects that it has looked at.
    pub objects: u64,
    /// Those that were gone, and whose rows were removed.
    pub gone: u64,
}

/// Walks again and again, for ever. In one process of a cluster at a time.
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

/// Looks through all volatile buckets, and removes the rows of objects that are gone.
///
/// # Errors
/// When the metadata store fails; what was removed stays so.
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
        let mut asked = Asked::default();
        for row in page {
            let object: Object = row.record()?;
            let blocks = stripes.blocks_in_memory(&object).await?;
            report.objects += 1;
            if !blocks.is_empty() {
                asked.add(row, object, blocks);
            }
            if asked.len >= BLOCKS_AT_ONCE {
                report.gone += std::mem::take(&mut asked).sweep(stripes).await?;
            }
        }
        report.gone += asked.sweep(stripes).await?;
    }
    Ok(())
}

/// Objects of which memory sites are asked together.
#[derive(Default)]
struct Asked {
    objects: Vec<(Row, Object)>,
    blocks: Vec<Vec<MemoryBlock>>,
    /// Blocks of all objects.
    len: usize,
}

impl Asked {
    fn add(&mut self, row: Row, object: Object, blocks: Vec<MemoryBlock>) {
        self.len += blocks.len();
        self.objects.push((row, object));
        self.blocks.push(blocks);
    }

    /// Removes the rows of those that are gone; answers how many. Takes as long as the rate of questions demands.
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

/// Removes rows that are as they were read, together; where one of them was written meanwhile, each by itself. Answers how many.
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

/// `false`: somebody has written one of the objects meanwhile.
async fn remove_together(stripes: &Stripes, rows: &[(Row, Object)]) -> Result<bool, StripeError> {
    let mut tx = stripes.transaction();
    for (row, object) in rows {
        remove_gone_from_memory(&mut tx, row, object)?;
    }
    Ok(matches!(stripes.submit(&tx).await?, Commit::Done(_)))
}
