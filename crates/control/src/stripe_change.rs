//! Changing where a stripe's chunks are: what a repair and a move have in common (design.md §10.4).
//!
//! A new generation is taken from the stripe record, durably, before chunks are written under it; then the whole record is
//! compared and swapped, on the version that taking the generation made, together with the reverse index, the debt and
//! garbage rows for what was replaced. Whoever loses the swap gives up only chunks of its own generation, so two executors
//! cannot take a live chunk from each other. Every step may be the last one before a crash: what then remains of it are
//! chunks that nothing names.

use bytes::Bytes;
use futures::stream::StreamExt;
use striate_client::{Client, ClientError, add_garbage, holders};
use striate_codec::Code;
use striate_core::{ChunkId, ChunkRange, Generation, Profile, SiteId, StripeId};
use striate_meta::records::{GarbageChunk, Stripe};
use striate_meta::{Commit, Row, Transaction, keys, records};
use striate_site::{
    AssembleRequest, CombineRequest, CombineSource, Priority, ReadRequest, SiteError, WriteRequest,
};

/// Slices of a chunk that sites send each other.
const SLICE_LEN: u32 = 256 << 10;

/// What a swap does to the stripe's debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Debt {
    /// It stays, or stays away.
    AsItIs,
    /// The stripe is whole.
    Paid,
    /// It is not.
    Owed,
}

/// One stripe whose record is being changed.
pub(crate) struct StripeChange<'a> {
    pub(crate) client: &'a Client,
    pub(crate) id: StripeId,
    pub(crate) record: Stripe,
    pub(crate) code: Code,
    row: Row,
    priority: Priority,
    /// Chunks that a site may have stored although it did not say so.
    pub(crate) strays: Vec<GarbageChunk>,
}

impl<'a> StripeChange<'a> {
    /// Reads the stripe's record. `None` when it is gone.
    pub(crate) async fn open(
        client: &'a Client,
        id: StripeId,
        priority: Priority,
    ) -> Result<Option<Self>, ClientError> {
        let Some(row) = client.meta().get(&keys::stripe(id)).await? else { return Ok(None) };
        let record: Stripe = row.record()?;
        let inconsistent =
            |reason: String| ClientError::Inconsistent { what: format!("stripe {id}"), reason };
        let profile: Profile = record.profile.parse().map_err(|error| inconsistent(format!("{error}")))?;
        let code = client.code(&profile)?;
        if record.locations.len() != code.n() {
            return Err(inconsistent(format!("{} locations for {profile}", record.locations.len())));
        }
        Ok(Some(Self { client, id, record, code, row, priority, strays: Vec::new() }))
    }

    /// The full name of a chunk as the record has it.
    pub(crate) fn chunk(&self, index: usize) -> ChunkId {
        let generation = Generation(self.record.locations[index].generation);
        ChunkId { stripe: self.id, index: index as u8, generation }
    }

    /// Takes a new generation, durably. `None` when somebody else changed the record.
    pub(crate) async fn take_generation(&mut self) -> Result<Option<Generation>, ClientError> {
        let generation = Generation(self.record.generation).next();
        self.record.generation = generation.0;
        let value = records::encode(&self.record);
        let mut tx = self.unchanged();
        tx.put(keys::stripe(self.id), value.clone());
        match self.client.meta().commit(tx).await? {
            Commit::Done(version) => {
                self.row = Row { key: self.row.key.clone(), value, version };
                Ok(Some(generation))
            }
            Commit::Conflict { .. } => Ok(None),
        }
    }

    /// A transaction that requires the record as it was read, or as the new generation left it.
    pub(crate) fn unchanged(&self) -> Transaction {
        let mut tx = self.client.transaction();
        tx.require_unchanged(keys::stripe(self.id), Some(&self.row));
        tx
    }

    /// The bytes of a whole chunk from its site.
    pub(crate) async fn read_chunk(&self, index: usize) -> Result<Bytes, SiteError> {
        let site = SiteId(self.record.locations[index].site);
        let site = self.client.site(site).ok_or(SiteError::Unavailable("it was removed".to_owned()))?;
        let range = ChunkRange { chunk: self.chunk(index), offset: 0, len: self.record.chunk_len };
        let request = ReadRequest { ranges: vec![range], priority: self.priority, deadline: None };
        let reading = async { site.read(request).next().await };
        let deadline = self.client.options().read_deadline;
        match self.client.runtime().timeout(deadline, reading).await {
            Ok(Some(reply)) => reply.result,
            Ok(None) => Err(SiteError::Unavailable("it ended its answer early".to_owned())),
            Err(_) => Err(SiteError::Deadline),
        }
    }

    /// Writes a chunk under a new generation.
    pub(crate) async fn write_chunk(
        &self,
        index: usize,
        site: SiteId,
        generation: Generation,
        payload: Bytes,
    ) -> Result<(), SiteError> {
        let site = self.client.site(site).ok_or(SiteError::Unavailable("it was removed".to_owned()))?;
        let chunk = ChunkId { stripe: self.id, index: index as u8, generation };
        let request = WriteRequest { chunk, payload, granule_crcs: None, priority: self.priority };
        let deadline = self.client.options().write_deadline;
        let written = self.client.runtime().timeout(deadline, site.write(request)).await;
        written.unwrap_or(Err(SiteError::Deadline)).map(drop)
    }

    /// Has a site make a chunk under a new generation: the sum of chunks of the stripe, each with its coefficient, that
    /// their sites send it.
    pub(crate) async fn assemble_chunk(
        &self,
        index: usize,
        site: SiteId,
        generation: Generation,
        terms: &[(u8, usize)],
    ) -> Result<(), SiteError> {
        let site = self.client.site(site).ok_or(SiteError::Unavailable("it was removed".to_owned()))?;
        let sum = |local, upstream| CombineRequest {
            offset: 0,
            len: self.record.chunk_len,
            slice_len: SLICE_LEN,
            local,
            upstream,
            priority: self.priority,
        };
        let source = |&(coefficient, index): &(u8, usize)| CombineSource {
            site: SiteId(self.record.locations[index].site),
            request: sum(vec![(coefficient, self.chunk(index))], Vec::new()),
        };
        let request = AssembleRequest {
            chunk: ChunkId { stripe: self.id, index: index as u8, generation },
            crc32c: self.record.locations[index].crc32c,
            combination: sum(Vec::new(), terms.iter().map(source).collect()),
        };
        let options = self.client.options();
        let deadline = options.read_deadline + options.write_deadline;
        let stored = self.client.runtime().timeout(deadline, site.assemble(request)).await;
        stored.unwrap_or(Err(SiteError::Deadline)).map(drop)
    }

    /// Takes note of a write that failed: the chunk may be there, unless the site said that it has not taken it.
    pub(crate) fn note_refusal(
        &mut self,
        index: usize,
        site: SiteId,
        generation: Generation,
        error: &SiteError,
    ) {
        tracing::warn!(stripe = %self.id, %site, %error, "a chunk could not be written to its new place");
        self.note_stray(index, site, generation, error);
    }

    /// The same where it is tried in another way.
    pub(crate) fn note_stray(
        &mut self,
        index: usize,
        site: SiteId,
        generation: Generation,
        error: &SiteError,
    ) {
        if !matches!(error, SiteError::NoSpace | SiteError::Busy | SiteError::BadRequest(_)) {
            let (index, generation) = (index as u32, generation.0);
            self.strays.push(GarbageChunk { index, site: site.0, generation });
        }
    }

    /// Names a written chunk in the record; answers what was named before.
    pub(crate) fn replace(
        &mut self,
        index: usize,
        site: SiteId,
        generation: Generation,
    ) -> Option<GarbageChunk> {
        let location = &mut self.record.locations[index];
        let (old_site, old_generation) = (location.site, location.generation);
        (location.site, location.generation) = (site.0, generation.0);
        let replaced = GarbageChunk { index: index as u32, site: old_site, generation: old_generation };
        (old_site != 0).then_some(replaced)
    }

    /// Compare-and-swap of the record, with the reverse index, the debt, and garbage rows for what was `replaced` and what
    /// sites may have stored without saying so. `false` when somebody else changed the record.
    pub(crate) async fn swap(
        &self,
        mut replaced: Vec<GarbageChunk>,
        debt: Debt,
    ) -> Result<bool, ClientError> {
        replaced.extend_from_slice(&self.strays);
        let old = keys::placement_of(holders(&self.row.record()?));
        let new = self.client.ensure_placement(&holders(&self.record)).await?;
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
        Ok(matches!(self.client.meta().commit(tx).await?, Commit::Done(_)))
    }

    /// Makes chunks of this change's own generation garbage: nobody else could name them, and it will not. Should that
    /// fail, they are orphans.
    pub(crate) async fn give_up(&self, written: &[(usize, SiteId)], generation: Generation) {
        let mut chunks = self.strays.clone();
        chunks.extend(written.iter().map(|&(index, site)| {
            let (index, generation) = (index as u32, generation.0);
            GarbageChunk { index, site: site.0, generation }
        }));
        if chunks.is_empty() {
            return;
        }
        let mut tx = self.client.transaction();
        add_garbage(&mut tx, self.id, chunks);
        if let Err(error) = self.client.meta().commit(tx).await {
            tracing::debug!(stripe = %self.id, %error, "what a lost change wrote stays for verify to find");
        }
    }
}
