//! Fences: rows that make void what gateways know of an object, because it was written through one of them.
//!
//! A write draws a new epoch and notes itself before it is forwarded, and removes its note when its outcome is known. What a gateway
//! knows is used only if it was learnt under the row's epoch; while a write is noted nothing is used and nothing learnt. So a read that
//! begins after a write has ended never finds what was there before it, through whichever gateway.
//!
//! A row is needed as long as anything learnt before its last write may be used: the ttl. The sweep removes it when it has not changed for
//! longer, by the sweeper's own clock, and no process that noted a write is alive.
//!
//! A process may die while it writes. The sweep drops its notes under a new epoch once its lease has ended and the row has not changed for
//! [`MARGIN`]. A process that lives renews its notes until the outcome of its write is known. One that cannot renew them gives the write up,
//! so early that the write has happened at the origin, or never will, before its note can be dropped:
//! [`RENEW_EVERY`] + [`RENEW_WITHIN`] + [`UNSETTLED`] < [`MARGIN`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use striate_client::ClientError;
use striate_meta::records::{Bucket, Fence, FencedWrite, Origin, encode};
use striate_meta::{Commit, LeaseId, MetaError, Revision, Row, ScanRange, keys};
use striate_runtime::{Instant, Runtime};
use striate_stripe::Stripes;

/// Attempts to change a row that others change too.
const MAX_ATTEMPTS: u32 = 64;
/// A row stays so much longer than the ttl, and the note of a process that is dead so long: no question to an origin takes so long.
const MARGIN: Duration = Duration::from_secs(120);
/// A write whose outcome is not known may still happen at the origin: so long nothing is learnt of its objects.
const UNSETTLED: Duration = Duration::from_secs(30);
/// Pause before the notes of a write that lasts are renewed.
const RENEW_EVERY: Duration = Duration::from_secs(30);
/// A write whose notes cannot be renewed within this time is given up.
const RENEW_WITHIN: Duration = Duration::from_secs(30);
const _: () =
    assert!(RENEW_EVERY.as_secs() + RENEW_WITHIN.as_secs() + UNSETTLED.as_secs() < MARGIN.as_secs());
/// Pause between two looks for rows that are not needed any more.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Pause before a note is tried to be removed again.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// Rows of one page.
const PAGE: usize = 1_000;

/// What a read must know before it uses anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Of the last write; 0 where there is none that matters.
    pub(crate) epoch: u64,
    pub(crate) is_written: bool,
}

/// Fences of all objects.
#[derive(Clone)]
pub(crate) struct Fences {
    stripes: Stripes,
}

/// Writes that are under way, and noted.
pub(crate) struct Noted {
    fences: Fences,
    rows: Vec<Bytes>,
    id: u64,
    /// What the origin's answers are good for, in milliseconds.
    ttl_ms: u64,
}

impl Fences {
    pub(crate) fn new(stripes: Stripes) -> Self {
        Self { stripes }
    }

    fn runtime(&self) -> &Runtime {
        self.stripes.runtime()
    }

    /// The origin that a bucket has now, if it has one, and how an object of it stands; both in one read.
    ///
    /// # Errors
    /// [`ClientError::NoSuchBucket`], or when the metadata store fails.
    pub(crate) async fn look(
        &self,
        bucket: &str,
        key: &str,
    ) -> Result<(Option<Origin>, Standing), ClientError> {
        let (origin, standings) = self.look_many(bucket, [key]).await?;
        Ok((origin, standings.into_iter().next().unwrap_or_default()))
    }

    /// As [`Fences::look`], of many objects in their order; all in one read.
    ///
    /// # Errors
    /// As [`Fences::look`].
    pub(crate) async fn look_many(
        &self,
        bucket: &str,
        objects: impl IntoIterator<Item = &str, IntoIter: Send>,
    ) -> Result<(Option<Origin>, Vec<Standing>), ClientError> {
        let fences = objects.into_iter().map(|key| keys::fence(bucket, key));
        let rows: Vec<Bytes> = std::iter::once(keys::bucket(bucket)).chain(fences).collect();
        let mut rows = self.stripes.meta().get_many(&rows).await?.into_iter();
        let of_bucket = rows.next().flatten().ok_or_else(|| ClientError::NoSuchBucket(bucket.to_owned()))?;
        let record: Bucket = of_bucket.record()?;
        let standing = |row: Option<Row>| {
            let fence: Fence = row.as_ref().map(Row::record).transpose()?.unwrap_or_default();
            Ok::<_, MetaError>(Standing { epoch: fence.epoch, is_written: !fence.writes.is_empty() })
        };
        Ok((record.origin, rows.map(standing).collect::<Result<_, _>>()?))
    }

    /// Notes a write of objects.
    ///
    /// # Errors
    /// When the metadata store fails; the notes made so far are removed.
    pub(crate) async fn note(
        &self,
        bucket: &str,
        objects: &[String],
        ttl: Duration,
    ) -> Result<Arc<Noted>, ClientError> {
        let id = self.runtime().random_u64();
        let ttl_ms = ttl.as_millis() as u64;
        let mut noted = Noted { fences: self.clone(), rows: Vec::new(), id, ttl_ms };
        for key in objects {
            let row = keys::fence(bucket, key);
            noted.rows.push(row.clone());
            if let Err(error) = noted.renew(&row).await {
                self.runtime().spawn(Arc::new(noted).end());
                return Err(error.into());
            }
        }
        Ok(Arc::new(noted))
    }

    /// Changes a row, and draws another epoch for it.
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

    /// Removes rows that are not needed any more, for ever.
    pub(crate) async fn sweep(self) {
        let mut seen: HashMap<Bytes, (Revision, Instant)> = HashMap::new();
        loop {
            self.runtime().sleep(SWEEP_EVERY).await;
            if let Err(error) = self.sweep_once(&mut seen).await {
                tracing::warn!(%error, "fences of objects elsewhere could not be looked through; will try again");
            }
        }
    }

    async fn sweep_once(&self, seen: &mut HashMap<Bytes, (Revision, Instant)>) -> Result<(), MetaError> {
        let mut range = ScanRange::prefix(keys::FENCES);
        let (mut still, now) = (HashMap::new(), self.runtime().now());
        loop {
            let page = self.stripes.meta().scan(range.clone(), PAGE).await?;
            let Some(last) = page.last() else { break };
            range.start = [&last.key[..], b"\0"].concat().into();
            for row in &page {
                let since = match seen.get(&row.key) {
                    Some((revision, since)) if *revision == row.version => *since,
                    _ => now,
                };
                let fence: Fence = row.record()?;
                if !self.sweep_row(row, fence, now - since).await? {
                    still.insert(row.key.clone(), (row.version, since));
                }
            }
            if page.len() < PAGE {
                break;
            }
        }
        *seen = still;
        Ok(())
    }

    /// Removes a row, or the notes in it, that are not needed any more, if it has not changed for long enough. Whether it did.
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
            // What was learnt before is void: the writes of the dead may have happened.
            (fence.writes, fence.epoch) = (alive, self.runtime().random_u64().max(1));
            tx.put(row.key.clone(), encode(&fence));
        } else {
            return Ok(false);
        }
        self.stripes.submit(&tx).await?;
        Ok(true)
    }
}

impl Noted {
    /// Notes the write in a row, once more if it is noted there.
    async fn renew(&self, row: &Bytes) -> Result<(), MetaError> {
        let write = FencedWrite { id: self.id, lease: self.fences.stripes.writer_lease().0 };
        let noting = |fence: &mut Fence| {
            fence.writes.retain(|write| write.id != self.id);
            fence.writes.push(write);
            fence.keep_ms = self.ttl_ms.max(fence.keep_ms);
        };
        self.fences.change(row, noting).await
    }

    /// Renews the notes for as long as that is possible. Afterwards the write must be given up.
    pub(crate) async fn keep(&self) {
        let runtime = self.fences.runtime();
        let renewing = async || {
            for row in &self.rows {
                while let Err(error) = self.renew(row).await {
                    tracing::warn!(%error, "the fence of a write cannot be renewed; will try again");
                    runtime.sleep(RETRY_AFTER).await;
                }
            }
        };
        loop {
            runtime.sleep(RENEW_EVERY).await;
            if runtime.timeout(RENEW_WITHIN, renewing()).await.is_err() {
                return;
            }
        }
    }

    /// As [`Noted::end`], when the write has happened at the origin or never will: its outcome is not known.
    pub(crate) async fn end_unsettled(self: Arc<Self>) {
        self.fences.runtime().sleep(UNSETTLED).await;
        self.end().await;
    }

    /// Removes the notes: the outcome of the writes is known. Tries until the metadata store has taken it.
    pub(crate) async fn end(self: Arc<Self>) {
        for row in &self.rows {
            let remove = |fence: &mut Fence| {
                fence.writes.retain(|write| write.id != self.id);
                // The row may have been swept and is another one: it must stay as long as the first.
                fence.keep_ms = self.ttl_ms.max(fence.keep_ms);
            };
            while let Err(error) = self.fences.change(row, remove).await {
                tracing::warn!(%error, "an object elsewhere stays fenced for a moment more");
                self.fences.runtime().sleep(RETRY_AFTER).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use striate_client::{Client, ClientOptions, CreateBucket};
    use striate_core::{Formats, InForce};
    use striate_meta::{MemoryStore, MetaStore};
    use striate_stripe::StripeOptions;

    use super::*;

    const LONG: Duration = Duration::from_secs(24 * 3_600);

    /// A gateway of its own, with a bucket.
    async fn fences(runtime: &Runtime, meta: &Arc<dyn MetaStore>) -> (Client, Fences) {
        let stripes = StripeOptions { formats: InForce::new(Formats::NEWEST), ..StripeOptions::default() };
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
        // Nobody renews the note.
        drop((noted, writer, dead));
        let before = reader.look("ours", "k").await.unwrap().1;
        assert!(before.is_written);
        let mut seen = HashMap::new();
        reader.sweep_once(&mut seen).await.unwrap();
        runtime.sleep(MARGIN).await;
        reader.sweep_once(&mut seen).await.unwrap();
        assert_eq!(reader.look("ours", "k").await.unwrap().1, before, "it may still happen");
        runtime.sleep(SWEEP_EVERY).await;
        reader.sweep_once(&mut seen).await.unwrap();
        let after = reader.look("ours", "k").await.unwrap().1;
        reader.sweep_once(&mut seen).await.unwrap();
        assert!(!after.is_written && after.epoch != before.epoch && after.epoch != 0, "{after:?}");
        runtime.sleep(LONG).await;
        reader.sweep_once(&mut seen).await.unwrap();
        assert_ne!(reader.look("ours", "k").await.unwrap().1.epoch, 0, "what was learnt may still be used");
        runtime.sleep(MARGIN + SWEEP_EVERY).await;
        reader.sweep_once(&mut seen).await.unwrap();
        assert_eq!(reader.look("ours", "k").await.unwrap().1, Standing::default());
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
        let mut seen = HashMap::new();
        for _ in 0..20 {
            reader.sweep_once(&mut seen).await.unwrap();
            assert!(reader.look("ours", "k").await.unwrap().1.is_written);
            runtime.sleep(SWEEP_EVERY).await;
        }
        noted.end().await;
        assert!(!reader.look("ours", "k").await.unwrap().1.is_written);
    }
}
