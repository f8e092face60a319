//! A read of a remote site: one exchange, whose frames arrive in the order in which the site reads the ranges.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::Method;

use super::Inner;
use super::cancel::CancelledRead;
use super::connection::Call;
use super::replies::Frames;
use crate::api::{ReadReply, ReadRequest, ReadStream, SiteError};
use crate::protocol::READ_PATH;
use crate::protocol::frame::ReadBody;
use crate::protocol::limits::MAX_RANGES;

/// A read in progress. Dropping it before its end cancels it.
pub(super) struct RemoteRead {
    site: Arc<Inner>,
    request: ReadRequest,
    is_answered: Vec<bool>,
    unanswered: usize,
    phase: Phase,
}

enum Phase {
    New,
    Open {
        /// Identifier of the read at the site.
        id: u64,
        frames: Box<Frames>,
    },
    /// The error for all remaining ranges.
    Failed(SiteError),
    Ended,
}

impl RemoteRead {
    pub(super) fn new(site: Arc<Inner>, request: ReadRequest) -> Self {
        let unanswered = request.ranges.len();
        Self { site, request, is_answered: vec![false; unanswered], unanswered, phase: Phase::New }
    }

    pub(super) fn replies(self) -> ReadStream {
        Box::pin(stream::unfold(self, |mut read| async move {
            let reply = read.next().await?;
            Some((reply, read))
        }))
    }

    async fn next(&mut self) -> Option<ReadReply> {
        while self.unanswered > 0 {
            match &self.phase {
                Phase::New => {
                    self.phase = match self.open().await {
                        Ok((id, frames)) => Phase::Open { id, frames: Box::new(frames) },
                        Err(error) => Phase::Failed(error),
                    };
                }
                Phase::Open { .. } => match self.next_frame().await {
                    Ok(reply) => return Some(reply),
                    Err(error) => self.phase = Phase::Failed(error),
                },
                Phase::Failed(error) => {
                    let error = error.clone();
                    let item = self.is_answered.iter().position(|is_answered| !is_answered);
                    let item = item.expect("a range is left");
                    let load = *self.site.load.lock();
                    self.mark_answered(item);
                    return Some(ReadReply { item, result: Err(error), load });
                }
                Phase::Ended => unreachable!("a read ends with its last range"),
            }
        }
        None
    }

    async fn open(&self) -> Result<(u64, Frames), SiteError> {
        let ReadRequest { ranges, priority, deadline } = &self.request;
        let runtime = &self.site.endpoint().runtime;
        let time_left = deadline.map(|deadline| deadline.saturating_duration_since(runtime.now()));
        if time_left.is_some_and(|left| left.is_zero()) {
            return Err(SiteError::Deadline);
        }
        if ranges.len() > MAX_RANGES {
            return Err(SiteError::BadRequest(format!("a read of more than {MAX_RANGES} ranges")));
        }
        self.site.canceller.start(runtime);
        let id = runtime.random_u64();
        let body = ReadBody { id, ranges: ranges.clone(), priority: *priority, time_left };
        let (method, head, payload) = (Method::POST, body.encode(), Bytes::new());
        let call = Call { method, path: READ_PATH, head, payload, is_read: true, work: Duration::ZERO };
        Ok((id, self.site.open(&call).await?))
    }

    fn mark_answered(&mut self, item: usize) {
        self.is_answered[item] = true;
        self.unanswered -= 1;
    }

    /// Reads the next frame. The phase stays open while this waits, so that a read that is
    /// dropped meanwhile can be cancelled.
    async fn next_frame(&mut self) -> Result<ReadReply, SiteError> {
        let Self { site, request, is_answered, phase, .. } = self;
        let Phase::Open { frames, .. } = phase else { unreachable!("only an open read has frames") };
        let expected_len = |item: u32| {
            let item = item as usize;
            request.ranges.get(item).filter(|_| !is_answered[item]).map(|range| range.len)
        };
        let received = frames.next(site.endpoint(), expected_len).await?;
        let received = received.ok_or_else(|| site.endpoint().unavailable("the reply ended early"))?;
        let load = site.note_load(received.header.load);
        let item = received.header.item as usize;
        self.mark_answered(item);
        if self.unanswered == 0
            && let Phase::Open { frames, .. } = std::mem::replace(&mut self.phase, Phase::Ended)
        {
            frames.finish(self.site.endpoint()).await;
        }
        Ok(ReadReply { item, result: received.result, load })
    }
}

impl Drop for RemoteRead {
    fn drop(&mut self) {
        if let Phase::Open { id, frames } = std::mem::replace(&mut self.phase, Phase::Ended) {
            self.site.canceller.cancel(CancelledRead { site: Arc::clone(&self.site), id, frames: *frames });
        }
    }
}
