//! Reads.
//!
//! One read of the object's row, then its blocks, some ahead of the receiver within the byte budget: whole ones several
//! at a time, as one query ([`crate::Client::read_blocks`] plans in the same way). The first block is read before an answer is given, so that an object that cannot be read is an error and not
//! an answer that breaks off. Later failures end the stream with an error, never short (design.md §10.6).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use striate_meta::records::{Object, UploadPart, object::Body};
use striate_meta::{Row, keys};
use striate_stripe::{Phase, Sample, SampledObject, Share, id16};
use tracing::{Instrument, debug_span};

use crate::blocks::{BlockWalk, Span, gone};
use crate::condition::{check_read, resolve_range};
use crate::object::{ObjectStream, ReadRange};
use crate::read_ahead::Ahead;
use crate::record::{self, ShowParts};
use crate::{Client, ClientError, GetObject, GetRequest, ObjectInfo};

/// Bytes under way of one get, the block that is to be sent next included, where the client's budget is large.
const MOST_AHEAD: u64 = 16 << 20;
/// And as a share of the budget, so that a few receivers that pause do not hold up others.
const MOST_OF_BUDGET: u64 = 5;
/// Blocks of one query.
const MOST_BLOCKS: usize = 64;
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
        let (mut info, body) =
            record::open(request.key, object, self.inner.stripes.profiles(), ShowParts::Yes)?;
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
        let (span, sample) = (span_of(&request), self.inner.stripes.sampler().begin());
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
        let (runtime, measures) = (&self.inner.runtime, self.inner.stripes.read_measures());
        let began = runtime.now();
        let row = self.current_row(&request.bucket, &request.key);
        let row = row.instrument(debug_span!("object")).await?;
        measures.took(Phase::Object, runtime.now() - began);
        self.get_from(row, request, budget, sample, check).await
    }

    /// As [`Client::get_with`], with the object's row just read.
    pub(crate) async fn get_from(
        &self,
        mut row: Row,
        request: GetRequest,
        budget: Budget,
        sample: Option<Arc<Sample>>,
        check: impl Fn(&crate::ReadCondition, &ObjectInfo) -> Result<(), ClientError>,
    ) -> Result<GetObject, ClientError> {
        let sampled = sample.map(|sample| SampledObject::new(sample, sampled_name(&request)));
        for _ in 0..MAX_RESTARTS {
            let (mut info, body) = record::open(
                request.key.clone(),
                row.record()?,
                self.inner.stripes.profiles(),
                ShowParts::Yes,
            )?;
            check(&request.condition, &info)?;
            let range = resolve_range(request.range, &info)?;
            let opened = match self.describe_part(&mut info, &body, request.range).await {
                Ok(()) => self.open_body(body, range.clone(), budget, sampled.clone()).await,
                Err(error) => Err(error),
            };
            let error = match opened {
                Ok(body) => return Ok(GetObject { info, range, body, revision: row.version }),
                Err(error) => error,
            };
            // Rows and chunks that the row named may be gone if it was replaced since. Its revision tells, and not the
            // object's version, which stays when the same bytes get another place.
            let now = self.current_row(&request.bucket, &request.key).await?;
            if now.version == row.version {
                return Err(error);
            }
            row = now;
        }
        Err(ClientError::Busy)
    }

    /// The record of a key's current object.
    pub(crate) async fn current_object(&self, bucket: &str, key: &str) -> Result<Object, ClientError> {
        Ok(self.current_row(bucket, key).await?.record()?)
    }

    /// The row of a key's current object, in one read when there is one.
    pub(crate) async fn current_row(&self, bucket: &str, key: &str) -> Result<Row, ClientError> {
        record::check_key(key)?;
        match self.inner.meta.get(&keys::object(bucket, key)).await? {
            Some(row) => Ok(row),
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
        let upload = id16(&uploaded.upload, "an upload")?;
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
        sampled: Option<SampledObject>,
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
            sampled,
            span: tracing::Span::current(),
            walk,
            most_ahead: MOST_AHEAD.min(self.inner.options.stripes.in_flight_bytes as u64 / MOST_OF_BUDGET),
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

/// What an object is called in the statistics of sampled requests.
pub(crate) fn sampled_name(request: &GetRequest) -> Arc<str> {
    format!("{}/{}", request.bucket, request.key).into()
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
    sampled: Option<SampledObject>,
    /// What the reads of its blocks belong to.
    span: tracing::Span,
    walk: BlockWalk,
    /// Bytes that may be under way.
    most_ahead: u64,
    /// Taken from the walk, not yet begun.
    pending: Option<Span>,
    /// Begun, in order.
    ahead: VecDeque<Ahead>,
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
        if self.budget != Budget::Own {
            return self.open_alone().await;
        }
        if self.ahead.is_empty() {
            let Some(first) = self.next_span().await? else { return Ok(false) };
            let share = self.client.inner.stripes.budget().acquire(self.memory_of(&first)).await;
            self.begin(first, share).await?;
        }
        self.read_ahead().await?;
        let Some(first) = self.ahead.front_mut() else { return Ok(false) };
        let (pieces, share) = first.next().await?;
        if first.len() == 0 {
            self.ahead.pop_front();
        }
        (self.pieces, self.share) = (pieces.into_iter(), Some(share));
        Ok(true)
    }

    /// As [`Reader::open_next`], with nothing read ahead.
    async fn open_alone(&mut self) -> Result<bool, ClientError> {
        let Some(span) = self.next_span().await? else { return Ok(false) };
        if self.budget == Budget::BlockByBlock {
            self.share = Some(self.client.inner.stripes.budget().acquire(span.range.len()).await);
        }
        self.pieces = self.client.inner.stripes.read_block(&span.block, span.range).await?.into_iter();
        Ok(true)
    }

    async fn next_span(&mut self) -> Result<Option<Span>, ClientError> {
        if let Some(span) = self.pending.take() {
            return Ok(Some(span));
        }
        let span = self.walk.next().await?;
        if let (Some(sampled), Some(span)) = (&self.sampled, &span) {
            sampled.add(&span.block);
        }
        Ok(span)
    }

    /// Begins the reads of the next blocks when half of what may be is under way, so that several are planned together, as far as nobody waits for their memory.
    async fn read_ahead(&mut self) -> Result<(), ClientError> {
        while self.ahead_len() <= self.most_ahead / 2 {
            let Some(span) = self.next_span().await? else { break };
            let Some(share) = self.client.inner.stripes.budget().try_acquire(self.memory_of(&span)) else {
                self.pending = Some(span);
                break;
            };
            self.begin(span, share).await?;
        }
        Ok(())
    }

    /// Begins the read of a block, together with whole ones behind it as far as nobody waits for their memory.
    async fn begin(&mut self, first: Span, share: Share) -> Result<(), ClientError> {
        let is_whole = first.is_whole();
        let mut len = self.ahead_len() + first.range.len() as u64;
        let mut window = vec![(first, share)];
        while is_whole && window.len() < MOST_BLOCKS {
            let Some(span) = self.next_span().await? else { break };
            len += span.range.len() as u64;
            let share = match span.is_whole() && len <= self.most_ahead {
                true => self.client.inner.stripes.budget().try_acquire(self.memory_of(&span)),
                false => None,
            };
            let Some(share) = share else {
                self.pending = Some(span);
                break;
            };
            window.push((span, share));
        }
        let is_awaited = self.ahead.is_empty();
        let client = &self.client;
        self.ahead.push_back(match (window.pop(), window.is_empty()) {
            (Some((span, share)), true) if is_awaited => Ahead::when_awaited(client, span, share),
            (Some((span, share)), true) => Ahead::now(client, span, share),
            (last, _) => {
                let blocks = window.into_iter().chain(last).map(|(span, share)| (span.block, share));
                Ahead::window(client, blocks.collect())
            }
        });
        Ok(())
    }

    /// Bytes that are under way.
    fn ahead_len(&self) -> u64 {
        self.ahead.iter().map(Ahead::len).sum()
    }

    /// What a block's read counts in the byte budget: chunks that are asked for beyond the needed ones included.
    fn memory_of(&self, span: &Span) -> usize {
        let extra = self.client.inner.options.stripes.read_policy.certain_extra_reads();
        span.range.len() * if span.is_whole() { 1 + extra } else { 1 }
    }
}
