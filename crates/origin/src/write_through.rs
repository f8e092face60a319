//! Writes that are cached, where writes are.
//!
//! The blocks of an object are named by the ETag that its origin gives it, which comes after the body. So the bytes of a body are held while
//! they are sent on, without a copy. When the origin has said the ETag and the write's fence is gone, they are put into memory as those of
//! a read are, and the origin is asked what it says of the object. A read then needs nothing of it. Whoever overwrites the object meanwhile
//! gives it another ETag: no read looks for these blocks then.
//!
//! Held bytes count in the memory for bodies, half of it at most. While a body comes they give way to whoever waits for memory: the write
//! is then forwarded and not cached, as are longer ones, uploads in parts and copies.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderName, Method, Response};
use parking_lot::Mutex;
use striate_runtime::{Instant, Runtime};
use striate_s3::{ElsewhereBody, ElsewhereRequest};
use striate_stripe::{ByteBudget, Holder, MemoryBlock, Registered, Share};
use tokio::sync::Semaphore;

use crate::asked::Asked;
use crate::counts::{OriginCounts, add};
use crate::finding::Wanted;
use crate::head::strong_etag;
use crate::opened::Opened;
use crate::service::Shared;

/// A longer object is not cached when it is written, in bytes. Clients send such ones in parts, and about so much may be on its way into
/// memory at once.
const LONGEST: u64 = 16 << 20;
/// The part of the memory for bodies that held ones may take: one over this.
const HELD_PART: usize = 2;
/// A block counts as so many bytes at least, for its task and its names.
const LEAST_BLOCK: usize = 4 << 10;
/// Origins are asked about so many objects at once that were just written; a read asks about the others.
const ASKED_AT_ONCE: usize = 64;

/// What all writes share.
pub(crate) struct WriteThrough {
    runtime: Runtime,
    /// Of all bodies.
    bodies: ByteBudget,
    /// Of those that are held.
    held: ByteBudget,
    asking: Semaphore,
    counts: Arc<OriginCounts>,
}

/// A write whose body is held while it is sent on.
pub(crate) struct HeldWrite {
    wanted: Wanted,
    body: Arc<HeldBody>,
    _registered: Registered,
}

/// A body of which those bytes are held that were sent on.
struct HeldBody {
    of: Arc<WriteThrough>,
    len: u64,
    block_len: u64,
    /// None once it is not held any more.
    sent: Mutex<Option<Sent>>,
}

struct Sent {
    blocks: Vec<HeldBlock>,
    len: u64,
    /// When the last bytes of it came.
    since: Instant,
}

struct HeldBlock {
    pieces: Vec<Bytes>,
    /// Of the memory for bodies, and of the part for held ones.
    shares: (Share, Share),
}

impl WriteThrough {
    /// `bodies` is the memory for all bodies of this process.
    pub(crate) fn new(runtime: Runtime, bodies: ByteBudget, counts: Arc<OriginCounts>) -> Arc<Self> {
        let held = ByteBudget::new(runtime.clone(), bodies.total() / HELD_PART, Duration::ZERO);
        Arc::new(Self { runtime, bodies, held, asking: Semaphore::new(ASKED_AT_ONCE), counts })
    }

    /// Memory for a block, if it can be had at once and nobody waits for it.
    fn begin_block(&self, len: usize) -> Option<HeldBlock> {
        let len = len.max(LEAST_BLOCK);
        if len > self.held.total() || self.bodies.fair_share().is_some() {
            return None;
        }
        let shares = (self.bodies.try_acquire(len)?, self.held.try_acquire(len)?);
        Some(HeldBlock { pieces: Vec::new(), shares })
    }
}

/// Whether the body of a request becomes an object as it is, readable without a key of the customer's.
fn is_whole_object(request: &ElsewhereRequest) -> bool {
    const NOT: [&str; 3] =
        ["x-amz-copy-source", "x-amz-server-side-encryption-customer", "x-amz-write-offset-bytes"];
    let is_other = |name: &HeaderName| NOT.iter().any(|prefix| name.as_str().starts_with(prefix));
    let is_plain = request.query.split('&').all(|query| query.is_empty() || query.starts_with("x-id="));
    request.method == Method::PUT
        && !request.key.is_empty()
        && is_plain
        && !request.headers.keys().any(is_other)
}

impl Shared {
    /// Holds the body of a request from now on, as it is sent on; `None` where it will not be cached.
    pub(crate) fn hold(&self, origin: &Arc<Opened>, request: &mut ElsewhereRequest) -> Option<HeldWrite> {
        let len = match &request.body {
            ElsewhereBody::Held(bytes) => bytes.len() as u64,
            ElsewhereBody::Streamed { len, .. } => *len,
        };
        if !(1..=LONGEST).contains(&len) || !is_whole_object(request) || !self.cache.fills_writes() {
            return None;
        }
        let of = self.write_through.clone();
        let sent = Sent { blocks: Vec::new(), len: 0, since: of.runtime.now() };
        let body = HeldBody { of, len, block_len: origin.block_len, sent: Mutex::new(Some(sent)) };
        let body = Arc::new(body);
        match &mut request.body {
            ElsewhereBody::Held(bytes) => body.hold(bytes.clone()),
            ElsewhereBody::Streamed { bytes, .. } => {
                let (holding, pieces) =
                    (body.clone(), std::mem::replace(bytes, futures::stream::empty().boxed()));
                let held = pieces.inspect(move |piece| match piece {
                    Ok(piece) => holding.hold(piece.clone()),
                    Err(_) => drop(holding.take()),
                });
                *bytes = held.boxed();
            }
        }
        let wanted = Wanted {
            origin: origin.clone(),
            bucket: request.bucket.as_str().into(),
            key: request.key.as_str().into(),
        };
        let _registered = self.write_through.bodies.register(body.clone());
        Some(HeldWrite { wanted, body, _registered })
    }

    /// The fence of a write is gone: puts into memory what the origin took, in the background.
    pub(crate) fn cache_written(self: &Arc<Self>, write: HeldWrite, answer: &Response<Bytes>) {
        let etag = strong_etag(answer.headers()).filter(|_| answer.status().is_success());
        let (Some(etag), Some(blocks)) = (etag.map(str::to_owned), write.body.take()) else { return };
        let (this, len, wanted) = (self.clone(), write.body.len, write.wanted);
        self.client.runtime().spawn(async move {
            this.fill_written(&wanted, &etag, len, blocks).await;
            this.ask_about_written(&wanted).await;
        });
    }

    async fn fill_written(&self, wanted: &Wanted, etag: &str, len: u64, blocks: Vec<HeldBlock>) {
        let names = wanted.origin.blocks(&wanted.key, etag, len);
        let all: Vec<MemoryBlock> = (0..blocks.len() as u64).map(|number| names.block(number)).collect();
        for (fill, block) in self.cache.claim(&all).await.into_iter().zip(blocks) {
            if let Some(fill) = fill {
                fill.fill(block.pieces, block.shares);
            }
        }
        add(&self.write_through.counts.cached_writes, 1);
    }

    /// Asks the origin what it says of an object, so that no read has to.
    async fn ask_about_written(self: &Arc<Self>, wanted: &Wanted) {
        let Ok(_asking) = self.write_through.asking.try_acquire() else { return };
        let asked = async {
            let (_, standing) = self.fences.look(&wanted.bucket, &wanted.key).await?;
            self.find(wanted, &Asked::head(), standing, None, None).await
        };
        if let Err(error) = asked.await {
            tracing::debug!(key = &*wanted.key, %error, "what was written is not known; the next read asks");
        }
    }
}

impl HeldBody {
    /// Holds the next bytes too, or nothing any more where there is no memory for them.
    fn hold(&self, piece: Bytes) {
        let mut sent = self.sent.lock();
        let Some(so_far) = &mut *sent else { return };
        if !self.append(so_far, piece) {
            *sent = None;
            add(&self.of.counts.uncached_writes, 1);
        }
    }

    fn append(&self, sent: &mut Sent, mut piece: Bytes) -> bool {
        sent.since = self.of.runtime.now();
        while !piece.is_empty() {
            let (start, left) = (sent.len - sent.len % self.block_len, self.len.saturating_sub(sent.len));
            if start == sent.len {
                let len = self.block_len.min(left) as usize;
                let Some(block) = self.of.begin_block(len) else { return false };
                sent.blocks.push(block);
            }
            let taken = piece.split_to(piece.len().min((start + self.block_len - sent.len) as usize));
            sent.len += taken.len() as u64;
            if let Some(block) = sent.blocks.last_mut() {
                block.pieces.push(taken);
            }
        }
        true
    }

    /// Its blocks, if all of it was sent on and is held. They are not held here any more.
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
            add(&self.of.counts.uncached_writes, 1);
        }
        is_idle
    }
}
