//! Changing where a stripe's chunks are: what a repair and a move have in common (design.md §10.4).
//!
//! A new generation is taken from the stripe record, durably, before chunks are written under it, together with an entry
//! that says where they will be ([`crate::write::entry`]); then the whole record is compared and swapped, which closes the entry,
//! together with the reverse index, the debt and garbage rows for what was replaced. A swap that loses reads the record
//! again: while the entry is there the files stay good, and it goes on if the chunks are still where they were and the
//! rule for their places still holds. Whoever gives up gives up only chunks of its own generation, so two executors cannot
//! take a live chunk from each other. Every step may be the last one before a crash: the entry is then cancelled.
//!
//! Until record format 2 is in force there are no entries: any other change of the record makes a swap lose, and a crash
//! leaves chunks that nothing names.

mod chunks;
mod rule;
mod swap;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use striate_codec::Code;
use striate_core::{ChunkId, Generation, Profile, RackId, SiteId, StripeId};
use striate_meta::records::{Copy, Entry, GarbageChunk, Place, Stripe};
use striate_meta::{Commit, Row, Transaction, keys, records};
use striate_site::{Priority, SiteError};

use crate::error::StripeError;
use crate::table::{OpenedStripe, file_of, gone};
use crate::write::entry::{cancel, cancel_in_background, put_record};
use crate::write::release::add_garbage;
use crate::write::wide::{Links, do_without_parities};
use crate::write::writes::Writes;

pub(in crate::write) use chunks::FileAt;
pub use swap::{Debt, pay_debt};

/// The record format that has entries.
const ENTRIES_SINCE: u32 = 2;
/// So often a swap is tried that loses against other changes of the record.
const ATTEMPTS: usize = 8;

/// One stripe whose record is being changed.
pub struct StripeChange<'a> {
    writes: &'a Writes,
    /// The stripe.
    pub id: StripeId,
    /// Its record as it will be.
    pub record: Stripe,
    /// Its code.
    pub code: Code,
    profile: Profile,
    row: Row,
    priority: Priority,
    /// The racks of sites of the record that this process does not know, or not yet.
    racks_elsewhere: BTreeMap<SiteId, RackId>,
    /// Chunks that a site may have stored although it did not say so.
    pub strays: Vec<GarbageChunk>,
    /// The generation of the entry that is open, or may be.
    entry: Option<u32>,
    /// An entry was opened: what this change wrote is in it, named, or garbage.
    is_entered: bool,
    /// The wide stripes that its chunks are members of.
    links: Links,
    /// Its wide stripe's record is changed in the same transaction, and says where its chunks are to be: no links are looked up.
    is_beside_wide: bool,
    /// So many chunks are made at the same time.
    together: usize,
}

impl Drop for StripeChange<'_> {
    /// An entry that is still open, since its owner was cancelled or does not know what became of its commit, is cancelled.
    fn drop(&mut self) {
        if let Some(generation) = self.entry.take() {
            cancel_in_background(self.writes, self.id, generation);
        }
    }
}

impl<'a> StripeChange<'a> {
    /// Of a stripe whose record was just read.
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

    /// Of the stripe of a member whose wide stripe has a change of its own, which closes together with this one
    /// ([`StripeChange::add_swap`]): that one's record has the copies, and is judged by the wide stripe's rule.
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
        let mut this = Self {
            writes,
            id,
            record,
            code,
            profile,
            row,
            priority,
            racks_elsewhere: BTreeMap::new(),
            strays: Vec::new(),
            entry: None,
            is_entered: false,
            links: Links::default(),
            is_beside_wide,
            together: 1,
        };
        this.learn_links().await?;
        this.learn_racks().await?;
        Ok(this)
    }

    /// Looks up the wide stripes of its chunks, until their records and this one's agree.
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
            // A change of both came in between.
            let row = table.meta().get(&keys::stripe(self.id)).await?;
            let row = row.ok_or_else(|| gone(self.id))?;
            self.record = row.record()?;
            self.row = row;
        }
        Err(self.links.disagreement(self.id))
    }

    /// Looks up the racks of sites that have, or may have, a chunk and that this process does not know: one that has just joined
    /// counts for the rule too. So does a retired one until its chunk has another place, or the chunk's group could leave its racks.
    async fn learn_racks(&mut self) -> Result<(), StripeError> {
        let shared = &self.writes.shared;
        let locations = self.record.locations.iter().map(|at| at.site);
        let places = self.record.entries.iter().flat_map(|entry| &entry.places).map(|place| place.site);
        let own = locations.chain(places).filter(|&site| site != 0).map(SiteId);
        let unknown: BTreeSet<SiteId> = own
            .chain(self.links.sites())
            .filter(|site| shared.sites.get(*site).is_none() && !self.racks_elsewhere.contains_key(site))
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let keys: Vec<Bytes> = unknown.iter().map(|&site| keys::site(site)).collect();
        for row in shared.table.meta().get_many(&keys).await?.into_iter().flatten() {
            let site: records::Site = row.record()?;
            self.racks_elsewhere.insert(SiteId(site.id), RackId(site.rack));
        }
        Ok(())
    }

    /// The full name of a chunk as the record has it.
    pub fn chunk(&self, index: usize) -> ChunkId {
        file_of(self.id, &self.record, index)
    }

    /// Takes a new generation, durably, and opens an entry: chunks of this generation will be written to `places`, as
    /// (chunk index, site), and nowhere else. `None` when somebody else changed the record.
    ///
    /// # Errors
    /// When the metadata store fails. The entry may be there then; it is cancelled when this change is dropped.
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
            // Before the commit, whose outcome may stay unknown.
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

    /// A transaction that requires the record as it was read, or as the new generation left it.
    pub fn unchanged(&self) -> Transaction {
        let mut tx = self.writes.shared.table.transaction();
        tx.require_unchanged(keys::stripe(self.id), Some(&self.row));
        tx
    }

    /// Takes note that so many chunks will be made at the same time: links that they share give each its part.
    pub(in crate::write) fn make_together(&mut self, chunks: usize) {
        self.together = chunks;
    }

    /// Takes note that the entry is closed, by a transaction that this change has not made.
    pub(in crate::write) fn note_closed(&mut self) {
        self.entry = None;
    }

    /// Takes note of a write that failed: the chunk may be there, unless the site said that it has not taken it.
    pub fn note_refusal(&mut self, index: usize, site: SiteId, generation: Generation, error: &SiteError) {
        tracing::warn!(stripe = %self.id, %site, %error, "a chunk could not be written to its new place");
        self.note_stray(index, site, generation, error);
    }

    /// The same where it is tried in another way.
    pub fn note_stray(&mut self, index: usize, site: SiteId, generation: Generation, error: &SiteError) {
        if !matches!(error, SiteError::NoSpace | SiteError::Busy | SiteError::BadRequest(_)) {
            self.strays.push(GarbageChunk::new(index, site, generation));
        }
    }

    /// Names a written chunk in the record; answers what was named before.
    pub fn replace(&mut self, index: usize, site: SiteId, generation: Generation) -> Option<GarbageChunk> {
        let location = &mut self.record.locations[index];
        let replaced = location.to_garbage(index);
        (location.site, location.generation) = (site.0, generation.0);
        (replaced.site != 0).then_some(replaced)
    }

    /// Has the stripe do without its own parities; answers the files of those that it had. Its wide stripes must protect all its data chunks.
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
        let Some(generation) = self.entry.take() else { return };
        match cancel(self.writes, self.id, generation).await {
            Ok(Some(row)) => self.row = row,
            Ok(None) => {}
            Err(_) => cancel_in_background(self.writes, self.id, generation),
        }
    }

    /// Makes chunks of this change's own generation garbage: nobody else could name them, and it will not. Should that
    /// fail, an entry is cancelled later; without one they are orphans.
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
