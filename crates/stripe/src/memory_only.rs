//! Decides when an object that is in memory only is certainly gone.
//!
//! Its row says where the splits of its blocks are. A split is lost if its site says so, or has left the
//! cluster. A member site that does not answer may come back with its contents, so its splits are not known to
//! be lost. An object is gone when too few splits of one of its blocks can be left. Its row is then worthless,
//! and the process that finds out removes it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use striate_core::{ChunkId, SiteId, StripeId, cached};
use striate_meta::records::{
    AbandonedParts, MemoryBlock, Object, UploadPart, encode, object::Body, upload_part,
};
use striate_meta::{MetaError, Row, RowPages, ScanRange, Transaction, keys};
use striate_site::Site;

use crate::{StripeError, Stripes, id16};

/// Number of part rows read together.
const PARTS_PAGE: usize = 500;

/// Number of the memory site inside a gateway's process. No other process sees it and no row names it.
pub const OWN_MEMORY: SiteId = SiteId(u32::MAX);

impl Stripes {
    /// Returns the sites that `blocks` name and that have left the cluster.
    ///
    /// # Errors
    /// When the metadata store fails; the answer is then unknown.
    pub async fn memory_sites_that_left(
        &self,
        blocks: &[MemoryBlock],
    ) -> Result<BTreeSet<SiteId>, MetaError> {
        let sites = blocks.iter().flat_map(|block| &block.sites).map(|site| SiteId(*site));
        self.sites_that_left(sites.filter(|site| *site != SiteId(0)).collect()).await
    }

    /// Returns those of the sites that have left the cluster.
    async fn sites_that_left(&self, mut sites: BTreeSet<SiteId>) -> Result<BTreeSet<SiteId>, MetaError> {
        let mut departed = BTreeSet::new();
        // This site ends with its process.
        if sites.remove(&OWN_MEMORY) && !self.memory_sites().iter().any(|site| site.id() == OWN_MEMORY) {
            departed.insert(OWN_MEMORY);
        }
        if sites.is_empty() {
            return Ok(departed);
        }
        let rows: Vec<_> = sites.iter().map(|site| keys::memory_site(*site)).collect();
        let rows = self.meta().get_many(&rows).await?;
        departed.extend(sites.into_iter().zip(rows).filter(|(_, row)| row.is_none()).map(|(site, _)| site));
        Ok(departed)
    }

    /// Returns the blocks of an object that is in memory only, including those of its parts.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn blocks_in_memory(&self, object: &Object) -> Result<Vec<MemoryBlock>, StripeError> {
        let uploaded = match &object.body {
            Some(Body::Memory(list)) => return Ok(list.blocks.clone()),
            Some(Body::Uploaded(uploaded)) => uploaded,
            _ => return Ok(Vec::new()),
        };
        let mut blocks = Vec::new();
        let parts = ScanRange::prefix(&keys::parts(&id16(&uploaded.upload, "an upload")?));
        let mut pages = RowPages::new(parts, PARTS_PAGE);
        while let Some(page) = pages.next(&**self.meta()).await? {
            for row in &page {
                if let Some(upload_part::Body::Memory(list)) = row.record::<UploadPart>()?.body {
                    blocks.extend(list.blocks);
                }
            }
        }
        Ok(blocks)
    }

    /// For each list of blocks, returns whether any of them is gone from memory. Each site is asked once, for
    /// all splits that it should have. A site that does not answer `within` this time may have them, unless it
    /// has left the cluster. Nothing is read or counted as a read, so the question keeps nothing in memory.
    ///
    /// # Errors
    /// When the metadata store fails, and for blocks with malformed names.
    pub async fn are_gone_from_memory(
        &self,
        lists: &[Vec<MemoryBlock>],
        within: Duration,
    ) -> Result<Vec<bool>, StripeError> {
        let mut splits: BTreeMap<SiteId, Vec<ChunkId>> = BTreeMap::new();
        for block in lists.iter().flatten() {
            let name = name_of(block)?;
            for (index, site) in block.sites.iter().enumerate().filter(|(_, site)| **site != 0) {
                splits.entry(SiteId(*site)).or_default().push(cached::chunk(name, index));
            }
        }
        let memory_sites = self.memory_sites();
        let ask = |(site, splits): (SiteId, Vec<ChunkId>)| {
            let memory_site = memory_sites.iter().find(|known| known.id() == site).map(Arc::clone);
            async move { (site, self.missing_of(memory_site, splits, within).await) }
        };
        let (mut lost, mut silent) = (HashSet::new(), BTreeSet::new());
        for (site, missing) in join_all(splits.into_iter().map(ask)).await {
            match missing {
                Some(missing) => lost.extend(missing),
                None => drop(silent.insert(site)),
            }
        }
        let departed = self.sites_that_left(silent).await?;
        let is_gone = |block: &MemoryBlock| -> Result<bool, StripeError> {
            let name = name_of(block)?;
            let is_lost =
                |index, site| departed.contains(&site) || lost.contains(&cached::chunk(name, index));
            Ok(is_gone_from_memory(block, is_lost))
        };
        let is_any_gone = |blocks: &Vec<MemoryBlock>| -> Result<bool, StripeError> {
            blocks.iter().map(is_gone).try_fold(false, |any, gone| Ok(any || gone?))
        };
        lists.iter().map(is_any_gone).collect()
    }

    /// Returns the splits that a site reports missing; `None` if it does not answer in time.
    async fn missing_of(
        &self,
        site: Option<Arc<dyn Site>>,
        splits: Vec<ChunkId>,
        within: Duration,
    ) -> Option<Vec<ChunkId>> {
        let has = self.runtime().timeout(within, site?.has(splits.clone())).await.ok()?.ok()?;
        Some(splits.into_iter().zip(has).filter(|(_, has)| !has).map(|(split, _)| split).collect())
    }
}

fn name_of(block: &MemoryBlock) -> Result<StripeId, StripeError> {
    Ok(StripeId(u128::from_be_bytes(id16(&block.content, "a block in memory")?)))
}

/// Whether too few splits of a block are left. A split is lost if no site took it, or if `is_lost` says so of
/// its number and site.
pub fn is_gone_from_memory(block: &MemoryBlock, is_lost: impl Fn(usize, SiteId) -> bool) -> bool {
    let sites = block.sites.iter().map(|site| SiteId(*site)).enumerate();
    let left = sites.filter(|&(index, site)| site != SiteId(0) && !is_lost(index, site)).count();
    left < block.splits as usize
}

/// Adds to `tx` the removal of an object that is gone from memory, with its parts, if its row is unchanged.
///
/// # Errors
/// [`StripeError::Inconsistent`] for a malformed id in the record.
pub fn remove_gone_from_memory(tx: &mut Transaction, row: &Row, object: &Object) -> Result<(), StripeError> {
    tx.require_unchanged(row.key.clone(), Some(row)).delete(row.key.clone());
    if let Some(Body::Uploaded(uploaded)) = &object.body {
        let upload = id16(&uploaded.upload, "an upload")?;
        let parts = AbandonedParts { upload: uploaded.upload.clone(), numbers: Vec::new() };
        tx.put(keys::abandoned(&upload, tx.id.0), encode(&parts));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_gone_when_fewer_splits_are_left_than_determine_it() {
        let block = MemoryBlock { splits: 2, sites: vec![1, 2, 3, 0], ..MemoryBlock::default() };
        let lost = |lost: &'static [u32]| move |_, site: SiteId| lost.contains(&site.0);
        assert!(!is_gone_from_memory(&block, lost(&[])));
        assert!(!is_gone_from_memory(&block, lost(&[3])));
        assert!(is_gone_from_memory(&block, lost(&[1, 3])));
        assert!(is_gone_from_memory(&block, |index, _| index < 2));
    }
}
