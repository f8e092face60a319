//! The peer of one connection, shared by the connection's task and the sweeper.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use striate_client::Payer;
use tokio::sync::Notify;

use crate::documents::{FairPool, Hold};

/// What a connection is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PeerWait {
    /// The store, or the peer's next request.
    NotForPeer,
    /// The next bytes of a request's body.
    ForBody,
    /// The peer, to take bytes of a response.
    ForReceiver,
}

/// Length of a head in bytes up to which it is left to the connection's first buffer.
const SHORT_HEAD: u32 = 8 << 10;
/// What a head ends with.
const HEAD_END: &[u8] = b"\r\n\r\n";
/// Verdict of a sweep: the connection is kept.
const KEPT: u8 = 0;
/// Verdict: the request is answered with RequestTimeout.
const CUT_BODY: u8 = 1;
/// Verdict: the connection is closed in the middle of a response.
const CUT_ANSWER: u8 = 2;
/// Verdict: the connection is closed if no request has begun meanwhile.
const CUT_IDLE: u8 = 3;

/// The send buffer that the system holds for a connection.
pub(crate) trait SendBuffer: Send + Sync {
    /// Returns the number of bytes that the peer has not acknowledged.
    fn unacknowledged(&self) -> u64;

    /// Makes the system take little more than it has sent, from now on.
    fn bound(&self);
}

/// The peer of one connection. The connection's task writes here without locks; the sweeper reads once in a tick.
#[derive(Default)]
pub(crate) struct Peer {
    /// Bytes of bodies received since the connection began.
    sent: AtomicU64,
    /// Bytes of responses given to the system.
    written: AtomicU64,
    /// Bytes of responses that the peer took, as far as the sweeper knows.
    taken_bytes: AtomicU64,
    /// Bytes that the system held for the peer at the sweeper's last pass.
    held_last: AtomicU64,
    /// Send buffer of the connection.
    buffer: OnceLock<Box<dyn SendBuffer>>,
    is_bounded: AtomicBool,
    waits: AtomicU8,
    /// Number of requests that have begun.
    begun: AtomicU32,
    /// Whether a request is being served.
    is_busy: AtomicBool,
    /// Whether a request had a valid signature.
    is_known: AtomicBool,
    verdict: AtomicU8,
    /// Waker of the request body's reader.
    body: AtomicWaker,
    /// Waker of the connection's task.
    task: AtomicWaker,
    /// Whether the connection must not be closed at once after its last response.
    lingers: AtomicBool,
    /// Notified when the connection must end at once, whatever it does.
    broken_off: Notify,
    /// What counts as the peer's address.
    address: Option<IpAddr>,
    /// Whether the current request, or the last one, had a valid signature.
    is_signed: AtomicBool,
    /// Bytes of a head that is arriving.
    head: AtomicU32,
    /// Memory for such heads, and this one's.
    heads: Option<Arc<FairPool>>,
    head_memory: Mutex<Option<Hold>>,
}

impl Peer {
    /// Creates the peer of a connection from `address`, `None` for a trusted proxy. What is not signed draws on
    /// `unsigned`.
    pub fn from(address: Option<IpAddr>, unsigned: Arc<FairPool>) -> Self {
        Self { address, heads: Some(unsigned), ..Self::default() }
    }

    /// Returns who pays for a request of this peer that `access_key` signed; an empty key if nobody has.
    pub fn payer(&self, access_key: &str) -> Payer {
        let address = self.address.map(|address| address.to_string()).unwrap_or_default();
        Payer::named([access_key.as_bytes(), address.as_bytes()])
    }

    /// Records bytes that may be of a head. Returns false if there is no memory for so long a head.
    ///
    /// Bytes behind the end of a head are a body's, which has memory of its own.
    pub fn receive_head(self: &Arc<Self>, bytes: &[u8]) -> bool {
        if self.is_busy.load(Ordering::Relaxed) {
            return true;
        }
        let end = memchr::memmem::find(bytes, HEAD_END);
        let head = self.head.load(Ordering::Relaxed).saturating_add(end.unwrap_or(bytes.len()) as u32);
        self.head.store(head, Ordering::Relaxed);
        let Some(heads) = self.heads.as_ref().filter(|_| head > SHORT_HEAD) else { return true };
        heads.used_by(self.payer(""), self).reserve(&mut self.head_memory.lock(), head as usize).is_ok()
    }

    /// Records that a request's head has arrived.
    pub fn begin_request(&self) {
        self.is_signed.store(false, Ordering::Relaxed);
        if self.head.swap(0, Ordering::Relaxed) > SHORT_HEAD {
            *self.head_memory.lock() = None;
        }
        self.begun.fetch_add(1, Ordering::Relaxed);
        // A verdict on an earlier request does not apply to this one.
        self.verdict.store(KEPT, Ordering::Relaxed);
        self.is_busy.store(true, Ordering::Relaxed);
    }

    /// Records that a response's body was handed over or given up.
    pub fn end_request(&self) {
        self.is_busy.store(false, Ordering::Relaxed);
    }

    /// Records that a request's signature is valid.
    pub fn recognise(&self) {
        self.is_known.store(true, Ordering::Relaxed);
        self.is_signed.store(true, Ordering::Relaxed);
    }

    /// Returns whether the current request, or the last one, had a valid signature.
    pub fn is_signed(&self) -> bool {
        self.is_signed.load(Ordering::Relaxed)
    }

    /// Returns whether a request had a valid signature.
    pub fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    /// Completes when the connection must make room for another. Only before its first request is read: later, the
    /// reader finds out.
    pub async fn evicted(&self) {
        std::future::poll_fn(|cx| match self.await_request(cx) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await
    }

    /// Ends the connection at once, whatever it does.
    pub fn break_off(&self) {
        self.broken_off.notify_one();
    }

    /// Completes when the connection must end at once.
    pub async fn broken_off(&self) {
        self.broken_off.notified().await;
    }

    /// Makes the connection linger when it closes.
    pub fn linger(&self) {
        self.lingers.store(true, Ordering::Release);
    }

    /// Returns whether the connection lingers.
    pub fn lingers(&self) -> bool {
        self.lingers.load(Ordering::Acquire)
    }

    /// Records received bytes of a body.
    pub fn sent(&self, len: usize) {
        count(&self.sent, len);
        self.stop_waiting(PeerWait::ForBody);
    }

    /// Records bytes of a response that the system took.
    pub fn wrote(&self, len: usize) {
        count(&self.written, len);
        self.stop_waiting(PeerWait::ForReceiver);
    }

    /// Ends the wait for the peer, if `waits` is what the connection waits for.
    pub fn stop_waiting(&self, waits: PeerWait) {
        if self.waits.load(Ordering::Relaxed) == waits as u8 {
            self.waits.store(PeerWait::NotForPeer as u8, Ordering::Relaxed);
        }
    }

    /// Waits for the request's body. Returns whether the sender has timed out.
    pub fn await_body(&self, cx: &Context<'_>) -> bool {
        self.waits.store(PeerWait::ForBody as u8, Ordering::Relaxed);
        self.body.register(cx.waker());
        self.take_verdict(CUT_BODY)
    }

    /// Sets the peer's send buffer at the first wait for it. Until then, written bytes count as taken.
    pub fn is_buffered_by(&self, buffer: impl FnOnce() -> Box<dyn SendBuffer>) {
        self.buffer.get_or_init(buffer);
    }

    /// Bounds the send buffer of a slow receiver.
    pub fn bound(&self) {
        if let Some(buffer) = self.buffer.get()
            && !self.is_bounded.swap(true, Ordering::Relaxed)
        {
            buffer.bound();
        }
    }

    /// Waits for the receiver. Returns whether it has timed out.
    pub fn await_receiver(&self, cx: &Context<'_>) -> bool {
        self.waits.store(PeerWait::ForReceiver as u8, Ordering::Relaxed);
        self.task.register(cx.waker());
        self.take_verdict(CUT_ANSWER)
    }

    /// Waits for bytes on the connection. Returns whether it is idle and must be closed.
    pub fn await_request(&self, cx: &Context<'_>) -> bool {
        self.task.register(cx.waker());
        self.take_verdict(CUT_IDLE) && !self.is_busy.load(Ordering::Relaxed)
    }

    fn take_verdict(&self, verdict: u8) -> bool {
        self.verdict.load(Ordering::Acquire) == verdict
            && self.verdict.compare_exchange(verdict, KEPT, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Returns the number of bytes moved since the connection began.
    pub fn moved(&self) -> u64 {
        if self.waits() == PeerWait::ForReceiver {
            // In this order, bytes written meanwhile do not count as taken.
            let written = self.written.load(Ordering::Acquire);
            let held = self.buffer.get().map_or(0, |buffer| buffer.unacknowledged());
            self.held_last.store(held, Ordering::Relaxed);
            self.taken_bytes.fetch_max(written.saturating_sub(held), Ordering::Relaxed);
        }
        self.sent.load(Ordering::Relaxed) + self.taken_bytes.load(Ordering::Relaxed)
    }

    /// Returns whether the system took `bytes` for the peer, and it was never found slow.
    pub fn has_earned(&self, bytes: u64) -> bool {
        !self.is_bounded.load(Ordering::Relaxed) && self.written.load(Ordering::Relaxed) >= bytes
    }

    /// Returns the number of bytes of responses that the peer has taken, as far as the system knows.
    pub fn taken_bytes(&self) -> u64 {
        let held = self.buffer.get().map_or(0, |buffer| buffer.unacknowledged());
        self.written.load(Ordering::Relaxed).saturating_sub(held)
    }

    /// Returns the bytes that the system held for an awaited receiver at the last call of [`Peer::moved`].
    pub fn held(&self) -> u64 {
        match self.waits() {
            PeerWait::ForReceiver => self.held_last.load(Ordering::Relaxed),
            _ => 0,
        }
    }

    /// Returns the number of requests that have begun.
    pub fn begun(&self) -> u32 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Returns whether no request is being served.
    pub fn is_idle(&self) -> bool {
        !self.is_busy.load(Ordering::Relaxed) && self.waits() == PeerWait::NotForPeer
    }

    /// Returns what the connection waits for now.
    pub fn waits(&self) -> PeerWait {
        match self.waits.load(Ordering::Relaxed) {
            1 => PeerWait::ForBody,
            2 => PeerWait::ForReceiver,
            _ => PeerWait::NotForPeer,
        }
    }

    /// Gives up on the peer: a slow sender gets an error response, a receiver or an idle peer is cut off.
    pub fn cut(&self) {
        let verdict = match self.waits() {
            PeerWait::ForBody => CUT_BODY,
            PeerWait::ForReceiver => CUT_ANSWER,
            PeerWait::NotForPeer => CUT_IDLE,
        };
        self.verdict.store(verdict, Ordering::Release);
        self.body.wake();
        self.task.wake();
    }
}

fn count(counter: &AtomicU64, len: usize) {
    // Only one task writes, so no read-modify-write is needed.
    counter.store(counter.load(Ordering::Relaxed) + len as u64, Ordering::Relaxed);
}
