//! A running store: sites, metadata, client and keys over a set of directories.
//!
//! The roster decides who belongs; the rows of the metadata follow it ([`Cluster::open`], `follow_roster`), so a
//! crash between the two is put right at the next start. Changes of members (replacing a disk, admitting one,
//! raising the tolerance) happen one at a time, each in the order: new directory, then every other roster, then
//! metadata, then the client's set of sites.

mod background;
mod members;
mod memory;
mod neighbours;
mod open;
mod report;
mod rows;
mod settings;
mod shared;
mod upgrade;
mod work;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use striate_cache::{Cache, Keeper};
use striate_client::Client;
use striate_commands::failure::{Failure, Outcome};
use striate_control::{Optimiser, Rebalancer, SiteStatistics, Upkeep, UpkeepOptions};
use striate_core::{ClusterId, Profile, SiteId};
use striate_meta::embedded::EmbeddedStore;
use striate_meta::{MetaError, MetaStore, records};
use striate_origin::Origins;
use striate_runtime::{Instant, JoinHandle, Runtime};
use striate_s3::KeyStore;
use striate_site::{Site, StoreStatus};

use super::lock::DirectoryLock;
use super::roster::{Member, Roster};
use super::sealing::SealingBytes;
use super::site::{DiskSite, rack_of};
use shared::Followed;

pub use open::Opened;
pub(super) use open::layout;
pub use settings::{Caching, Settings};

/// A running store. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Runtime,
    started: Instant,
    meta: Arc<dyn MetaStore>,
    /// The same, where it is the embedded one.
    embedded: Option<EmbeddedStore>,
    client: Client,
    cache: Cache,
    origins: Origins,
    /// What knows of the memory site of this process.
    memory: Option<Arc<Keeper>>,
    keys: Arc<KeyStore>,
    sealing: SealingBytes,
    state: Mutex<State>,
    /// Held while members change, so that there is one change at a time.
    changing: tokio::sync::Mutex<()>,
    /// Held while mirrors are restored: the engine adds one at a time.
    restoring: tokio::sync::Mutex<()>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    statistics: SiteStatistics,
    upkeep: Upkeep,
    rebalancer: Rebalancer,
    optimiser: Optimiser,
}

/// What a store is assembled from.
struct Parts {
    meta: Arc<dyn MetaStore>,
    embedded: Option<EmbeddedStore>,
    client: Client,
    cache: Cache,
    origins: Origins,
    memory: Option<Arc<Keeper>>,
    keys: Arc<KeyStore>,
    sealing: SealingBytes,
    state: State,
    upkeep: UpkeepOptions,
}

/// Who is here.
struct State {
    roster: Roster,
    live: BTreeMap<SiteId, Live>,
    /// Blank directories that were named at the start and left alone.
    ignored: Vec<PathBuf>,
    /// Sites in other processes, in place of those on directories.
    followed: Option<Followed>,
}

/// A member that is here.
struct Live {
    member: Member,
    site: DiskSite,
    lock: DirectoryLock,
}

impl Live {
    /// Why its site takes no more writes, if so.
    fn suspect(&self) -> Option<String> {
        self.site.status().suspect
    }

    /// The state of its chunk store.
    fn store_status(&self) -> StoreStatus {
        self.site.status()
    }
}

impl Cluster {
    fn assemble(runtime: Runtime, parts: Parts) -> Self {
        let Parts { meta, embedded, client, cache, origins, memory, keys, sealing, state, upkeep } = parts;
        let inner = Inner {
            started: runtime.now(),
            runtime,
            meta,
            embedded,
            client,
            cache,
            origins,
            memory,
            keys,
            sealing,
            state: Mutex::new(state),
            changing: tokio::sync::Mutex::new(()),
            restoring: tokio::sync::Mutex::new(()),
            tasks: Mutex::default(),
            statistics: SiteStatistics::default(),
            upkeep: Upkeep::new(upkeep),
            rebalancer: Rebalancer::default(),
            optimiser: Optimiser::paused(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The runtime.
    pub fn runtime(&self) -> &Runtime {
        &self.inner.runtime
    }

    /// The client service.
    pub fn client(&self) -> &Client {
        &self.inner.client
    }

    /// The memory tier, as this process sees it.
    pub fn cache(&self) -> &Cache {
        &self.inner.cache
    }

    /// Buckets whose objects are in other stores.
    pub fn origins(&self) -> &Origins {
        &self.inner.origins
    }

    /// What is known of the sites' load; filled while the background work runs.
    pub fn statistics(&self) -> &SiteStatistics {
        &self.inner.statistics
    }

    /// What keeps it whole, if this process does.
    pub fn upkeep(&self) -> &Upkeep {
        &self.inner.upkeep
    }

    /// What drains sites and levels how full they are.
    pub fn rebalancer(&self) -> &Rebalancer {
        &self.inner.rebalancer
    }

    /// What moves chunks to where reads of them cost less; paused until somebody says otherwise.
    pub fn optimiser(&self) -> &Optimiser {
        &self.inner.optimiser
    }

    /// The access keys.
    pub fn keys(&self) -> &Arc<KeyStore> {
        &self.inner.keys
    }

    /// The metadata.
    pub fn meta(&self) -> &Arc<dyn MetaStore> {
        &self.inner.meta
    }

    /// The embedded metadata engine.
    ///
    /// # Errors
    /// Where the metadata are on an engine of its own.
    pub fn embedded(&self) -> Outcome<&EmbeddedStore> {
        self.inner.embedded.as_ref().ok_or_else(|| {
            Failure::refused(
                "this cluster's metadata are on an engine of its own; use that engine's tools for it",
            )
        })
    }

    /// The cluster's identity.
    pub fn id(&self) -> ClusterId {
        self.inner.state.lock().roster.cluster
    }

    /// The default profile.
    pub fn profile(&self) -> Profile {
        self.inner.client.default_profile()
    }

    /// Directories of members that are here.
    pub fn directories(&self) -> Vec<PathBuf> {
        let state = self.inner.state.lock();
        let there = state.live.values().filter(|live| members::still_there(&live.member));
        there.map(|live| live.member.path.clone()).collect()
    }

    /// Reads every row of the embedded engine's mirrors; answers how many there are, and 0 where the metadata are
    /// on an engine of its own.
    ///
    /// # Errors
    /// When the metadata do not serve.
    pub async fn scrub_metadata_now(&self) -> Result<u64, MetaError> {
        match &self.inner.embedded {
            Some(embedded) => embedded.scrub().await,
            None => Ok(0),
        }
    }

    /// Makes metadata mirrors until there are as many as there should be; answers how many were added.
    ///
    /// # Errors
    /// When the metadata does not serve.
    pub async fn restore_mirrors(&self) -> Result<usize, MetaError> {
        let _one_at_a_time = self.inner.restoring.lock().await;
        match &self.inner.embedded {
            Some(embedded) => Ok(embedded.restore_mirrors().await?.len()),
            None => Ok(0),
        }
    }

    /// Stops background work, lets a change of members end, then closes sites and metadata so that the next start
    /// need not recover them.
    pub async fn close(&self) {
        let _no_change = self.inner.changing.lock().await;
        let tasks: Vec<_> = self.inner.tasks.lock().drain(..).collect();
        tasks.iter().for_each(JoinHandle::abort);
        let sites: Vec<_> = self.inner.state.lock().live.values().map(|live| live.site.clone()).collect();
        for site in sites {
            site.close().await;
        }
        if let Some(embedded) = &self.inner.embedded {
            embedded.close().await;
        }
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl State {
    /// The sites that are here.
    fn sites(&self) -> Vec<Arc<dyn Site>> {
        match &self.followed {
            Some(followed) => followed.sites.all(),
            None => self.live.values().map(|live| live.site.site()).collect(),
        }
    }

    /// The rows of the sites that belong to the cluster.
    fn site_rows(&self) -> Vec<records::Site> {
        let local = |member: &Member| records::Site {
            id: member.site.0,
            rack: rack_of(member).0,
            address: member.path.display().to_string(),
            disk: member.disk.0.to_vec().into(),
            ..records::Site::default()
        };
        match &self.followed {
            Some(followed) => followed.rows.clone(),
            None => self.roster.members.iter().map(local).collect(),
        }
    }
}
