//! A store whose metadata are on an engine of its own, which any number of processes share: gateways, and the control
//! process that leads. The sites are other processes; their rows say where they are, and are followed as they change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use striate_cache::Cache;
use striate_client::{Client, ClientOptions};
use striate_commands::failure::{Failure, Outcome};
use striate_control::{Members, MembersError};
use striate_core::{InForce, SiteId};
use striate_meta::records::{self, site::State as SiteState};
use striate_meta::{MetaError, MetaStore, keys};
use striate_s3::{KeyStore, SealingKey};
use striate_stripe::StripeOptions;
use striate_trust::Trust;

use super::{Cluster, Parts, Settings, State};
use crate::remote_sites::{RemoteSites, SiteAddress};
use crate::start::roster::{RequiredFormats, Roster};
use crate::start::sealing::SealingBytes;
use striate_runtime::Runtime;

/// The rows are looked at again after this time, whether a change was told or not.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Pause between two looks for the row of a cluster that control has not made yet.
const WAIT_FOR_CLUSTER: Duration = Duration::from_secs(1);
/// How many copies of a row an engine of its own keeps: what an inline object takes.
const ENGINE_COPIES: usize = 3;

/// The sites that the metadata name.
pub(super) struct Followed {
    pub(super) sites: Arc<RemoteSites>,
    /// Their rows; retired ones are left out.
    pub(super) rows: Vec<records::Site>,
    /// Those of the memory tier,
    pub(super) memory_sites: Arc<RemoteSites>,
    /// and theirs.
    pub(super) memory_rows: Vec<records::Site>,
}

impl Cluster {
    /// Joins the cluster that `trust` belongs to.
    ///
    /// # Errors
    /// When the metadata are another cluster's, or do not answer.
    pub async fn join(
        runtime: Runtime,
        meta: Arc<dyn MetaStore>,
        trust: &Trust,
        sealing: SealingBytes,
        settings: Settings,
    ) -> Outcome<Self> {
        let id = trust.own_name().cluster;
        let row = wait_for_cluster(&runtime, meta.as_ref(), id).await?;
        let profile = row.profile.parse().map_err(Failure::failed)?;
        let keys =
            KeyStore::new(runtime.clone(), meta.clone(), SealingKey::new(&sealing), settings.given_key);
        let options = ClientOptions {
            profile,
            mirrors: ENGINE_COPIES,
            stripes: StripeOptions { formats: InForce::new(row.formats()), ..settings.stripes },
            ..ClientOptions::default()
        };
        let client = Client::open(runtime.clone(), meta.clone(), Vec::new(), options).await;
        let client = client.map_err(Failure::failed)?;
        let remote = || Arc::new(RemoteSites::new(runtime.clone(), trust.clone()));
        let followed =
            Followed { sites: remote(), rows: Vec::new(), memory_sites: remote(), memory_rows: Vec::new() };
        let roster = Roster {
            generation: 0,
            cluster: id,
            tolerance: 0,
            next_site: 0,
            members: Vec::new(),
            formats: RequiredFormats::default(),
        };
        let followed = Some(followed);
        let state = State { roster, live: BTreeMap::new(), ignored: Vec::new(), followed };
        let keys = Arc::new(keys.map_err(Failure::refused)?);
        let cache = Cache::new(client.stripes(), settings.caching.settings());
        let parts = Parts {
            meta,
            embedded: None,
            origins: settings.caching.origins(&client, &cache, &keys)?,
            client,
            cache,
            memory: None,
            keys,
            sealing,
            state,
            upkeep: settings.upkeep,
        };
        let cluster = Self::assemble(runtime, parts);
        cluster.look_at_sites().await.map_err(Failure::failed)?;
        Ok(cluster)
    }

    /// Makes the client's sites and default profile those of the metadata's rows.
    async fn look_at_sites(&self) -> Result<(), MembersError> {
        let inner = &self.inner;
        let members = Members::new(&inner.runtime, inner.meta.as_ref());
        let cluster = members.cluster(self.id()).await?;
        inner.client.stripes().options().formats.raise(cluster.formats());
        let mut rows = members.sites().await?;
        rows.retain(|row| row.state() != SiteState::Retired);
        let sites = {
            let mut state = inner.state.lock();
            let Some(followed) = state.followed.as_mut() else { return Ok(()) };
            followed.sites.update(rows.iter().map(SiteAddress::from));
            followed.rows.clone_from(&rows);
            followed.sites.all()
        };
        inner.client.stripes().set_sites(sites);
        self.follow_memory_sites(members.memory_sites().await?);
        for row in &rows {
            inner.client.stripes().set_draining(SiteId(row.id), row.state() == SiteState::Draining);
        }
        match cluster.profile.parse() {
            Ok(profile) => inner.client.set_default_profile(profile),
            Err(error) => {
                tracing::warn!(%error, "the cluster's default profile is not understood; it stays as it was")
            }
        }
        Ok(())
    }

    /// Makes the sites of the memory tier those of the metadata's rows.
    fn follow_memory_sites(&self, rows: Vec<records::Site>) {
        let sites = {
            let mut state = self.inner.state.lock();
            let Some(followed) = state.followed.as_mut() else { return };
            followed.memory_sites.update(rows.iter().map(SiteAddress::from));
            followed.memory_rows.clone_from(&rows);
            followed.memory_sites.all()
        };
        // Both are in the order of their numbers.
        let bytes = rows.iter().map(|row| row.capacity_bytes);
        self.inner.cache.set_sites(sites.into_iter().zip(bytes).collect());
    }

    /// Follows the rows of sites for ever: what changes is seen when the engine tells it, or a little later.
    pub(crate) async fn follow_sites(self) {
        let runtime = self.inner.runtime.clone();
        let mut changes = None;
        loop {
            if changes.is_none() {
                changes = self.inner.meta.watch(keys::SITES).await.ok();
            }
            let looked = self.look_at_sites().await;
            if let Err(error) = looked {
                tracing::warn!(%error, "the sites of the metadata cannot be read; those known stay in use");
            }
            match changes.as_mut() {
                Some(watch) => match runtime.timeout(LOOK_EVERY, watch.recv()).await {
                    Ok(Some(_)) | Err(_) => {}
                    Ok(None) => changes = None,
                },
                None => runtime.sleep(LOOK_EVERY).await,
            }
        }
    }
}

/// The cluster's row; waits for the control process to make it.
async fn wait_for_cluster(
    runtime: &Runtime,
    meta: &dyn MetaStore,
    id: striate_core::ClusterId,
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
