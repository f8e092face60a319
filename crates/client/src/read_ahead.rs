//! Reads ahead of a receiver: each *window* of spans is one query. The blocks are handed on in order. Dropping a read
//! cancels it.

use std::collections::VecDeque;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use striate_stripe::{Share, Span};
use tokio::sync::oneshot;
use tracing::{Instrument, debug_span};

use crate::task::Task;
use crate::{Client, ClientError};

/// Bytes of a block with the memory that they count against.
pub(crate) type Read = (Vec<Bytes>, Share);

/// Reads in the order of their bytes. Each has begun, or begins when it is awaited.
pub(crate) enum ReadAhead {
    /// A single span.
    Alone { len: u64, read: BoxFuture<'static, Result<Read, ClientError>> },
    /// Several spans.
    Window(Window),
}

/// Spans read as one query.
pub(crate) struct Window {
    task: Task<()>,
    blocks: VecDeque<PendingBlock>,
}

/// A block of a window.
struct PendingBlock {
    len: u64,
    pieces: oneshot::Receiver<Vec<Bytes>>,
    share: Share,
}

impl ReadAhead {
    /// Creates a read that begins when it is awaited.
    pub(crate) fn when_awaited(client: &Client, span: Span, share: Share) -> Self {
        let (len, client) = (span.range.len() as u64, client.clone());
        let read = async move {
            let bytes = i64::from(span.range.end - span.range.start);
            let of_read = debug_span!("read_block", bytes);
            let pieces = client.inner.stripes.read_span(span).instrument(of_read).await?;
            Ok((pieces, share))
        };
        Self::Alone { len, read: read.boxed() }
    }

    /// Starts a read now, as a part of the current tracing span.
    pub(crate) fn now(client: &Client, span: Span, share: Share) -> Self {
        match Self::when_awaited(client, span, share) {
            Self::Alone { len, read } => {
                let task = Task::spawn(&client.inner.runtime, read.in_current_span());
                Self::Alone { len, read: task.boxed() }
            }
            window => window,
        }
    }

    /// Reads spans as one query, as a part of the current tracing span.
    pub(crate) fn window(client: &Client, spans: Vec<(Span, Share)>) -> Self {
        let (mut senders, mut expected) = (Vec::with_capacity(spans.len()), VecDeque::new());
        let mut requested = Vec::with_capacity(spans.len());
        for (span, share) in spans {
            let (sender, pieces) = oneshot::channel();
            expected.push_back(PendingBlock { len: span.range.len() as u64, pieces, share });
            senders.push(Some(sender));
            requested.push(span);
        }
        let of_task = client.clone();
        let read = async move {
            let hand_on = |block: usize, pieces| {
                if let Some(sender) = senders[block].take() {
                    // An error means that the block is no longer wanted.
                    let _ = sender.send(pieces);
                }
            };
            of_task.inner.stripes.read_ahead(&requested, hand_on).await?;
            Ok(())
        };
        let span = debug_span!("read_blocks", blocks = expected.len() as i64);
        let task = Task::spawn(&client.inner.runtime, read.instrument(span));
        Self::Window(Window { task, blocks: expected })
    }

    /// Bytes not handed on yet.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Alone { len, .. } => *len,
            Self::Window(window) => window.blocks.iter().map(|block| block.len).sum(),
        }
    }

    /// Returns the next block. Must not be called after an error, or when nothing is left.
    pub(crate) async fn next(&mut self) -> Result<Read, ClientError> {
        match self {
            Self::Alone { len, read } => {
                *len = 0;
                read.await
            }
            Self::Window(window) => window.next().await,
        }
    }
}

impl Window {
    async fn next(&mut self) -> Result<Read, ClientError> {
        let Some(PendingBlock { pieces, share, .. }) = self.blocks.pop_front() else {
            return Err(ClientError::Busy);
        };
        match pieces.await {
            Ok(pieces) => Ok((pieces, share)),
            // The query has ended without the block, and its error says why.
            Err(_) => (&mut self.task).await.and(Err(ClientError::Busy)),
        }
    }
}
