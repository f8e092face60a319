//! The bounded queue of a site: priorities, deadlines, cancellation, exact counts.
//!
//! A request is a list of items (chunk ranges). It waits as a whole, in the order of arrival within its priority.
//! Workers take its items one by one, so several workers share a long request. Dropping a request's [`Ticket`] removes
//! whatever no worker has begun: a late-bound or hedged read that is no longer needed costs the disk nothing (EC-Store
//! §IV-B, late binding; design.md §5).
//!
//! *Priorities.* The highest class that has work goes first, but a class that was passed over too often (8 times for
//! repair, 32 times for background) is served next, so the lower classes keep about a ninth and a thirty-third of the
//! items under any foreground load.
//!
//! *Counts.* `requests` and `bytes` cover what waits or is being served, writes included (o_j of EC-Store Eq. 1). Bytes
//! that were read, from the disk or the page cache, and that the requester has not yet fetched are counted separately
//! but against the same bound, so a requester that stops fetching cannot fill the memory (I12). Load reports state the
//! requests and both kinds of bytes: everything that the site has still to read or to send. Every change of these
//! counts passes an [`Alarm`], which wakes the watchers' task.
//!
//! The queue has no tasks of its own and does not know what an item is. Workers exist only while there is work;
//! [`Queue::push`] returns those to start.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use striate_runtime::Instant;

use crate::alarm::{Alarm, QueueLength};
use crate::api::{Priority, SiteError};

/// Bounds of a site's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Maximum number of requests waiting or being served.
    pub requests: u32,
    /// Maximum number of bytes that those requests ask for, or that were read and not yet fetched. A larger request is
    /// admitted only when there is no other.
    pub bytes: u64,
    /// Items served at the same time.
    pub workers: u32,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self { requests: 4096, bytes: 256 << 20, workers: 8 }
    }
}

/// Number of times a class may be passed over before it is served next.
const PATIENCE: [u32; CLASSES] = [u32::MAX, 8, 32];
const CLASSES: usize = 3;

/// Returns the part of a bound that requests of a priority may use.
fn share(priority: Priority, bound: u64) -> u64 {
    match priority {
        Priority::Foreground => bound,
        Priority::Repair => bound - bound / 4,
        Priority::Background => bound / 2,
    }
}

fn class(priority: Priority) -> usize {
    match priority {
        Priority::Foreground => 0,
        Priority::Repair => 1,
        Priority::Background => 2,
    }
}

/// Counts of what waits, is being served, or was read and not yet fetched. Shared by the queue and the permits.
#[derive(Debug, Default)]
pub struct Counts {
    requests: AtomicU32,
    bytes: AtomicU64,
    buffered: AtomicU64,
    alarm: Alarm,
}

impl Counts {
    /// Returns the number of requests waiting or being served.
    pub fn requests(&self) -> u32 {
        self.requests.load(Ordering::SeqCst)
    }

    /// Returns the number of bytes that those requests ask for.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }

    /// Returns the number of bytes read and not yet fetched by the requester.
    pub fn buffered(&self) -> u64 {
        self.buffered.load(Ordering::SeqCst)
    }

    /// Returns the length that a load report states.
    pub fn length(&self) -> QueueLength {
        QueueLength { requests: self.requests(), bytes: self.bytes() + self.buffered() }
    }

    /// Returns the alarm that every change of the counts passes.
    pub fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    /// Counts bytes as read and not yet fetched, until the returned guard is dropped.
    pub fn buffer(self: &Arc<Self>, bytes: u64) -> BufferedBytes {
        let buffered = self.hold(bytes);
        self.changed();
        buffered
    }

    /// As [`Counts::buffer`], for a caller that is about to remove the same bytes from those asked for.
    fn hold(self: &Arc<Self>, bytes: u64) -> BufferedBytes {
        self.buffered.fetch_add(bytes, Ordering::SeqCst);
        BufferedBytes { counts: Arc::clone(self), bytes }
    }

    /// Checks the alarm; must be called after every change of a count.
    fn changed(&self) {
        self.alarm.look(|| self.length());
    }
}

/// Keeps one request counted until dropped.
#[derive(Debug)]
struct RequestPermit(Arc<Counts>);

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::SeqCst);
        self.0.changed();
    }
}

/// Keeps some bytes of a request counted until dropped.
#[derive(Debug)]
pub struct Permit {
    request: Arc<RequestPermit>,
    bytes: u64,
}

impl Permit {
    /// Turns the bytes of an item that was read from asked-for into buffered ones, until the returned guard is dropped.
    pub fn buffer(self, bytes: u64) -> BufferedBytes {
        self.request.0.hold(bytes)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.request.0.bytes.fetch_sub(self.bytes, Ordering::SeqCst);
        self.request.0.changed();
    }
}

/// Keeps bytes that were read and wait to be fetched counted until dropped.
#[derive(Debug)]
pub struct BufferedBytes {
    counts: Arc<Counts>,
    bytes: u64,
}

impl Drop for BufferedBytes {
    fn drop(&mut self) {
        self.counts.buffered.fetch_sub(self.bytes, Ordering::SeqCst);
        self.counts.changed();
    }
}

/// A request's place in the queue. Dropping it removes the items that no worker has begun.
#[derive(Debug)]
pub struct Ticket<W> {
    queue: Arc<Queue<W>>,
    class: usize,
    sequence: u64,
}

impl<W> Ticket<W> {
    /// Removes and returns the items that no worker has begun.
    pub(crate) fn take_waiting(&self) -> Vec<W> {
        let entry = self.queue.remove(self.class, self.sequence);
        let items = entry.map(|mut entry| std::mem::take(&mut entry.items)).unwrap_or_default();
        items.into_iter().map(|(_, work)| work).collect()
    }
}

impl<W> Drop for Ticket<W> {
    fn drop(&mut self) {
        // The entry is dropped outside the lock: its items may run code of their own when dropped.
        drop(self.queue.remove(self.class, self.sequence));
    }
}

/// An item that a worker has begun.
#[derive(Debug)]
pub struct TakenItem<W> {
    /// The item.
    pub work: W,
    /// Keeps the item counted.
    pub permit: Permit,
    /// Whether the deadline had passed: the item must fail and not be served.
    pub expired: bool,
    /// Whether it is the first item of its request.
    pub is_first: bool,
}

/// A worker's licence to run; see [`Queue::push`].
#[derive(Debug)]
pub struct Worker<W> {
    queue: Arc<Queue<W>>,
    retired: bool,
}

impl<W> Worker<W> {
    /// Returns the next item, or `None` when nothing waits; the worker has then retired and must end.
    pub fn next(&mut self, now: Instant) -> Option<TakenItem<W>> {
        let item = self.queue.take_or_retire(now);
        self.retired = item.is_none();
        item
    }
}

impl<W> Drop for Worker<W> {
    fn drop(&mut self) {
        if !self.retired {
            self.queue.state.lock().workers -= 1;
        }
    }
}

#[derive(Debug)]
struct Entry<W> {
    /// Bytes and work of the items that no worker has begun.
    items: VecDeque<(u64, W)>,
    waiting_bytes: u64,
    deadline: Option<Instant>,
    begun: bool,
    request: Arc<RequestPermit>,
}

impl<W> Drop for Entry<W> {
    fn drop(&mut self) {
        self.request.0.bytes.fetch_sub(self.waiting_bytes, Ordering::SeqCst);
        self.request.0.changed();
    }
}

#[derive(Debug)]
struct State<W> {
    waiting: [BTreeMap<u64, Entry<W>>; CLASSES],
    passed_over: [u32; CLASSES],
    next_sequence: u64,
    workers: u32,
}

/// A bounded queue with priorities, deadlines and cancellation.
#[derive(Debug)]
pub struct Queue<W> {
    limits: QueueLimits,
    counts: Arc<Counts>,
    waiting_requests: AtomicUsize,
    state: Mutex<State<W>>,
}

impl<W> Queue<W> {
    /// Creates an empty queue.
    pub fn new(limits: QueueLimits) -> Arc<Self> {
        let state = State {
            waiting: std::array::from_fn(|_| BTreeMap::new()),
            passed_over: [0; CLASSES],
            next_sequence: 0,
            workers: 0,
        };
        Arc::new(Self {
            limits,
            counts: Arc::default(),
            waiting_requests: AtomicUsize::new(0),
            state: Mutex::new(state),
        })
    }

    /// Returns the counts, which change as requests come and go.
    pub fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Returns whether no request waits for a worker.
    pub(crate) fn nothing_waits(&self) -> bool {
        self.waiting_requests.load(Ordering::Relaxed) == 0
    }

    /// Admits a request of `bytes` bytes that is served at once, beside the workers (a write, which the store's group
    /// commit needs immediately). Repair may use three quarters of the bounds and background half of them.
    ///
    /// # Errors
    /// [`SiteError::Busy`] when the request would exceed the bounds.
    pub fn admit(&self, priority: Priority, bytes: u64) -> Result<Permit, SiteError> {
        let request_limit = share(priority, self.limits.requests.into());
        self.admit_within(request_limit, share(priority, self.limits.bytes), bytes)
    }

    /// Admits bytes that the site reads for itself and holds in memory until the returned guard is dropped. They count
    /// together with bytes read and not yet fetched, but not as a request, to which services would yield.
    ///
    /// # Errors
    /// [`SiteError::Busy`] when they would exceed the bounds.
    pub(crate) fn admit_bytes(&self, priority: Priority, bytes: u64) -> Result<BufferedBytes, SiteError> {
        let counts = &self.counts;
        let buffered_before = counts.buffered.fetch_add(bytes, Ordering::SeqCst);
        // From here on, dropping the guard undoes the count.
        let buffered = BufferedBytes { counts: Arc::clone(counts), bytes };
        let held_bytes = buffered_before + counts.bytes();
        if held_bytes > 0 && held_bytes.saturating_add(bytes) > share(priority, self.limits.bytes) {
            return Err(SiteError::Busy);
        }
        counts.changed();
        Ok(buffered)
    }

    fn admit_within(&self, request_limit: u64, byte_limit: u64, bytes: u64) -> Result<Permit, SiteError> {
        let counts = &self.counts;
        let requests_before = counts.requests.fetch_add(1, Ordering::SeqCst);
        // From here on, dropping the permits undoes the counts.
        let request = Arc::new(RequestPermit(Arc::clone(counts)));
        if u64::from(requests_before) >= request_limit.max(1) {
            return Err(SiteError::Busy);
        }
        let held_bytes = counts.bytes.fetch_add(bytes, Ordering::SeqCst) + counts.buffered();
        let permit = Permit { request, bytes };
        if held_bytes > 0 && held_bytes.saturating_add(bytes) > byte_limit {
            return Err(SiteError::Busy);
        }
        counts.changed();
        Ok(permit)
    }

    /// Queues a request of at least one item, each with its number of bytes. Returns its ticket and the workers to
    /// start, each of which must run to its end.
    ///
    /// # Errors
    /// [`SiteError::Busy`] when the request would exceed the bounds.
    pub fn push(
        self: &Arc<Self>,
        priority: Priority,
        deadline: Option<Instant>,
        items: VecDeque<(u64, W)>,
    ) -> Result<(Ticket<W>, Vec<Worker<W>>), SiteError> {
        debug_assert!(!items.is_empty(), "a request has at least one item");
        let waiting_bytes = items.iter().map(|(bytes, _)| *bytes).sum();
        let mut permit = self.admit(priority, waiting_bytes)?;
        // From now on, the entry accounts for the bytes.
        permit.bytes = 0;
        let request = Arc::clone(&permit.request);
        let wanted_workers = items.len() as u32;
        let class = class(priority);
        let mut state = self.state.lock();
        let sequence = state.next_sequence;
        state.next_sequence += 1;
        state.waiting[class]
            .insert(sequence, Entry { items, waiting_bytes, deadline, begun: false, request });
        self.waiting_requests.fetch_add(1, Ordering::Relaxed);
        let new_workers = wanted_workers.min(self.limits.workers.max(1).saturating_sub(state.workers));
        state.workers += new_workers;
        drop(state);
        let workers = (0..new_workers).map(|_| Worker { queue: Arc::clone(self), retired: false }).collect();
        Ok((Ticket { queue: Arc::clone(self), class, sequence }, workers))
    }

    fn remove(&self, class: usize, sequence: u64) -> Option<Entry<W>> {
        let entry = self.state.lock().waiting[class].remove(&sequence);
        if entry.is_some() {
            self.waiting_requests.fetch_sub(1, Ordering::Relaxed);
        }
        entry
    }

    fn take_or_retire(&self, now: Instant) -> Option<TakenItem<W>> {
        let mut state = self.state.lock();
        let Some(class) = state.next_class() else {
            state.workers -= 1;
            return None;
        };
        let mut first = state.waiting[class].first_entry().expect("the class has work");
        let entry = first.get_mut();
        let (bytes, work) = entry.items.pop_front().expect("a waiting request has items");
        entry.waiting_bytes -= bytes;
        let permit = Permit { request: Arc::clone(&entry.request), bytes };
        let is_first = !std::mem::replace(&mut entry.begun, true);
        let expired = entry.deadline.is_some_and(|deadline| deadline <= now);
        if entry.items.is_empty() {
            first.remove();
            self.waiting_requests.fetch_sub(1, Ordering::Relaxed);
        }
        Some(TakenItem { work, permit, expired, is_first })
    }
}

impl<W> State<W> {
    /// Returns the class to serve next (see the module), and counts the classes that it passes over.
    fn next_class(&mut self) -> Option<usize> {
        let has_work: [bool; CLASSES] = std::array::from_fn(|class| !self.waiting[class].is_empty());
        let starved = (0..CLASSES).rev().find(|&c| has_work[c] && self.passed_over[c] >= PATIENCE[c]);
        let chosen = starved.or_else(|| (0..CLASSES).find(|&c| has_work[c]))?;
        for (class, passed_over) in self.passed_over.iter_mut().enumerate() {
            let passes = class != chosen && has_work[class];
            *passed_over = if passes { passed_over.saturating_add(1) } else { 0 };
        }
        Some(chosen)
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
