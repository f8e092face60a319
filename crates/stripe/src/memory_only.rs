//! When an object that is in memory only is gone for certain.
//!
//! Its row says where the splits of its blocks are. One is lost where its site says so, or has left the cluster. Of a site that is a member
//! and does not answer nobody knows; it may come back with all that it had. An object is gone when too few splits of one of its blocks can
//! be left. Then its row is worth nothing, and whoever finds that out removes it.

use std::collections::BTreeSet;

use striate_core::SiteId;
use striate_meta::records::{AbandonedParts, MemoryBlock, Object, encode, object::Body};
use striate_meta::{MetaError, Row, Transaction, keys};

use crate::{StripeError, Stripes, id16};

/// The number of a memory site in the process of its gateway, which nobody else sees and no row names.
pub const OWN_MEMORY: SiteId = SiteId(u32::MAX);

impl Stripes {
    /// The sites that blocks name and that have left the cluster.
    ///
    /// # Errors
    /// When the metadata store fails: then nobody knows.
    pub async fn memory_sites_that_left(
        &self,
        blocks: &[MemoryBlock],
    ) -> Result<BTreeSet<SiteId>, MetaError> {
        let named = blocks.iter().flat_map(|block| &block.sites).map(|site| SiteId(*site));
        let mut named: BTreeSet<SiteId> = named.filter(|site| *site != SiteId(0)).collect();
        let mut left = BTreeSet::new();
        // It ends with its process.
        if named.remove(&OWN_MEMORY) && !self.memory_sites().iter().any(|site| site.id() == OWN_MEMORY) {
            left.insert(OWN_MEMORY);
        }
        let rows: Vec<_> = named.iter().map(|site| keys::memory_site(*site)).collect();
        let rows = self.meta().get_many(&rows).await?;
        left.extend(named.into_iter().zip(rows).filter(|(_, row)| row.is_none()).map(|(site, _)| site));
        Ok(left)
    }
}

/// Whether too few splits of a block are left, where those are lost of which `is_lost` says so, by their numbers and sites, and those
/// that no site has taken.
pub fn is_gone_from_memory(block: &MemoryBlock, is_lost: impl Fn(usize, SiteId) -> bool) -> bool {
    let sites = block.sites.iter().map(|site| SiteId(*site)).enumerate();
    let left = sites.filter(|&(index, site)| site != SiteId(0) && !is_lost(index, site)).count();
    left < block.splits as usize
}

/// Adds to `tx` that the row of an object that is gone from memory goes, if it is as it was; and the parts of which it is made.
///
/// # Errors
/// When the record's ids are none.
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
