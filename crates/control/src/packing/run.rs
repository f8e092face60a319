//! Packing and sealing on request: every bucket or one, at once and at full speed, whatever the store's setting. A
//! run can be stopped between two groups or wide stripes; what was packed or sealed stays so.
//!
//! Cold data is also sealed in buckets that are not packed, as the service does: large objects need no packing.

use std::ops::ControlFlow;
use std::time::Duration;

use serde::Serialize;
use striate_core::{Packing, Profile, StripeId};
use striate_meta::keys;
use striate_meta::records::{Bucket, PackingFigures};
use striate_stripe::{Packer, StripeError, Stripes};

use crate::packing::journal::{published, sum_again, write_bucket};
use crate::packing::repacking::{RepackOutcome, follow_marks};
use crate::packing::service::default_profile;
use crate::packing::setting::{SkipReason, decide_packing, impossible, own_packing};
use crate::packing::walk::{Step, Walk};
use crate::packing::{PackOptions, PackReport};
use crate::rows::{Rows, find_record};
use crate::sealing::{SealOptions, SealReport, cold_of, leave_dead, resume_wide, seal_bucket};

/// Maximum number of unreadable groups named.
const NAMED: usize = 20;

/// Request for a packing run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackRequest {
    /// The bucket to pack; `None`: all buckets that do not turn packing off themselves.
    pub bucket: Option<String>,
    /// Also packs objects that have not settled, and those that would not fill a group of the usual size.
    pub now: bool,
    /// Afterwards seals cold data of buckets that have a wide profile for it.
    pub cold: bool,
}

/// Progress of a manual packing run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PackRunProgress {
    /// Current bucket; empty while marks are followed.
    pub bucket: String,
    /// Objects examined.
    pub seen: u64,
    /// Result of packing so far.
    pub packed: PackReport,
    /// Groups examined because something in them had died.
    pub marked: u64,
    /// Groups released because nothing in them lived.
    pub released: u64,
    /// Cold stripes found.
    pub cold: u64,
    /// Wide stripes sealed.
    pub sealed: u64,
}

/// Report of a manual packing run, and what it left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PackRunReport {
    /// Progress at the end.
    pub progress: PackRunProgress,
    /// Whether the run was stopped before its end.
    pub stopped: bool,
    /// Why no further group could be stored.
    pub held_up: Option<String>,
    /// Buckets that were not packed, with the reasons.
    pub skipped: Vec<(String, String)>,
    /// Objects that wait in the other buckets.
    pub waiting: Vec<WaitingObjects>,
    /// Sealing reports of buckets, with the cold partitions that wait.
    pub sealed: Vec<(String, SealReport)>,
    /// Groups that stay because too many chunks of a directory are lost.
    pub unreadable: u64,
    /// Names of some of the unreadable groups.
    pub unreadable_stripes: Vec<String>,
}

/// Objects of a bucket that were not packed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WaitingObjects {
    /// Name of the bucket.
    pub bucket: String,
    /// Small objects that wait.
    pub objects: u64,
    /// Bytes of the waiting objects.
    pub bytes: u64,
    /// Waiting objects that have settled.
    pub settled_objects: u64,
    /// Bytes of the waiting objects that have settled.
    pub settled_bytes: u64,
    /// Bytes of the smallest group that would take them.
    pub group_bytes: u64,
}

impl WaitingObjects {
    /// Returns the waiting objects of a bucket, if there are any.
    fn of(bucket: String, figures: &PackingFigures, group_bytes: u64) -> Option<Self> {
        if figures.waiting_objects == 0 {
            return None;
        }
        Some(Self {
            bucket,
            objects: figures.waiting_objects,
            bytes: figures.waiting_bytes,
            settled_objects: figures.settled_objects,
            settled_bytes: figures.settled_bytes,
            group_bytes,
        })
    }
}

/// Follows all marks and packs as `wish` says. Calls `tell` with the progress; `Break` ends the run.
///
/// # Errors
/// [`StripeError::InvalidArgument`] for a bucket that does not exist, or that can be neither packed nor sealed; when
/// the metadata store fails, or a group cannot be stored.
pub async fn pack_now(
    stripes: &Stripes,
    wish: &PackRequest,
    tell: impl FnMut(&PackRunProgress) -> ControlFlow<()> + Send,
) -> Result<PackRunReport, StripeError> {
    let packer = stripes.packer();
    let mut run = Run {
        stripes,
        wish,
        settings: PackingSettings::of(stripes, wish).await?,
        report: PackRunReport::default(),
        tell,
    };
    let ended = run.all(&packer).await;
    packer.close().await;
    run.report.stopped = ended?.is_break();
    sum_again(stripes).await?;
    Ok(run.report)
}

/// The store's packing settings.
pub(crate) struct PackingSettings {
    setting: Packing,
    pub(crate) options: PackOptions,
}

impl PackingSettings {
    /// Reads the settings that the leader's service has recorded, at full speed.
    pub(crate) async fn of(stripes: &Stripes, wish: &PackRequest) -> Result<Self, StripeError> {
        let work = published(stripes).await?;
        let setting = work.setting.parse().unwrap_or_default();
        let mut options = PackOptions { pace: 1.0, yields: false, ..PackOptions::default() };
        if let Packing::Partitions(len) = setting {
            options.partition_len = len;
        }
        if work.settled_after_s > 0 {
            options.settled_after = Duration::from_secs(work.settled_after_s);
        }
        if wish.now {
            (options.settled_after, options.patience) = (Duration::ZERO, Duration::ZERO);
        }
        Ok(Self { setting, options })
    }
}

/// State of a manual packing run.
struct Run<'a, T> {
    stripes: &'a Stripes,
    wish: &'a PackRequest,
    settings: PackingSettings,
    report: PackRunReport,
    tell: T,
}

impl<T: FnMut(&PackRunProgress) -> ControlFlow<()> + Send> Run<'_, T> {
    async fn all(&mut self, packer: &Packer) -> Result<ControlFlow<()>, StripeError> {
        let default = default_profile(self.stripes).await?;
        let default = default.ok_or_else(|| invalid("the store has no profile yet; try again"))?;
        let named = match &self.wish.bucket {
            None => None,
            Some(name) => {
                let bucket: Option<Bucket> = find_record(self.stripes, &keys::bucket(name)).await?;
                let bucket = bucket.ok_or_else(|| invalid(format!("there is no bucket {name:?}")))?;
                let why = impossible(self.stripes, &bucket, &default)?;
                if let Some(why) = why.filter(|&why| self.seals(&bucket, Some(why)).is_none()) {
                    return Err(invalid(format!("{name} cannot be packed: {why}")));
                }
                Some((bucket, why))
            }
        };
        if self.follow_marks(packer).await?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        if let Some((bucket, why)) = named {
            return self.go_through(bucket, why, &default, packer).await;
        }
        let mut rows = Rows::with_prefix(keys::BUCKETS);
        while let Some(page) = rows.next(self.stripes).await? {
            for row in page {
                let bucket: Bucket = row.record()?;
                let mut why = impossible(self.stripes, &bucket, &default)?;
                if own_packing(self.stripes, &bucket)? == Some(Packing::Off) {
                    why = why.or(Some(SkipReason::Bucket));
                }
                if self.go_through(bucket, why, &default, packer).await?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Packs a bucket unless there is a reason not to, and seals its cold data if that is wished.
    async fn go_through(
        &mut self,
        bucket: Bucket,
        why_not_packed: Option<SkipReason>,
        default: &Profile,
        packer: &Packer,
    ) -> Result<ControlFlow<()>, StripeError> {
        let cold = self.seals(&bucket, why_not_packed).transpose()?;
        let flow = match why_not_packed {
            None => self.pack(bucket.clone(), default, packer).await?,
            Some(why) => {
                self.report.skipped.push((bucket.name.clone(), why.to_string()));
                match &cold {
                    Some(_) => self.count(&bucket, default, packer).await?,
                    None => ControlFlow::Continue(()),
                }
            }
        };
        match cold {
            Some(cold) if flow.is_continue() => self.seal(&bucket.name, &cold, packer).await,
            _ => Ok(flow),
        }
    }

    /// Returns how the cold data of a bucket is to be sealed; `None` if it is not.
    fn seals(
        &self,
        bucket: &Bucket,
        why_not_packed: Option<SkipReason>,
    ) -> Option<Result<SealOptions, StripeError>> {
        let may_seal = self.wish.cold && why_not_packed.is_none_or(SkipReason::allows_sealing);
        if may_seal { cold_of(self.stripes, bucket).transpose() } else { None }
    }

    /// Reclaims the space of dead objects.
    async fn follow_marks(&mut self, packer: &Packer) -> Result<ControlFlow<()>, StripeError> {
        let (mut flow, progress, tell) =
            (ControlFlow::Continue(()), &mut self.report.progress, &mut self.tell);
        let done = follow_marks(self.stripes, packer, &self.settings.options, None, &mut |done| {
            progress.marked = done.len() as u64;
            progress.released = count(done, RepackOutcome::Released);
            flow = tell(&*progress);
            flow
        })
        .await?;
        self.report.unreadable = count(&done, RepackOutcome::Unreadable);
        let unreadable = done.iter().filter(|(_, outcome)| *outcome == RepackOutcome::Unreadable);
        self.report.unreadable_stripes = unreadable.take(NAMED).map(|(id, _)| id.to_string()).collect();
        Ok(flow)
    }

    /// Seals the cold data of a bucket.
    async fn seal(
        &mut self,
        bucket: &str,
        options: &SealOptions,
        packer: &Packer,
    ) -> Result<ControlFlow<()>, StripeError> {
        resume_wide(self.stripes).await?;
        let (cold, sealed) = (self.report.progress.cold, self.report.progress.sealed);
        let (progress, tell) = (&mut self.report.progress, &mut self.tell);
        let mut flow = ControlFlow::Continue(());
        let report = seal_bucket(self.stripes, packer, bucket, options, &mut |report| {
            (progress.cold, progress.sealed) = (cold + report.cold_stripes, sealed + report.sealed);
            flow = tell(&*progress);
            flow
        })
        .await?;
        self.report.sealed.push((bucket.to_owned(), report));
        if flow.is_continue() {
            let (progress, tell) = (&self.report.progress, &mut self.tell);
            leave_dead(self.stripes, &mut || {
                flow = tell(progress);
                flow
            })
            .await?;
        }
        Ok(flow)
    }

    /// Counts a bucket that is not packed, so that its figures are as new as those of its wide stripes.
    async fn count(
        &mut self,
        bucket: &Bucket,
        default: &Profile,
        packer: &Packer,
    ) -> Result<ControlFlow<()>, StripeError> {
        self.report.progress.bucket.clone_from(&bucket.name);
        let before = self.report.progress.seen;
        let (progress, tell) = (&mut self.report.progress, &mut self.tell);
        let mut walk = Walk::new(self.stripes, bucket.clone(), default, &self.settings.options)?;
        let flow = walk
            .run(packer, &mut |step: &Step| {
                progress.seen = before + step.seen;
                tell(&*progress)
            })
            .await?;
        if flow.is_continue() {
            let decision = decide_packing(self.stripes, bucket, default, self.settings.setting)?;
            write_bucket(self.stripes, walk, decision).await?;
        }
        Ok(flow)
    }

    /// Packs a bucket. With `now`, repeats the walk until nothing more fills a group.
    async fn pack(
        &mut self,
        bucket: Bucket,
        default: &Profile,
        packer: &Packer,
    ) -> Result<ControlFlow<()>, StripeError> {
        let setting = own_packing(self.stripes, &bucket)?.unwrap_or(self.settings.setting);
        let most = setting.partition_len().unwrap_or(self.settings.options.partition_len);
        let name = bucket.name.clone();
        self.report.progress.bucket.clone_from(&name);
        // Objects written meanwhile are left to the next run; otherwise this one might never end.
        let until_ms = self.stripes.runtime().wall_time().as_millis() as u64;
        loop {
            let before = (self.report.progress.seen, self.report.progress.packed);
            let (progress, tell) = (&mut self.report.progress, &mut self.tell);
            let mut walk = Walk::new(self.stripes, bucket.clone(), default, &self.settings.options)?
                .packing(most)
                .until(until_ms);
            let flow = walk
                .run(packer, &mut |step: &Step| {
                    (progress.seen, progress.packed) = before;
                    progress.seen += step.seen;
                    progress.packed.add(step.packed);
                    tell(&*progress)
                })
                .await?;
            if flow.is_break() {
                return Ok(flow);
            }
            let group_bytes = walk.group_bytes(self.settings.options.smallest_partition.min(most));
            self.report.held_up = walk.held_up.take().or(self.report.held_up.take());
            if self.wish.now && walk.report.objects > 0 && self.report.held_up.is_none() {
                continue;
            }
            let decision = decide_packing(self.stripes, &bucket, default, self.settings.setting)?;
            let figures = write_bucket(self.stripes, walk, decision).await?;
            self.report.waiting.extend(WaitingObjects::of(name, &figures, group_bytes));
            return Ok(ControlFlow::Continue(()));
        }
    }
}

fn count(done: &[(StripeId, RepackOutcome)], outcome: RepackOutcome) -> u64 {
    done.iter().filter(|(_, done)| *done == outcome).count() as u64
}

pub(super) fn invalid(reason: impl Into<String>) -> StripeError {
    StripeError::InvalidArgument(reason.into())
}
