//! Living objects of worn groups are rewritten together: as many of a bucket's as fill a group, so that the remains
//! of many groups become few full groups and not many short ones. An old group's objects may go to two new groups. Objects
//! of different storage classes are separated: if a group was made before some of its objects changed class, those of
//! one class come together here.
//!
//! Sealed groups among them are refilled in place first ([`crate::packing::refilling`]).

use std::collections::BTreeMap;

use striate_core::{StorageClass, StripeId};
use striate_meta::keys;
use striate_runtime::Processors;
use striate_stripe::partition::FOOTER_LEN;
use striate_stripe::{Packer, StripeError, Stripes};

use crate::packing::pace::Pacer;
use crate::packing::refilling::refill;
use crate::packing::repacking::Inspection;
use crate::packing::setting::longest_partition;
use crate::packing::walk::within_memory;
use crate::packing::{Candidate, PackOptions, pack_group};

const FOOTER: usize = FOOTER_LEN as usize;
/// Maximum number of refillable groups of one kind kept in memory.
const MOST_REFILLABLE: usize = 8;
/// Maximum number of refillable groups of all kinds kept in memory.
const MOST_KEPT: usize = 32;
/// Maximum number of objects, living and dead, of refillable groups kept in memory. Each takes some 250 bytes.
const MOST_KEPT_OBJECTS: usize = 500_000;

/// Kind of objects that are gathered together: bucket, profile and storage class.
type GroupKey = (String, String, StorageClass);

/// Objects gathered for rewriting.
pub(crate) struct RewriteQueue<'a> {
    stripes: &'a Stripes,
    packer: &'a Packer,
    options: &'a PackOptions,
    /// Load of this machine's processors since the last group.
    processors: Processors,
    gathered: BTreeMap<GroupKey, RewriteBatch>,
}

#[derive(Default)]
struct RewriteBatch {
    /// Length in bytes of the longest partition that they may be written into.
    most: u32,
    groups: Vec<StripeId>,
    live: Vec<Candidate>,
    /// Worn groups whose dead ranges take the objects first.
    refillable: Vec<(StripeId, Box<Inspection>)>,
}

impl RewriteBatch {
    fn add(&mut self, id: StripeId, live: Vec<Candidate>) {
        self.groups.push(id);
        self.live.extend(live);
    }

    /// Number of objects, living and dead, in refillable groups.
    fn kept_objects(&self) -> usize {
        self.refillable.iter().map(|(_, inspection)| inspection.live.len() + inspection.dead.len()).sum()
    }

    /// Returns how many of `more`, from the first one, go into one group of k partitions with what is gathered.
    fn fitting(&self, more: &[Candidate], k: usize) -> usize {
        let fits = |count: usize| {
            let mut all: Vec<&Candidate> = self.live.iter().chain(&more[..count]).collect();
            all.sort_by(|a, b| a.key.cmp(&b.key));
            partitions(all.into_iter(), self.most as usize) <= k
        };
        if fits(more.len()) {
            return more.len();
        }
        let counts: Vec<usize> = (1..more.len()).collect();
        counts.partition_point(|&count| fits(count))
    }
}

/// Groups whose living objects were written elsewhere, as far as possible: they must be looked at again.
pub(crate) type RewrittenGroups = Vec<StripeId>;

impl<'a> RewriteQueue<'a> {
    pub(crate) fn new(stripes: &'a Stripes, packer: &'a Packer, options: &'a PackOptions) -> Self {
        let processors = Processors::new(stripes.runtime().clone());
        Self { stripes, packer, options, processors, gathered: BTreeMap::new() }
    }

    /// Adds the living objects of a group of this profile, at least one. Writes a group whenever one is full.
    ///
    /// # Errors
    /// When the metadata store fails, or a group cannot be written.
    pub(crate) async fn add(
        &mut self,
        id: StripeId,
        profile: &str,
        live: Vec<Candidate>,
    ) -> Result<RewrittenGroups, StripeError> {
        let mut by_class: BTreeMap<StorageClass, Vec<Candidate>> = BTreeMap::new();
        live.into_iter().for_each(|candidate| by_class.entry(candidate.class).or_default().push(candidate));
        let mut done = Vec::new();
        for (class, live) in by_class {
            let key = (bucket_of(&live), profile.to_owned(), class);
            done.extend(self.add_of_class(id, key, live).await?);
        }
        Ok(done)
    }

    /// Adds a group whose dead ranges may take other objects. If its objects are of several classes, they are
    /// separated and rewritten instead.
    ///
    /// # Errors
    /// Like [`RewriteQueue::add`].
    pub(crate) async fn add_refillable(
        &mut self,
        id: StripeId,
        inspection: Box<Inspection>,
    ) -> Result<RewrittenGroups, StripeError> {
        let profile = inspection.record.profile.clone();
        let class = inspection.live[0].class;
        if inspection.live.iter().any(|candidate| candidate.class != class) {
            return self.add(id, &profile, inspection.live).await;
        }
        let key = (bucket_of(&inspection.live), profile, class);
        let most = self.longest_partition(&key.0).await?;
        let mut gathered = self.gathered.remove(&key).unwrap_or_default();
        gathered.most = most;
        gathered.refillable.push((id, inspection));
        let is_full = gathered.refillable.len() == MOST_REFILLABLE;
        self.gathered.insert(key.clone(), gathered);
        let mut done = RewrittenGroups::new();
        if is_full {
            self.refill_kind(&key, &mut done).await?;
        }
        while let Some(key) = to_make_room(&self.gathered) {
            self.refill_kind(&key, &mut done).await?;
        }
        Ok(done)
    }

    async fn refill_kind(&mut self, key: &GroupKey, done: &mut RewrittenGroups) -> Result<(), StripeError> {
        let mut gathered = self.gathered.remove(key).unwrap_or_default();
        self.refill(&mut gathered, done).await?;
        self.gathered.insert(key.clone(), gathered);
        Ok(())
    }

    /// Writes the gathered objects into the dead ranges of groups, and the living objects of the emptiest groups into
    /// the others. Objects that do not fit stay gathered, with those of groups that cannot be refilled.
    async fn refill(
        &mut self,
        gathered: &mut RewriteBatch,
        done: &mut RewrittenGroups,
    ) -> Result<(), StripeError> {
        gathered.refillable.sort_by(|(_, a), (_, b)| a.found.dead_share().total_cmp(&b.found.dead_share()));
        loop {
            if gathered.live.is_empty()
                && let Some((id, inspection)) = gathered.refillable.pop()
            {
                gathered.add(id, inspection.live);
            }
            if gathered.refillable.is_empty() {
                return Ok(());
            }
            let (id, inspection) = gathered.refillable.remove(0);
            let pace = Pacer::new(self.stripes, &self.processors, self.options);
            let refilled =
                refill(self.stripes, id, &inspection, std::mem::take(&mut gathered.live), pace).await?;
            self.processors = Processors::new(self.stripes.runtime().clone());
            gathered.live = refilled.remaining;
            match refilled.partitions {
                0 => gathered.add(id, inspection.live),
                _ => done.push(id),
            }
            if gathered.live.is_empty() {
                done.append(&mut gathered.groups);
            }
        }
    }

    async fn longest_partition(&self, bucket: &str) -> Result<u32, StripeError> {
        let most = longest_partition(self.stripes, bucket, self.options.partition_len).await?;
        Ok(within_memory(self.stripes, most))
    }

    async fn add_of_class(
        &mut self,
        id: StripeId,
        key: GroupKey,
        mut live: Vec<Candidate>,
    ) -> Result<RewrittenGroups, StripeError> {
        let (profile, most) = (&*key.1, self.longest_partition(&key.0).await?);
        let k = self.stripes.code(&self.stripes.profiles().parse(profile)?)?.k();
        let mut gathered = self.gathered.remove(&key).unwrap_or_default();
        let mut done = Vec::new();
        loop {
            gathered.most = most;
            let fitting = gathered.fitting(&live, k);
            // An object that is longer than a partition may be now does not fit into an empty group either.
            if fitting == live.len() || fitting == 0 && gathered.live.is_empty() {
                break;
            }
            gathered.live.extend(live.drain(..fitting));
            done.extend(self.write(profile, std::mem::take(&mut gathered)).await?);
        }
        gathered.add(id, live);
        self.gathered.insert(key, gathered);
        Ok(done)
    }

    /// Writes everything that is still gathered.
    ///
    /// # Errors
    /// Like [`RewriteQueue::add`].
    pub(crate) async fn finish(&mut self) -> Result<RewrittenGroups, StripeError> {
        let mut done = Vec::new();
        while let Some(((_, profile, _), gathered)) = self.gathered.pop_first() {
            done.extend(self.write(&profile, gathered).await?);
        }
        Ok(done)
    }

    async fn write(
        &mut self,
        profile: &str,
        mut gathered: RewriteBatch,
    ) -> Result<RewrittenGroups, StripeError> {
        let mut done = RewrittenGroups::new();
        self.refill(&mut gathered, &mut done).await?;
        let RewriteBatch { most, groups, mut live, .. } = gathered;
        if live.is_empty() {
            return Ok(done);
        }
        live.sort_by(|a, b| a.key.cmp(&b.key));
        let profile = self.stripes.profiles().parse(profile)?;
        // Objects that do not fit are rewritten in the next pass.
        let len = snug_partition(&live, self.stripes.code(&profile)?.k()).min(most);
        let pace = Pacer::new(self.stripes, &self.processors, self.options);
        let packed = pack_group(self.stripes, self.packer, &profile, len, live, pace).await;
        self.processors = Processors::new(self.stripes.runtime().clone());
        match packed {
            // Sites may be away or full. Groups in which nothing lives are still released.
            Ok(_) | Err(StripeError::TooFewSites { .. } | StripeError::NoSpace(_)) => {
                done.extend(groups);
                Ok(done)
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns the kind with the most objects in refillable groups, if too many groups or objects are kept.
fn to_make_room(gathered: &BTreeMap<GroupKey, RewriteBatch>) -> Option<GroupKey> {
    let groups: usize = gathered.values().map(|batch| batch.refillable.len()).sum();
    let objects: usize = gathered.values().map(RewriteBatch::kept_objects).sum();
    let is_full = groups > MOST_KEPT || objects > MOST_KEPT_OBJECTS;
    let most = gathered.iter().filter(|_| is_full).max_by_key(|(_, batch)| batch.kept_objects());
    most.map(|(key, _)| key.clone())
}

/// Returns the bucket of the objects: a group belongs to one bucket.
fn bucket_of(live: &[Candidate]) -> String {
    let named = live.first().and_then(|candidate| keys::bucket_of(&candidate.key));
    named.unwrap_or_default().to_owned()
}

/// Returns the number of partitions of `len` bytes that objects fill in this order.
fn partitions<'a>(objects: impl Iterator<Item = &'a Candidate>, len: usize) -> usize {
    let (mut partitions, mut end) = (1, FOOTER);
    for room in objects.map(Candidate::room) {
        if end + room > len {
            (partitions, end) = (partitions + 1, FOOTER);
        }
        end += room;
    }
    partitions
}

/// Returns the length of the shortest partitions, in steps of 4 KiB, with which one group holds all `candidates` in
/// their order.
fn snug_partition(candidates: &[Candidate], k: usize) -> u32 {
    const STEP: usize = 4 << 10;
    let fits = |len: usize| partitions(candidates.iter(), len) <= k;
    let rooms = || candidates.iter().map(Candidate::room);
    let least = (rooms().sum::<usize>().div_ceil(k)).max(rooms().max().unwrap_or(0)) + FOOTER;
    let most = rooms().sum::<usize>() + FOOTER;
    let steps: Vec<usize> = (least.div_ceil(STEP)..=most.div_ceil(STEP)).collect();
    let first = steps.partition_point(|&step| !fits(step * STEP));
    steps.get(first).map_or(most, |step| step * STEP) as u32
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use striate_meta::records::{Extent, Stripe};
    use striate_meta::{Revision, Row};
    use striate_stripe::partition::PartitionEntry;

    use super::*;
    use crate::packing::repacking::Liveness;

    /// A refillable group with this many objects, all of them dead.
    fn refillable(objects: usize) -> (StripeId, Box<Inspection>) {
        let row = Row { key: Bytes::new(), value: Bytes::new(), version: Revision(0) };
        let inspection = Inspection {
            mark: row.clone(),
            row,
            record: Stripe::default(),
            live: Vec::new(),
            dead: vec![(0, PartitionEntry { key: Bytes::new(), offset: 0, len: 1_000, crc32c: 0 }); objects],
            found: Liveness::default(),
        };
        (StripeId::new(1, 1), Box::new(inspection))
    }

    #[test]
    fn the_kind_with_the_most_objects_makes_room_when_too_many_objects_or_groups_are_kept() {
        let kind = |bucket: &str| (bucket.to_owned(), "rs(4,2)".to_owned(), StorageClass::Standard);
        let mut gathered: BTreeMap<GroupKey, RewriteBatch> = BTreeMap::new();
        let mut keep = |bucket: &str, objects: usize| {
            gathered.entry(kind(bucket)).or_default().refillable.push(refillable(objects));
            to_make_room(&gathered)
        };
        assert_eq!(keep("small", 1), None);
        assert_eq!(keep("large", MOST_KEPT_OBJECTS - 2), None);
        assert_eq!(keep("small", 1), None);
        assert_eq!(keep("small", 1), Some(kind("large")));
        let mut gathered = BTreeMap::from([(kind("one"), RewriteBatch::default())]);
        for _ in 0..MOST_KEPT {
            assert_eq!(to_make_room(&gathered), None);
            gathered.entry(kind("one")).or_default().refillable.push(refillable(1));
        }
        gathered.entry(kind("other")).or_default().refillable.push(refillable(1));
        assert_eq!(to_make_room(&gathered), Some(kind("one")));
    }

    #[test]
    fn snug_partitions_take_everything_and_no_shorter_ones_do() {
        let candidate = |number: usize| Candidate {
            key: format!("o/bucket\0object{number:04}").into(),
            stored: Extent { len: 1_000 + (number as u32 * 7_919) % 30_000, ..Extent::default() }.into(),
            class: StorageClass::Standard,
        };
        for count in [1, 2, 3, 4, 5, 7, 40, 333] {
            let candidates: Vec<Candidate> = (0..count).map(candidate).collect();
            let room: usize = candidates.iter().map(Candidate::room).sum();
            let len = snug_partition(&candidates, 4) as usize;
            let largest = candidates.iter().map(Candidate::room).max().unwrap();
            assert!(
                len >= room / 4 && len <= room.div_ceil(4) + largest + (8 << 10),
                "{count}: {len} of {room}"
            );
            assert_eq!(len % 4_096, 0);
        }
        assert_eq!(bucket_of(&[candidate(3)]), "bucket");
    }
}
