//! State shared by all writes of one process: the writer's registration, the placement of neighbours, and known
//! placements.

use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use striate_core::FencingEpoch;
use striate_meta::LeaseId;
use striate_plan::Grouping;
use striate_runtime::Runtime;

use super::intent::Writer;
use super::placements::Placements;
use super::put::PutSession;
use crate::error::StripeError;
use crate::options::StripeOptions;
use crate::sites::Sites;
use crate::table::StripeTable;

/// A bucket, and a key up to its last slash.
pub(super) type Folder = (String, String);

/// Puts under a lease of their own, which ends with their work while the process lives on. The collector then takes
/// over what they leave without a known outcome.
pub struct SeparateWriter(Writes);

impl SeparateWriter {
    /// Starts a put.
    pub fn begin_put(&self) -> PutSession {
        PutSession::new(self.0.clone())
    }

    /// Ends the lease. If that fails, or the value is only dropped, the lease expires.
    pub async fn close(self) {
        let shared = &self.0.shared;
        if let Err(error) = shared.table.meta().revoke_lease(self.0.writer_lease()).await {
            tracing::debug!(%error, "ending the lease of a service failed; it will expire");
        }
    }
}

/// Writes stripes. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Writes {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) runtime: Runtime,
    pub(super) table: Arc<StripeTable>,
    pub(super) sites: Arc<Sites>,
    pub(super) options: StripeOptions,
    pub(super) writer: Writer,
    pub(super) rng: Arc<Mutex<SmallRng>>,
    pub(super) grouping: Mutex<Grouping<Folder>>,
    pub(super) placements: Placements,
}

impl Writes {
    pub(crate) fn new(
        runtime: Runtime,
        table: Arc<StripeTable>,
        sites: Arc<Sites>,
        options: StripeOptions,
        writer: Writer,
        rng: Arc<Mutex<SmallRng>>,
    ) -> Self {
        let (grouping, placements) = (Mutex::default(), Placements::default());
        let shared = Shared { runtime, table, sites, options, writer, rng, grouping, placements };
        Self { shared: Arc::new(shared) }
    }

    /// Creates a writer with the same state under another lease.
    pub(crate) async fn separate(&self) -> Result<SeparateWriter, StripeError> {
        let shared = &self.shared;
        let writer = Writer::open(shared.runtime.clone(), shared.table.meta().clone()).await?;
        let (runtime, table, sites) = (shared.runtime.clone(), shared.table.clone(), shared.sites.clone());
        Ok(SeparateWriter(Self::new(
            runtime,
            table,
            sites,
            shared.options.clone(),
            writer,
            shared.rng.clone(),
        )))
    }

    /// Lease under which the writer reserves names now.
    pub(crate) fn writer_lease(&self) -> LeaseId {
        self.shared.writer.registered().lease
    }

    /// Fencing epoch that the deletes of this process carry.
    pub(crate) fn epoch(&self) -> FencingEpoch {
        self.shared.writer.epoch()
    }
}
