//! The service that packs: bucket after bucket, a group at a time, with pauses as long as its work; and that follows marks.
//!
//! Groups are made only while no site has requests waiting and every site keeps a tenth of its space. What is dead gives its
//! space back whether or not anything is packed. One process of a cluster does it; two at once are safe and wasteful.

use std::time::Duration;

use striate_core::Profile;
use striate_meta::records::{Bucket, Cluster};
use striate_meta::{ScanRange, keys};
use striate_stripe::{Packer, StripeError, Stripes};

use crate::packing::{PackOptions, PackReport, pack_bucket};
use crate::repacking::{Repacked, repack_marked};
use crate::rows::Rows;

/// Pause between two looks for what has settled and what has died.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Pause while requests wait at a site.
const YIELD: Duration = Duration::from_secs(1);
/// A site keeps this part of its space: nothing is packed below.
const RESERVE: u64 = 10;

/// Packs as `options` say, and gives back the space of what is dead, for ever. Without options nothing more is packed.
pub async fn keep_packing(stripes: Stripes, options: Option<PackOptions>) {
    let mut packer = None;
    loop {
        stripes.runtime().sleep(LOOK_EVERY).await;
        if let Err(error) = look(&stripes, &mut packer, options.as_ref()).await {
            tracing::warn!(%error, "packing goes on later");
            // What was under way may stand half done: its reservations end with the lease, and the collector decides.
            if let Some(packer) = packer.take() {
                packer.close().await;
            }
        }
    }
}

/// One look at all marks and buckets.
async fn look(
    stripes: &Stripes,
    packer: &mut Option<Packer>,
    options: Option<&PackOptions>,
) -> Result<(), StripeError> {
    let has_marks = !stripes.meta().scan(ScanRange::prefix(keys::MARKS), 1).await?.is_empty();
    if !has_marks && options.is_none() {
        return Ok(());
    }
    let packer = match packer {
        Some(packer) => packer,
        None => packer.insert(stripes.open_packer().await?),
    };
    let done = repack_marked(stripes, packer, &options.copied().unwrap_or_default()).await?;
    let released = done.iter().filter(|(_, what)| *what == Repacked::Released).count();
    if released > 0 {
        tracing::info!(released, "coding groups in which nothing lived were released");
    }
    let Some(options) = options else { return Ok(()) };
    let report = pack_all(stripes, packer, options).await?;
    if report.groups > 0 {
        tracing::info!(?report, "small objects were packed");
    }
    Ok(())
}

/// Packs every bucket.
///
/// # Errors
/// As [`pack_bucket`].
pub async fn pack_all(
    stripes: &Stripes,
    packer: &Packer,
    options: &PackOptions,
) -> Result<PackReport, StripeError> {
    let mut report = PackReport::default();
    let Some(row) = stripes.meta().get(&keys::cluster()).await? else { return Ok(report) };
    let cluster: Cluster = row.record()?;
    let Ok(default) = cluster.profile.parse::<Profile>() else { return Ok(report) };
    let mut rows = Rows::with_prefix(keys::BUCKETS);
    while let Some(page) = rows.next(stripes).await? {
        for row in page {
            let bucket: Bucket = row.record()?;
            report.add(pack_bucket(stripes, packer, &bucket.name, &default, options).await?);
        }
    }
    Ok(report)
}

/// Waits until no site has requests waiting. `false` when a site has too little space for another group.
pub(crate) async fn may_pack(stripes: &Stripes) -> bool {
    loop {
        let loads: Vec<_> = stripes.sites().iter().map(|view| view.site.last_load()).collect();
        if loads.iter().any(|load| load.free_bytes < (load.used_bytes + load.free_bytes) / RESERVE) {
            return false;
        }
        if loads.iter().all(|load| load.queue_requests <= load.workers) {
            return true;
        }
        stripes.runtime().sleep(YIELD).await;
    }
}
