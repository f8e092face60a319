//! The transport conformance suite on a local site and on one behind TCP, and what only concerns the network: unknown
//! peers, malformed bytes, restarts, shutdown, combine trees over several sites.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use parking_lot::Mutex;
use proptest::prelude::*;
use striate_codec::{accumulate, crc32c};
use striate_core::{ChunkId, ChunkRange, ClusterId, FencingEpoch, LoadReport, RackId, SiteId};
use striate_runtime::{JoinHandle, Runtime};
use striate_site::filesystem::SimulatedFileSystem;
use striate_site::protocol::frame::{READ_HEAD_LEN, ReadBody, WriteHead};
use striate_site::protocol::hello::encode_hello;
use striate_site::protocol::limits::{MAX_CANCELLED, MAX_REQUEST_LEN, ServiceLimits};
use striate_site::transport_conformance::{self, GatedStore, chunk, payload, term};
use striate_site::{
    AssembleRequest, ByteStream, ChunkStore, CombineRequest, CombineSource, Connector, DeleteRequest,
    DiskStore, DiskStoreOptions, Gate, LocalSite, LocalTerm, MemoryStore, Priority, QueueLimits, ReadRequest,
    RemoteOptions, RemoteSite, SecureConnector, Site, SiteDirectory, SiteError, SiteIdentity, TcpConnector,
    Window, WriteRequest, connect, serve_site,
};
use striate_trust::{Authority, PeerName, Role, Trust};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

const CLUSTER: ClusterId = ClusterId(0xc1);

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
struct Certificates {
    folder: tempfile::TempDir,
    authority: Authority,
}

impl Certificates {
    fn new(runtime: &Runtime) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create(runtime, &folder.path().join("ca"), CLUSTER).unwrap();
        Self { folder, authority }
    }

    fn trust(&self, runtime: &Runtime, role: Role, name: &str) -> Trust {
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
    let connector = Arc::new(TcpConnector);
    RemoteSite::new(runtime.clone(), connector, address, identity(site), RemoteOptions::default())
}

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

#[derive(Debug, Default)]
struct Directory(Mutex<BTreeMap<SiteId, Arc<dyn Site>>>);

impl SiteDirectory for Directory {
    fn site(&self, site: SiteId) -> Option<Arc<dyn Site>> {
        self.0.lock().get(&site).cloned()
    }
}

fn write_request(number: u64, len: usize) -> WriteRequest {
    let (chunk, payload) = (chunk(number), payload(number, len));
    WriteRequest { chunk, payload, granule_crcs: None, priority: Priority::Foreground }
}

async fn combined(site: &dyn Site, request: CombineRequest) -> Result<Vec<u8>, SiteError> {
    let mut sum = Vec::new();
    let mut slices = site.combine(request);
    while let Some(slice) = slices.next().await {
        sum.extend_from_slice(&slice?);
    }
    Ok(sum)
}

/// Serves sites 1 to 3, each with the chunk of its number, which can reach each other.
async fn three_remote_sites(runtime: &Runtime) -> (Arc<Directory>, Vec<Served>) {
    let directory = Arc::new(Directory::default());
    let mut served = Vec::new();
    for number in 1..=3u32 {
        let site = local(runtime, number, Arc::new(MemoryStore::default()), QueueLimits::default());
        let known: Weak<dyn SiteDirectory> = Arc::downgrade(&(Arc::clone(&directory) as _));
        site.set_directory(known);
        site.write(write_request(number.into(), 300_000)).await.unwrap();
        let listening = serve(runtime, site, ServiceLimits::default()).await;
        let remote: Arc<dyn Site> = Arc::new(remote(runtime, number, &listening.address));
        directory.0.lock().insert(SiteId(number), remote);
        served.push(listening);
    }
    (directory, served)
}

#[tokio::test]
async fn a_combine_tree_over_remote_sites_gives_the_sum_and_names_the_site_that_fails() {
    let runtime = Runtime::real();
    let (directory, _served) = three_remote_sites(&runtime).await;
    let request = |number: u64, upstream: Vec<CombineSource>| CombineRequest {
        offset: 11,
        len: 250_000,
        slice_len: 64 << 10,
        local: vec![term(number as u8 + 4, number, 300_000)],
        upstream,
        priority: Priority::Repair,
    };
    let source = |site: u32, request| CombineSource { site: SiteId(site), request };
    let chain = request(1, vec![source(2, request(2, vec![source(3, request(3, Vec::new()))]))]);
    let root = directory.site(SiteId(1)).unwrap();
    let mut expected = vec![0; 250_000];
    for number in 1..=3u64 {
        accumulate(number as u8 + 4, &payload(number, 300_000)[11..250_011], &mut expected);
    }
    assert_eq!(combined(root.as_ref(), chain).await, Ok(expected));

    let lost = request(1, vec![source(2, request(9, Vec::new()))]);
    assert_eq!(combined(root.as_ref(), lost).await, Err(SiteError::Missing(chunk(9))));
    directory.0.lock().remove(&SiteId(3));
    let unknown = request(1, vec![source(2, request(2, vec![source(3, request(3, Vec::new()))]))]);
    let error = combined(root.as_ref(), unknown).await.unwrap_err().to_string();
    assert!(error.contains("site 2") && error.contains("site 3"), "{error}");
}

/// The bytes go from site to site, not through the caller.
#[tokio::test]
async fn a_chunk_is_made_at_one_remote_site_out_of_those_of_others() {
    let runtime = Runtime::real();
    let (directory, _served) = three_remote_sites(&runtime).await;
    let sum = |local, upstream| CombineRequest {
        offset: 0,
        len: 300_000,
        slice_len: 64 << 10,
        local,
        upstream,
        priority: Priority::Repair,
    };
    let source = |number: u32| {
        let term = term(number as u8, number.into(), 300_000);
        CombineSource { site: SiteId(number), request: sum(vec![term], Vec::new()) }
    };
    let mut expected = vec![0; 300_000];
    for number in 1..=2u64 {
        accumulate(number as u8, &payload(number, 300_000), &mut expected);
    }
    let request = AssembleRequest {
        chunk: chunk(7),
        crc32c: crc32c(&expected),
        combination: sum(Vec::new(), vec![source(1), source(2)]),
        windows: Vec::new(),
    };
    let third = directory.site(SiteId(3)).unwrap();
    third.assemble(request.clone()).await.unwrap();
    assert_eq!(third.verify(chunk(7)).await.unwrap().crc32c, request.crc32c);

    directory.0.lock().remove(&SiteId(2));
    let again = AssembleRequest { chunk: chunk(8), ..request };
    let error = third.assemble(again).await.unwrap_err().to_string();
    assert!(error.contains("site 2"), "{error}");
}

/// An update of a chunk sends only what has changed, which may be all of a chunk of maximum length.
#[tokio::test]
async fn windows_come_from_other_sites_and_with_the_request_up_to_a_whole_chunk() {
    let runtime = Runtime::real();
    let (directory, _served) = three_remote_sites(&runtime).await;
    let sum = |offset, len, local, upstream| CombineRequest {
        offset,
        len,
        slice_len: 64 << 10,
        local,
        upstream,
        priority: Priority::Background,
    };
    // A parity at site 3 is updated in a range by the difference of two chunks at other sites.
    let (offset, len) = (70_001, 100_000);
    let source = |number: u32| {
        let term = term(9, number.into(), 300_000);
        CombineSource { site: SiteId(number), request: sum(offset, len, vec![term], Vec::new()) }
    };
    let mut expected = payload(3, 300_000).to_vec();
    for number in 1..=2u64 {
        let range = offset as usize..(offset + len) as usize;
        accumulate(9, &payload(number, 300_000)[range.clone()], &mut expected[range]);
    }
    let third = directory.site(SiteId(3)).unwrap();
    let request = AssembleRequest {
        chunk: chunk(7),
        crc32c: crc32c(&expected),
        combination: sum(0, 300_000, vec![term(1, 3, 300_000)], Vec::new()),
        windows: vec![Window::Sum(sum(offset, len, Vec::new(), vec![source(1), source(2)]))],
    };
    third.assemble(request.clone()).await.unwrap();
    assert_eq!(third.verify(chunk(7)).await.unwrap().crc32c, request.crc32c);
    // Without its windows it is a different chunk and is refused. So is the result of a site that ignores windows.
    let without = AssembleRequest { chunk: chunk(8), windows: Vec::new(), ..request };
    assert!(matches!(third.assemble(without).await, Err(SiteError::BadRequest(_))));

    let longest = Bytes::from(vec![7; 64 << 20]);
    let (payload, priority) = (Bytes::from(vec![1; 64 << 20]), Priority::Background);
    third.write(WriteRequest { chunk: chunk(20), payload, granule_crcs: None, priority }).await.unwrap();
    let replaced = AssembleRequest {
        chunk: chunk(21),
        crc32c: crc32c(&longest),
        combination: sum(0, 64 << 20, vec![term(1, 20, 64 << 20)], Vec::new()),
        windows: vec![Window::Bytes { offset: 0, bytes: longest.clone() }],
    };
    third.assemble(replaced).await.unwrap();
    assert_eq!(third.verify(chunk(21)).await.unwrap().crc32c, crc32c(&longest));
}

/// Builds a tree over `terms`; `choices` decide which terms a node keeps, and which go to which child.
fn tree(terms: &[(SiteId, u8, ChunkId)], choices: &mut impl Iterator<Item = u8>) -> CombineSource {
    let (site, _, _) = terms[0];
    let mut groups: BTreeMap<u8, Vec<(SiteId, u8, ChunkId)>> = BTreeMap::new();
    let own = |by, chunk| LocalTerm { by, chunk, len: 1_000 };
    let mut local = vec![own(terms[0].1, terms[0].2)];
    let rest = &terms[1..];
    for term in rest {
        match choices.next().unwrap_or(0) % 4 {
            0 if term.0 == site => local.push(own(term.1, term.2)),
            group => groups.entry(group).or_default().push(*term),
        }
    }
    let upstream = groups.values().map(|group| tree(group, choices)).collect();
    let (offset, len, slice_len, priority) = (3, 900, 256, Priority::Repair);
    CombineSource { site, request: CombineRequest { offset, len, slice_len, local, upstream, priority } }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_grouping_of_a_sum_over_a_tree_of_sites_equals_the_direct_sum(
        terms in prop::collection::vec((1u32..5, any::<u8>(), 1u64..9), 1..14),
        choices in prop::collection::vec(any::<u8>(), 64),
    ) {
        let paused = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        paused.block_on(async {
            let runtime = Runtime::deterministic(1, Duration::ZERO);
            let directory = Arc::new(Directory::default());
            for number in 1..5 {
                let site = local(&runtime, number, Arc::new(MemoryStore::default()), QueueLimits::default());
                let known: Weak<dyn SiteDirectory> = Arc::downgrade(&(Arc::clone(&directory) as _));
                site.set_directory(known);
                for chunk in 1..9 {
                    site.write(write_request(chunk, 1_000)).await.unwrap();
                }
                directory.0.lock().insert(SiteId(number), Arc::new(site));
            }
            let mut expected = vec![0; 900];
            for (_, coefficient, number) in &terms {
                accumulate(*coefficient, &payload(*number, 1_000)[3..903], &mut expected);
            }
            let terms: Vec<_> = terms.iter().map(|(site, c, number)| (SiteId(*site), *c, chunk(*number))).collect();
            let root = tree(&terms, &mut choices.into_iter());
            let site = directory.site(root.site).unwrap();
            prop_assert_eq!(combined(site.as_ref(), root.request).await, Ok(expected));
            Ok(())
        })?;
    }
}

/// A connection for handmade bytes.
struct Raw(TcpStream);

impl Raw {
    async fn open(address: &str) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    async fn greeted(address: &str) -> Self {
        let mut raw = Self::open(address).await;
        assert_eq!(raw.send("POST", "/striate/v1/hello", &encode_hello(CLUSTER)).await.0, 200);
        raw
    }

    async fn send(&mut self, method: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let len = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: site\r\ncontent-length: {len}\r\n\r\n");
        self.send_bytes(&[head.as_bytes(), body].concat()).await
    }

    /// Sends bytes and reads one answer: its status, and its body if it has a length. Status 0 means closed.
    async fn send_bytes(&mut self, bytes: &[u8]) -> (u16, Vec<u8>) {
        // The site may refuse and close before it has taken everything.
        let _ = self.0.write_all(bytes).await;
        let mut answer = Vec::new();
        let head_len = loop {
            if let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            match self.0.read_buf(&mut answer).await {
                Ok(0) | Err(_) => return (0, answer),
                Ok(_) => {}
            }
        };
        let mut body = answer.split_off(head_len);
        let head = String::from_utf8(answer).unwrap().to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let len =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
        while body.len() < len {
            self.0.read_buf(&mut body).await.unwrap();
        }
        (status, body)
    }
}

fn read_body() -> Bytes {
    let ranges = vec![ChunkRange { chunk: chunk(1), offset: 0, len: 100 }];
    ReadBody { id: 1, ranges, priority: Priority::Foreground, time_left: None }.encode()
}

const READ: &str = "/striate/v1/read";
const CHUNK: &str = "/striate/v1/chunk";
const CANCEL: &str = "/striate/v1/cancel";

async fn served_memory_site(runtime: &Runtime, limits: ServiceLimits) -> (LocalSite, Served) {
    let site = local(runtime, 1, Arc::new(MemoryStore::default()), QueueLimits::default());
    site.write(write_request(1, 1_000)).await.unwrap();
    let served = serve(runtime, site.clone(), limits).await;
    (site, served)
}

#[tokio::test]
async fn nothing_is_answered_before_a_hello_nor_beyond_a_roles_rights() {
    let runtime = Runtime::real();
    let (site, served) = served_memory_site(&runtime, ServiceLimits::default()).await;
    let paths =
        [("POST", READ), ("POST", CANCEL), ("PUT", CHUNK), ("POST", "/striate/v1/combine"), ("GET", "/")];
    for (method, path) in paths {
        assert_eq!(Raw::open(&served.address).await.send(method, path, &read_body()).await.0, 428);
    }
    let head = WriteHead {
        chunk: chunk(5),
        priority: Priority::Foreground,
        len: 10,
        granule_crcs: vec![striate_codec::crc32c(&[7; 10])],
    };
    let write = [&head.encode()[..], &[7; 10]].concat();
    let mut raw = Raw::greeted(&served.address).await;
    assert_eq!(raw.send("POST", READ, &read_body()).await.0, 200);
    let hello = encode_hello(ClusterId(5));
    assert_eq!(Raw::open(&served.address).await.send("POST", "/striate/v1/hello", &hello).await.0, 403);

    // Another site may ask only for its part of a combination.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (gate, limits) = (Open(Role::Site), ServiceLimits::default());
    let served = serve_on(&runtime, listener, gate, site.clone(), limits);
    for (method, path, body) in
        [("POST", READ, read_body().to_vec()), ("PUT", CHUNK, write), ("POST", CANCEL, vec![7; 8])]
    {
        assert_eq!(Raw::greeted(&served.address).await.send(method, path, &body).await.0, 403, "{path}");
    }
    let control = "/striate.site.v1.SiteControl/Delete";
    assert_eq!(Raw::greeted(&served.address).await.send("POST", control, b"").await.0, 403);
    assert_eq!(Raw::greeted(&served.address).await.send("POST", "/striate/v1/combine", b"\xff").await.0, 400);
    assert_eq!(site.status().await.unwrap().store.chunks, 1, "nothing was written");
}

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
async fn malformed_and_oversized_requests_are_refused_and_touch_nothing() {
    let runtime = Runtime::real();
    let limits = ServiceLimits { handshake: Duration::from_millis(200), ..ServiceLimits::default() };
    let (site, served) = served_memory_site(&runtime, limits).await;
    let address = &served.address;
    let garbage: [&[u8]; 3] =
        [b"\0\0\0\0\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\nxxxxxxxx"];
    for bytes in garbage {
        let status = Raw::open(address).await.send_bytes(bytes).await.0;
        assert!(status == 0 || status == 400, "{status}");
    }
    // A peer that sends nothing, or only a part, is disconnected after the handshake timeout.
    assert_eq!(Raw::open(address).await.send_bytes(b"POST /striate").await.0, 0);
    let many: String = (0..200).map(|i| format!("x-{i}: y\r\n")).collect();
    let status =
        Raw::open(address).await.send_bytes(format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes()).await.0;
    assert!(status == 431 || status == 400, "{status}");
    let long = vec![0; 1 << 16];
    assert_eq!(Raw::open(address).await.send("POST", "/striate/v1/hello", &long).await.0, 413);

    let send = async |method: &str, path: &str, body: &[u8]| {
        Raw::greeted(address).await.send(method, path, body).await
    };
    let body = read_body();
    let mut none = body[..READ_HEAD_LEN].to_vec();
    none[4] = 0;
    let mut many = body.to_vec();
    many[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    for bad in [&body[..10], &body[..body.len() - 1], &none, &many] {
        assert_eq!(send("POST", READ, bad).await.0, 400);
    }
    assert_eq!(send("POST", READ, &vec![0; MAX_REQUEST_LEN + 1]).await.0, 413);
    for bad in [&[][..], &[0; 7], &[0; 9], &[0; 8 * (MAX_CANCELLED + 1)]] {
        assert_eq!(send("POST", CANCEL, bad).await.0, 400);
    }
    assert_eq!(send("POST", CANCEL, &[7; 8]).await.0, 200, "a read that is not known may have ended");
    assert_eq!(send("POST", "/striate/v1/combine", b"\xff\xff").await.0, 400);
    assert_eq!(send("GET", "/striate/v1/other", b"").await.0, 400);
    let mut head =
        WriteHead { chunk: chunk(5), priority: Priority::Foreground, len: 10, granule_crcs: vec![0] };
    assert_eq!(send("PUT", CHUNK, &head.encode()[..20]).await.0, 400);
    assert_eq!(send("PUT", CHUNK, &head.encode()).await.0, 400, "the chunk's bytes are missing");
    head.len = u32::MAX;
    assert_eq!(send("PUT", CHUNK, &head.encode()).await.0, 400, "too long a chunk");
    assert_eq!(site.status().await.unwrap().store.chunks, 1);
}

#[tokio::test]
async fn a_chunk_that_was_damaged_on_its_way_is_not_stored() {
    let runtime = Runtime::real();
    let (site, served) = served_memory_site(&runtime, ServiceLimits::default()).await;
    let remote = remote(&runtime, 1, &served.address);
    let mut request = write_request(2, 70_000);
    request.granule_crcs = Some(Arc::new([1, 2]));
    let error = remote.write(request).await.unwrap_err();
    assert!(matches!(&error, SiteError::BadRequest(reason) if reason.contains("damaged")), "{error}");
    assert_eq!(site.status().await.unwrap().store.chunks, 1);
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

#[tokio::test]
async fn a_client_outlives_a_restart_of_its_site() {
    let runtime = Runtime::real();
    let store: Arc<dyn ChunkStore> = Arc::new(MemoryStore::default());
    let first = local(&runtime, 1, Arc::clone(&store), QueueLimits::default());
    first.write(write_request(1, 1_000)).await.unwrap();
    let mut served = serve(&runtime, first, ServiceLimits::default()).await;
    let remote = remote(&runtime, 1, &served.address);
    let read = async || {
        let ranges = vec![ChunkRange { chunk: chunk(1), offset: 0, len: 1_000 }];
        let request = ReadRequest { ranges, priority: Priority::Foreground, deadline: None };
        remote.read(request).next().await.unwrap().result
    };
    assert_eq!(read().await, Ok(payload(1, 1_000)));
    assert!(remote.status().await.is_ok());
    served.stop.take().unwrap().send(()).unwrap();
    served.task.await.unwrap();
    assert!(matches!(read().await, Err(SiteError::Unavailable(_))));
    assert!(matches!(remote.status().await, Err(SiteError::Unavailable(_))));

    let listener = TcpListener::bind(&served.address).await.unwrap();
    let second = local(&runtime, 1, store, QueueLimits::default());
    let _served = serve_on(&runtime, listener, Open(Role::Gateway), second, ServiceLimits::default());
    assert_eq!(read().await, Ok(payload(1, 1_000)));
    assert!(remote.status().await.is_ok());
    assert_ne!(remote.last_load(), LoadReport::default());
}

/// Counts the connections that it makes.
#[derive(Debug, Default)]
struct Counting(AtomicUsize);

#[async_trait]
impl Connector for Counting {
    async fn connect(&self, address: &str) -> std::io::Result<Box<dyn ByteStream>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        TcpConnector.connect(address).await
    }
}

/// Drops reads after their first reply, each while the site is at its second chunk and the third waits. Returns the
/// number of connections that ten of them took.
async fn connections_of_dropped_reads(options: RemoteOptions) -> usize {
    let runtime = Runtime::real();
    let store = Arc::new(GatedStore::default());
    let site = local(&runtime, 1, store.clone(), QueueLimits { workers: 1, ..QueueLimits::default() });
    for number in 1..=3 {
        site.write(write_request(number, 1_000)).await.unwrap();
    }
    let served = serve(&runtime, site.clone(), ServiceLimits::default()).await;
    let connector = Arc::new(Counting::default());
    let (address, made) = (&served.address, Arc::clone(&connector));
    let remote = RemoteSite::new(runtime.clone(), connector, address, identity(1), options);
    for _ in 0..10 {
        store.hold(chunk(2));
        let ranges = (1..=3).map(|number| ChunkRange { chunk: chunk(number), offset: 0, len: 1_000 });
        let request =
            ReadRequest { ranges: ranges.collect(), priority: Priority::Foreground, deadline: None };
        let mut replies = remote.read(request);
        assert_eq!(replies.next().await.unwrap().result, Ok(payload(1, 1_000)));
        store.wait_begun(chunk(2)).await;
        drop(replies);
        while site.report_load().queue_bytes > 1_000 {
            runtime.sleep(Duration::from_millis(1)).await;
        }
        store.release(chunk(2));
        while site.report_load().queue_requests > 0 {
            runtime.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(store.take_begun(), [chunk(1), chunk(2)], "what waited is never begun");
    }
    made.0.load(Ordering::Relaxed)
}

#[tokio::test]
async fn a_read_that_is_dropped_leaves_the_queue_and_keeps_its_connection() {
    let connections = connections_of_dropped_reads(RemoteOptions::default()).await;
    // A read that begins before the previous one is fully cancelled needs one more connection.
    assert!(connections <= 5, "{connections}");
}

#[tokio::test]
async fn where_a_read_cannot_be_cancelled_its_connection_is_closed() {
    let options = RemoteOptions { max_in_flight: 1, ..RemoteOptions::default() };
    assert_eq!(connections_of_dropped_reads(options).await, 10);
}

#[tokio::test]
async fn a_stopping_site_finishes_the_requests_under_way() {
    let runtime = Runtime::real();
    let store = Arc::new(GatedStore::default());
    let site = local(&runtime, 1, store.clone(), QueueLimits::default());
    site.write(write_request(1, 1_000)).await.unwrap();
    let mut served = serve(&runtime, site, ServiceLimits::default()).await;
    let remote = remote(&runtime, 1, &served.address);
    store.hold(chunk(1));
    let ranges = vec![ChunkRange { chunk: chunk(1), offset: 0, len: 1_000 }];
    let replies = remote.read(ReadRequest { ranges, priority: Priority::Foreground, deadline: None });
    let reading = runtime.spawn(replies.collect::<Vec<_>>());
    store.wait_begun(chunk(1)).await;
    served.stop.take().unwrap().send(()).unwrap();
    store.release(chunk(1));
    assert_eq!(reading.await.unwrap()[0].result, Ok(payload(1, 1_000)));
    served.task.await.unwrap();
    assert!(TcpStream::connect(&served.address).await.is_err());
}

/// Chunks that need no disk are not read by workers, but they still have to be sent: a site with slow
/// connections must not look idle.
#[tokio::test]
async fn what_is_read_without_waiting_counts_until_it_is_sent() {
    let runtime = Runtime::real();
    let store = Arc::new(MemoryStore::default());
    let site = local(&runtime, 1, store, QueueLimits::default());
    // More than the kernel takes for a receiver that does not read.
    let (len, count) = (1 << 20, 96);
    for number in 0..count {
        site.write(write_request(number, len)).await.unwrap();
    }
    let served = serve(&runtime, site.clone(), ServiceLimits::default()).await;
    let remote = remote(&runtime, 1, &served.address);
    let whole = |number| ChunkRange { chunk: chunk(number), offset: 0, len: len as u32 };
    let read = |number| {
        let ranges = vec![whole(number), whole(number + 1)];
        remote.read(ReadRequest { ranges, priority: Priority::Foreground, deadline: None })
    };
    let mut replies: Vec<_> = (0..count / 2).map(|pair| read(2 * pair)).collect();
    // The second replies are not taken.
    for reply in &mut replies {
        reply.next().await.unwrap().result.unwrap();
    }
    let load = site.last_load();
    assert!(load.queue_bytes >= len as u64 && load.queue_requests == 0, "{load:?}");
    for reply in &mut replies {
        reply.next().await.unwrap().result.unwrap();
    }
    drop(replies);
    while site.last_load().queue_bytes > 0 {
        runtime.sleep(Duration::from_millis(2)).await;
    }
}

/// A chunk that came over the network stays in memory until the disk has it, and is counted until then.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_received_for_a_disk_that_hangs_counts_when_its_sender_has_gone() {
    let (runtime, fs) = (Runtime::real(), SimulatedFileSystem::new(1, 1 << 30));
    let options = DiskStoreOptions { reserve_bytes: Some(0), ..DiskStoreOptions::default() };
    let store = DiskStore::open(&runtime, Arc::new(fs.clone()), Path::new("/disk"), options).unwrap();
    let site = local(&runtime, 1, Arc::new(store), QueueLimits::default());
    let len = 100_000;
    let limits = ServiceLimits { receiving_bytes: 2 * len as u64, ..ServiceLimits::default() };
    let served = serve(&runtime, site.clone(), limits).await;
    let remote = remote(&runtime, 1, &served.address);
    remote.write(write_request(1, len)).await.unwrap();
    let mut hang = fs.hold_next_sync();
    let send = |number| {
        let remote = remote.clone();
        runtime.spawn(async move { remote.write(write_request(number, len)).await })
    };
    let senders = [send(2), send(3)];
    hang.begun().await;
    while site.last_load().queue_requests < 2 {
        runtime.sleep(Duration::from_millis(2)).await;
    }
    for sender in senders {
        sender.abort();
        assert!(sender.await.is_err(), "it has gone");
    }
    // The site notices at some point that the clients have gone.
    for _ in 0..100 {
        let refused = runtime.timeout(Duration::from_secs(1), remote.write(write_request(4, len))).await;
        assert_eq!(refused.expect("an answer at once"), Err(SiteError::Busy));
        runtime.sleep(Duration::from_millis(2)).await;
    }
    drop(hang);
    // The write whose client has gone may have been skipped, and no longer counts.
    while remote.write(write_request(4, len)).await == Err(SiteError::Busy) {
        runtime.sleep(Duration::from_millis(2)).await;
    }
}
