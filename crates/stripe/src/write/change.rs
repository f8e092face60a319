//! Changing where a stripe's chunks are: what a repair and a move have in common (design.md §10.4).
//!
//! A new generation is taken from the stripe record, durably, before chunks are written under it, together with an entry
//! that says where they will be ([`super::entry`]); then the whole record is compared and swapped, which closes the entry,
//! together with the reverse index, the debt and garbage rows for what was replaced. A swap that loses reads the record
//! again: while the entry is there the files stay good, and it goes on if the chunks are still where they were and the
//! rule for their places still holds. Whoever gives up gives up only chunks of its own generation, so two executors cannot
//! take a live chunk from each other. Every step may be the last one before a crash: the entry is then cancelled.
//!
//! Until record format 2 is in force there are no entries: any other change of the record makes a swap lose, and a crash
//! leaves chunks that nothing names.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;
use striate_codec::Code;
use striate_core::{ChunkId, Generation, Profile, RackId, SiteId, StripeId};
use striate_meta::records::{Copy, Entry, GarbageChunk, Place, Stripe};
use striate_meta::{Commit, Precondition, Revision, Row, Transaction, keys, records};
use striate_plan::{CombineTerm, CombineTree, PlacementRule};
use striate_site::{Priority, SiteError, Window, WriteRequest};

use super::assembly::{Assembly, Made};
use super::entry::{cancel, cancel_in_background, put_record, remove, unnamed_of};
use super::placements::require_placement;
use super::release::add_garbage;
use super::wide::{Links, do_without_parities, is_same_file};
use super::writes::Writes;
use crate::error::StripeError;
use crate::table::{OpenedStripe, file_of, gone, holders, len_of};
use crate::trees::{SLICE_LEN, combination, files_of};

/// The record format that has entries.
const ENTRIES_SINCE: u32 = 2;
/// So often a swap is tried that loses against other changes of the record.
const ATTEMPTS: usize = 8;

/// A file that takes part in a sum.
#[derive(Clone, Copy, Debug)]
pub(in crate::write) struct FileAt {
    pub(in crate::write) chunk: ChunkId,
    /// Length in bytes.
    pub(in crate::write) len: u32,
    pub(in crate::write) site: SiteId,
}

/// What a swap does to the stripe's debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Debt {
    /// It stays, or stays away.
    AsItIs,
    /// The stripe is whole, by a look that began when its debt had this revision, or when there was none: what was owed since is not paid.
    Paid(Option<Revision>),
    /// It is not.
    Owed,
}

/// Adds to `tx` what drops a stripe's debt, if that is as it was when somebody began to look at the stripe.
pub fn pay_debt(tx: &mut Transaction, id: StripeId, owed: Option<Revision>) {
    let key = keys::debt(id);
    match owed {
        None => drop(tx.require(Precondition::Absent(key))),
        Some(version) => drop(tx.require(Precondition::Version(key.clone(), version)).delete(key)),
    }
}

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

    /// The rack of a site, as far as that is known.
    pub fn rack_of(&self, site: SiteId) -> Option<RackId> {
        let known = self.writes.shared.sites.get(site).map(|site| site.rack());
        known.or_else(|| self.racks_elsewhere.get(&site).cloned())
    }

    /// Whether the rule for its chunks' places binds them. A stripe that has dropped its parities protects nothing, and no more does a dead
    /// one: where its chunks may be their wide stripes say. So two may come to one site, where each rack has few; parities come back only
    /// beside chunks that keep the rule.
    pub fn is_bound_by_rule(&self) -> bool {
        is_bound_by_rule(&self.record)
    }

    /// The rule for its chunks' places.
    pub fn rule(&self) -> PlacementRule {
        PlacementRule::new(&self.profile, &self.code, self.writes.shared.sites.rack_count())
    }

    /// The rack of each chunk, as far as its site is known: where it is, or was before it was lost. Behind these the racks
    /// where other changes that are under way put chunks, but for those with an index in `own`.
    pub fn racks(&self, own: &[usize]) -> Vec<Option<RackId>> {
        self.racks_in(&self.record, &self.expected_sites(own))
    }

    fn racks_in(&self, record: &Stripe, expected: &[SiteId]) -> Vec<Option<RackId>> {
        let locations = record.locations.iter().map(|at| SiteId(at.site));
        locations.chain(expected.iter().copied()).map(|site| self.rack_of(site)).collect()
    }

    /// Sites where other changes that are under way put chunks, but for those with an index in `own`.
    pub fn expected_sites(&self, own: &[usize]) -> Vec<SiteId> {
        let others = self.record.entries.iter().filter(|entry| Some(entry.generation) != self.entry);
        let places = others.flat_map(|entry| &entry.places);
        places
            .filter(|place| !own.contains(&(place.index as usize)))
            .map(|place| SiteId(place.site))
            .collect()
    }

    /// The place of each chunk, as far as its site is known, lost or not. Behind these those of chunks that other changes are putting
    /// somewhere.
    pub fn places(&self) -> Vec<Option<(SiteId, RackId)>> {
        let sites = self.record.locations.iter().map(|at| SiteId(at.site)).chain(self.expected_sites(&[]));
        sites.map(|site| Some((site, self.rack_of(site)?))).collect()
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

    /// Some bytes of a chunk from its site.
    pub(in crate::write) async fn read(
        &self,
        index: usize,
        offset: u32,
        len: u32,
    ) -> Result<Bytes, SiteError> {
        self.assembly().read(index, offset, len).await
    }

    /// The bytes of a whole chunk from its site.
    ///
    /// # Errors
    /// Those of the site; [`SiteError::Unavailable`] if it is not known, [`SiteError::Deadline`] if it does not answer in time.
    pub async fn read_chunk(&self, index: usize) -> Result<Bytes, SiteError> {
        self.assembly().read(index, 0, self.len_of(index)).await
    }

    /// Length of a chunk in bytes.
    pub fn len_of(&self, index: usize) -> u32 {
        len_of(&self.record, index)
    }

    /// Writes a chunk under a new generation.
    ///
    /// # Errors
    /// As [`StripeChange::read_chunk`]. The site may have the chunk then all the same: [`StripeChange::note_refusal`].
    pub async fn write_chunk(
        &self,
        index: usize,
        site: SiteId,
        generation: Generation,
        payload: Bytes,
    ) -> Result<(), SiteError> {
        let site = self.writes.shared.sites.required(site)?;
        let chunk = ChunkId { stripe: self.id, index: index as u8, generation };
        let request = WriteRequest { chunk, payload, granule_crcs: None, priority: self.priority };
        let deadline = self.writes.shared.options.write_deadline;
        let written = self.writes.shared.runtime.timeout(deadline, site.write(request)).await;
        written.unwrap_or(Err(SiteError::Deadline)).map(drop)
    }

    /// Who adds up what so that `site` gets the sum of these (coefficient, chunk index); `cost` says what asking the site
    /// of each chunk costs.
    pub fn combine_tree(
        &self,
        site: SiteId,
        terms: &[(u8, usize)],
        cost: impl Fn(usize) -> f64,
    ) -> CombineTree {
        self.assembly().tree(site, terms, cost)
    }

    /// Has the site at the root of a tree make a chunk under a new generation: the sum that the tree adds up.
    ///
    /// # Errors
    /// As [`StripeChange::write_chunk`]. [`SiteError::Missing`] and [`SiteError::Corrupt`] name the chunk of the sum that is to blame;
    /// [`SiteError::BadRequest`] where the sum has another checksum than the record says.
    pub async fn assemble_chunk(
        &self,
        index: usize,
        generation: Generation,
        tree: &CombineTree,
    ) -> Result<(), SiteError> {
        self.assembly().make(index, generation, tree).await
    }

    /// The sum of these (coefficient, chunk index), made here a slice after the other, so that no more than it is in memory.
    ///
    /// # Errors
    /// As [`StripeChange::read_chunk`], of the first chunk that cannot be read.
    pub async fn sum_here(&self, terms: &[(u8, usize)]) -> Result<Bytes, SiteError> {
        self.assembly().sum_here(terms).await
    }

    /// As [`StripeChange::combine_tree`], over the chunks of another stripe.
    pub fn tree_over(
        &self,
        of: &OpenedStripe,
        site: SiteId,
        terms: &[(u8, usize)],
        cost: impl Fn(usize) -> f64,
    ) -> CombineTree {
        Assembly { stripe: of.id, record: &of.record, ..self.assembly() }.tree(site, terms, cost)
    }

    /// As [`StripeChange::assemble_chunk`], of chunks of another stripe.
    ///
    /// # Errors
    /// As [`StripeChange::assemble_chunk`].
    pub async fn assemble_from(
        &self,
        of: &OpenedStripe,
        index: usize,
        generation: Generation,
        tree: &CombineTree,
    ) -> Result<(), SiteError> {
        let files = files_of(of.id, &of.record);
        self.assembly().make_as(self.made(index, generation), tree, &files).await
    }

    /// Has the site of a chunk make another generation of it: the same but for the windows. The record says what its checksum will be.
    pub(in crate::write) async fn amend(
        &self,
        index: usize,
        generation: Generation,
        old: FileAt,
        windows: Vec<Window>,
    ) -> Result<(), SiteError> {
        self.assembly().amend(self.made(index, generation), old, windows).await
    }

    /// A window that adds to a chunk at `site` the sum of these (coefficient, file) in these columns.
    pub(in crate::write) fn window(
        &self,
        site: SiteId,
        terms: &[(u8, FileAt)],
        columns: &Range<u32>,
    ) -> Window {
        let rack = |site: SiteId| self.rack_of(site).unwrap_or_else(|| RackId::of_unknown(site));
        let of = |(number, &(coefficient, file)): (usize, &(u8, FileAt))| CombineTerm {
            chunk: number,
            coefficient,
            site: file.site,
            rack: rack(file.site),
            cost: 0.0,
        };
        let numbered: Vec<CombineTerm> = terms.iter().enumerate().map(of).collect();
        let len = columns.end - columns.start;
        let tree = CombineTree::quickest(&numbered, site, &rack(site), len, SLICE_LEN);
        let files = |number: usize| (terms[number].1.chunk, terms[number].1.len);
        Window::Sum(combination(&tree, &files, columns, self.priority))
    }

    /// The file of a chunk as the record has it, and where it is.
    pub(in crate::write) fn file_at(&self, index: usize) -> FileAt {
        let site = SiteId(self.record.locations[index].site);
        FileAt { chunk: self.chunk(index), len: self.len_of(index), site }
    }

    fn made(&self, index: usize, generation: Generation) -> Made {
        let chunk = ChunkId { stripe: self.id, index: index as u8, generation };
        Made { chunk, crc32c: self.record.locations[index].crc32c, len: self.record.chunk_len }
    }

    /// Takes note that so many chunks will be made at the same time: links that they share give each its part.
    pub(in crate::write) fn make_together(&mut self, chunks: usize) {
        self.together = chunks;
    }

    /// Takes note that the entry is closed, by a transaction that this change has not made.
    pub(in crate::write) fn note_closed(&mut self) {
        self.entry = None;
    }

    fn assembly(&self) -> Assembly<'_> {
        let Self { writes, id, record, priority, together, .. } = self;
        Assembly { writes, stripe: *id, record, priority: *priority, together: *together }
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

    /// Compare-and-swap of the record, with the reverse index, the debt, and garbage rows for what was `replaced` and what
    /// sites may have stored without saying so; it closes the entry. `false` when somebody else changed the record, or
    /// where there is an entry: when somebody removed it, or changed what this change replaces, or left no room for it.
    ///
    /// # Errors
    /// When the metadata store fails: the record may have been swapped or not. [`StripeError::Busy`] when the records of its wide stripes
    /// keep changing.
    pub async fn swap(&mut self, replaced: Vec<GarbageChunk>, mut debt: Debt) -> Result<bool, StripeError> {
        for _ in 0..ATTEMPTS {
            if self.try_swap(&replaced, debt).await? {
                self.entry = None;
                return Ok(true);
            }
            if self.entry.is_none() || !self.rebase().await? {
                return Ok(false);
            }
            // What the others have done to the stripe's debt is theirs: the next look at the stripe decides.
            debt = if let Debt::Paid(_) = debt { Debt::AsItIs } else { debt };
        }
        Ok(false)
    }

    /// Adds to `tx`, which then requires the record as it was read last, what closes this change: the record, the reverse index, and
    /// garbage rows for what was `replaced`. The debt and the links are left to the caller.
    pub(in crate::write) async fn add_swap(
        &self,
        tx: &mut Transaction,
        replaced: &[GarbageChunk],
    ) -> Result<(), StripeError> {
        let before: Stripe = self.row.record()?;
        let mut record = self.record.clone();
        let mut replaced = replaced.to_vec();
        match self.entry.and_then(|generation| remove(&mut record, generation)) {
            Some(entry) => replaced.extend(unnamed_of(&record, &entry)),
            None => replaced.extend_from_slice(&self.strays),
        }
        let old = keys::placement_of(holders(&before));
        let new = self.writes.ensure_placement(&holders(&record)).await?;
        require_placement(tx, new);
        for copy in record.copies.iter().filter(|copy| !before.copies.contains(copy)) {
            self.writes.require_open(tx, SiteId(copy.site)).await?;
        }
        tx.require_unchanged(keys::stripe(self.id), Some(&self.row));
        put_record(tx, self.id, &record, &before);
        if old != new {
            tx.delete(keys::reverse(old, self.id));
            tx.put(keys::reverse(new, self.id), Bytes::new());
        }
        if !replaced.is_empty() {
            add_garbage(tx, self.id, replaced);
        }
        Ok(())
    }

    /// `false` when the record, or that of a wide stripe of what is moved, is not what it was when it was read last.
    async fn try_swap(&self, replaced: &[GarbageChunk], debt: Debt) -> Result<bool, StripeError> {
        let moved = changed_since(&self.row.record()?, &self.record);
        let mut tx = self.writes.shared.table.transaction();
        self.add_swap(&mut tx, replaced).await?;
        // Their wide stripes must be as they were when the new places were found legal: the rules hold for the rows that are swapped.
        self.links.carry(&mut tx, &self.record, &moved);
        match debt {
            Debt::AsItIs => {}
            Debt::Paid(owed) => pay_debt(&mut tx, self.id, owed),
            Debt::Owed => drop(tx.put(keys::debt(self.id), Bytes::new())),
        }
        let changed: Vec<StripeId> = std::iter::once(self.id).chain(self.links.ids_of(&moved)).collect();
        let forget = || changed.iter().for_each(|&id| self.writes.shared.table.forget(id));
        forget();
        let done = matches!(self.writes.shared.table.meta().commit(tx).await?, Commit::Done(_));
        // Also what was read while it was committed.
        forget();
        if !done {
            self.forget_places();
        }
        Ok(done)
    }

    /// A commit with [`StripeChange::add_swap`] did not happen: what is known of its sites may be out of date.
    pub(in crate::write) fn forget_places(&self) {
        self.writes.forget_placement(keys::placement_of(holders(&self.record)));
        self.writes.forget_closed();
    }

    /// Puts this change on top of the record as it is now. `false` when it cannot be: its entry is gone, the chunks that it
    /// replaces are not where they were, or their new places would break the rule. The entry is cancelled then.
    pub(in crate::write) async fn rebase(&mut self) -> Result<bool, StripeError> {
        let row = self.writes.shared.table.meta().get(&keys::stripe(self.id)).await?;
        let Some(row) = row else {
            self.entry = None;
            return Ok(false);
        };
        let before: Stripe = self.row.record()?;
        let wanted = std::mem::replace(&mut self.record, row.record()?);
        self.row = row;
        // These may read the record once more.
        self.learn_links().await?;
        self.learn_racks().await?;
        if !self.record.entries.iter().any(|entry| Some(entry.generation) == self.entry) {
            // Closed by a commit whose answer was lost, or cancelled: then what was written is garbage already.
            self.entry = None;
            return Ok(false);
        }
        if let Some(record) = on_top_of(&self.record, &before, &wanted)
            && self.is_legal_by(&record, is_bound_by_rule(&record))?
        {
            self.record = record;
            return Ok(true);
        }
        self.cancel_entry().await;
        Ok(false)
    }

    /// Whether the places that it gives to chunks are legal by the stripe's own rule, also where that does not bind them, beside the
    /// others' and those that other changes expect.
    pub(in crate::write) fn obeys_own_rule(&self) -> Result<bool, StripeError> {
        self.is_legal_by(&self.record, true)
    }

    /// Whether the places are legal that a record gives to chunks.
    fn is_legal_by(&self, record: &Stripe, own_rule: bool) -> Result<bool, StripeError> {
        let before: Stripe = self.row.record()?;
        let changed = changed_since(&before, record);
        let (rule, expected) = (self.rule(), self.expected_sites(&changed));
        let racks = self.racks_in(record, &expected);
        let is_legal = |&index: &usize| {
            let site = record.locations[index].site;
            let mut locations = record.locations.iter().enumerate();
            let is_taken = locations.any(|(other, at)| other != index && at.site == site)
                || expected.contains(&SiteId(site));
            // A chunk comes from where it was: that a group is in a rack already is not to be said of the new place itself.
            let from = self.rack_of(SiteId(before.locations[index].site));
            let beside = |(of, rack)| (of, if of == index { &from } else { rack });
            let places = racks.iter().enumerate().map(beside);
            let places = places.filter_map(|(of, rack)| Some((of, rack.as_ref()?)));
            // A site that is not known any more is repair's business.
            let is_admitted = racks[index].as_ref().is_none_or(|rack| rule.admits(index, rack, places));
            (!is_taken && is_admitted || !own_rule) && self.wide_admits(index, SiteId(site))
        };
        Ok(changed.iter().filter(|&&index| record.locations[index].site != 0).all(is_legal))
    }

    /// Whether the wide stripe of a chunk, if it is a member of one, lets it go to a site.
    pub fn wide_admits(&self, index: usize, site: SiteId) -> bool {
        let racks = self.writes.shared.sites.rack_count();
        let Some(rack) = self.rack_of(site) else { return true };
        self.links.admit(index, site, &rack, |site| self.rack_of(site), racks)
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

/// See [`StripeChange::is_bound_by_rule`].
fn is_bound_by_rule(record: &Stripe) -> bool {
    !record.dropped && !record.dead
}

/// The chunks that are other files than before, or are none any more.
fn changed_since(before: &Stripe, now: &Stripe) -> Vec<usize> {
    let of = |index: &usize| !is_same_file(&now.locations[*index], &before.locations[*index]);
    (0..now.locations.len()).filter(of).collect()
}

/// The record as it is `now` with what a change has made of the one `before`, which is in `wanted`: other files of chunks, and copies. `None`
/// where other changes have touched the same.
fn on_top_of(now: &Stripe, before: &Stripe, wanted: &Stripe) -> Option<Stripe> {
    let changed = changed_since(before, wanted);
    let is_as_before = |&index: &usize| is_same_file(&now.locations[index], &before.locations[index]);
    let added: Vec<Copy> =
        wanted.copies.iter().filter(|copy| !before.copies.contains(copy)).copied().collect();
    // What was copied must be what the chunk is.
    let is_true = |copy: &Copy| now.locations[copy.index as usize].content_version == copy.content_version;
    let is_same_state = (now.wide_state, now.dropped) == (before.wide_state, before.dropped);
    if !changed.iter().all(is_as_before) || !added.iter().all(is_true) || !is_same_state {
        return None;
    }
    let mut record = now.clone();
    for index in changed {
        let (now, wanted) = (&mut record.locations[index], &wanted.locations[index]);
        (now.site, now.generation) = (wanted.site, wanted.generation);
        (now.crc32c, now.content_version) = (wanted.crc32c, wanted.content_version);
    }
    (record.wide_state, record.dropped) = (wanted.wide_state, wanted.dropped);
    record.copies.extend(added);
    Some(record)
}
