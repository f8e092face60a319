//! The sites of a cluster as seen by another process: clients of all sites with a known address.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use striate_core::{RackId, SiteId};
use striate_meta::records;
use striate_runtime::Runtime;
use striate_site::remote::{RemoteOptions, RemoteSite};
use striate_site::{SecureConnector, Site, SiteDirectory, SiteIdentity};
use striate_trust::Trust;

use crate::membership::messages;

/// The address of a site, and the peer that must answer there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteAddress {
    /// Number of the site.
    pub site: SiteId,
    /// Address as `HOST:PORT`.
    pub address: String,
    /// Failure domain of the site.
    pub rack: RackId,
    /// Name in the certificate of the site's process.
    pub peer: String,
}

impl From<&records::Site> for SiteAddress {
    fn from(site: &records::Site) -> Self {
        let (address, peer) = (site.address.clone(), site.peer.clone());
        Self { site: SiteId(site.id), address, rack: RackId(site.rack.clone()), peer }
    }
}

impl From<messages::Site> for SiteAddress {
    fn from(site: messages::Site) -> Self {
        let messages::Site { site, address, rack, peer, .. } = site;
        Self { site: SiteId(site), address, rack: RackId(rack), peer }
    }
}

impl SiteAddress {
    /// Creates a client of the site, which need not be up yet.
    pub fn connect(&self, runtime: &Runtime, trust: &Trust) -> RemoteSite {
        let identity =
            SiteIdentity { cluster: trust.own_name().cluster, site: self.site, rack: self.rack.clone() };
        let connector = Arc::new(SecureConnector::new(trust.clone(), Some(&self.peer)));
        RemoteSite::new(runtime.clone(), connector, &self.address, identity, RemoteOptions::default())
    }
}

/// Clients of all currently known sites.
pub struct RemoteSites {
    runtime: Runtime,
    trust: Trust,
    clients: Mutex<BTreeMap<SiteId, SiteClient>>,
}

#[derive(Clone)]
struct SiteClient {
    address: SiteAddress,
    site: Arc<dyn Site>,
}

impl RemoteSites {
    /// Creates an empty set.
    pub fn new(runtime: Runtime, trust: Trust) -> Self {
        Self { runtime, trust, clients: Mutex::default() }
    }

    /// Replaces the known sites. Clients of sites whose addresses have not changed stay, with their connections.
    pub fn update(&self, addresses: impl IntoIterator<Item = SiteAddress>) {
        let mut clients = self.clients.lock();
        let mut kept = |address: SiteAddress| {
            let same = clients.remove(&address.site).filter(|client| client.address == address);
            let connect = || Arc::new(address.connect(&self.runtime, &self.trust)) as Arc<dyn Site>;
            let site = same.map_or_else(connect, |client| client.site);
            (address.site, SiteClient { address, site })
        };
        let now: BTreeMap<_, _> = addresses.into_iter().map(&mut kept).collect();
        *clients = now;
    }

    /// Returns all sites in the order of their numbers.
    pub fn all(&self) -> Vec<Arc<dyn Site>> {
        self.clients.lock().values().map(|client| client.site.clone()).collect()
    }
}

impl SiteDirectory for RemoteSites {
    fn site(&self, site: SiteId) -> Option<Arc<dyn Site>> {
        self.clients.lock().get(&site).map(|client| client.site.clone())
    }
}

impl fmt::Debug for RemoteSites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.clients.lock().values().map(|client| &client.address)).finish()
    }
}
