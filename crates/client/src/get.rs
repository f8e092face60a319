//! Reads.
//!
//! One read of the object's row, then its blocks, a few ahead of the receiver within the byte budget. The
//! first block is read before an answer is given, so that an object that cannot be read is an error and not
//! an answer that breaks off. Later failures end the stream with an error, never short (design.md §10.6).

use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures::stream::{self, StreamExt};
use striate_meta::keys;
use striate_meta::records::{Object, UploadPart, object::Body};
use striate_runtime::JoinHandle;

use crate::blocks::{BlockWalk, Span, gone};
use crate::budget::Share;
use crate::condition::{check_read, resolve_range};
use crate::object::{ObjectStream, ReadRange};
use crate::record::{self, ShowParts};
use crate::task::joined;
use crate::{Client, ClientError, GetObject, GetRequest, ObjectInfo};

/// Blocks that are read beyond the one that is being sent.
const READ_AHEAD: usize = 2;
/// How often a get begins anew because the object was replaced under it.
const MAX_RESTARTS: usize = 8;
/// Reads of one [`Client::read_many`] at the same time.
const CONCURRENT_READS: usize = 16;

/// Whose memory the blocks of a read count against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Budget {
    /// The client's byte budget.
    Own,
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
        self.get_with(request, Budget::Own, check_read).await
    }

    /// As [`Client::get`], with another check of the conditions and another budget.
    pub(crate) async fn get_with(
        &self,
        request: GetRequest,
        budget: Budget,
        check: impl Fn(&crate::ReadCondition, &ObjectInfo) -> Result<(), ClientError>,
    ) -> Result<GetObject, ClientError> {
        let mut object = self.current_object(&request.bucket, &request.key).await?;
        for _ in 0..MAX_RESTARTS {
            let version = object.version.clone();
            let (mut info, body) =
                record::open(request.key.clone(), object, &self.inner.profiles, ShowParts::Yes)?;
            check(&request.condition, &info)?;
            let range = resolve_range(request.range, &info)?;
            let opened = match self.describe_part(&mut info, &body, request.range).await {
                Ok(()) => self.open_body(body, range.clone(), budget).await,
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

    /// Reads many objects or ranges in one call; answers in the order of the requests. A few are read at the
    /// same time.
    pub async fn read_many(
        &self,
        requests: Vec<GetRequest>,
    ) -> Vec<Result<(ObjectInfo, Bytes), ClientError>> {
        let reads = requests.into_iter().map(|request| async {
            let object = self.get(request).await?;
            Ok((object.info, collect(object.body).await?))
        });
        stream::iter(reads).buffered(CONCURRENT_READS).collect().await
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
    ) -> Result<ObjectStream, ClientError> {
        if range.is_empty() {
            return Ok(stream::empty().boxed());
        }
        if let Body::Inline(bytes) = &body {
            let (len, end) = (bytes.len(), range.end as usize);
            if end > len {
                let reason = format!("{len} bytes are inline, {end} expected");
                return Err(ClientError::Inconsistent { what: "an object".to_owned(), reason });
            }
            let bytes = bytes.slice(range.start as usize..end);
            return Ok(stream::iter([Ok(bytes)]).boxed());
        }
        let walk = BlockWalk::new(self.clone(), body, range.clone())?;
        let mut reader = Reader {
            client: self.clone(),
            budget,
            walk,
            pending: None,
            ahead: VecDeque::new(),
            pieces: Vec::new().into_iter(),
            share: None,
            left: range.end - range.start,
        };
        // Who reads on a share of their own has not taken it yet.
        if budget == Budget::Own {
            reader.open_next().await?;
        }
        Ok(stream::unfold(Some(reader), Reader::step).boxed())
    }
}

/// All bytes of a stream; without a copy when it has one piece.
pub(crate) async fn collect(mut body: ObjectStream) -> Result<Bytes, ClientError> {
    let Some(first) = body.next().await.transpose()? else { return Ok(Bytes::new()) };
    let Some(second) = body.next().await.transpose()? else { return Ok(first) };
    let mut bytes = BytesMut::with_capacity(2 * (first.len() + second.len()));
    bytes.extend_from_slice(&first);
    bytes.extend_from_slice(&second);
    while let Some(piece) = body.next().await.transpose()? {
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.freeze())
}

type BlockBytes = Result<(Vec<Bytes>, Option<Share>), ClientError>;

/// A read in a task of its own; given up when dropped.
struct ReadTask(JoinHandle<BlockBytes>);

impl Future for ReadTask {
    type Output = BlockBytes;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<BlockBytes> {
        Pin::new(&mut self.0).poll(cx).map(joined)
    }
}

impl Drop for ReadTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An object on its way to a receiver.
struct Reader {
    client: Client,
    budget: Budget,
    walk: BlockWalk,
    /// Taken from the walk, not yet begun.
    pending: Option<Span>,
    /// Begun, in order.
    ahead: VecDeque<ReadTask>,
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
            match reader.open_next().await {
                Ok(true) => {}
                Ok(false) if reader.left == 0 => return None,
                Ok(false) => {
                    let reason = format!("its blocks end {} bytes early", reader.left);
                    let error = ClientError::Inconsistent { what: "an object".to_owned(), reason };
                    return Some((Err(error), None));
                }
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
                    Budget::Own => Some(self.client.inner.budget.acquire(span.range.len()).await),
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
        match self.pending.take() {
            Some(span) => Ok(Some(span)),
            None => self.walk.next().await,
        }
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
            self.ahead.push_back(ReadTask(self.client.inner.runtime.spawn(async move {
                let pieces = client.inner.stripes.read_block(&span.block, span.range).await?;
                Ok((pieces, Some(share)))
            })));
        }
        Ok(())
    }
}
