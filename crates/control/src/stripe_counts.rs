//! Counts what the metadata names on a site: chunks of stripes, and copies of chunks.
//!
//! Stripes are found through the sets of sites that contain the site. Their records decide, since two sets may share
//! a number. A member of a wide stripe is found with the stripe it was written in. No set names copies; the stripes
//! that have copies are listed separately.
//!
//! Cost: a row and a request for each set of the site, and a record for each stripe found. The count stops when it
//! has found enough.

use futures::stream::{self, StreamExt, TryStreamExt};
use striate_core::{SiteId, StripeId};
use striate_meta::records::Stripe;
use striate_meta::{MetaError, ScanRange, keys};
use striate_stripe::own_locations;

use crate::membership::members::Members;
use crate::rows::Rows;

/// Sets whose stripes are scanned concurrently.
const WALKED_AT_ONCE: usize = 32;
/// Stripe rows read together.
const BATCH: usize = 64;
/// Maximum number of stripes counted.
const MOST: usize = 1_000;

/// Stripes on a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StripeCounts {
    /// Stripes that have a chunk there, counted up to about [`MOST`].
    stripes: usize,
    /// Stripes that have a copy of a chunk there.
    copied: usize,
}

impl StripeCounts {
    /// Counts what is on `site`.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(crate) async fn count(members: &Members<'_>, site: SiteId) -> Result<Self, MetaError> {
        let sets = members.rows(&keys::placements(site)).await?;
        let numbers = sets.iter().filter_map(|row| keys::placement_number(&row.key));
        let begin = |number: u64| async move {
            let prefix = ScanRange::prefix(&keys::reverses(number));
            Ok::<_, MetaError>((number, !members.meta.scan(prefix, 1).await?.is_empty()))
        };
        // Most sets of a site that is being removed have no stripes left.
        let checks = stream::iter(numbers.map(begin).collect::<Vec<_>>()).buffered(WALKED_AT_ONCE);
        let used: Vec<(u64, bool)> =
            checks.try_filter(|(_, used)| std::future::ready(*used)).try_collect().await?;
        let mut named = Self::default();
        for (number, _) in used {
            let mut rows = Rows::with_prefix(&keys::reverses(number));
            while let Some(page) = rows.next_in(members.meta).await? {
                let ids = page.iter().filter_map(|row| keys::reverse_stripe(&row.key)).collect();
                named.stripes += count_those(members, ids, |stripe| has_chunk(stripe, site)).await?;
                if named.stripes >= MOST {
                    return Ok(named);
                }
            }
        }
        let copied = members.rows(keys::COPIES).await?;
        let ids = copied.iter().filter_map(|row| keys::stripe_of(&row.key)).collect();
        named.copied = count_those(members, ids, |stripe| has_copy(stripe, site)).await?;
        Ok(named)
    }

    /// Describes the contents as text; `None` if the site is empty.
    pub(crate) fn describe(self) -> Option<String> {
        match (self.stripes, self.copied) {
            (0, 0) => None,
            (0, _) => Some("copies of what is read often".to_owned()),
            (1, _) => Some("a chunk of one stripe".to_owned()),
            (MOST.., _) => Some(format!("chunks of {MOST} stripes or more")),
            (stripes, _) => Some(format!("chunks of {stripes} stripes")),
        }
    }
}

/// Counts the stripes that satisfy `is_so`, up to about [`MOST`].
async fn count_those(
    members: &Members<'_>,
    ids: Vec<StripeId>,
    is_so: impl Fn(&Stripe) -> bool,
) -> Result<usize, MetaError> {
    let mut count = 0;
    for batch in ids.chunks(BATCH) {
        let keys: Vec<_> = batch.iter().copied().map(keys::stripe).collect();
        for row in members.meta.get_many(&keys).await?.into_iter().flatten() {
            count += usize::from(is_so(&row.record()?));
        }
        if count >= MOST {
            break;
        }
    }
    Ok(count)
}

/// Returns whether a file of the stripe is on the site, needed or not.
fn has_chunk(stripe: &Stripe, site: SiteId) -> bool {
    own_locations(stripe).any(|(_, at)| at.site == site.0)
}

fn has_copy(stripe: &Stripe, site: SiteId) -> bool {
    stripe.copies.iter().any(|copy| copy.site == site.0)
}
