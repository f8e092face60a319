//! The handle of the stripe service.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use striate_codec::Code;
use striate_core::{FencingEpoch, Formats, Profile, SiteId, StripeId, Tier};
use striate_meta::records::{self, Block, ManifestSegment, Stripe, UploadPart, upload_part};
use striate_meta::{Commit, LeaseId, MetaError, MetaStore, Transaction, keys};
use striate_plan::{Candidate, LeavingRacks, PlacementRule, RackSizes, ReadPolicy, SiteCost};
use striate_runtime::Runtime;
use striate_site::{Priority, Site, SiteError};

use crate::budget::{ByteBudget, Share};
use crate::error::StripeError;
use crate::ledger::Payer;
use crate::options::StripeOptions;
use crate::read::{
    BlockCache, BlocksRead, Invalidation, MemoryBlock, QueryExplanation, ReadMeasures, ReadStats, Reads,
    Sampler, Source, Span,
};
use crate::sites::{PushView, SiteView, Sites};
use crate::table::{OpenedStripe, ProfileTexts, StripeTable};
use crate::write::{
    DropOutcome, ExchangeOutcome, MemberTransfer, MemberUpdate, Packer, PutSession, SeparateWriter,
    StripeChange, WideStep, Writer, Writes,
};

/// Reads and writes stripes, and changes where their chunks are. One per process. Cheap to clone.
#[derive(Clone)]
pub struct Stripes {
    inner: Arc<Inner>,
    source: Source,
    /// The budget, as this handle's payer sees it.
    budget: ByteBudget,
}

/// A weak handle of the stripe service, for objects that the service itself holds.
#[derive(Clone)]
pub struct WeakStripes(Weak<Inner>);

impl WeakStripes {
    /// Returns the service while another handle keeps it alive.
    pub fn upgrade(&self) -> Option<Stripes> {
        let inner = self.0.upgrade()?;
        Some(Stripes { budget: inner.budget.clone(), inner, source: Source::Nearest })
    }
}

struct Inner {
    runtime: Runtime,
    meta: Arc<dyn MetaStore>,
    options: StripeOptions,
    table: Arc<StripeTable>,
    sites: Arc<Sites>,
    reads: Reads,
    writes: Writes,
    budget: ByteBudget,
    sampler: Arc<Sampler>,
}

impl Stripes {
    /// Opens the service: registers a writer and its epoch with the metadata store.
    ///
    /// # Errors
    /// When the metadata store refuses the registration.
    pub async fn open(
        runtime: Runtime,
        meta: Arc<dyn MetaStore>,
        sites: Vec<Arc<dyn Site>>,
        options: StripeOptions,
    ) -> Result<Self, StripeError> {
        let writer = Writer::open(runtime.clone(), meta.clone()).await?;
        let sites = Arc::new(Sites::new(runtime.clone(), sites));
        let table = Arc::new(StripeTable::new(runtime.clone(), meta.clone(), options.known_stripes));
        let rng = Arc::new(Mutex::new(runtime.rng()));
        let (of_reads, of_writes) = (options.clone(), options.clone());
        let reads = Reads::new(runtime.clone(), table.clone(), sites.clone(), of_reads, rng.clone());
        let writes = Writes::new(runtime.clone(), table.clone(), sites.clone(), of_writes, writer, rng);
        reads.probe_in_background();
        let budget = ByteBudget::new(runtime.clone(), options.in_flight_bytes, options.memory_wait);
        let sampler = Arc::new(Sampler::new(options.sampling, options.co_access));
        let (of_store, budget) = (budget.clone(), budget);
        let inner = Inner { runtime, meta, options, table, sites, reads, writes, budget: of_store, sampler };
        Ok(Self { inner: Arc::new(inner), source: Source::Nearest, budget })
    }

    /// Runtime of the service.
    pub fn runtime(&self) -> &Runtime {
        &self.inner.runtime
    }

    /// Metadata store of the service.
    pub fn meta(&self) -> &Arc<dyn MetaStore> {
        &self.inner.meta
    }

    /// Options of the service.
    pub fn options(&self) -> &StripeOptions {
        &self.inner.options
    }

    /// Budget of the bytes of bodies in memory, [`StripeOptions::in_flight_bytes`] in all.
    pub fn budget(&self) -> &ByteBudget {
        &self.budget
    }

    /// Statistics of sampled requests.
    pub fn sampler(&self) -> &Arc<Sampler> {
        &self.inner.sampler
    }

    /// Durations and counts of reads so far.
    pub fn read_measures(&self) -> &ReadMeasures {
        self.inner.reads.measures()
    }

    /// Returns all sites that keep durable chunks, with their state.
    pub fn sites(&self) -> Vec<SiteView> {
        self.inner.sites.views()
    }

    /// Returns a site, if it is known.
    pub fn site(&self, site: SiteId) -> Option<Arc<dyn Site>> {
        self.inner.sites.get(site)
    }

    /// Returns a site that the caller needs.
    ///
    /// # Errors
    /// [`SiteError::Unavailable`] if it is not known.
    pub fn required_site(&self, site: SiteId) -> Result<Arc<dyn Site>, SiteError> {
        self.inner.sites.required(site)
    }

    /// Replaces the set of sites, after a disk was replaced or added.
    pub fn set_sites(&self, sites: Vec<Arc<dyn Site>>) {
        self.inner.sites.replace(Tier::Disk, sites);
    }

    /// Replaces the sites of the memory tier. They keep no durable chunks, and the methods for durable sites ignore
    /// them.
    pub fn set_memory_sites(&self, sites: Vec<Arc<dyn Site>>) {
        self.inner.sites.replace(Tier::Memory, sites);
    }

    /// Returns the sites of the memory tier that answer, in the order of their numbers.
    pub fn memory_sites(&self) -> Vec<Arc<dyn Site>> {
        self.inner.sites.memory_sites()
    }

    /// Returns a handle whose reads bypass the cache and leave no trace in it, for services that read data no client
    /// asked for.
    pub fn past_cache(&self) -> Self {
        Self { source: Source::Durable, ..self.clone() }
    }

    /// Returns a handle whose reads use the cache without being reported to it, for those whose caller counts them.
    pub fn untold(&self) -> Self {
        Self { source: Source::NearestUntold, ..self.clone() }
    }

    /// Returns a handle whose memory `payer` takes.
    pub fn paid_by(&self, payer: Payer) -> Self {
        Self { budget: self.budget.paid_by(payer), ..self.clone() }
    }

    /// Returns a handle that does not keep the service alive.
    pub fn downgrade(&self) -> WeakStripes {
        WeakStripes(Arc::downgrade(&self.inner))
    }

    /// Load reports that sites push.
    pub fn pushes(&self) -> PushView {
        self.inner.sites.pushes()
    }

    /// Keeps new chunks off a site, or admits them again.
    pub fn set_draining(&self, site: SiteId, draining: bool) {
        self.inner.sites.set_draining(site, draining);
    }

    /// Returns the sites that take new chunks.
    pub fn candidates(&self) -> Vec<Candidate> {
        self.inner.sites.candidates()
    }

    /// Number of racks among all sites.
    pub fn rack_count(&self) -> usize {
        self.rack_sizes().len()
    }

    /// Number of sites in each rack, whether they answer or not.
    pub fn rack_sizes(&self) -> RackSizes {
        self.inner.sites.rack_sizes()
    }

    /// Returns the current cost of reading from each site that answers (o_j and m_j of EC-Store Eq. 1), in the order
    /// of sites.
    pub fn site_costs(&self) -> Vec<(SiteId, SiteCost)> {
        let sites = self.inner.sites.snapshot();
        let ids = self.sites().into_iter().map(|view| view.site.id());
        ids.filter_map(|site| Some((site, sites.cost(site)?))).collect()
    }

    /// Formats in force, as last reported to this process. They limit what it may write.
    pub fn formats(&self) -> Formats {
        self.inner.options.formats.get()
    }

    /// Lease that covers the intents of this process now.
    pub fn writer_lease(&self) -> LeaseId {
        self.inner.writes.writer_lease()
    }

    /// Fencing epoch that the deletes of this process carry.
    pub fn epoch(&self) -> FencingEpoch {
        self.inner.writes.epoch()
    }

    /// Returns the code of a profile; built once.
    ///
    /// # Errors
    /// [`StripeError::InvalidArgument`] for parameters that describe no code.
    pub fn code(&self, profile: &Profile) -> Result<Code, StripeError> {
        self.inner.table.code(profile)
    }

    /// Returns the code of a stripe's profile; built once.
    ///
    /// # Errors
    /// As [`Stripes::code`].
    pub fn code_of(&self, stripe: &Stripe) -> Result<Code, StripeError> {
        self.inner.table.code_of(stripe)
    }

    /// Minimum number of sites that must take chunks before a write of this profile is acknowledged
    /// ([`StripeOptions::write_surplus`]).
    ///
    /// # Errors
    /// [`StripeError::InvalidArgument`] for parameters that describe no code.
    pub fn sites_needed(&self, profile: &Profile) -> Result<usize, StripeError> {
        Ok(self.inner.writes.sites_needed(&self.code(profile)?))
    }

    /// Returns the placement rule of a profile for the present racks.
    ///
    /// # Errors
    /// As [`Stripes::code`].
    pub fn placement_rule(&self, profile: &Profile) -> Result<PlacementRule, StripeError> {
        Ok(PlacementRule::new(profile, &self.code(profile)?, self.inner.sites.rack_sizes()))
    }

    /// Cache of profiles by their texts.
    pub fn profiles(&self) -> &ProfileTexts {
        self.inner.table.profiles()
    }

    /// Creates an empty transaction with a new id.
    pub fn transaction(&self) -> Transaction {
        self.inner.table.transaction()
    }

    /// Looks a stripe up. Returns `None` when it has no row.
    ///
    /// # Errors
    /// When the metadata store fails, or the record is one that no version of this program writes.
    pub async fn find(&self, id: StripeId) -> Result<Option<OpenedStripe>, StripeError> {
        self.inner.table.find(id).await
    }

    /// Reads the records of stripes together. Returns those that exist, in the order of `ids`.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn records_of(&self, ids: &[StripeId]) -> Result<Vec<(StripeId, Stripe)>, StripeError> {
        let keys: Vec<Bytes> = ids.iter().map(|&id| keys::stripe(id)).collect();
        let mut records = Vec::with_capacity(ids.len());
        for (&id, row) in ids.iter().zip(self.inner.meta.get_many(&keys).await?) {
            if let Some(row) = row {
                records.push((id, row.record()?));
            }
        }
        Ok(records)
    }

    /// Puts a stripe in debt, so that repair examines it, when `found` says that one of its chunks is missing or
    /// damaged.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn report_damage(&self, found: &StripeError) -> Result<(), StripeError> {
        self.inner.table.report_damage(found).await
    }

    /// Makes sure that the rows exist that lead from a set of sites to its stripes. Returns the number of the set.
    /// Call it before a commit that puts a stripe on these sites.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn ensure_placement(&self, sites: &[SiteId]) -> Result<u64, StripeError> {
        self.inner.writes.ensure_placement(sites).await
    }

    /// Creates a writer for packed objects. It registers under a lease of its own with its first group.
    pub fn packer(&self) -> Packer {
        Packer::new(self.inner.writes.clone())
    }

    /// Returns the sealed wide stripe that protects a stripe's chunk, and the chunk's position there, from records
    /// that agree. `None` if no sealed wide stripe has it.
    ///
    /// # Errors
    /// When the metadata store fails; [`StripeError::Busy`] when the records keep changing.
    pub async fn wide_stripe_of(
        &self,
        stripe: StripeId,
        index: usize,
    ) -> Result<Option<(OpenedStripe, usize)>, StripeError> {
        self.inner.table.wide_stripe_of(stripe, index).await
    }

    /// Advances a wide stripe until nothing is left to do, or nothing can be done now.
    ///
    /// # Errors
    /// When the metadata store fails, or its parities cannot be made now.
    pub async fn advance_wide(&self, id: StripeId) -> Result<WideStep, StripeError> {
        crate::write::advance(&self.inner.writes, id).await
    }

    /// Gives a sealed stripe parities of its own again. Returns `false` if it has them, or has changed meanwhile.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn narrow_again(&self, id: StripeId) -> Result<bool, StripeError> {
        crate::write::narrow_again(&self.inner.writes, id).await
    }

    /// Drops a stripe's own parities if all its data chunks are in sealed wide stripes, it has no copies and nothing is
    /// in debt, or none of the parities was made.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn drop_narrow_parities(&self, id: StripeId) -> Result<DropOutcome, StripeError> {
        crate::write::drop_parities(&self.inner.writes, id).await
    }

    /// Removes all dead members of a wide stripe together. A wide stripe without live members is removed.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn leave_wide(&self, wide: StripeId) -> Result<ExchangeOutcome, StripeError> {
        crate::write::leave(&self.inner.writes, wide).await
    }

    /// Dissolves a sealed wide stripe without live members. Returns `false` if a member lives, or if another process
    /// is changing it.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn dissolve_wide(&self, wide: StripeId) -> Result<bool, StripeError> {
        crate::write::dissolve(&self.inner.writes, wide).await
    }

    /// Removes a dead stripe. Returns `false` while chunks of it are members of a wide stripe.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn release_dead(&self, id: StripeId) -> Result<bool, StripeError> {
        crate::write::release_dead(&self.inner.writes, id).await
    }

    /// Whether the placement rule admits a chunk at `site` as the member at a position of a wide stripe, where chunks
    /// may leave the racks in `leaving`.
    pub fn admits_in_wide(
        &self,
        wide: &OpenedStripe,
        position: usize,
        site: SiteId,
        leaving: &LeavingRacks,
    ) -> bool {
        crate::write::admits_member(&self.inner.writes, wide, position, site, leaving)
    }

    /// Puts the data chunk `new` at a position of a sealed wide stripe that has a hole or a dead member.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn place_in_wide(
        &self,
        wide: StripeId,
        position: usize,
        new: (StripeId, usize),
    ) -> Result<ExchangeOutcome, StripeError> {
        crate::write::exchange(&self.inner.writes, wide, position, new).await
    }

    /// Moves all members of a sealed wide stripe into holes of others, and gives it up. [`Stripes::advance_wide`] then
    /// removes its record, and completes the others.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn transfer_wide(
        &self,
        from: StripeId,
        moves: &[MemberTransfer],
    ) -> Result<ExchangeOutcome, StripeError> {
        crate::write::transfer(&self.inner.writes, from, moves).await
    }

    /// Swaps the places of a group's local parity and the member at `position`, which is in another rack of the
    /// group.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn swap_local_parity(
        &self,
        wide: StripeId,
        position: usize,
    ) -> Result<ExchangeOutcome, StripeError> {
        crate::write::swap_local_parity(&self.inner.writes, wide, position).await
    }

    /// Changes ranges of a sealed member in place. [`ExchangeOutcome::NotNow`] means that nothing has changed: the
    /// stripe has parities of its own, the chunk has another content version, or a site that must take part is
    /// unavailable.
    ///
    /// # Errors
    /// When the metadata store fails; the update may or may not have happened then.
    pub async fn update_in_wide(&self, update: &MemberUpdate<'_>) -> Result<ExchangeOutcome, StripeError> {
        crate::write::update(&self.inner.writes, update).await
    }

    /// Aborts a wide stripe that is being built; [`Stripes::advance_wide`] then removes it. Returns `false` if it is
    /// sealed or gone.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn abort_wide(&self, id: StripeId) -> Result<bool, StripeError> {
        crate::write::abort(&self.inner.writes, id).await
    }

    /// Submits a transaction, retrying until its outcome is known.
    ///
    /// # Errors
    /// [`MetaError::UnknownOutcome`] when it stays unknown.
    pub async fn submit(&self, tx: &Transaction) -> Result<Commit, MetaError> {
        crate::write::submit(&self.inner.runtime, self.inner.meta.as_ref(), tx).await
    }

    /// Starts a put.
    pub fn begin_put(&self) -> PutSession {
        PutSession::new(self.inner.writes.clone())
    }

    /// Creates a separate writer, for a service that writes stripes and must leave nothing behind while the process
    /// lives on.
    ///
    /// # Errors
    /// When the metadata store refuses the registration.
    pub async fn separate_writer(&self) -> Result<SeparateWriter, StripeError> {
        self.inner.writes.separate().await
    }

    /// Reads spans together: one look-up of their stripes and one request to each site, by
    /// [`StripeOptions::read_policy`], around chunks that are missing, damaged or late. Waits for its share of
    /// [`StripeOptions::in_flight_bytes`] and holds it until the result is dropped.
    ///
    /// # Errors
    /// The error of the first span that cannot be read. [`StripeError::Unreadable`] names the missing chunks when
    /// fewer than needed are available.
    pub async fn read_spans(&self, spans: &[Span]) -> Result<BlocksRead, StripeError> {
        self.inner.reads.read_spans(spans, &self.budget, self.source).await
    }

    /// Reads spans as one query and hands out each as soon as it is complete, in any order. Meant for reading ahead
    /// of a receiver: δ is the policy's where that fixes a number, and 0 under the adaptive policy, because here
    /// bytes matter more than the last chunk's latency. The caller accounts for the memory of the spans and of their
    /// δ.
    ///
    /// # Errors
    /// The error of the first span that cannot be read. All readable spans were handed out.
    pub async fn read_ahead(
        &self,
        spans: &[Span],
        hand_out: impl FnMut(usize, Vec<Bytes>) + Send,
    ) -> Result<ReadStats, StripeError> {
        self.inner.reads.read_ahead(spans, &self.budget, self.source, hand_out).await
    }

    /// Reads one span as [`Stripes::read_ahead`] does. Returns its verified bytes in order, as one or more pieces.
    ///
    /// # Errors
    /// As [`Stripes::read_ahead`].
    pub async fn read_span(&self, span: Span) -> Result<Vec<Bytes>, StripeError> {
        let mut read = Vec::new();
        self.read_ahead(&[span], |_, pieces| read = pieces).await?;
        Ok(read)
    }

    /// Explains how whole blocks and extents would be read now in one query by a policy. Sends no request to any
    /// site.
    ///
    /// # Errors
    /// [`StripeError::Unreadable`] when too few chunks of a block are available.
    pub async fn explain(
        &self,
        spans: &[Span],
        policy: &ReadPolicy,
    ) -> Result<QueryExplanation, StripeError> {
        self.inner.reads.explain(spans, policy).await
    }

    /// Waits for a share of [`StripeOptions::in_flight_bytes`], for a caller that holds whole chunks in memory. The
    /// caller must hold no other share.
    pub async fn memory_for(&self, bytes: usize) -> Share {
        self.budget.wait(bytes).await
    }

    /// Puts a block into the memory tier, and nowhere else, in at most `most_splits` splits with `parities` parities.
    /// The block is gone once sites lose or evict too many of its splits.
    ///
    /// # Errors
    /// [`StripeError::TooFewSites`] when too few memory sites take it.
    pub async fn keep_in_memory(
        &self,
        bytes: Bytes,
        most_splits: usize,
        parities: usize,
    ) -> Result<MemoryBlock, StripeError> {
        self.inner.reads.keep(bytes, most_splits, parities).await
    }

    /// Drops blocks that were in memory only and that no metadata names any more.
    pub fn forget_in_memory(&self, blocks: &[records::MemoryBlock], cause: Invalidation) {
        let blocks = blocks.iter().filter_map(|block| block.try_into().ok());
        blocks.for_each(|block| self.inner.reads.forget_in_memory(block, cause));
    }

    /// Makes reads look for cached blocks. Later calls have no effect.
    pub fn set_cache(&self, cache: Arc<dyn BlockCache>) {
        self.inner.reads.set_cache(cache);
    }

    /// Offers a written block to the cache, since reads may follow soon. Metadata need not name it yet: its name is
    /// never reused.
    pub fn written(&self, block: &Block, bytes: &Bytes) {
        self.inner.reads.written(block, bytes);
    }

    /// Forgets the cached record of a changed stripe: the next read looks it up.
    pub fn stripe_changed(&self, stripe: StripeId) {
        self.inner.table.forget(stripe);
    }

    /// Records that a stripe was repaired, so that new damage is reported again.
    pub fn stripe_repaired(&self, stripe: StripeId) {
        self.inner.reads.forget_report(stripe);
    }

    /// Begins a change of where a stripe's chunks are. Returns `None` when the stripe has no row.
    ///
    /// # Errors
    /// When the metadata store fails, or the record is one that no version of this program writes.
    pub async fn change(
        &self,
        id: StripeId,
        priority: Priority,
    ) -> Result<Option<StripeChange<'_>>, StripeError> {
        let Some(stripe) = self.find(id).await? else { return Ok(None) };
        match StripeChange::new(&self.inner.writes, stripe, priority).await {
            // The stripe went away while its wide stripes were looked up.
            Err(StripeError::Inconsistent { .. }) if self.find(id).await?.is_none() => Ok(None),
            change => change.map(Some),
        }
    }

    /// Cancels the changes of a stripe whose owners' leases have ended. Their files become garbage, and owners that
    /// are still alive are fenced. Returns the number of cancelled changes.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn cancel_dead_changes(&self, id: StripeId) -> Result<u64, StripeError> {
        crate::write::cancel_dead(&self.inner.writes, id).await
    }

    /// Adds to `tx` the removal of the stripes of some blocks. It reads the stripe rows and requires them unchanged;
    /// after a conflict, the caller reads again. A row that is already gone is required to stay absent.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn release_blocks(&self, tx: &mut Transaction, blocks: &[Block]) -> Result<(), StripeError> {
        crate::write::release_blocks(&self.inner.table, tx, blocks).await
    }

    /// Adds to `tx` a garbage row for a whole segment; the deleter removes its rows in batches.
    pub fn release_segment(&self, tx: &mut Transaction, segment: &ManifestSegment) {
        crate::write::release_segment(tx, segment);
    }

    /// Adds to `tx` the rows that make the chunks of a part of a multipart upload garbage.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn release_part(&self, tx: &mut Transaction, part: &UploadPart) -> Result<(), StripeError> {
        crate::write::release_part(&self.inner.table, tx, part).await
    }

    /// Drops the blocks of a part that is in memory only. Call it after the transaction of [`Stripes::release_part`].
    pub fn forget_part(&self, part: &UploadPart, cause: Invalidation) {
        if let Some(upload_part::Body::Memory(list)) = &part.body {
            self.forget_in_memory(&list.blocks, cause);
        }
    }

    /// Estimated number of requests so far, sampled or not, extrapolated from the samples.
    pub fn requests(&self) -> u64 {
        let sampling = self.inner.options.sampling.clamp(f64::MIN_POSITIVE, 1.0);
        (self.inner.sampler.totals().observed as f64 / sampling) as u64
    }
}

impl std::fmt::Debug for Stripes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stripes").field("sites", &self.sites().len()).finish_non_exhaustive()
    }
}
