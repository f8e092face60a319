//! One connection's peer, as its task and the sweeper see it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::task::Context;

use futures::task::AtomicWaker;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Waits {
    /// The store, or the peer's next request.
    NotForPeer,
    /// The next bytes of a request's body.
    ForBody,
    /// The peer to take bytes of an answer.
    ForReceiver,
}

/// What a sweep decided about a connection.
const KEPT: u8 = 0;
/// Its request is answered RequestTimeout.
const CUT_BODY: u8 = 1;
/// It is closed in the middle of an answer.
const CUT_ANSWER: u8 = 2;
/// It is closed if no request has begun meanwhile.
const CUT_IDLE: u8 = 3;

/// What the system holds of a connection's answers.
pub(crate) trait SendBuffer: Send + Sync {
    /// Bytes that the peer has not acknowledged.
    fn unacknowledged(&self) -> u64;

    /// From now on little more is taken than what was sent.
    fn bound(&self);
}

/// The peer of one connection. Its task writes here without locks; the sweeper reads once in a tick.
#[derive(Default)]
pub(crate) struct Peer {
    /// Bytes of bodies received, from the beginning,
    sent: AtomicU64,
    /// of answers given to the system,
    written: AtomicU64,
    /// and of these what the peer took, as far as the sweeper knows.
    taken: AtomicU64,
    /// What the system held for it when the sweeper looked last.
    held_last: AtomicU64,
    /// What the system holds for it.
    buffer: OnceLock<Box<dyn SendBuffer>>,
    is_bounded: AtomicBool,
    waits: AtomicU8,
    /// Requests that have begun.
    begun: AtomicU32,
    /// A request is being served.
    is_busy: AtomicBool,
    verdict: AtomicU8,
    /// Who reads the request's body.
    body: AtomicWaker,
    /// The connection's task.
    task: AtomicWaker,
    /// The connection must not be closed at once after its last answer.
    lingers: AtomicBool,
}

impl Peer {
    /// A request's head has come.
    pub fn begin_request(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        // What was decided about an earlier request does not hold for this one.
        self.verdict.store(KEPT, Ordering::Relaxed);
        self.is_busy.store(true, Ordering::Relaxed);
    }

    /// An answer's body was handed over, or given up.
    pub fn end_request(&self) {
        self.is_busy.store(false, Ordering::Relaxed);
    }

    /// The connection lingers when it closes.
    pub fn linger(&self) {
        self.lingers.store(true, Ordering::Release);
    }

    /// Whether the connection lingers.
    pub fn lingers(&self) -> bool {
        self.lingers.load(Ordering::Acquire)
    }

    /// Bytes of a body came.
    pub fn sent(&self, len: usize) {
        count(&self.sent, len);
        self.stop_waiting(Waits::ForBody);
    }

    /// The system took bytes of an answer.
    pub fn wrote(&self, len: usize) {
        count(&self.written, len);
        self.stop_waiting(Waits::ForReceiver);
    }

    /// The peer is not waited for any more, if it was waited for so.
    pub fn stop_waiting(&self, waits: Waits) {
        if self.waits.load(Ordering::Relaxed) == waits as u8 {
            self.waits.store(Waits::NotForPeer as u8, Ordering::Relaxed);
        }
    }

    /// Waits for the request's body. True when the sender is to be given up.
    pub fn await_body(&self, cx: &Context<'_>) -> bool {
        self.waits.store(Waits::ForBody as u8, Ordering::Relaxed);
        self.body.register(cx.waker());
        self.take_verdict(CUT_BODY)
    }

    /// Gives what the system holds for the peer, when it is waited for the first time. Where it cannot be had, what was
    /// written counts as taken.
    pub fn is_buffered_by<E>(&self, buffer: impl FnOnce() -> Result<Box<dyn SendBuffer>, E>) {
        if self.buffer.get().is_none()
            && let Ok(buffer) = buffer()
        {
            // Nobody else gives it.
            let _ = self.buffer.set(buffer);
        }
    }

    /// The receiver is slow: the system is to take little for it.
    pub fn bound(&self) {
        if let Some(buffer) = self.buffer.get()
            && !self.is_bounded.swap(true, Ordering::Relaxed)
        {
            buffer.bound();
        }
    }

    /// Waits for the receiver. True when it is to be given up.
    pub fn await_receiver(&self, cx: &Context<'_>) -> bool {
        self.waits.store(Waits::ForReceiver as u8, Ordering::Relaxed);
        self.task.register(cx.waker());
        self.take_verdict(CUT_ANSWER)
    }

    /// Waits for bytes on the connection. True when it is idle and to be closed.
    pub fn await_request(&self, cx: &Context<'_>) -> bool {
        self.task.register(cx.waker());
        self.take_verdict(CUT_IDLE) && !self.is_busy.load(Ordering::Relaxed)
    }

    fn take_verdict(&self, verdict: u8) -> bool {
        self.verdict.load(Ordering::Acquire) == verdict
            && self.verdict.compare_exchange(verdict, KEPT, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Bytes moved from the connection's beginning.
    pub fn moved(&self) -> u64 {
        if self.waits() == Waits::ForReceiver {
            // In this order what is written meanwhile does not count as taken.
            let written = self.written.load(Ordering::Acquire);
            let held = self.buffer.get().map_or(0, |buffer| buffer.unacknowledged());
            self.held_last.store(held, Ordering::Relaxed);
            self.taken.fetch_max(written.saturating_sub(held), Ordering::Relaxed);
        }
        self.sent.load(Ordering::Relaxed) + self.taken.load(Ordering::Relaxed)
    }

    /// Whether the system took so many bytes for it, and it was never found slow.
    pub fn has_earned(&self, bytes: u64) -> bool {
        !self.is_bounded.load(Ordering::Relaxed) && self.written.load(Ordering::Relaxed) >= bytes
    }

    /// Bytes of answers that the peer has taken, as far as the system knows.
    pub fn taken(&self) -> u64 {
        let held = self.buffer.get().map_or(0, |buffer| buffer.unacknowledged());
        self.written.load(Ordering::Relaxed).saturating_sub(held)
    }

    /// Bytes that the system held for a receiver that is waited for, at the last call of [`Peer::moved`].
    pub fn held(&self) -> u64 {
        match self.waits() {
            Waits::ForReceiver => self.held_last.load(Ordering::Relaxed),
            _ => 0,
        }
    }

    /// How many requests have begun.
    pub fn begun(&self) -> u32 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether no request is being served.
    pub fn is_idle(&self) -> bool {
        !self.is_busy.load(Ordering::Relaxed) && self.waits() == Waits::NotForPeer
    }

    /// What it waits for now.
    pub fn waits(&self) -> Waits {
        match self.waits.load(Ordering::Relaxed) {
            1 => Waits::ForBody,
            2 => Waits::ForReceiver,
            _ => Waits::NotForPeer,
        }
    }

    /// Gives the peer up for what it does not do: a sender is answered, a receiver or an idle peer cut off.
    pub fn cut(&self) {
        let verdict = match self.waits() {
            Waits::ForBody => CUT_BODY,
            Waits::ForReceiver => CUT_ANSWER,
            Waits::NotForPeer => CUT_IDLE,
        };
        self.verdict.store(verdict, Ordering::Release);
        self.body.wake();
        self.task.wake();
    }
}

fn count(counter: &AtomicU64, len: usize) {
    // One task writes: no read-modify-write is needed.
    counter.store(counter.load(Ordering::Relaxed) + len as u64, Ordering::Relaxed);
}
