//! Walking through ranges of metadata rows page by page.

use std::collections::BTreeSet;

use striate_core::{RackId, SiteId};
use striate_meta::records::{self, Record, site::State};
use striate_meta::{MetaError, MetaStore, Row, RowPages, ScanRange};
use striate_plan::LeavingRacks;
use striate_stripe::{StripeError, Stripes};

use crate::membership::members::Members;

const PAGE: usize = 1_000;

/// A walk over rows. It may or may not see rows written meanwhile.
pub(crate) struct Rows(RowPages);

impl Rows {
    pub(crate) fn with_prefix(prefix: &[u8]) -> Self {
        Self::over(ScanRange::prefix(prefix))
    }

    pub(crate) fn over(range: ScanRange) -> Self {
        Self(RowPages::new(range, PAGE))
    }

    /// Returns the next page; `None` after the last.
    pub(crate) async fn next(&mut self, stripes: &Stripes) -> Result<Option<Vec<Row>>, StripeError> {
        Ok(self.next_in(&**stripes.meta()).await?)
    }

    /// Like `next`, but reads from a metadata store.
    pub(crate) async fn next_in(&mut self, meta: &dyn MetaStore) -> Result<Option<Vec<Row>>, MetaError> {
        self.0.next(meta).await
    }
}

/// Returns the record of a row; `None` if there is no such row.
pub(crate) async fn find_record<R: Record>(stripes: &Stripes, key: &[u8]) -> Result<Option<R>, StripeError> {
    let row = stripes.meta().get(key).await?;
    Ok(row.map(|row| row.record()).transpose()?)
}

/// Returns the rows of all sites, including retired ones.
pub(crate) async fn registered_sites(stripes: &Stripes) -> Result<Vec<records::Site>, StripeError> {
    Ok(Members::new(stripes.runtime(), &**stripes.meta()).sites().await?)
}

/// Returns the retired sites that the metadata knows.
pub(crate) async fn retired_sites(stripes: &Stripes) -> Result<BTreeSet<SiteId>, StripeError> {
    sites_where(stripes, |site| site.state() == State::Retired).await
}

/// Returns the sites whose metadata rows `matches` accepts.
pub(crate) async fn sites_where(
    stripes: &Stripes,
    matches: impl Fn(&records::Site) -> bool,
) -> Result<BTreeSet<SiteId>, StripeError> {
    let sites = registered_sites(stripes).await?;
    Ok(sites.iter().filter(|site| matches(site)).map(|site| SiteId(site.id)).collect())
}

/// Returns the racks of which every site is retired, drains, or is in `gone`.
pub(crate) async fn leaving_racks(
    stripes: &Stripes,
    gone: &BTreeSet<SiteId>,
) -> Result<LeavingRacks, StripeError> {
    let views = stripes.sites();
    let draining: BTreeSet<SiteId> =
        views.iter().filter(|view| view.draining).map(|view| view.site.id()).collect();
    let rack = |site: records::Site| {
        let id = SiteId(site.id);
        let is_left = site.state() == State::Retired || draining.contains(&id) || gone.contains(&id);
        (stripes.site(id).map_or(RackId(site.rack), |site| site.rack()), is_left)
    };
    Ok(LeavingRacks::of(registered_sites(stripes).await?.into_iter().map(rack)))
}
