//! Objects of volatile buckets that are gone from memory: their rows go, also where nobody reads them.
//!
//! A walk over the rows of such buckets, at a bounded rate, asks the sites of each object for its splits. An object is gone by the rule of
//! [`striate_stripe::is_gone_from_memory`], by which a read answers 404 and removes the row: never while a site that might have a split is
//! a member and does not answer. Asking costs a site the verification of the split and does not count as a read of it, so that
//! nothing stays in memory because it was looked at.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use striate_core::{ChunkId, Generation, Profile, SiteId, StripeId, Tier};
use striate_meta::records::{Bucket, MemoryBlock, Object, UploadPart, object::Body, upload_part};
use striate_meta::{Commit, Row, keys};
use striate_site::SiteError;
use striate_stripe::{StripeError, Stripes, id16, is_gone_from_memory, remove_gone_from_memory};

use crate::rows::Rows;

/// Pause between two walks.
const WALK_EVERY: Duration = Duration::from_secs(60);
/// Blocks of which the splits are asked for in a second, at most.
const BLOCKS_PER_SECOND: u32 = 100;
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
        for row in page {
            let object: Object = row.record()?;
            report.objects += 1;
            if is_gone(stripes, &object).await? && remove(stripes, &row, &object).await? {
                report.gone += 1;
            }
        }
    }
    Ok(())
}

/// `false`: somebody has written the object meanwhile.
async fn remove(stripes: &Stripes, row: &Row, object: &Object) -> Result<bool, StripeError> {
    let mut tx = stripes.transaction();
    remove_gone_from_memory(&mut tx, row, object)?;
    Ok(matches!(stripes.submit(&tx).await?, Commit::Done(_)))
}

async fn is_gone(stripes: &Stripes, object: &Object) -> Result<bool, StripeError> {
    match &object.body {
        Some(Body::Memory(list)) => is_any_gone(stripes, &list.blocks).await,
        Some(Body::Uploaded(uploaded)) => {
            let upload = id16(&uploaded.upload, "an upload")?;
            let mut rows = Rows::with_prefix(&keys::parts(&upload));
            while let Some(page) = rows.next(stripes).await? {
                for row in page {
                    let part: UploadPart = row.record()?;
                    if let Some(upload_part::Body::Memory(list)) = part.body
                        && is_any_gone(stripes, &list.blocks).await?
                    {
                        return Ok(true);
                    }
                }
            }
            Ok(false)
        }
        _ => Ok(false),
    }
}

async fn is_any_gone(stripes: &Stripes, blocks: &[MemoryBlock]) -> Result<bool, StripeError> {
    let left = stripes.memory_sites_that_left(blocks).await?;
    for block in blocks {
        let began = stripes.runtime().now();
        let missing = missing(stripes, block, &left).await?;
        if is_gone_from_memory(block, |index, site| left.contains(&site) || missing.contains(&index)) {
            return Ok(true);
        }
        stripes.runtime().sleep_until(began + Duration::from_secs(1) / BLOCKS_PER_SECOND).await;
    }
    Ok(false)
}

/// The splits of a block that their sites say they do not have.
async fn missing(
    stripes: &Stripes,
    block: &MemoryBlock,
    left: &BTreeSet<SiteId>,
) -> Result<BTreeSet<usize>, StripeError> {
    let stripe = StripeId(u128::from_be_bytes(id16(&block.content, "a block in memory")?));
    let sites = stripes.memory_sites();
    let asked = block.sites.iter().enumerate().filter_map(|(index, site)| {
        let site = sites.iter().find(|known| known.id() == SiteId(*site) && !left.contains(&known.id()))?;
        let chunk = ChunkId { stripe, index: index as u8, generation: Generation(0) };
        Some(async move {
            let answer = stripes.runtime().timeout(ASK_WITHIN, site.verify(chunk)).await;
            let is_missing = matches!(answer, Ok(Err(SiteError::Missing(_) | SiteError::Corrupt { .. })));
            is_missing.then_some(index)
        })
    });
    Ok(join_all(asked).await.into_iter().flatten().collect())
}
