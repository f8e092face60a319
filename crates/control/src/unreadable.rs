//! Lists the objects that cannot be read now, because too many of their chunks are on sites that do not answer.
//!
//! It reads rows only, no chunks: a chunk counts as available if its record names a site that answers. A lost chunk that a
//! wide stripe protects counts as available while the wide stripe has not lost more chunks than its code survives.
//! Damage that nobody has found yet is for `verify` to find.
//!
//! Cost: all rows of objects, and a record for each stripe, some of them together.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use striate_codec::ChunkSet;
use striate_core::{SiteId, StripeId};
use striate_meta::keys;
use striate_meta::records::Object;
use striate_stripe::{OpenedStripe, StripeError, Stripes};

use crate::object_stripes::ObjectStripes;
use crate::rows::Rows;

/// Result of a walk over all objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadableReport {
    /// Objects looked at.
    pub objects: u64,
    /// Objects of which some bytes cannot be read now.
    pub unreadable: u64,
}

/// A walk over all objects.
pub struct UnreadableObjects<'a> {
    rows: Rows,
    /// The sites that answer.
    answering: &'a BTreeSet<SiteId>,
    report: UnreadableReport,
}

impl<'a> UnreadableObjects<'a> {
    /// Begins a walk, where only these sites answer.
    pub fn new(answering: &'a BTreeSet<SiteId>) -> Self {
        Self { rows: Rows::with_prefix(keys::OBJECTS), answering, report: UnreadableReport::default() }
    }

    /// Returns what was found so far.
    pub fn report(&self) -> UnreadableReport {
        self.report
    }

    /// Looks at the next objects. Returns bucket and key of those that cannot be read; `None` after the last.
    ///
    /// # Errors
    /// When the metadata store fails, or a row is damaged.
    pub async fn next(&mut self, stripes: &Stripes) -> Result<Option<Vec<(String, String)>>, StripeError> {
        let Some(page) = self.rows.next(stripes).await? else { return Ok(None) };
        let mut unreadable = Vec::new();
        for row in &page {
            let object: Object = row.record()?;
            self.report.objects += 1;
            if !is_readable(stripes, &object, self.answering).await? {
                let bucket = keys::bucket_of(&row.key).unwrap_or_default().to_owned();
                let key = row.key.get(keys::objects(&bucket).len()..).unwrap_or_default();
                unreadable.push((bucket, String::from_utf8_lossy(key).into_owned()));
            }
        }
        self.report.unreadable += unreadable.len() as u64;
        Ok(Some(unreadable))
    }
}

async fn is_readable(
    stripes: &Stripes,
    object: &Object,
    answering: &BTreeSet<SiteId>,
) -> Result<bool, StripeError> {
    let Some(body) = &object.body else { return Ok(true) };
    let mut named = ObjectStripes::of(body)?;
    while let Some(parts) = named.next(stripes).await? {
        for (id, _) in parts {
            // A stripe that is gone went with its object.
            let Some(stripe) = stripes.find(id).await? else { continue };
            if !decodes(stripes, &stripe, answering).await? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Whether the chunks that are available determine all data chunks of a stripe.
async fn decodes(
    stripes: &Stripes,
    stripe: &OpenedStripe,
    answering: &BTreeSet<SiteId>,
) -> Result<bool, StripeError> {
    let mut available = there(stripe, answering);
    let wanted = ChunkSet::first(stripe.code.k());
    if stripe.code.determines(&available, &wanted) {
        return Ok(true);
    }
    for index in 0..stripe.code.k() {
        if !available.contains(index)
            && let Some((wide, _)) = stripe.wide_of(index)
            && is_protected(stripes, wide, answering).await?
        {
            available.insert(index);
        }
    }
    Ok(stripe.code.determines(&available, &wanted))
}

/// Whether a wide stripe has lost no more chunks than its code survives.
async fn is_protected(
    stripes: &Stripes,
    wide: StripeId,
    answering: &BTreeSet<SiteId>,
) -> Result<bool, StripeError> {
    let Some(wide) = stripes.find(wide).await? else { return Ok(false) };
    let lost = wide.code.n() - there(&wide, answering).len();
    Ok(lost <= wide.code.tolerance())
}

fn there(stripe: &OpenedStripe, answering: &BTreeSet<SiteId>) -> ChunkSet {
    let is_there = |&(_, site): &(usize, u32)| site != 0 && answering.contains(&SiteId(site));
    let sites = stripe.record.locations.iter().map(|at| at.site).enumerate();
    sites.filter(is_there).map(|(index, _)| index).collect()
}
