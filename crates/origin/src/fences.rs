//! Fences: rows that make void what gateways know of an object, because it was written through one of them.
//!
//! A write draws a new epoch and notes itself before it is forwarded, and removes its note when its outcome is known. What a gateway
//! knows is used only if it was learnt under the row's epoch; while a write is noted nothing is used and nothing learnt. So a read that
//! begins after a write has ended never finds what was there before it, through whichever gateway.
//!
//! A row is needed as long as anything learnt before its last write may be used: the ttl. The sweep removes it when it has not changed for
//! longer, by the sweeper's own clock, and no process that noted a write is alive.

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
/// A row stays so much longer than the ttl: no question to an origin takes so long.
const MARGIN: Duration = Duration::from_secs(120);
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
        let write = FencedWrite { id, lease: self.stripes.writer_lease().0 };
        for key in objects {
            let row = keys::fence(bucket, key);
            noted.rows.push(row.clone());
            let noting = self.change(&row, |fence| {
                fence.writes.push(write);
                fence.keep_ms = ttl_ms.max(fence.keep_ms);
            });
            if let Err(error) = noting.await {
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
                let is_old = now - since > Duration::from_millis(fence.keep_ms) + MARGIN;
                if is_old && !self.is_any_alive(&fence).await? {
                    let mut tx = self.stripes.transaction();
                    tx.require_unchanged(row.key.clone(), Some(row)).delete(row.key.clone());
                    self.stripes.submit(&tx).await?;
                } else {
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

    async fn is_any_alive(&self, fence: &Fence) -> Result<bool, MetaError> {
        for write in &fence.writes {
            if self.stripes.meta().is_alive(LeaseId(write.lease)).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Noted {
    /// As [`Noted::end`], a while later.
    pub(crate) async fn end_after(self: Arc<Self>, wait: Duration) {
        self.fences.runtime().sleep(wait).await;
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
