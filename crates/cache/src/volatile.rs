//! Blocks of volatile buckets, which are in memory only.
//!
//! No gateway could fill such a block again. So its writer chooses the sites, and the row that names the block lists
//! them: joining and leaving sites do not move it. It is read as any cached block is. Sites evict its splits as they
//! evict others; it survives the loss of as many splits as it has parities.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use striate_codec::crc32c;
use striate_core::{FencingEpoch, SiteId, StripeId, cached};
use striate_plan::MemorySite;
use striate_plan::cache::splits::{data_splits, places};
use striate_site::{DeleteRequest, Priority};
use striate_stripe::{Invalidation, MemoryBlock, SplitSites, StoredBytes, StripeError};

use crate::cache::Inner;

/// Returns a block whose row names its sites, and these places. Such a block has no home.
pub(crate) fn recorded(stored: &StoredBytes) -> Option<(&MemoryBlock, &SplitSites)> {
    match stored {
        StoredBytes::Memory(block) => Some((block, block.placed.as_ref()?)),
        StoredBytes::Block(_) | StoredBytes::Extent(_) => None,
    }
}

/// A block that is being written. Dropped before it is finished, because sites failed or its writer went away, it is
/// forgotten.
struct UnfinishedBlock<'a> {
    cache: &'a Arc<Inner>,
    block: Option<MemoryBlock>,
}

impl UnfinishedBlock<'_> {
    fn finish(mut self) {
        self.block = None;
    }
}

impl Drop for UnfinishedBlock<'_> {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.cache.forget(block, Invalidation::Abandoned);
        }
    }
}

fn too_few(available: usize, needed: usize, reason: &str) -> StripeError {
    StripeError::TooFewSites { available, needed, reason: reason.to_owned() }
}

impl Inner {
    /// Writes a block into memory. A site that does not take its split counts as having lost it.
    pub(crate) async fn keep(
        self: &Arc<Self>,
        bytes: Bytes,
        most_splits: usize,
        parities: usize,
    ) -> Result<MemoryBlock, StripeError> {
        let stripes = self.stripes.upgrade().ok_or_else(|| too_few(0, 1, "the service ends"))?;
        let live: Vec<MemorySite> = self.live(&stripes).answering().collect();
        if live.is_empty() {
            return Err(too_few(0, 1, "no memory site answers"));
        }
        // Each parity has a site of its own, so that as many sites may be lost.
        let parities = parities.min(live.len() - 1);
        let splits = data_splits(bytes.len() as u64, self.split_bytes, live.len())
            .min(most_splits)
            .min(live.len() - parities)
            .max(1);
        let content = self.runtime.random_u128();
        // Sites evict the parities of cached blocks before their data. Here only the parities survive a loss, so all
        // splits count as data.
        let (name, len) = (cached::name(content, splits + parities), bytes.len() as u32);
        let all = self.split_and_encode(std::slice::from_ref(&bytes), len, (splits, parities))?;
        let mut sites = places(name, &live, splits + parities);
        let placed = Some(SplitSites { splits, sites: sites.clone() });
        let block = MemoryBlock { content: name.0, len, crc32c: Some(crc32c(&bytes)), placed };
        let unfinished = UnfinishedBlock { cache: self, block: Some(block.clone()) };
        let written = self.write_splits(name, 0, all, &sites, Priority::Foreground).await;
        let written_count = written.iter().filter(|written| written.is_ok()).count();
        if written_count < splits {
            let reason = written.into_iter().find_map(Result::err).map(|error| error.to_string());
            return Err(too_few(written_count, splits, &reason.unwrap_or_default()));
        }
        for (site, _) in sites.iter_mut().zip(&written).filter(|(_, written)| written.is_err()) {
            *site = SiteId(0);
        }
        unfinished.finish();
        Ok(MemoryBlock { placed: Some(SplitSites { splits, sites }), ..block })
    }

    /// Deletes a block that no row names any more from memory after the grace of durable chunks, since reads that have
    /// begun may need it. A split that cannot be deleted is evicted in time.
    pub(crate) fn forget(self: &Arc<Self>, block: MemoryBlock, cause: Invalidation) {
        let counted = match cause {
            Invalidation::Deleted => Some(&self.counts.deleted),
            Invalidation::Overwritten => Some(&self.counts.overwritten),
            // No object has named it, or it was counted when its object went.
            Invalidation::Abandoned => None,
        };
        if let Some(counted) = counted {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        let Some(stripes) = self.stripes.upgrade() else { return };
        let (inner, name, grace) =
            (Arc::clone(self), StripeId(block.content), stripes.options().garbage_grace);
        self.runtime.spawn(async move {
            inner.runtime.sleep(grace).await;
            let sites = block.placed.map(|placed| placed.sites).unwrap_or_default();
            for (index, site) in sites.into_iter().enumerate() {
                let Some(site) = inner.site(site) else { continue };
                let chunk = cached::chunk(name, index);
                let request = DeleteRequest { chunks: vec![chunk], epoch: FencingEpoch::NONE };
                if let Err(error) = site.delete(request).await {
                    tracing::debug!(%chunk, %error, "a split that nothing names stays until it is evicted");
                }
            }
        });
    }
}
