//! The site as its clients see it: requests, replies, errors.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt};
use striate_codec::{ChecksumMultiples, MultipleChecksums};
use striate_core::{
    ChunkId, ChunkRange, ClusterId, FencingEpoch, Formats, LoadReport, RackId, SiteId, StripeId,
};
use striate_runtime::Instant;

use crate::cache::CacheView;
use crate::store::{ChunkInfo, StoreStatus};

/// Bytes of a chunk that are read at a time to compute the checksums of its products.
const PRODUCTS_READ: u32 = 1 << 20;

/// Which requests a site serves first. Requests of one priority are served in their order of arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A user is waiting.
    #[default]
    Foreground,
    /// Repair and heal.
    Repair,
    /// Movement, scrub, collection.
    Background,
}

/// A read of many chunk ranges in one request: the per-request cost o_j is paid once.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// Ranges to read. Replies come as ranges are read, not in this order.
    pub ranges: Vec<ChunkRange>,
    /// Priority in the site's queue.
    pub priority: Priority,
    /// The site may drop items that it has not begun by this time.
    pub deadline: Option<Instant>,
}

/// The reply for one range of a [`ReadRequest`].
#[derive(Clone, Debug)]
pub struct ReadReply {
    /// Index of the range in [`ReadRequest::ranges`].
    pub item: usize,
    /// Exactly the bytes of the range, verified against the granules' checksums, or an error.
    pub result: Result<Bytes, SiteError>,
    /// The site's load when it replied.
    pub load: LoadReport,
}

/// One reply for each range of a request. Dropping the stream cancels what is still queued.
pub type ReadStream = Pin<Box<dyn Stream<Item = ReadReply> + Send>>;

/// Load reports that a site sends when its queue changes. Dropping the stream ends them.
pub type LoadStream = Pin<Box<dyn Stream<Item = Result<LoadReport, SiteError>> + Send>>;

/// Equal-length slices of a combination, in order; the last may be shorter. Dropping the
/// stream cancels the combination.
pub type SliceStream = Pin<Box<dyn Stream<Item = Result<Bytes, SiteError>> + Send>>;

/// A chunk to store.
#[derive(Clone, Debug)]
pub struct WriteRequest {
    /// Name of the chunk. Writing a name again succeeds with the same bytes and is refused with others.
    pub chunk: ChunkId,
    /// Bytes of the chunk, at least one.
    pub payload: Bytes,
    /// CRC-32C of each granule of the payload, if the writer computed them while encoding. Granules have
    /// [`striate_core::GRANULE_LEN`] bytes, or [`striate_core::SMALL_GRANULE_LEN`] where chunk format 2 is in force.
    /// A remote site verifies them on receipt.
    pub granule_crcs: Option<Arc<[u32]>>,
    /// Priority in the site's queue.
    pub priority: Priority,
}

/// Chunks to remove.
#[derive(Clone, Debug)]
pub struct DeleteRequest {
    /// Full names, so that a delete can only hit the generation it was meant for. Missing chunks are not an error.
    pub chunks: Vec<ChunkId>,
    /// Epoch of the executor's lease. The site refuses the delete if it has seen a higher one, unless this is
    /// [`FencingEpoch::NONE`].
    pub epoch: FencingEpoch,
}

/// `Σ coefficient · local range + Σ upstream`, slice by slice (design.md §4.2).
#[derive(Clone, Debug)]
pub struct CombineRequest {
    /// First byte of the range of the chunks.
    pub offset: u32,
    /// Number of bytes of the result.
    pub len: u32,
    /// Length in bytes of the slices that are computed and sent; no node buffers anything larger.
    pub slice_len: u32,
    /// Chunks of the site itself.
    pub local: Vec<LocalTerm>,
    /// Combinations of other sites, added as they stream in.
    pub upstream: Vec<CombineSource>,
    /// Priority in the sites' queues.
    pub priority: Priority,
}

/// A term of a sum that is a chunk of the site itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTerm {
    /// Coefficient over GF(2⁸).
    pub by: u8,
    /// The chunk.
    pub chunk: ChunkId,
    /// Length of the chunk in bytes. Beyond its end it counts as zeros.
    pub len: u32,
}

/// One inner node of a combine tree.
#[derive(Clone, Debug)]
pub struct CombineSource {
    /// The site that evaluates the node.
    pub site: SiteId,
    /// The combination it evaluates, with the same offset, length and slice length as its parent.
    pub request: CombineRequest,
}

/// A chunk that a site makes from its own chunks and those of other sites, and stores. The bytes travel straight to
/// where they belong, not through the process that repairs or moves.
#[derive(Clone, Debug)]
pub struct AssembleRequest {
    /// The name of the new chunk.
    pub chunk: ChunkId,
    /// The CRC-32C that the result must have; otherwise it is not stored.
    pub crc32c: u32,
    /// The combination, which starts at the first byte and is as long as the chunk.
    pub combination: CombineRequest,
    /// Ranges in which the chunk differs from the combination, in ascending order and without overlap. They let a site
    /// make a changed chunk from the old one, so that only the changes are sent.
    pub windows: Vec<Window>,
}

/// A range of an assembled chunk in which it is not just the combination.
#[derive(Clone, Debug)]
pub enum Window {
    /// Adds another combination, which states the offset and length of the range.
    Sum(CombineRequest),
    /// Replaces the bytes of the combination.
    Bytes {
        /// First byte of the range in the chunk.
        offset: u32,
        /// The bytes, at least one.
        bytes: Bytes,
    },
}

impl Window {
    /// Returns the range in the chunk: offset and length in bytes.
    pub fn place(&self) -> (u32, u32) {
        match self {
            Self::Sum(CombineRequest { offset, len, .. }) => (*offset, *len),
            Self::Bytes { offset, bytes } => (*offset, u32::try_from(bytes.len()).unwrap_or(u32::MAX)),
        }
    }
}

/// A gateway's notice to the home of a cached block, which is also a query. The *home* is the site of the block's first
/// split; see [`striate_core::cached`] for names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tend {
    /// Name of the block.
    pub name: StripeId,
    /// Length of a split in bytes.
    pub split_len: u32,
    /// Reads of the block since the gateway's last notice.
    pub reads: u32,
    /// The event that the gateway reports.
    pub matter: TendEvent,
    /// The grant that a look renews, and that ends when the block was filled or given up; 0 if there is none.
    pub grant: u64,
}

/// An event that a gateway reports about a cached block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TendEvent {
    /// The gateway wants to read the block, or to fill it if it is not cached.
    Look,
    /// The gateway has filled the block.
    Filled {
        /// Number of parities written.
        parities: u8,
    },
    /// The gateway gave up filling the block.
    GaveUp,
    /// The gateway found splits of the block missing.
    Lost,
}

/// The reply of a cached block's home to a `Tend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tended {
    /// State of the block.
    pub standing: CachedBlockState,
    /// Number of parities that the block should have for its popularity.
    pub wanted_parities: u8,
    /// If the caller is to fill the block, the number of its grant, which only the holder knows; otherwise 0.
    pub grant: u64,
}

/// State of a cached block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachedBlockState {
    /// The block is cached.
    Filled {
        /// Number of its parities, as far as the home was notified.
        parities: u8,
    },
    /// The block is not cached, and the caller is to fill it.
    Granted,
    /// Another gateway is filling the block.
    Filling,
}

/// Keeps track of the cached blocks whose home a site is.
pub trait BlockKeeper: Send + Sync + Debug {
    /// Returns what the site's cache holds, and its counters.
    fn view(&self) -> CacheView;

    /// Returns which of these chunks the site has. Reads no chunk, and does not count as a read.
    fn has(&self, chunks: &[ChunkId]) -> Vec<bool>;

    /// Records what a gateway reports, and returns a reply for each block.
    fn tend(&self, blocks: &[Tend], now: Instant) -> Vec<Tended>;
}

/// One page of a site's chunks.
#[derive(Clone, Debug, Default)]
pub struct ChunkPage {
    /// Chunks in ascending order of [`ChunkId`].
    pub chunks: Vec<ChunkInfo>,
    /// First chunk of the next page; `None` after the last page.
    pub next: Option<ChunkId>,
}

/// Status of a site.
#[derive(Clone, Debug)]
pub struct SiteStatus {
    /// Number of the site.
    pub site: SiteId,
    /// Cluster of the site.
    pub cluster: ClusterId,
    /// Failure domain of the site.
    pub rack: RackId,
    /// State of its store.
    pub store: StoreStatus,
    /// Current load.
    pub load: LoadReport,
    /// Current rate at which reads take bytes from the store, as a fading mean. `None` if the site does not report it.
    pub read_bytes_per_s: Option<u64>,
    /// The newest formats that the site's program reads.
    pub reads: Formats,
    /// Version of the site's program; empty if it does not report one.
    pub program: String,
    /// State of the cache, if this is a memory site.
    pub cache: Option<CacheView>,
}

/// Why a site did not serve a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SiteError {
    /// The site has no such chunk.
    #[error("the site has no chunk {0}")]
    Missing(ChunkId),
    /// The chunk's bytes or header do not match their checksum. They are never served; the chunk needs repair.
    #[error("chunk {chunk} is damaged: {reason}")]
    Corrupt {
        /// The chunk.
        chunk: ChunkId,
        /// What did not match.
        reason: String,
    },
    /// The request itself is wrong (a range past the end, different bytes under an existing name, …).
    #[error("bad request: {0}")]
    BadRequest(String),
    /// The disk is full up to its reserve.
    #[error("the site's disk is full")]
    NoSpace,
    /// The queue is full, or the site's process is short of descriptors or memory. Nothing was done; a retry at another
    /// site may succeed.
    #[error("the site's queue is full, or its process is short of descriptors or memory")]
    Busy,
    /// The deadline passed before the site served the request.
    #[error("the deadline passed")]
    Deadline,
    /// A newer executor has taken over.
    #[error("epoch {} is fenced: the site has seen {}", .given.0, .seen.0)]
    Fenced {
        /// The request's epoch.
        given: FencingEpoch,
        /// The highest epoch that the site has seen.
        seen: FencingEpoch,
    },
    /// The disk failed, vanished, was swapped or hangs: the site takes no writes, and perhaps serves no reads.
    #[error("the site's disk is suspect: {0}")]
    Suspect(String),
    /// The site cannot be reached.
    #[error("the site is unavailable: {0}")]
    Unavailable(String),
}

/// A storage site, in this process or over the network.
#[async_trait]
pub trait Site: Send + Sync + Debug {
    /// Returns the number of the site.
    fn id(&self) -> SiteId;

    /// Returns the failure domain of the site.
    fn rack(&self) -> RackId;

    /// Returns the load that the site reported last, without asking it.
    fn last_load(&self) -> LoadReport;

    /// Reads many ranges; see [`ReadStream`].
    fn read(&self, request: ReadRequest) -> ReadStream;

    /// Reads one range completely.
    async fn read_range(&self, range: ChunkRange, priority: Priority) -> Result<Bytes, SiteError> {
        let request = ReadRequest { ranges: vec![range], priority, deadline: None };
        let reply = self.read(request).next().await;
        let unanswered = || SiteError::Unavailable("its answer ended early".to_owned());
        let bytes = reply.ok_or_else(unanswered)?.result?;
        match bytes.len() == range.len as usize {
            true => Ok(bytes),
            false => Err(SiteError::Unavailable(format!("it sent {} bytes of {}", bytes.len(), range.len))),
        }
    }

    /// Stores a chunk. Returns when it is durable: an fdatasync that began after the write ended has succeeded.
    async fn write(&self, request: WriteRequest) -> Result<LoadReport, SiteError>;

    /// Removes chunks, durably.
    async fn delete(&self, request: DeleteRequest) -> Result<LoadReport, SiteError>;

    /// Returns at most `limit` chunks, starting with `from`.
    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError>;

    /// Reads the whole chunk from the medium, past the page cache, and verifies it.
    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError>;

    /// Returns for each chunk whether the site has it. A memory site reads no chunk, and does not count this as a read;
    /// a site of durable chunks verifies each of them.
    async fn has(&self, chunks: Vec<ChunkId>) -> Result<Vec<bool>, SiteError> {
        has_by_verifying(self, &chunks).await
    }

    /// Evaluates a combine tree whose root is this site.
    fn combine(&self, request: CombineRequest) -> SliceStream;

    /// Makes a chunk at this site and stores it. It is as durable when this returns as after [`Site::write`].
    async fn assemble(&self, request: AssembleRequest) -> Result<LoadReport, SiteError>;

    /// Passes notices on cached blocks to their home, and returns a reply for each. A site of durable chunks refuses.
    async fn tend(&self, blocks: Vec<Tend>) -> Result<Vec<Tended>, SiteError> {
        let _ = blocks;
        Err(SiteError::BadRequest("it is not a memory site".to_owned()))
    }

    /// Returns the checksums of a chunk's products, which determine those of the sums that it is a term of. The chunk
    /// is read where it lies: a remote site computes the checksums itself.
    async fn products(&self, chunk: ChunkId, len: u32) -> Result<MultipleChecksums, SiteError> {
        products_by_reading(self, chunk, len).await
    }

    /// Returns the current status.
    async fn status(&self) -> Result<SiteStatus, SiteError>;

    /// Streams the site's load: at once, and whenever the queue changes ([`crate::pushes`]). Reports come in order; the
    /// next one replaces a report that was not yet taken. The stream ends with an error, or when the site stops; until
    /// then the queue is as the last report describes it. A site that does not push refuses.
    fn watch(&self) -> LoadStream {
        let refused = SiteError::BadRequest("it does not push load reports".to_owned());
        stream::once(async move { Err(refused) }).boxed()
    }

    /// Returns whether [`Site::last_load`] is always current, as in the site's own process, so that no watch is needed.
    fn knows_its_load(&self) -> bool {
        false
    }
}

/// Lets a site find the others for the upstream parts of a combination.
pub trait SiteDirectory: Send + Sync + Debug {
    /// Returns the site with this number, if it is known.
    fn site(&self, site: SiteId) -> Option<Arc<dyn Site>>;
}

/// Returns for each chunk whether the site has it, by verifying one after the other.
pub(crate) async fn has_by_verifying(
    site: &(impl Site + ?Sized),
    chunks: &[ChunkId],
) -> Result<Vec<bool>, SiteError> {
    let mut has = Vec::with_capacity(chunks.len());
    for &chunk in chunks {
        has.push(match site.verify(chunk).await {
            Ok(_) => true,
            Err(SiteError::Missing(_) | SiteError::Corrupt { .. }) => false,
            Err(error) => return Err(error),
        });
    }
    Ok(has)
}

/// Computes the checksums of a chunk's products from the bytes that `site` returns.
pub(crate) async fn products_by_reading(
    site: &(impl Site + ?Sized),
    chunk: ChunkId,
    len: u32,
) -> Result<MultipleChecksums, SiteError> {
    let mut products = ChecksumMultiples::default();
    for offset in (0..len).step_by(PRODUCTS_READ as usize) {
        let range = ChunkRange { chunk, offset, len: PRODUCTS_READ.min(len - offset) };
        products.append(&site.read_range(range, Priority::Background).await?);
    }
    Ok(products.finish())
}
