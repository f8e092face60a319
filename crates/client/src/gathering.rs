//! Gathers the blocks of a put, and accounts for the memory that they hold.
//!
//! A put holds what it has received. Its first frames, up to [`UNCOUNTED`], are left to the connection's buffers.
//! When more arrives, the put takes memory for the whole block, so that two senders never block each other while
//! holding partial memory. If a sender then stalls, the memory for the part it has not sent is reclaimed
//! ([`Holder`]), and taken again when it resumes.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;

use bytes::Bytes;
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use striate_runtime::{Buffer, BufferPool, Instant, Runtime};
use striate_stripe::{ByteBudget, Holder, HolderRegistration, Share};

use crate::digest::Digests;
use crate::object::{MAX_PUT_LEN, PutBody};
use crate::{Client, ClientError};

/// Bytes that a put gathers before it takes memory from the budget.
const UNCOUNTED: usize = 64 << 10;

/// Frames of a body.
pub(crate) struct Frames<'a> {
    body: &'a mut dyn PutBody,
    content_len: Option<u64>,
    received: u64,
    /// Rest of the last frame.
    rest: Bytes,
    ended: bool,
}

/// Gathers the blocks of a put, one after the other.
pub(crate) struct BlockGatherer<'a> {
    budget: &'a ByteBudget,
    runtime: &'a Runtime,
    /// Shares of the budget for each byte: 2 if the body itself is read from the store.
    shares: usize,
    sender: Arc<Sender>,
    /// Set once the put holds memory.
    registered: Option<HolderRegistration>,
    block: BlockBuffer,
    share: Option<Share>,
}

/// Sender of a put, as the budget sees it.
#[derive(Default)]
struct Sender {
    /// When the wait for the sender began, while its put holds memory for bytes that have not arrived.
    awaited: Mutex<Option<Instant>>,
    /// Asks the put to give that memory back.
    is_asked: AtomicBool,
    waker: AtomicWaker,
}

impl Holder for Sender {
    fn idle_since(&self) -> Option<Instant> {
        *self.awaited.lock()
    }

    fn release_if_idle(&self, since: Instant) -> bool {
        let mut awaited = self.awaited.lock();
        if awaited.is_none_or(|awaited| awaited > since) {
            return false;
        }
        *awaited = None;
        self.is_asked.store(true, Ordering::Release);
        self.waker.wake();
        true
    }
}

impl<'a> Frames<'a> {
    pub(crate) fn new(body: &'a mut dyn PutBody, content_len: Option<u64>) -> Self {
        Self { body, content_len, received: 0, rest: Bytes::new(), ended: false }
    }

    /// Bytes received so far.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Whether the body's end was received.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Bytes not yet in blocks, if the length was announced.
    pub(crate) fn announced(&self) -> Option<u64> {
        Some(self.content_len?.saturating_sub(self.received) + self.rest.len() as u64)
    }

    /// Returns the next frame, counted and digested; `None` at the body's end. `while_waiting` is called while the
    /// frame has not arrived.
    async fn next(
        &mut self,
        digests: &mut Digests,
        while_waiting: impl FnMut(&Context<'_>) + Send,
    ) -> Result<Option<Bytes>, ClientError> {
        if !self.rest.is_empty() {
            return Ok(Some(std::mem::take(&mut self.rest)));
        }
        if self.ended {
            return Ok(None);
        }
        let Some(frame) = polled(self.body.next(), while_waiting).await else {
            self.ended = true;
            return match self.content_len {
                Some(expected) if expected != self.received => {
                    Err(ClientError::IncompleteBody { expected, got: self.received })
                }
                _ => Ok(None),
            };
        };
        let frame = frame?;
        self.received += frame.len() as u64;
        if self.received > MAX_PUT_LEN {
            return Err(ClientError::EntityTooLarge { limit: MAX_PUT_LEN });
        }
        if let Some(expected) = self.content_len.filter(|&len| self.received > len) {
            return Err(ClientError::IncompleteBody { expected, got: self.received });
        }
        digests.update(&frame);
        Ok(Some(frame))
    }
}

/// Awaits `future`, calling `while_waiting` whenever it is not ready.
async fn polled<T>(future: impl Future<Output = T> + Send, mut while_waiting: impl FnMut(&Context<'_>)) -> T {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        let polled = future.as_mut().poll(cx);
        if polled.is_pending() {
            while_waiting(cx);
        }
        polled
    })
    .await
}

impl<'a> BlockGatherer<'a> {
    pub(crate) fn new(client: &'a Client, shares: usize) -> Self {
        Self {
            budget: client.inner.stripes.budget(),
            runtime: &client.inner.runtime,
            shares,
            sender: Arc::default(),
            registered: None,
            block: BlockBuffer::Nothing,
            share: None,
        }
    }

    /// Returns the next block with its memory: `room` bytes, fewer at the end, `None` after it. A block within one
    /// frame is a slice of it; others are copied together once.
    ///
    /// # Errors
    /// Errors of the body; [`ClientError::Overloaded`] when no memory becomes free in time.
    pub(crate) async fn next_block(
        &mut self,
        frames: &mut Frames<'_>,
        room: usize,
        digests: &mut Digests,
    ) -> Result<Option<(Bytes, Share)>, ClientError> {
        // A body read from the store takes its own memory before the store's.
        if self.shares > 1 {
            self.take(room).await?;
        }
        while self.block.len() < room {
            let Some(mut frame) = self.next_frame(frames, digests).await? else { break };
            let part = frame.split_to(frame.len().min(room - self.block.len()));
            frames.rest = frame;
            if self.block.len() + part.len() > UNCOUNTED {
                self.take(room).await?;
            }
            let block = std::mem::replace(&mut self.block, BlockBuffer::Nothing);
            self.block = block.append(part, room, self.runtime.buffers());
        }
        // With all announced bytes here, the end is confirmed before the block is written.
        if frames.rest.is_empty() && frames.content_len == Some(frames.received) && !frames.ended {
            while let Some(frame) = self.next_frame(frames, digests).await? {
                debug_assert!(frame.is_empty(), "more bytes than announced are an error");
            }
        }
        let block = std::mem::replace(&mut self.block, BlockBuffer::Nothing).into_bytes();
        let Some(block) = block else { return Ok(None) };
        self.take(block.len()).await?;
        Ok(self.share.take().map(|share| (block, share)))
    }

    /// Returns the next frame. While it is awaited, the memory for missing bytes can be reclaimed.
    async fn next_frame(
        &mut self,
        frames: &mut Frames<'_>,
        digests: &mut Digests,
    ) -> Result<Option<Bytes>, ClientError> {
        let Self { sender, block, share, shares, runtime, .. } = self;
        // A body read from the store does not stall.
        let surplus = share.as_ref().is_some_and(|share| share.len() > block.len()) && *shares == 1;
        if !surplus {
            return frames.next(digests, |_| ()).await;
        }
        let mut is_awaited = false;
        let frame = frames.next(digests, |cx| {
            sender.waker.register(cx.waker());
            if sender.is_asked.swap(false, Ordering::AcqRel) {
                block.compact();
                if let Some(share) = share {
                    share.shrink_to(block.len());
                }
            } else if !is_awaited {
                is_awaited = true;
                *sender.awaited.lock() = Some(runtime.now());
            }
        });
        let frame = frame.await;
        if is_awaited {
            *sender.awaited.lock() = None;
            sender.is_asked.store(false, Ordering::Release);
        }
        frame
    }

    /// Adjusts the share to a block of `len` bytes.
    async fn take(&mut self, len: usize) -> Result<(), ClientError> {
        let (len, held) = (len * self.shares, self.share.as_ref().map_or(0, Share::len));
        // More than the whole budget counts as the whole budget.
        let len = len.min(self.budget.total());
        match &mut self.share {
            Some(share) if held >= len => share.shrink_to(len),
            Some(share) => share.merge(self.budget.acquire(len - held).await?),
            None => self.share = Some(self.budget.acquire(len).await?),
        }
        if self.registered.is_none() && len > UNCOUNTED {
            self.registered = Some(self.budget.register(self.sender.clone()));
        }
        Ok(())
    }
}

/// The block being gathered.
enum BlockBuffer {
    Nothing,
    OneFrame(Bytes),
    Copied { buffer: Buffer, len: usize },
}

impl BlockBuffer {
    fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::OneFrame(bytes) => bytes.len(),
            Self::Copied { len, .. } => *len,
        }
    }

    /// Adds a frame to a block of at most `room` bytes. The buffer is small while few bytes have arrived.
    fn append(self, bytes: Bytes, room: usize, buffers: &BufferPool) -> Self {
        let (len, end) = (self.len(), self.len() + bytes.len());
        let larger = |gathered: &[u8]| {
            let mut buffer = buffers.take(if end > UNCOUNTED { room } else { room.min(UNCOUNTED) });
            buffer[..gathered.len()].copy_from_slice(gathered);
            buffer
        };
        let mut buffer = match self {
            gathered if bytes.is_empty() => return gathered,
            Self::Nothing => return Self::OneFrame(bytes),
            Self::OneFrame(first) => larger(&first),
            Self::Copied { buffer, .. } if buffer.len() < end => larger(&buffer[..len]),
            Self::Copied { buffer, .. } => buffer,
        };
        buffer[len..end].copy_from_slice(&bytes);
        Self::Copied { buffer, len: end }
    }

    /// Frees the buffer's room for bytes that have not arrived.
    fn compact(&mut self) {
        if let Self::Copied { buffer, len } = self {
            *self = Self::OneFrame(Bytes::copy_from_slice(&buffer[..*len]));
        }
    }

    fn into_bytes(self) -> Option<Bytes> {
        match self {
            Self::Nothing => None,
            Self::OneFrame(bytes) => Some(bytes),
            Self::Copied { mut buffer, len } => {
                buffer.truncate(len);
                Some(buffer.freeze())
            }
        }
    }
}
