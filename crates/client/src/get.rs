//! Reads.
//!
//! One read of the object's row, then its blocks, a few ahead of the receiver within the byte budget. The
//! first block is read before an answer is given, so that an object that cannot be read is an error and not
//! an answer that breaks off. Later failures end the stream with an error, never short (design.md §10.6).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use striate_meta::keys;
use striate_meta::records::{Object, UploadPart, object::Body};
use tracing::{Instrument, debug_span};

use crate::blocks::{BlockWalk, Span, gone};
use crate::budget::Share;
use crate::condition::{check_read, resolve_range};
use crate::measure::Phase;
use crate::object::{ObjectStream, ReadRange};
use crate::record::{self, ShowParts};
use crate::sampling::Sample;
use crate::task::Task;
use crate::{Client, ClientError, GetObject, GetRequest, ObjectInfo};

/// Blocks that are read beyond the one that is being sent.
const READ_AHEAD: usize = 2;
/// How often a get begins anew because the object was replaced under it.
const MAX_RESTARTS: usize = 8;

/// Whose memory the blocks of a read count against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Budget {
    /// The client's byte budget.
    Own,
    /// The client's byte budget; nothing is read ahead.
    BlockByBlock,
    /// The reader has taken a share already (a copy); nothing is read ahead.
    Readers,
}

impl Client {
    /// The object's state, under the same conditions and range checks as a get. The range is the one that
    /// a get would answer.
    ///
    /// # Errors
    /// [`ClientError::NoSuchKey`], [`ClientError::NoSuchBucket`], and those of conditions and range.
    pub async fn head(&self, request: GetRequest) -> Result<(ObjectInfo, Range<u64>), ClientError> {
        let object = self.current_object(&request.bucket, &request.key).await?;
        let (mut info, body) = record::open(request.key, object, &self.inner.profiles, ShowParts::Yes)?;
        check_read(&request.condition, &info)?;
        let range = resolve_range(request.range, &info)?;
        self.describe_part(&mut info, &body, request.range).await?;
        Ok((info, range))
    }

    /// Opens an object.
    ///
    /// # Errors
    /// As [`Client::head`]; and when the first block cannot be read, why.
    pub async fn get(&self, request: GetRequest) -> Result<GetObject, ClientError> {
        let (span, sample) = (span_of(&request), self.inner.sampler.begin());
        self.get_with(request, Budget::Own, sample, check_read).instrument(span).await
    }

    /// As [`Client::get`], with another check of the conditions and another budget; where it is a part of a sampled
    /// request, its blocks are noted there.
    pub(crate) async fn get_with(
        &self,
        request: GetRequest,
        budget: Budget,
        sample: Option<Arc<Sample>>,
        check: impl Fn(&crate::ReadCondition, &ObjectInfo) -> Result<(), ClientError>,
    ) -> Result<GetObject, ClientError> {
        let (runtime, measures) = (&self.inner.runtime, self.inner.stripes.measures());
        let began = runtime.now();
        let object = self.current_object(&request.bucket, &request.key);
        let object = object.instrument(debug_span!("object")).await?;
        measures.took(Phase::Object, runtime.now() - began);
        self.get_from(object, request, budget, sample, check).await
    }

    /// As [`Client::get_with`], with the object's record just read.
    pub(crate) async fn get_from(
        &self,
        mut object: Object,
        request: GetRequest,
        budget: Budget,
        sample: Option<Arc<Sample>>,
        check: impl Fn(&crate::ReadCondition, &ObjectInfo) -> Result<(), ClientError>,
    ) -> Result<GetObject, ClientError> {
        for _ in 0..MAX_RESTARTS {
            let version = object.version.clone();
            let (mut info, body) =
                record::open(request.key.clone(), object, &self.inner.profiles, ShowParts::Yes)?;
            check(&request.condition, &info)?;
            let range = resolve_range(request.range, &info)?;
            let opened = match self.describe_part(&mut info, &body, request.range).await {
                Ok(()) => self.open_body(body, range.clone(), budget, sample.clone()).await,
                Err(error) => Err(error),
            };
            let error = match opened {
                Ok(body) => return Ok(GetObject { info, range, body }),
                Err(error) => error,
            };
            // Rows and chunks of a version that was replaced since its row was read may be gone.
            object = self.current_object(&request.bucket, &request.key).await?;
            if object.version == version {
                return Err(error);
            }
        }
        Err(ClientError::Busy)
    }

    /// The record of a key's current object, in one read when there is one.
    pub(crate) async fn current_object(&self, bucket: &str, key: &str) -> Result<Object, ClientError> {
        record::check_key(key)?;
        match self.inner.meta.get(&keys::object(bucket, key)).await? {
            Some(row) => Ok(row.record()?),
            None => {
                self.bucket(bucket).await?;
                Err(ClientError::NoSuchKey(key.to_owned()))
            }
        }
    }

    /// Where one part is read: its ETag and checksums, which its own row keeps.
    async fn describe_part(
        &self,
        info: &mut ObjectInfo,
        body: &Body,
        range: ReadRange,
    ) -> Result<(), ClientError> {
        let (ReadRange::Part(number), Body::Uploaded(uploaded)) = (range, body) else { return Ok(()) };
        let upload = record::id16(&uploaded.upload, "an upload")?;
        let row = self.inner.meta.get(&keys::part(&upload, number)).await?;
        let row = row.ok_or_else(|| gone(format!("part {number} of {:?}", info.key)))?;
        let stored: UploadPart = row.record()?;
        if let Some(part) = info.parts.iter_mut().find(|part| part.number == number) {
            (part.etag, part.checksums) = (stored.etag, stored.checksums);
        }
        Ok(())
    }

    /// A stream of the bytes `range` of a body, with its first block at hand.
    async fn open_body(
        &self,
        body: Body,
        range: Range<u64>,
        budget: Budget,
        sample: Option<Arc<Sample>>,
    ) -> Result<ObjectStream, ClientError> {
        if range.is_empty() {
            return Ok(stream::empty().boxed());
        }
        if let Body::Inline(bytes) = &body {
            return Ok(stream::iter([Ok(inline(bytes, range)?)]).boxed());
        }
        let walk = BlockWalk::new(self.clone(), body, range.clone())?;
        let mut reader = Reader {
            client: self.clone(),
            budget,
            sample,
            span: tracing::Span::current(),
            walk,
            pending: None,
            ahead: VecDeque::new(),
            pieces: Vec::new().into_iter(),
            share: None,
            left: range.end - range.start,
        };
        // Who reads on a share of their own has not taken it yet.
        if budget != Budget::Readers {
            reader.open_next().await?;
        }
        Ok(stream::unfold(Some(reader), Reader::step).boxed())
    }
}

/// The bytes `range` of an object that is kept inline.
///
/// # Errors
/// [`ClientError::Inconsistent`] when there are fewer bytes.
pub(crate) fn inline(bytes: &Bytes, range: Range<u64>) -> Result<Bytes, ClientError> {
    let (len, end) = (bytes.len(), range.end as usize);
    if end > len {
        let reason = format!("{len} bytes are inline, {end} expected");
        return Err(ClientError::Inconsistent { what: "an object".to_owned(), reason });
    }
    Ok(bytes.slice(range.start as usize..end))
}

/// The span of an object's read.
pub(crate) fn span_of(request: &GetRequest) -> tracing::Span {
    debug_span!("get", bucket = request.bucket, key = request.key)
}

/// The error of a body that has `left` bytes fewer than its object's record says.
pub(crate) fn ends_early(left: u64) -> ClientError {
    let reason = format!("its blocks end {left} bytes early");
    ClientError::Inconsistent { what: "an object".to_owned(), reason }
}

/// An object on its way to a receiver.
struct Reader {
    client: Client,
    budget: Budget,
    /// Where the blocks that are asked for are noted, if they are.
    sample: Option<Arc<Sample>>,
    /// What the reads of its blocks belong to.
    span: tracing::Span,
    walk: BlockWalk,
    /// Taken from the walk, not yet begun.
    pending: Option<Span>,
    /// Begun, in order.
    ahead: VecDeque<Task<(Vec<Bytes>, Option<Share>)>>,
    /// What is left of the current block.
    pieces: std::vec::IntoIter<Bytes>,
    share: Option<Share>,
    /// Bytes that the receiver has not got yet.
    left: u64,
}

impl Reader {
    /// The stream's next item.
    async fn step(state: Option<Self>) -> Option<(Result<Bytes, ClientError>, Option<Self>)> {
        let mut reader = state?;
        loop {
            if let Some(piece) = reader.pieces.next() {
                reader.left = reader.left.saturating_sub(piece.len() as u64);
                return Some((Ok(piece), Some(reader)));
            }
            let span = reader.span.clone();
            match reader.open_next().instrument(span).await {
                Ok(true) => {}
                Ok(false) if reader.left == 0 => return None,
                Ok(false) => return Some((Err(ends_early(reader.left)), None)),
                Err(error) => return Some((Err(error), None)),
            }
        }
    }

    /// Makes the next block the current one. `false` after the last.
    async fn open_next(&mut self) -> Result<bool, ClientError> {
        self.share = None;
        let (pieces, share) = match self.ahead.pop_front() {
            Some(task) => {
                self.read_ahead().await?;
                task.await?
            }
            None => {
                let Some(span) = self.next_span().await? else { return Ok(false) };
                let share = match self.budget {
                    Budget::Own | Budget::BlockByBlock => {
                        Some(self.client.inner.budget.acquire(span.range.len()).await)
                    }
                    Budget::Readers => None,
                };
                self.read_ahead().await?;
                (self.client.inner.stripes.read_block(&span.block, span.range).await?, share)
            }
        };
        self.pieces = pieces.into_iter();
        self.share = share;
        Ok(true)
    }

    async fn next_span(&mut self) -> Result<Option<Span>, ClientError> {
        if let Some(span) = self.pending.take() {
            return Ok(Some(span));
        }
        let span = self.walk.next().await?;
        if let (Some(sample), Some(span)) = (&self.sample, &span) {
            sample.add(&span.block);
        }
        Ok(span)
    }

    /// Begins the reads of the next blocks, as far as nobody waits for their memory.
    async fn read_ahead(&mut self) -> Result<(), ClientError> {
        while self.budget == Budget::Own
            && self.ahead.len() < READ_AHEAD
            && !(self.pending.is_none() && self.walk.is_exhausted())
        {
            let Some(span) = self.next_span().await? else { break };
            let Some(share) = self.client.inner.budget.try_acquire(span.range.len()) else {
                self.pending = Some(span);
                break;
            };
            let client = self.client.clone();
            let read = async move {
                let pieces = client.inner.stripes.read_block(&span.block, span.range).await?;
                Ok((pieces, Some(share)))
            };
            let read = read.instrument(self.span.clone());
            self.ahead.push_back(Task::spawn(&self.client.inner.runtime, read));
        }
        Ok(())
    }
}
