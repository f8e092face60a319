//! The sites that a process knows. It polls their rows, as the gateways and the leader of a cluster do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use striate_client::Client;
use striate_control::Members;
use striate_core::SiteId;
use striate_meta::MetaError;
use striate_meta::records::site::State;
use striate_site::Site;
use striate_virtual_network::Machine;

use super::cluster::Cluster;
use super::mutation;
use super::steps::{SteppedSite, Steps};

/// Poll interval.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The sites that a process knows.
#[derive(Debug)]
pub struct KnownSites {
    here: Machine,
    steps: Option<Steps>,
    handles: Mutex<BTreeMap<SiteId, Arc<dyn Site>>>,
}

impl KnownSites {
    /// Creates the known sites of a process on this machine. With `steps`, the requests of its services are observed.
    pub fn new(here: Machine, steps: Option<Steps>) -> Self {
        Self { here, steps, handles: Mutex::default() }
    }

    /// Sets the client's sites to those of the rows.
    ///
    /// # Errors
    /// If the metadata store fails; the client then keeps the sites that it knew.
    pub async fn follow(&self, cluster: &Cluster, client: &Client) -> Result<(), MetaError> {
        let mut rows = Members::new(client.runtime(), client.meta().as_ref()).sites().await?;
        rows.retain(|row| row.state() != State::Retired);
        let mut handles = self.handles.lock();
        handles.retain(|site, _| rows.iter().any(|row| row.id == site.0));
        for site in rows.iter().map(|row| SiteId(row.id)) {
            if !handles.contains_key(&site)
                && let Some(handle) = self.handle(cluster, site)
            {
                handles.insert(site, handle);
            }
        }
        client.stripes().set_sites(handles.values().cloned().collect());
        for row in &rows {
            client.stripes().set_draining(SiteId(row.id), row.state() == State::Draining);
        }
        Ok(())
    }

    /// `None`: the site no longer exists, or not yet.
    fn handle(&self, cluster: &Cluster, site: SiteId) -> Option<Arc<dyn Site>> {
        let distant: Arc<dyn Site> = Arc::new(cluster.site_from(self.here, site)?);
        Some(match &self.steps {
            Some(steps) => {
                let mutated = mutation::site(cluster.mutation, distant, cluster);
                Arc::new(SteppedSite::new(mutated, steps.clone()))
            }
            None => distant,
        })
    }
}

/// Follows the rows until the task is dropped.
pub async fn follow(cluster: &Cluster, client: &Client, known_sites: KnownSites) {
    loop {
        cluster.runtime.sleep(LOOK_EVERY).await;
        // If the rows cannot be read, the known sites stay in use.
        let _ = known_sites.follow(cluster, client).await;
    }
}
