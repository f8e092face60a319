//! More parities for popular blocks.
//!
//! From time to time a gateway reports to the home of a block how often the block was read, and the home replies with
//! the number of parities that it should have. A gateway that knows of fewer parities writes the missing ones: one of its
//! readers does, if there is memory for it. If it has read only a part, it reads the rest first. If it fails, the home
//! asks for the parities again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use striate_codec::ChunkSet;
use striate_plan::cache::splits::places;
use striate_site::{CachedBlockState, Priority, TendEvent};
use striate_stripe::StoredBytes;

use crate::cache::Inner;
use crate::homes::HomeQuery;
use crate::known_blocks::{FollowUp, Sites, code};
use crate::miss_reasons::MissReason;
use crate::refill::RefillOutcome;
use crate::splits::{cut, encode};

impl Inner {
    /// Reports reads to a block's home, and gives the block as many parities as the home asks for.
    pub(crate) async fn follow(
        self: &Arc<Self>,
        question: HomeQuery,
        stored: StoredBytes,
        due: FollowUp,
        whole: Option<Vec<Bytes>>,
        live: &Sites,
    ) {
        if let Some(reads) = due.tell {
            let tended = self.tell(&question, question.tend(reads, TendEvent::Look)).await;
            match tended {
                Some(tended) if tended.standing == CachedBlockState::Granted => {
                    return self.refill_first_split(question, tended.grant, stored, whole, live).await;
                }
                Some(tended) => {
                    let wanted_parities = question.parities_within(tended.wanted_parities.into(), live);
                    self.known_blocks.set_wanted_parities(question.name, wanted_parities);
                }
                None => {}
            }
        }
        if let Some(change) = self.known_blocks.take_change(question.name) {
            self.change_parities(&question, stored, whole, change, live).await;
        }
    }

    /// Refills the first split, which the home has lost. The others may be there; if not, the next read fills the block
    /// again.
    async fn refill_first_split(
        self: &Arc<Self>,
        question: HomeQuery,
        grant: u64,
        stored: StoredBytes,
        whole: Option<Vec<Bytes>>,
        live: &Sites,
    ) {
        self.tell(&question, question.of_grant(grant, TendEvent::GaveUp)).await;
        if self.refill(question, stored, whole, ChunkSet::first(1), live).await == RefillOutcome::NoRoom {
            self.known_blocks.forget(question.name);
            self.miss_reasons.note(question.name, MissReason::Gone);
        }
    }

    /// Changes the number of parities of a block. Adding parities needs the bytes of the block.
    async fn change_parities(
        &self,
        question: &HomeQuery,
        stored: StoredBytes,
        whole: Option<Vec<Bytes>>,
        (from, to): (usize, usize),
        live: &Sites,
    ) {
        let written = if to > from {
            self.add_parities(question, stored, whole, (from, to), live).await.unwrap_or(from)
        } else {
            // Readers ignore the surplus parities, and sites evict them in time.
            to
        };
        if written == from {
            return;
        }
        let (name, now) = (question.name, self.runtime.now());
        if self.known_blocks.add(name, question.split_len(), (written, written), live, now).is_ok() {
            let parities = written as u8;
            self.tell(question, question.tend(0, TendEvent::Filled { parities })).await;
        }
    }

    /// Writes the parities `from` to `to` of a block, if there is memory for it and the block can be read. Returns how many
    /// the block then has, or none if nothing was written.
    async fn add_parities(
        &self,
        question: &HomeQuery,
        stored: StoredBytes,
        whole: Option<Vec<Bytes>>,
        (from, to): (usize, usize),
        live: &Sites,
    ) -> Option<usize> {
        let _on_the_way = self.on_the_way.try_acquire_many(self.kib_of_fill(question, to)).ok()?;
        let pieces = self.whole_block(whole, stored).await?;
        let (name, splits) = (question.name, question.splits());
        let target_code = self.known_blocks.code(code(splits, to)).ok()?;
        let data = cut(&pieces, question.len, splits);
        let parities = encode(&target_code, &data, from, self.runtime.buffers()).ok()?;
        let places = places(name, &live.sites, splits + to);
        let written = self.write_splits(name, splits + from, parities, &places, Priority::Background).await;
        let written_count = written.iter().take_while(|written| written.is_ok()).count();
        self.counts.parities.fetch_add(written_count as u64, Ordering::Relaxed);
        Some(from + written_count)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use striate_core::{ClusterId, RackId, SiteId};
    use striate_meta::MemoryStore as MemoryMeta;
    use striate_runtime::Runtime;
    use striate_site::{LocalSite, MemoryStore, QueueLimits, Site, SiteIdentity};
    use striate_stripe::{MemoryBlock, StripeOptions, Stripes};

    use super::*;
    use crate::{Cache, CacheSettings};

    async fn stripes(runtime: &Runtime) -> Stripes {
        let meta = Arc::new(MemoryMeta::new(runtime.clone()));
        Stripes::open(runtime.clone(), meta, Vec::new(), StripeOptions::default()).await.unwrap()
    }

    fn site(number: u32, runtime: &Runtime) -> Arc<dyn Site> {
        let rack = RackId(format!("rack-{number}"));
        let identity = SiteIdentity { cluster: ClusterId(1), site: SiteId(number), rack };
        let store = Arc::new(MemoryStore::default());
        Arc::new(LocalSite::new(runtime.clone(), identity, store, QueueLimits::default()))
    }

    #[tokio::test(start_paused = true)]
    async fn parities_are_added_when_there_is_memory_for_them() {
        let runtime = Runtime::deterministic(1, Duration::ZERO);
        let stripes = stripes(&runtime).await;
        let cache = Cache::new(&stripes, CacheSettings::default());
        cache.set_sites((101..109).map(|number| (site(number, &runtime), 1 << 30)).collect());
        let (inner, live) = (&cache.inner, cache.inner.live(&stripes));
        let block = MemoryBlock { content: 7 << 64, len: 4 << 20, crc32c: None, placed: None };
        let stored = StoredBytes::Memory(block);
        let question = inner.question(&stored, &live).unwrap();
        let name = question.name;
        inner.known_blocks.add(name, question.split_len(), (1, 4), &live, runtime.now()).unwrap();
        let whole = Bytes::from(vec![7; 4 << 20]);
        let follow = async || {
            let (stored, whole) = (stored.clone(), Some(vec![whole.clone()]));
            inner.follow(question, stored, FollowUp::default(), whole, &live).await;
            inner.known_blocks.parities(name)
        };

        let fills = inner.on_the_way.acquire_many(inner.kib_on_the_way).await.unwrap();
        assert_eq!(follow().await, Some(1), "others take all of the memory");
        drop(fills);
        assert_eq!(follow().await, Some(1), "the home has not asked again");
        inner.known_blocks.set_wanted_parities(name, 4);
        assert_eq!(follow().await, Some(4));
        assert_eq!(inner.counts.parities.load(Ordering::Relaxed), 3);
        assert_eq!(inner.on_the_way.available_permits(), inner.kib_on_the_way as usize);
    }
}
