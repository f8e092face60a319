//! Sites that listen on the loopback interface, certificates of their clusters, and clients of them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use striate_core::{ClusterId, RackId, SiteId};
use striate_runtime::{JoinHandle, Runtime};
use striate_site::protocol::limits::ServiceLimits;
use striate_site::transport_conformance::{chunk, payload};
use striate_site::{
    ByteStream, ChunkStore, Connector, Gate, LocalSite, MemoryStore, Priority, QueueLimits, RemoteOptions,
    RemoteSite, Site, SiteIdentity, TcpConnector, WriteRequest, serve_site,
};
use striate_trust::{Authority, PeerName, Role, Trust};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::oneshot;

pub(super) const CLUSTER: ClusterId = ClusterId(0xc1);

/// Admits every peer with one role, without TLS, so that tests can send handmade bytes.
#[derive(Debug)]
pub(super) struct Open(pub(super) Role);

#[async_trait]
impl Gate for Open {
    async fn admit(&self, stream: Box<dyn ByteStream>) -> std::io::Result<(Box<dyn ByteStream>, PeerName)> {
        Ok((stream, PeerName::new(CLUSTER, self.0, "test").unwrap()))
    }
}

/// The certificate authority of a cluster, and a folder for its certificates.
pub(super) struct Certificates {
    folder: tempfile::TempDir,
    authority: Authority,
}

impl Certificates {
    pub(super) fn new(runtime: &Runtime) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create(runtime, &folder.path().join("ca"), CLUSTER).unwrap();
        Self { folder, authority }
    }

    pub(super) fn trust(&self, runtime: &Runtime, role: Role, name: &str) -> Trust {
        let directory = self.folder.path().join(format!("{role}-{name}"));
        let life = Duration::from_secs(3_600);
        self.authority.issue(runtime, role, name, life).unwrap().write(&directory).unwrap();
        Trust::load(runtime, &directory).unwrap()
    }
}

pub(super) fn identity(site: u32) -> SiteIdentity {
    SiteIdentity { cluster: CLUSTER, site: SiteId(site), rack: RackId(format!("rack-{site}")) }
}

pub(super) fn local(
    runtime: &Runtime,
    site: u32,
    store: Arc<dyn ChunkStore>,
    limits: QueueLimits,
) -> LocalSite {
    LocalSite::new(runtime.clone(), identity(site), store, limits)
}

/// A site that listens on a free port of the loopback interface.
pub(super) struct Served {
    pub(super) address: String,
    pub(super) stop: Option<oneshot::Sender<()>>,
    pub(super) task: JoinHandle<()>,
}

/// What the kernel may take in each direction of a connection between [`serve_narrow`] and [`Narrow`], in bytes; Linux
/// doubles it. Without it the system's settings decide, and 32 MiB a connection are common.
const NARROW_BUFFER: u32 = 64 << 10;

/// Connects by TCP with small buffers, so that little is under way to a receiver that does not read.
#[derive(Debug)]
pub(super) struct Narrow;

#[async_trait]
impl Connector for Narrow {
    async fn connect(&self, address: &str) -> std::io::Result<Box<dyn ByteStream>> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(NARROW_BUFFER)?;
        let stream = socket.connect(address.parse().map_err(std::io::Error::other)?).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}

/// Serves a site whose connections have small buffers to send from.
pub(super) fn serve_narrow(runtime: &Runtime, site: LocalSite, limits: ServiceLimits) -> Served {
    let socket = TcpSocket::new_v4().unwrap();
    // The connections inherit it.
    socket.set_send_buffer_size(NARROW_BUFFER).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    serve_on(runtime, socket.listen(64).unwrap(), Open(Role::Gateway), site, limits)
}

pub(super) async fn serve(runtime: &Runtime, site: LocalSite, limits: ServiceLimits) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    serve_on(runtime, listener, Open(Role::Gateway), site, limits)
}

pub(super) fn serve_on(
    runtime: &Runtime,
    listener: TcpListener,
    gate: impl Gate + 'static,
    site: LocalSite,
    limits: ServiceLimits,
) -> Served {
    let address = listener.local_addr().unwrap().to_string();
    let (stop, stopped) = oneshot::channel();
    let shutdown = async move {
        let _ = stopped.await;
    };
    let serving = serve_site(runtime.clone(), listener, Arc::new(gate), Arc::new(site), limits, shutdown);
    Served { address, stop: Some(stop), task: runtime.spawn(serving) }
}

pub(super) fn remote(runtime: &Runtime, site: u32, address: &str) -> RemoteSite {
    remote_by(runtime, Arc::new(TcpConnector), site, address)
}

pub(super) fn remote_by(
    runtime: &Runtime,
    connector: Arc<dyn Connector>,
    site: u32,
    address: &str,
) -> RemoteSite {
    RemoteSite::new(runtime.clone(), connector, address, identity(site), RemoteOptions::default())
}

pub(super) fn write_request(number: u64, len: usize) -> WriteRequest {
    let (chunk, payload) = (chunk(number), payload(number, len));
    WriteRequest { chunk, payload, granule_crcs: None, priority: Priority::Foreground }
}

/// Serves a site in memory that has chunk 1, of 1,000 bytes.
pub(super) async fn served_memory_site(runtime: &Runtime, limits: ServiceLimits) -> (LocalSite, Served) {
    let site = local(runtime, 1, Arc::new(MemoryStore::default()), QueueLimits::default());
    site.write(write_request(1, 1_000)).await.unwrap();
    let served = serve(runtime, site.clone(), limits).await;
    (site, served)
}
