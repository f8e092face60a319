//! Reads many objects or ranges in one call (EC-Store §IV-B: a query asks for many blocks).
//!
//! The rows of all objects are looked up together, in windows. Inline objects are returned at once. The blocks of
//! small objects are read together in *groups*, each a query of its own with one request to each site. Ranges of a
//! block and large objects are read *alone*, as a get does, and arrive in parts.
//!
//! The result is a stream, and its receiver sets the pace: nothing is looked up or begun except while it is polled,
//! and the work in flight is bounded, whatever the number of requests. Waits for memory or for a site run in separate
//! tasks, so that a receiver that pauses does not make sites look late.
//!
//! Memory counts against the client's byte budget until it is handed out. Waits never form a cycle. A task that waits
//! for its share holds none. A share that is held is handed out without waiting for another task's, because
//! everything that was read is handed out first, and nothing is begun that must be handed out before it. In the order
//! of the requests, therefore, a read begins when all before it are in memory.
//!
//! A receiver that takes nothing loses what was read for it ([`ParkedStream`]). When it resumes, the unanswered
//! requests are begun again, with a *narrow* window that opens as it takes. While memory is tight, reads begin narrow.

mod delivery;
mod look_up;
mod running;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream, SelectAll, StreamExt};
use striate_runtime::Instant;
use striate_stripe::{BlocksRead, ParkedStream, PinnedShare, Sample, Shrink};
use tracing::{Instrument, Span, debug_span};

use crate::reader::{Limit, STAKE};
use crate::task::Task;
use crate::{Client, ClientError, GetRequest, ObjectInfo};
use delivery::Delivery;
use look_up::{Entry, LookupResult, Step};
use running::Event;

/// Number of requests whose rows are looked up together.
const LOOKED_UP_AT_ONCE: usize = 128;
/// Maximum number of groups read at the same time.
const GROUPS_AT_ONCE: usize = 2;
/// Maximum bytes of one group, when the client's budget is large.
const GROUP_BYTES: u64 = 4 << 20;
/// Maximum bytes read alone at the same time, when the client's budget is large.
const ALONE_BYTES: u64 = 16 << 20;
/// Maximum bytes of a group, and of reads alone, for a receiver that is slow, or not known yet while memory is tight.
const NARROWEST: u64 = 64 << 10;
/// Factor by which the next read grows if the receiver took the last one within [`QUICK`].
const GROWTH: u64 = 4;
const QUICK: Duration = Duration::from_secs(1);

/// Limits on the bytes in memory. Together they are less than half of the client's budget, so that a receiver that
/// pauses does not hold up others: at most three groups (one is being handed out), plus the reads alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    /// Maximum bytes of one group.
    group_bytes: u64,
    /// Maximum bytes read alone at the same time.
    alone_bytes: u64,
    /// Whether there is one read at a time, which also starts small.
    is_narrow: bool,
}

impl Limits {
    fn of(in_flight_bytes: usize) -> Self {
        let budget = in_flight_bytes as u64;
        let (group_bytes, alone_bytes) = (GROUP_BYTES.min(budget / 16), ALONE_BYTES.min(budget / 4).max(16));
        Self { group_bytes, alone_bytes, is_narrow: false }
    }

    /// Returns the limits of a receiver that is slow, or not known yet while memory is tight.
    fn narrowest(self) -> Self {
        let (group_bytes, alone_bytes) = (self.group_bytes.min(NARROWEST), self.alone_bytes.min(NARROWEST));
        Self { group_bytes, alone_bytes, is_narrow: true }
    }

    /// Returns the limits of a receiver that took the last read quickly; `most` at the end.
    fn wider(self, most: Self) -> Self {
        let group_bytes = self.group_bytes * GROWTH;
        match group_bytes < most.group_bytes {
            true => Self { group_bytes, alone_bytes: self.alone_bytes * GROWTH, is_narrow: true },
            false => most,
        }
    }

    /// Returns the weight of a read of `len` bytes: four large objects, with one block of each in memory, or sixteen
    /// small ranges are read at the same time.
    fn weight(&self, len: u64) -> u64 {
        len.clamp(self.alone_bytes / 16, self.alone_bytes / 4)
    }
}

/// Order of the results of [`Client::read_many`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOrder {
    /// In the order in which reads complete; parts of different objects may alternate.
    Completion,
    /// In the order of the requests, each object whole before the next one.
    Requests,
}

/// Description of an object that precedes its bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectHead {
    /// State of the object.
    pub info: ObjectInfo,
    /// Range of the bytes that follow.
    pub range: Range<u64>,
}

/// A part of the result of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectPart {
    /// Description of the object, with the first part only.
    pub head: Option<Box<ObjectHead>>,
    /// Next bytes, in pieces: at most a block, or a whole object of 1 MiB or less.
    pub pieces: Vec<Bytes>,
    /// True if the result of this request is complete.
    pub is_last: bool,
}

/// Parts, each with the position of its request. The parts of a request come in order, up to one that is the last or
/// is an error. An error after the first parts means that they must be discarded.
pub type PartStream = BoxStream<'static, (usize, Result<ObjectPart, ClientError>)>;

impl Client {
    /// Reads many objects or ranges, each as [`Client::get`] does; one that fails does not fail the others.
    ///
    /// What was handed out belongs to the receiver, and no longer counts against
    /// [`StripeOptions::in_flight_bytes`](striate_stripe::StripeOptions::in_flight_bytes) once the stream is polled
    /// again.
    pub fn read_many(&self, requests: Vec<GetRequest>, order: ReadOrder) -> PartStream {
        let span = debug_span!("read_many", requests = requests.len() as i64);
        let most = Limits::of(self.inner.options.stripes.in_flight_bytes);
        let budget = self.inner.stripes.budget();
        let limits = if Limit::now(budget, 0).is_some() { most.narrowest() } else { most };
        let many = BatchRead {
            query: Query { client: self.clone(), sample: self.inner.stripes.sampler().begin(), span },
            order,
            most,
            limits,
            last_read_at: None,
            requests: (0..requests.len()).collect::<Vec<_>>().into_iter(),
            delivery: Delivery::new(requests),
            looking_up: false,
            steps: VecDeque::new(),
            looked_up: self.inner.runtime.now(),
            running: SelectAll::new(),
            groups: 0,
            weight: 0,
            ready: VecDeque::new(),
            read: None,
            pinned: None,
            last_len: 0,
            given_bytes: 0,
        };
        let parked = ParkedStream::new(self.inner.runtime.clone(), budget, many);
        stream::unfold(parked, ParkedStream::step).boxed()
    }
}

/// Context shared by all work of a read of many objects.
#[derive(Clone)]
struct Query {
    client: Client,
    /// Sample that records the blocks read, if the request is sampled: one request, however many objects.
    sample: Option<Arc<Sample>>,
    span: Span,
}

impl Query {
    /// Spawns work for the query in a task of its own.
    fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ClientError>> + Send + 'static,
    ) -> Task<T> {
        Task::spawn(&self.client.inner.runtime, work.instrument(self.span.clone()))
    }
}

/// A read of many objects on its way to a receiver.
struct BatchRead {
    query: Query,
    order: ReadOrder,
    /// Limits for a receiver that takes everything.
    most: Limits,
    limits: Limits,
    /// Time of the last read, for a receiver with narrow limits.
    last_read_at: Option<Instant>,
    /// Positions of the requests not looked up yet.
    requests: std::vec::IntoIter<usize>,
    delivery: Delivery,
    looking_up: bool,
    /// Steps looked up and not begun.
    steps: VecDeque<Step>,
    /// When the first of `steps` was looked up.
    looked_up: Instant,
    running: SelectAll<BoxStream<'static, Event>>,
    /// Number of groups among the running work.
    groups: usize,
    /// Weight of the running reads alone.
    weight: u64,
    /// Parts to be handed out.
    ready: VecDeque<(usize, Result<ObjectPart, ClientError>)>,
    /// Group whose parts are in `ready`; it holds their share of the budget.
    read: Option<BlocksRead>,
    /// Memory of the last part handed out, set when the receiver is found idle.
    pinned: Option<PinnedShare>,
    last_len: usize,
    /// Bytes handed out under narrow limits.
    given_bytes: u64,
}

impl Shrink for BatchRead {
    type Item = (usize, Result<ObjectPart, ClientError>);

    async fn next(&mut self) -> Option<Self::Item> {
        loop {
            self.pinned = None;
            self.begin();
            while let Some((position, part)) = self.ready.pop_front() {
                if let Some(part) = self.delivery.hand_out(position, part) {
                    let pieces = part.as_ref().map_or(&[][..], |part| &part.pieces);
                    self.last_len = pieces.iter().map(Bytes::len).sum();
                    self.given_bytes += self.last_len as u64;
                    return Some((position, part));
                }
            }
            self.read = None;
            // If nothing is running, nothing is left: everything that could be begun was begun.
            let event = self.running.next().await?;
            self.widen();
            self.take(event);
        }
    }

    /// Drops what was read and not handed out; it is begun again on demand. The part handed out last still counts, as
    /// in a get.
    fn shrink(&mut self) {
        let budget = self.query.client.inner.stripes.budget();
        let read = self.read.take().filter(|_| self.last_len > NARROWEST as usize);
        let share = read.map(BlocksRead::into_share);
        self.pinned = share.map(|share| budget.pin(share, self.last_len)).or(self.pinned.take());
        self.running = SelectAll::new();
        self.steps.clear();
        self.ready.clear();
        (self.looking_up, self.groups, self.weight) = (false, 0, 0);
        self.requests = self.delivery.unanswered().into_iter();
        (self.limits, self.last_read_at, self.given_bytes) = (self.most.narrowest(), None, 0);
    }
}

impl BatchRead {
    /// Sizes the next read by the receiver's pace.
    fn widen(&mut self) {
        let limit =
            Limit::now(self.query.client.inner.stripes.budget(), 0).map(|limit| u64::from(limit.most));
        let fits = |limits: &Limits| limit.is_none_or(|limit| limits.alone_bytes <= limit);
        if !fits(&self.limits) {
            self.limits = self.most.narrowest();
        }
        if !self.limits.is_narrow {
            return;
        }
        let now = self.query.client.inner.runtime.now();
        let before = self.last_read_at.replace(now);
        let is_quick = before.is_some_and(|before| now.saturating_duration_since(before) <= QUICK);
        let wider = self.limits.wider(self.most);
        if is_quick && self.given_bytes >= STAKE * wider.alone_bytes && fits(&wider) {
            self.limits = wider;
        }
    }

    /// Whether rows were looked up too long ago to be used, because the receiver is slow. What they name may be
    /// overwritten once it has been dead for the grace, and the read itself needs part of that time.
    fn is_stale(&self) -> bool {
        let stripes = &self.query.client.inner.stripes;
        let age = stripes.runtime().now().saturating_duration_since(self.looked_up);
        !self.steps.is_empty() && age > stripes.options().garbage_grace / 2
    }

    /// Begins as much work as may run at the same time.
    fn begin(&mut self) {
        if self.is_stale() {
            if self.looking_up || self.groups > 0 || self.weight > 0 || !self.ready.is_empty() {
                return;
            }
            self.steps.clear();
            self.requests = self.delivery.unanswered().into_iter();
        }
        let waiting: usize = self.steps.iter().map(Step::len).sum();
        if !self.looking_up && waiting < LOOKED_UP_AT_ONCE && self.requests.len() > 0 {
            self.looking_up = true;
            if self.steps.is_empty() {
                self.looked_up = self.query.client.inner.runtime.now();
            }
            let positions = self.requests.by_ref().take(LOOKED_UP_AT_ONCE);
            let window: Vec<_> = positions.filter_map(|position| self.delivery.request(position)).collect();
            self.running.push(running::look_up(&self.query, window, self.order, self.limits));
        }
        while let Some(step) = self.next_step() {
            match step {
                Step::Group(entries) if entries.iter().all(Entry::is_answer) => self.hand_out(entries, None),
                Step::Group(entries) => {
                    self.groups += 1;
                    self.running.push(running::group(&self.query, entries));
                }
                Step::Alone(alone) => {
                    self.weight += alone.weight;
                    self.running.push(running::alone(&self.query, *alone, self.limits));
                }
            }
        }
    }

    /// Returns the next step that may begin now.
    fn next_step(&mut self) -> Option<Step> {
        let (groups, weight, most) = (self.groups, self.weight, self.limits.alone_bytes);
        let may_begin = |step: &Step| match step {
            Step::Group(_) => groups < GROUPS_AT_ONCE,
            Step::Alone(alone) => weight + alone.weight <= most,
        };
        match self.order {
            ReadOrder::Completion if !self.limits.is_narrow => {
                let position = self.steps.iter().position(may_begin)?;
                self.steps.remove(position)
            }
            _ if groups == 0 && weight == 0 => self.steps.pop_front(),
            _ => None,
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::LookedUp(steps) => {
                self.looking_up = false;
                self.steps.extend(steps);
            }
            Event::Group(entries, Ok(read)) => {
                self.groups -= 1;
                self.hand_out(entries, Some(read));
            }
            Event::Group(entries, Err(error)) => {
                self.groups -= 1;
                tracing::debug!(%error, objects = entries.len(), "a group is read one by one");
                entries
                    .into_iter()
                    .rev()
                    .for_each(|entry| self.steps.push_front(entry.by_itself(self.limits)));
            }
            Event::Part { position, weight, result } => {
                if result.as_ref().map_or(true, |part| part.is_last) {
                    self.weight -= weight;
                }
                self.ready.push_back((position, result));
            }
        }
    }

    /// Puts the results of a group into `ready`, with the blocks that were read for it.
    fn hand_out(&mut self, entries: Vec<Entry>, mut read: Option<BlocksRead>) {
        let blocks = read.as_mut().map(|read| std::mem::take(&mut read.blocks)).unwrap_or_default();
        let mut blocks = blocks.into_iter();
        for Entry { position, found, .. } in entries {
            let answer = match found {
                LookupResult::Answer(answer) => answer,
                LookupResult::Spans { head, spans } => {
                    let pieces = blocks.by_ref().take(spans.len()).flatten().collect();
                    Ok(ObjectPart { head: Some(head), pieces, is_last: true })
                }
            };
            self.ready.push_back((position, answer));
        }
        if read.is_some() {
            self.read = read;
        }
    }
}
