//! The packing service: packs bucket after bucket, a group at a time, with pauses as long as the work, and follows
//! marks.
//!
//! Groups are made only while no site has requests waiting and every site keeps a tenth of its space free. The space
//! of dead objects is reclaimed whether or not anything is packed. One process of a cluster runs the service; two at
//! once are safe but wasteful.
//!
//! The walk that finds objects to pack also counts the figures that people ask for ([`crate::packing::figures`]).
//! They are written into rows that every process shows ([`crate::packing::journal`]). A bucket that is not packed is
//! counted once an hour. The cold data of each bucket is sealed once an hour, as soon as the read statistics say what is
//! not cold. Where that takes long, other work has its turn in between.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use striate_core::{Packing, Profile, formats};
use striate_meta::records::{Bucket, Cluster};
use striate_meta::{ScanRange, keys};
use striate_runtime::Instant;
use striate_stripe::{Packer, StripeError, Stripes};

use crate::movement::AccessSource;
use crate::packing::PackOptions;
use crate::packing::journal::{PackJournal, publish, published, sum, write_bucket};
use crate::packing::repacking::Repacker;
use crate::packing::setting::{PackDecision, decide_packing};
use crate::packing::turn::{PackingTurn, SEEN_WITHIN, is_taken};
use crate::packing::walk::{Step, Walk};
use crate::rows::{Rows, find_record};
use crate::sealing::{RecentReads, SealOptions, leave_dead, looked_for, resume_wide, seal_bucket};

/// Pause before the first pass.
const FIRST_PASS_AFTER: Duration = Duration::from_secs(10);
/// Minimum interval between two passes for settled and dead objects.
const PASS_EVERY: Duration = Duration::from_secs(60);
/// Divisor: passes take at most one part in this many of the time.
const SHARE_OF_PASSES: u32 = 10;
/// Interval between two counts of a bucket that is not packed, and between two looks at cold data.
const COUNT_EVERY: Duration = Duration::from_secs(3_600);
/// Interval between two checks whether the journal has changed.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// Poll interval for the end of a manual run.
const HELD: Duration = Duration::from_millis(200);

/// Configuration of the packing service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PackingOptions {
    /// Whether buckets without a setting of their own are packed.
    pub setting: Packing,
    /// How objects are packed. The length of partitions comes from the settings.
    pub pack: PackOptions,
    /// Time for which a look at a bucket's cold data seals before other work has its turn. It is longer if reading
    /// took long.
    pub seal_time: Duration,
}

impl Default for PackingOptions {
    /// [`Packing::Auto`], with [`PackOptions::default`]. A look seals for five minutes.
    fn default() -> Self {
        let seal_time = Duration::from_secs(5 * 60);
        Self { setting: Packing::Auto, pack: PackOptions::default(), seal_time }
    }
}

impl PackingOptions {
    /// Packs only buckets that have packing turned on themselves.
    pub fn off() -> Self {
        Self { setting: Packing::Off, ..Self::default() }
    }
}

/// The packing service. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PackingService {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    options: PackingOptions,
    /// Number of current holds, and of manual runs since the start.
    holds: AtomicUsize,
    rests: AtomicUsize,
    /// Whether the service runs in this process.
    runs: AtomicBool,
    /// Whether another process packs manually.
    is_turn_taken: AtomicBool,
    /// Held during a pass.
    looking: futures::lock::Mutex<()>,
    journal: Mutex<PackJournal>,
}

/// A hold on the service: while it exists, no group is started.
pub struct PackingHold {
    service: Arc<Shared>,
    turn: PackingTurn,
}

impl Drop for PackingHold {
    fn drop(&mut self) {
        self.service.holds.fetch_sub(1, Ordering::Relaxed);
    }
}

/// State kept between two passes.
struct PassState {
    packer: Option<Packer>,
    repacker: Repacker,
    /// Last count of each bucket, with the longest partition that applied then.
    counted: BTreeMap<String, (Instant, u32)>,
    /// Last look at the cold data of each bucket.
    looked: BTreeMap<String, Instant>,
    /// Number of manual runs at the time of these counts and looks.
    rests: usize,
    /// What was read, and so is not cold.
    reads: RecentReads,
}

impl PackingService {
    /// Creates a service without starting it.
    pub fn new(mut options: PackingOptions) -> Self {
        if let Packing::Partitions(len) = options.setting {
            options.pack.partition_len = len;
        }
        Self { shared: Arc::new(Shared { options, ..Shared::default() }) }
    }

    /// Returns the configuration.
    pub fn options(&self) -> &PackingOptions {
        &self.shared.options
    }

    /// Takes the turn to pack manually for the process of this name. The service pauses meanwhile, here and
    /// elsewhere; this waits until what it is writing is finished. `None` while another process has the turn.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn hold(&self, stripes: &Stripes, process: &str) -> Result<Option<PackingHold>, StripeError> {
        let Some(turn) = PackingTurn::take(stripes, process).await? else { return Ok(None) };
        self.shared.rests.fetch_add(1, Ordering::Relaxed);
        self.shared.holds.fetch_add(1, Ordering::Relaxed);
        let hold = PackingHold { service: Arc::clone(&self.shared), turn };
        drop(self.shared.looking.lock().await);
        if !self.shared.runs.load(Ordering::Relaxed) {
            hold.turn.settle().await;
        }
        Ok(Some(hold))
    }

    fn is_held(&self) -> bool {
        self.shared.holds.load(Ordering::Relaxed) > 0 || self.shared.is_turn_taken.load(Ordering::Relaxed)
    }

    /// Returns `Break` while the service is held.
    fn flow(&self) -> ControlFlow<()> {
        if self.is_held() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Packs, seals what `source` does not show as read, and reclaims the space of dead objects, until the task is
    /// dropped. Run it in one process of a cluster at a time.
    pub fn run(self, stripes: Stripes, source: AccessSource) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // If the journal cannot be read, no figures are known until the buckets have been counted.
            let before = published(&stripes).await.unwrap_or_default();
            let now = stripes.runtime().now();
            self.shared.journal.lock().begin(&self.shared.options, now, before);
            self.shared.runs.store(true, Ordering::Relaxed);
            let reads = RecentReads::new(source, now);
            let (looking, telling) = (self.keep_looking(&stripes, reads), self.keep_telling(&stripes));
            futures::future::join3(looking, telling, self.keep_asking(&stripes)).await;
        })
    }

    /// Polls whether another process packs manually.
    async fn keep_asking(&self, stripes: &Stripes) {
        let shared = &self.shared;
        loop {
            match is_taken(stripes).await {
                Ok(is_taken) => {
                    if shared.is_turn_taken.swap(is_taken, Ordering::Relaxed) && !is_taken {
                        shared.rests.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Err(error) => tracing::debug!(%error, "who packs by hand is not known now"),
            }
            stripes.runtime().sleep(SEEN_WITHIN).await;
        }
    }

    /// Publishes the progress, so that other processes see it.
    async fn keep_telling(&self, stripes: &Stripes) {
        loop {
            let news = self.shared.journal.lock().unpublished(stripes.runtime().now());
            if let Some(work) = news {
                publish(stripes, &work).await;
            }
            stripes.runtime().sleep(TELL_EVERY).await;
        }
    }

    async fn keep_looking(&self, stripes: &Stripes, reads: RecentReads) {
        let mut passes = PassState::new(reads);
        let mut pause = FIRST_PASS_AFTER;
        loop {
            stripes.runtime().sleep(pause).await;
            if self.is_held() {
                pause = HELD;
                continue;
            }
            let began = stripes.runtime().now();
            let looking = self.shared.looking.lock().await;
            let ran = passes.run(self, stripes).await;
            drop(looking);
            pause = PASS_EVERY;
            match ran {
                Ok(busy) => {
                    let took = (stripes.runtime().now() - began).saturating_sub(busy);
                    pause = pause.max(took * (SHARE_OF_PASSES - 1));
                }
                Err(error) => {
                    tracing::warn!(%error, "packing will be retried");
                    // Unfinished groups may remain: their reservations end with the lease, and the collector decides.
                    if let Some(packer) = passes.packer.take() {
                        packer.close().await;
                    }
                }
            }
        }
    }
}

impl PassState {
    fn new(reads: RecentReads) -> Self {
        let (counted, looked) = (BTreeMap::new(), BTreeMap::new());
        Self { packer: None, repacker: Repacker::default(), counted, looked, rests: 0, reads }
    }

    /// Runs one pass over all marks and buckets; returns how much of its time was productive work.
    async fn run(&mut self, service: &PackingService, stripes: &Stripes) -> Result<Duration, StripeError> {
        if stripes.formats().records < formats::PACKED {
            // Nothing is packed in this format, and nothing may be.
            return Ok(Duration::ZERO);
        }
        let packer = self.packer.take().unwrap_or_else(|| stripes.packer());
        let busy = self.run_pass_with(&packer, service, stripes).await;
        self.packer = Some(packer);
        busy
    }

    async fn run_pass_with(
        &mut self,
        packer: &Packer,
        service: &PackingService,
        stripes: &Stripes,
    ) -> Result<Duration, StripeError> {
        let rests = service.shared.rests.load(Ordering::Relaxed);
        if rests != std::mem::replace(&mut self.rests, rests) {
            // Count what manual runs have packed and sealed.
            self.counted.clear();
            self.looked.clear();
        }
        self.reads.look(stripes.runtime());
        let began = stripes.runtime().now();
        resume_wide(stripes).await?;
        self.follow_marks(packer, service, stripes).await?;
        // Rewritten objects were packed into groups too.
        let mut busy = stripes.runtime().now() - began;
        let Some(default) = default_profile(stripes).await? else { return Ok(busy) };
        let failed = self.visit_all(&default, packer, service, stripes, &mut busy).await?;
        let leaving_since = stripes.runtime().now();
        if leave_dead(stripes, &mut || service.flow()).await? > 0 {
            busy += stripes.runtime().now() - leaving_since;
        }
        let (sum, now) = (sum(stripes).await?, stripes.runtime().wall_time().as_millis() as u64);
        service.shared.journal.lock().counted(sum, now);
        failed.map_or(Ok(busy), Err)
    }

    /// Visits all buckets, forgets those that are gone, and adds the time of productive work to `busy`. An error that
    /// concerns one bucket holds up neither the others nor what follows; returns the last one.
    async fn visit_all(
        &mut self,
        default: &Profile,
        packer: &Packer,
        service: &PackingService,
        stripes: &Stripes,
        busy: &mut Duration,
    ) -> Result<Option<StripeError>, StripeError> {
        let (mut failed, mut bucket_names) = (None, Vec::new());
        let mut rows = Rows::with_prefix(keys::BUCKETS);
        while let Some(page) = rows.next(stripes).await? {
            for row in page {
                let bucket: Bucket = row.record()?;
                let name = bucket.name.clone();
                match self.visit(bucket, default, packer, service, stripes).await {
                    Ok(took) => *busy += took,
                    Err(StripeError::Meta(error)) => return Err(error.into()),
                    Err(error) => {
                        tracing::warn!(bucket = %name, %error, "a bucket can be neither packed nor sealed now");
                        failed = Some(error);
                    }
                }
                bucket_names.push(name);
            }
        }
        let is_there = |name: &str| bucket_names.binary_search_by(|of| of.as_str().cmp(name)).is_ok();
        self.counted.retain(|name, _| is_there(name));
        self.looked.retain(|name, _| is_there(name));
        packer.keep_buckets(is_there);
        Ok(failed)
    }

    async fn follow_marks(
        &mut self,
        packer: &Packer,
        service: &PackingService,
        stripes: &Stripes,
    ) -> Result<(), StripeError> {
        if stripes.meta().scan(ScanRange::prefix(keys::MARKS), 1).await?.is_empty() {
            service.shared.journal.lock().followed(&[]);
            return Ok(());
        }
        let options = &service.shared.options.pack;
        let mut tell = |_: &[_]| service.flow();
        let done = self.repacker.repack_while(stripes, packer, options, &mut tell).await?;
        let released = service.shared.journal.lock().followed(&done);
        if released > 0 {
            tracing::info!(released, "coding groups in which nothing lived were released");
        }
        Ok(())
    }

    /// Packs and counts a bucket, or only counts it if that is due, and seals its cold data if that is due.
    async fn visit(
        &mut self,
        bucket: Bucket,
        default: &Profile,
        packer: &Packer,
        service: &PackingService,
        stripes: &Stripes,
    ) -> Result<Duration, StripeError> {
        if service.is_held() {
            return Ok(Duration::ZERO);
        }
        let decision = decide_packing(stripes, &bucket, default, service.shared.options.setting)?;
        let (now, name, mut busy) = (stripes.runtime().now(), bucket.name.clone(), Duration::ZERO);
        let partition_len = match decision {
            PackDecision::Packs(len) => len,
            PackDecision::Stays(_) => 0,
        };
        let last_count = self.counted.get(&name);
        let is_due = last_count.is_none_or(|(at, len)| now - *at >= COUNT_EVERY || *len != partition_len);
        let cold = self.due_for_sealing(service, stripes, &bucket).await?;
        if is_due || matches!(decision, PackDecision::Packs(_)) {
            let (flow, packing) = pack_and_count(bucket, decision, default, packer, service, stripes).await?;
            busy += packing;
            if flow.is_break() {
                return Ok(busy);
            }
            self.counted.insert(name.clone(), (now, partition_len));
        }
        if let Some(cold) = cold {
            busy += self.seal(&name, &cold, packer, service, stripes).await?;
        }
        Ok(busy)
    }

    /// Returns what is to be sealed of a bucket, if a look is due and it is known what was read.
    async fn due_for_sealing(
        &self,
        service: &PackingService,
        stripes: &Stripes,
        bucket: &Bucket,
    ) -> Result<Option<SealOptions>, StripeError> {
        let (now, time) = (stripes.runtime().now(), service.shared.options.seal_time);
        if self.looked.get(&bucket.name).is_some_and(|at| now - *at < COUNT_EVERY) {
            return Ok(None);
        }
        if !self.reads.is_warm(now) {
            return Ok(None);
        }
        let Some(cold) = looked_for(stripes, bucket).await? else { return Ok(None) };
        let recently_read = self.reads.within(cold.cold_after, now);
        Ok(Some(SealOptions { recently_read, time, ..cold }))
    }

    /// Seals the cold data of a bucket. What its time did not suffice for is sealed by the next passes. Returns how long
    /// it took.
    async fn seal(
        &mut self,
        bucket: &str,
        options: &SealOptions,
        packer: &Packer,
        service: &PackingService,
        stripes: &Stripes,
    ) -> Result<Duration, StripeError> {
        let began = stripes.runtime().now();
        self.looked.insert(bucket.to_owned(), began);
        let report = seal_bucket(stripes, packer, bucket, options, &mut |_| service.flow()).await?;
        if report.sealed > 0 || report.given_up > 0 {
            tracing::info!(bucket, ?report, "cold partitions were sealed");
        }
        if report.unfinished {
            self.looked.remove(bucket);
        }
        Ok(stripes.runtime().now() - began)
    }
}

/// Packs and counts a bucket, or only counts it, and records the figures. Returns `Break` if the service is held, and
/// the time spent on groups.
async fn pack_and_count(
    bucket: Bucket,
    decision: PackDecision,
    default: &Profile,
    packer: &Packer,
    service: &PackingService,
    stripes: &Stripes,
) -> Result<(ControlFlow<()>, Duration), StripeError> {
    let name = bucket.name.clone();
    let mut walk = Walk::new(stripes, bucket, default, &service.shared.options.pack)?;
    if let PackDecision::Packs(len) = decision {
        walk = walk.packing(len);
    }
    let mut last_step = Step::default();
    let flow = walk
        .run(packer, &mut |step: &Step| {
            let at = stripes.runtime().now();
            service.shared.journal.lock().packed(at, &last_step.packed, &step.packed);
            last_step = *step;
            service.flow()
        })
        .await?;
    log_walk(&name, &walk);
    let busy = walk.busy;
    if flow.is_continue() {
        write_bucket(stripes, walk, decision).await?;
    }
    Ok((flow, busy))
}

/// Logs what a walk packed of a bucket, and why other objects wait.
fn log_walk(bucket: &str, walk: &Walk<'_>) {
    if let Some(reason) = &walk.held_up {
        tracing::debug!(bucket, reason, "small objects wait");
    }
    if walk.report.groups > 0 {
        tracing::info!(bucket, report = ?walk.report, "small objects were packed");
    }
}

/// Returns the store's profile, for buckets without one; `None` as long as the cluster has no row.
pub(crate) async fn default_profile(stripes: &Stripes) -> Result<Option<Profile>, StripeError> {
    let cluster: Option<Cluster> = find_record(stripes, &keys::cluster()).await?;
    Ok(cluster.and_then(|cluster| cluster.profile.parse().ok()))
}
