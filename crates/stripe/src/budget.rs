//! The bytes of bodies in memory at once, over all requests of a client (I12).
//!
//! A put takes its share block by block: one for the block that is being gathered, and each block that is
//! being written holds its own until its chunks are durable. A get holds its share for the block that is
//! being sent, and takes more for reading ahead only where nobody waits.
//!
//! Nobody can wait in a circle: whoever waits for a share holds only shares of blocks that are being
//! written, and those end by themselves. A copy, which reads and writes, takes one share for both sides
//! before it reads a block.
//!
//! What it does not bound: the time for which a slow sender or receiver keeps a share. Time-outs of the
//! gateway do that.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A bounded number of bytes. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ByteBudget {
    bytes: Arc<Semaphore>,
    total: usize,
}

/// Bytes taken from the budget; given back when dropped.
#[derive(Debug)]
pub struct Share {
    _permit: OwnedSemaphorePermit,
}

impl ByteBudget {
    /// A budget of `total` bytes, at least one.
    pub fn new(total: usize) -> Self {
        let total = total.clamp(1, u32::MAX as usize);
        Self { bytes: Arc::new(Semaphore::new(total)), total }
    }

    /// Waits for `len` bytes. More than the whole budget counts as the whole budget.
    pub async fn acquire(&self, len: usize) -> Share {
        let permit = self.bytes.clone().acquire_many_owned(self.clamped(len)).await;
        Share { _permit: permit.expect("the semaphore is never closed") }
    }

    /// `len` bytes, if they can be had at once.
    pub fn try_acquire(&self, len: usize) -> Option<Share> {
        let permit = self.bytes.clone().try_acquire_many_owned(self.clamped(len)).ok()?;
        Some(Share { _permit: permit })
    }

    /// Bytes that are taken.
    #[cfg(test)]
    pub fn taken(&self) -> usize {
        self.total - self.bytes.available_permits()
    }

    fn clamped(&self, len: usize) -> u32 {
        len.min(self.total) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_share_larger_than_the_budget_is_the_whole_budget_and_comes_back() {
        let budget = ByteBudget::new(100);
        let whole = budget.acquire(1_000).await;
        assert_eq!(budget.taken(), 100);
        assert!(budget.try_acquire(1).is_none());
        drop(whole);
        assert!(budget.try_acquire(100).is_some());
    }

    #[tokio::test]
    async fn those_who_wait_are_served_before_those_who_only_try() {
        let budget = ByteBudget::new(100);
        let first = budget.acquire(60).await;
        let waiting = budget.acquire(100);
        tokio::pin!(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(first);
        assert!(budget.try_acquire(1).is_none());
        assert!(futures::poll!(&mut waiting).is_ready());
    }
}
