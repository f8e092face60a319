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

/// Bytes of a chunk that are read together for the checksums of its products.
const PRODUCTS_READ: u32 = 1 << 20;

/// Which requests a site serves first. Within one priority, requests are served in their order of arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A user waits for it.
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
    /// What to read. Answered in order of arrival, not in this order.
    pub ranges: Vec<ChunkRange>,
    /// Its place in the queue.
    pub priority: Priority,
    /// The site may drop what it has not begun by then.
    pub deadline: Option<Instant>,
}

/// The answer for one range of a [`ReadRequest`].
#[derive(Clone, Debug)]
pub struct ReadReply {
    /// Position of the range in [`ReadRequest::ranges`].
    pub item: usize,
    /// Exactly the range's bytes, verified against the granules' checksums; or why not.
    pub result: Result<Bytes, SiteError>,
    /// The site's load when it answered.
    pub load: LoadReport,
}

/// One reply for each range of a request. Dropping the stream cancels what is still queued.
pub type ReadStream = Pin<Box<dyn Stream<Item = ReadReply> + Send>>;

/// Load reports that a site sends when its queue has changed. Dropping the stream ends them.
pub type LoadStream = Pin<Box<dyn Stream<Item = Result<LoadReport, SiteError>> + Send>>;

/// Equal-length slices of a combination, in order; the last may be shorter. Dropping the stream cancels it.
pub type SliceStream = Pin<Box<dyn Stream<Item = Result<Bytes, SiteError>> + Send>>;

/// A chunk to be stored.
#[derive(Clone, Debug)]
pub struct WriteRequest {
    /// Its name. Writing a name again with the same bytes succeeds; with other bytes it is refused.
    pub chunk: ChunkId,
    /// Its bytes, at least one.
    pub payload: Bytes,
    /// CRC-32C of each granule of the payload, when the writer has computed them with the encoding: of
    /// [`striate_core::GRANULE_LEN`] bytes, or of [`striate_core::SMALL_GRANULE_LEN`] where chunk format 2 is in force.
    /// A site behind a network verifies them on receipt.
    pub granule_crcs: Option<Arc<[u32]>>,
    /// Its place in the queue.
    pub priority: Priority,
}

/// Chunks to be removed.
#[derive(Clone, Debug)]
pub struct DeleteRequest {
    /// Their full names: a delete can only hit the generation it was meant for. Missing ones are no error.
    pub chunks: Vec<ChunkId>,
    /// The epoch of the executor's lease; refused when the site has seen a higher one, unless it is
    /// [`FencingEpoch::NONE`].
    pub epoch: FencingEpoch,
}

/// `Σ coefficient · local range + Σ upstream`, slice by slice (design.md §4.2).
#[derive(Clone, Debug)]
pub struct CombineRequest {
    /// First byte of the chunks that takes part.
    pub offset: u32,
    /// Number of bytes of the result.
    pub len: u32,
    /// Length in bytes of the slices that are computed and sent on; nothing larger is buffered.
    pub slice_len: u32,
    /// The site's own chunks.
    pub local: Vec<LocalTerm>,
    /// Other sites' combinations, added as they stream in.
    pub upstream: Vec<CombineSource>,
    /// Its place in the queues.
    pub priority: Priority,
}

/// A chunk of the site's own in a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTerm {
    /// Its coefficient over GF(2⁸).
    pub by: u8,
    /// The chunk.
    pub chunk: ChunkId,
    /// Its length in bytes: behind its end it counts as zeros.
    pub len: u32,
}

/// One inner node of a combine tree.
#[derive(Clone, Debug)]
pub struct CombineSource {
    /// The site that evaluates it.
    pub site: SiteId,
    /// What it evaluates, with the same offset, length and slice length.
    pub request: CombineRequest,
}

/// A chunk that a site makes out of chunks that it and other sites have, and stores: its bytes then travel straight to
/// where they belong, and not through whoever repairs or moves.
#[derive(Clone, Debug)]
pub struct AssembleRequest {
    /// The name of the new chunk.
    pub chunk: ChunkId,
    /// The CRC-32C that it must have; nothing else is stored.
    pub crc32c: u32,
    /// What it is: a combination from its first byte on, as long as the chunk.
    pub combination: CombineRequest,
    /// Where it is more than that, or something else: in the order of their ranges, which do not overlap. So a changed chunk is made
    /// of the old one, and what is sent is what has changed.
    pub windows: Vec<Window>,
}

/// A range of a chunk that is made, in which it is not the combination alone.
#[derive(Clone, Debug)]
pub enum Window {
    /// The combination of these bytes, with offset and length of the range, is added.
    Sum(CombineRequest),
    /// These bytes take the place of the combination's.
    Bytes {
        /// Of the first one in the chunk.
        offset: u32,
        /// As many as the range has, at least one.
        bytes: Bytes,
    },
}

impl Window {
    /// Its range in the chunk: offset and length in bytes.
    pub fn place(&self) -> (u32, u32) {
        match self {
            Self::Sum(CombineRequest { offset, len, .. }) => (*offset, *len),
            Self::Bytes { offset, bytes } => (*offset, u32::try_from(bytes.len()).unwrap_or(u32::MAX)),
        }
    }
}

/// What a gateway tells the home of a cached block, and asks it. The *home* is the site of its first split; see
/// [`striate_core::cached`] for names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tend {
    /// The block.
    pub name: StripeId,
    /// Bytes of a split.
    pub split_len: u32,
    /// Reads of it since the gateway told last.
    pub reads: u32,
    /// What has become of it.
    pub matter: TendMatter,
    /// The grant that ends when it was filled or given up; 0: none.
    pub grant: u64,
}

/// What a gateway says of a cached block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TendMatter {
    /// It wants to read it, or to fill it if it is not there.
    Look,
    /// It has filled it, with so many parities.
    Filled {
        /// Parities that were written.
        parities: u8,
    },
    /// It does not fill it after all.
    GaveUp,
    /// It has missed splits of it.
    Lost,
}

/// What the home of a cached block answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tended {
    /// Where the block stands.
    pub standing: Standing,
    /// How many parities it should have, by its popularity.
    pub wanted_parities: u8,
    /// Of a block that who asks is to fill: the number of this grant, which only its holder knows. Else 0.
    pub grant: u64,
}

/// Where a cached block stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is there, with so many parities.
    Filled {
        /// Parities that it has, as far as the home was told.
        parities: u8,
    },
    /// It is not; who asks is to fill it.
    Granted,
    /// Somebody else is filling it.
    Filling,
}

/// What knows of cached blocks whose home a site is.
pub trait BlockKeeper: Send + Sync + Debug {
    /// What the site's cache holds, and what became of chunks.
    fn view(&self) -> CacheView;

    /// Which of these chunks the site has. Nothing is read, and nothing counts as read.
    fn has(&self, chunks: &[ChunkId]) -> Vec<bool>;

    /// Takes note of what a gateway tells, and answers it, block by block.
    fn tend(&self, blocks: &[Tend], now: Instant) -> Vec<Tended>;
}

/// One page of a site's chunks.
#[derive(Clone, Debug, Default)]
pub struct ChunkPage {
    /// In ascending order of [`ChunkId`].
    pub chunks: Vec<ChunkInfo>,
    /// Where the next page starts; `None` when this was the last.
    pub next: Option<ChunkId>,
}

/// What a site says of itself.
#[derive(Clone, Debug)]
pub struct SiteStatus {
    /// Its number.
    pub site: SiteId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its failure domain.
    pub rack: RackId,
    /// Its store.
    pub store: StoreStatus,
    /// Its load.
    pub load: LoadReport,
    /// Bytes that reads take from its store in a second; of late, in the mean. `None` if it does not tell.
    pub read_bytes_per_s: Option<u64>,
    /// The newest formats that its program reads.
    pub reads: Formats,
    /// Its program's version; empty if it does not tell.
    pub program: String,
    /// What it caches, if it is a site of the memory tier.
    pub cache: Option<CacheView>,
}

/// Why a site did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SiteError {
    /// It has no such chunk.
    #[error("the site has no chunk {0}")]
    Missing(ChunkId),
    /// The chunk's bytes or header do not match their checksum. Never served; to be repaired.
    #[error("chunk {chunk} is damaged: {reason}")]
    Corrupt {
        /// The chunk.
        chunk: ChunkId,
        /// What did not match.
        reason: String,
    },
    /// The request itself is wrong (a range past the end, another content under an existing name, …).
    #[error("bad request: {0}")]
    BadRequest(String),
    /// The disk is full up to its reserve.
    #[error("the site's disk is full")]
    NoSpace,
    /// The queue is full; worth a retry elsewhere.
    #[error("the site's queue is full")]
    Busy,
    /// The deadline passed before the site came to it.
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
    /// The disk failed, vanished or was swapped: the site takes no more writes (and perhaps no reads).
    #[error("the site's disk is suspect: {0}")]
    Suspect(String),
    /// The site cannot be reached.
    #[error("the site is unavailable: {0}")]
    Unavailable(String),
}

/// A storage site. Implementations: in this process, and over TCP.
#[async_trait]
pub trait Site: Send + Sync + Debug {
    /// Its number.
    fn id(&self) -> SiteId;

    /// Its failure domain.
    fn rack(&self) -> RackId;

    /// The load it reported last, without asking it.
    fn last_load(&self) -> LoadReport;

    /// Reads many ranges; see [`ReadStream`].
    fn read(&self, request: ReadRequest) -> ReadStream;

    /// Reads one range, all of its bytes.
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

    /// Stores a chunk. An answer means durable: an fdatasync that began after the write ended has succeeded.
    async fn write(&self, request: WriteRequest) -> Result<LoadReport, SiteError>;

    /// Removes chunks, durably.
    async fn delete(&self, request: DeleteRequest) -> Result<LoadReport, SiteError>;

    /// At most `limit` chunks from `from` on.
    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError>;

    /// Reads the whole chunk from the medium, past the page cache, and verifies it.
    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError>;

    /// Which of many chunks it has, chunk by chunk. A site of the memory tier reads nothing for it, and nothing counts as read; one
    /// that keeps durable chunks verifies each of them.
    async fn has(&self, chunks: Vec<ChunkId>) -> Result<Vec<bool>, SiteError> {
        has_by_verifying(self, &chunks).await
    }

    /// Evaluates a combine tree whose root is this site.
    fn combine(&self, request: CombineRequest) -> SliceStream;

    /// Makes a chunk at this site and stores it. An answer means what that of [`Site::write`] means.
    async fn assemble(&self, request: AssembleRequest) -> Result<LoadReport, SiteError>;

    /// Tells it of cached blocks whose home it is, and asks it, block by block. A site that keeps durable chunks refuses.
    async fn tend(&self, blocks: Vec<Tend>) -> Result<Vec<Tended>, SiteError> {
        let _ = blocks;
        Err(SiteError::BadRequest("it is not a memory site".to_owned()))
    }

    /// The checksums of a chunk's products, from which those of sums that it is a term of follow. The chunk is read where it is; who
    /// reaches it over a network asks the site.
    async fn products(&self, chunk: ChunkId, len: u32) -> Result<MultipleChecksums, SiteError> {
        products_by_reading(self, chunk, len).await
    }

    /// Its state now.
    async fn status(&self) -> Result<SiteStatus, SiteError>;

    /// Its load, at once and whenever its queue has changed ([`crate::pushes`]). Reports come in their order; one that was not
    /// taken before the next is left out. Ends with an error, or when the site stops; until then the queue is as the last report
    /// told it. A site that does not push refuses.
    fn watch(&self) -> LoadStream {
        let refused = SiteError::BadRequest("it does not push load reports".to_owned());
        stream::once(async move { Err(refused) }).boxed()
    }

    /// Whether [`Site::last_load`] is the load of this moment, as it is in the site's own process: nobody need watch it.
    fn knows_its_load(&self) -> bool {
        false
    }
}

/// How a site finds the others for the upstream parts of a combination.
pub trait SiteDirectory: Send + Sync + Debug {
    /// The site with this number, if it is known.
    fn site(&self, site: SiteId) -> Option<Arc<dyn Site>>;
}

/// Which of many chunks a site has, one question after the other.
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

/// The checksums of a chunk's products, computed here.
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
