//! Chunk bytes over loopback: reads of 128 KiB from a site in memory, 32 in flight, over the site protocol.
//!
//! `cargo run --release -p striate-site --example wire_bench [REQUEST_KIB [IN_FLIGHT]]`
//!
//! It takes turns between bare TCP in frames of the same size, the site protocol without TLS, and the site
//! protocol with TLS, as processes use it. The ratios show what HTTP, checksums and TLS cost on this
//! machine, whatever else runs on it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use striate_core::{ChunkId, ChunkRange, ClusterId, Generation, RackId, SiteId, StripeId};
use striate_runtime::Runtime;
use striate_site::protocol::limits::ServiceLimits;
use striate_site::{
    ByteStream, Connector, Gate, LocalSite, MemoryStore, Priority, QueueLimits, ReadRequest, RemoteOptions,
    RemoteSite, SecureConnector, Site, SiteIdentity, TcpConnector, WriteRequest, serve_site,
};
use striate_trust::{Authority, PeerName, Role, Trust};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn chunk() -> ChunkId {
    ChunkId { stripe: StripeId::new(1, 1), index: 0, generation: Generation(1) }
}

struct Figures {
    gb_per_s: f64,
    cpu_s_per_gb: f64,
    p50: Duration,
    p99: Duration,
}

async fn measure<F>(runtime: &Runtime, len: usize, in_flight: usize, start: impl Fn() -> F) -> Figures
where
    F: Future<Output = Vec<Duration>> + Send + 'static,
{
    let (began, cpu) = (runtime.now(), cpu_seconds());
    let tasks: Vec<_> = (0..in_flight).map(|_| runtime.spawn(start())).collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await.expect("the task ends"));
    }
    let gb = (latencies.len() * len) as f64 / 1e9;
    let (elapsed, cpu) = ((runtime.now() - began).as_secs_f64(), cpu_seconds() - cpu);
    latencies.sort();
    Figures {
        gb_per_s: gb / elapsed,
        cpu_s_per_gb: cpu / gb,
        p50: latencies[latencies.len() / 2],
        p99: latencies[latencies.len() * 99 / 100],
    }
}

fn print(name: &str, figures: &Figures) {
    let Figures { gb_per_s, cpu_s_per_gb, p50, p99 } = figures;
    println!(
        "{name:<14} {gb_per_s:>6.2} GB/s  {cpu_s_per_gb:>6.3} CPU s/GB  p50 {p50:>9.1?}  p99 {p99:>9.1?}"
    );
}

async fn bare_tcp_server(listener: TcpListener, runtime: Runtime, payload: Bytes) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let payload = payload.clone();
        runtime.spawn(async move {
            let _ = stream.set_nodelay(true);
            let mut request = [0; 64];
            while stream.read_exact(&mut request).await.is_ok() {
                if stream.write_all(&payload).await.is_err() {
                    return;
                }
            }
        });
    }
}

async fn bare_tcp_reads(
    runtime: Runtime,
    address: String,
    len: usize,
    until: striate_runtime::Instant,
) -> Vec<Duration> {
    let mut stream = TcpStream::connect(address).await.expect("the server listens");
    stream.set_nodelay(true).expect("it is a TCP connection");
    let mut latencies = Vec::new();
    while runtime.now() < until {
        let start = runtime.now();
        stream.write_all(&[0; 64]).await.expect("the server takes the request");
        let mut payload = vec![0; len];
        stream.read_exact(&mut payload).await.expect("the server answers");
        latencies.push(runtime.now() - start);
    }
    latencies
}

async fn site_reads(
    runtime: Runtime,
    site: Arc<dyn Site>,
    len: usize,
    until: striate_runtime::Instant,
) -> Vec<Duration> {
    let mut latencies = Vec::new();
    while runtime.now() < until {
        let start = runtime.now();
        let ranges = vec![ChunkRange { chunk: chunk(), offset: 0, len: len as u32 }];
        let mut replies = site.read(ReadRequest { ranges, priority: Priority::Foreground, deadline: None });
        let reply = replies.next().await.expect("a reply").result.expect("the chunk is there");
        assert_eq!(reply.len(), len);
        latencies.push(runtime.now() - start);
    }
    latencies
}

/// Admits every peer, without TLS.
#[derive(Debug)]
struct Open;

#[async_trait]
impl Gate for Open {
    async fn admit(&self, stream: Box<dyn ByteStream>) -> io::Result<(Box<dyn ByteStream>, PeerName)> {
        Ok((stream, PeerName::new(ClusterId(1), Role::Gateway, "bench").map_err(io::Error::other)?))
    }
}

fn trust(runtime: &Runtime, folder: &Path, authority: &Authority, role: Role, name: &str) -> Trust {
    let directory = folder.join(name);
    let issued = authority.issue(runtime, role, name, Duration::from_secs(3_600)).expect("a certificate");
    issued.write(&directory).expect("the folder can be written");
    Trust::load(runtime, &directory).expect("an identity")
}

/// Serves the site on a free port and connects to it.
async fn serve(
    runtime: &Runtime,
    site: &Arc<LocalSite>,
    gate: Arc<dyn Gate>,
    connector: Arc<dyn Connector>,
) -> Arc<dyn Site> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it listens").to_string();
    let (limits, never) = (ServiceLimits::default(), std::future::pending());
    runtime.spawn(serve_site(runtime.clone(), listener, gate, Arc::clone(site), limits, never));
    let (identity, options) = (site.identity().clone(), RemoteOptions::default());
    Arc::new(RemoteSite::new(runtime.clone(), connector, &address, identity, options))
}

async fn run(runtime: Runtime, len: usize, in_flight: usize) {
    let identity = SiteIdentity { cluster: ClusterId(1), site: SiteId(1), rack: RackId("r".to_owned()) };
    let store = Arc::new(MemoryStore::default());
    let local = LocalSite::new(runtime.clone(), identity.clone(), store, QueueLimits::default());
    let payload = Bytes::from(vec![0x5a; len]);
    let request = WriteRequest {
        chunk: chunk(),
        payload: payload.clone(),
        granule_crcs: None,
        priority: Priority::Foreground,
    };
    local.write(request).await.expect("there is room");

    let folder = tempfile::tempdir().expect("a temporary folder");
    let authority = Authority::create(&runtime, folder.path(), identity.cluster).expect("an authority");
    let issue = |role, name| trust(&runtime, folder.path(), &authority, role, name);
    let (of_site, of_gateway) = (issue(Role::Site, "s"), issue(Role::Gateway, "g"));
    let local = Arc::new(local);
    let open = serve(&runtime, &local, Arc::new(Open), Arc::new(TcpConnector)).await;
    let secure = SecureConnector::new(of_gateway, Some("s"));
    let secure = serve(&runtime, &local, Arc::new(of_site), Arc::new(secure)).await;

    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let bare = listener.local_addr().expect("it listens").to_string();
    runtime.spawn(bare_tcp_server(listener, runtime.clone(), payload));

    let turn = Duration::from_secs(3);
    for _ in 0..3 {
        let until = runtime.now() + turn;
        let reads = || bare_tcp_reads(runtime.clone(), bare.clone(), len, until);
        let floor = measure(&runtime, len, in_flight, reads).await;
        print("bare TCP", &floor);
        let mut before = floor;
        for (name, site) in [("site protocol", &open), ("with TLS", &secure)] {
            let until = runtime.now() + turn;
            let reads = || site_reads(runtime.clone(), Arc::clone(site), len, until);
            let now = measure(&runtime, len, in_flight, reads).await;
            print(name, &now);
            let (speed, cost) = (now.gb_per_s / before.gb_per_s, now.cpu_s_per_gb / before.cpu_s_per_gb);
            println!("{:14} {speed:>6.2} of the line above {cost:>6.2} times its processor time", "");
            before = now;
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let (kib, in_flight) = (arguments.next().unwrap_or(128), arguments.next().unwrap_or(32));
    let event_loop = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    event_loop.expect("an event loop").block_on(async { run(Runtime::real(), kib << 10, in_flight).await });
}
