//! Stripes: blocks in, chunks on sites out, by the rules of design.md §10.
//!
//! - [`sites`]: the sites known now and which of them answer.
//! - [`intent`]: the writer's reservations of stripe names, which fence unfinished puts.
//! - [`write`]: encode a block, write its chunks, name it in a transaction.
//! - [`segment`]: the block rows of large objects.
//! - [`load`]: o_j, the estimate of a site's queue.
//! - [`transfer`]: m_j, what a byte costs at a site.
//! - [`query`]: a read of many blocks by a policy, with one request for each site.
//! - [`planning`]: the plan of such a read.
//! - [`gathering`]: a block of such a read while its chunks arrive.
//! - [`answers`]: the requests of a query that are under way, and which of them are late.
//! - [`arrival`]: when a chunk of a query should have come.
//! - [`explain`]: the plan of such a read, and why it is so.
//! - [`patience`]: how long a read waits before it asks other chunks, where nothing is predicted.
//! - [`probes`]: what the published policy learns and solves in the background.
//! - [`read`]: the normal read, and the degraded one around missing, slow or corrupt chunks.
//! - [`release`]: un-name stripes, which makes their chunks garbage.

mod answers;
mod arrival;
mod damage;
mod explain;
mod gathering;
mod intent;
mod load;
mod patience;
mod planning;
mod probes;
mod query;
mod read;
mod release;
mod segment;
mod sites;
mod transfer;
mod write;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use rand::rngs::SmallRng;
use striate_codec::Code;
use striate_core::{FencingEpoch, Profile, SiteId, StripeId};
use striate_meta::{MetaStore, Transaction, TxId, keys, records};
use striate_plan::{Grouping, PublishedPlanner, QueryPlanner, ReadPolicy};
use striate_runtime::Runtime;
use striate_site::Site;

use crate::error::ClientError;
use crate::measure::ReadMeasures;
use crate::object::ClientOptions;
use crate::record::ProfileTexts;
use arrival::{Arrivals, HedgeBudget};
use damage::DamageReports;
pub use explain::{BlockExplained, ChunkChoice, ChunkExplained, QueryExplained, SiteExplained};
use intent::Writer;
use patience::Patience;
pub use query::{BlocksRead, ReadStats};
pub use release::{add_garbage, release_stripe};
pub(crate) use segment::SegmentWriter;
pub(crate) use sites::Sites;
pub use sites::{CostPart, SiteView};
use write::Folder;
pub(crate) use write::{Neighbours, PutSession, StoredBlock};

/// Objects of at most this many blocks carry their block list in their own record; the transaction that
/// replaces one such object by another then stays under the limits of design.md §10.8.
pub(crate) const MAX_LISTED_BLOCKS: usize = 6;

/// Reads and writes stripes. One for each client; a cheap handle.
#[derive(Clone)]
pub(crate) struct Stripes {
    shared: Arc<Shared>,
}

struct Shared {
    runtime: Runtime,
    meta: Arc<dyn MetaStore>,
    options: ClientOptions,
    sites: Sites,
    patience: Patience,
    arrivals: Arrivals,
    hedge_budget: HedgeBudget,
    measures: ReadMeasures,
    writer: Writer,
    rng: Mutex<SmallRng>,
    planner: Mutex<QueryPlanner>,
    published: Mutex<PublishedPlanner<StripeId>>,
    grouping: Mutex<Grouping<Folder>>,
    codes: RwLock<HashMap<Profile, Code>>,
    profiles: ProfileTexts,
    /// Placements whose rows are known to exist.
    placements: RwLock<HashSet<u64>>,
    damage: DamageReports,
}

impl Stripes {
    /// Registers a writer and its epoch with the metadata store.
    pub(crate) async fn open(
        runtime: Runtime,
        meta: Arc<dyn MetaStore>,
        sites: Vec<Arc<dyn Site>>,
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        let writer = Writer::open(runtime.clone(), meta.clone()).await?;
        let shared = Shared {
            sites: Sites::new(runtime.clone(), sites),
            patience: Patience::new(options.hedge_after, options.read_deadline),
            arrivals: Arrivals::new(),
            hedge_budget: HedgeBudget::default(),
            measures: ReadMeasures::default(),
            rng: Mutex::new(runtime.rng()),
            planner: Mutex::default(),
            published: Mutex::default(),
            grouping: Mutex::default(),
            runtime,
            meta,
            options,
            writer,
            codes: RwLock::default(),
            profiles: ProfileTexts::default(),
            placements: RwLock::default(),
            damage: DamageReports::default(),
        };
        let stripes = Self { shared: Arc::new(shared) };
        if let ReadPolicy::Published { .. } = stripes.shared.options.read_policy {
            stripes.probe_in_background();
        }
        Ok(stripes)
    }

    /// The sites known now.
    pub(crate) fn sites(&self) -> &Sites {
        &self.shared.sites
    }

    /// What reads took until now.
    pub(crate) fn measures(&self) -> &ReadMeasures {
        &self.shared.measures
    }

    /// The epoch that this client's deletes carry.
    pub(crate) fn epoch(&self) -> FencingEpoch {
        self.shared.writer.epoch()
    }

    /// The code of a profile; built once.
    pub(crate) fn code(&self, profile: &Profile) -> Result<Code, ClientError> {
        if let Some(code) = self.shared.codes.read().get(profile) {
            return Ok(code.clone());
        }
        let code = profile.code.build().map_err(|error| ClientError::InvalidArgument(error.to_string()))?;
        self.shared.codes.write().insert(*profile, code.clone());
        Ok(code)
    }

    /// Starts a put.
    pub(crate) async fn begin_put(&self) -> Result<PutSession, ClientError> {
        Ok(PutSession::new(self.clone()))
    }

    /// Makes sure that the rows of a set of sites exist, so that a site leads to its stripes, and answers the
    /// set's number. Written in a transaction of its own at the set's first use; the rows stay.
    pub(crate) async fn ensure_placement(&self, sites: &[SiteId]) -> Result<u64, ClientError> {
        let placement = keys::placement_of(sites.iter().copied());
        if self.shared.placements.read().contains(&placement) {
            return Ok(placement);
        }
        let record = records::Placement { sites: sites.iter().map(|site| site.0).collect() };
        let value = records::encode(&record);
        for batch in sites.chunks(64) {
            let mut tx = self.transaction();
            for &site in batch {
                tx.put(keys::placement(site, placement), value.clone());
            }
            self.shared.meta.commit(tx).await?;
        }
        self.shared.placements.write().insert(placement);
        Ok(placement)
    }

    /// An empty transaction with an id of its own.
    pub(crate) fn transaction(&self) -> Transaction {
        let (high, low) = (self.shared.runtime.random_u64(), self.shared.runtime.random_u64());
        Transaction::new(TxId(u128::from(high) << 64 | u128::from(low)))
    }
}

/// The stripe id in a block record.
pub(crate) fn stripe_id(bytes: &Bytes) -> Result<StripeId, ClientError> {
    let id: Result<[u8; 16], _> = bytes.as_ref().try_into();
    id.map(StripeId::from_bytes).map_err(|_| ClientError::Inconsistent {
        what: "a block".to_owned(),
        reason: format!("its stripe id has {} bytes instead of 16", bytes.len()),
    })
}

/// The sites that hold a chunk of the stripe.
pub fn holders(stripe: &records::Stripe) -> Vec<SiteId> {
    stripe
        .locations
        .iter()
        .filter(|location| location.site != 0)
        .map(|location| SiteId(location.site))
        .collect()
}
