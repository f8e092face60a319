//! Opens an object: reads its row, checks conditions and range, and reads its first block ([`crate::reader`]), so
//! that an unreadable object is an error and not a response that breaks off.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use striate_meta::records::{Object, UploadPart, object::Body};
use striate_meta::{Row, keys};
use striate_stripe::{Phase, Sample, SampledObject, id16, is_gone_from_memory};
use tracing::{Instrument, debug_span};

use crate::blocks::{BlockWalk, gone};
use crate::condition::{check_read, resolve_range, wanted_range};
use crate::object::{ObjectStream, ReadRange};
use crate::packed_row::PackedRow;
use crate::reader::Reader;
use crate::record::{self, ShowParts};
use crate::{Client, ClientError, GetObject, GetRequest, ObjectInfo};

/// Maximum number of restarts of a get because the object was replaced.
const MAX_RESTARTS: usize = 8;

/// Budget that the blocks of a read count against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Budget {
    /// The client's byte budget, for a receiver with a connection of its own.
    Own {
        /// Bytes that the receiver's connection has taken before.
        taken_bytes: u64,
    },
    /// The client's byte budget, without reading ahead.
    BlockByBlock,
    /// As `BlockByBlock`, for a slow receiver: parts of blocks at first.
    Narrow,
    /// A share that the reader has already taken (a copy), without reading ahead.
    Readers,
}

impl Budget {
    /// Bytes that the receiver's connection has taken before, as far as known.
    pub fn taken_bytes(self) -> u64 {
        match self {
            Self::Own { taken_bytes } => taken_bytes,
            _ => 0,
        }
    }
}

impl Client {
    /// Returns the object's state and the range that a get would return, under the same checks of conditions and
    /// range. For an object in memory only, asks the memory sites whether they have it.
    ///
    /// # Errors
    /// [`ClientError::NoSuchKey`], [`ClientError::NoSuchBucket`], and those of conditions and range.
    pub async fn head(&self, request: GetRequest) -> Result<(ObjectInfo, Range<u64>), ClientError> {
        let row = self.current_row(&request.bucket, &request.key).await?;
        let object: Object = row.record()?;
        if self.are_gone(&[&object]).await?[0] {
            return Err(self.evicted(&request.key, &row, &object));
        }
        let (mut info, body) =
            record::open(request.key, object, self.inner.stripes.profiles(), ShowParts::Yes)?;
        check_read(&request.condition, &info)?;
        let wanted = wanted_range(request.range, request.condition.if_range.as_ref(), &info);
        let range = resolve_range(wanted, &info)?;
        self.describe_part(&mut info, &body, wanted).await?;
        Ok((info, range))
    }

    /// Opens an object.
    ///
    /// # Errors
    /// As [`Client::head`]; also when the first block cannot be read.
    pub async fn get(&self, request: GetRequest) -> Result<GetObject, ClientError> {
        let (span, sample) = (span_of(&request), self.inner.stripes.sampler().begin());
        let budget = Budget::Own { taken_bytes: request.taken_bytes };
        self.get_with(request, budget, sample, check_read).instrument(span).await
    }

    /// As [`Client::get`], with another check of the conditions and another budget. Records the blocks in `sample`,
    /// if given.
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
            let wanted = wanted_range(request.range, request.condition.if_range.as_ref(), &info);
            let range = resolve_range(wanted, &info)?;
            let packed = PackedRow::of(self, &row, info.version, &body);
            let opened = match self.describe_part(&mut info, &body, wanted).await {
                Ok(()) => self.open_body(body, packed, range.clone(), budget, sampled.clone()).await,
                Err(error) => Err(error),
            };
            let error = match opened {
                Ok(body) => return Ok(GetObject { info, range, body, revision: row.version }),
                Err(error) => error,
            };
            // Rows and chunks that the row named may be gone if it was replaced since. The row's revision shows that;
            // the object's version stays when the same bytes move.
            let now = self.current_row(&request.bucket, &request.key).await?;
            if now.version == row.version {
                return Err(self.explained(&request.key, row, error).await);
            }
            row = now;
        }
        Err(ClientError::Busy)
    }

    /// Returns why an object with this row cannot be read. If it was in memory only and is gone, its row is removed
    /// in the background.
    async fn explained(&self, key: &str, row: Row, error: ClientError) -> ClientError {
        match error {
            ClientError::NotInMemory => {}
            ClientError::Unreadable { .. } if self.was_on_sites_that_left(&row).await => {}
            error => return error,
        }
        match row.record() {
            Ok(object) => self.evicted(key, &row, &object),
            Err(error) => error.into(),
        }
    }

    /// Whether an object was in the memory of sites that have left the cluster.
    async fn was_on_sites_that_left(&self, row: &Row) -> bool {
        let Ok(Object { body: Some(Body::Memory(list)), .. }) = row.record() else { return false };
        let Ok(departed) = self.inner.stripes.memory_sites_that_left(&list.blocks).await else {
            return false;
        };
        list.blocks.iter().any(|block| is_gone_from_memory(block, |_, site| departed.contains(&site)))
    }

    /// Returns the record of a key's current object.
    pub(crate) async fn current_object(&self, bucket: &str, key: &str) -> Result<Object, ClientError> {
        Ok(self.current_row(bucket, key).await?.record()?)
    }

    /// Returns the row of a key's current object, in one read if it exists.
    pub(crate) async fn current_row(&self, bucket: &str, key: &str) -> Result<Row, ClientError> {
        record::check_key(key)?;
        match self.inner.meta.get(&keys::object(bucket, key)).await? {
            Some(row) => Ok(row),
            None => {
                self.bucket_here(bucket).await?;
                Err(ClientError::NoSuchKey(key.to_owned()))
            }
        }
    }

    /// For a read of one part, fills in its ETag and checksums from the part's own row.
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

    /// Opens a stream of the bytes `range` of a body, with its first block already read.
    async fn open_body(
        &self,
        body: Body,
        packed: Option<PackedRow>,
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
        Reader::new(self, budget, (walk, packed), range.end - range.start, sampled).open().await
    }
}

/// Returns the bytes `range` of an inline object.
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

/// Returns an object's name in the statistics of sampled requests.
pub(crate) fn sampled_name(request: &GetRequest) -> Arc<str> {
    format!("{}/{}", request.bucket, request.key).into()
}

/// Creates the tracing span of an object's read.
pub(crate) fn span_of(request: &GetRequest) -> tracing::Span {
    debug_span!("get", bucket = request.bucket, key = request.key)
}

/// Returns the error of a body that is `left` bytes shorter than its object's record says.
pub(crate) fn ends_early(left: u64) -> ClientError {
    let reason = format!("its blocks end {left} bytes early");
    ClientError::Inconsistent { what: "an object".to_owned(), reason }
}
