//! Memory for a block that arrives from a sender: it grows as bytes arrive, and its sender may be cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;

use futures::task::AtomicWaker;

use crate::budget::{ByteBudget, Share};
use crate::error::StripeError;
use crate::ledger::Want;

/// Memory for a block that arrives. It counts as arriving until it is complete or dropped.
pub struct ArrivingBlock {
    budget: ByteBudget,
    number: u64,
    held: usize,
    is_awaited: bool,
    cut: Arc<CutSignal>,
}

/// Tells a put that its sender was too slow while others waited for memory.
#[derive(Debug, Default)]
pub(crate) struct CutSignal {
    is_cut: AtomicBool,
    waker: AtomicWaker,
}

impl CutSignal {
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl ByteBudget {
    /// Begins a block that arrives. It holds nothing yet.
    pub fn begin_arrival(&self) -> ArrivingBlock {
        let cut = Arc::<CutSignal>::default();
        let number = self.register_arrival(Arc::clone(&cut));
        ArrivingBlock { budget: self.clone(), number, held: 0, is_awaited: false, cut }
    }
}

impl ArrivingBlock {
    /// Bytes held.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Holds `len` bytes, waiting for a limited time. More than the payer's limit counts as the limit.
    ///
    /// # Errors
    /// [`StripeError::Overloaded`] when they are not free in time, or the sender is cut.
    pub async fn grow(&mut self, len: usize) -> Result<(), StripeError> {
        let len = self.budget.clamped(len);
        if len > self.held {
            let want = Want { payer: self.budget.payer(), len: len - self.held, arrival: Some(self.number) };
            self.budget.obtain_in_time(want).await?;
            self.held = len;
        }
        Ok(())
    }

    /// Records that more than the `arrived` bytes are awaited from the sender.
    ///
    /// # Errors
    /// [`StripeError::Overloaded`] when the sender is cut; the task is woken when that happens.
    pub fn await_more(&mut self, arrived: usize, cx: &Context<'_>) -> Result<(), StripeError> {
        if !self.is_awaited {
            self.is_awaited = true;
            self.budget.await_more(self.number, arrived);
        }
        self.cut.waker.register(cx.waker());
        match self.cut.is_cut.load(Ordering::Acquire) {
            true => Err(StripeError::Overloaded),
            false => Ok(()),
        }
    }

    /// Records that bytes have arrived, or that they are not waited for any more.
    pub fn end_wait(&mut self) {
        if std::mem::take(&mut self.is_awaited) {
            self.budget.end_wait(self.number);
        }
    }

    /// Ends the arrival. Returns its memory, of at most `len` bytes.
    pub fn complete(mut self, len: usize) -> Share {
        let mut share = self.budget.complete_arrival(self.number, std::mem::take(&mut self.held));
        share.shrink_to(len);
        share
    }
}

impl Drop for ArrivingBlock {
    fn drop(&mut self) {
        // Gives back what the ledger has for it: a growth may have been served and not received.
        self.budget.drop_arrival(self.number);
    }
}
