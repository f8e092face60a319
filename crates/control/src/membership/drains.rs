//! Drains that may not end: chunks of wide stripes stay in their rack while one of its sites takes chunks.

use std::collections::BTreeMap;

use striate_core::{Layout, Profile, RackId};
use striate_meta::records::{Bucket, site::State};
use striate_meta::{MetaError, keys};
use striate_plan::WideGeometry;

use super::members::Members;

/// Numbers of a rack's sites.
#[derive(Default)]
struct RackSites {
    draining: Vec<u32>,
    taking: Vec<u32>,
}

impl Members<'_> {
    /// Returns a warning, as text, for each rack of which some sites drain and the others are too few for what a wide
    /// stripe has there. Only wide profiles that buckets have count.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn drain_warnings(&self) -> Result<BTreeMap<RackId, String>, MetaError> {
        let mut racks = BTreeMap::<RackId, RackSites>::new();
        for site in self.sites().await? {
            let sites = racks.entry(RackId(site.rack.clone())).or_default();
            match site.state() {
                State::Active => sites.taking.push(site.id),
                State::Draining => sites.draining.push(site.id),
                State::Retired => {}
            }
        }
        racks.retain(|_, sites| !sites.draining.is_empty() && !sites.taking.is_empty());
        if racks.is_empty() {
            return Ok(BTreeMap::new());
        }
        let Some(widest) = self.widest().await? else { return Ok(BTreeMap::new()) };
        racks.retain(|_, sites| sites.taking.len() < widest.c());
        let warned = racks.into_iter().map(|(rack, sites)| {
            let warning = warning(&rack, &sites, &widest);
            (rack, warning)
        });
        Ok(warned.collect())
    }

    /// Returns the geometry, of the wide profiles that buckets have, with most chunks in a rack.
    async fn widest(&self) -> Result<Option<WideGeometry>, MetaError> {
        let geometry = |text: &String| {
            let profile = text.parse::<Profile>().ok().filter(|profile| profile.layout == Layout::Wide);
            profile.and_then(|profile| WideGeometry::of_profile(&profile).ok())
        };
        let mut widest = None;
        for row in self.rows(keys::BUCKETS).await? {
            let bucket: Bucket = row.record()?;
            let by_age = bucket.cold.iter().map(|cold| &cold.profile);
            let texts = by_age.chain(bucket.classes.iter().map(|class| &class.profile));
            widest = texts.filter_map(geometry).chain(widest).max_by_key(WideGeometry::c);
        }
        Ok(widest)
    }
}

fn warning(RackId(rack): &RackId, sites: &RackSites, widest: &WideGeometry) -> String {
    let listed = |sites: &[u32]| sites.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let (draining, taking) = (listed(&sites.draining), listed(&sites.taking));
    format!(
        "rack {rack} is drained in part, and its other sites ({taking}) are too few for the {} chunks that a stripe of {} may have \
         there; these stay while one of its sites takes chunks: to empty {draining}, drain {taking} too",
        widest.c(),
        widest.profile()
    )
}
