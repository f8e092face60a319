//! Gathers the blocks of a put, and accounts for the memory that they hold.
//!
//! A put holds what it has received of a block, and takes memory for more in steps as it arrives
//! ([`ArrivingBlock`]): 4 KiB at least, then always twice as much. It is not read while it waits for memory, and is
//! refused when there is none in time, or when its sender is slow and others wait.

use std::pin::pin;
use std::task::Context;

use bytes::Bytes;
use striate_runtime::{Buffer, BufferPool, Runtime};
use striate_stripe::{ArrivingBlock, ByteBudget, Share, StripeError};

use crate::digest::Digests;
use crate::object::{MAX_PUT_LEN, PutBody};
use crate::{Client, ClientError};

/// Minimum number of bytes for which a put takes memory while more is to come.
const SMALLEST_STEP: usize = 4 << 10;
/// Maximum length in bytes of a frame that is copied while more is to come: it may be a small part of the
/// connection's buffer, and would keep all of it.
const COPIED: usize = 64 << 10;

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
    /// Shares of the budget for each byte: 2 if the body itself is read from the store, which never stalls.
    shares: usize,
    block: BlockBuffer,
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
    /// frame has not arrived, and may end the wait.
    async fn next(
        &mut self,
        digests: &mut Digests,
        while_waiting: impl FnMut(&Context<'_>) -> Result<(), StripeError> + Send,
    ) -> Result<Option<Bytes>, ClientError> {
        if !self.rest.is_empty() {
            return Ok(Some(std::mem::take(&mut self.rest)));
        }
        if self.ended {
            return Ok(None);
        }
        let Some(frame) = polled(self.body.next(), while_waiting).await? else {
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

/// Awaits `future`, calling `while_waiting` whenever it is not ready. An error of that ends the wait.
async fn polled<T>(
    future: impl Future<Output = T> + Send,
    mut while_waiting: impl FnMut(&Context<'_>) -> Result<(), StripeError>,
) -> Result<T, StripeError> {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        std::task::Poll::Ready(value) => std::task::Poll::Ready(Ok(value)),
        std::task::Poll::Pending => match while_waiting(cx) {
            Ok(()) => std::task::Poll::Pending,
            Err(error) => std::task::Poll::Ready(Err(error)),
        },
    })
    .await
}

/// Returns the number of bytes for which a put takes memory when it has `len` of a block of at most `room` bytes.
fn step(len: usize, room: usize) -> usize {
    len.next_power_of_two().max(SMALLEST_STEP).min(room)
}

impl<'a> BlockGatherer<'a> {
    pub(crate) fn new(client: &'a Client, shares: usize) -> Self {
        let (budget, runtime) = (client.inner.stripes.budget(), &client.inner.runtime);
        Self { budget, runtime, shares, block: BlockBuffer::Nothing }
    }

    /// Returns the next block with its memory: `room` bytes, fewer at the end, `None` after it. A block within one
    /// frame is a slice of it; others are copied together.
    ///
    /// # Errors
    /// Errors of the body; [`ClientError::Overloaded`] when no memory becomes free in time, or when the sender is
    /// slow and others wait for memory.
    pub(crate) async fn next_block(
        &mut self,
        frames: &mut Frames<'_>,
        room: usize,
        digests: &mut Digests,
    ) -> Result<Option<(Bytes, Share)>, ClientError> {
        if self.shares > 1 {
            // A body read from the store takes its own memory before the store's.
            let mut share = self.budget.acquire(room * self.shares).await?;
            let block = self.gather(frames, room, digests, None).await?;
            share.shrink_to(block.as_ref().map_or(0, Bytes::len) * self.shares);
            return Ok(block.map(|block| (block, share)));
        }
        let mut memory = self.budget.begin_arrival();
        let block = self.gather(frames, room, digests, Some(&mut memory)).await?;
        Ok(block.map(|block| {
            let share = memory.complete(block.len());
            (block, share)
        }))
    }

    /// Gathers the next block. `memory` is that of a body that arrives from a sender.
    async fn gather(
        &mut self,
        frames: &mut Frames<'_>,
        room: usize,
        digests: &mut Digests,
        mut memory: Option<&mut ArrivingBlock>,
    ) -> Result<Option<Bytes>, ClientError> {
        while self.block.len() < room {
            let Some(mut frame) = self.next_frame(frames, digests, memory.as_deref_mut()).await? else {
                break;
            };
            let part = frame.split_to(frame.len().min(room - self.block.len()));
            frames.rest = frame;
            let len = self.block.len() + part.len();
            let is_whole = len == room || (frames.ended && frames.rest.is_empty());
            let capacity = match &mut memory {
                Some(memory) if len > memory.held() => {
                    let capacity = if is_whole { len } else { step(len, room) };
                    memory.grow(capacity).await?;
                    capacity
                }
                Some(_) => step(len, room),
                None => room,
            };
            let block = std::mem::replace(&mut self.block, BlockBuffer::Nothing);
            self.block = block.append(part, capacity, is_whole, self.runtime.buffers());
        }
        // With all announced bytes here, the end is confirmed before the block is written.
        if frames.rest.is_empty() && frames.content_len == Some(frames.received) && !frames.ended {
            while let Some(frame) = self.next_frame(frames, digests, memory.as_deref_mut()).await? {
                debug_assert!(frame.is_empty(), "more bytes than announced are an error");
            }
        }
        let block = std::mem::replace(&mut self.block, BlockBuffer::Nothing).into_bytes();
        Ok(block)
    }

    /// Returns the next frame. While it is awaited, the put holds memory at the mercy of its sender.
    async fn next_frame(
        &mut self,
        frames: &mut Frames<'_>,
        digests: &mut Digests,
        memory: Option<&mut ArrivingBlock>,
    ) -> Result<Option<Bytes>, ClientError> {
        let Some(memory) = memory else { return frames.next(digests, |_| Ok(())).await };
        let arrived = self.block.len();
        let frame = frames.next(digests, |cx| memory.await_more(arrived, cx)).await;
        memory.end_wait();
        frame
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

    /// Adds a frame, in a buffer of `capacity` bytes if one is needed. The frame itself is kept if the block is whole
    /// with it, or if it is long.
    fn append(self, bytes: Bytes, capacity: usize, is_whole: bool, buffers: &BufferPool) -> Self {
        let (len, end) = (self.len(), self.len() + bytes.len());
        let larger = |gathered: &[u8]| {
            let mut buffer = buffers.take(capacity.max(end));
            buffer[..gathered.len()].copy_from_slice(gathered);
            buffer
        };
        let mut buffer = match self {
            gathered if bytes.is_empty() => return gathered,
            Self::Nothing if is_whole || bytes.len() > COPIED => return Self::OneFrame(bytes),
            Self::Nothing => larger(&[]),
            Self::OneFrame(first) => larger(&first),
            Self::Copied { buffer, .. } if buffer.len() < end => larger(&buffer[..len]),
            Self::Copied { buffer, .. } => buffer,
        };
        buffer[len..end].copy_from_slice(&bytes);
        Self::Copied { buffer, len: end }
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
