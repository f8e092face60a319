//! A walk over a bucket's objects in the order of their keys: small ones that have settled are packed, group after group, and all
//! are counted. Those of each storage class are gathered by themselves, and packed under its profile.
//!
//! What does not fill a group stays as it is, until it has waited for [`PackOptions::patience`].

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::ControlFlow;
use std::time::Duration;

use futures::future::BoxFuture;
use striate_core::{Profile, StorageClass, formats};
use striate_meta::records::{Bucket, Object, PackingFigures};
use striate_meta::{Row, keys};
use striate_runtime::Processors;
use striate_stripe::{Packer, StripeError, Stripes};

use crate::packing::figures::Tally;
use crate::packing::pace::Pace;
use crate::packing::setting::{impossible, profile_of, profile_of_class, unpackable};
use crate::packing::{Candidate, PackOptions, PackReport, pack_group};
use crate::rows::Rows;
use crate::sealing::{SealOptions, cold_of, is_too_short};

/// Pause while requests wait at a site.
const YIELD: Duration = Duration::from_secs(1);
/// A group waits for others' requests no longer than this: what a site told last may be old.
const LONGEST_YIELD: Duration = Duration::from_secs(60);
/// Processors that work for this share of their time have none to spare.
const BUSY: f64 = 0.8;
/// A site keeps this part of its space: nothing is packed below.
const RESERVE: u64 = 10;
/// The shortest partition, where memory is short.
const SHORTEST: u32 = 1 << 16;

/// Packs a bucket's objects, group after group, and answers what was packed, whatever the bucket and the store say of packing.
///
/// # Errors
/// When the metadata store fails, or a group cannot be stored; what was packed until then stays packed.
pub fn pack_bucket<'a>(
    stripes: &'a Stripes,
    packer: &'a Packer,
    bucket: &'a str,
    default: &'a Profile,
    options: &'a PackOptions,
) -> BoxFuture<'a, Result<PackReport, StripeError>> {
    Box::pin(async move {
        let Some(row) = stripes.meta().get(&keys::bucket(bucket)).await? else {
            return Ok(PackReport::default());
        };
        let record: Bucket = row.record()?;
        if impossible(stripes, &record, default)?.is_some() {
            return Ok(PackReport::default());
        }
        let mut walk = Walk::new(stripes, record, default, options)?.packing(options.partition_len);
        let _never_stopped = walk.run(packer, &mut |_| ControlFlow::Continue(())).await?;
        Ok(walk.report)
    })
}

/// What a walk has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// Objects that it has seen.
    pub(crate) seen: u64,
    /// What it has packed.
    pub(crate) packed: PackReport,
}

/// Told after each page of rows and each group; ends the walk by `Break`.
pub(crate) type Tell<'a> = &'a mut (dyn FnMut(&Step) -> ControlFlow<()> + Send);

/// A walk over one bucket.
pub(crate) struct Walk<'a> {
    stripes: &'a Stripes,
    bucket: Bucket,
    /// What the bucket says of what is cold.
    cold: Option<SealOptions>,
    /// The data chunks of a group of the bucket's own profile.
    k: usize,
    default: Profile,
    options: &'a PackOptions,
    /// The length of partitions; `None`: objects are only counted.
    partition_len: Option<u32>,
    /// Objects that were modified later have not settled.
    until_ms: u64,
    /// What waits of each class; `None`: it cannot be packed.
    waiting: BTreeMap<StorageClass, Option<Waiting>>,
    seen: u64,
    tally: Tally,
    /// What was packed.
    pub(crate) report: PackReport,
    /// Time that went into groups, pauses included.
    pub(crate) busy: Duration,
    /// This machine's, since the last group.
    processors: Processors,
    /// Why no further group can be stored now.
    pub(crate) held_up: Option<String>,
}

/// Candidates of one storage class.
struct Waiting {
    /// The profile of their group, and its data chunks.
    profile: Profile,
    k: usize,
    /// Losses that it bears.
    tolerance: usize,
    /// Those that have settled, the room that they take, and the age of the oldest.
    settled: Vec<Candidate>,
    room: usize,
    oldest_ms: u64,
}

impl Waiting {
    /// None of a class yet; `None` where the class has a code of its own that cannot be packed. Whether the bucket's can is known before
    /// a walk packs.
    fn of(
        stripes: &Stripes,
        bucket: &Bucket,
        default: &Profile,
        class: StorageClass,
    ) -> Result<Option<Self>, StripeError> {
        let profile = profile_of_class(stripes, bucket, default, class)?;
        if profile != profile_of(stripes, bucket, default)? && unpackable(stripes, &profile)?.is_some() {
            return Ok(None);
        }
        let code = stripes.code(&profile)?;
        let (k, tolerance) = (code.k(), code.tolerance());
        Ok(Some(Self { profile, k, tolerance, settled: Vec::new(), room: 0, oldest_ms: 0 }))
    }

    fn add(&mut self, candidate: Candidate, age_ms: u64) {
        self.room += candidate.room();
        self.oldest_ms = self.oldest_ms.max(age_ms);
        self.settled.push(candidate);
    }

    /// What it has; nothing waits any more.
    fn take(&mut self) -> Vec<Candidate> {
        (self.room, self.oldest_ms) = (0, 0);
        std::mem::take(&mut self.settled)
    }
}

impl<'a> Walk<'a> {
    /// A walk that counts.
    pub(crate) fn new(
        stripes: &'a Stripes,
        bucket: Bucket,
        default: &Profile,
        options: &'a PackOptions,
    ) -> Result<Self, StripeError> {
        let profile = profile_of(stripes, &bucket, default)?;
        let k = stripes.code(&profile)?.k();
        let cold = cold_of(stripes, &bucket)?;
        Ok(Self {
            stripes,
            bucket,
            cold,
            k,
            default: *default,
            options,
            partition_len: None,
            until_ms: u64::MAX,
            waiting: BTreeMap::new(),
            seen: 0,
            tally: Tally::default(),
            report: PackReport::default(),
            busy: Duration::ZERO,
            processors: Processors::new(stripes.runtime().clone()),
            held_up: None,
        })
    }

    /// The same, packing into partitions of at most `most` bytes, as far as the byte budget allows.
    pub(crate) fn packing(mut self, most: u32) -> Self {
        self.partition_len = Some(within_memory(self.stripes, most));
        self
    }

    /// The same, without objects that were modified after `until_ms`, in Unix milliseconds.
    pub(crate) fn until(mut self, until_ms: u64) -> Self {
        self.until_ms = until_ms;
        self
    }

    /// The bucket's name.
    pub(crate) fn bucket(&self) -> &str {
        &self.bucket.name
    }

    /// Bytes of a group of such partitions.
    pub(crate) fn group_bytes(&self, partition_len: u32) -> u64 {
        self.k as u64 * u64::from(partition_len)
    }

    /// Goes through all objects. `Break`: it was told to stop, and its figures are not those of the bucket.
    ///
    /// # Errors
    /// When the metadata store fails, or a group cannot be stored.
    pub(crate) fn run<'s>(
        &'s mut self,
        packer: &'s Packer,
        tell: Tell<'s>,
    ) -> BoxFuture<'s, Result<ControlFlow<()>, StripeError>> {
        Box::pin(async move {
            let mut rows = Rows::with_prefix(&keys::objects(&self.bucket.name));
            while let Some(page) = rows.next(self.stripes).await? {
                let now = self.stripes.runtime().wall_time().as_millis() as u64;
                for row in &page {
                    let class = self.see(row, now)?;
                    let Some(len) = self.partition_len else { continue };
                    let Some(Some(waiting)) = self.waiting.get(&class) else { continue };
                    if waiting.room >= waiting.k * len as usize
                        && self.write_group(packer, class, len, tell).await?.is_break()
                    {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                if tell(&self.step()).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            self.write_smaller(packer, tell).await
        })
    }

    /// Writes groups of smaller partitions of what has waited for long.
    async fn write_smaller(
        &mut self,
        packer: &Packer,
        tell: Tell<'_>,
    ) -> Result<ControlFlow<()>, StripeError> {
        let options = self.options;
        for class in StorageClass::ALL {
            let (Some(most), Some(Some(waiting))) = (self.partition_len, self.waiting.get(&class)) else {
                continue;
            };
            let has_waited =
                u128::from(waiting.oldest_ms) >= (options.settled_after + options.patience).as_millis();
            if has_waited
                && let Some(len) = largest_filled(waiting.room / waiting.k, options.smallest_partition, most)
                && self.write_group(packer, class, len, tell).await?.is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// What was counted.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(crate) async fn figures(self) -> Result<PackingFigures, StripeError> {
        self.tally.finish(self.stripes, &self.report).await
    }

    fn step(&self) -> Step {
        Step { seen: self.seen, packed: self.report }
    }

    /// Counts a row, and keeps it where it can be packed. Answers its storage class.
    fn see(&mut self, row: &Row, now_unix_ms: u64) -> Result<StorageClass, StripeError> {
        let object: Object = row.record()?;
        let class = object.class();
        self.seen += 1;
        self.tally.see(&object)?;
        if !self.is_small(&object, now_unix_ms)? {
            return Ok(class);
        }
        let Some(candidate) = Candidate::of_row(row, &object) else { return Ok(class) };
        let waiting = match self.waiting.entry(class) {
            Entry::Occupied(of) => of.into_mut(),
            Entry::Vacant(of) => of.insert(Waiting::of(self.stripes, &self.bucket, &self.default, class)?),
        };
        let Some(waiting) = waiting else { return Ok(class) };
        // It was given a profile of its own that bears more losses, or is copied for its reads' sake.
        let own = self.stripes.profiles().parse(&object.profile)?;
        if own != waiting.profile {
            let code = self.stripes.code(&own)?;
            if code.tolerance() > waiting.tolerance || code.k() == 1 {
                return Ok(class);
            }
        }
        let age_ms = now_unix_ms.saturating_sub(object.modified_unix_ms);
        let has_settled = u128::from(age_ms) >= self.options.settled_after.as_millis()
            && object.modified_unix_ms <= self.until_ms;
        self.tally.see_waiting(candidate.stored.len().into(), has_settled);
        if has_settled && self.partition_len.is_some() {
            waiting.add(candidate, age_ms);
        }
        Ok(class)
    }

    /// Whether packing takes an object of that size. Cold ones may be larger where nothing else would seal them.
    fn is_small(&self, object: &Object, now_unix_ms: u64) -> Result<bool, StripeError> {
        if object.size <= self.options.object_max {
            return Ok(true);
        }
        match &self.cold {
            Some(cold) if object.size <= self.options.cold_object_max => {
                is_too_short(self.stripes, cold, object, now_unix_ms)
            }
            _ => Ok(false),
        }
    }

    /// Writes a group of what waits of a class, if that may be done now. What may not be packed any more is only counted from then on.
    async fn write_group(
        &mut self,
        packer: &Packer,
        class: StorageClass,
        partition_len: u32,
        tell: Tell<'_>,
    ) -> Result<ControlFlow<()>, StripeError> {
        let Some(Some(waiting)) = self.waiting.get_mut(&class) else { return Ok(ControlFlow::Continue(())) };
        let (profile, group) = (waiting.profile, waiting.take());
        let began = self.stripes.runtime().now();
        let may_yield = || self.stripes.runtime().now() - began < LONGEST_YIELD;
        while self.options.yields && self.others_wait() && may_yield() {
            self.stripes.runtime().sleep(YIELD).await;
            if tell(&self.step()).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        self.held_up = self.lacks_space();
        if self.held_up.is_some() || !self.is_wanted().await? {
            self.stop();
            return Ok(ControlFlow::Continue(()));
        }
        let pace = Pace::new(self.stripes, &self.processors, self.options);
        match pack_group(self.stripes, packer, &profile, partition_len, group, pace).await {
            Ok(packed) => self.report.add(packed),
            // Sites are away or full. What there is is counted all the same.
            Err(error @ (StripeError::TooFewSites { .. } | StripeError::NoSpace(_))) => {
                self.stop();
                self.held_up = Some(error.to_string());
            }
            Err(error) => return Err(error),
        }
        self.processors = Processors::new(self.stripes.runtime().clone());
        self.busy += self.stripes.runtime().now() - began;
        Ok(tell(&self.step()))
    }

    /// Packs nothing more.
    fn stop(&mut self) {
        self.partition_len = None;
        self.waiting.values_mut().flatten().for_each(|waiting| drop(waiting.take()));
    }

    /// Whether the bucket is still there, and says of packing what it said at the beginning.
    async fn is_wanted(&self) -> Result<bool, StripeError> {
        let Some(row) = self.stripes.meta().get(&keys::bucket(&self.bucket.name)).await? else {
            return Ok(false);
        };
        let now: Bucket = row.record()?;
        Ok(now.created_unix_ms == self.bucket.created_unix_ms
            && (now.deleting, &now.packing, &now.profile, &now.classes)
                == (self.bucket.deleting, &self.bucket.packing, &self.bucket.profile, &self.bucket.classes)
            && self.stripes.formats().records >= formats::PACKED)
    }

    /// Whether requests wait at a site, or this machine's processors have no time to spare.
    fn others_wait(&self) -> bool {
        if self.processors.busy() >= BUSY {
            return true;
        }
        // What a site told last that does not answer any more says nothing.
        let answering = self.stripes.sites().into_iter().filter(|view| view.readable);
        answering.map(|view| view.site.last_load()).any(|load| load.queue_requests > load.workers)
    }

    /// Says so if a site has too little space for another group.
    fn lacks_space(&self) -> Option<String> {
        let mut sites = self.stripes.sites().into_iter().map(|view| (view.site.id(), view.site.last_load()));
        let full = sites.find(|(_, load)| load.free_bytes < (load.used_bytes + load.free_bytes) / RESERVE);
        full.map(|(site, _)| format!("site {site} has less than a tenth of its space left"))
    }
}

/// The longest partition, a power of two up to `most`, that half of the byte budget holds.
pub(crate) fn within_memory(stripes: &Stripes, most: u32) -> u32 {
    let half = stripes.budget().total() / 2;
    let lens = std::iter::successors(Some(most), |len| Some(len / 2));
    lens.take_while(|len| *len > SHORTEST).find(|len| *len as usize <= half).unwrap_or(SHORTEST)
}

/// The largest power of two from `least` to `most` that `room` bytes fill.
fn largest_filled(room: usize, least: u32, most: u32) -> Option<u32> {
    let fills = |len: &u32| *len as usize <= room;
    std::iter::successors(Some(most), |len| Some(len / 2)).take_while(|len| *len >= least.max(1)).find(fills)
}
