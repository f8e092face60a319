//! Refills of splits that a memory site lost when it restarted empty, while the other splits still determine the block.
//!
//! Reads find the loss, in popular blocks first, and decode around it. The gateway that has read such a block then
//! writes the missing data splits from the bytes at hand, which came from the site's peers. If it has read only a part,
//! it first reads the rest as any read does: from the peers, and what they lack from where the block is stored. A limit
//! in bytes per second bounds all this; a block beyond the limit waits for its next read. One gateway of the cluster
//! refills a block: its home grants refills as it grants fills.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use striate_codec::ChunkSet;
use striate_plan::cache::splits::places;
use striate_runtime::Instant;
use striate_site::{Priority, TendEvent};
use striate_stripe::{Span, StoredBytes};

use crate::cache::Inner;
use crate::homes::HomeQuery;
use crate::known_blocks::Sites;
use crate::miss_reasons::MissReason;
use crate::splits::cut;

/// Burst: the budget of this time may be used at once.
const BURST: Duration = Duration::from_secs(1);

/// Outcome of a refill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefillOutcome {
    /// The splits were written, another process writes them, or they are not available now.
    Tried,
    /// The rate limit left no room for the refill.
    NoRoom,
}

/// Rate limit of refills in bytes per second.
pub(crate) struct RefillRate {
    bytes_per_s: u64,
    /// Time at which all bytes taken so far are paid for.
    paid_at: Mutex<Option<Instant>>,
}

impl RefillRate {
    pub(crate) fn new(bytes_per_s: u64) -> Self {
        Self { bytes_per_s, paid_at: Mutex::default() }
    }

    /// Takes `len` bytes from the budget. Returns whether it had room.
    pub(crate) fn take(&self, len: u64, now: Instant) -> bool {
        if self.bytes_per_s == 0 {
            return false;
        }
        let mut paid_at = self.paid_at.lock();
        let from = paid_at.map_or(now, |paid_at| paid_at.max(now));
        let is_within_rate = from <= now + BURST;
        if is_within_rate {
            *paid_at = Some(from + Duration::from_secs_f64(len as f64 / self.bytes_per_s as f64));
        }
        is_within_rate
    }
}

impl Inner {
    /// Writes data splits that a cached block lacks, if its home grants this process the refill.
    pub(crate) async fn refill(
        self: &Arc<Self>,
        question: HomeQuery,
        stored: StoredBytes,
        whole: Option<Vec<Bytes>>,
        missing: ChunkSet,
        live: &Sites,
    ) -> RefillOutcome {
        if !self.refill_pace.take(question.len.into(), self.runtime.now()) {
            return RefillOutcome::NoRoom;
        }
        let Some(pieces) = self.whole_block(whole, stored).await else { return RefillOutcome::Tried };
        if self.begin_if_granted(&question, TendEvent::Lost, live).await.is_some() {
            let parities = self.known_blocks.parities(question.name);
            let written = self.write_missing(&question, &pieces, missing, live).await;
            let filled = written.and_then(|()| parities.ok_or(MissReason::Gone));
            self.end_fill(question, filled, live).await;
        }
        RefillOutcome::Tried
    }

    /// Returns all bytes of a block: what its reader has, or what a further read returns. That read is not counted.
    pub(crate) async fn whole_block(
        &self,
        whole: Option<Vec<Bytes>>,
        stored: StoredBytes,
    ) -> Option<Vec<Bytes>> {
        if whole.is_some() {
            return whole;
        }
        let stripes = self.stripes.upgrade()?;
        let mut read = stripes.untold().read_spans(&[Span::whole(stored)]).await.ok()?;
        Some(read.blocks.swap_remove(0))
    }

    /// Writes the missing data splits.
    ///
    /// # Errors
    /// The reason why some of them are still missing.
    async fn write_missing(
        &self,
        question: &HomeQuery,
        pieces: &[Bytes],
        missing: ChunkSet,
        live: &Sites,
    ) -> Result<(), MissReason> {
        let splits = question.splits();
        if missing.iter().any(|index| index >= splits) {
            // The sites have changed since, and the block is now cut in another way.
            return Err(MissReason::Gone);
        }
        let kib = self.kib_of_fill(question, 0);
        let _on_the_way = self.on_the_way.try_acquire_many(kib).map_err(|_| MissReason::TooMuchOnTheWay)?;
        let places = places(question.name, &live.sites, splits);
        let data = cut(pieces, question.len, splits);
        for index in missing.iter() {
            let split = vec![data[index].clone()];
            let written = self.write_splits(question.name, index, split, &places, Priority::Background).await;
            if written.iter().any(Result::is_err) {
                return Err(MissReason::NotWritten(places[index]));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use striate_runtime::Runtime;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_more_is_taken_than_its_rate_allows() {
        let runtime = Runtime::deterministic(1, Duration::ZERO);
        let pace = RefillRate::new(10 << 20);
        let mut taken = 0;
        for _ in 0..100 {
            taken += if pace.take(1 << 20, runtime.now()) { 1 } else { 0 };
            runtime.sleep(Duration::from_millis(50)).await;
        }
        assert!(
            (50..=61).contains(&taken),
            "{taken} MiB in five seconds, at ten a second and one second's more"
        );
        assert!(!RefillRate::new(0).take(1, runtime.now()));
    }
}
