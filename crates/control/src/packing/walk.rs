//! A walk over a bucket's objects in key order: small settled objects are packed, group after group, and all are
//! counted. Objects of each storage class are gathered separately, and packed under the profile of the class.
//!
//! Objects that do not fill a group stay as they are until they have waited for [`PackOptions::patience`].

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
use crate::packing::pace::Pacer;
use crate::packing::setting::{impossible, profile_of, profile_of_class, unpackable};
use crate::packing::{Candidate, PackOptions, PackReport, pack_group};
use crate::rows::{Rows, find_record};
use crate::sealing::{SealOptions, cold_of, is_too_short};

/// Pause while requests wait at a site.
const YIELD: Duration = Duration::from_secs(1);
/// Maximum time that a group waits for other requests: the last load report of a site may be old.
const LONGEST_YIELD: Duration = Duration::from_secs(60);
/// Load above which processors have no time to spare.
const BUSY: f64 = 0.8;
/// Divisor: every site keeps one part in this many of its space free; nothing is packed below that.
const RESERVE: u64 = 10;
/// Length of the shortest partition in bytes, when memory is short.
const SHORTEST: u32 = 1 << 16;

/// Packs a bucket's objects, group after group, and returns the result. Ignores the packing settings of the bucket
/// and the store.
///
/// # Errors
/// When the metadata store fails, or a group cannot be stored; objects packed until then stay packed.
pub fn pack_bucket<'a>(
    stripes: &'a Stripes,
    packer: &'a Packer,
    bucket: &'a str,
    default: &'a Profile,
    options: &'a PackOptions,
) -> BoxFuture<'a, Result<PackReport, StripeError>> {
    Box::pin(async move {
        let Some(record) = find_record::<Bucket>(stripes, &keys::bucket(bucket)).await? else {
            return Ok(PackReport::default());
        };
        if impossible(stripes, &record, default)?.is_some() {
            return Ok(PackReport::default());
        }
        let mut walk = Walk::new(stripes, record, default, options)?.packing(options.partition_len);
        let _never_stopped = walk.run(packer, &mut |_| ControlFlow::Continue(())).await?;
        Ok(walk.report)
    })
}

/// Progress of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// Objects seen.
    pub(crate) seen: u64,
    /// Result of packing so far.
    pub(crate) packed: PackReport,
}

/// Progress callback, called after each page of rows and each group; `Break` ends the walk.
pub(crate) type StepCallback<'a> = &'a mut (dyn FnMut(&Step) -> ControlFlow<()> + Send);

/// A walk over one bucket.
pub(crate) struct Walk<'a> {
    stripes: &'a Stripes,
    bucket: Bucket,
    /// What the bucket declares as cold.
    cold: Option<SealOptions>,
    /// Number of data chunks of a group of the bucket's own profile.
    k: usize,
    default: Profile,
    options: &'a PackOptions,
    /// Length of partitions in bytes; `None`: objects are only counted.
    partition_len: Option<u32>,
    /// Objects modified after this time (Unix milliseconds) do not count as settled.
    until_ms: u64,
    /// Candidates of each class; `None`: the class cannot be packed.
    waiting: BTreeMap<StorageClass, Option<ClassCandidates>>,
    seen: u64,
    tally: Tally,
    /// Result of packing so far.
    pub(crate) report: PackReport,
    /// Time spent on groups, including pauses.
    pub(crate) busy: Duration,
    /// Load of this machine's processors since the last group.
    processors: Processors,
    /// Why no further group can be stored now.
    pub(crate) held_up: Option<String>,
}

/// Candidates of one storage class.
struct ClassCandidates {
    /// Profile of their group, and its number of data chunks.
    profile: Profile,
    k: usize,
    /// Number of losses that the profile's code tolerates.
    tolerance: usize,
    /// Settled candidates, the room they take, and the age of the oldest.
    settled: Vec<Candidate>,
    room: usize,
    oldest_ms: u64,
}

impl ClassCandidates {
    /// Creates an empty list for a class; `None` if the class has its own code and that cannot be packed. Whether the
    /// bucket's code can is checked before a walk packs.
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

    /// Takes all candidates out.
    fn take(&mut self) -> Vec<Candidate> {
        (self.room, self.oldest_ms) = (0, 0);
        std::mem::take(&mut self.settled)
    }
}

impl<'a> Walk<'a> {
    /// Creates a walk that only counts.
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

    /// Makes the walk pack into partitions of at most `most` bytes, as far as the byte budget allows.
    pub(crate) fn packing(mut self, most: u32) -> Self {
        self.partition_len = Some(within_memory(self.stripes, most));
        self
    }

    /// Excludes objects modified after `until_ms`, in Unix milliseconds.
    pub(crate) fn until(mut self, until_ms: u64) -> Self {
        self.until_ms = until_ms;
        self
    }

    /// Returns the bucket's name.
    pub(crate) fn bucket(&self) -> &str {
        &self.bucket.name
    }

    /// Returns the bytes of a group of such partitions.
    pub(crate) fn group_bytes(&self, partition_len: u32) -> u64 {
        self.k as u64 * u64::from(partition_len)
    }

    /// Walks all objects. Returns `Break` if the callback stopped it; its figures are then not those of the whole
    /// bucket.
    ///
    /// # Errors
    /// When the metadata store fails, or a group cannot be stored.
    pub(crate) fn run<'s>(
        &'s mut self,
        packer: &'s Packer,
        tell: StepCallback<'s>,
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

    /// Writes groups of smaller partitions from candidates that have waited long enough.
    async fn write_smaller(
        &mut self,
        packer: &Packer,
        tell: StepCallback<'_>,
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

    /// Returns the bucket's figures.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(crate) async fn figures(self) -> Result<PackingFigures, StripeError> {
        self.tally.finish(self.stripes, &self.report).await
    }

    fn step(&self) -> Step {
        Step { seen: self.seen, packed: self.report }
    }

    /// Counts a row, and keeps its object if it can be packed. Returns its storage class.
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
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                entry.insert(ClassCandidates::of(self.stripes, &self.bucket, &self.default, class)?)
            }
        };
        let Some(waiting) = waiting else { return Ok(class) };
        // The object's own profile survives more losses, or keeps whole copies to speed up reads.
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

    /// Returns whether packing takes an object of this size. Cold objects may be larger if nothing else would seal
    /// them.
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

    /// Writes a group from the candidates of a class, if that is possible now. Otherwise the walk only counts from
    /// then on.
    async fn write_group(
        &mut self,
        packer: &Packer,
        class: StorageClass,
        partition_len: u32,
        tell: StepCallback<'_>,
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
        let pace = Pacer::new(self.stripes, &self.processors, self.options);
        match pack_group(self.stripes, packer, &profile, partition_len, group, pace).await {
            Ok(packed) => self.report.add(packed),
            // Sites are away or full. The rest is still counted.
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

    /// Stops packing; the walk only counts.
    fn stop(&mut self) {
        self.partition_len = None;
        self.waiting.values_mut().flatten().for_each(|waiting| drop(waiting.take()));
    }

    /// Returns whether the bucket still exists with the same packing settings as at the start.
    async fn is_wanted(&self) -> Result<bool, StripeError> {
        let now: Option<Bucket> = find_record(self.stripes, &keys::bucket(&self.bucket.name)).await?;
        let Some(now) = now else { return Ok(false) };
        Ok(now.created_unix_ms == self.bucket.created_unix_ms
            && (now.deleting, &now.packing, &now.profile, &now.classes)
                == (self.bucket.deleting, &self.bucket.packing, &self.bucket.profile, &self.bucket.classes)
            && self.stripes.formats().records >= formats::PACKED)
    }

    /// Returns whether requests wait at a site, or this machine's processors have no time to spare.
    fn others_wait(&self) -> bool {
        if self.processors.busy() >= BUSY {
            return true;
        }
        // The last report of a site that no longer answers says nothing.
        let answering = self.stripes.sites().into_iter().filter(|view| view.readable);
        answering.map(|view| view.site.last_load()).any(|load| load.queue_requests > load.workers)
    }

    /// Returns a message if a site that takes chunks has too little space for another group.
    fn lacks_space(&self) -> Option<String> {
        let sites = self.stripes.sites().into_iter().filter(|view| view.writable);
        let mut sites = sites.map(|view| (view.site.id(), view.site.last_load()));
        let full = sites.find(|(_, load)| load.free_bytes < (load.used_bytes + load.free_bytes) / RESERVE);
        full.map(|(site, _)| format!("site {site} has less than a tenth of its space left"))
    }
}

/// Returns the longest partition, `most` halved as often as needed, that fits in half of the byte budget.
pub(crate) fn within_memory(stripes: &Stripes, most: u32) -> u32 {
    let half = stripes.budget().total() / 2;
    let lens = std::iter::successors(Some(most), |len| Some(len / 2));
    lens.take_while(|len| *len > SHORTEST).find(|len| *len as usize <= half).unwrap_or(SHORTEST)
}

/// Returns the longest partition, `most` halved as often as needed but not below `least`, that `room` bytes fill.
fn largest_filled(room: usize, least: u32, most: u32) -> Option<u32> {
    let fills = |len: &u32| *len as usize <= room;
    std::iter::successors(Some(most), |len| Some(len / 2)).take_while(|len| *len >= least.max(1)).find(fills)
}
