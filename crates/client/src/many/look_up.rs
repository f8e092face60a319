//! Turns requests into reads: one look-up of many rows, and the groups that follow from them.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use striate_meta::records::{Object, object::Body};
use striate_meta::{Row, keys};
use striate_stripe::{Phase, Sample, SampledObject, Span};
use tracing::{Instrument, debug_span};

use super::{Limits, ObjectHead, ObjectPart, ReadOrder};
use crate::blocks::{memory_spans, spans};
use crate::condition::{check_read, resolve_range};
use crate::get::{inline, sampled_name};
use crate::record::{self, ShowParts};
use crate::{Client, ClientError, GetRequest, ReadRange};

/// Maximum bytes of an object, or part of one, that is read in a group and handed out at once, if a group may have as
/// many.
const LARGE_LEN: u64 = 1 << 20;
/// Maximum number of blocks of one group.
const GROUP_BLOCKS: usize = 64;

/// Requests that are read in one go.
pub(super) enum Step {
    /// Small objects, together. May include results that are known already.
    Group(Vec<Entry>),
    /// A large object, or a large part of one.
    Alone(Box<SingleRead>),
}

/// One request of a group.
pub(super) struct Entry {
    pub(super) position: usize,
    request: GetRequest,
    pub(super) found: LookupResult,
}

/// Result of a look-up, before any block is read.
pub(super) enum LookupResult {
    Answer(Result<ObjectPart, ClientError>),
    /// A small object, or a small part of one.
    Spans {
        head: Box<ObjectHead>,
        spans: Vec<Span>,
    },
}

/// A request read as a get does.
pub(super) struct SingleRead {
    pub(super) position: usize,
    pub(super) request: GetRequest,
    /// The object's row, if it is fresh.
    pub(super) row: Option<Row>,
    /// Weight of the read within [`Limits::alone_bytes`].
    pub(super) weight: u64,
}

impl Step {
    /// Number of requests.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Group(entries) => entries.len(),
            Self::Alone(_) => 1,
        }
    }

    /// Creates the results of requests that could not be looked up.
    pub(super) fn failed(positions: &[usize], error: &ClientError) -> Self {
        let entry = |&position: &usize| {
            let found = LookupResult::Answer(Err(error.clone()));
            Entry { position, request: GetRequest::default(), found }
        };
        Self::Group(positions.iter().map(entry).collect())
    }
}

impl Entry {
    pub(super) fn is_answer(&self) -> bool {
        matches!(self.found, LookupResult::Answer(_))
    }

    pub(super) fn spans(&self) -> &[Span] {
        match &self.found {
            LookupResult::Answer(_) => &[],
            LookupResult::Spans { spans, .. } => spans,
        }
    }

    /// Records the request's blocks in the sample.
    pub(super) fn note(&self, sample: &Arc<Sample>) {
        let sampled = SampledObject::new(Arc::clone(sample), sampled_name(&self.request));
        self.spans().iter().for_each(|span| sampled.add(&span.of));
    }

    /// Returns the step for this request after its group failed. The request starts from scratch, because the failure
    /// may come from an object that was replaced meanwhile.
    pub(super) fn by_itself(self, limits: Limits) -> Step {
        match self.found {
            LookupResult::Answer(_) => Step::Group(vec![self]),
            LookupResult::Spans { head, .. } => {
                let weight = limits.weight(head.info.size);
                let alone = SingleRead { position: self.position, request: self.request, row: None, weight };
                Step::Alone(Box::new(alone))
            }
        }
    }
}

/// Returns the maximum number of bytes that a read of `range` yields.
fn most_wanted(range: ReadRange, size: u64) -> u64 {
    match range {
        ReadRange::Whole | ReadRange::Part(_) => size,
        ReadRange::Bytes { first, last } => {
            last.unwrap_or(u64::MAX).saturating_add(1).min(size).saturating_sub(first)
        }
        ReadRange::Suffix { len } => len.min(size),
    }
}

impl Client {
    /// Looks up the objects of a window of requests and decides how they are read.
    pub(super) async fn look_up(
        &self,
        requests: Vec<(usize, GetRequest)>,
        order: ReadOrder,
        limits: Limits,
    ) -> Vec<Step> {
        let mut grouping = Grouping::new(order, limits.group_bytes);
        let is_key = |request: &GetRequest| record::check_key(&request.key).is_ok();
        let named = requests.iter().filter(|(_, request)| is_key(request));
        let keys: Vec<Bytes> =
            named.map(|(_, request)| keys::object(&request.bucket, &request.key)).collect();
        let began = self.inner.runtime.now();
        let rows = self.inner.meta.get_many(&keys).instrument(debug_span!("object")).await;
        self.inner.stripes.read_measures().took(Phase::Object, self.inner.runtime.now() - began);
        let mut rows = match rows {
            Ok(rows) => Ok(rows.into_iter()),
            Err(error) => Err(ClientError::from(error)),
        };
        let mut buckets = HashMap::new();
        for (position, request) in requests {
            let row = match (record::check_key(&request.key), &mut rows) {
                (Err(error), _) => Err(error),
                (_, Err(error)) => Err(error.clone()),
                (_, Ok(rows)) => match rows.next().flatten() {
                    Some(row) => Ok(row),
                    None => Err(self.why_missing(&request, &mut buckets).await),
                },
            };
            match row.and_then(|row| self.find(&request, row, limits)) {
                Ok(ReadMethod::Group(found)) => grouping.add(Entry { position, request, found }),
                Ok(ReadMethod::Alone { row, weight }) => {
                    grouping.add_alone(SingleRead { position, request, row: Some(row), weight });
                }
                Err(error) => {
                    grouping.add(Entry { position, request, found: LookupResult::Answer(Err(error)) });
                }
            }
        }
        grouping.finish()
    }

    /// Returns the error of a request without a row: no such bucket, or no such key in it. Looks each bucket up once.
    async fn why_missing(
        &self,
        request: &GetRequest,
        buckets: &mut HashMap<String, Option<ClientError>>,
    ) -> ClientError {
        if !buckets.contains_key(&request.bucket) {
            let error = self.bucket_here(&request.bucket).await.err();
            buckets.insert(request.bucket.clone(), error);
        }
        let of_bucket = buckets.get(&request.bucket).cloned().flatten();
        of_bucket.unwrap_or_else(|| ClientError::NoSuchKey(request.key.clone()))
    }

    /// Decides how the object of a row is read.
    fn find(&self, request: &GetRequest, row: Row, limits: Limits) -> Result<ReadMethod, ClientError> {
        let object: Object = row.record()?;
        let weight = limits.weight(most_wanted(request.range, object.size));
        let is_listed = matches!(
            object.body,
            Some(Body::Inline(_) | Body::Blocks(_) | Body::Memory(_) | Body::Extent(_))
        );
        if !is_listed || matches!(request.range, ReadRange::Part(_)) {
            return Ok(ReadMethod::Alone { row, weight });
        }
        let (info, body) =
            record::open(request.key.clone(), object, self.inner.stripes.profiles(), ShowParts::Yes)?;
        check_read(&request.condition, &info)?;
        let range = resolve_range(request.range, &info)?;
        let is_small = range.end - range.start <= LARGE_LEN.min(limits.group_bytes);
        let found = match body {
            Body::Inline(bytes) => {
                let pieces = if range.is_empty() { Vec::new() } else { vec![inline(&bytes, range.clone())?] };
                let head = Some(Box::new(ObjectHead { info, range }));
                LookupResult::Answer(Ok(ObjectPart { head, pieces, is_last: true }))
            }
            Body::Blocks(list) if is_small => {
                let spans = spans(list.blocks, range.clone()).collect();
                LookupResult::Spans { head: Box::new(ObjectHead { info, range }), spans }
            }
            Body::Memory(list) if is_small => {
                let spans = memory_spans(&list, range.clone())?.collect();
                LookupResult::Spans { head: Box::new(ObjectHead { info, range }), spans }
            }
            Body::Extent(extent) if is_small => {
                let span = Span { of: extent.into(), range: range.start as u32..range.end as u32 };
                let spans = if range.is_empty() { Vec::new() } else { vec![span] };
                LookupResult::Spans { head: Box::new(ObjectHead { info, range }), spans }
            }
            _ => return Ok(ReadMethod::Alone { row, weight }),
        };
        Ok(ReadMethod::Group(found))
    }
}

/// How a request is read.
enum ReadMethod {
    Group(LookupResult),
    Alone { row: Row, weight: u64 },
}

/// Groups requests into steps.
struct Grouping {
    order: ReadOrder,
    group_bytes: u64,
    steps: Vec<Step>,
    /// Entries of the group being gathered; its bytes and blocks are counted below.
    group: Vec<Entry>,
    bytes: u64,
    blocks: usize,
    /// Results that need not wait for a group.
    answers: Vec<Entry>,
}

impl Grouping {
    fn new(order: ReadOrder, group_bytes: u64) -> Self {
        let (steps, group, answers) = (Vec::new(), Vec::new(), Vec::new());
        Self { order, group_bytes, steps, group, bytes: 0, blocks: 0, answers }
    }

    fn add(&mut self, entry: Entry) {
        if entry.is_answer() && self.order == ReadOrder::Completion {
            return self.answers.push(entry);
        }
        let bytes: u64 = entry.spans().iter().map(|span| span.range.len() as u64).sum();
        let blocks = entry.spans().len();
        let is_full = self.bytes + bytes > self.group_bytes || self.blocks + blocks > GROUP_BLOCKS;
        if self.blocks > 0 && blocks > 0 && is_full {
            self.end_group();
        }
        self.bytes += bytes;
        self.blocks += blocks;
        self.group.push(entry);
    }

    fn add_alone(&mut self, alone: SingleRead) {
        if self.order == ReadOrder::Requests {
            self.end_group();
        }
        self.steps.push(Step::Alone(Box::new(alone)));
    }

    fn end_group(&mut self) {
        if !self.group.is_empty() {
            self.steps.push(Step::Group(std::mem::take(&mut self.group)));
        }
        (self.bytes, self.blocks) = (0, 0);
    }

    fn finish(mut self) -> Vec<Step> {
        self.end_group();
        if !self.answers.is_empty() {
            self.steps.insert(0, Step::Group(self.answers));
        }
        self.steps
    }
}

#[cfg(test)]
mod tests {
    use striate_meta::records::Block;

    use super::*;

    fn entry(position: usize, lens: &[u32]) -> Entry {
        let block = |&len: &u32| Span::whole(Block { len, ..Block::default() });
        let spans: Vec<Span> = lens.iter().map(block).collect();
        let found = match spans.is_empty() {
            true => LookupResult::Answer(Err(ClientError::Busy)),
            false => {
                let size = lens.iter().map(|&len| u64::from(len)).sum();
                let info = crate::ObjectInfo {
                    key: String::new(),
                    version: [0; 16],
                    size,
                    modified_unix_ms: 0,
                    etag: String::new(),
                    attributes: crate::ObjectAttributes::default(),
                    checksums: Vec::new(),
                    parts: Vec::new(),
                    profile: None,
                };
                LookupResult::Spans { head: Box::new(ObjectHead { info, range: 0..size }), spans }
            }
        };
        Entry { position, request: GetRequest::default(), found }
    }

    fn alone(position: usize) -> SingleRead {
        SingleRead { position, request: GetRequest::default(), row: None, weight: 1 }
    }

    /// Returns the positions of each step.
    fn steps(grouping: Grouping) -> Vec<Vec<usize>> {
        let positions = |step: &Step| match step {
            Step::Group(entries) => entries.iter().map(|entry| entry.position).collect(),
            Step::Alone(alone) => vec![alone.position],
        };
        grouping.finish().iter().map(positions).collect()
    }

    fn grouping(order: ReadOrder) -> Grouping {
        let mut grouping = Grouping::new(order, 100);
        grouping.add(entry(0, &[40]));
        grouping.add(entry(1, &[]));
        grouping.add_alone(alone(2));
        grouping.add(entry(3, &[30, 30]));
        grouping.add(entry(4, &[1]));
        grouping.add(entry(5, &[]));
        grouping.add(entry(6, &[500]));
        grouping
    }

    #[test]
    fn in_order_of_completion_answers_come_first_and_groups_are_full() {
        assert_eq!(
            steps(grouping(ReadOrder::Completion)),
            [vec![1, 5], vec![2], vec![0, 3], vec![4], vec![6]]
        );
    }

    #[test]
    fn in_order_of_requests_steps_are_so_too() {
        let steps = steps(grouping(ReadOrder::Requests));
        assert_eq!(steps, [vec![0, 1], vec![2], vec![3, 4, 5], vec![6]]);
    }

    #[test]
    fn a_group_has_a_bounded_number_of_blocks() {
        let mut grouping = Grouping::new(ReadOrder::Requests, 1_000_000);
        (0..150).for_each(|position| grouping.add(entry(position, &[1])));
        let lens: Vec<usize> = steps(grouping).iter().map(Vec::len).collect();
        assert_eq!(lens, [64, 64, 22]);
    }

    #[test]
    fn a_range_wants_what_is_left_of_the_object() {
        let bytes = |first, last| most_wanted(ReadRange::Bytes { first, last }, 100);
        assert_eq!((bytes(0, None), bytes(10, Some(19)), bytes(90, Some(u64::MAX))), (100, 10, 10));
        assert_eq!((bytes(100, None), bytes(9, Some(3))), (0, 0));
        assert_eq!(most_wanted(ReadRange::Suffix { len: 7 }, 100), 7);
        assert_eq!(most_wanted(ReadRange::Suffix { len: 700 }, 100), 100);
    }
}
