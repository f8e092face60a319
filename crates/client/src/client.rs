//! The client handle.

use std::sync::Arc;

use parking_lot::RwLock;
use striate_codec::Code;
use striate_core::{FencingEpoch, Profile, SiteId, StripeId};
use striate_meta::records::Block;
use striate_meta::{MetaStore, Transaction};
use striate_plan::{Candidate, SiteCost};
use striate_runtime::Runtime;
use striate_site::Site;
use tracing::Instrument;

use crate::budget::{ByteBudget, Share};
use crate::error::ClientError;
use crate::measure::ReadMeasures;
use crate::object::ClientOptions;
use crate::record::ProfileTexts;
use crate::sampling::Sampler;
use crate::stripe::{BlocksRead, SiteView, Stripes};

/// The client service: a cheap handle.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) runtime: Runtime,
    pub(crate) meta: Arc<dyn MetaStore>,
    pub(crate) stripes: Stripes,
    pub(crate) options: ClientOptions,
    pub(crate) budget: ByteBudget,
    pub(crate) profiles: ProfileTexts,
    pub(crate) default_profile: RwLock<Profile>,
    pub(crate) sampler: Arc<Sampler>,
}

impl Client {
    /// Opens a client over a metadata store and the sites known now.
    ///
    /// # Errors
    /// When the metadata store does not take the client's registration.
    pub async fn open(
        runtime: Runtime,
        meta: Arc<dyn MetaStore>,
        sites: Vec<Arc<dyn Site>>,
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        let stripes = Stripes::open(runtime.clone(), meta.clone(), sites, options.clone()).await?;
        let budget = ByteBudget::new(options.in_flight_bytes);
        let profiles = ProfileTexts::default();
        let sampler = Arc::new(Sampler::new(options.sampling, options.co_access));
        let default_profile = RwLock::new(options.profile);
        let inner = Inner { runtime, meta, stripes, options, budget, profiles, default_profile, sampler };
        Ok(Self { inner: Arc::new(inner) })
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
    pub fn options(&self) -> &ClientOptions {
        &self.inner.options
    }

    /// All sites with what is known of them.
    pub fn sites(&self) -> Vec<SiteView> {
        self.inner.stripes.sites().views()
    }

    /// One site.
    pub fn site(&self, site: SiteId) -> Option<Arc<dyn Site>> {
        self.inner.stripes.sites().get(site)
    }

    /// Replaces the set of sites: after a disk was replaced or added.
    pub fn set_sites(&self, sites: Vec<Arc<dyn Site>>) {
        self.inner.stripes.sites().replace(sites);
    }

    /// The profile of objects for which neither the request nor the bucket has one.
    pub fn default_profile(&self) -> Profile {
        *self.inner.default_profile.read()
    }

    /// Changes the default profile for new objects, at first that of [`ClientOptions::profile`].
    pub fn set_default_profile(&self, profile: Profile) {
        *self.inner.default_profile.write() = profile;
    }

    /// Keeps new chunks off a site, or lets them come again.
    pub fn set_draining(&self, site: SiteId, draining: bool) {
        self.inner.stripes.sites().set_draining(site, draining);
    }

    /// Sites that take new chunks.
    pub fn candidates(&self) -> Vec<Candidate> {
        self.inner.stripes.sites().candidates()
    }

    /// What reading from each site costs now, of those that answer (o_j and m_j of EC-Store Eq. 1), in their order.
    pub fn site_costs(&self) -> Vec<(SiteId, SiteCost)> {
        let sites = self.inner.stripes.sites().snapshot();
        let ids = self.sites().into_iter().map(|view| view.site.id());
        ids.filter_map(|site| Some((site, sites.cost(site)?))).collect()
    }

    /// Number of racks among all sites.
    pub fn rack_count(&self) -> usize {
        self.inner.stripes.sites().rack_count()
    }

    /// The epoch that this client's deletes carry.
    pub fn epoch(&self) -> FencingEpoch {
        self.inner.stripes.epoch()
    }

    /// The code of a profile; built once.
    ///
    /// # Errors
    /// [`ClientError::InvalidArgument`] for parameters that describe no code.
    pub fn code(&self, profile: &Profile) -> Result<Code, ClientError> {
        self.inner.stripes.code(profile)
    }

    /// Makes sure that a set of sites leads to its stripes; answers the set's number. To be called before a
    /// commit that puts a stripe on these sites.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn ensure_placement(&self, sites: &[SiteId]) -> Result<u64, ClientError> {
        self.inner.stripes.ensure_placement(sites).await
    }

    /// Reads whole blocks, all at once: one look-up of their stripes, one request for each site, by
    /// [`ClientOptions::read_policy`]. Blocks that this does not deliver are read one by one around what failed.
    /// Waits for its share of [`ClientOptions::in_flight_bytes`], and keeps it until the answer is dropped.
    ///
    /// # Errors
    /// That of the first block that cannot be read.
    pub async fn read_blocks(&self, blocks: &[Block]) -> Result<BlocksRead, ClientError> {
        if let Some(sample) = self.inner.sampler.begin() {
            blocks.iter().for_each(|block| sample.add(block));
        }
        self.read_noted_blocks(blocks).await
    }

    /// As [`Client::read_blocks`], for a request that knows whether it is sampled.
    pub(crate) async fn read_noted_blocks(&self, blocks: &[Block]) -> Result<BlocksRead, ClientError> {
        let span = tracing::debug_span!("read_blocks", blocks = blocks.len() as i64);
        self.inner.stripes.read_blocks(blocks, &self.inner.budget).instrument(span).await
    }

    /// Waits for a share of [`ClientOptions::in_flight_bytes`], for somebody who has whole chunks in memory. It is to have no
    /// other share.
    pub async fn memory_for(&self, bytes: usize) -> Share {
        self.inner.budget.acquire(bytes).await
    }

    /// What reads took until now.
    pub fn read_measures(&self) -> &ReadMeasures {
        self.inner.stripes.measures()
    }

    /// An empty transaction with an id of its own.
    pub fn transaction(&self) -> Transaction {
        self.inner.stripes.transaction()
    }

    /// Tells that a stripe was repaired, so that new damage is reported again.
    pub fn stripe_repaired(&self, stripe: StripeId) {
        self.inner.stripes.forget_report(stripe);
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("sites", &self.sites().len()).finish_non_exhaustive()
    }
}
