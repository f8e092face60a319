//! Packing: rewrites small settled objects, in key order, into shared partitions (Hu et al., SoCC'17). Objects of
//! different storage classes never share a partition, so that each partition belongs to one class.
//!
//! A coding group is written and its record committed first. Then rows are switched to it in batches, each row only
//! if it is unchanged since it was read. A client that overwrites or deletes an object meanwhile wins: the entry is
//! then dead from the start, and the mark that the record is created with leads the repacker to it
//! ([`crate::packing::repacking`]). What rows named before becomes garbage in the transaction that switches them.
//! design.md §10.15 names the protocol's steps P0 to P5.
//!
//! This module writes and names groups; [`crate::packing::walk`] finds the objects.

pub(crate) mod figures;
pub(crate) mod journal;
pub(crate) mod pace;
pub(crate) mod refilling;
pub mod repacking;
pub(crate) mod rewriting;
pub mod run;
pub mod service;
pub mod setting;
pub(crate) mod switching;
pub(crate) mod turn;
pub mod unpacking;
pub(crate) mod walk;

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use striate_core::packing::PARTITION_LEN;
use striate_core::{Profile, StorageClass, StripeId};
use striate_meta::Row;
use striate_meta::records::{Extent, Object, object::Body};
use striate_stripe::{CodingGroup, GroupWriter, Packer, Span, StoredBytes, StripeError, Stripes};

use crate::packing::pace::Pacer;
use crate::packing::switching::{PackedObject, TargetGroup, switch};

/// Maximum number of objects read together, and their bytes. More would hardly be read faster, and other requests
/// would wait longer.
const READ_TOGETHER: usize = 2;
pub(crate) const READ_BYTES: usize = 1 << 20;
/// Bytes that an object takes in a partition besides its data and its key.
const OVERHEAD: usize = 24;

/// What is packed, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PackOptions {
    /// Maximum size of packed objects, in bytes.
    pub object_max: u64,
    /// Maximum size of packed cold objects whose own stripes are too short to be sealed, in bytes.
    pub cold_object_max: u64,
    /// Time without changes after which an object has settled.
    pub settled_after: Duration,
    /// Time after which settled objects that do not fill a group are packed into smaller partitions.
    pub patience: Duration,
    /// Length of a partition in bytes, as far as the byte budget allows.
    pub partition_len: u32,
    /// Minimum length of a partition in bytes: objects that would not fill a group of such partitions stay as they
    /// are.
    pub smallest_partition: u32,
    /// Share of a group's bytes that may be dead before its living objects are rewritten.
    pub dead_share: f64,
    /// Maximum share of the time spent on groups, above 0; the rest is pauses.
    pub pace: f64,
    /// Whether a group waits while requests wait at a site, and takes only spare processor time.
    pub yields: bool,
}

impl Default for PackOptions {
    /// Packs objects up to 256 KiB after an hour, and cold ones as far as they fit the smallest partition. Partitions
    /// have 32 MiB, and at least 1 MiB; the patience is a day, a quarter may be dead, and packing takes half of the
    /// time.
    fn default() -> Self {
        Self {
            object_max: 256 << 10,
            cold_object_max: 15 << 16,
            settled_after: Duration::from_secs(3_600),
            patience: Duration::from_secs(24 * 3_600),
            partition_len: PARTITION_LEN,
            smallest_partition: 1 << 20,
            dead_share: 0.25,
            pace: 0.5,
            yields: true,
        }
    }
}

/// Result of packing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PackReport {
    /// Groups written.
    pub groups: u64,
    /// Objects whose rows now name the groups.
    pub objects: u64,
    /// Bytes of the packed objects.
    pub bytes: u64,
    /// Bytes of the groups' partitions.
    pub partition_bytes: u64,
    /// Objects that were written and then changed before their rows were switched.
    pub overtaken: u64,
    /// Objects that could not be read, or do not match their rows.
    pub unreadable: u64,
    /// Microseconds spent switching rows.
    pub switching_us: u64,
}

impl PackReport {
    /// Adds another report.
    pub fn add(&mut self, other: Self) {
        self.groups += other.groups;
        self.objects += other.objects;
        self.bytes += other.bytes;
        self.partition_bytes += other.partition_bytes;
        self.overtaken += other.overtaken;
        self.unreadable += other.unreadable;
        self.switching_us += other.switching_us;
    }
}

/// Divisor: a group is given up if less than one in this many of its bytes can be read.
const LEAST_READ: usize = 2;

/// An object to be packed.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    /// Key of the object's row.
    pub(crate) key: Bytes,
    /// Current location of its bytes.
    pub(crate) stored: StoredBytes,
    /// Storage class: a group holds objects of one class only.
    pub(crate) class: StorageClass,
}

impl Candidate {
    /// Returns an upper bound of the bytes that the object takes in a partition.
    pub(crate) fn room(&self) -> usize {
        self.stored.len() as usize + self.key.len() + OVERHEAD
    }

    /// Returns the candidate for an object with one stripe of its own; `None` for other objects.
    pub(crate) fn of_row(row: &Row, object: &Object) -> Option<Self> {
        let Some(Body::Blocks(list)) = &object.body else { return None };
        let [block] = list.blocks.as_slice() else { return None };
        let stored = block.clone().into();
        Some(Self { key: row.key.clone(), stored, class: object.class() })
    }
}

/// Writes objects, in the order of their keys, into one group and switches their rows to it. Objects that do not fit
/// stay where they are.
///
/// # Errors
/// When the group cannot be written or named. It is then given up; rows that were switched stay switched.
pub(crate) async fn pack_group(
    stripes: &Stripes,
    packer: &Packer,
    profile: &Profile,
    partition_len: u32,
    candidates: Vec<Candidate>,
    mut pace: Pacer<'_>,
) -> Result<PackReport, StripeError> {
    let mut report = PackReport::default();
    let room: usize = candidates.iter().map(Candidate::room).sum();
    let expected = room.min(stripes.code(profile)?.k() * partition_len as usize);
    let largest = candidates.iter().map(Candidate::room).max().unwrap_or_default();
    let share = stripes.memory_for(partition_len as usize + READ_BYTES.max(largest)).await;
    pace.begin();
    let mut writer = packer.begin(profile, partition_len).await?;
    let text = writer.profile();
    let packed = match fill(stripes, &mut writer, candidates, &mut report, &mut pace).await {
        Ok(packed) => packed,
        Err(error) => return Err(given_up(writer.stop(), error).await),
    };
    // A group with only the little that could be read would stay half empty, since missing bytes do not count as
    // dead.
    let filled: usize = packed.iter().map(|packed| packed.candidate.room()).sum();
    if packed.is_empty() || filled < expected / LEAST_READ {
        writer.stop().give_up().await?;
        return Ok(report);
    }
    let group = commit_group(writer).await?;
    (report.groups, report.partition_bytes) = (1, group.partition_bytes());
    // Nothing of the group is in memory any more.
    drop(share);
    pace.rest().await;
    let before = report.objects;
    if let Err(error) = switch_rows(stripes, &group, &packed, &text, &mut report, &mut pace).await {
        return Err(given_up(group, error).await);
    }
    report.overtaken = packed.len() as u64 - (report.objects - before);
    group.settle(report.overtaken == 0).await?;
    pace.end().await;
    Ok(report)
}

/// Writes what is left of a group, and commits its record.
async fn commit_group(writer: GroupWriter<'_>) -> Result<CodingGroup<'_>, StripeError> {
    let mut group = match writer.finish().await {
        Ok(group) => group,
        Err((group, error)) => return Err(given_up(group, error).await),
    };
    match group.commit().await {
        Ok(()) => Ok(group),
        Err(error) => Err(given_up(group, error).await),
    }
}

/// Switches the rows of all packed objects to the group, batch by batch.
async fn switch_rows(
    stripes: &Stripes,
    group: &CodingGroup<'_>,
    packed: &[PackedObject],
    profile: &str,
    report: &mut PackReport,
    pace: &mut Pacer<'_>,
) -> Result<(), StripeError> {
    let mut rest = packed;
    while !rest.is_empty() {
        let began = stripes.runtime().now();
        let step = switch(stripes, &TargetGroup::Group(group), rest, profile).await?;
        report.objects += step.objects;
        report.bytes += step.bytes;
        rest = &rest[step.finished..];
        report.switching_us += (stripes.runtime().now() - began).as_micros() as u64;
        pace.rest().await;
    }
    Ok(())
}

/// Gives up a group because of `error` and returns `error`. If that fails too, returns the failure: the packer must
/// then be closed, so that the group's reservation ends and the collector decides.
async fn given_up(group: CodingGroup<'_>, error: StripeError) -> StripeError {
    let id = group.id();
    let Err(failure) = group.give_up().await else { return error };
    tracing::warn!(stripe = %id, %error, %failure, "a coding group that failed is left to the collector");
    failure
}

/// Reads objects and fills the group's partitions with them.
async fn fill(
    stripes: &Stripes,
    writer: &mut GroupWriter<'_>,
    candidates: Vec<Candidate>,
    report: &mut PackReport,
    pace: &mut Pacer<'_>,
) -> Result<Vec<PackedObject>, StripeError> {
    let mut packed = Vec::with_capacity(candidates.len());
    let mut partition = writer.partition();
    for batch in together(candidates) {
        let read = read(stripes, &batch).await;
        for (candidate, pieces) in batch.into_iter().zip(read) {
            let Some(pieces) = pieces else {
                report.unreadable += 1;
                continue;
            };
            if !partition.fits(&candidate.key, candidate.stored.len() as usize) {
                if partition.is_empty() {
                    // The object is larger than a partition.
                    continue;
                }
                writer.add(partition).await?;
                partition = writer.partition();
                if writer.partitions_left() == 0 {
                    return Ok(packed);
                }
            }
            let Some(entry) = partition.push(candidate.key.clone(), &pieces) else { continue };
            let extent = Extent {
                stripe: writer.id().to_bytes().to_vec().into(),
                index: writer.index(),
                offset: entry.offset,
                len: entry.len,
                crc32c: entry.crc32c,
                content_version: 0,
            };
            packed.push(PackedObject { candidate, extent });
        }
        pace.rest().await;
    }
    if !partition.is_empty() {
        writer.add(partition).await?;
    }
    Ok(packed)
}

/// Divides objects into batches that are read together.
pub(crate) fn together(candidates: Vec<Candidate>) -> Vec<Vec<Candidate>> {
    let (mut batches, mut bytes) = (vec![Vec::new()], 0);
    for candidate in candidates {
        let len = candidate.stored.len() as usize;
        let last = batches.last().map_or(0, Vec::len);
        if last > 0 && (last >= READ_TOGETHER || bytes + len > READ_BYTES) {
            batches.push(Vec::new());
            bytes = 0;
        }
        bytes += len;
        batches.last_mut().expect("there is one").push(candidate);
    }
    batches
}

/// Reads the bytes of objects; `None` for one that cannot be read because it was replaced, or that does not match its
/// row.
pub(crate) async fn read(stripes: &Stripes, candidates: &[Candidate]) -> Vec<Option<Vec<Bytes>>> {
    let spans: Vec<Span> = candidates.iter().map(|candidate| Span::whole(candidate.stored.clone())).collect();
    let mut found = vec![None; spans.len()];
    let hand_out = |position: usize, pieces: Vec<Bytes>| found[position] = Some(pieces);
    if let Err(error) = stripes.read_ahead(&spans, hand_out).await {
        tracing::debug!(%error, "some objects are not packed now");
    }
    for (candidate, pieces) in candidates.iter().zip(&mut found) {
        let crc = |pieces: &Vec<Bytes>| {
            pieces.iter().fold(0, |crc, piece| striate_codec::crc32c_append(crc, piece))
        };
        if pieces.as_ref().is_some_and(|pieces| Some(crc(pieces)) != candidate.stored.crc32c()) {
            let key = String::from_utf8_lossy(&candidate.key);
            tracing::warn!(%key, "an object's bytes do not match its row; it is not packed");
            *pieces = None;
        }
    }
    found
}

/// Returns the extent that a row names in a stripe, if it does, with the object's storage class.
pub(crate) fn extent_in(row: &Row, stripe: StripeId) -> Result<Option<(Extent, StorageClass)>, StripeError> {
    let object: Object = row.record()?;
    let class = object.class();
    match object.body {
        Some(Body::Extent(extent)) if extent.stripe == stripe.to_bytes()[..] => Ok(Some((extent, class))),
        _ => Ok(None),
    }
}
