//! The handle of the stripe service.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use striate_codec::Code;
use striate_core::{FencingEpoch, Formats, Profile, SiteId, StripeId, Tier};
use striate_meta::records::{Block, ManifestSegment, Stripe, UploadPart};
use striate_meta::{Commit, LeaseId, MetaError, MetaStore, Transaction};
use striate_plan::{Candidate, PlacementRule, ReadPolicy, SiteCost};
use striate_runtime::Runtime;
use striate_site::{Priority, Site, SiteError};

use crate::budget::{ByteBudget, Share};
use crate::error::StripeError;
use crate::options::StripeOptions;
use crate::read::{
    BlockCache, BlocksRead, Invalidation, MemoryBlock, QueryExplained, ReadMeasures, ReadStats, Reads,
    Sampler, Source, Span,
};
use crate::sites::{PushView, SiteView, Sites};
use crate::table::{OpenedStripe, ProfileTexts, StripeTable};
use crate::write::{
    Exchange, MemberUpdate, Packer, PutSession, SeparateWriter, StripeChange, WideStep, Writer, Writes,
};

/// Reads and writes stripes, and changes where their chunks are. One for each process; a cheap handle.
#[derive(Clone)]
pub struct Stripes {
    inner: Arc<Inner>,
    source: Source,
}

/// A handle of the stripe service for those whom it holds itself.
#[derive(Clone)]
pub struct WeakStripes(Weak<Inner>);

impl WeakStripes {
    /// The service, as long as somebody else holds it.
    pub fn upgrade(&self) -> Option<Stripes> {
        Some(Stripes { inner: self.0.upgrade()?, source: Source::Nearest })
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
    /// Registers a writer and its epoch with the metadata store.
    ///
    /// # Errors
    /// When the metadata store does not take the registration.
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
        let inner = Inner { runtime, meta, options, table, sites, reads, writes, budget, sampler };
        Ok(Self { inner: Arc::new(inner), source: Source::Nearest })
    }

    /// The runtime that it was given.
    pub fn runtime(&self) -> &Runtime {
        &self.inner.runtime
    }

    /// The metadata store that it was given.
    pub fn meta(&self) -> &Arc<dyn MetaStore> {
        &self.inner.meta
    }

    /// Its options.
    pub fn options(&self) -> &StripeOptions {
        &self.inner.options
    }

    /// Bytes of bodies in memory, within [`StripeOptions::in_flight_bytes`].
    pub fn budget(&self) -> &ByteBudget {
        &self.inner.budget
    }

    /// The statistics of sampled requests.
    pub fn sampler(&self) -> &Arc<Sampler> {
        &self.inner.sampler
    }

    /// What reads took until now.
    pub fn read_measures(&self) -> &ReadMeasures {
        self.inner.reads.measures()
    }

    /// All sites with what is known of them.
    pub fn sites(&self) -> Vec<SiteView> {
        self.inner.sites.views()
    }

    /// One site.
    pub fn site(&self, site: SiteId) -> Option<Arc<dyn Site>> {
        self.inner.sites.get(site)
    }

    /// One site, which something is to be done with.
    ///
    /// # Errors
    /// [`SiteError::Unavailable`] if it is not known.
    pub fn required_site(&self, site: SiteId) -> Result<Arc<dyn Site>, SiteError> {
        self.inner.sites.required(site)
    }

    /// Replaces the set of sites: after a disk was replaced or added.
    pub fn set_sites(&self, sites: Vec<Arc<dyn Site>>) {
        self.inner.sites.replace(Tier::Disk, sites);
    }

    /// Replaces the set of sites of the memory tier. They keep no durable chunks, and none of the other methods knows them.
    pub fn set_memory_sites(&self, sites: Vec<Arc<dyn Site>>) {
        self.inner.sites.replace(Tier::Memory, sites);
    }

    /// The sites of the memory tier that answer, in the order of their numbers.
    pub fn memory_sites(&self) -> Vec<Arc<dyn Site>> {
        self.inner.sites.memory_sites()
    }

    /// A handle whose reads are from where things are kept, and leave no trace in the cache: for services that read what nobody asks
    /// for.
    pub fn past_cache(&self) -> Self {
        Self { inner: self.inner.clone(), source: Source::Kept }
    }

    /// A handle that does not keep the service alive.
    pub fn downgrade(&self) -> WeakStripes {
        WeakStripes(Arc::downgrade(&self.inner))
    }

    /// What sites push of their queues.
    pub fn pushes(&self) -> PushView {
        self.inner.sites.pushes()
    }

    /// Keeps new chunks off a site, or lets them come again.
    pub fn set_draining(&self, site: SiteId, draining: bool) {
        self.inner.sites.set_draining(site, draining);
    }

    /// Sites that take new chunks.
    pub fn candidates(&self) -> Vec<Candidate> {
        self.inner.sites.candidates()
    }

    /// Number of racks among all sites.
    pub fn rack_count(&self) -> usize {
        self.inner.sites.rack_count()
    }

    /// How many sites each rack has, whether they answer or not.
    pub fn rack_sizes(&self) -> Vec<usize> {
        self.inner.sites.rack_sizes()
    }

    /// What reading from each site costs now, of those that answer (o_j and m_j of EC-Store Eq. 1), in their order.
    pub fn site_costs(&self) -> Vec<(SiteId, SiteCost)> {
        let sites = self.inner.sites.snapshot();
        let ids = self.sites().into_iter().map(|view| view.site.id());
        ids.filter_map(|site| Some((site, sites.cost(site)?))).collect()
    }

    /// The formats in force, as far as this process was told: what it may write.
    pub fn formats(&self) -> Formats {
        self.inner.options.formats.get()
    }

    /// The lease under which the intents of this process stand now.
    pub fn writer_lease(&self) -> LeaseId {
        self.inner.writes.writer_lease()
    }

    /// The epoch that this process's deletes carry.
    pub fn epoch(&self) -> FencingEpoch {
        self.inner.writes.epoch()
    }

    /// The code of a profile; built once.
    ///
    /// # Errors
    /// [`StripeError::InvalidArgument`] for parameters that describe no code.
    pub fn code(&self, profile: &Profile) -> Result<Code, StripeError> {
        self.inner.table.code(profile)
    }

    /// The code of a stripe's profile; built once.
    ///
    /// # Errors
    /// As [`Stripes::code`].
    pub fn code_of(&self, stripe: &Stripe) -> Result<Code, StripeError> {
        self.inner.table.code_of(stripe)
    }

    /// With how few sites that take chunks a write of this profile can be acknowledged
    /// ([`StripeOptions::write_surplus`]).
    ///
    /// # Errors
    /// [`StripeError::InvalidArgument`] for parameters that describe no code.
    pub fn sites_needed(&self, profile: &Profile) -> Result<usize, StripeError> {
        Ok(self.inner.writes.sites_needed(&self.code(profile)?))
    }

    /// The rule for the places of a profile's chunks on the racks that there are.
    ///
    /// # Errors
    /// As [`Stripes::code`].
    pub fn placement_rule(&self, profile: &Profile) -> Result<PlacementRule, StripeError> {
        Ok(PlacementRule::new(profile, &self.code(profile)?, self.inner.sites.rack_count()))
    }

    /// Profiles by their texts.
    pub fn profiles(&self) -> &ProfileTexts {
        self.inner.table.profiles()
    }

    /// An empty transaction with an id of its own.
    pub fn transaction(&self) -> Transaction {
        self.inner.table.transaction()
    }

    /// Looks a stripe up. `None` when it has no row.
    ///
    /// # Errors
    /// When the metadata store fails, or the record is one that no version of this program writes.
    pub async fn find(&self, id: StripeId) -> Result<Option<OpenedStripe>, StripeError> {
        self.inner.table.find(id).await
    }

    /// Puts the stripe of a chunk in debt that was found missing or damaged where its record has it, so that repair looks at it.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn report_damage(&self, found: &StripeError) -> Result<(), StripeError> {
        self.inner.table.report_damage(found).await
    }

    /// Makes sure that a set of sites leads to its stripes; answers the set's number. To be called before a
    /// commit that puts a stripe on these sites.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn ensure_placement(&self, sites: &[SiteId]) -> Result<u64, StripeError> {
        self.inner.writes.ensure_placement(sites).await
    }

    /// For whoever packs objects: with its first group it registers under a lease of its own.
    pub fn packer(&self) -> Packer {
        Packer::new(self.inner.writes.clone())
    }

    /// The sealed wide stripe of a stripe's chunk, and the chunk's position in it, from records that agree. `None` where it is in
    /// none.
    ///
    /// # Errors
    /// When the metadata store fails; [`StripeError::Busy`] when their records keep changing.
    pub async fn wide_stripe_of(
        &self,
        stripe: StripeId,
        index: usize,
    ) -> Result<Option<(OpenedStripe, usize)>, StripeError> {
        self.inner.table.wide_stripe_of(stripe, index).await
    }

    /// Goes on with a wide stripe until nothing is left to be done, or nothing can be now.
    ///
    /// # Errors
    /// When the metadata store fails, or its parities cannot be made now.
    pub async fn advance_wide(&self, id: StripeId) -> Result<WideStep, StripeError> {
        crate::write::advance(&self.inner.writes, id).await
    }

    /// A stripe that is sealed is to have parities of its own again. `false` where it has them, or has changed meanwhile.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn narrow_again(&self, id: StripeId) -> Result<bool, StripeError> {
        crate::write::narrow_again(&self.inner.writes, id).await
    }

    /// A stripe drops its own parities, if all its data chunks are in sealed wide stripes and nothing is in debt. `false` where they stay.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn drop_narrow_parities(&self, id: StripeId) -> Result<bool, StripeError> {
        crate::write::drop_parities(&self.inner.writes, id).await
    }

    /// Has the dead members of a wide stripe leave it, together. One of which no member lives goes.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn leave_wide(&self, wide: StripeId) -> Result<Exchange, StripeError> {
        crate::write::leave(&self.inner.writes, wide).await
    }

    /// Gives up a sealed wide stripe of which no member lives. `false`: one does, or others change it now.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn dissolve_wide(&self, wide: StripeId) -> Result<bool, StripeError> {
        crate::write::dissolve(&self.inner.writes, wide).await
    }

    /// Takes a dead stripe down. `false` while a wide stripe has chunks of it as members.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn release_dead(&self, id: StripeId) -> Result<bool, StripeError> {
        crate::write::release_dead(&self.inner.writes, id).await
    }

    /// Whether a chunk at `site` may be the member at a position of a wide stripe, by the rule for places.
    pub fn admits_in_wide(&self, wide: &OpenedStripe, position: usize, site: SiteId) -> bool {
        crate::write::admits_member(&self.inner.writes, wide, position, site)
    }

    /// Puts the data chunk `new` at a position of a sealed wide stripe, where there is a hole or a dead member.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn place_in_wide(
        &self,
        wide: StripeId,
        position: usize,
        new: (StripeId, usize),
    ) -> Result<Exchange, StripeError> {
        crate::write::exchange(&self.inner.writes, wide, position, new).await
    }

    /// Has the local parity of a position's group change places with the member there, which is in another rack of the group.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn swap_local_parity(&self, wide: StripeId, position: usize) -> Result<Exchange, StripeError> {
        crate::write::swap_local_parity(&self.inner.writes, wide, position).await
    }

    /// Changes ranges of a sealed member in place. [`Exchange::NotNow`]: nothing has changed; so it is where the stripe has parities of its
    /// own, the chunk has another content version, or a site that is to take part does not.
    ///
    /// # Errors
    /// When the metadata store fails; it may have changed then or not.
    pub async fn update_in_wide(&self, update: &MemberUpdate<'_>) -> Result<Exchange, StripeError> {
        crate::write::update(&self.inner.writes, update).await
    }

    /// Gives a wide stripe up that is being built; [`Stripes::advance_wide`] then takes it down. `false` when it is sealed, or gone.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn abort_wide(&self, id: StripeId) -> Result<bool, StripeError> {
        crate::write::abort(&self.inner.writes, id).await
    }

    /// Submits a transaction until its outcome is known.
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

    /// For a service that writes stripes and is not to leave anything behind while the process lives on.
    ///
    /// # Errors
    /// When the metadata store does not take the registration.
    pub async fn separate_writer(&self) -> Result<SeparateWriter, StripeError> {
        self.inner.writes.separate().await
    }

    /// Reads spans, all at once: one look-up of their stripes, one request for each site, by
    /// [`StripeOptions::read_policy`], around what is missing, damaged or late. Waits for its share of
    /// [`StripeOptions::in_flight_bytes`], and keeps it until the answer is dropped.
    ///
    /// # Errors
    /// That of the first span that cannot be read: [`StripeError::Unreadable`] names what is missing when fewer chunks than
    /// needed can be had.
    pub async fn read_spans(&self, spans: &[Span]) -> Result<BlocksRead, StripeError> {
        self.inner.reads.read_spans(spans, &self.inner.budget, self.source).await
    }

    /// Reads spans as one query and hands out each as soon as it is complete, in any order. For what is read ahead of a
    /// receiver: δ is that of the policy where it says a number, and none of the adaptive one, for which bytes count more
    /// here than the last chunk's time. Memory is the caller's business: the spans, and their δ.
    ///
    /// # Errors
    /// That of the first span that cannot be read; all others were handed out that can.
    pub async fn read_ahead(
        &self,
        spans: &[Span],
        hand_out: impl FnMut(usize, Vec<Bytes>) + Send,
    ) -> Result<ReadStats, StripeError> {
        self.inner.reads.read_ahead(spans, &self.inner.budget, self.source, hand_out).await
    }

    /// As [`Stripes::read_ahead`], of one span: its bytes, verified, in order, as ready pieces.
    ///
    /// # Errors
    /// As [`Stripes::read_ahead`].
    pub async fn read_span(&self, span: Span) -> Result<Vec<Bytes>, StripeError> {
        let mut read = Vec::new();
        self.read_ahead(&[span], |_, pieces| read = pieces).await?;
        Ok(read)
    }

    /// How blocks and extents, all of each, would be read now in one query by a policy, and why. Asks nothing of a site.
    ///
    /// # Errors
    /// [`StripeError::Unreadable`] when too few chunks of a block can be had.
    pub async fn explain(&self, spans: &[Span], policy: &ReadPolicy) -> Result<QueryExplained, StripeError> {
        self.inner.reads.explain(spans, policy).await
    }

    /// Waits for a share of [`StripeOptions::in_flight_bytes`], for somebody who has whole chunks in memory. It is to have no
    /// other share.
    pub async fn memory_for(&self, bytes: usize) -> Share {
        self.inner.budget.wait(bytes).await
    }

    /// Puts a block into the memory tier, and nowhere else: split into as many as `most_splits`, with so many parities. It is gone when
    /// sites lose too many of its splits, or evict them.
    ///
    /// # Errors
    /// [`StripeError::TooFewSites`] where no memory sites take it.
    pub async fn keep_in_memory(
        &self,
        bytes: Bytes,
        most_splits: usize,
        parities: usize,
    ) -> Result<MemoryBlock, StripeError> {
        self.inner.reads.keep(bytes, most_splits, parities).await
    }

    /// Tells that nothing names a block any more that was in memory only.
    pub fn forget_in_memory(&self, block: MemoryBlock, cause: Invalidation) {
        self.inner.reads.forget_in_memory(block, cause);
    }

    /// Reads look for cached blocks from now on. Later calls change nothing.
    pub fn set_cache(&self, cache: Arc<dyn BlockCache>) {
        self.inner.reads.set_cache(cache);
    }

    /// Tells the cache of a block that was written: readers may come soon. Nothing need name it yet, since its name is never used again.
    pub fn written(&self, block: &Block, bytes: &Bytes) {
        self.inner.reads.written(block, bytes);
    }

    /// Tells that a stripe's record has changed: the next read looks it up.
    pub fn stripe_changed(&self, stripe: StripeId) {
        self.inner.table.forget(stripe);
    }

    /// Tells that a stripe was repaired, so that new damage is reported again.
    pub fn stripe_repaired(&self, stripe: StripeId) {
        self.inner.reads.forget_report(stripe);
    }

    /// A change of where a stripe's chunks are. `None` when it has no row.
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
            // It has gone while its wide stripes were looked up.
            Err(StripeError::Inconsistent { .. }) if self.find(id).await?.is_none() => Ok(None),
            change => change.map(Some),
        }
    }

    /// Cancels the changes of a stripe whose owners' leases have ended: their files become garbage, and owners that live
    /// on all the same are fenced. Answers how many.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn cancel_dead_changes(&self, id: StripeId) -> Result<u64, StripeError> {
        crate::write::cancel_dead(&self.inner.writes, id).await
    }

    /// Adds to `tx` what takes the stripes of some blocks down. Reads the stripe rows and requires them unchanged, so a
    /// conflict means: read again. A row that is gone already is required to stay absent.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn release_blocks(&self, tx: &mut Transaction, blocks: &[Block]) -> Result<(), StripeError> {
        crate::write::release_blocks(&self.inner.table, tx, blocks).await
    }

    /// Adds to `tx` a garbage row for a whole segment; the deleter takes its rows down in batches.
    pub fn release_segment(&self, tx: &mut Transaction, segment: &ManifestSegment) {
        crate::write::release_segment(tx, segment);
    }

    /// Adds to `tx` what makes the chunks of a part of a multipart upload garbage.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn release_part(&self, tx: &mut Transaction, part: &UploadPart) -> Result<(), StripeError> {
        crate::write::release_part(&self.inner.table, tx, part).await
    }

    /// Requests until now, sampled or not, as those that were sampled tell.
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
