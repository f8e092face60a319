//! A store whose metadata is on a separate engine, shared by any number of processes: gateways, and the leading control
//! process. The sites are other processes; their rows hold their addresses, and this process follows the rows as they
//! change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use striate_cache::Cache;
use striate_client::{Client, ClientOptions};
use striate_commands::failure::{Failure, Outcome};
use striate_control::{Members, MembersError};
use striate_core::{ClusterId, FormatsInForce, SiteId};
use striate_meta::records::{self, site::State as SiteState};
use striate_meta::{MetaError, MetaStore, keys};
use striate_s3::{KeyStore, SealingKey};
use striate_stripe::StripeOptions;
use striate_trust::Trust;

use super::{Cluster, Services, Settings, State};
use crate::remote_sites::{RemoteSites, SiteAddress};
use crate::start::roster::{RequiredFormats, Roster};
use crate::start::sealing::SealingBytes;
use striate_runtime::Runtime;

/// Interval at which the rows are read again, even without a notification.
const PASS_EVERY: Duration = Duration::from_secs(5);
/// Poll interval for the row of a cluster that control has not created yet.
const WAIT_FOR_CLUSTER: Duration = Duration::from_secs(1);
/// Number of copies of a row that a separate engine keeps, which sets the cost of an inline object.
const ENGINE_COPIES: usize = 3;

/// The sites that the metadata names.
pub(super) struct FollowedSites {
    pub(super) sites: Arc<RemoteSites>,
    /// Rows of the sites, without retired ones.
    pub(super) rows: Vec<records::Site>,
    /// Sites of the memory tier.
    pub(super) memory_sites: Arc<RemoteSites>,
    /// Rows of the memory tier's sites.
    pub(super) memory_rows: Vec<records::Site>,
}

impl FollowedSites {
    /// Follows no site yet.
    fn new(runtime: &Runtime, trust: &Trust) -> Self {
        let remote = || Arc::new(RemoteSites::new(runtime.clone(), trust.clone()));
        Self { sites: remote(), rows: Vec::new(), memory_sites: remote(), memory_rows: Vec::new() }
    }
}

impl State {
    /// Returns the state of a process that has no directories of its own: its roster is empty.
    fn without_directories(cluster: ClusterId, followed: FollowedSites) -> Self {
        let roster = Roster {
            generation: 0,
            cluster,
            tolerance: 0,
            next_site: 0,
            members: Vec::new(),
            formats: RequiredFormats::default(),
        };
        Self {
            roster,
            live: BTreeMap::new(),
            compared: BTreeSet::new(),
            missing: Vec::new(),
            ignored: Vec::new(),
            followed: Some(followed),
        }
    }
}

impl Cluster {
    /// Joins the cluster that `trust` belongs to.
    ///
    /// # Errors
    /// If the metadata belongs to another cluster, or does not answer.
    pub async fn join(
        runtime: Runtime,
        meta: Arc<dyn MetaStore>,
        trust: &Trust,
        sealing: SealingBytes,
        settings: Settings,
    ) -> Outcome<Self> {
        settings.check(&runtime)?;
        let id = trust.own_name().cluster;
        let row = wait_for_cluster(&runtime, meta.as_ref(), id).await?;
        let profile = row.profile.parse().map_err(Failure::failed)?;
        let keys =
            KeyStore::new(runtime.clone(), meta.clone(), SealingKey::new(&sealing), settings.given_key);
        let options = ClientOptions {
            profile,
            mirrors: ENGINE_COPIES,
            stripes: StripeOptions { formats: FormatsInForce::new(row.formats()), ..settings.stripes },
            ..ClientOptions::default()
        };
        let client = Client::open(runtime.clone(), meta.clone(), Vec::new(), options).await;
        let client = client.map_err(Failure::failed)?;
        let state = State::without_directories(id, FollowedSites::new(&runtime, trust));
        let keys = Arc::new(keys.map_err(Failure::refused)?);
        let cache = Cache::new(client.stripes(), settings.caching.settings());
        let services = Services {
            meta,
            embedded: None,
            origins: settings.caching.origins(&client, &cache, &keys)?,
            client,
            cache,
            memory: None,
            keys,
            sealing,
        };
        let cluster = Self::assemble(runtime, services, state, settings.upkeep);
        cluster.look_at_sites().await.map_err(Failure::failed)?;
        cluster.warn_of_foreign_sealing_key().await?;
        Ok(cluster)
    }

    /// Updates the client's sites and default profile from the metadata's rows.
    async fn look_at_sites(&self) -> Result<(), MembersError> {
        let inner = &self.inner;
        let members = Members::new(&inner.runtime, inner.services.meta.as_ref());
        let cluster = members.cluster(self.id()).await?;
        inner.services.client.stripes().options().formats.raise(cluster.formats());
        let mut rows = members.sites().await?;
        rows.retain(|row| row.state() != SiteState::Retired);
        let sites = {
            let mut state = inner.state.lock();
            let Some(followed) = state.followed.as_mut() else { return Ok(()) };
            followed.sites.update(rows.iter().map(SiteAddress::from));
            followed.rows.clone_from(&rows);
            followed.sites.all()
        };
        inner.services.client.stripes().set_sites(sites);
        self.follow_memory_sites(members.memory_sites().await?);
        for row in &rows {
            inner.services.client.stripes().set_draining(SiteId(row.id), row.state() == SiteState::Draining);
        }
        match cluster.profile.parse() {
            Ok(profile) => inner.services.client.set_default_profile(profile),
            Err(error) => {
                tracing::warn!(%error, "the cluster's default profile is not understood; it stays as it was")
            }
        }
        Ok(())
    }

    /// Updates the sites of the memory tier from the metadata's rows.
    fn follow_memory_sites(&self, rows: Vec<records::Site>) {
        let sites = {
            let mut state = self.inner.state.lock();
            let Some(followed) = state.followed.as_mut() else { return };
            followed.memory_sites.update(rows.iter().map(SiteAddress::from));
            followed.memory_rows.clone_from(&rows);
            followed.memory_sites.all()
        };
        // Both are in the order of site numbers.
        let bytes = rows.iter().map(|row| row.capacity_bytes);
        self.inner.services.cache.set_sites(sites.into_iter().zip(bytes).collect());
    }

    /// Follows the rows of sites until the task is dropped: a change is seen when the engine reports it, or a little
    /// later.
    pub(crate) async fn follow_sites(self) {
        let runtime = self.inner.runtime.clone();
        let mut changes = None;
        loop {
            if changes.is_none() {
                changes = self.inner.services.meta.watch(keys::SITES).await.ok();
            }
            let looked = self.look_at_sites().await;
            if let Err(error) = looked {
                tracing::warn!(%error, "the sites of the metadata cannot be read; those known stay in use");
            }
            match changes.as_mut() {
                Some(watch) => match runtime.timeout(PASS_EVERY, watch.recv()).await {
                    Ok(Some(_)) | Err(_) => {}
                    Ok(None) => changes = None,
                },
                None => runtime.sleep(PASS_EVERY).await,
            }
        }
    }
}

/// Returns the cluster's row, and waits for the control process to create it.
async fn wait_for_cluster(
    runtime: &Runtime,
    meta: &dyn MetaStore,
    id: ClusterId,
) -> Outcome<records::Cluster> {
    let members = Members::new(runtime, meta);
    let mut said = false;
    loop {
        match members.cluster(id).await {
            Ok(row) => return Ok(row),
            Err(error @ (MembersError::NoCluster | MembersError::Meta(MetaError::Unavailable(_)))) => {
                if !said {
                    tracing::warn!(%error, "waiting");
                }
                said = true;
                runtime.sleep(WAIT_FOR_CLUSTER).await;
            }
            Err(error) => return Err(Failure::refused(error)),
        }
    }
}
