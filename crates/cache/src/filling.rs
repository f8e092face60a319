//! Fills of the tier by this process.
//!
//! A reader that is granted a fill first hands the bytes to its caller, and then writes them to the tier in the
//! background. Blocks that are being filled take a bounded amount of memory. A fill for which there is no room is given
//! up.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use striate_core::StripeId;
use striate_meta::records::Block;
use striate_plan::cache::splits::places;
use striate_runtime::Instant;
use striate_site::{CachedBlockState, Priority, SiteError, TendEvent};
use striate_stripe::{Span, StoredBytes};
use tokio::sync::watch;

use crate::cache::Inner;
use crate::homes::HomeQuery;
use crate::known_blocks::{NameHasher, Sites};
use crate::miss_reasons::MissReason;

/// Time after which a fill that never began is forgotten, and after which readers no longer wait for one that was not
/// renewed.
const FORGET_FILL: Duration = Duration::from_secs(10);

/// Blocks that this process is to fill, by name.
pub(crate) type PendingFills = HashMap<StripeId, Fill, BuildHasherDefault<NameHasher>>;

/// A block that this process is to fill.
pub(crate) struct Fill {
    /// When it was granted or last renewed.
    since: Instant,
    has_begun: bool,
    parities: usize,
    /// Number of the grant at the home.
    grant: u64,
    /// Dropped when the block is filled or the fill is given up.
    _done: watch::Sender<()>,
    ended: watch::Receiver<()>,
}

/// A granted fill, held by the task that asked for it. Dropped before the fill has begun, it returns the grant.
/// Otherwise every reader of the block would wait for a fill that never comes, until the grant expires.
pub(crate) struct FillGrant {
    cache: Arc<Inner>,
    question: HomeQuery,
    grant: u64,
}

impl Drop for FillGrant {
    fn drop(&mut self) {
        let name = self.question.name;
        let is_own = |fill: &Fill| fill.grant == self.grant && !fill.has_begun;
        let given_up = {
            let mut filling = self.cache.filling.lock();
            if filling.get(&name).is_some_and(is_own) { filling.remove(&name) } else { None }
        };
        if given_up.is_some() {
            let (question, grant) = (self.question, self.grant);
            self.cache.counts.given_up.fetch_add(1, Ordering::Relaxed);
            self.cache.spawn(|cache| async move {
                cache.tell(&question, question.of_grant(grant, TendEvent::GaveUp)).await;
            });
        }
    }
}

impl Inner {
    /// Records that this process will fill a block with `parities` parities, under the home's grant of this number.
    pub(crate) fn expect_fill(
        self: &Arc<Self>,
        question: &HomeQuery,
        parities: usize,
        grant: u64,
    ) -> FillGrant {
        let now = self.runtime.now();
        let mut filling = self.filling.lock();
        filling.retain(|_, fill| fill.has_begun || now - fill.since < FORGET_FILL);
        let (done, ended) = watch::channel(());
        let fill = Fill { since: now, has_begun: false, parities, grant, _done: done, ended };
        filling.insert(question.name, fill);
        FillGrant { cache: Arc::clone(self), question: *question, grant }
    }

    /// If this process is filling a block or about to, returns a receiver that closes when the fill ends.
    pub(crate) fn ended(&self, name: StripeId) -> Option<watch::Receiver<()>> {
        let filling = self.filling.lock();
        let fill = filling.get(&name).filter(|fill| self.runtime.now() - fill.since < FORGET_FILL);
        fill.map(|fill| fill.ended.clone())
    }

    /// Begins a granted fill and returns its number of parities; `None` if there is none or it has begun.
    pub(crate) fn begin_fill(&self, name: StripeId) -> Option<usize> {
        let mut filling = self.filling.lock();
        let fill = filling.get_mut(&name).filter(|fill| !fill.has_begun)?;
        fill.has_begun = true;
        Some(fill.parities)
    }

    /// Renews the grant of a fill that makes progress. A home that has forgotten the grant makes a new one.
    pub(crate) async fn renew_grant(&self, question: HomeQuery) {
        let grant = match self.filling.lock().get_mut(&question.name) {
            Some(fill) => {
                fill.since = self.runtime.now();
                fill.grant
            }
            None => return,
        };
        let tended = self.tell(&question, question.of_grant(grant, TendEvent::Look)).await;
        let Some(new) = tended.filter(|tended| tended.standing == CachedBlockState::Granted) else {
            return;
        };
        let is_going_on = match self.filling.lock().get_mut(&question.name) {
            Some(fill) if fill.grant == grant => {
                fill.grant = new.grant;
                true
            }
            _ => false,
        };
        if !is_going_on {
            self.tell(&question, question.of_grant(new.grant, TendEvent::GaveUp)).await;
        }
    }

    /// Fills the tier with a block that was just written, if writes are cached.
    pub(crate) fn written(self: &Arc<Self>, block: &Block, bytes: &Bytes) {
        let Some(stripes) = self.fills_writes.then(|| self.stripes.upgrade()).flatten() else { return };
        let (stored, live) = (StoredBytes::from(block.clone()), self.live(&stripes));
        if let Some(question) = self.question(&stored, &live) {
            let (whole, matter) = (Some(vec![bytes.clone()]), TendEvent::Look);
            self.spawn(
                |inner| async move { inner.fill_if_granted(question, stored, whole, matter, &live).await },
            );
        }
    }

    /// Fills a block that is absent or lacks splits, unless another process is filling it.
    pub(crate) async fn fill_if_granted(
        self: &Arc<Self>,
        question: HomeQuery,
        stored: StoredBytes,
        whole: Option<Vec<Bytes>>,
        matter: TendEvent,
        live: &Sites,
    ) {
        if let Some(parities) = self.begin_if_granted(&question, matter, live).await {
            self.fill(question, stored, whole, parities, live).await;
        }
    }

    /// Begins the fill of a block if its home grants it to this process. Returns its number of parities.
    pub(crate) async fn begin_if_granted(
        self: &Arc<Self>,
        question: &HomeQuery,
        matter: TendEvent,
        live: &Sites,
    ) -> Option<usize> {
        let tended = self.tell(question, question.tend(0, matter)).await?;
        if tended.standing != CachedBlockState::Granted {
            return None;
        }
        let _expected = self.learn(question, tended, live);
        self.begin_fill(question.name)
    }

    /// Splits, encodes and writes a block. Reads it first if `whole` is `None`.
    pub(crate) async fn fill(
        &self,
        question: HomeQuery,
        stored: StoredBytes,
        whole: Option<Vec<Bytes>>,
        parities: usize,
        live: &Sites,
    ) {
        let filled = self.read_and_write(&question, stored, whole, parities, live).await;
        self.end_fill(question, filled, live).await;
    }

    /// Ends a fill, and reports it to the block's home: the number of parities written, or failure.
    pub(crate) async fn end_fill(
        &self,
        question: HomeQuery,
        filled: Result<usize, MissReason>,
        live: &Sites,
    ) {
        let (name, counts) = (question.name, &self.counts);
        let matter = match filled {
            Ok(parities) => {
                counts.fills.fetch_add(1, Ordering::Relaxed);
                counts.filled_bytes.fetch_add(question.len.into(), Ordering::Relaxed);
                self.miss_reasons.forget(name);
                let now = self.runtime.now();
                let _ = self.known_blocks.add(name, question.split_len(), (parities, parities), live, now);
                TendEvent::Filled { parities: parities as u8 }
            }
            Err(reason) => {
                self.miss_reasons.note(name, reason);
                counts.given_up.fetch_add(1, Ordering::Relaxed);
                TendEvent::GaveUp
            }
        };
        self.end_grant(question, matter).await;
    }

    /// Ends the grant of a fill at the block's home.
    pub(crate) async fn end_grant(&self, question: HomeQuery, matter: TendEvent) {
        let grant = self.filling.lock().remove(&question.name).map_or(0, |fill| fill.grant);
        self.tell(&question, question.of_grant(grant, matter)).await;
    }

    /// Memory that a fill takes, in KiB: the bytes as they were read, and the splits. A fill larger than the whole
    /// budget takes all of it and runs alone.
    pub(crate) fn kib_of_fill(&self, question: &HomeQuery, parities: usize) -> u32 {
        let chunks = (question.splits() + parities) as u64;
        let bytes = u64::from(question.len) + u64::from(question.split_len()) * chunks;
        bytes.div_ceil(1 << 10).min(self.kib_on_the_way.into()) as u32
    }

    /// Reads a block if need be, writes it, and returns the number of parities that were stored.
    ///
    /// # Errors
    /// The reason why its data is not in memory.
    async fn read_and_write(
        &self,
        question: &HomeQuery,
        stored: StoredBytes,
        whole: Option<Vec<Bytes>>,
        parities: usize,
        live: &Sites,
    ) -> Result<usize, MissReason> {
        let kib = self.kib_of_fill(question, parities);
        let _on_the_way = self.on_the_way.try_acquire_many(kib).map_err(|_| MissReason::TooMuchOnTheWay)?;
        let read;
        let pieces = match &whole {
            Some(pieces) => pieces,
            None => {
                let stripes = self.stripes.upgrade().ok_or(MissReason::NotRead)?.past_cache();
                read = stripes.read_spans(&[Span::whole(stored)]).await.map_err(|_| MissReason::NotRead)?;
                &read.blocks[0]
            }
        };
        self.write_block(question, pieces, parities, live).await
    }

    /// Writes a block and returns the number of parities that were stored.
    ///
    /// # Errors
    /// The reason why its data is not in memory.
    pub(crate) async fn write_block(
        &self,
        question: &HomeQuery,
        pieces: &[Bytes],
        parities: usize,
        live: &Sites,
    ) -> Result<usize, MissReason> {
        let splits = question.splits();
        let all = self.split_and_encode(pieces, question.len, (splits, parities));
        let all = all.map_err(|_| MissReason::NotRead)?;
        let places = places(question.name, &live.sites, splits + parities);
        let written = self.write_splits(question.name, 0, all, &places, Priority::Background).await;
        let (data, parities) = written.split_at(splits);
        match data.iter().zip(&places).find_map(|(written, site)| Some((written.as_ref().err()?, site))) {
            Some((SiteError::NoSpace, site)) => Err(MissReason::NoRoom(*site)),
            Some((_, site)) => Err(MissReason::NotWritten(*site)),
            None => Ok(parities.iter().take_while(|written| written.is_ok()).count()),
        }
    }
}
