//! Progress and results of packing, kept in rows that every process shows.

use bytes::Bytes;
use striate_core::StripeId;
use striate_meta::records::{PackedBucket, PackingFigures, PackingWork, SealedFigures};
use striate_meta::{Row, keys, records};
use striate_runtime::Instant;
use striate_stripe::{StripeError, Stripes};

use crate::packing::PackReport;
use crate::packing::figures::add;
use crate::packing::repacking::RepackOutcome;
use crate::packing::service::PackingOptions;
use crate::packing::setting::PackDecision;
use crate::packing::walk::{Walk, within_memory};
use crate::recent::RecentWork;
use crate::rows::{Rows, find_record};
use crate::sealing::{SealOptions, SealReport};

/// Maximum number of unreadable groups named.
const NAMED: usize = 20;

/// Records what a complete walk has counted, with the decision about its bucket.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn write_bucket(
    stripes: &Stripes,
    walk: Walk<'_>,
    decision: PackDecision,
) -> Result<PackingFigures, StripeError> {
    let key = keys::packed_bucket(walk.bucket());
    let mut record = PackedBucket {
        counted_unix_ms: stripes.runtime().wall_time().as_millis() as u64,
        sealed: sealed_figures(stripes, walk.bucket()).await?,
        ..PackedBucket::default()
    };
    match decision {
        PackDecision::Packs(most) => {
            record.partition_len = within_memory(stripes, most);
            record.group_bytes = walk.group_bytes(record.partition_len);
        }
        PackDecision::Stays(why) => record.reason = why.to_string(),
    }
    let figures = walk.figures().await?;
    record.figures = Some(figures);
    put(stripes, key, records::encode(&record)).await;
    Ok(figures)
}

/// Returns the recorded figures of a bucket's sealed data.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn sealed_figures(
    stripes: &Stripes,
    bucket: &str,
) -> Result<Option<SealedFigures>, StripeError> {
    let record: Option<PackedBucket> = find_record(stripes, &keys::packed_bucket(bucket)).await?;
    Ok(record.and_then(|record| record.sealed))
}

/// Records that data of a bucket is about to be sealed, if nothing is recorded yet: its wide stripes are then looked after
/// even if the first look never ends and the bucket declares nothing as cold any more.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn note_sealing(stripes: &Stripes, bucket: &str) -> Result<(), StripeError> {
    let key = keys::packed_bucket(bucket);
    let record: PackedBucket = find_record(stripes, &key).await?.unwrap_or_default();
    if record.sealed.is_none() {
        let record = PackedBucket { sealed: Some(SealedFigures::default()), ..record };
        put(stripes, key, records::encode(&record)).await;
    }
    Ok(())
}

/// Records a bucket's cold and sealed data.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn write_sealed(
    stripes: &Stripes,
    bucket: &str,
    options: &SealOptions,
    report: &SealReport,
) -> Result<(), StripeError> {
    let key = keys::packed_bucket(bucket);
    let mut record: PackedBucket = find_record(stripes, &key).await?.unwrap_or_default();
    let (swapped_before, emptied_before) =
        record.sealed.as_ref().map_or((0, 0), |before| (before.swapped, before.emptied));
    record.sealed = Some(SealedFigures {
        profile: options.profile_texts(),
        cold_stripes: report.cold_stripes,
        sealed_stripes: report.sealed_stripes,
        half_sealed: report.half_sealed,
        waiting: report.waiting,
        held_up: report.held_up.clone().unwrap_or_default(),
        not_packed: report.not_packed,
        not_packed_bytes: report.not_packed_bytes,
        warnings: report.warnings.clone(),
        swapped: swapped_before + report.swapped,
        emptied: emptied_before + report.emptied,
    });
    put(stripes, key, records::encode(&record)).await;
    Ok(())
}

/// Updates the sums over all buckets, for a process that has packed beside the service.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn sum_again(stripes: &Stripes) -> Result<(), StripeError> {
    let mut work = published(stripes).await?;
    work.figures = Some(sum(stripes).await?);
    work.counted_unix_ms = stripes.runtime().wall_time().as_millis() as u64;
    publish(stripes, &work).await;
    Ok(())
}

/// Progress of this process's packing service.
#[derive(Debug, Default)]
pub(crate) struct PackJournal {
    work: PackingWork,
    recent: RecentWork,
    last_published: PackingWork,
}

impl PackJournal {
    /// Starts the journal of a service. The counts of the previous service hold until this one has its own.
    pub(crate) fn begin(&mut self, options: &PackingOptions, now: Instant, before: PackingWork) {
        self.recent.begin(now);
        self.work = PackingWork {
            setting: options.setting.to_string(),
            settled_after_s: options.pack.settled_after.as_secs(),
            figures: before.figures,
            counted_unix_ms: before.counted_unix_ms,
            unreadable: before.unreadable,
            unreadable_stripes: before.unreadable_stripes,
            ..PackingWork::default()
        };
    }

    /// Records that a walk has progressed from `before` to `now`.
    pub(crate) fn packed(&mut self, at: Instant, before: &PackReport, now: &PackReport) {
        let objects = now.objects - before.objects;
        let bytes = now.bytes - before.bytes;
        self.work.groups += now.groups - before.groups;
        self.work.objects += objects;
        self.work.bytes += bytes;
        self.recent.add(at, objects, bytes);
    }

    /// Records that all marks were followed; returns how many groups were released.
    pub(crate) fn followed(&mut self, done: &[(StripeId, RepackOutcome)]) -> u64 {
        let with_outcome = |outcome: RepackOutcome| done.iter().filter(move |(_, done)| *done == outcome);
        let released = with_outcome(RepackOutcome::Released).count() as u64;
        self.work.released += released;
        self.work.unreadable = with_outcome(RepackOutcome::Unreadable).count() as u64;
        let named = with_outcome(RepackOutcome::Unreadable).take(NAMED);
        self.work.unreadable_stripes = named.map(|(id, _)| id.to_bytes().to_vec().into()).collect();
        released
    }

    /// Records that all buckets were counted.
    pub(crate) fn counted(&mut self, sum: PackingFigures, now_unix_ms: u64) {
        (self.work.figures, self.work.counted_unix_ms) = (Some(sum), now_unix_ms);
    }

    /// Returns the journal if it has changed since the last call.
    pub(crate) fn unpublished(&mut self, now: Instant) -> Option<PackingWork> {
        (_, self.work.rate_bytes_per_s) = self.recent.rates(now);
        (self.work != self.last_published).then(|| {
            self.last_published.clone_from(&self.work);
            self.work.clone()
        })
    }
}

/// Returns the journal as last published, by this process or another one.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn published(stripes: &Stripes) -> Result<PackingWork, StripeError> {
    Ok(find_record(stripes, &keys::packing_work()).await?.unwrap_or_default())
}

/// Publishes the journal.
pub(crate) async fn publish(stripes: &Stripes, work: &PackingWork) {
    put(stripes, keys::packing_work(), records::encode(work)).await;
}

/// Returns the sum over all buckets. Removes the rows of buckets that are gone.
pub(crate) async fn sum(stripes: &Stripes) -> Result<PackingFigures, StripeError> {
    let mut sum = PackingFigures::default();
    let mut rows = Rows::with_prefix(keys::PACKED_BUCKETS);
    while let Some(page) = rows.next(stripes).await? {
        let bucket = |row: &Row| {
            let name = String::from_utf8_lossy(&row.key[keys::PACKED_BUCKETS.len()..]);
            keys::bucket(&name)
        };
        let buckets: Vec<_> = page.iter().map(bucket).collect();
        for (row, bucket) in page.iter().zip(stripes.meta().get_many(&buckets).await?) {
            if bucket.is_some() {
                add(&mut sum, &row.record::<PackedBucket>()?.figures.unwrap_or_default());
            } else {
                let mut tx = stripes.transaction();
                tx.delete(row.key.clone());
                stripes.meta().commit(tx).await?;
            }
        }
    }
    Ok(sum)
}

/// Writes a row. A failure is only logged, because losing the row does no harm.
async fn put(stripes: &Stripes, key: Bytes, value: Bytes) {
    let mut tx = stripes.transaction();
    tx.put(key, value);
    if let Err(error) = stripes.meta().commit(tx).await {
        tracing::debug!(%error, "what is packed could not be told");
    }
}
