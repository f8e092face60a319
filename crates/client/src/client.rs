//! The client handle.

use std::sync::Arc;

use parking_lot::RwLock;
use striate_core::Profile;
use striate_meta::{MetaStore, Transaction};
use striate_runtime::Runtime;
use striate_site::Site;
use striate_stripe::{BlocksRead, Span, Stored, Stripes};
use tracing::Instrument;

use crate::error::ClientError;
use crate::object::ClientOptions;

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
    pub(crate) default_profile: RwLock<Profile>,
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
        let of_stripes = options.stripes.clone();
        let stripes = Stripes::open(runtime.clone(), meta.clone(), sites, of_stripes).await?;
        let default_profile = RwLock::new(options.profile);
        let inner = Inner { runtime, meta, stripes, options, default_profile };
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

    /// The stripe service below.
    pub fn stripes(&self) -> &Stripes {
        &self.inner.stripes
    }

    /// The profile of objects for which neither the request nor the bucket has one.
    pub fn default_profile(&self) -> Profile {
        *self.inner.default_profile.read()
    }

    /// Changes the default profile for new objects, at first that of [`ClientOptions::profile`].
    pub fn set_default_profile(&self, profile: Profile) {
        *self.inner.default_profile.write() = profile;
    }

    /// Reads blocks and parts of blocks, all at once: one look-up of their stripes, one request for each site, by
    /// [`StripeOptions::read_policy`](striate_stripe::StripeOptions::read_policy). It takes its share of the byte budget,
    /// and keeps it until the answer is dropped.
    ///
    /// # Errors
    /// That of the first span that cannot be read.
    pub async fn read_spans(&self, spans: &[Span]) -> Result<BlocksRead, ClientError> {
        if let Some(sample) = self.inner.stripes.sampler().begin() {
            spans.iter().for_each(|span| sample.add(&span.of));
        }
        self.read_noted_spans(spans).await
    }

    /// As [`Client::read_spans`], of whole blocks and extents.
    ///
    /// # Errors
    /// That of the first one that cannot be read.
    pub async fn read_blocks<S: Clone + Into<Stored>>(
        &self,
        blocks: &[S],
    ) -> Result<BlocksRead, ClientError> {
        let spans: Vec<Span> = blocks.iter().cloned().map(Span::whole).collect();
        self.read_spans(&spans).await
    }

    /// As [`Client::read_spans`], for a request that knows whether it is sampled.
    pub(crate) async fn read_noted_spans(&self, spans: &[Span]) -> Result<BlocksRead, ClientError> {
        let span = tracing::debug_span!("read_blocks", blocks = spans.len() as i64);
        Ok(self.inner.stripes.read_spans(spans).instrument(span).await?)
    }

    /// An empty transaction with an id of its own.
    pub(crate) fn transaction(&self) -> Transaction {
        self.inner.stripes.transaction()
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("stripes", &self.inner.stripes).finish_non_exhaustive()
    }
}
