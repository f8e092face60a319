//! Unpacking: makes a bucket's packed objects split ones again, each with a stripe of its own.
//!
//! This is P3 of packing (design.md §10.15) in reverse. The split stripe is written first, under a lease that ends
//! with the work. Then one transaction names it, switches the object's row if it is as it was read, and marks the
//! group; the repacker releases the group when nothing in it lives. A client that overwrites or deletes the object
//! meanwhile wins, and the split stripe is removed. Unpacking may stop at any step. Objects that are split by then
//! stay split; another run does the rest.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use serde::Serialize;
use striate_core::{Layout, Packing, Profile};
use striate_meta::records::{BlockList, Bucket, Extent, Object, object::Body};
use striate_meta::{Commit, MetaError, Row, keys, records};
use striate_stripe::{Neighbours, SeparateWriter, Span, StoredBytes, StripeError, Stripes};

use crate::packing::journal::{sum_again, write_bucket};
use crate::packing::run::{PackRequest, PackingSettings, invalid};
use crate::packing::service::default_profile;
use crate::packing::setting::{decide_packing, profile_of_class};
use crate::packing::walk::Walk;
use crate::rows::{Rows, find_record};

/// Objects unpacked at the same time.
const AT_ONCE: usize = 16;
/// Attempts to unpack an object while others change its row.
const MAX_ATTEMPTS: usize = 3;
/// Maximum number of remaining objects named.
const NAMED: usize = 20;

/// Progress of unpacking.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UnpackProgress {
    /// Objects examined.
    pub seen: u64,
    /// Objects that were packed and are now split.
    pub objects: u64,
    /// Bytes of the unpacked objects.
    pub bytes: u64,
    /// Objects that were changed meanwhile.
    pub overtaken: u64,
    /// Objects that could not be read or written.
    pub failed: u64,
}

/// Result of unpacking, and what it left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UnpackReport {
    /// Progress at the end.
    pub progress: UnpackProgress,
    /// Whether the run was stopped before its end.
    pub stopped: bool,
    /// Some of the objects that could not be unpacked, with the reason.
    pub examples: Vec<String>,
}

impl UnpackReport {
    /// Returns whether every object that was packed at the start is now split.
    pub fn is_whole(&self) -> bool {
        !self.stopped && self.progress.failed == 0
    }
}

/// Progress callback; `Break` ends unpacking.
pub type UnpackCallback<'a> = &'a mut (dyn FnMut(&UnpackProgress) -> ControlFlow<()> + Send);

/// Outcome for one object.
enum UnpackOutcome {
    Split(u64),
    Overtaken,
    Failed(String),
}

/// Makes a bucket's packed objects split ones until none is left. `group_len` is the number of neighbouring objects
/// that go to the same sites, unless the bucket sets one. Calls `tell` with the progress; `Break` ends unpacking.
///
/// # Errors
/// [`StripeError::InvalidArgument`] for a bucket that does not exist, or whose own setting is not [`Packing::Off`],
/// since it would be packed again. When the metadata store fails. Run it again: split objects stay split.
pub async fn unpack_bucket(
    stripes: &Stripes,
    bucket: &str,
    group_len: u32,
    mut tell: impl FnMut(&UnpackProgress) -> ControlFlow<()> + Send,
) -> Result<UnpackReport, StripeError> {
    let record: Option<Bucket> = find_record(stripes, &keys::bucket(bucket)).await?;
    let record = record.ok_or_else(|| invalid(format!("there is no bucket {bucket:?}")))?;
    if record.packing.parse() != Ok(Packing::Off) {
        return Err(invalid(format!(
            "{bucket} may be packed again meanwhile: `striate bucket set {bucket} --pack off` first"
        )));
    }
    let default = default_profile(stripes).await?;
    let default = default.ok_or_else(|| invalid("the store has no profile yet"))?;
    let report = split_packed(stripes, &record, &default, group_len, &mut tell).await?;
    let options = PackingSettings::of(stripes, &PackRequest::default()).await?.options;
    let mut counting = Walk::new(stripes, record.clone(), &default, &options)?;
    if !report.stopped
        && counting.run(&stripes.packer(), &mut |_| ControlFlow::Continue(())).await?.is_continue()
    {
        let decision = decide_packing(stripes, &record, &default, Packing::Off)?;
        write_bucket(stripes, counting, decision).await?;
        sum_again(stripes).await?;
    }
    Ok(report)
}

/// Like [`unpack_bucket`], but ignores the bucket's packing setting and counts nothing.
///
/// # Errors
/// When the metadata store fails.
pub fn split_packed<'a>(
    stripes: &'a Stripes,
    bucket: &'a Bucket,
    default: &'a Profile,
    group_len: u32,
    tell: UnpackCallback<'a>,
) -> BoxFuture<'a, Result<UnpackReport, StripeError>> {
    Box::pin(async move {
        let group_len = if bucket.group_len == 0 { group_len } else { bucket.group_len };
        let writer = stripes.separate_writer().await?;
        let unpacking = UnpackRun { stripes, writer, bucket, default, group_len };
        let report = unpacking.walk_until_whole(tell).await;
        unpacking.writer.close().await;
        report
    })
}

/// State of a run.
struct UnpackRun<'a> {
    stripes: &'a Stripes,
    writer: SeparateWriter,
    bucket: &'a Bucket,
    default: &'a Profile,
    group_len: u32,
}

impl UnpackRun<'_> {
    /// Walks all objects until nothing is left to do.
    async fn walk_until_whole(&self, tell: UnpackCallback<'_>) -> Result<UnpackReport, StripeError> {
        let changed = |progress: &UnpackProgress| progress.objects + progress.overtaken;
        let mut report = UnpackReport::default();
        loop {
            let before = changed(&report.progress);
            report.progress.failed = 0;
            report.examples.clear();
            report.stopped = self.walk(&mut report, tell).await?.is_break();
            // Objects that were being packed when packing was switched off, or rewritten meanwhile, show up in a
            // further walk.
            if report.stopped || changed(&report.progress) == before {
                return Ok(report);
            }
        }
    }

    /// Walks all objects once.
    async fn walk(
        &self,
        report: &mut UnpackReport,
        tell: UnpackCallback<'_>,
    ) -> Result<ControlFlow<()>, StripeError> {
        let prefix = keys::objects(&self.bucket.name);
        let mut rows = Rows::with_prefix(&prefix);
        while let Some(page) = rows.next(self.stripes).await? {
            report.progress.seen += page.len() as u64;
            let mut packed = Vec::new();
            for row in page {
                let object: Object = row.record()?;
                if let Some(Body::Extent(extent)) = &object.body {
                    packed.push((row, extent.clone()));
                }
            }
            // Objects in progress are finished.
            let is_stopped = AtomicBool::new(false);
            let goes_on = |_: &_| std::future::ready(!is_stopped.load(Ordering::Relaxed));
            let unpack = |(row, extent)| self.unpack_named(prefix.len(), row, extent);
            let packed = stream::iter(packed).take_while(goes_on);
            let mut unpackings = packed.map(unpack).buffer_unordered(AT_ONCE);
            while let Some((unpacked, key)) = unpackings.next().await {
                note(report, unpacked?, &key);
                is_stopped.fetch_or(tell(&report.progress).is_break(), Ordering::Relaxed);
            }
            if is_stopped.load(Ordering::Relaxed) || tell(&report.progress).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Like [`UnpackRun::unpack`]; also returns the object's key, which starts at `prefix` in the key of its row.
    async fn unpack_named(
        &self,
        prefix: usize,
        row: Row,
        extent: Extent,
    ) -> (Result<UnpackOutcome, StripeError>, String) {
        let key = String::from_utf8_lossy(&row.key[prefix..]).into_owned();
        (self.unpack(&key, row, &extent).await, key)
    }

    /// Makes a split object of a packed one. Only a failure of the metadata store is an error.
    async fn unpack(&self, key: &str, mut row: Row, extent: &Extent) -> Result<UnpackOutcome, StripeError> {
        for _ in 0..MAX_ATTEMPTS {
            match self.try_to_unpack(key, &row, extent).await {
                Ok(true) => return Ok(UnpackOutcome::Split(extent.len.into())),
                Ok(false) => {}
                Err(error @ StripeError::Meta(MetaError::UnknownOutcome(_))) => {
                    return Ok(UnpackOutcome::Failed(error.to_string()));
                }
                Err(StripeError::Meta(error)) => return Err(error.into()),
                // A group that was rewritten and released meanwhile cannot be read: the row no longer names it.
                Err(error) if self.names(&row, extent).await? => {
                    return Ok(UnpackOutcome::Failed(error.to_string()));
                }
                Err(_) => {}
            }
            let Some(now) = self.stripes.meta().get(&row.key).await? else {
                return Ok(UnpackOutcome::Overtaken);
            };
            row = now;
            if !is_of(&row, extent)? {
                return Ok(UnpackOutcome::Overtaken);
            }
        }
        Ok(UnpackOutcome::Failed("others change it all the time".to_owned()))
    }

    /// Returns whether the row still names the extent.
    async fn names(&self, row: &Row, extent: &Extent) -> Result<bool, StripeError> {
        match self.stripes.meta().get(&row.key).await? {
            Some(row) => is_of(&row, extent),
            None => Ok(false),
        }
    }

    /// Returns `false` if the row has changed since it was read.
    fn try_to_unpack<'a>(
        &'a self,
        key: &'a str,
        row: &'a Row,
        extent: &'a Extent,
    ) -> BoxFuture<'a, Result<bool, StripeError>> {
        Box::pin(async move {
            let stored = StoredBytes::from(extent.clone());
            let source = stored.stripe()?;
            let _share = self.stripes.memory_for(extent.len as usize).await;
            let bytes = self.read(stored, extent).await?;
            let mut object: Object = row.record()?;
            let profile = profile_of_class(self.stripes, self.bucket, self.default, object.class())?;
            let profile = Profile { layout: Layout::Split, ..profile };
            let neighbours = Neighbours::new(&self.bucket.name, key, self.group_len);
            let mut session = self.writer.begin_put();
            let block = match session.write_block(bytes, &profile, &neighbours).await {
                Ok(block) => block,
                Err(error) => {
                    session.discard().await;
                    return Err(error);
                }
            };
            object.body = Some(Body::Blocks(BlockList { blocks: vec![block.block.clone()] }));
            object.profile = profile.to_string();
            let mut tx = self.stripes.transaction();
            tx.require_unchanged(row.key.clone(), Some(row)).put(row.key.clone(), records::encode(&object));
            tx.put(keys::mark(source), Bytes::new());
            session.name_blocks(&mut tx, std::slice::from_ref(&block));
            session.committing();
            match self.stripes.submit(&tx).await? {
                Commit::Done(_) => {
                    session.committed();
                    Ok(true)
                }
                Commit::Conflict { .. } => {
                    session.forget_placed(&[block]);
                    session.discard().await;
                    Ok(false)
                }
            }
        })
    }

    /// Reads the object's bytes and compares them with the checksum in its row.
    async fn read(&self, stored: StoredBytes, extent: &Extent) -> Result<Bytes, StripeError> {
        let bytes = Bytes::from(self.stripes.read_span(Span::whole(stored)).await?.concat());
        match striate_codec::crc32c(&bytes) == extent.crc32c {
            true => Ok(bytes),
            false => Err(StripeError::Inconsistent {
                what: "a packed object".to_owned(),
                reason: "its bytes do not match its row".to_owned(),
            }),
        }
    }
}

fn note(report: &mut UnpackReport, unpacked: UnpackOutcome, key: &str) {
    match unpacked {
        UnpackOutcome::Split(bytes) => {
            report.progress.objects += 1;
            report.progress.bytes += bytes;
        }
        UnpackOutcome::Overtaken => report.progress.overtaken += 1,
        UnpackOutcome::Failed(reason) => {
            report.progress.failed += 1;
            if report.examples.len() < NAMED {
                report.examples.push(format!("{key}: {reason}"));
            }
        }
    }
}

/// Returns whether a row names exactly this extent.
fn is_of(row: &Row, extent: &Extent) -> Result<bool, StripeError> {
    let object: Object = row.record()?;
    Ok(object.body == Some(Body::Extent(extent.clone())))
}
