//! Writes a coding group: k partitions and their parities, one stripe that many objects will share.
//!
//! A group has a reservation of its own (*intent*), under the lease of the packing service. While the reservation
//! exists, rows may be switched to the group and no process releases it; once it is gone, the number of live entries
//! only falls. So the stripe's record is committed first, marked ([`keys::mark`]). The reservation ends when the
//! outcome of every switch is known ([`CodingGroup::settle`]), or when the group is given up
//! ([`CodingGroup::give_up`]), which fences the switches still in flight.
//!
//! Partitions arrive one by one and are written as they arrive, so that one partition is in memory, not the group. A
//! parity is made at its own site from the partitions at theirs. Its checksum follows from those of its terms
//! ([`SumChecksum`]), so that no other bytes can be stored.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use striate_codec::{Code, SumChecksum, crc32c};
use striate_core::{ChunkId, Layout, Profile, SiteId, StripeId};
use striate_meta::records::{GarbageChunk, Stripe};
use striate_meta::{Commit, MetaError, Precondition, Revision, Transaction, keys, records};
use striate_site::{Priority, SiteError};
use tokio::sync::OnceCell;

use super::assembly::Assembly;
use super::intent::{StripeName, Writer};
use super::placements::require_placement;
use super::put::{FIRST, WrittenChunks};
use super::release::add_garbage;
use super::submit::submit;
use super::waiting::WaitingPartitions;
use super::writes::Writes;
use crate::error::StripeError;
use crate::partition::PartitionBuilder;
use crate::table::holders;

/// Makes coding groups. One per packing service: its lease is separate from that of the process's puts, and ends with
/// the packer. The lease is granted with the first group.
pub struct Packer {
    writes: Writes,
    names: OnceCell<Writer>,
    waiting: WaitingPartitions,
}

/// A coding group whose chunks are being written.
pub struct GroupWriter<'a> {
    packer: &'a Packer,
    name: StripeName,
    profile: Profile,
    code: Code,
    partition_len: u32,
    sites: Vec<SiteId>,
    /// Replacements for sites that fail.
    spare: Vec<SiteId>,
    written: WrittenChunks,
    /// Checksum of each parity over the partitions so far.
    parities: Vec<SumChecksum>,
    next: usize,
    /// Bytes of the partitions so far, and of the objects in them.
    data_len: u64,
    objects: u64,
    object_bytes: u64,
}

/// A complete chunk with its checksums.
struct SealedChunk {
    payload: Bytes,
    crc32c: u32,
    granules: Arc<[u32]>,
}

impl SealedChunk {
    fn new(payload: Bytes, granule_len: usize) -> Self {
        let granules = payload.chunks(granule_len).map(crc32c).collect();
        Self { crc32c: crc32c(&payload), granules, payload }
    }
}

/// A coding group whose chunks are durable.
pub struct CodingGroup<'a> {
    packer: &'a Packer,
    name: StripeName,
    stripe: Stripe,
    strays: Vec<GarbageChunk>,
    /// Revision at which the marked record was committed.
    marked: Option<Revision>,
}

/// Outcome of a transaction that switches rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchOutcome {
    /// All rows name the group.
    Done,
    /// No row was switched: some row had changed.
    Conflict,
}

impl Packer {
    pub(crate) fn new(writes: Writes) -> Self {
        Self { writes, names: OnceCell::new(), waiting: WaitingPartitions::default() }
    }

    pub(super) fn writes(&self) -> &Writes {
        &self.writes
    }

    /// Returns the registration under the packer's own lease, opening it at first use.
    pub(super) async fn names(&self) -> Result<&Writer, StripeError> {
        let shared = &self.writes.shared;
        let open = || Writer::open_single(shared.runtime.clone(), shared.table.meta().clone());
        self.names.get_or_try_init(open).await
    }

    /// Records the partitions of a bucket that wait to be sealed, per site. New groups avoid their racks.
    pub fn partitions_wait(&self, bucket: &str, counts: HashMap<SiteId, usize>) {
        self.waiting.were_left(bucket, counts);
    }

    /// Forgets the waiting partitions of buckets that are gone.
    pub fn keep_buckets(&self, is_there: impl Fn(&str) -> bool) {
        self.waiting.keep(is_there);
    }

    /// Ends the lease. The collector takes over what is left.
    pub async fn close(self) {
        let Some(names) = self.names.get() else { return };
        let meta = self.writes.shared.table.meta();
        if let Err(error) = meta.revoke_lease(names.registered().lease).await {
            tracing::debug!(%error, "ending the lease of packing failed; it will expire");
        }
    }

    /// Reserves the name of a group and places for its chunks (P0).
    ///
    /// # Errors
    /// [`StripeError::TooFewSites`] when not every chunk has a site; also when the metadata store fails.
    pub async fn begin(&self, profile: &Profile, partition_len: u32) -> Result<GroupWriter<'_>, StripeError> {
        let profile = Profile { layout: Layout::Packed, ..*profile };
        let code = self.writes.shared.table.code(&profile)?;
        let mut sites = self.writes.place_group(&profile, &code, &self.waiting)?;
        if sites.len() < code.n() {
            return Err(StripeError::TooFewSites {
                available: sites.len(),
                needed: code.n(),
                reason: "objects are packed when every chunk has its site".to_owned(),
            });
        }
        let spare = sites.split_off(code.n());
        self.waiting.begin(&sites[..code.k()]);
        let name = self.names().await?.name_stripe().await?;
        let parities = vec![SumChecksum::new(partition_len.into()); code.n() - code.k()];
        let written = WrittenChunks::new(&vec![0; code.n()]);
        Ok(GroupWriter {
            packer: self,
            name,
            profile,
            code,
            partition_len,
            sites,
            spare,
            written,
            parities,
            next: 0,
            data_len: 0,
            objects: 0,
            object_bytes: 0,
        })
    }

    /// Submits a transaction, retrying until its outcome is known.
    pub(super) async fn submit(&self, tx: &Transaction) -> Result<Commit, MetaError> {
        let shared = &self.writes.shared;
        submit(&shared.runtime, shared.table.meta().as_ref(), tx).await
    }
}

impl<'a> GroupWriter<'a> {
    /// Name of the group's stripe.
    pub fn id(&self) -> StripeId {
        self.name.id
    }

    /// Profile of the group, as text.
    pub fn profile(&self) -> String {
        self.profile.to_string()
    }

    /// Number of partitions not yet added.
    pub fn partitions_left(&self) -> usize {
        self.code.k() - self.next
    }

    /// Index of the next partition.
    pub fn index(&self) -> u32 {
        self.next as u32
    }

    /// Creates an empty partition.
    pub fn partition(&self) -> PartitionBuilder {
        PartitionBuilder::new(self.partition_len)
    }

    /// Writes the next partition. Must not be called more than k times.
    ///
    /// # Errors
    /// When no site takes the chunk; give the group up then.
    pub async fn add(&mut self, partition: PartitionBuilder) -> Result<(), StripeError> {
        let index = self.next;
        let (objects, bytes) = partition.objects();
        (self.objects, self.object_bytes) = (self.objects + objects, self.object_bytes + bytes);
        let sealed = self.seal(index, partition).await;
        self.data_len += u64::from(self.partition_len);
        self.next += 1;
        self.write(index, sealed).await
    }

    /// Seals a partition and adds it to the parities' checksums. Runs off the event loop, because partitions are
    /// long.
    async fn seal(&mut self, index: usize, partition: PartitionBuilder) -> SealedChunk {
        let shared = &self.packer.writes.shared;
        let granule_len = shared.options.formats.get().granule_len();
        let (code, mut parities) = (self.code.clone(), std::mem::take(&mut self.parities));
        let seal = move || {
            let payload = partition.finish();
            for (row, parity) in parities.iter_mut().enumerate() {
                parity.add(code.coefficient(code.k() + row, index), &payload);
            }
            (SealedChunk::new(payload, granule_len), parities)
        };
        let (sealed, parities) = shared.runtime.run_blocking(seal).await;
        self.parities = parities;
        sealed
    }

    /// Makes the parities, which ends P1.
    ///
    /// # Errors
    /// Returns the group with the error when the chunks that sites took do not make it durable; give it up then.
    pub async fn finish(mut self) -> Result<CodingGroup<'a>, (CodingGroup<'a>, StripeError)> {
        while self.next < self.code.k() {
            let empty = self.partition();
            if let Err(error) = self.add(empty).await {
                return Err((self.stop(), error));
            }
        }
        for index in self.code.k()..self.code.n() {
            if let Err(error) = self.make_parity(index).await {
                return Err((self.stop(), error));
            }
        }
        if !self.written.locations.iter().all(|location| location.site != 0) {
            let error = self.too_few_sites();
            return Err((self.stop(), error));
        }
        Ok(self.stop())
    }

    /// Returns the group as far as it was written.
    pub fn stop(self) -> CodingGroup<'a> {
        let Self { packer, name, profile, partition_len, written, data_len, objects, object_bytes, .. } =
            self;
        let stripe = Stripe {
            profile: profile.to_string(),
            chunk_len: partition_len,
            locations: written.locations,
            generation: FIRST.0,
            len: data_len,
            packed_objects: objects,
            packed_bytes: object_bytes,
            ..Stripe::default()
        };
        CodingGroup { packer, name, stripe, strays: written.strays, marked: None }
    }

    /// Writes a chunk to its site, or to a spare one if that fails.
    async fn write(&mut self, index: usize, sealed: SealedChunk) -> Result<(), StripeError> {
        self.written.locations[index].crc32c = sealed.crc32c;
        let chunk = ChunkId { stripe: self.name.id, index: index as u8, generation: FIRST };
        let mut site = self.sites[index];
        loop {
            let write = (sealed.payload.clone(), sealed.granules.clone());
            match self.packer.writes.write_chunk(chunk, write, site, Priority::Background).await {
                Ok(()) => {
                    self.written.hold(index, site);
                    return Ok(());
                }
                Err(error) => self.written.fail(index, site, &error),
            }
            site = self.spare.pop().ok_or_else(|| self.too_few_sites())?;
        }
    }

    /// Lets a parity be made at its site; makes it here if that fails.
    async fn make_parity(&mut self, index: usize) -> Result<(), StripeError> {
        let k = self.code.k();
        self.written.locations[index].crc32c = self.parities[index - k].get();
        let terms: Vec<(u8, usize)> = (0..k)
            .map(|partition| (self.code.coefficient(index, partition), partition))
            .filter(|(coefficient, _)| *coefficient != 0)
            .collect();
        let site = self.sites[index];
        let record = Stripe {
            chunk_len: self.partition_len,
            locations: self.written.locations.clone(),
            ..Stripe::default()
        };
        let assembly = Assembly {
            writes: &self.packer.writes,
            stripe: self.name.id,
            record: &record,
            priority: Priority::Background,
            together: 1,
        };
        let outcome = assembly.make(index, FIRST, &assembly.tree(site, &terms, |_| 0.0)).await;
        let Err(error) = outcome else {
            self.written.hold(index, site);
            return Ok(());
        };
        tracing::debug!(stripe = %self.name.id, %site, %error, "a parity is not made at its site");
        let sum = assembly.sum_locally(&terms, self.partition_len).await;
        self.written.fail(index, site, &error);
        let payload = sum.map_err(|bad| self.lacks(&bad))?;
        let granule_len = self.packer.writes.shared.options.formats.get().granule_len();
        let seal = move || SealedChunk::new(payload, granule_len);
        let sealed = self.packer.writes.shared.runtime.run_blocking(seal).await;
        self.write(index, sealed).await
    }

    fn lacks(&mut self, bad: &[(usize, SiteError)]) -> StripeError {
        let reason = |(partition, error): &(usize, SiteError)| {
            format!("partition {partition} cannot be read back: {error}")
        };
        self.written.failures.extend(bad.iter().map(reason));
        self.too_few_sites()
    }

    fn too_few_sites(&self) -> StripeError {
        StripeError::TooFewSites {
            available: self.written.held.len(),
            needed: self.code.n(),
            reason: self.written.failures.join("; "),
        }
    }
}

impl CodingGroup<'_> {
    /// Name of the group's stripe.
    pub fn id(&self) -> StripeId {
        self.name.id
    }

    /// Bytes of the partitions.
    pub fn partition_bytes(&self) -> u64 {
        self.stripe.len
    }

    /// Commits the marked record: some entries may already be dead (P2).
    ///
    /// # Errors
    /// When the metadata store fails or the reservation is gone; give the group up then.
    pub async fn commit(&mut self) -> Result<(), StripeError> {
        let (id, stripe) = (self.name.id, &self.stripe);
        let placement = self.packer.writes.ensure_placement(&holders(stripe)).await?;
        let mut tx = self.packer.writes.shared.table.transaction();
        tx.require(Precondition::Exists(self.name.range.key()));
        require_placement(&mut tx, placement);
        tx.put(keys::stripe(id), records::encode(stripe));
        tx.put(keys::reverse(placement, id), Bytes::new());
        tx.put(keys::mark(id), Bytes::new());
        if !self.strays.is_empty() {
            add_garbage(&mut tx, id, self.strays.clone());
        }
        match self.packer.submit(&tx).await? {
            Commit::Done(revision) => {
                self.marked = Some(revision);
                Ok(())
            }
            Commit::Conflict { .. } => {
                self.packer.writes.forget_placement(placement);
                Err(super::put::fenced())
            }
        }
    }

    /// Submits a transaction that names extents of the group, requiring its reservation (P3).
    ///
    /// # Errors
    /// When the outcome stays unknown, or the reservation is gone; give the group up then.
    pub async fn switch(&self, mut tx: Transaction) -> Result<SwitchOutcome, StripeError> {
        let reservation_precondition = tx.preconditions.len();
        tx.require(Precondition::Exists(self.name.range.key()));
        match self.packer.submit(&tx).await? {
            Commit::Done(_) => Ok(SwitchOutcome::Done),
            Commit::Conflict { failed } if failed == reservation_precondition => Err(super::put::fenced()),
            Commit::Conflict { .. } => Ok(SwitchOutcome::Conflict),
        }
    }

    /// Ends the reservation once the outcome of every switch is known. If all entries live, the mark is removed too,
    /// unless something has died since (P4).
    ///
    /// # Errors
    /// When the metadata store fails; the collector then ends the reservation.
    pub async fn settle(self, all_live: bool) -> Result<(), StripeError> {
        let intent = self.name.range.key();
        if let Some(mark_revision) = self.marked.filter(|_| all_live) {
            let mark = keys::mark(self.name.id);
            let mut tx = self.packer.writes.shared.table.transaction();
            tx.require(Precondition::Version(mark.clone(), mark_revision))
                .delete(mark)
                .delete(intent.clone());
            if let Commit::Done(_) = self.packer.submit(&tx).await? {
                return Ok(());
            }
        }
        let mut tx = self.packer.writes.shared.table.transaction();
        tx.delete(intent);
        self.packer.submit(&tx).await?;
        Ok(())
    }

    /// Ends the reservation of a group that failed. Without a record its chunks become garbage; with one the repacker
    /// takes over (P5).
    ///
    /// # Errors
    /// When the metadata store fails; the collector then does this once the lease has ended.
    pub async fn give_up(self) -> Result<(), StripeError> {
        let (id, intent) = (self.name.id, self.name.range.key());
        let written = self.stripe.locations.iter().enumerate().filter(|(_, location)| location.site != 0);
        let written = written.map(|(index, location)| location.to_garbage(index));
        let chunks: Vec<GarbageChunk> = written.chain(self.strays.iter().cloned()).collect();
        let mut tx = self.packer.writes.shared.table.transaction();
        tx.require(Precondition::Absent(keys::stripe(id))).delete(intent.clone());
        if !chunks.is_empty() {
            add_garbage(&mut tx, id, chunks);
        }
        if let Commit::Done(_) = self.packer.submit(&tx).await? {
            return Ok(());
        }
        let mut tx = self.packer.writes.shared.table.transaction();
        tx.require(Precondition::Exists(keys::stripe(id))).delete(intent);
        self.packer.submit(&tx).await?;
        Ok(())
    }
}
