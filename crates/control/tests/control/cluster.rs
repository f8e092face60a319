//! An in-memory cluster with sites that can be broken on purpose.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use futures::stream::{self, StreamExt};
use parking_lot::Mutex;
use striate_client::{
    Client, ClientError, ClientOptions, CreateBucket, ExpectedDigests, GetRequest, ObjectAttributes, PutBody,
    PutRequest, WriteCondition,
};
use striate_codec::crc32c;
use striate_control::leave_dead;
use striate_core::{ChunkId, Formats, FormatsInForce, LoadReport, Profile, RackId, SiteId, StripeId};
use striate_meta::memory::MemoryStore;
use striate_meta::{Commit, MetaStore, ScanRange, keys, records};
use striate_runtime::Runtime;
use striate_site::{
    AssembleRequest, ChunkInfo, ChunkPage, CombineRequest, DeleteRequest, ReadReply, ReadRequest, ReadStream,
    Site, SiteDirectory, SiteError, SiteStatus, SliceStream, StoreStatus, WriteRequest, combine,
};
use striate_stripe::Stripes;

pub const BUCKET: &str = "bucket";

/// A site whose chunks the test controls.
#[derive(Debug)]
pub struct BreakableSite {
    id: SiteId,
    /// A rack of its own, unless the test sets another.
    pub rack: Mutex<RackId>,
    runtime: Runtime,
    pub chunks: Mutex<BTreeMap<ChunkId, (Bytes, u32)>>,
    /// Fails every request as a whole.
    pub down: Mutex<bool>,
    /// Never answers reads.
    pub hung: Mutex<bool>,
    /// Takes no chunks.
    pub full: Mutex<bool>,
    /// Refuses chunks with these indices.
    pub refuses: Mutex<Vec<u8>>,
    /// Stores chunks and never replies.
    pub mute: Mutex<bool>,
    /// Cannot reach other sites.
    pub alone: Mutex<bool>,
    /// Delay before and after it stores a chunk, and before it reads one.
    pub lag: Mutex<Duration>,
    /// Bytes read from it and written to it.
    pub read_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
    /// Number of chunks that it was asked to verify.
    pub verified: AtomicUsize,
    /// Capacity in bytes.
    pub capacity: Mutex<u64>,
    told: Mutex<LoadReport>,
    /// Reported bytes per second that reads take from it.
    pub read_rate: Mutex<Option<u64>>,
    asked: AtomicUsize,
    asked_for_many: AtomicUsize,
    here: Weak<Self>,
    /// Sites that it can reach.
    pub neighbours: Mutex<Arc<Neighbours>>,
}

/// Sites that reach each other.
#[derive(Debug, Default)]
pub struct Neighbours {
    sites: Mutex<Vec<Weak<BreakableSite>>>,
    /// Requests for sums: the asking site and the site asked.
    pub asked: Mutex<Vec<(SiteId, SiteId)>>,
}

impl Neighbours {
    /// Makes the sites forget each other.
    pub fn forget_all(&self) {
        self.sites.lock().clear();
    }
}

/// The neighbours of one site.
#[derive(Debug)]
struct NeighboursOf(SiteId, Arc<Neighbours>);

impl SiteDirectory for NeighboursOf {
    fn site(&self, site: SiteId) -> Option<Arc<dyn Site>> {
        let Self(own, neighbours) = self;
        let known = neighbours.sites.lock();
        let found = known.iter().filter_map(Weak::upgrade).find(|known| known.id == site)?;
        neighbours.asked.lock().push((*own, site));
        Some(found as Arc<dyn Site>)
    }
}

impl BreakableSite {
    pub fn new(id: u32, runtime: &Runtime) -> Arc<Self> {
        Arc::new_cyclic(|here| Self {
            here: here.clone(),
            neighbours: Mutex::default(),
            id: SiteId(id),
            rack: Mutex::new(RackId(format!("rack{id}"))),
            runtime: runtime.clone(),
            chunks: Mutex::default(),
            down: Mutex::default(),
            hung: Mutex::default(),
            full: Mutex::default(),
            refuses: Mutex::default(),
            mute: Mutex::default(),
            alone: Mutex::default(),
            lag: Mutex::default(),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            verified: AtomicUsize::new(0),
            capacity: Mutex::new(1 << 40),
            told: Mutex::default(),
            read_rate: Mutex::default(),
            asked: AtomicUsize::new(0),
            asked_for_many: AtomicUsize::new(0),
        })
    }

    /// Sets the load that it reports.
    pub fn tell(&self, sequence: u64, cpu_permille: u16, io_permille: u16, chunks: u64) {
        let mut told = self.told.lock();
        *told = LoadReport { sequence, cpu_permille, io_permille, chunks, ..*told };
    }

    /// Sets the number of queued requests that it reports.
    pub fn queue(&self, requests: u32) {
        self.told.lock().queue_requests = requests;
    }

    /// Returns the bytes of chunks on it.
    pub fn used_bytes(&self) -> u64 {
        self.chunks.lock().values().map(|(payload, _)| payload.len() as u64).sum()
    }

    /// Returns how often it was asked for its status.
    pub fn times_asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// Returns how often it was asked which of many chunks it has.
    pub fn times_asked_for_many(&self) -> usize {
        self.asked_for_many.load(Ordering::Relaxed)
    }

    fn directory(&self) -> Arc<dyn SiteDirectory> {
        Arc::new(NeighboursOf(self.id, self.neighbours.lock().clone()))
    }

    async fn wait(&self) {
        let lag = *self.lag.lock();
        if !lag.is_zero() {
            self.runtime.sleep(lag).await;
        }
    }

    /// Flips a bit of every chunk.
    pub fn corrupt_all(&self) {
        self.chunks.lock().values_mut().for_each(|(payload, _)| flip_bit(payload));
    }

    /// Flips a bit of a chunk, which must exist.
    pub fn corrupt(&self, chunk: ChunkId) {
        flip_bit(&mut self.chunks.lock().get_mut(&chunk).expect("it is there").0);
    }

    fn up(&self) -> Result<(), SiteError> {
        match *self.down.lock() {
            true => Err(SiteError::Unavailable("down".to_owned())),
            false => Ok(()),
        }
    }

    fn chunk(&self, chunk: ChunkId) -> Result<(Bytes, ChunkInfo), SiteError> {
        self.up()?;
        let found = self.chunks.lock().get(&chunk).cloned();
        let (payload, stored) = found.ok_or(SiteError::Missing(chunk))?;
        if crc32c(&payload) != stored {
            return Err(SiteError::Corrupt { chunk, reason: "a flipped bit".to_owned() });
        }
        let info = ChunkInfo { chunk, len: payload.len() as u32, crc32c: stored };
        Ok((payload, info))
    }
}

fn flip_bit(payload: &mut Bytes) {
    let mut bytes = payload.to_vec();
    bytes[0] ^= 1;
    *payload = bytes.into();
}

#[async_trait]
impl Site for BreakableSite {
    fn id(&self) -> SiteId {
        self.id
    }

    fn rack(&self) -> RackId {
        self.rack.lock().clone()
    }

    fn last_load(&self) -> LoadReport {
        let (told, used_bytes) = (*self.told.lock(), self.used_bytes());
        let free_bytes = self.capacity.lock().saturating_sub(used_bytes);
        let chunks = told.chunks.max(self.chunks.lock().len() as u64);
        LoadReport { chunks, used_bytes, free_bytes, ..told }
    }

    fn read(&self, request: ReadRequest) -> ReadStream {
        if *self.hung.lock() {
            return stream::pending().boxed();
        }
        let answers: Vec<ReadReply> = request
            .ranges
            .iter()
            .enumerate()
            .map(|(item, range)| {
                let part = range.offset as usize..(range.offset + range.len) as usize;
                let result = self.chunk(range.chunk).map(|(payload, _)| payload.slice(part));
                let len = result.as_ref().map_or(0, Bytes::len) as u64;
                self.read_bytes.fetch_add(len, Ordering::Relaxed);
                ReadReply { item, result, load: self.last_load() }
            })
            .collect();
        let (runtime, lag) = (self.runtime.clone(), *self.lag.lock());
        if lag.is_zero() {
            return stream::iter(answers).boxed();
        }
        stream::once(async move { runtime.sleep(lag).await })
            .flat_map(move |()| stream::iter(answers.clone()))
            .boxed()
    }

    async fn write(&self, request: WriteRequest) -> Result<LoadReport, SiteError> {
        self.up()?;
        if *self.full.lock() {
            return Err(SiteError::NoSpace);
        }
        if self.refuses.lock().contains(&request.chunk.index) {
            return Err(SiteError::Busy);
        }
        self.wait().await;
        self.written_bytes.fetch_add(request.payload.len() as u64, Ordering::Relaxed);
        let crc = crc32c(&request.payload);
        self.chunks.lock().insert(request.chunk, (request.payload, crc));
        let mute = *self.mute.lock();
        if mute {
            std::future::pending::<()>().await;
        }
        self.wait().await;
        Ok(self.last_load())
    }

    async fn delete(&self, request: DeleteRequest) -> Result<LoadReport, SiteError> {
        self.up()?;
        self.chunks.lock().retain(|chunk, _| !request.chunks.contains(chunk));
        Ok(self.last_load())
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        self.up()?;
        let chunks = self.chunks.lock();
        let mut ids = chunks.keys().filter(|chunk| from.is_none_or(|from| **chunk >= from));
        let info = |&chunk: &ChunkId| ChunkInfo {
            chunk,
            len: chunks[&chunk].0.len() as u32,
            crc32c: chunks[&chunk].1,
        };
        let page = ids.by_ref().take(limit).map(info).collect();
        Ok(ChunkPage { chunks: page, next: ids.next().copied() })
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        self.verified.fetch_add(1, Ordering::Relaxed);
        self.chunk(chunk).map(|(_, info)| info)
    }

    async fn has(&self, chunks: Vec<ChunkId>) -> Result<Vec<bool>, SiteError> {
        self.up()?;
        self.asked_for_many.fetch_add(1, Ordering::Relaxed);
        self.wait().await;
        Ok(chunks.into_iter().map(|chunk| self.chunk(chunk).is_ok()).collect())
    }

    fn combine(&self, request: CombineRequest) -> SliceStream {
        let here = self.here.upgrade().expect("it is asked");
        combine::evaluate(here, Some(self.directory()), request)
    }

    async fn assemble(&self, request: AssembleRequest) -> Result<LoadReport, SiteError> {
        self.up()?;
        if *self.alone.lock() {
            return Err(SiteError::Unavailable("it reaches no others".to_owned()));
        }
        let here = self.here.upgrade().expect("it is asked");
        combine::assemble(here, Some(self.directory()), request).await
    }

    async fn status(&self) -> Result<SiteStatus, SiteError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.up()?;
        Ok(SiteStatus {
            site: self.id,
            cluster: striate_core::ClusterId(1),
            rack: self.rack(),
            store: StoreStatus::default(),
            load: self.last_load(),
            read_bytes_per_s: *self.read_rate.lock(),
            reads: striate_core::Formats::NEWEST,
            program: String::new(),
            cache: None,
        })
    }
}

/// A client over sites and metadata in memory, in virtual time.
pub struct Cluster {
    pub client: Client,
    pub sites: Vec<Arc<BreakableSite>>,
    pub meta: Arc<dyn MetaStore>,
    pub runtime: Runtime,
    pub neighbours: Arc<Neighbours>,
}

pub fn options(profile: &str) -> ClientOptions {
    let profile: Profile = profile.parse().expect("a profile");
    ClientOptions { profile, ..ClientOptions::default() }
}

impl Cluster {
    pub async fn start(sites: u32, profile: &str) -> Self {
        Self::start_with(sites, profile, Formats::NEWEST).await
    }

    /// Starts a cluster with these formats in force.
    pub async fn start_with(sites: u32, profile: &str, formats: Formats) -> Self {
        let runtime = Runtime::deterministic(u64::from(sites), Duration::from_secs(1_700_000_000));
        let meta: Arc<dyn MetaStore> = Arc::new(MemoryStore::new(runtime.clone()));
        let sites: Vec<_> = (1..=sites).map(|id| BreakableSite::new(id, &runtime)).collect();
        let handles = sites.iter().map(|site| site.clone() as Arc<dyn Site>).collect();
        let mut options = options(profile);
        options.stripes.formats = FormatsInForce::new(formats);
        let client = Client::open(runtime.clone(), meta.clone(), handles, options).await.unwrap();
        let neighbours = Arc::default();
        let cluster = Self { client, sites, meta, runtime, neighbours };
        cluster.introduce_sites();
        for site in &cluster.sites {
            cluster.register(site.id).await;
        }
        let bucket = CreateBucket { name: BUCKET.to_owned(), ..CreateBucket::default() };
        cluster.client.create_bucket(bucket).await.unwrap();
        cluster
    }

    /// Writes the site's row, like a server that admits a disk.
    pub async fn register(&self, site: SiteId) {
        self.write_site(records::Site { id: site.0, ..records::Site::default() }).await;
    }

    /// Puts the newest formats in force in the cluster's row.
    pub async fn finalize(&self) {
        let row = self.meta.get(&keys::cluster()).await.unwrap().unwrap();
        let mut record: records::Cluster = row.record().unwrap();
        record.set_formats(Formats::NEWEST);
        let mut tx = self.client.stripes().transaction();
        tx.put(keys::cluster(), records::encode(&record));
        assert!(matches!(self.meta.commit(tx).await, Ok(Commit::Done(_))));
    }

    /// Spreads the sites over `racks` racks.
    pub fn spread_over_racks(&self, racks: u32) {
        for site in &self.sites {
            *site.rack.lock() = RackId(format!("rack{}", site.id.0 % racks));
        }
    }

    /// Marks a site as retired and removes it from the client.
    pub async fn retire(&mut self, index: usize) -> Arc<BreakableSite> {
        let site = self.sites.remove(index);
        let (state, rack) = (records::site::State::Retired.into(), site.rack().0);
        self.write_site(records::Site { id: site.id.0, state, rack, ..records::Site::default() }).await;
        self.publish_sites();
        site
    }

    /// Removes a site from the client; its row stays.
    pub fn lose(&mut self, index: usize) -> Arc<BreakableSite> {
        let site = self.sites.remove(index);
        self.publish_sites();
        site
    }

    /// Adds a blank site.
    pub async fn add(&mut self, id: u32) {
        self.sites.push(BreakableSite::new(id, &self.runtime));
        self.introduce_sites();
        self.register(SiteId(id)).await;
        self.publish_sites();
    }

    /// Lets the sites reach each other.
    fn introduce_sites(&self) {
        *self.neighbours.sites.lock() = self.sites.iter().map(Arc::downgrade).collect();
        self.sites.iter().for_each(|site| *site.neighbours.lock() = Arc::clone(&self.neighbours));
    }

    /// Keeps the sites of two racks from reaching each other.
    pub fn separate(&self, racks: [&RackId; 2]) {
        for site in &self.sites {
            let Some(own) = racks.iter().position(|rack| **rack == site.rack()) else { continue };
            let reached = self.sites.iter().filter(|other| other.rack() != *racks[1 - own]);
            let sites = Mutex::new(reached.map(Arc::downgrade).collect());
            *site.neighbours.lock() = Arc::new(Neighbours { sites, ..Neighbours::default() });
        }
    }

    fn publish_sites(&self) {
        self.client
            .stripes()
            .set_sites(self.sites.iter().map(|site| site.clone() as Arc<dyn Site>).collect());
    }

    /// Lets the grace of all garbage pass, and removes it.
    pub async fn collect(&self) {
        let mut collector = striate_control::GarbageCollector::default();
        collector.round(self.client.stripes()).await.unwrap();
        self.runtime.sleep(Duration::from_secs(61)).await;
        collector.round(self.client.stripes()).await.unwrap();
    }

    /// Returns the stripes' records.
    pub async fn stripes(&self) -> Vec<(StripeId, records::Stripe)> {
        let rows = self.meta.scan(ScanRange::prefix(keys::STRIPES), usize::MAX).await.unwrap();
        rows.iter().map(|row| (keys::stripe_of(&row.key).unwrap(), row.record().unwrap())).collect()
    }

    pub async fn write_site(&self, record: records::Site) {
        let mut tx = self.client.stripes().transaction();
        tx.put(keys::site(SiteId(record.id)), records::encode(&record));
        assert!(matches!(self.meta.commit(tx).await, Ok(Commit::Done(_))));
    }

    pub async fn put(&self, key: &str, bytes: &[u8]) -> Result<(), ClientError> {
        self.put_body(key, one_shot(bytes)).await
    }

    pub async fn put_body(&self, key: &str, body: Box<dyn PutBody>) -> Result<(), ClientError> {
        self.put_as(key, body, None).await
    }

    /// Puts an object with a profile of its own.
    pub async fn put_as(
        &self,
        key: &str,
        body: Box<dyn PutBody>,
        profile: Option<&str>,
    ) -> Result<(), ClientError> {
        let profile = profile.map(|profile| profile.parse().unwrap());
        self.client.put(PutRequest { profile, ..put_request(key, body) }).await.map(drop)
    }

    pub async fn get(&self, key: &str) -> Result<Vec<u8>, ClientError> {
        let request = GetRequest { bucket: BUCKET.to_owned(), key: key.to_owned(), ..GetRequest::default() };
        let mut body = self.client.get(request).await?.body;
        let mut bytes = Vec::new();
        while let Some(piece) = body.next().await {
            bytes.extend_from_slice(&piece?);
        }
        Ok(bytes)
    }

    /// Removes a chunk of each stripe in `range`, in the order of their names, and puts the stripes in debt, like a
    /// read that misses it. In-memory metadata answers at once.
    pub fn lose_a_chunk_each(&self, range: std::ops::Range<usize>) {
        let rows = self.meta.scan(ScanRange::prefix(keys::STRIPES), usize::MAX);
        let rows = rows.now_or_never().expect("memory answers at once").unwrap();
        for row in &rows[range] {
            let stripe = keys::stripe_of(&row.key).unwrap();
            let held =
                |site: &&Arc<BreakableSite>| site.chunks.lock().keys().any(|chunk| chunk.stripe == stripe);
            let site = self.sites.iter().find(held).expect("a site holds a chunk of it");
            site.chunks.lock().retain(|chunk, _| chunk.stripe != stripe);
            let mut tx = self.client.stripes().transaction();
            tx.put(keys::debt(stripe), Bytes::new());
            let committed = self.meta.commit(tx).now_or_never().expect("memory answers at once");
            assert!(matches!(committed, Ok(Commit::Done(_))));
        }
    }

    /// Counts the stripes in debt.
    pub async fn debts(&self) -> usize {
        self.meta.scan(ScanRange::prefix(keys::DEBTS), usize::MAX).await.unwrap().len()
    }

    /// Makes all sites refuse chunks with these indices.
    pub fn refuse(&self, indices: &[u8]) {
        self.sites.iter().for_each(|site| *site.refuses.lock() = indices.to_vec());
    }

    /// Returns the bytes that all sites together have stored.
    pub fn written_bytes(&self) -> u64 {
        self.sites.iter().map(|site| site.written_bytes.load(Ordering::Relaxed)).sum()
    }

    /// Returns the number of chunks on all sites.
    pub fn chunk_count(&self) -> usize {
        self.sites.iter().map(|site| site.chunks.lock().len()).sum()
    }
}

/// A progress callback that never stops a heal or a verification.
pub fn go_on<T>(_: &T) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Takes dead stripes out of their wide stripes; returns how many have left.
pub async fn leave_all(stripes: &Stripes) -> u64 {
    leave_dead(stripes, &mut || ControlFlow::Continue(())).await.unwrap()
}

/// Returns a put without conditions.
pub fn put_request(key: &str, body: Box<dyn PutBody>) -> PutRequest {
    PutRequest {
        bucket: BUCKET.to_owned(),
        key: key.to_owned(),
        attributes: ObjectAttributes::default(),
        condition: WriteCondition::default(),
        profile: None,
        content_len: None,
        digests: ExpectedDigests::default(),
        body,
    }
}

/// Returns a body of these bytes.
pub fn one_shot(bytes: &[u8]) -> Box<dyn PutBody> {
    Box::new(OneShot(Some(Ok(Bytes::copy_from_slice(bytes)))))
}

/// A body in one piece, or one that fails.
pub struct OneShot(pub Option<Result<Bytes, ClientError>>);

#[async_trait]
impl PutBody for OneShot {
    async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        self.0.take()
    }
}

/// Returns bytes that differ for every object.
pub fn content(key: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + key * 17 + i / 251) as u8).collect()
}
