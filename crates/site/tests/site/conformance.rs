//! The transport conformance suite on a site in this process and on one behind TLS.

use std::sync::Arc;

use parking_lot::Mutex;
use striate_runtime::Runtime;
use striate_site::protocol::limits::ServiceLimits;
use striate_site::transport_conformance::{self, GatedStore};
use striate_site::{RemoteOptions, RemoteSite, SecureConnector, Site};
use striate_trust::Role;
use tokio::net::TcpListener;

use super::fixture::{Certificates, identity, local, serve_on};

#[tokio::test]
async fn a_site_in_this_process_conforms() {
    let runtime = Runtime::real();
    let make = |store: Arc<GatedStore>, limits| {
        let site: Arc<dyn Site> = Arc::new(local(&runtime, 1, store, limits));
        async move { site }
    };
    transport_conformance::run(runtime.clone(), make).await;
}

#[tokio::test]
async fn a_site_behind_tls_conforms() {
    let runtime = Runtime::real();
    let (kept, certificates) = (Mutex::new(Vec::new()), Certificates::new(&runtime));
    let gate = certificates.trust(&runtime, Role::Site, "one");
    let trust = certificates.trust(&runtime, Role::Gateway, "gateway");
    let connector = Arc::new(SecureConnector::new(trust, Some("one")));
    let make = async |store: Arc<GatedStore>, limits| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let site = local(&runtime, 1, store, limits);
        let served = serve_on(&runtime, listener, gate.clone(), site, ServiceLimits::default());
        let (connector, options) = (connector.clone(), RemoteOptions::default());
        let site: Arc<dyn Site> =
            Arc::new(RemoteSite::new(runtime.clone(), connector, &served.address, identity(1), options));
        kept.lock().push(served);
        site
    };
    transport_conformance::run(runtime.clone(), make).await;
}
