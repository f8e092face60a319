//! Compares the chunks of a site that came back with what the metadata names there.
//!
//! A site that was away may have lost chunks, and while it was away nobody asked. So every stripe that names a chunk on
//! it is looked up in its listing, which is in memory: nothing is read from the disk, that is the scrub's work. A stripe
//! whose chunk is not there is put in debt, unless its record has changed meanwhile. Chunks that the metadata does not
//! name any more are left to the collectors.
//!
//! Cost: the rows of the site's sets and their stripes, once.

use striate_core::SiteId;
use striate_meta::records::Stripe;
use striate_meta::{Row, keys};
use striate_site::{Site, SiteError};
use striate_stripe::{StripeError, Stripes, file_of, has_place, own_locations};

use super::verify::put_in_debt;
use crate::rows::Rows;

/// Stripe rows read together.
const BATCH: usize = 64;

/// Result of comparing a site's chunks with the metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteComparison {
    /// Chunks that the metadata names on the site.
    pub chunks: u64,
    /// Those that it does not have. Their stripes are in debt.
    pub missing: u64,
}

/// Compares the chunks of `site` with the metadata, and puts the stripes in debt that lack one there.
///
/// # Errors
/// When the metadata store fails, or the site is unknown or does not list its chunks.
pub async fn compare_site(stripes: &Stripes, site: SiteId) -> Result<SiteComparison, StripeError> {
    let unknown = || StripeError::from(SiteError::Unavailable(format!("site {site} is not here")));
    let handle = stripes.site(site).ok_or_else(unknown)?;
    let mut found = SiteComparison::default();
    let mut sets = Rows::with_prefix(&keys::placements(site));
    while let Some(page) = sets.next(stripes).await? {
        for number in page.iter().filter_map(|row| keys::placement_number(&row.key)) {
            let mut reverses = Rows::with_prefix(&keys::reverses(number));
            while let Some(page) = reverses.next(stripes).await? {
                let ids: Vec<_> = page.iter().filter_map(|row| keys::reverse_stripe(&row.key)).collect();
                for batch in ids.chunks(BATCH) {
                    let names: Vec<_> = batch.iter().copied().map(keys::stripe).collect();
                    for row in stripes.meta().get_many(&names).await?.into_iter().flatten() {
                        found.compare(stripes, &*handle, &row).await?;
                    }
                }
            }
        }
    }
    Ok(found)
}

impl SiteComparison {
    /// Compares one stripe.
    async fn compare(&mut self, stripes: &Stripes, site: &dyn Site, row: &Row) -> Result<(), StripeError> {
        let Some(id) = keys::stripe_of(&row.key) else { return Ok(()) };
        let record: Stripe = row.record()?;
        // The scrub reports a record that this program does not understand.
        let Ok(code) = stripes.code_of(&record) else { return Ok(()) };
        let mut is_missing = false;
        for (index, location) in own_locations(&record) {
            if location.site != site.id().0 || !has_place(&record, code.k(), index) {
                continue;
            }
            let chunk = file_of(id, &record, index);
            let listed = site.list(Some(chunk), 1).await?.chunks;
            let is_there =
                listed.first().is_some_and(|info| info.chunk == chunk && info.crc32c == location.crc32c);
            self.chunks += 1;
            self.missing += u64::from(!is_there);
            is_missing |= !is_there;
        }
        if is_missing {
            // Not if the record has changed: the chunk may have moved away.
            put_in_debt(stripes, row, id).await?;
        }
        Ok(())
    }
}
