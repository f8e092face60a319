//! Sealing cold data: data chunks of stripes become members of wide stripes (ECWide;
//! [`striate_stripe::Stripes::advance_wide`]).
//!
//! A stripe is cold if no object that lives in it has changed, and none of its partitions was read, for the time that
//! its bucket sets; or if all its objects are of storage classes that are cold at once. It must also have no hot copies
//! and little dead data: worn stripes are repacked first. The data chunks of cold stripes wait, by rack, until they can form a wide stripe
//! ([`striate_plan::plan_sealing`]). Data chunks stay where they are, and no object's row changes. Where a bucket declares
//! nothing as cold any more, what is sealed stays so, and its wide stripes are still tended and emptied.
//!
//! - [`balance`]: whether the racks suit the profiles.
//! - [`target`]: which wide profile a stripe goes under, and when: by storage class and by age;
//!   [`recent_reads`]: which partitions were read.
//! - [`survey`]: walks a bucket's rows; [`cold`]: the cold stripes it has found.
//! - [`local_parities`]: moves local parities to the racks that are expected to change most.
//! - [`vacancies`]: gives places of dead members, and holes, to other chunks.
//! - [`sparse`]: empties wide stripes in which little lives into others.
//! - [`durability`]: whether sealed data survives as many losses as before.
//! - [`dead`]: dead stripes leave when no other chunk has taken their places.
//! - [`look_time`]: how long a look makes and changes wide stripes; then it only counts.
//!
//! A run first resumes wide stripes that another process left unfinished.

mod balance;
mod cold;
mod dead;
mod durability;
mod local_parities;
mod look_time;
mod recent_reads;
mod sparse;
mod survey;
mod target;
mod vacancies;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::Serialize;
use striate_core::{Layout, Profile, RackId, SiteId, StorageClass, StripeId, formats};
use striate_meta::keys;
use striate_meta::records::{Bucket, WideState};
use striate_plan::statistics::heat::Partition;
use striate_plan::{NotSealed, OpenPartition, SealingPlan, WideGeometry, WideMember, plan_sealing};
use striate_stripe::{DropOutcome, OpenedStripe, Packer, StripeError, Stripes, WidePlan, WideStep};

pub use self::balance::cold_warnings;
use self::balance::warnings;
use self::cold::ColdData;
pub(crate) use self::cold::is_too_short;
pub use self::dead::leave_dead;
use self::dead::{dead_stripes, dissolve_dead};
pub use self::durability::durability_warnings;
use self::durability::durability_warnings_of;
use self::local_parities::swap_local_parities;
use self::look_time::LookTime;
pub(crate) use self::recent_reads::RecentReads;
use self::sparse::empty_sparse;
pub use self::sparse::empty_wide;
use self::survey::{Survey, WalkProgress};
use self::vacancies::{Lengths, fill_vacancies};
use crate::packing::journal::{note_sealing, sealed_figures, write_sealed};
use crate::rows::Rows;

/// Time that partitions wait for enough others in suitable racks.
const PATIENCE: Duration = Duration::from_secs(30 * 86_400);
/// Number of wide stripes whose partitions are considered together.
const TOGETHER: usize = 64;
/// Abandoned wide stripes after which a run stops making more: the cause is not just a few partitions.
const MOST_GIVEN_UP: u64 = 3;
/// Positions of a wide stripe per hole allowed: at most one in this many has no member.
const POSITIONS_A_HOLE: usize = 16;

/// Why partitions wait if no racks lack any.
const TOO_FEW: &str = "too few of one length for another wide stripe";
/// Why partitions wait if the time of a look was over.
const MORE: &str = "more than one look seals; the next one goes on";

/// What is sealed, and under which profiles.
#[derive(Clone, Debug, PartialEq)]
pub struct SealOptions {
    /// Wide profile for data that is cold by its age; `None`: only classes are sealed, and what is sealed stays so.
    pub cold_profile: Option<Profile>,
    /// Time without changes after which objects are cold.
    pub cold_after: Duration,
    /// Stripes that were read within that time, as far as it is known: they are not cold by their age. `None`: too
    /// little is known, and nothing is.
    pub recently_read: Option<BTreeSet<StripeId>>,
    /// Wide profiles of storage classes. Their objects are cold at once, and do not follow the cold profile.
    pub classes: BTreeMap<StorageClass, Profile>,
    /// Time that a cold partition may wait. After it, a wide stripe that takes the partition may have holes, one
    /// position in 16.
    pub patience: Duration,
    /// Number of wide stripes whose partitions are considered together: more give a better choice, and take more
    /// memory.
    pub together: usize,
    /// Time for which a look makes and changes wide stripes, or longer if reading took long; the rest is left to the
    /// next look.
    pub time: Duration,
}

impl Default for SealOptions {
    /// Seals nothing.
    fn default() -> Self {
        Self {
            cold_profile: None,
            cold_after: Duration::ZERO,
            recently_read: Some(BTreeSet::new()),
            classes: BTreeMap::new(),
            patience: PATIENCE,
            together: TOGETHER,
            time: Duration::MAX,
        }
    }
}

impl SealOptions {
    /// Seals under `profile` what has not changed for `cold_after`, whether or not it was read.
    pub fn new(profile: Profile, cold_after: Duration) -> Self {
        Self { cold_profile: Some(profile), cold_after, ..Self::default() }
    }

    /// Returns the wide profiles without duplicates, the cold one first.
    pub(crate) fn profiles(&self) -> Vec<Profile> {
        let mut profiles: Vec<Profile> = Vec::new();
        for &profile in self.cold_profile.iter().chain(self.classes.values()) {
            if !profiles.contains(&profile) {
                profiles.push(profile);
            }
        }
        profiles
    }

    /// Returns the texts of the wide profiles as one string.
    pub(crate) fn profile_texts(&self) -> String {
        self.profiles().iter().map(Profile::to_string).collect::<Vec<_>>().join(", ")
    }
}

/// Result of sealing, and what waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SealReport {
    /// Wide stripes sealed.
    pub sealed: u64,
    /// Partitions in the sealed wide stripes.
    pub members: u64,
    /// Bytes of the sealed partitions.
    pub bytes: u64,
    /// Wide stripes given up.
    pub given_up: u64,
    /// Cold stripes.
    pub cold_stripes: u64,
    /// Cold stripes with all their partitions in sealed wide stripes.
    pub sealed_stripes: u64,
    /// Cold stripes with only some of their partitions in sealed wide stripes.
    pub half_sealed: u64,
    /// Cold partitions that wait.
    pub waiting: u64,
    /// Why they wait.
    pub held_up: Option<String>,
    /// Warnings about missing racks or sites, and about reduced durability, as text.
    pub warnings: Vec<String>,
    /// Places of dead members that others have taken, and holes filled.
    pub replaced: u64,
    /// Local parities moved to the rack of their group that is expected to change most.
    pub swapped: u64,
    /// Sparse wide stripes whose members went into others, which freed their parities.
    pub emptied: u64,
    /// Cold stripes too short to be sealed: of small objects that are not packed, and the last stripes of large
    /// objects.
    pub not_packed: u64,
    /// Living bytes in the stripes too short to be sealed.
    pub not_packed_bytes: u64,
    /// Whether the time was over before everything was sealed: the next look goes on.
    pub unfinished: bool,
}

/// Progress callback, called while rows are read and after each wide stripe made or changed; `Break` ends the run.
pub type SealCallback<'a> = &'a mut (dyn FnMut(&SealReport) -> ControlFlow<()> + Send);

/// Progress callback with the number of items done so far; `Break` ends the work.
type CountCallback<'a> = &'a mut (dyn FnMut(u64) -> ControlFlow<()> + Send);

/// Resumes unfinished wide stripes; returns the outcome for each.
///
/// # Errors
/// When the metadata store fails.
pub async fn resume_wide(stripes: &Stripes) -> Result<Vec<(StripeId, WideStep)>, StripeError> {
    let mut done = Vec::new();
    let mut rows = Rows::with_prefix(keys::CHANGES);
    while let Some(page) = rows.next(stripes).await? {
        for id in page.iter().filter_map(|row| keys::stripe_of(&row.key)) {
            let Some(stripe) = dead::done(stripes.find(id).await)?.flatten() else { continue };
            if !matches!(stripe.record.wide_state(), WideState::Narrow | WideState::Complete) {
                done.push((id, advance(stripes, id).await?.0));
            }
        }
    }
    Ok(done)
}

/// Seals the cold data of a bucket. Without a profile it only tends and empties the wide stripes that the bucket's data
/// is in.
///
/// # Errors
/// [`StripeError::InvalidArgument`] for a profile that is not wide, or while older programs run; when the metadata store
/// fails.
pub fn seal_bucket<'a>(
    stripes: &'a Stripes,
    packer: &'a Packer,
    bucket: &'a str,
    options: &'a SealOptions,
    tell: SealCallback<'a>,
) -> BoxFuture<'a, Result<SealReport, StripeError>> {
    Box::pin(async move {
        check(stripes, options)?;
        let mut most_k: Option<usize> = None;
        for profile in options.profiles() {
            most_k = most_k.max(Some(geometry_of(&profile)?.k()));
        }
        let enough = most_k.map_or(usize::MAX, |k| options.together * k);
        let mut survey = Survey::new(stripes, bucket, options);
        let mut run = Run::new(stripes, packer, options);
        run.cold.note_unsealed(stripes).await?;
        loop {
            let since = stripes.runtime().now();
            let walked = survey
                .advance(&mut run.cold, enough, &mut |cold| {
                    run.report.cold_stripes = cold.stripes;
                    tell(&run.report)
                })
                .await?;
            run.time.note_reading(since);
            run.report.cold_stripes = run.cold.stripes;
            let is_complete = match walked {
                WalkProgress::Stopped => return Ok(run.report),
                WalkProgress::Further => false,
                WalkProgress::ToTheEnd => true,
            };
            note_sealing(stripes, bucket).await?;
            run.make_and_change(is_complete, tell).await?;
            if run.time.is_stopped {
                // The look is incomplete, so the record of the bucket stays as it was.
                return Ok(run.report);
            }
            if is_complete {
                return run.finish(bucket, options).await;
            }
        }
    })
}

/// Returns the geometry of a wide profile.
fn geometry_of(profile: &Profile) -> Result<WideGeometry, StripeError> {
    WideGeometry::of_profile(profile).map_err(|error| StripeError::InvalidArgument(error.to_string()))
}

/// Reduces the counts of open siblings by the partitions that were taken.
fn take_siblings(pool: &mut [OpenPartition], chosen: &BTreeSet<Partition>) {
    let mut of_stripe: BTreeMap<StripeId, usize> = BTreeMap::new();
    chosen.iter().for_each(|&(stripe, _)| *of_stripe.entry(stripe).or_default() += 1);
    for partition in pool {
        partition.open_siblings -= of_stripe.get(&partition.partition.0).copied().unwrap_or_default();
    }
}

/// Keeps at most `most` partitions of each rack, and counts the others by site: a rack with more of them than wide
/// stripes take must not fill the memory.
fn keep_of_racks(pool: &mut Vec<OpenPartition>, most: usize, others: &mut HashMap<SiteId, usize>) {
    let mut of_racks: BTreeMap<RackId, usize> = BTreeMap::new();
    pool.retain(|partition| {
        let kept = of_racks.entry(partition.rack.clone()).or_default();
        *kept += 1;
        let is_kept = *kept <= most;
        if !is_kept {
            *others.entry(partition.site).or_default() += 1;
        }
        is_kept
    });
}

/// Returns what a bucket declares as cold, by age and by storage class; `None`: nothing.
///
/// # Errors
/// [`StripeError::InvalidArgument`] for a text that is not a profile.
pub fn cold_of(stripes: &Stripes, bucket: &Bucket) -> Result<Option<SealOptions>, StripeError> {
    let options = declared_by(stripes, bucket)?;
    Ok((!options.profiles().is_empty()).then_some(options))
}

/// Like `cold_of`, but also returns options, without a profile, for a bucket that declares nothing as cold any more and of
/// which data is sealed.
///
/// # Errors
/// [`StripeError::InvalidArgument`] for a text that is not a profile; when the metadata store fails.
pub(crate) async fn looked_for(
    stripes: &Stripes,
    bucket: &Bucket,
) -> Result<Option<SealOptions>, StripeError> {
    let options = declared_by(stripes, bucket)?;
    let is_looked_at =
        !options.profiles().is_empty() || sealed_figures(stripes, &bucket.name).await?.is_some();
    Ok(is_looked_at.then_some(options))
}

fn declared_by(stripes: &Stripes, bucket: &Bucket) -> Result<SealOptions, StripeError> {
    let mut classes = BTreeMap::new();
    for class in &bucket.classes {
        let profile = stripes.profiles().parse(&class.profile)?;
        if profile.layout == Layout::Wide {
            classes.insert(StorageClass::of_row(&class.class), profile);
        }
    }
    let cold = bucket.cold.as_ref();
    let cold_profile = cold.map(|cold| stripes.profiles().parse(&cold.profile)).transpose()?;
    let cold_after = Duration::from_secs(cold.map_or(0, |cold| cold.after_s));
    Ok(SealOptions { cold_profile, cold_after, classes, ..SealOptions::default() })
}

/// Checks whether wide stripes of these profiles may be made at all.
fn check(stripes: &Stripes, options: &SealOptions) -> Result<(), StripeError> {
    let invalid = |reason: String| Err(StripeError::InvalidArgument(reason));
    if let Some(profile) = options.profiles().into_iter().find(|profile| profile.layout != Layout::Wide) {
        return invalid(format!("{profile} is not a wide profile; write, for example, wide(128,27,4)"));
    }
    if stripes.formats().records < formats::WIDE {
        return invalid(
            "older programs do not read wide stripes; run `striate admin upgrade finalize` first".to_owned(),
        );
    }
    Ok(())
}

/// Describes why partitions wait. `away` further ones are on sites that do not answer.
fn held_up(profile: &Profile, why_not: &NotSealed, away: usize) -> String {
    match away {
        0 => format!("{profile}: {why_not}"),
        _ => format!("{profile}: {why_not}; {away} more are on sites that do not answer"),
    }
}

struct Run<'a> {
    stripes: &'a Stripes,
    packer: &'a Packer,
    /// Number of wide stripes for which waiting partitions are kept.
    together: usize,
    /// Cold data found, less what has been sealed.
    cold: ColdData,
    report: SealReport,
    time: LookTime,
}

impl<'a> Run<'a> {
    fn new(stripes: &'a Stripes, packer: &'a Packer, options: &SealOptions) -> Self {
        let (cold, report) = (ColdData::default(), SealReport::default());
        let time = LookTime::new(stripes.runtime().clone(), options.time);
        Self { stripes, packer, together: options.together, cold, report, time }
    }

    /// Makes wide stripes, and changes existing ones once the survey is complete.
    async fn make_and_change(
        &mut self,
        is_complete: bool,
        tell: SealCallback<'_>,
    ) -> Result<(), StripeError> {
        if is_complete {
            self.tend(tell).await?;
        }
        self.seal(tell).await?;
        if is_complete {
            self.use_longer_places(tell).await?;
            self.empty_sparse(tell).await?;
        }
        Ok(())
    }

    /// Improves existing wide stripes once the survey is complete and all expected changes are known.
    async fn tend(&mut self, tell: SealCallback<'_>) -> Result<(), StripeError> {
        for &id in &self.cold.cooled {
            if self.stripes.drop_narrow_parities(id).await? == DropOutcome::TooManyWide {
                self.cold.scattered += 1;
            }
            if self.time.goes_on(tell(&self.report)).is_break() {
                return Ok(());
            }
        }
        let dead = dissolve_dead(self.stripes).await?;
        // Each member that takes a dead one's place changes the local parity. Members that leave do so together: each
        // rack sends one sum.
        if self.cold.pools.values().any(|pool| !pool.is_empty()) {
            dead.iter().for_each(|stripe| self.cold.changing.expect(&stripe.record, 1.0));
        }
        let (report, time) = (&mut self.report, &mut self.time);
        let flow = swap_local_parities(self.stripes, &self.cold.changing, &mut |swapped| {
            report.swapped = swapped;
            time.goes_on(tell(report))
        })
        .await?;
        match flow {
            ControlFlow::Continue(()) => self.fill_vacancies(&dead, Lengths::Alike, tell).await,
            ControlFlow::Break(()) => Ok(()),
        }
    }

    async fn fill_vacancies(
        &mut self,
        dead: &[OpenedStripe],
        lengths: Lengths,
        tell: SealCallback<'_>,
    ) -> Result<(), StripeError> {
        let (before, report, time) = (self.report.replaced, &mut self.report, &mut self.time);
        fill_vacancies(self.stripes, &mut self.cold, dead, lengths, &mut |taken| {
            report.replaced = before + taken;
            time.goes_on(tell(report))
        })
        .await
    }

    /// Whether wide stripes may be made. Each look makes one, even if its time was used up before.
    fn may_make_more(&mut self) -> bool {
        let is_first = self.report.sealed + self.report.given_up == 0;
        let may_go_on = !self.time.is_stopped && self.report.given_up < MOST_GIVEN_UP;
        may_go_on && (is_first || !self.time.is_over())
    }

    /// Seals the partitions of each pool that fill wide stripes.
    async fn seal(&mut self, tell: SealCallback<'_>) -> Result<(), StripeError> {
        for (key, mut pool) in std::mem::take(&mut self.cold.pools) {
            let profile = self.stripes.profiles().parse(&key.profile)?;
            if self.may_make_more() {
                self.seal_pool(&profile, &mut pool, tell).await?;
            }
            let most = self.together * geometry_of(&profile)?.c();
            keep_of_racks(&mut pool, most, &mut self.cold.set_aside);
            self.cold.pools.insert(key, pool);
        }
        self.cold.count_done(self.stripes).await
    }

    /// Gives partitions that found no others of their length the places that are still vacant in longer wide stripes.
    async fn use_longer_places(&mut self, tell: SealCallback<'_>) -> Result<(), StripeError> {
        // If the time was over before, those in the pools may still find others.
        let is_over = self.time.is_stopped || self.time.is_cut_short;
        if is_over || self.cold.pools.values().all(Vec::is_empty) {
            return Ok(());
        }
        let dead = dead_stripes(self.stripes).await?;
        self.fill_vacancies(&dead, Lengths::Shorter, tell).await?;
        self.cold.count_done(self.stripes).await
    }

    /// Empties wide stripes in which little lives: what waits has already taken the holes that it can.
    async fn empty_sparse(&mut self, tell: SealCallback<'_>) -> Result<(), StripeError> {
        if self.time.is_stopped || self.time.is_cut_short {
            return Ok(());
        }
        let (report, time) = (&mut self.report, &mut self.time);
        empty_sparse(self.stripes, &self.cold, &mut |emptied| {
            report.emptied = emptied;
            time.goes_on(tell(report))
        })
        .await
    }

    /// Counts the partitions that wait, and notes why they do. Returns how many there are on each site.
    fn note_waiting(&mut self) -> HashMap<SiteId, usize> {
        let (cold, report) = (&mut self.cold, &mut self.report);
        let mut waiting = std::mem::take(&mut cold.set_aside);
        for partition in cold.pools.values().flatten() {
            *waiting.entry(partition.site).or_default() += 1;
        }
        // If nothing could be changed in all that time, the next look comes no sooner.
        report.unfinished = self.time.is_cut_short && report.sealed + report.replaced + report.swapped > 0;
        let reason = match report.unfinished {
            true => Some(MORE.to_owned()),
            false => report.held_up.take().or_else(|| (!waiting.is_empty()).then(|| TOO_FEW.to_owned())),
        };
        let reasons: Vec<String> = reason.into_iter().chain(cold.debt_reason()).collect();
        report.held_up = (!reasons.is_empty()).then(|| reasons.join("; "));
        for (site, count) in std::mem::take(&mut cold.owed) {
            *waiting.entry(site).or_default() += count;
        }
        report.waiting = waiting.values().sum::<usize>() as u64;
        waiting
    }

    /// Records what was done, and what waits.
    async fn finish(mut self, bucket: &str, options: &SealOptions) -> Result<SealReport, StripeError> {
        let waiting = self.note_waiting();
        self.packer.partitions_wait(bucket, waiting);
        let (cold, report) = (&mut self.cold, &mut self.report);
        cold.count_waiting(self.stripes).await?;
        report.cold_stripes = cold.stripes;
        (report.sealed_stripes, report.half_sealed) = (cold.sealed, cold.half_sealed);
        (report.not_packed, report.not_packed_bytes) = (cold.short, cold.short_bytes);
        let sizes = self.stripes.rack_sizes();
        for profile in options.profiles() {
            let in_racks = cold.in_racks.remove(&profile.to_string()).unwrap_or_default();
            report.warnings.extend(warnings(&geometry_of(&profile)?, &sizes, &in_racks));
        }
        report.warnings.extend(durability_warnings_of(self.stripes, bucket).await?);
        report.warnings.extend(cold.scattered_warning());
        write_sealed(self.stripes, bucket, options, report).await?;
        Ok(self.report)
    }

    /// Seals the partitions that fill wide stripes of a profile.
    async fn seal_pool(
        &mut self,
        profile: &Profile,
        pool: &mut Vec<OpenPartition>,
        tell: SealCallback<'_>,
    ) -> Result<(), StripeError> {
        let geometry = geometry_of(profile)?;
        loop {
            let (sites, most_holes) = (self.stripes.candidates(), geometry.k() / POSITIONS_A_HOLE);
            let reachable = self.answering(pool);
            let plan = match plan_sealing(&geometry, &reachable, &sites, most_holes) {
                Ok(plan) => plan,
                Err(why_not) => {
                    let unreachable = pool.len() - reachable.len();
                    // Fewer partitions than a wide stripe takes just wait for more.
                    if unreachable > 0 || !matches!(why_not, NotSealed::TooFewPartitions { .. }) {
                        self.report.held_up = Some(held_up(profile, &why_not, unreachable));
                    }
                    return Ok(());
                }
            };
            let chosen: BTreeSet<Partition> =
                plan.members.iter().flatten().map(|member| member.partition).collect();
            pool.retain(|open| !chosen.contains(&open.partition));
            take_siblings(pool, &chosen);
            if !self.seal_one(profile, &plan).await? {
                let members = plan.members.iter().flatten();
                members.for_each(|member| *self.cold.set_aside.entry(member.site).or_default() += 1);
            }
            if self.time.goes_on(tell(&self.report)).is_break() || !self.may_make_more() {
                return Ok(());
            }
        }
    }

    /// Returns the partitions on sites that answer. A wide stripe with others could not be made now.
    fn answering(&self, pool: &[OpenPartition]) -> Vec<OpenPartition> {
        let views = self.stripes.sites();
        let sites: BTreeSet<SiteId> =
            views.iter().filter(|view| view.readable).map(|view| view.site.id()).collect();
        pool.iter().filter(|partition| sites.contains(&partition.site)).cloned().collect()
    }

    /// Makes one wide stripe. Returns `false` if it cannot be made now, and its members wait.
    async fn seal_one(&mut self, profile: &Profile, chosen: &SealingPlan) -> Result<bool, StripeError> {
        let chunk_lens = &self.cold.chunk_lens;
        let lens = || {
            chosen.members.iter().flatten().filter_map(|member| chunk_lens.get(&member.partition.0).copied())
        };
        let (chunk_len, bytes) = (lens().max().unwrap_or_default(), lens().map(u64::from).sum::<u64>());
        let partition = |member: &Option<WideMember>| {
            member.map(|WideMember { partition: (stripe, index), .. }| (stripe, usize::from(index)))
        };
        let plan = WidePlan {
            profile: *profile,
            chunk_len,
            members: chosen.members.iter().map(partition).collect(),
        };
        // Members that have changed since they were read are left to the next pass.
        let Some(id) = self.packer.begin_wide(&plan).await? else { return Ok(false) };
        let (step, reason) = advance(self.stripes, id).await?;
        if !matches!(step, WideStep::Complete | WideStep::Sealed) {
            self.cold.unsealed.insert(id);
        }
        match step {
            WideStep::Complete | WideStep::Sealed => {
                let count = plan.members.iter().flatten().count() as u64;
                self.report.sealed += 1;
                self.report.members += count;
                self.report.bytes += bytes;
                tracing::info!(wide = %id, members = count, "partitions were sealed");
                Ok(true)
            }
            WideStep::Postponed if reason.is_none() => Ok(true),
            WideStep::Aborted | WideStep::Gone | WideStep::Postponed => {
                self.report.given_up += 1;
                self.report.held_up =
                    Some(reason.unwrap_or_else(|| "a partition has changed meanwhile".to_owned()));
                Ok(false)
            }
        }
    }
}

/// Resumes a wide stripe. One whose parities cannot be made is given up, and the reason returned: its members stay as
/// they were. An error that concerns only this wide stripe does not hold up others.
///
/// # Errors
/// When the metadata store fails.
async fn advance(stripes: &Stripes, id: StripeId) -> Result<(WideStep, Option<String>), StripeError> {
    let why = match stripes.advance_wide(id).await {
        Err(StripeError::Meta(error)) => return Err(error.into()),
        Err(error) => error,
        Ok(step) => return Ok((step, None)),
    };
    tracing::warn!(wide = %id, error = %why, "a wide stripe cannot be made or completed now");
    // It waits until the damage is repaired.
    stripes.report_damage(&why).await?;
    let step = match give_up(stripes, id).await {
        Err(StripeError::Meta(error)) => return Err(error.into()),
        Err(error) => {
            tracing::warn!(wide = %id, %error, "it cannot be given up now; the next look retries");
            WideStep::Postponed
        }
        Ok(step) => step,
    };
    Ok((step, Some(why.to_string())))
}

/// Gives up a wide stripe if it is not sealed yet. One that is stays so, and its members' own parities go later.
async fn give_up(stripes: &Stripes, id: StripeId) -> Result<WideStep, StripeError> {
    if stripes.abort_wide(id).await? {
        return stripes.advance_wide(id).await;
    }
    let is_sealed = stripes.find(id).await?.is_some_and(|stripe| stripe.record.is_sealed());
    Ok(if is_sealed { WideStep::Sealed } else { WideStep::Gone })
}
