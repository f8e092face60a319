//! Fences: rows that invalidate what gateways know of an object after a write through one of them.
//!
//! A write draws a new epoch and records itself in the row before it is forwarded. It removes its note when its outcome
//! is known. A gateway uses what it knows only if it learned it under the row's epoch; while a write is noted, it uses
//! and learns nothing. So a read that begins after a write has ended never finds the state before that write, whichever
//! gateway serves it.
//!
//! A row is needed as long as anything learned before its last write may be used: the ttl. The sweep removes a row
//! when, by the sweeper's own clock, it has not changed for longer than that, and no process that noted a write in it
//! is alive.
//!
//! A process may die while it writes. The sweep drops its notes under a new epoch once its lease has ended and the row
//! has not changed for [`MARGIN`]. A live process renews its notes until the outcome of its write is known. If it
//! cannot renew them, it gives the write up early enough that the write has happened at the origin, or never will,
//! before its note can be dropped: [`RENEW_EVERY`] + [`RENEW_WITHIN`] + [`UNSETTLED`] < [`MARGIN`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use striate_client::ClientError;
use striate_meta::records::{Bucket, Fence, FencedWrite, Origin, encode};
use striate_meta::{Commit, LeaseId, MetaError, Revision, Row, RowPages, ScanRange, keys};
use striate_runtime::{Instant, Runtime};
use striate_stripe::Stripes;

/// Attempts to change a row that other processes change too.
const MAX_ATTEMPTS: u32 = 64;
/// How much longer than the ttl a row stays, and how long the note of a dead process stays. No request to an origin
/// takes this long.
const MARGIN: Duration = Duration::from_secs(120);
/// A write with an unknown outcome may still happen at the origin. Gateways learn nothing of its objects for this time.
const UNSETTLED: Duration = Duration::from_secs(30);
/// Interval between renewals of the notes of a long write.
const RENEW_EVERY: Duration = Duration::from_secs(30);
/// Timeout for a renewal of the notes. A write whose notes cannot be renewed is given up.
const RENEW_WITHIN: Duration = Duration::from_secs(30);
const _: () =
    assert!(RENEW_EVERY.as_secs() + RENEW_WITHIN.as_secs() + UNSETTLED.as_secs() < MARGIN.as_secs());
/// Interval between sweeps of rows that are no longer needed.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Delay before another attempt to remove a note.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// Number of rows per page.
const PAGE: usize = 1_000;
/// Maximum number of rows that one write changes concurrently.
const CHANGED_AT_ONCE: usize = 32;

/// State of an object's fence, which a read must know before it uses anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FenceState {
    /// Epoch of the last write; 0 if no write matters any more.
    pub(crate) epoch: u64,
    pub(crate) is_written: bool,
}

/// The fences of all objects.
#[derive(Clone)]
pub(crate) struct Fences {
    stripes: Stripes,
}

/// The notes of a write in progress.
pub(crate) struct NotedWrite {
    fences: Fences,
    rows: Vec<Bytes>,
    id: u64,
    /// The origin's ttl in milliseconds.
    ttl_ms: u64,
}

impl Fences {
    pub(crate) fn new(stripes: Stripes) -> Self {
        Self { stripes }
    }

    fn runtime(&self) -> &Runtime {
        self.stripes.runtime()
    }

    /// Returns the bucket's current origin, if it has one, and the state of an object's fence, both in one read.
    ///
    /// # Errors
    /// [`ClientError::NoSuchBucket`], or if the metadata store fails.
    pub(crate) async fn state_of(
        &self,
        bucket: &str,
        key: &str,
    ) -> Result<(Option<Origin>, FenceState), ClientError> {
        let (origin, states) = self.states_of(bucket, [key]).await?;
        Ok((origin, states.into_iter().next().unwrap_or_default()))
    }

    /// As [`Fences::state_of`], for many objects in their order, all in one read.
    ///
    /// # Errors
    /// As [`Fences::state_of`].
    pub(crate) async fn states_of(
        &self,
        bucket: &str,
        objects: impl IntoIterator<Item = &str, IntoIter: Send>,
    ) -> Result<(Option<Origin>, Vec<FenceState>), ClientError> {
        let fences = objects.into_iter().map(|key| keys::fence(bucket, key));
        let rows: Vec<Bytes> = std::iter::once(keys::bucket(bucket)).chain(fences).collect();
        let mut rows = self.stripes.meta().get_many(&rows).await?.into_iter();
        let of_bucket = rows.next().flatten().ok_or_else(|| ClientError::NoSuchBucket(bucket.to_owned()))?;
        let record: Bucket = of_bucket.record()?;
        let state = |row: Option<Row>| {
            let fence: Fence = row.as_ref().map(Row::record).transpose()?.unwrap_or_default();
            Ok::<_, MetaError>(FenceState { epoch: fence.epoch, is_written: !fence.writes.is_empty() })
        };
        Ok((record.origin, rows.map(state).collect::<Result<_, _>>()?))
    }

    /// Notes a write of objects.
    ///
    /// # Errors
    /// If the metadata store fails; the notes that were made are removed.
    pub(crate) async fn note(
        &self,
        bucket: &str,
        objects: &[String],
        ttl: Duration,
    ) -> Result<Arc<NotedWrite>, ClientError> {
        let id = self.runtime().random_u64();
        let ttl_ms = ttl.as_millis() as u64;
        let rows = objects.iter().map(|key| keys::fence(bucket, key)).collect();
        let noted = Arc::new(NotedWrite { fences: self.clone(), rows, id, ttl_ms });
        if let Err(error) = noted.renew_all().await {
            self.runtime().spawn(noted.end());
            return Err(error.into());
        }
        Ok(noted)
    }

    /// Changes a row, and draws a new epoch for it.
    async fn change(&self, key: &Bytes, change: impl Fn(&mut Fence)) -> Result<(), MetaError> {
        for attempt in 0..MAX_ATTEMPTS {
            let row = self.stripes.meta().get(key).await?;
            let mut fence: Fence = row.as_ref().map(Row::record).transpose()?.unwrap_or_default();
            change(&mut fence);
            fence.epoch = self.runtime().random_u64().max(1);
            let mut tx = self.stripes.transaction();
            tx.require_unchanged(key.clone(), row.as_ref()).put(key.clone(), encode(&fence));
            if let Commit::Done(_) = self.stripes.submit(&tx).await? {
                return Ok(());
            }
            self.runtime()
                .sleep(Duration::from_millis(self.runtime().random_u64() % (1 << attempt.min(6))))
                .await;
        }
        Err(MetaError::Unavailable("others write the same object all the time".to_owned()))
    }

    /// Removes rows that are no longer needed until the task is dropped.
    pub(crate) async fn sweep(self) {
        let mut first_seen: HashMap<Bytes, (Revision, Instant)> = HashMap::new();
        loop {
            self.runtime().sleep(SWEEP_EVERY).await;
            if let Err(error) = self.sweep_once(&mut first_seen).await {
                tracing::warn!(%error, "fences of objects elsewhere could not be looked through; will try again");
            }
        }
    }

    async fn sweep_once(
        &self,
        first_seen: &mut HashMap<Bytes, (Revision, Instant)>,
    ) -> Result<(), MetaError> {
        let mut pages = RowPages::new(ScanRange::prefix(keys::FENCES), PAGE);
        let (mut unchanged, now) = (HashMap::new(), self.runtime().now());
        while let Some(page) = pages.next(&**self.stripes.meta()).await? {
            for row in &page {
                let since = match first_seen.get(&row.key) {
                    Some((revision, since)) if *revision == row.version => *since,
                    _ => now,
                };
                let fence: Fence = row.record()?;
                if !self.sweep_row(row, fence, now - since).await? {
                    unchanged.insert(row.key.clone(), (row.version, since));
                }
            }
        }
        *first_seen = unchanged;
        Ok(())
    }

    /// Removes an old row that is no longer needed, or the notes of dead processes in it. Returns whether it changed
    /// the row.
    async fn sweep_row(&self, row: &Row, mut fence: Fence, unchanged: Duration) -> Result<bool, MetaError> {
        if unchanged <= MARGIN {
            return Ok(false);
        }
        let noted = fence.writes.len();
        let mut alive = Vec::with_capacity(noted);
        for write in fence.writes {
            if self.stripes.meta().is_alive(LeaseId(write.lease)).await? {
                alive.push(write);
            }
        }
        let mut tx = self.stripes.transaction();
        tx.require_unchanged(row.key.clone(), Some(row));
        if alive.is_empty() && unchanged > Duration::from_millis(fence.keep_ms) + MARGIN {
            tx.delete(row.key.clone());
        } else if alive.len() < noted {
            // What was learned before is void: the writes of dead processes may have happened.
            (fence.writes, fence.epoch) = (alive, self.runtime().random_u64().max(1));
            tx.put(row.key.clone(), encode(&fence));
        } else {
            return Ok(false);
        }
        self.stripes.submit(&tx).await?;
        Ok(true)
    }
}

impl NotedWrite {
    /// Notes the write in a row, or renews its note there.
    async fn renew(&self, row: &Bytes) -> Result<(), MetaError> {
        let write = FencedWrite { id: self.id, lease: self.fences.stripes.writer_lease().0 };
        let noting = |fence: &mut Fence| {
            fence.writes.retain(|write| write.id != self.id);
            fence.writes.push(write);
            fence.keep_ms = self.ttl_ms.max(fence.keep_ms);
        };
        self.fences.change(row, noting).await
    }

    /// Notes the write in all rows, or renews its notes there.
    async fn renew_all(&self) -> Result<(), MetaError> {
        for rows in self.rows.chunks(CHANGED_AT_ONCE) {
            let renewed = join_all(rows.iter().map(|row| self.renew(row))).await;
            renewed.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(())
    }

    /// Renews the notes as long as that succeeds. When it returns, the write must be given up.
    pub(crate) async fn keep(&self) {
        let runtime = self.fences.runtime();
        let renewing = async || {
            while let Err(error) = self.renew_all().await {
                tracing::warn!(%error, "the fence of a write cannot be renewed; will try again");
                runtime.sleep(RETRY_AFTER).await;
            }
        };
        loop {
            runtime.sleep(RENEW_EVERY).await;
            if runtime.timeout(RENEW_WITHIN, renewing()).await.is_err() {
                return;
            }
        }
    }

    /// As [`NotedWrite::end`] for a write whose outcome is unknown, once it has happened at the origin or never will.
    pub(crate) async fn end_unsettled(self: Arc<Self>) {
        self.fences.runtime().sleep(UNSETTLED).await;
        self.end().await;
    }

    /// Removes the notes of a write whose outcome is known. Retries until the metadata store accepts.
    pub(crate) async fn end(self: Arc<Self>) {
        for rows in self.rows.chunks(CHANGED_AT_ONCE) {
            join_all(rows.iter().map(|row| self.end_in(row))).await;
        }
    }

    /// Removes the note in a row.
    async fn end_in(&self, row: &Bytes) {
        let remove = |fence: &mut Fence| {
            fence.writes.retain(|write| write.id != self.id);
            // The row may have been swept and created again: it must stay as long as the first one.
            fence.keep_ms = self.ttl_ms.max(fence.keep_ms);
        };
        while let Err(error) = self.fences.change(row, remove).await {
            tracing::warn!(%error, "an object elsewhere stays fenced for a moment more");
            self.fences.runtime().sleep(RETRY_AFTER).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use striate_client::{Client, ClientOptions, CreateBucket};
    use striate_core::{Formats, FormatsInForce};
    use striate_meta::{MemoryStore, MetaStore};
    use striate_stripe::StripeOptions;

    use super::*;

    const LONG: Duration = Duration::from_secs(24 * 3_600);

    /// A gateway of its own, with a bucket.
    async fn fences(runtime: &Runtime, meta: &Arc<dyn MetaStore>) -> (Client, Fences) {
        let stripes =
            StripeOptions { formats: FormatsInForce::new(Formats::NEWEST), ..StripeOptions::default() };
        let options = ClientOptions { stripes, ..ClientOptions::default() };
        let client = Client::open(runtime.clone(), meta.clone(), Vec::new(), options).await.unwrap();
        let origin = Some(Origin::default());
        let bucket = CreateBucket { name: "ours".to_owned(), origin, ..CreateBucket::default() };
        let _ = client.create_bucket(bucket).await;
        let fences = Fences::new(client.stripes().clone());
        (client, fences)
    }

    fn world() -> (Runtime, Arc<dyn MetaStore>) {
        let runtime = Runtime::deterministic(1, Duration::from_secs(1_700_000_000));
        (runtime.clone(), Arc::new(MemoryStore::new(runtime)))
    }

    #[tokio::test(start_paused = true)]
    async fn the_note_of_a_writer_that_died_is_dropped_long_before_its_ttl_and_under_a_new_epoch() {
        let (runtime, meta) = world();
        let (_client, reader) = fences(&runtime, &meta).await;
        let (dead, writer) = fences(&runtime, &meta).await;
        let noted = writer.note("ours", &["k".to_owned()], LONG).await.unwrap();
        meta.revoke_lease(dead.stripes().writer_lease()).await.unwrap();
        // The note is not renewed any more.
        drop((noted, writer, dead));
        let before = reader.state_of("ours", "k").await.unwrap().1;
        assert!(before.is_written);
        let mut first_seen = HashMap::new();
        reader.sweep_once(&mut first_seen).await.unwrap();
        runtime.sleep(MARGIN).await;
        reader.sweep_once(&mut first_seen).await.unwrap();
        assert_eq!(reader.state_of("ours", "k").await.unwrap().1, before, "it may still happen");
        runtime.sleep(SWEEP_EVERY).await;
        reader.sweep_once(&mut first_seen).await.unwrap();
        let after = reader.state_of("ours", "k").await.unwrap().1;
        reader.sweep_once(&mut first_seen).await.unwrap();
        assert!(!after.is_written && after.epoch != before.epoch && after.epoch != 0, "{after:?}");
        runtime.sleep(LONG).await;
        reader.sweep_once(&mut first_seen).await.unwrap();
        assert_ne!(
            reader.state_of("ours", "k").await.unwrap().1.epoch,
            0,
            "what was learnt may still be used"
        );
        runtime.sleep(MARGIN + SWEEP_EVERY).await;
        reader.sweep_once(&mut first_seen).await.unwrap();
        assert_eq!(reader.state_of("ours", "k").await.unwrap().1, FenceState::default());
    }

    #[tokio::test(start_paused = true)]
    async fn the_note_of_a_write_that_lasts_stays_though_its_lease_has_ended() {
        let (runtime, meta) = world();
        let (_client, reader) = fences(&runtime, &meta).await;
        let (client, writer) = fences(&runtime, &meta).await;
        let noted = writer.note("ours", &["k".to_owned()], LONG).await.unwrap();
        runtime.spawn({
            let noted = noted.clone();
            async move { noted.keep().await }
        });
        meta.revoke_lease(client.stripes().writer_lease()).await.unwrap();
        let mut first_seen = HashMap::new();
        for _ in 0..20 {
            reader.sweep_once(&mut first_seen).await.unwrap();
            assert!(reader.state_of("ours", "k").await.unwrap().1.is_written);
            runtime.sleep(SWEEP_EVERY).await;
        }
        noted.end().await;
        assert!(!reader.state_of("ours", "k").await.unwrap().1.is_written);
    }
}
