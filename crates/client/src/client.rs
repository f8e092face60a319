//! The client handle.

use std::sync::Arc;

use parking_lot::RwLock;
use striate_core::Profile;
use striate_meta::{MetaStore, Transaction};
use striate_runtime::Runtime;
use striate_site::Site;
use striate_stripe::{BlocksRead, Payer, Span, StoredBytes, Stripes};
use tracing::Instrument;

use crate::error::ClientError;
use crate::object::ClientOptions;

/// The client service. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Clone)]
pub(crate) struct Inner {
    pub(crate) runtime: Runtime,
    pub(crate) meta: Arc<dyn MetaStore>,
    pub(crate) stripes: Stripes,
    pub(crate) options: Arc<ClientOptions>,
    pub(crate) default_profile: Arc<RwLock<Profile>>,
}

impl Client {
    /// Opens a client over a metadata store and the sites known now.
    ///
    /// # Errors
    /// When the metadata store refuses the client's registration.
    pub async fn open(
        runtime: Runtime,
        meta: Arc<dyn MetaStore>,
        sites: Vec<Arc<dyn Site>>,
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        let of_stripes = options.stripes.clone();
        let stripes = Stripes::open(runtime.clone(), meta.clone(), sites, of_stripes).await?;
        let default_profile = Arc::new(RwLock::new(options.profile));
        let inner = Inner { runtime, meta, stripes, options: Arc::new(options), default_profile };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns a handle whose memory for bodies `payer` takes ([`striate_stripe::ByteBudget`]).
    pub fn paid_by(&self, payer: Payer) -> Self {
        let stripes = self.inner.stripes.paid_by(payer);
        Self { inner: Arc::new(Inner { stripes, ..(*self.inner).clone() }) }
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
    pub fn options(&self) -> &ClientOptions {
        &self.inner.options
    }

    /// The stripe service below.
    pub fn stripes(&self) -> &Stripes {
        &self.inner.stripes
    }

    /// Profile of objects for which neither the request nor the bucket has one.
    pub fn default_profile(&self) -> Profile {
        *self.inner.default_profile.read()
    }

    /// Changes the default profile of new objects, which is at first that of [`ClientOptions::profile`].
    pub fn set_default_profile(&self, profile: Profile) {
        *self.inner.default_profile.write() = profile;
    }

    /// Reads blocks and parts of blocks together: one look-up of their stripes and one request to each site, by
    /// [`StripeOptions::read_policy`](striate_stripe::StripeOptions::read_policy). Takes its share of the byte budget
    /// and holds it until the result is dropped.
    ///
    /// # Errors
    /// The error of the first span that cannot be read.
    pub async fn read_spans(&self, spans: &[Span]) -> Result<BlocksRead, ClientError> {
        if let Some(sample) = self.inner.stripes.sampler().begin() {
            spans.iter().for_each(|span| sample.add(&span.of));
        }
        self.read_noted_spans(spans).await
    }

    /// As [`Client::read_spans`], for whole blocks and extents.
    ///
    /// # Errors
    /// The error of the first one that cannot be read.
    pub async fn read_blocks<S: Clone + Into<StoredBytes>>(
        &self,
        blocks: &[S],
    ) -> Result<BlocksRead, ClientError> {
        let spans: Vec<Span> = blocks.iter().cloned().map(Span::whole).collect();
        self.read_spans(&spans).await
    }

    /// As [`Client::read_spans`], for a request whose sampling is already decided.
    pub(crate) async fn read_noted_spans(&self, spans: &[Span]) -> Result<BlocksRead, ClientError> {
        let span = tracing::debug_span!("read_blocks", blocks = spans.len() as i64);
        Ok(self.inner.stripes.read_spans(spans).instrument(span).await?)
    }

    /// Creates an empty transaction with a new id.
    pub(crate) fn transaction(&self) -> Transaction {
        self.inner.stripes.transaction()
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("stripes", &self.inner.stripes).finish_non_exhaustive()
    }
}
