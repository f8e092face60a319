//! A running store: sites, metadata, client and keys over a set of directories.
//!
//! The roster decides which directories belong to the store. The rows of the metadata follow it ([`Cluster::open`],
//! `follow_roster`), so the next start repairs the effects of a crash between the two. Changes of members (replacing a
//! disk, admitting one, raising the tolerance) happen one at a time, each in this order: new directory, then every
//! other roster, then metadata, then the client's set of sites.

mod background;
mod default_profile;
mod fullness;
mod health;
mod leaving;
mod losses;
mod members;
mod memory;
mod neighbours;
mod open;
mod report;
mod returning;
mod rows;
mod settings;
mod shared;
mod upgrade;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

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
use super::plan::MissingMember;
use super::roster::{Member, Roster};
use super::sealing::SealingBytes;
use super::site::{DiskSite, rack_of};
use health::LOOK_TIMEOUT;
use shared::FollowedSites;

use crate::audit_log::AuditLog;

pub use health::{Health, Refused};
pub use leaving::LeavingDisk;
pub use open::OpenedCluster;
pub(super) use open::layout;
pub use settings::{Caching, Settings};

/// Time for each step of closing a store. One of the steps waits for the disks.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// A running store. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Runtime,
    started: Instant,
    services: Services,
    state: Mutex<State>,
    /// Held while members change, so that only one change runs at a time.
    changing: tokio::sync::Mutex<()>,
    /// The last look at the store for a health check, and when it ended.
    health: tokio::sync::Mutex<Option<(Instant, Health)>>,
    /// Held while mirrors are restored: the engine adds one at a time.
    restoring: tokio::sync::Mutex<()>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// What the start found that an operator must know, for `striate status`.
    found_at_start: Mutex<Vec<String>>,
    /// The audit log, if there is one.
    audit: OnceLock<Arc<AuditLog>>,
    statistics: SiteStatistics,
    upkeep: Upkeep,
    rebalancer: Rebalancer,
    optimiser: Optimiser,
    fullness: fullness::Fullness,
    attempts: returning::Attempts,
}

/// What serves requests, over the sites.
struct Services {
    meta: Arc<dyn MetaStore>,
    /// Embedded engine, if `meta` is one.
    embedded: Option<EmbeddedStore>,
    client: Client,
    cache: Cache,
    origins: Origins,
    /// Keeper of this process's memory site.
    memory: Option<Arc<Keeper>>,
    keys: Arc<KeyStore>,
    sealing: SealingBytes,
}

/// The members that are present.
struct State {
    roster: Roster,
    live: BTreeMap<SiteId, LiveMember>,
    /// Sites whose disks are back, and whose chunks are being compared with the metadata.
    compared: BTreeSet<SiteId>,
    /// Members that the start went on without.
    missing: Vec<MissingMember>,
    /// Blank directories that were named at the start and left alone.
    ignored: Vec<PathBuf>,
    /// Sites in other processes, instead of those on directories.
    followed: Option<FollowedSites>,
}

/// A member that is present.
struct LiveMember {
    member: Member,
    site: DiskSite,
    lock: DirectoryLock,
}

impl LiveMember {
    /// Returns why its site accepts no more writes; `None` if it accepts them.
    fn suspect(&self) -> Option<String> {
        self.site.status().suspect
    }

    /// Returns whether its directory is still the one that was opened, as was seen last. Waits for no disk.
    fn is_there(&self) -> bool {
        self.site.status().vanished.is_none()
    }

    /// Returns whether its directory is there and its disk answers, as was seen last.
    fn answers(&self) -> bool {
        self.is_there() && self.site.status().silent.is_none()
    }

    /// Returns the state of its chunk store.
    fn store_status(&self) -> StoreStatus {
        self.site.status()
    }
}

impl Cluster {
    fn assemble(runtime: Runtime, services: Services, state: State, upkeep: UpkeepOptions) -> Self {
        let inner = Inner {
            started: runtime.now(),
            runtime,
            services,
            state: Mutex::new(state),
            changing: tokio::sync::Mutex::new(()),
            health: tokio::sync::Mutex::default(),
            restoring: tokio::sync::Mutex::new(()),
            tasks: Mutex::default(),
            found_at_start: Mutex::default(),
            audit: OnceLock::new(),
            statistics: SiteStatistics::default(),
            upkeep: Upkeep::new(upkeep),
            rebalancer: Rebalancer::default(),
            optimiser: Optimiser::paused(),
            fullness: fullness::Fullness::default(),
            attempts: returning::Attempts::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the runtime.
    pub fn runtime(&self) -> &Runtime {
        &self.inner.runtime
    }

    /// Returns the client service.
    pub fn client(&self) -> &Client {
        &self.inner.services.client
    }

    /// Returns the memory tier, as this process sees it.
    pub fn cache(&self) -> &Cache {
        &self.inner.services.cache
    }

    /// Returns the buckets whose objects are in other stores.
    pub fn origins(&self) -> &Origins {
        &self.inner.services.origins
    }

    /// Returns the statistics of the sites' load, collected while the background work runs.
    pub fn statistics(&self) -> &SiteStatistics {
        &self.inner.statistics
    }

    /// Returns the upkeep service, which keeps the store complete if this process runs it.
    pub fn upkeep(&self) -> &Upkeep {
        &self.inner.upkeep
    }

    /// Returns the service that drains sites and balances how full they are.
    pub fn rebalancer(&self) -> &Rebalancer {
        &self.inner.rebalancer
    }

    /// Returns the service that moves chunks to where reads of them cost less; paused by default.
    pub fn optimiser(&self) -> &Optimiser {
        &self.inner.optimiser
    }

    /// Returns the access keys.
    pub fn keys(&self) -> &Arc<KeyStore> {
        &self.inner.services.keys
    }

    /// Returns the metadata.
    pub fn meta(&self) -> &Arc<dyn MetaStore> {
        &self.inner.services.meta
    }

    /// Returns the embedded metadata engine.
    ///
    /// # Errors
    /// If the metadata is on a separate engine.
    pub fn embedded(&self) -> Outcome<&EmbeddedStore> {
        self.inner.services.embedded.as_ref().ok_or_else(|| {
            Failure::refused(
                "this cluster's metadata are on an engine of its own; use that engine's tools for it",
            )
        })
    }

    /// Logs what the start found, and shows it in the status of this process until it ends.
    pub fn warn(&self, warning: String) {
        tracing::error!("{warning}");
        self.inner.found_at_start.lock().push(warning);
    }

    /// Lets status and health checks report what is wrong with the audit log.
    pub fn set_audit_log(&self, audit: Arc<AuditLog>) {
        // A process has one.
        let _ = self.inner.audit.set(audit);
    }

    /// Returns the cluster's identity.
    pub fn id(&self) -> ClusterId {
        self.inner.state.lock().roster.cluster
    }

    /// Returns the default profile.
    pub fn profile(&self) -> Profile {
        self.inner.services.client.default_profile()
    }

    /// Returns the directories of the members that are present.
    pub fn directories(&self) -> Vec<PathBuf> {
        let state = self.inner.state.lock();
        let present = state.live.values().filter(|live| live.is_there());
        present.map(|live| live.member.path.clone()).collect()
    }

    /// Looks at the directories of this process, so that what is known of each is new. Does not wait for a disk that hangs.
    pub async fn look_at_directories(&self) {
        let sites: Vec<_> = self.inner.state.lock().live.values().map(|live| live.site.clone()).collect();
        let looks = sites.iter().map(|site| self.inner.runtime.timeout(LOOK_TIMEOUT, site.look()));
        futures::future::join_all(looks).await;
    }

    /// Returns the directories whose disks answer nothing, as was seen last.
    pub fn silent_directories(&self) -> Vec<PathBuf> {
        let state = self.inner.state.lock();
        let silent = state.live.values().filter(|live| live.store_status().silent.is_some());
        silent.map(|live| live.member.path.clone()).collect()
    }

    /// Reads every row of the embedded engine's mirrors. Returns the number of rows, or 0 if the metadata is on a
    /// separate engine.
    ///
    /// # Errors
    /// If the metadata does not serve.
    pub async fn scrub_metadata_now(&self) -> Result<u64, MetaError> {
        match &self.inner.services.embedded {
            Some(embedded) => embedded.scrub().await,
            None => Ok(0),
        }
    }

    /// Restores metadata mirrors until there are as many as there should be. Returns the number added.
    ///
    /// # Errors
    /// If the metadata does not serve.
    pub async fn restore_mirrors(&self) -> Result<usize, MetaError> {
        let _one_at_a_time = self.inner.restoring.lock().await;
        match &self.inner.services.embedded {
            Some(embedded) => Ok(embedded.restore_mirrors().await?.len()),
            None => Ok(0),
        }
    }

    /// Stops background work, waits for a change of members to end, then closes sites and metadata so that the next
    /// start need not recover them. What hangs is given up after [`CLOSE_TIMEOUT`]: everything acknowledged is on the
    /// disks, and the next start recovers it from there.
    pub async fn close(&self) {
        let runtime = &self.inner.runtime;
        // A change of members that hangs has its own steps, each of which may be the last.
        let _no_change = runtime.timeout(CLOSE_TIMEOUT, self.inner.changing.lock()).await;
        let tasks: Vec<_> = self.inner.tasks.lock().drain(..).collect();
        tasks.iter().for_each(JoinHandle::abort);
        let sites: Vec<_> = {
            let state = self.inner.state.lock();
            state.live.values().map(|live| (live.member.clone(), live.site.clone())).collect()
        };
        let closes = sites.iter().map(|(member, site)| async move {
            match runtime.timeout(CLOSE_TIMEOUT, site.close()).await {
                Ok(()) => Some(member.site),
                Err(_) => {
                    let directory = member.path.display();
                    tracing::error!(%directory, "the disk does not answer; it is left as it is");
                    None
                }
            }
        });
        let mut closed: Vec<SiteId> = futures::future::join_all(closes).await.into_iter().flatten().collect();
        if let Some(embedded) = &self.inner.services.embedded
            && runtime.timeout(CLOSE_TIMEOUT, embedded.close()).await.is_err()
        {
            tracing::error!("the metadata is not closed in good order: a disk with a mirror does not answer");
            closed.clear();
        }
        self.release(&closed);
    }

    /// Releases the directories that were closed, so that another server can use them at once. If some hang, this process
    /// cannot end before their disks answer: the kernel keeps its threads.
    fn release(&self, closed: &[SiteId]) {
        let mut state = self.inner.state.lock();
        closed.iter().for_each(|site| drop(state.live.remove(site)));
        if !state.live.is_empty() {
            // Nobody must wait for what hangs, as whoever drops the last handle would.
            std::mem::forget(self.clone());
        }
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl State {
    /// Returns the sites that are present.
    fn sites(&self) -> Vec<Arc<dyn Site>> {
        match &self.followed {
            Some(followed) => followed.sites.all(),
            None => self.live.values().map(|live| live.site.site()).collect(),
        }
    }

    /// Returns the rows of the sites that belong to the cluster.
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
