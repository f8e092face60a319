//! The memory budget for bodies that are held whole: documents, and the fields of forms.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::audit::RequestMetrics;
use crate::peers::Peers;
use crate::refusal::Refusal;

/// A memory budget for documents. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Documents {
    /// Free memory in KiB.
    room: Arc<Semaphore>,
    metrics: Arc<dyn RequestMetrics>,
    peers: Arc<Peers>,
}

impl Documents {
    pub fn new(bytes: usize, metrics: Arc<dyn RequestMetrics>, peers: Arc<Peers>) -> Self {
        Self { room: Arc::new(Semaphore::new(bytes.div_ceil(1024))), metrics, peers }
    }

    /// Extends `held` to `len` bytes in total.
    ///
    /// # Errors
    /// 503 SlowDown if the budget is used up.
    pub fn reserve(&self, held: &mut Option<OwnedSemaphorePermit>, len: usize) -> Result<(), Refusal> {
        let more = len.div_ceil(1024).saturating_sub(held.as_ref().map_or(0, |held| held.num_permits()));
        if more == 0 {
            return Ok(());
        }
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        let Ok(more) = Arc::clone(&self.room).try_acquire_many_owned(more) else {
            self.metrics.refused("documents");
            self.peers.press();
            return Err(Refusal::slow_down());
        };
        match held {
            Some(held) => held.merge(more),
            None => *held = Some(more),
        }
        Ok(())
    }
}

/// Returns the bytes that the items of a batch occupy until it ends, from its document's length: short items take some
/// twenty times their text, long keys four times, and there are at most 4,096 items.
pub(crate) fn batch_footprint(len: usize) -> usize {
    (len * 20).min(len * 4 + (2 << 20))
}
