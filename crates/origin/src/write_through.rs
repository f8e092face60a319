//! Caching of writes, if writes are cached.
//!
//! The blocks of an object are named by the ETag that its origin assigns, which is known only after the body. So the
//! bytes of a body are held while they are forwarded, without a copy. When the origin has returned the ETag and the
//! write's fence is gone, they are put into memory as those of a read are, and the origin is asked for the object's
//! head. A read then needs no request to the origin. If another write replaces the object meanwhile, the object gets
//! another ETag, and no read looks for these blocks.
//!
//! Held bytes count as memory for bodies, and may take half of it. While a body arrives, its held bytes are released as
//! soon as another request waits for memory: the write is then forwarded and not cached. Longer writes, multipart
//! uploads and copies are not cached either.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Response};
use parking_lot::Mutex;
use striate_runtime::{Instant, Runtime};
use striate_s3::{RemoteBody, RemoteRequest};
use striate_stripe::{ByteBudget, Holder, HolderRegistration, MemoryBlock, Share};
use tokio::sync::Semaphore;

use crate::counts::{OriginCounts, add};
use crate::finding::OriginObject;
use crate::forward::names;
use crate::head::strong_etag;
use crate::origin_bucket::OriginBucket;
use crate::read_request::ReadRequest;
use crate::service::Shared;

/// Maximum size in bytes of an object that is cached when it is written. Clients send longer ones in parts, and about
/// this much memory may be used for fills at once.
const LONGEST: u64 = 16 << 20;
/// Held bodies may take this fraction (one over it) of the memory for bodies.
const HELD_PART: usize = 2;
/// Minimum number of bytes that a block counts as, for its task and its names.
const LEAST_BLOCK: usize = 4 << 10;
/// Maximum number of concurrent requests to origins for objects just written. Reads ask for the others.
const ASKED_AT_ONCE: usize = 64;

/// State shared by all writes.
pub(crate) struct WriteThrough {
    runtime: Runtime,
    /// Memory for all bodies.
    bodies: ByteBudget,
    /// Memory for held bodies.
    held: ByteBudget,
    asking: Semaphore,
    counts: Arc<OriginCounts>,
}

/// A write whose body is held while it is forwarded.
pub(crate) struct HeldWrite {
    origin_object: OriginObject,
    body: Arc<HeldBody>,
    _registered: HolderRegistration,
}

/// A body whose forwarded bytes are held.
struct HeldBody {
    write_through: Arc<WriteThrough>,
    len: u64,
    block_len: u64,
    /// `None` once the body is no longer held.
    sent: Mutex<Option<SentBlocks>>,
}

struct SentBlocks {
    blocks: Vec<HeldBlock>,
    len: u64,
    /// Time at which its last bytes arrived.
    since: Instant,
}

struct HeldBlock {
    pieces: Vec<Bytes>,
    /// Shares of the memory for all bodies and for held bodies.
    shares: (Share, Share),
}

impl WriteThrough {
    /// `bodies` is the memory for all bodies of this process.
    pub(crate) fn new(runtime: Runtime, bodies: ByteBudget, counts: Arc<OriginCounts>) -> Arc<Self> {
        let held = ByteBudget::new(runtime.clone(), bodies.total() / HELD_PART, Duration::ZERO);
        Arc::new(Self { runtime, bodies, held, asking: Semaphore::new(ASKED_AT_ONCE), counts })
    }

    /// Acquires memory for a block, if it is free and no request waits for memory.
    fn begin_block(&self, len: usize) -> Option<HeldBlock> {
        let len = len.max(LEAST_BLOCK);
        if len > self.held.total() || self.bodies.fair_share().is_some() {
            return None;
        }
        let shares = (self.bodies.try_acquire(len)?, self.held.try_acquire(len)?);
        Some(HeldBlock { pieces: Vec::new(), shares })
    }
}

/// Whether the body of a request becomes an object unchanged, readable without a customer's key.
fn is_whole_object(request: &RemoteRequest) -> bool {
    const NOT: [&str; 3] =
        ["x-amz-copy-source", "x-amz-server-side-encryption-customer", "x-amz-write-offset-bytes"];
    let is_other = |name: &str| NOT.iter().any(|prefix| name.starts_with(prefix));
    // SDKs move headers into URLs that they presign.
    let is_header = |name: &str| matches!(name, "" | "x-id") || name.starts_with("x-amz-");
    let is_plain = |name: String| is_header(&name) && !is_other(&name);
    request.method == Method::PUT
        && !request.key.is_empty()
        && names(&request.query).all(|name| is_plain(name.to_ascii_lowercase()))
        && !request.headers.keys().any(|name| is_other(name.as_str()))
}

impl Shared {
    /// Starts to hold the body of a request as it is forwarded. Returns `None` if it will not be cached.
    pub(crate) fn hold(&self, origin: &Arc<OriginBucket>, request: &mut RemoteRequest) -> Option<HeldWrite> {
        let len = match &request.body {
            RemoteBody::Held(bytes) => bytes.len() as u64,
            RemoteBody::Streamed { len, .. } => *len,
        };
        if !(1..=LONGEST).contains(&len) || !is_whole_object(request) || !self.cache.fills_writes() {
            return None;
        }
        let write_through = self.write_through.clone();
        let sent = SentBlocks { blocks: Vec::new(), len: 0, since: write_through.runtime.now() };
        let body = HeldBody { write_through, len, block_len: origin.block_len, sent: Mutex::new(Some(sent)) };
        let body = Arc::new(body);
        match &mut request.body {
            RemoteBody::Held(bytes) => body.hold(bytes.clone()),
            RemoteBody::Streamed { bytes, .. } => {
                let (holding, pieces) =
                    (body.clone(), std::mem::replace(bytes, futures::stream::empty().boxed()));
                let held = pieces.inspect(move |piece| match piece {
                    Ok(piece) => holding.hold(piece.clone()),
                    Err(_) => drop(holding.take()),
                });
                *bytes = held.boxed();
            }
        }
        let origin_object = OriginObject::of(origin, request);
        let _registered = self.write_through.bodies.register(body.clone());
        Some(HeldWrite { origin_object, body, _registered })
    }

    /// Puts a written object into memory in the background. Call when the fence of the write is gone: until then the
    /// origin is not asked for the object.
    pub(crate) fn cache_written(self: &Arc<Self>, write: HeldWrite, answer: &Response<Bytes>) {
        let etag = strong_etag(answer.headers()).filter(|_| answer.status().is_success());
        let (Some(etag), Some(blocks)) = (etag.map(str::to_owned), write.body.take()) else { return };
        let (shared, len, origin_object) = (self.clone(), write.body.len, write.origin_object);
        self.client.runtime().spawn(async move {
            shared.fill_written(&origin_object, &etag, len, blocks).await;
            shared.ask_about_written(&origin_object).await;
        });
    }

    async fn fill_written(&self, origin_object: &OriginObject, etag: &str, len: u64, blocks: Vec<HeldBlock>) {
        let names = origin_object.origin.blocks(&origin_object.key, etag, len);
        let all: Vec<MemoryBlock> = (0..blocks.len() as u64).map(|number| names.block(number)).collect();
        for (fill, block) in self.cache.claim(&all).await.into_iter().zip(blocks) {
            if let Some(fill) = fill {
                fill.fill(block.pieces, block.shares);
            }
        }
        add(&self.write_through.counts.cached_writes, 1);
    }

    /// Asks the origin for an object's head, so that no read has to.
    async fn ask_about_written(self: &Arc<Self>, origin_object: &OriginObject) {
        let Ok(_asking) = self.write_through.asking.try_acquire() else { return };
        let lookup = async {
            let (_, fence_state) = self.fences.state_of(&origin_object.bucket, &origin_object.key).await?;
            self.find(origin_object, &ReadRequest::head(), fence_state, None, None).await
        };
        if let Err(error) = lookup.await {
            tracing::debug!(key = &*origin_object.key, %error, "the state after a write is unknown; the next read asks the origin");
        }
    }
}

impl HeldBody {
    /// Holds the next bytes too, or releases the whole body if no memory is free for them.
    fn hold(&self, piece: Bytes) {
        let mut sent = self.sent.lock();
        let Some(so_far) = &mut *sent else { return };
        if !self.append(so_far, piece) {
            *sent = None;
            add(&self.write_through.counts.uncached_writes, 1);
        }
    }

    fn append(&self, sent: &mut SentBlocks, mut piece: Bytes) -> bool {
        sent.since = self.write_through.runtime.now();
        while !piece.is_empty() {
            let (start, remaining) =
                (sent.len - sent.len % self.block_len, self.len.saturating_sub(sent.len));
            if start == sent.len {
                let len = self.block_len.min(remaining) as usize;
                let Some(block) = self.write_through.begin_block(len) else { return false };
                sent.blocks.push(block);
            }
            let part = piece.split_to(piece.len().min((start + self.block_len - sent.len) as usize));
            sent.len += part.len() as u64;
            if let Some(block) = sent.blocks.last_mut() {
                block.pieces.push(part);
            }
        }
        true
    }

    /// Takes the blocks out, if the whole body was forwarded and is held.
    fn take(&self) -> Option<Vec<HeldBlock>> {
        let sent = self.sent.lock().take();
        sent.filter(|sent| sent.len == self.len).map(|sent| sent.blocks)
    }
}

impl Holder for HeldBody {
    fn idle_since(&self) -> Option<Instant> {
        self.sent.lock().as_ref().filter(|sent| !sent.blocks.is_empty()).map(|sent| sent.since)
    }

    fn release_if_idle(&self, since: Instant) -> bool {
        let mut sent = self.sent.lock();
        let is_idle = sent.as_ref().is_some_and(|sent| !sent.blocks.is_empty() && sent.since <= since);
        if is_idle {
            *sent = None;
            add(&self.write_through.counts.uncached_writes, 1);
        }
        is_idle
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    #[test]
    fn a_presigned_put_is_of_a_whole_object_unless_a_parameter_says_otherwise() {
        let is_whole = |query: &str| {
            is_whole_object(&RemoteRequest {
                bucket: "b".to_owned(),
                key: "k".to_owned(),
                method: Method::PUT,
                query: query.to_owned(),
                headers: HeaderMap::new(),
                body: RemoteBody::Held(Bytes::new()),
            })
        };
        let presigned =
            "X-Amz-Content-Sha256=UNSIGNED-PAYLOAD&x-amz-checksum-crc32=AAAAAA%3D%3D&x-id=PutObject";
        assert!(is_whole("") && is_whole(presigned) && is_whole("x-amz-meta-a=b"));
        for query in [
            "partNumber=1&uploadId=1",
            "tagging",
            "X-Amz-Copy-Source=b%2Fk",
            "x-amz-server-side-encryption-customer-algorithm=AES256",
            "x%2Damz-write-offset-bytes=5",
        ] {
            assert!(!is_whole(query), "{query}");
        }
    }
}
