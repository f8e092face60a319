//! Changes where a stripe's chunks are: the common part of repairs and moves (design.md §10.4).
//!
//! First, a new generation is taken from the stripe record, durably, with an entry that says where chunks of that
//! generation will be ([`crate::write::entry`]). Chunks are written only then. Finally the whole record is compared
//! and swapped, which closes the entry, together with the reverse index, the debt, and garbage rows for the replaced
//! chunks. A swap that loses reads the record again. While the entry exists the files stay good, and the change
//! resumes if the chunks are still where they were and their placement rule still holds. A change that gives up
//! removes only chunks of its own generation, so two executors cannot remove a live chunk from each other. If a crash
//! follows any step, the entry is cancelled.
//!
//! Before record format 2 is in force there are no entries: any other change of the record makes a swap lose, and a
//! crash leaves chunks that nothing names.

mod chunks;
mod rule;
mod swap;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use striate_codec::Code;
use striate_core::{ChunkId, Generation, Profile, RackId, SiteId, StripeId};
use striate_meta::records::{Copy, Entry, GarbageChunk, Place, Stripe};
use striate_meta::{Commit, Row, Transaction, keys, records};
use striate_plan::LeavingRacks;
use striate_site::{Priority, SiteError};

use crate::error::StripeError;
use crate::table::{OpenedStripe, file_of, gone};
use crate::write::entry::{cancel, cancel_in_background, put_record};
use crate::write::release::add_garbage;
use crate::write::wide::{Links, do_without_parities};
use crate::write::writes::Writes;

pub(in crate::write) use chunks::LocatedFile;
pub use swap::{DebtEffect, pay_debt};

/// First record format with entries.
const ENTRIES_SINCE: u32 = 2;
/// Attempts of a swap while other changes of the record win.
const ATTEMPTS: usize = 8;

/// A stripe whose record is being changed.
pub struct StripeChange<'a> {
    writes: &'a Writes,
    /// Name of the stripe.
    pub id: StripeId,
    /// Record as it will be after the change.
    pub record: Stripe,
    /// Code of the stripe.
    pub code: Code,
    profile: Profile,
    row: Row,
    priority: Priority,
    /// Racks of sites in the record that this process does not know, or not yet.
    unknown_site_racks: BTreeMap<SiteId, RackId>,
    /// Racks that chunks may leave.
    leaving: LeavingRacks,
    /// Chunks that a site may have stored although it did not confirm it.
    pub strays: Vec<GarbageChunk>,
    /// Generation of the entry that is open, or may be.
    entry: Option<u32>,
    /// True once an entry was opened: files of this change are then in it, named, or garbage.
    is_entered: bool,
    /// Wide stripes that its chunks are members of.
    links: Links,
    /// True if the same transaction changes its wide stripe's record, which then governs the places: no links are
    /// looked up.
    is_beside_wide: bool,
    /// Number of chunks made at the same time.
    together: usize,
}

impl Drop for StripeChange<'_> {
    /// Cancels an entry that is still open, because its owner was cancelled or does not know the outcome of its
    /// commit.
    fn drop(&mut self) {
        if let Some(generation) = self.entry.take() {
            cancel_in_background(self.writes, self.id, generation);
        }
    }
}

impl<'a> StripeChange<'a> {
    /// Begins a change of a stripe whose record was just read.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(crate) async fn new(
        writes: &'a Writes,
        stripe: OpenedStripe,
        priority: Priority,
    ) -> Result<Self, StripeError> {
        Self::linked(writes, stripe, priority, false).await
    }

    /// Begins a change of a member's stripe whose wide stripe has a change of its own; both close together
    /// ([`StripeChange::add_swap`]). The wide stripe's record has the copies, and its rule decides.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(in crate::write) async fn beside_wide(
        writes: &'a Writes,
        stripe: OpenedStripe,
        priority: Priority,
    ) -> Result<Self, StripeError> {
        Self::linked(writes, stripe, priority, true).await
    }

    async fn linked(
        writes: &'a Writes,
        stripe: OpenedStripe,
        priority: Priority,
        is_beside_wide: bool,
    ) -> Result<Self, StripeError> {
        let OpenedStripe { id, row, record, profile, code } = stripe;
        let mut change = Self {
            writes,
            id,
            record,
            code,
            profile,
            row,
            priority,
            unknown_site_racks: BTreeMap::new(),
            leaving: LeavingRacks::default(),
            strays: Vec::new(),
            entry: None,
            is_entered: false,
            links: Links::default(),
            is_beside_wide,
            together: 1,
        };
        change.learn_links().await?;
        change.learn_racks().await?;
        Ok(change)
    }

    /// Looks up the wide stripes of the chunks, until their records agree with this one.
    async fn learn_links(&mut self) -> Result<(), StripeError> {
        let table = &self.writes.shared.table;
        if self.is_beside_wide {
            return Ok(());
        }
        for _ in 0..ATTEMPTS {
            let all: Vec<usize> = (0..self.record.locations.len()).collect();
            self.links = Links::find(table, &self.record, &all).await?;
            if self.links.agree(self.id, &self.record) {
                return Ok(());
            }
            // Another change of both records came in between.
            let row = table.meta().get(&keys::stripe(self.id)).await?;
            let row = row.ok_or_else(|| gone(self.id))?;
            self.record = row.record()?;
            self.row = row;
        }
        Err(self.links.disagreement(self.id))
    }

    /// Looks up the racks of sites that have, or may have, a chunk and that this process does not know. A site that
    /// has just joined counts for the rule too. So does a retired one until its chunk has a new place, or the chunk's
    /// group could leave its racks.
    async fn learn_racks(&mut self) -> Result<(), StripeError> {
        let shared = &self.writes.shared;
        let locations = self.record.locations.iter().map(|at| at.site);
        let places = self.record.entries.iter().flat_map(|entry| &entry.places).map(|place| place.site);
        let own_sites = locations.chain(places).filter(|&site| site != 0).map(SiteId);
        let unknown: BTreeSet<SiteId> = own_sites
            .chain(self.links.sites())
            .filter(|site| shared.sites.get(*site).is_none() && !self.unknown_site_racks.contains_key(site))
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let keys: Vec<Bytes> = unknown.iter().map(|&site| keys::site(site)).collect();
        for row in shared.table.meta().get_many(&keys).await?.into_iter().flatten() {
            let site: records::Site = row.record()?;
            self.unknown_site_racks.insert(SiteId(site.id), RackId(site.rack));
        }
        Ok(())
    }

    /// Returns the full name of a chunk as the record has it.
    pub fn chunk(&self, index: usize) -> ChunkId {
        file_of(self.id, &self.record, index)
    }

    /// Takes a new generation, durably, and opens an entry: chunks of this generation will be written to `places`, as
    /// (chunk index, site), and nowhere else. Returns `None` if the record was changed meanwhile.
    ///
    /// # Errors
    /// When the metadata store fails. The entry may exist then; it is cancelled when this change is dropped.
    pub async fn open(&mut self, places: &[(usize, SiteId)]) -> Result<Option<Generation>, StripeError> {
        let generation = Generation(self.record.generation).next();
        let before = self.record.clone();
        self.record.generation = generation.0;
        if self.writes.shared.options.formats.get().records >= ENTRIES_SINCE {
            let place = |&(index, site): &(usize, SiteId)| Place { index: index as u32, site: site.0 };
            self.record.entries.push(Entry {
                generation: generation.0,
                places: places.iter().map(place).collect(),
                lease: self.writes.writer_lease().0,
            });
            // Set before the commit, whose outcome may stay unknown.
            self.entry = Some(generation.0);
            self.is_entered = true;
        }
        let mut tx = self.unchanged();
        put_record(&mut tx, self.id, &self.record, &before);
        match self.writes.shared.table.meta().commit(tx).await? {
            Commit::Done(version) => {
                let value = records::encode(&self.record);
                self.row = Row { key: self.row.key.clone(), value, version };
                Ok(Some(generation))
            }
            Commit::Conflict { .. } => {
                self.entry = None;
                Ok(None)
            }
        }
    }

    /// Creates a transaction that requires the record as it was read, or as the new generation left it.
    pub fn unchanged(&self) -> Transaction {
        let mut tx = self.writes.shared.table.transaction();
        tx.require_unchanged(keys::stripe(self.id), Some(&self.row));
        tx
    }

    /// Records that `chunks` chunks will be made at the same time, and so share links.
    pub(in crate::write) fn make_together(&mut self, chunks: usize) {
        self.together = chunks;
    }

    /// Records that a transaction outside this change has closed the entry.
    pub(in crate::write) fn note_closed(&mut self) {
        self.entry = None;
    }

    /// Records a failed write: the chunk may exist, unless the site reported that it has not stored it.
    pub fn note_refusal(&mut self, index: usize, site: SiteId, generation: Generation, error: &SiteError) {
        tracing::warn!(stripe = %self.id, %site, %error, "a chunk could not be written to its new place");
        self.note_stray(index, site, generation, error);
    }

    /// As [`StripeChange::note_refusal`] without a warning, for a write that is retried in another way.
    pub fn note_stray(&mut self, index: usize, site: SiteId, generation: Generation, error: &SiteError) {
        if !matches!(error, SiteError::NoSpace | SiteError::Busy | SiteError::BadRequest(_)) {
            self.strays.push(GarbageChunk::new(index, site, generation));
        }
    }

    /// Names a written chunk in the record. Returns the chunk named before.
    pub fn replace(&mut self, index: usize, site: SiteId, generation: Generation) -> Option<GarbageChunk> {
        let location = &mut self.record.locations[index];
        let replaced = location.to_garbage(index);
        (location.site, location.generation) = (site.0, generation.0);
        (replaced.site != 0).then_some(replaced)
    }

    /// Drops the stripe's own parities from the record. Returns their files. Its wide stripes must protect all its
    /// data chunks.
    pub fn drop_parities(&mut self) -> Vec<GarbageChunk> {
        do_without_parities(&mut self.record, self.code.k())
    }

    /// Names a file that was written under `generation` as a copy of a chunk.
    pub fn add_copy(&mut self, index: usize, site: SiteId, generation: Generation) {
        let content_version = self.record.locations[index].content_version;
        let copy = Copy { index: index as u32, site: site.0, generation: generation.0, content_version };
        self.record.copies.push(copy);
    }

    async fn cancel_entry(&mut self) {
        let Some(generation) = self.entry else { return };
        let cancelled = cancel(self.writes, self.id, generation).await;
        // Not before: a change that is dropped meanwhile still has an entry to cancel.
        self.entry = None;
        match cancelled {
            Ok(Some(row)) => self.row = row,
            Ok(None) => {}
            Err(_) => cancel_in_background(self.writes, self.id, generation),
        }
    }

    /// Makes chunks of this change's own generation garbage: no other process can name them, and this one will not.
    /// If that fails, an entry is cancelled later; without one the chunks are orphans.
    pub async fn give_up(&mut self, written: &[(usize, SiteId)], generation: Generation) {
        if self.is_entered {
            return self.cancel_entry().await;
        }
        let mut chunks = self.strays.clone();
        chunks.extend(written.iter().map(|&(index, site)| GarbageChunk::new(index, site, generation)));
        if chunks.is_empty() {
            return;
        }
        let mut tx = self.writes.shared.table.transaction();
        add_garbage(&mut tx, self.id, chunks);
        if let Err(error) = self.writes.shared.table.meta().commit(tx).await {
            tracing::debug!(stripe = %self.id, %error, "chunks of a failed change were not collected; `striate verify` finds them");
        }
    }
}
