//! A whole store in memory, and bodies to feed it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use striate_client::{
    Client, ClientError, ClientOptions, CreateBucket, ExpectedDigests, GetRequest, ObjectAttributes,
    ObjectHead, ObjectInfo, PartStream, PutBody, PutRequest, ReadOrder, ReadRange, WriteCondition,
};
use striate_core::{ClusterId, RackId, SiteId};
use striate_meta::MetaStore;
use striate_meta::records::Checksum;
use striate_runtime::Runtime;
use striate_site::{ChunkStore, LocalSite, QueueLimits, Site, SiteIdentity};
use striate_stripe::StripeOptions;

pub const BUCKET: &str = "bucket";
/// Short enough that small bodies have many blocks.
pub const BLOCK_LEN: u32 = 1_000;

/// The store under test: its client, metadata and chunk stores.
pub struct Cluster {
    pub client: Client,
    pub meta: Arc<dyn MetaStore>,
    pub stores: Vec<Arc<striate_site::MemoryStore>>,
}

/// Options of most tests: the byte budget is small, so that requests wait for it.
pub fn options() -> ClientOptions {
    ClientOptions {
        profile: "rs(4,2)".parse().unwrap(),
        block_len: BLOCK_LEN,
        stripes: StripeOptions { in_flight_bytes: 16 * BLOCK_LEN as usize, ..StripeOptions::default() },
        blocks_in_flight: 3,
        ..ClientOptions::default()
    }
}

/// [`options`] with a read policy.
pub fn with_policy(policy: &str) -> ClientOptions {
    let read_policy = striate_baselines::read_policy(policy).unwrap();
    let options = options();
    ClientOptions { stripes: StripeOptions { read_policy, ..options.stripes.clone() }, ..options }
}

impl Cluster {
    /// Opens a store with six sites and a bucket.
    pub async fn open(runtime: Runtime) -> Self {
        let meta = Arc::new(striate_meta::MemoryStore::new(runtime.clone()));
        Self::open_with(runtime, meta, options()).await
    }

    pub async fn open_with(runtime: Runtime, meta: Arc<dyn MetaStore>, options: ClientOptions) -> Self {
        let stores: Vec<_> = (0..6).map(|_| Arc::new(striate_site::MemoryStore::new(1 << 40))).collect();
        let sites = stores.iter().map(|store| store.clone() as Arc<dyn ChunkStore>).collect();
        Self { stores, ..Self::open_on(runtime, meta, options, sites).await }
    }

    /// Opens a store with sites on these chunk stores, which [`Cluster::stores`] does not include.
    pub async fn open_on(
        runtime: Runtime,
        meta: Arc<dyn MetaStore>,
        options: ClientOptions,
        stores: Vec<Arc<dyn ChunkStore>>,
    ) -> Self {
        let site = |(index, store): (usize, &Arc<dyn ChunkStore>)| {
            let number = index as u32 + 1;
            let identity = SiteIdentity {
                cluster: ClusterId(1),
                site: SiteId(number),
                rack: RackId(format!("rack-{number}")),
            };
            Arc::new(LocalSite::new(runtime.clone(), identity, store.clone(), QueueLimits::default()))
                as Arc<dyn Site>
        };
        let sites = stores.iter().enumerate().map(site).collect();
        let client = Client::open(runtime, meta.clone(), sites, options).await.unwrap();
        let cluster = Self { client, meta, stores: Vec::new() };
        cluster.create_bucket(BUCKET).await;
        cluster
    }

    pub async fn create_bucket(&self, name: &str) {
        let bucket =
            CreateBucket { name: name.to_owned(), owner: "owner".to_owned(), ..CreateBucket::default() };
        self.client.create_bucket(bucket).await.unwrap();
    }

    pub async fn put(&self, key: &str, bytes: &[u8]) -> Result<ObjectInfo, ClientError> {
        self.client.put(put(key, bytes)).await
    }

    pub async fn put_if(
        &self,
        key: &str,
        bytes: &[u8],
        condition: WriteCondition,
    ) -> Result<ObjectInfo, ClientError> {
        self.client.put(PutRequest { condition, ..put(key, bytes) }).await
    }

    pub async fn read(&self, key: &str) -> Result<Bytes, ClientError> {
        self.read_range(BUCKET, key, ReadRange::Whole).await
    }

    pub async fn read_range(&self, bucket: &str, key: &str, range: ReadRange) -> Result<Bytes, ClientError> {
        let object = self.client.get(GetRequest { range, ..get(bucket, key) }).await?;
        let expected = object.range.end - object.range.start;
        let mut body = object.body;
        let mut bytes = Vec::new();
        while let Some(piece) = body.next().await {
            bytes.extend_from_slice(&piece?);
        }
        assert_eq!(bytes.len() as u64, expected, "a stream that ends without an error is complete");
        Ok(bytes.into())
    }

    /// Reads many objects and assembles the parts. Returns the results in the order of the requests.
    pub async fn read_many(&self, requests: Vec<GetRequest>, order: ReadOrder) -> Vec<Whole> {
        whole(requests.len(), self.client.read_many(requests, order)).await
    }

    /// Number of chunks on all sites.
    pub fn chunk_count(&self) -> u64 {
        self.stores.iter().map(|store| store.status().chunks).sum()
    }
}

/// Result of one request among many.
pub type Whole = Result<(ObjectInfo, Bytes), ClientError>;

/// Collects the results of `count` requests, and asserts that the parts of each are well-formed.
pub async fn whole(count: usize, mut parts: PartStream) -> Vec<Whole> {
    let mut answers: Vec<Option<Whole>> = (0..count).map(|_| None).collect();
    let mut open: Vec<Option<(ObjectHead, Vec<u8>)>> = (0..count).map(|_| None).collect();
    while let Some((position, part)) = parts.next().await {
        assert!(answers[position].is_none(), "an answer goes on after its end");
        let part = match part {
            Ok(part) => part,
            Err(error) => {
                answers[position] = Some(Err(error));
                continue;
            }
        };
        assert_eq!(part.head.is_some(), open[position].is_none(), "the head comes first and once");
        let (head, bytes) = open[position].get_or_insert_with(|| (*part.head.unwrap(), Vec::new()));
        part.pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
        if part.is_last {
            assert_eq!(bytes.len() as u64, head.range.end - head.range.start);
            answers[position] = Some(Ok((head.info.clone(), Bytes::from(std::mem::take(bytes)))));
        }
    }
    answers.into_iter().map(|answer| answer.expect("every request is answered")).collect()
}

/// Runs a test on a deterministic runtime in virtual time.
pub fn in_virtual_time<F: Future>(seed: u64, test: impl FnOnce(Runtime) -> F) -> F::Output {
    let executor =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    executor.block_on(async { test(Runtime::deterministic(seed, Duration::from_secs(1_700_000_000))).await })
}

pub fn get(bucket: &str, key: &str) -> GetRequest {
    GetRequest { bucket: bucket.to_owned(), key: key.to_owned(), ..GetRequest::default() }
}

pub fn put(key: &str, bytes: &[u8]) -> PutRequest {
    PutRequest {
        bucket: BUCKET.to_owned(),
        key: key.to_owned(),
        attributes: ObjectAttributes::default(),
        condition: WriteCondition::default(),
        profile: None,
        content_len: Some(bytes.len() as u64),
        digests: ExpectedDigests::default(),
        body: Frames::whole(bytes),
    }
}

pub fn if_absent() -> WriteCondition {
    WriteCondition { if_absent: true, ..WriteCondition::default() }
}

pub fn if_match(etag: &str) -> WriteCondition {
    WriteCondition { if_match: Some(vec![etag.to_owned()]), ..WriteCondition::default() }
}

/// Returns bytes that differ from those of neighbouring seeds.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..len).map(|_| step()).collect()
}

/// A body in frames, which may end with an error and may have trailers.
pub struct Frames {
    frames: VecDeque<Result<Bytes, ClientError>>,
    trailers: Vec<Checksum>,
}

impl Frames {
    pub fn whole(bytes: &[u8]) -> Box<dyn PutBody> {
        Self::cut(bytes, bytes.len().max(1))
    }

    pub fn cut(bytes: &[u8], frame_len: usize) -> Box<dyn PutBody> {
        Box::new(Self::of(bytes, frame_len))
    }

    pub fn of(bytes: &[u8], frame_len: usize) -> Self {
        let frames = bytes.chunks(frame_len.max(1)).map(|frame| Ok(Bytes::copy_from_slice(frame))).collect();
        Self { frames, trailers: Vec::new() }
    }

    /// A body that fails at its end, as when the signature of its last chunk is wrong.
    pub fn failing(bytes: &[u8], frame_len: usize) -> Box<dyn PutBody> {
        let mut frames = Self::of(bytes, frame_len);
        frames.frames.push_back(Err(ClientError::Body("the last chunk's signature is wrong".to_owned())));
        Box::new(frames)
    }

    pub fn with_trailers(mut self, trailers: Vec<Checksum>) -> Box<dyn PutBody> {
        self.trailers = trailers;
        Box::new(self)
    }
}

#[async_trait::async_trait]
impl PutBody for Frames {
    async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        // Other tasks get a turn between frames, as they do when frames come from a network.
        tokio::task::yield_now().await;
        self.frames.pop_front()
    }

    async fn trailing_checksums(&mut self) -> Result<Vec<Checksum>, ClientError> {
        Ok(self.trailers.clone())
    }
}
