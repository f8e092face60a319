//! Scrub: reads every chunk from its medium once in a cycle, to find damage that no read has found.
//!
//! Stripes are examined in the order of their names, as [`verify`](mod@crate::repair::verify) does, and spread evenly
//! over the cycle: when a part of its time has passed, the same part of the chunks that the sites report is due. One
//! stripe is examined at a time, and none while requests wait at its sites, unless the scrub is far behind. At the
//! end of a cycle orphans are counted. Damaged chunks become debt.
//!
//! The position is a row of the metadata, written every minute: a process that resumes there examines at most a
//! minute's stripes again. A cycle's time is the time spent scrubbing, by the monotonic clock.

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use striate_core::SiteId;
use striate_meta::records::{self, ScrubCount, ScrubWork, Stripe};
use striate_meta::{Row, ScanRange, keys};
use striate_runtime::Instant;
use striate_stripe::{StripeError, Stripes};

use crate::collection::orphans::count_orphans;
use crate::repair::verify::examine;
use crate::rows::find_record;

/// Minimum interval between two checks for due chunks.
const PASS_EVERY: Duration = Duration::from_secs(1);
/// Maximum interval between two checks for due chunks.
const PASS_AT_LEAST_EVERY: Duration = Duration::from_secs(30);
/// Pause while requests wait at a site.
const YIELD: Duration = Duration::from_secs(1);
/// Divisor: a scrub that is behind by more than one part in this many of all chunks does not yield.
const FAR_BEHIND: u64 = 20;
/// Interval between two writes of the position.
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// Stripes read from the metadata together.
const BATCH: u64 = 64;

/// Verifies every chunk within each `cycle`, until the task is dropped. Run it in one process of a cluster at a time.
pub fn keep_scrubbing(stripes: Stripes, cycle: Duration) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let mut scrub = loop {
            match Scrub::resume(&stripes, cycle).await {
                Ok(scrub) => break scrub,
                Err(error) => tracing::warn!(%error, "the scrub cannot start; will retry"),
            }
            stripes.runtime().sleep(PASS_AT_LEAST_EVERY).await;
        };
        loop {
            if let Err(error) = scrub.step().await {
                tracing::warn!(%error, "a step of the scrub failed; will retry");
            }
            let pause = scrub.pause();
            stripes.runtime().sleep(pause).await;
        }
    })
}

/// State of a scrub.
struct Scrub<'a> {
    stripes: &'a Stripes,
    cycle: Duration,
    work: ScrubWork,
    /// This cycle's time before this process resumed it.
    before: Duration,
    /// Time at which this process resumed the cycle.
    since: Instant,
    saved: Instant,
}

impl<'a> Scrub<'a> {
    /// Resumes where the last process was. If the cycle's length has changed, the elapsed time is scaled in
    /// proportion.
    async fn resume(stripes: &'a Stripes, cycle: Duration) -> Result<Self, StripeError> {
        let mut work: ScrubWork = find_record(stripes, &keys::scrub_work()).await?.unwrap_or_default();
        let part = work.elapsed_s as f64 / work.cycle_s.max(1) as f64;
        let before = cycle.mul_f64(part.clamp(0.0, 1.0));
        work.cycle = work.cycle.max(1);
        work.cycle_s = cycle.as_secs();
        let now = stripes.runtime().now();
        Ok(Self { stripes, cycle, work, before, since: now, saved: now })
    }

    fn elapsed(&self) -> Duration {
        self.before + (self.stripes.runtime().now() - self.since)
    }

    fn count(&self) -> ScrubCount {
        self.work.count.unwrap_or_default()
    }

    /// Returns how many chunks this cycle has examined.
    fn done(&self) -> u64 {
        let count = self.count();
        count.chunks + count.damaged + count.unknown
    }

    /// Returns how many chunks it should have examined by now.
    fn due(&self) -> u64 {
        let elapsed = self.elapsed();
        match elapsed >= self.cycle {
            true => u64::MAX,
            false => {
                (self.work.total_chunks as f64 * elapsed.as_secs_f64() / self.cycle.as_secs_f64()).ceil()
                    as u64
            }
        }
    }

    /// Returns the time until about the next chunk is due.
    fn pause(&self) -> Duration {
        let chunk = self.cycle.as_secs_f64() / self.work.total_chunks.max(1) as f64;
        Duration::from_secs_f64(chunk.min(PASS_AT_LEAST_EVERY.as_secs_f64())).max(PASS_EVERY)
    }

    /// Examines the chunks that are due, and ends the cycle when it is over.
    async fn step(&mut self) -> Result<(), StripeError> {
        self.work.total_chunks = self.stripes.sites().iter().map(|view| view.site.last_load().chunks).sum();
        let mut is_through = false;
        while self.done() < self.due() && !is_through {
            // A stripe has several chunks.
            let count = ((self.due() - self.done()) / 16).clamp(1, BATCH);
            let rows = self.stripes.meta().scan(self.remaining_range(), count as usize).await?;
            is_through = rows.is_empty();
            for row in rows {
                self.yield_to_others(&row).await?;
                self.examine(row).await?;
            }
            self.save(SAVE_EVERY).await?;
        }
        match is_through && self.elapsed() >= self.cycle {
            true => self.end_cycle().await,
            false => self.save(SAVE_EVERY).await,
        }
    }

    /// Returns the range of stripes that this cycle has not examined yet.
    fn remaining_range(&self) -> ScanRange {
        let mut range = ScanRange::prefix(keys::STRIPES);
        if !self.work.position.is_empty() {
            range.start = [&self.work.position[..], b"\0"].concat().into();
        }
        range
    }

    /// Waits while requests wait at the stripe's sites, unless the scrub is far behind.
    async fn yield_to_others(&self, row: &Row) -> Result<(), StripeError> {
        let record: Stripe = row.record()?;
        let others_wait = || {
            let mut sites = record.locations.iter().filter_map(|at| self.stripes.site(SiteId(at.site)));
            sites.any(|site| {
                let load = site.last_load();
                load.queue_requests > load.workers
            })
        };
        while others_wait() && self.done() + self.work.total_chunks / FAR_BEHIND >= self.due() {
            self.stripes.runtime().sleep(YIELD).await;
        }
        Ok(())
    }

    async fn examine(&mut self, row: Row) -> Result<(), StripeError> {
        let key = row.key.clone();
        // The row may have been read a while ago.
        let found = match self.stripes.meta().get(&key).await? {
            Some(row) => examine(self.stripes, row).await?,
            None => Default::default(),
        };
        for damage in &found.damage {
            tracing::warn!(damage, "found by the scrub");
        }
        let mut count = self.count();
        count.stripes += 1;
        count.chunks += found.good.len() as u64;
        count.bytes += found.good.iter().map(|info| u64::from(info.len)).sum::<u64>();
        count.damaged += found.damage.len() as u64;
        count.unknown += found.unknown;
        (self.work.count, self.work.position) = (Some(count), key);
        Ok(())
    }

    async fn end_cycle(&mut self) -> Result<(), StripeError> {
        let orphans = count_orphans(self.stripes).await?;
        let mut count = self.count();
        (count.orphans, count.unexplained) = (orphans.orphans, orphans.unexplained);
        tracing::info!(cycle = self.work.cycle, ?count, "every chunk was verified");
        let now = self.stripes.runtime().now();
        self.work = ScrubWork {
            cycle: self.work.cycle + 1,
            cycle_s: self.work.cycle_s,
            total_chunks: self.work.total_chunks,
            last: Some(count),
            last_ended_unix_ms: self.stripes.runtime().wall_time().as_millis() as u64,
            count: None,
            position: Bytes::new(),
            elapsed_s: 0,
        };
        (self.before, self.since) = (Duration::ZERO, now);
        self.save(Duration::ZERO).await
    }

    /// Writes the position, unless the last write is less than `every` ago.
    async fn save(&mut self, every: Duration) -> Result<(), StripeError> {
        let now = self.stripes.runtime().now();
        if now - self.saved < every {
            return Ok(());
        }
        self.work.elapsed_s = self.elapsed().as_secs();
        let mut tx = self.stripes.transaction();
        tx.put(keys::scrub_work(), records::encode(&self.work));
        self.stripes.meta().commit(tx).await?;
        self.saved = now;
        Ok(())
    }
}
