//! Changing where a stripe's chunks are: what a repair and a move have in common (design.md §10.4).
//!
//! A new generation is taken from the stripe record, durably, before chunks are written under it; then the whole record is
//! compared and swapped, on the version that taking the generation made, together with the reverse index, the debt and
//! garbage rows for what was replaced. Whoever loses the swap gives up only chunks of its own generation, so two executors
//! cannot take a live chunk from each other. Every step may be the last one before a crash: what then remains of it are
//! chunks that nothing names.

use bytes::Bytes;
use futures::stream::StreamExt;
use striate_codec::Code;
use striate_core::{ChunkId, ChunkRange, Generation, Profile, RackId, SiteId, StripeId};
use striate_meta::records::{GarbageChunk, Stripe};
use striate_meta::{Commit, Row, Transaction, keys, records};
use striate_plan::{CombineTerm, CombineTree, PlacementRule};
use striate_site::{
    AssembleRequest, CombineRequest, CombineSource, Priority, ReadRequest, SiteError, WriteRequest,
};

use super::release::add_garbage;
use super::writes::Writes;
use crate::error::StripeError;
use crate::table::{OpenedStripe, holders};

/// Slices of a chunk that sites send each other.
const SLICE_LEN: u32 = 256 << 10;

/// What a swap does to the stripe's debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Debt {
    /// It stays, or stays away.
    AsItIs,
    /// The stripe is whole.
    Paid,
    /// It is not.
    Owed,
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
    /// Chunks that a site may have stored although it did not say so.
    pub strays: Vec<GarbageChunk>,
}

impl<'a> StripeChange<'a> {
    /// Of a stripe whose record was just read.
    pub(crate) fn new(writes: &'a Writes, stripe: OpenedStripe, priority: Priority) -> Self {
        let OpenedStripe { id, row, record, profile, code } = stripe;
        Self { writes, id, record, code, profile, row, priority, strays: Vec::new() }
    }

    /// The rule for its chunks' places.
    pub fn rule(&self) -> PlacementRule {
        PlacementRule::new(&self.profile, &self.code, self.writes.shared.sites.rack_count())
    }

    /// The rack of each chunk, as far as its site is known: where it is, or was before it was lost.
    pub fn racks(&self) -> Vec<Option<RackId>> {
        let locations = self.record.locations.iter();
        locations.map(|at| Some(self.writes.shared.sites.get(SiteId(at.site))?.rack())).collect()
    }

    /// The full name of a chunk as the record has it.
    pub fn chunk(&self, index: usize) -> ChunkId {
        let generation = Generation(self.record.locations[index].generation);
        ChunkId { stripe: self.id, index: index as u8, generation }
    }

    /// Takes a new generation, durably. `None` when somebody else changed the record.
    pub async fn take_generation(&mut self) -> Result<Option<Generation>, StripeError> {
        let generation = Generation(self.record.generation).next();
        self.record.generation = generation.0;
        let value = records::encode(&self.record);
        let mut tx = self.unchanged();
        tx.put(keys::stripe(self.id), value.clone());
        match self.writes.shared.table.meta().commit(tx).await? {
            Commit::Done(version) => {
                self.row = Row { key: self.row.key.clone(), value, version };
                Ok(Some(generation))
            }
            Commit::Conflict { .. } => Ok(None),
        }
    }

    /// A transaction that requires the record as it was read, or as the new generation left it.
    pub fn unchanged(&self) -> Transaction {
        let mut tx = self.writes.shared.table.transaction();
        tx.require_unchanged(keys::stripe(self.id), Some(&self.row));
        tx
    }

    /// The bytes of a whole chunk from its site.
    pub async fn read_chunk(&self, index: usize) -> Result<Bytes, SiteError> {
        let site = SiteId(self.record.locations[index].site);
        let site =
            self.writes.shared.sites.get(site).ok_or(SiteError::Unavailable("it was removed".to_owned()))?;
        let range = ChunkRange { chunk: self.chunk(index), offset: 0, len: self.record.chunk_len };
        let request = ReadRequest { ranges: vec![range], priority: self.priority, deadline: None };
        let reading = async { site.read(request).next().await };
        let deadline = self.writes.shared.options.read_deadline;
        match self.writes.shared.runtime.timeout(deadline, reading).await {
            Ok(Some(reply)) => reply.result,
            Ok(None) => Err(SiteError::Unavailable("it ended its answer early".to_owned())),
            Err(_) => Err(SiteError::Deadline),
        }
    }

    /// Writes a chunk under a new generation.
    pub async fn write_chunk(
        &self,
        index: usize,
        site: SiteId,
        generation: Generation,
        payload: Bytes,
    ) -> Result<(), SiteError> {
        let site =
            self.writes.shared.sites.get(site).ok_or(SiteError::Unavailable("it was removed".to_owned()))?;
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
        let rack_of = |site: SiteId| match self.writes.shared.sites.get(site) {
            Some(known) => known.rack(),
            // It has nobody to add up with.
            None => RackId(format!("unknown, of site {site}")),
        };
        let term = |&(coefficient, chunk): &(u8, usize)| {
            let site = SiteId(self.record.locations[chunk].site);
            CombineTerm { chunk, coefficient, site, rack: rack_of(site), cost: cost(chunk) }
        };
        let terms: Vec<CombineTerm> = terms.iter().map(term).collect();
        CombineTree::new(&terms, site, &rack_of(site))
    }

    /// Has the site at the root of a tree make a chunk under a new generation: the sum that the tree adds up.
    pub async fn assemble_chunk(
        &self,
        index: usize,
        generation: Generation,
        tree: &CombineTree,
    ) -> Result<(), SiteError> {
        let site = self.writes.shared.sites.get(tree.site);
        let site = site.ok_or(SiteError::Unavailable("it was removed".to_owned()))?;
        let request = AssembleRequest {
            chunk: ChunkId { stripe: self.id, index: index as u8, generation },
            crc32c: self.record.locations[index].crc32c,
            combination: self.combination(tree),
        };
        let options = &self.writes.shared.options;
        let deadline = options.read_deadline + options.write_deadline;
        let stored = self.writes.shared.runtime.timeout(deadline, site.assemble(request)).await;
        stored.unwrap_or(Err(SiteError::Deadline)).map(drop)
    }

    /// What the site at the root of a tree is asked.
    fn combination(&self, tree: &CombineTree) -> CombineRequest {
        let upstream = tree.upstream.iter();
        CombineRequest {
            offset: 0,
            len: self.record.chunk_len,
            slice_len: SLICE_LEN,
            local: tree.local.iter().map(|&(by, chunk)| (by, self.chunk(chunk))).collect(),
            upstream: upstream
                .map(|from| CombineSource { site: from.site, request: self.combination(from) })
                .collect(),
            priority: self.priority,
        }
    }

    /// Takes note of a write that failed: the chunk may be there, unless the site said that it has not taken it.
    pub fn note_refusal(&mut self, index: usize, site: SiteId, generation: Generation, error: &SiteError) {
        tracing::warn!(stripe = %self.id, %site, %error, "a chunk could not be written to its new place");
        self.note_stray(index, site, generation, error);
    }

    /// The same where it is tried in another way.
    pub fn note_stray(&mut self, index: usize, site: SiteId, generation: Generation, error: &SiteError) {
        if !matches!(error, SiteError::NoSpace | SiteError::Busy | SiteError::BadRequest(_)) {
            let (index, generation) = (index as u32, generation.0);
            self.strays.push(GarbageChunk { index, site: site.0, generation });
        }
    }

    /// Names a written chunk in the record; answers what was named before.
    pub fn replace(&mut self, index: usize, site: SiteId, generation: Generation) -> Option<GarbageChunk> {
        let location = &mut self.record.locations[index];
        let (old_site, old_generation) = (location.site, location.generation);
        (location.site, location.generation) = (site.0, generation.0);
        let replaced = GarbageChunk { index: index as u32, site: old_site, generation: old_generation };
        (old_site != 0).then_some(replaced)
    }

    /// Compare-and-swap of the record, with the reverse index, the debt, and garbage rows for what was `replaced` and what
    /// sites may have stored without saying so. `false` when somebody else changed the record.
    pub async fn swap(&self, mut replaced: Vec<GarbageChunk>, debt: Debt) -> Result<bool, StripeError> {
        replaced.extend_from_slice(&self.strays);
        let old = keys::placement_of(holders(&self.row.record()?));
        let new = self.writes.ensure_placement(&holders(&self.record)).await?;
        let mut tx = self.unchanged();
        tx.put(keys::stripe(self.id), records::encode(&self.record));
        if old != new {
            tx.delete(keys::reverse(old, self.id));
            tx.put(keys::reverse(new, self.id), Bytes::new());
        }
        if !replaced.is_empty() {
            add_garbage(&mut tx, self.id, replaced);
        }
        match debt {
            Debt::AsItIs => {}
            Debt::Paid => drop(tx.delete(keys::debt(self.id))),
            Debt::Owed => drop(tx.put(keys::debt(self.id), Bytes::new())),
        }
        self.writes.shared.table.forget(self.id);
        let done = matches!(self.writes.shared.table.meta().commit(tx).await?, Commit::Done(_));
        // Also what was read while it was committed.
        self.writes.shared.table.forget(self.id);
        Ok(done)
    }

    /// Makes chunks of this change's own generation garbage: nobody else could name them, and it will not. Should that
    /// fail, they are orphans.
    pub async fn give_up(&self, written: &[(usize, SiteId)], generation: Generation) {
        let mut chunks = self.strays.clone();
        chunks.extend(written.iter().map(|&(index, site)| {
            let (index, generation) = (index as u32, generation.0);
            GarbageChunk { index, site: site.0, generation }
        }));
        if chunks.is_empty() {
            return;
        }
        let mut tx = self.writes.shared.table.transaction();
        add_garbage(&mut tx, self.id, chunks);
        if let Err(error) = self.writes.shared.table.meta().commit(tx).await {
            tracing::debug!(stripe = %self.id, %error, "what a lost change wrote stays for verify to find");
        }
    }
}
