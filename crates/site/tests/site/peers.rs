//! Peers that are not who they must be: unknown ones, those of other clusters, other sites, and replayed bytes.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use striate_core::{ClusterId, FencingEpoch, RackId, SiteId};
use striate_runtime::Runtime;
use striate_site::protocol::hello::encode_hello;
use striate_site::protocol::limits::ServiceLimits;
use striate_site::transport_conformance::{chunk, payload};
use striate_site::{
    DeleteRequest, MemoryStore, QueueLimits, RemoteOptions, RemoteSite, SecureConnector, Site, SiteError,
    TcpConnector, connect,
};
use striate_trust::{Role, Trust};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::fixture::{
    CLUSTER, Certificates, identity, local, remote, serve_on, served_memory_site, write_request,
};
use super::raw_requests::Raw;

/// Everything that passes through a proxy, in order of arrival.
type Recording = Arc<Mutex<Vec<u8>>>;

/// Starts a proxy in front of `address` that records what clients send; returns its own address.
async fn recording_proxy(runtime: &Runtime, address: String) -> (String, Recording) {
    let (listener, recording) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Recording::default());
    let (own, kept, spawner) =
        (listener.local_addr().unwrap().to_string(), recording.clone(), runtime.clone());
    runtime.spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (server, kept) = (TcpStream::connect(&address).await.unwrap(), kept.clone());
            let ((mut from, mut back), (mut replies, mut on)) = (client.into_split(), server.into_split());
            spawner.spawn(async move { tokio::io::copy(&mut replies, &mut back).await });
            spawner.spawn(async move {
                let mut bytes = [0; 4096];
                while let Ok(len @ 1..) = from.read(&mut bytes).await {
                    kept.lock().extend_from_slice(&bytes[..len]);
                    on.write_all(&bytes[..len]).await.unwrap();
                }
            });
        }
    });
    (own, recording)
}

#[tokio::test]
async fn what_was_recorded_on_the_way_is_worth_nothing() {
    let runtime = Runtime::real();
    let certificates = Certificates::new(&runtime);
    let site = local(&runtime, 1, Arc::new(MemoryStore::default()), QueueLimits::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gate = certificates.trust(&runtime, Role::Site, "one");
    let served = serve_on(&runtime, listener, gate, site.clone(), ServiceLimits::default());
    let (proxy, recording) = recording_proxy(&runtime, served.address.clone()).await;
    let trust = certificates.trust(&runtime, Role::Gateway, "gateway");
    let connector = Arc::new(SecureConnector::new(trust, Some("one")));
    let remote = RemoteSite::new(runtime.clone(), connector, &proxy, identity(1), RemoteOptions::default());
    remote.write(write_request(1, 5_000)).await.unwrap();
    let secret = payload(1, 5_000);
    let recorded = recording.lock().clone();
    assert!(
        recorded.len() > 5_000 && !recorded.windows(64).any(|window| window == &secret[..64]),
        "it is hidden"
    );
    drop(remote);

    let chunk = vec![chunk(1)];
    site.delete(DeleteRequest { chunks: chunk, epoch: FencingEpoch(1) }).await.unwrap();
    // Replays the recording: whole, without its first bytes, and from the middle on.
    for start in [0, 5, recorded.len() / 2] {
        let mut again = TcpStream::connect(&served.address).await.unwrap();
        let _ = again.write_all(&recorded[start..]).await;
        let mut answer = Vec::new();
        let _ = again.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    }
    assert_eq!(site.status().await.unwrap().store.chunks, 0, "the write was not done again");
}

#[tokio::test]
async fn unknown_peers_are_refused_before_they_can_ask_and_take_nobodys_place() {
    let runtime = Runtime::real();
    let (certificates, others) = (Certificates::new(&runtime), Certificates::new(&runtime));
    let site = local(&runtime, 1, Arc::new(MemoryStore::default()), QueueLimits::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let limits = ServiceLimits {
        handshakes: 4,
        connections: 4,
        handshake: Duration::from_millis(300),
        ..ServiceLimits::default()
    };
    let served = serve_on(&runtime, listener, certificates.trust(&runtime, Role::Site, "one"), site, limits);
    let connect = |trust: Trust, name| {
        let connector = Arc::new(SecureConnector::new(trust, name));
        RemoteSite::new(runtime.clone(), connector, &served.address, identity(1), RemoteOptions::default())
    };
    let friend = connect(certificates.trust(&runtime, Role::Gateway, "g"), Some("one"));
    friend.status().await.unwrap();
    for (role, certificates) in [(Role::Gateway, &others), (Role::Admin, &certificates)] {
        let error = connect(certificates.trust(&runtime, role, "g"), None).status().await.unwrap_err();
        assert!(matches!(error, SiteError::Unavailable(_)), "{error}");
    }
    let error = connect(certificates.trust(&runtime, Role::Gateway, "g"), Some("two")).status().await;
    assert!(error.unwrap_err().to_string().contains("the site one answers there, not the site two"));
    // Plain HTTP, and connections that stay silent: more than there are places.
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(TcpStream::connect(&served.address).await.unwrap());
    }
    friend.status().await.unwrap();
    for stream in &mut silent {
        assert_eq!(
            stream.read(&mut [0; 64]).await.unwrap_or(0),
            0,
            "it is closed after the handshake's time"
        );
    }
    let (status, _) =
        Raw::open(&served.address).await.send("POST", "/striate/v1/hello", &encode_hello(CLUSTER)).await;
    assert_eq!(status, 0);
    friend.write(write_request(1, 5_000)).await.unwrap();
}

#[tokio::test]
async fn connecting_tells_other_clusters_and_other_sites_apart() {
    let runtime = Runtime::real();
    let (_, served) = served_memory_site(&runtime, ServiceLimits::default()).await;
    let open = async |cluster| {
        let (connector, options) = (Arc::new(TcpConnector), RemoteOptions::default());
        connect(runtime.clone(), connector, &served.address, cluster, options).await
    };
    let site = open(CLUSTER).await.unwrap();
    assert_eq!((site.id(), site.rack()), (SiteId(1), RackId("rack-1".to_owned())));
    assert!(open(ClusterId(5)).await.unwrap_err().to_string().contains("another cluster"));
    let error = remote(&runtime, 7, &served.address).status().await.unwrap_err().to_string();
    assert!(error.contains("site 1 answers there"), "{error}");
    let error =
        remote(&runtime, 7, &served.address).write(write_request(1, 5)).await.unwrap_err().to_string();
    assert!(error.contains("site 1 answers there"), "{error}");
}
