//! Writes a block: encodes it, writes its chunks, names it in a transaction.
//!
//! An acknowledgement means that every site that was up holds its chunk durably: all n chunks, or enough that the
//! stripe decodes after any [`crate::StripeOptions::write_surplus`] further losses ([`striate_plan::is_durable`]).
//! The stripe record names the missing indices as debt (design.md §10.1).

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use futures::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use std::sync::Arc;
use striate_codec::{ChunkSet, Code, crc32c};
use striate_core::{ChunkId, FencingEpoch, Generation, Layout, Profile, SiteId, StripeId};
use striate_meta::records::{Block, GarbageChunk, Location, Stripe};
use striate_meta::{MetaError, Precondition, Transaction, keys, records};
use striate_plan::{Candidate, PlacementRule, chunks_to_write, fewest_sites};
use striate_runtime::BufferPool;
use striate_site::{DeleteRequest, Priority, SiteError, WriteRequest};

use super::intent::StripeName;
use super::placements::require_placement;
use super::release::add_garbage;
use super::waiting::WaitingPartitions;
use super::writes::{Folder, Writes};
use crate::error::StripeError;
use crate::table::holders;

/// Generation of a stripe's first placement.
pub(super) const FIRST: Generation = Generation(1);

/// Identifies a block's neighbours, and how many of them go to the same sites
/// ([`striate_plan::placement::grouping`]).
#[derive(Clone, Debug)]
pub struct Neighbours {
    folder: Folder,
    group_len: u32,
}

impl Neighbours {
    /// Describes the neighbours of the object `key`.
    pub fn new(bucket: &str, key: &str, group_len: u32) -> Self {
        let folder = key.rsplit_once('/').map_or("", |(folder, _)| folder);
        Self { folder: (bucket.to_owned(), folder.to_owned()), group_len }
    }
}

/// A block whose chunks are durable, but which no metadata names yet.
#[derive(Clone, Debug)]
pub struct StoredBlock {
    /// Record of the block, for the object or segment that will hold it.
    pub block: Block,
    name: StripeName,
    stripe: Stripe,
    /// Chunks that may have been written although the site did not confirm it.
    strays: Vec<GarbageChunk>,
}

/// Stripes of a put between their first chunk and the commit that names them.
///
/// End a session by [`PutSession::committed`] or [`PutSession::discard`], and call [`PutSession::committing`] before
/// submitting the commit. A session dropped before that call discards its chunks in the background. One dropped after
/// it leaves them to the collector, since the outcome is unknown.
pub struct PutSession {
    writes: Writes,
    /// Stripes with chunks on sites that no committed row names.
    open: Mutex<BTreeMap<StripeId, OpenStripe>>,
    committing: bool,
}

struct OpenStripe {
    name: StripeName,
    chunks: Vec<(SiteId, ChunkId)>,
}

/// Payloads of a stripe's n chunks, with the checksums of their granules.
struct EncodedBlock {
    chunk_len: usize,
    chunks: Vec<Bytes>,
    granule_crcs: Vec<Arc<[u32]>>,
    crcs: Vec<u32>,
}

/// Returns the error of a commit whose intent or pending row is gone, because a collector fenced the put, or whose
/// set of sites is gone, because one of them is being retired.
pub(super) fn fenced() -> StripeError {
    let reason = "the put took longer than its writer's lease, or a site that it wrote to is being retired; send it again";
    MetaError::Unavailable(reason.to_owned()).into()
}

impl PutSession {
    pub(crate) fn new(writes: Writes) -> Self {
        Self { writes, open: Mutex::default(), committing: false }
    }

    pub(super) fn writes(&self) -> &Writes {
        &self.writes
    }

    /// Encodes a block and writes its chunks durably. Calls may run concurrently.
    ///
    /// # Errors
    /// [`StripeError::TooFewSites`] when the chunks that sites took do not make the block durable.
    ///
    /// # Panics
    /// If the block is empty, or has 4 GiB or more.
    pub async fn write_block(
        &self,
        data: Bytes,
        profile: &Profile,
        neighbours: &Neighbours,
    ) -> Result<StoredBlock, StripeError> {
        assert!(!data.is_empty(), "an empty block has no stripe");
        // A block of a packed bucket is written split until it has settled.
        let layout = if profile.layout == Layout::Packed { Layout::Split } else { profile.layout };
        let profile = &Profile { layout, ..*profile };
        let len = u32::try_from(data.len()).expect("a block's length has 32 bits");
        let code = self.writes.shared.table.code(profile)?;
        let granule_len = self.writes.shared.options.formats.get().granule_len();
        let encoded = encode(&code, &data, self.writes.shared.runtime.buffers(), granule_len);
        let name = self.writes.shared.writer.name_stripe().await?;
        let sites = self.writes.place(profile, &code, Some(neighbours))?;
        let written = self.write_chunks(&name, &code, &encoded, sites).await?;
        let block = Block { stripe: name.id.to_bytes().to_vec().into(), len, crc32c: crc32c(&data) };
        let stripe = Stripe {
            profile: profile.to_string(),
            chunk_len: u32::try_from(encoded.chunk_len).expect("a chunk is not longer than its block"),
            locations: written.locations,
            generation: FIRST.0,
            len: len.into(),
            ..Stripe::default()
        };
        self.writes.ensure_placement(&holders(&stripe)).await?;
        Ok(StoredBlock { block, name, stripe, strays: written.strays })
    }

    async fn write_chunks(
        &self,
        name: &StripeName,
        code: &Code,
        encoded: &EncodedBlock,
        sites: Vec<SiteId>,
    ) -> Result<WrittenChunks, StripeError> {
        let mut spare = sites.iter().copied().skip(code.n());
        let mut writes = FuturesUnordered::new();
        for (index, &site) in chunks_to_write(code, sites.len()).iter().zip(&sites) {
            writes.push(self.write_chunk(name, encoded, index, site));
        }
        let mut written = WrittenChunks::new(&encoded.crcs);
        while let Some((index, site, result)) = writes.next().await {
            match result {
                Ok(()) => written.hold(index, site),
                Err(error) => {
                    written.fail(index, site, &error);
                    if let Some(site) = spare.next() {
                        writes.push(self.write_chunk(name, encoded, index, site));
                    }
                }
            }
        }
        if !self.writes.is_durable(code, &written.held) {
            return Err(written.into_error(code, &self.writes));
        }
        Ok(written)
    }

    async fn write_chunk(
        &self,
        name: &StripeName,
        encoded: &EncodedBlock,
        index: usize,
        site_id: SiteId,
    ) -> (usize, SiteId, Result<(), SiteError>) {
        let chunk = ChunkId { stripe: name.id, index: index as u8, generation: FIRST };
        let open = || OpenStripe { name: name.clone(), chunks: Vec::with_capacity(encoded.chunks.len()) };
        self.open.lock().entry(name.id).or_insert_with(open).chunks.push((site_id, chunk));
        let payload = (encoded.chunks[index].clone(), encoded.granule_crcs[index].clone());
        let result = self.writes.write_chunk(chunk, payload, site_id, Priority::Foreground).await;
        (index, site_id, result)
    }

    /// Adds to `tx` the rows of the blocks' stripes (2 to 4 writes each) and the preconditions of their intents and
    /// sets of sites (one for each distinct one).
    pub fn name_blocks(&self, tx: &mut Transaction, blocks: &[StoredBlock]) {
        let mut intents: Vec<Bytes> = blocks.iter().map(|stored| stored.name.range.key()).collect();
        intents.sort_unstable();
        intents.dedup();
        intents.into_iter().for_each(|key| {
            tx.require(Precondition::Exists(key));
        });
        placements_of(blocks).into_iter().for_each(|placement| require_placement(tx, placement));
        for StoredBlock { name, stripe, strays, .. } in blocks {
            tx.put(keys::stripe(name.id), records::encode(stripe));
            tx.put(keys::reverse(keys::placement_of(holders(stripe)), name.id), Bytes::new());
            if stripe.locations.iter().any(|location| location.site == 0) {
                tx.put(keys::debt(name.id), Bytes::new());
            }
            if !strays.is_empty() {
                add_garbage(tx, name.id, strays.clone());
            }
        }
    }

    /// Settles blocks that a commit has named: the session no longer discards them.
    pub(super) fn settle(&self, blocks: &[StoredBlock]) {
        for stored in blocks {
            self.open.lock().remove(&stored.name.id);
            self.writes.shared.writer.settle(&stored.name);
        }
    }

    /// Makes sure that rows lead from the blocks' sites to their stripes. Call it before each commit that names them,
    /// since some blocks may have been written long ago.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn ensure_placed(&self, blocks: &[StoredBlock]) -> Result<(), StripeError> {
        for stored in blocks {
            self.writes.ensure_placement(&holders(&stored.stripe)).await?;
        }
        Ok(())
    }

    /// Forgets the blocks' sets of sites after a commit was fenced: they are written again before their next use.
    pub fn forget_placed(&self, blocks: &[StoredBlock]) {
        placements_of(blocks).into_iter().for_each(|placement| self.writes.forget_placement(placement));
    }

    /// Call this before submitting a commit that names the session's stripes.
    pub fn committing(&mut self) {
        self.committing = true;
    }

    /// Ends the session after its commit has succeeded.
    pub fn committed(self) {
        let open = std::mem::take(&mut *self.open.lock());
        open.values().for_each(|stripe| self.writes.shared.writer.settle(&stripe.name));
    }

    /// Ends the session if its commit certainly did not happen: removes the chunks.
    pub async fn discard(self) {
        let open = std::mem::take(&mut *self.open.lock());
        discard(&self.writes, open).await;
    }
}

impl Drop for PutSession {
    fn drop(&mut self) {
        let open = std::mem::take(self.open.get_mut());
        if open.is_empty() {
            return;
        }
        if self.committing {
            open.values().for_each(|stripe| self.writes.shared.writer.leave_unknown(&stripe.name));
            return;
        }
        let writes = self.writes.clone();
        self.writes.shared.runtime.clone().spawn(async move { discard(&writes, open).await });
    }
}

/// Returns the sets of sites that the blocks are on.
fn placements_of(blocks: &[StoredBlock]) -> BTreeSet<u64> {
    blocks.iter().map(|stored| keys::placement_of(holders(&stored.stripe))).collect()
}

/// Removes the chunks of stripes that no commit named.
async fn discard(writes: &Writes, open: BTreeMap<StripeId, OpenStripe>) {
    let mut by_site: BTreeMap<SiteId, Vec<ChunkId>> = BTreeMap::new();
    for (site, chunk) in open.values().flat_map(|stripe| &stripe.chunks) {
        by_site.entry(*site).or_default().push(*chunk);
    }
    let mut clean = true;
    for (site, chunks) in by_site {
        // No other process touches chunks that this client wrote and that nothing names.
        let request = DeleteRequest { chunks, epoch: FencingEpoch::NONE };
        let deleted = match writes.shared.sites.get(site) {
            Some(site) => site.delete(request).await.is_ok(),
            None => false,
        };
        clean &= deleted;
    }
    for stripe in open.values() {
        match clean {
            true => writes.shared.writer.settle(&stripe.name),
            false => writes.shared.writer.leave_unknown(&stripe.name),
        }
    }
}

impl Writes {
    /// Chooses sites for a stripe's chunks, followed by spare ones.
    pub(super) fn place(
        &self,
        profile: &Profile,
        code: &Code,
        neighbours: Option<&Neighbours>,
    ) -> Result<Vec<SiteId>, StripeError> {
        let shared = &self.shared;
        let candidates = shared.sites.candidates();
        let rule = PlacementRule::new(profile, code, shared.sites.rack_sizes());
        let mut rng = shared.rng.lock();
        let sites = match neighbours {
            Some(Neighbours { folder, group_len: group_len @ 2.. }) => {
                let (folder, group_len) = (folder.clone(), *group_len as usize);
                shared.grouping.lock().place(folder, group_len, &candidates, &rule, &mut *rng)
            }
            _ => rule.draw_sites(&mut *rng, &candidates, candidates.len()),
        };
        drop(rng);
        self.enough(code, sites)
    }

    /// Chooses sites for the chunks of a coding group, followed by spare ones, in racks where few partitions wait for
    /// wide stripes.
    pub(super) fn place_group(
        &self,
        profile: &Profile,
        code: &Code,
        waiting: &WaitingPartitions,
    ) -> Result<Vec<SiteId>, StripeError> {
        let candidates = self.shared.sites.candidates();
        let Some(waiting) = waiting.at(&candidates) else { return self.place(profile, code, None) };
        let rule = PlacementRule::new(profile, code, self.shared.sites.rack_sizes());
        let wait = |candidate: &Candidate| waiting[&candidate.site];
        let sites = rule.draw_sites_evenly(&mut *self.shared.rng.lock(), &candidates, candidates.len(), wait);
        self.enough(code, sites)
    }

    fn enough(&self, code: &Code, sites: Vec<SiteId>) -> Result<Vec<SiteId>, StripeError> {
        if !self.is_durable(code, &chunks_to_write(code, sites.len())) {
            return Err(StripeError::TooFewSites {
                available: sites.len(),
                needed: self.sites_needed(code),
                reason: self.describe_unwritable(),
            });
        }
        Ok(sites)
    }

    /// Writes a chunk to a site: the bytes, and the checksums of the granules.
    pub(super) async fn write_chunk(
        &self,
        chunk: ChunkId,
        (payload, granule_crcs): (Bytes, Arc<[u32]>),
        site_id: SiteId,
        priority: Priority,
    ) -> Result<(), SiteError> {
        let shared = &self.shared;
        let site = shared.sites.required(site_id)?;
        let request = WriteRequest { chunk, payload, granule_crcs: Some(granule_crcs), priority };
        let write = shared.runtime.timeout(shared.options.write_deadline, site.write(request));
        let result = write.await.unwrap_or(Err(SiteError::Deadline)).map(|_| ());
        if let Err(error) = &result {
            shared.sites.note_failure(site_id, error);
        }
        result
    }

    /// Whether a write may be acknowledged when these chunks are durable.
    fn is_durable(&self, code: &Code, held: &ChunkSet) -> bool {
        let options = &self.shared.options;
        (options.durability_rule)(code, held, options.write_surplus)
    }

    /// Returns the minimum number of sites for a write to be acknowledged.
    pub(crate) fn sites_needed(&self, code: &Code) -> usize {
        let options = &self.shared.options;
        fewest_sites(code, options.write_surplus, options.durability_rule)
    }

    fn describe_unwritable(&self) -> String {
        let views = self.shared.sites.views();
        let down: Vec<String> =
            views.iter().filter(|view| !view.writable).map(|view| view.site.id().to_string()).collect();
        match down.as_slice() {
            [] => format!("only {} sites are known", views.len()),
            down => format!("sites {} take no writes; see `striate status`", down.join(", ")),
        }
    }
}

/// Locations of a stripe's chunks written so far.
pub(super) struct WrittenChunks {
    pub(super) locations: Vec<Location>,
    pub(super) strays: Vec<GarbageChunk>,
    pub(super) held: ChunkSet,
    pub(super) failures: Vec<String>,
    full: bool,
}

impl WrittenChunks {
    /// Starts with none of the chunks that have these checksums.
    pub(super) fn new(crcs: &[u32]) -> Self {
        let location = |&crc32c: &u32| Location { generation: FIRST.0, crc32c, ..Location::default() };
        Self {
            locations: crcs.iter().map(location).collect(),
            strays: Vec::new(),
            held: ChunkSet::EMPTY,
            failures: Vec::new(),
            full: true,
        }
    }

    pub(super) fn hold(&mut self, index: usize, site: SiteId) {
        self.locations[index].site = site.0;
        self.held.insert(index);
        // The site has the chunk now, even if an earlier attempt seemed to fail.
        self.strays.retain(|stray| (stray.index, stray.site) != (index as u32, site.0));
    }

    pub(super) fn fail(&mut self, index: usize, site: SiteId, error: &SiteError) {
        self.full &= *error == SiteError::NoSpace;
        self.failures.push(format!("site {site}: {error}"));
        if !matches!(error, SiteError::NoSpace | SiteError::Busy | SiteError::BadRequest(_)) {
            self.strays.push(GarbageChunk::new(index, site, FIRST));
        }
    }

    fn into_error(self, code: &Code, writes: &Writes) -> StripeError {
        let reason = self.failures.join("; ");
        if self.full {
            return StripeError::NoSpace(reason);
        }
        let (available, needed) = (self.held.len(), writes.sites_needed(code));
        let reason = match available < needed {
            true => reason,
            false => {
                let lost: Vec<_> = ChunkSet::first(code.n()).difference(&self.held).iter().collect();
                let surplus = writes.shared.options.write_surplus;
                format!("without chunks {lost:?} {surplus} further losses could not be decoded; {reason}")
            }
        };
        StripeError::TooFewSites { available, needed, reason }
    }
}

/// Cuts a block into k chunks of equal length, the last padded with zeros, and computes the parities and the
/// checksums of granules of `granule_len` bytes.
fn encode(code: &Code, data: &Bytes, buffers: &BufferPool, granule_len: usize) -> EncodedBlock {
    let (k, n) = (code.k(), code.n());
    let chunk_len = data.len().div_ceil(k);
    let mut chunks: Vec<Bytes> = (0..k).map(|index| data_chunk(data, index, chunk_len)).collect();
    let mut parity = buffers.take((n - k) * chunk_len);
    let checksums = {
        let data: Vec<&[u8]> = chunks.iter().map(|chunk| chunk.as_ref()).collect();
        let mut parity: Vec<&mut [u8]> = parity.chunks_exact_mut(chunk_len).collect();
        code.encode_and_checksum(&data, &mut parity, granule_len)
            .expect("k data and n−k parity chunks, one length")
    };
    let parity = parity.freeze();
    chunks.extend((0..n - k).map(|row| parity.slice(row * chunk_len..(row + 1) * chunk_len)));
    EncodedBlock {
        chunk_len,
        chunks,
        granule_crcs: (0..n).map(|chunk| checksums.granules(chunk).into()).collect(),
        crcs: (0..n).map(|chunk| checksums.chunk_checksum(chunk)).collect(),
    }
}

fn data_chunk(data: &Bytes, index: usize, chunk_len: usize) -> Bytes {
    let start = (index * chunk_len).min(data.len());
    let end = (start + chunk_len).min(data.len());
    if end - start == chunk_len {
        return data.slice(start..end);
    }
    let mut padded = BytesMut::zeroed(chunk_len);
    padded[..end - start].copy_from_slice(&data[start..end]);
    padded.freeze()
}
