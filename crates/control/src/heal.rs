//! Heal: makes every stripe whole again that the store knows to be endangered.
//!
//! The work list: stripes in debt (writes that missed a site, damage that reads and verify found), and the
//! stripes of sites that are gone, found through the reverse index. Those with the most chunks lost come
//! first. Interrupted, it starts again with what is left.

use std::collections::{HashMap, HashSet};

use futures::stream::{self, StreamExt};
use serde::Serialize;
use striate_client::{Client, ClientError};
use striate_core::{SiteId, StripeId};
use striate_meta::{keys, records};

use crate::repair::{RepairOutcome, repair_stripe};
use crate::rows::{Rows, gone_sites};

/// Stripes repaired at the same time.
const CONCURRENCY: usize = 8;
/// How many unrepairable stripes a report names.
const NAMED: usize = 20;

/// How far a heal has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HealProgress {
    /// Endangered stripes found.
    pub stripes_total: u64,
    /// Stripes looked at so far.
    pub stripes_done: u64,
    /// Chunks rebuilt.
    pub chunks: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// What a heal did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HealReport {
    /// How far it came.
    pub progress: HealProgress,
    /// Sites whose chunks counted as lost.
    pub gone_sites: Vec<u32>,
    /// Chunks that are still missing for want of a site.
    pub still_lost: u64,
    /// Chunks on sites that did not answer.
    pub unknown: u64,
    /// Stripes that cannot be repaired now.
    pub unrepairable: u64,
    /// Some of them, with the reason.
    pub examples: Vec<String>,
}

impl HealReport {
    /// True when every stripe is whole.
    pub fn is_whole(&self) -> bool {
        self.still_lost == 0 && self.unknown == 0 && self.unrepairable == 0
    }
}

/// Repairs all endangered stripes; calls `progress` after each.
///
/// # Errors
/// When the metadata store fails. Run it again: what was repaired stays repaired.
pub async fn heal(
    client: &Client,
    mut progress: impl FnMut(&HealProgress),
) -> Result<HealReport, ClientError> {
    let gone = gone_sites(client).await?;
    let work = endangered(client, &gone).await?;
    let mut report = HealReport {
        gone_sites: gone.iter().map(|site| site.0).collect(),
        progress: HealProgress { stripes_total: work.len() as u64, ..HealProgress::default() },
        ..HealReport::default()
    };
    report.gone_sites.sort_unstable();
    progress(&report.progress);
    let gone = &gone;
    let mut repairs = stream::iter(work)
        .map(|(stripe, in_debt)| async move { (stripe, repair_stripe(client, stripe, gone, in_debt).await) })
        .buffer_unordered(CONCURRENCY);
    while let Some((stripe, outcome)) = repairs.next().await {
        match outcome {
            Ok(outcome) => report.add(stripe, outcome),
            Err(ClientError::Meta(error)) => return Err(error.into()),
            Err(error) => report.name(stripe, error.to_string()),
        }
        progress(&report.progress);
    }
    Ok(report)
}

impl HealReport {
    fn add(&mut self, stripe: StripeId, outcome: RepairOutcome) {
        self.progress.stripes_done += 1;
        self.progress.chunks += outcome.chunks;
        self.progress.bytes += outcome.bytes;
        self.unknown += outcome.unknown;
        match outcome.unrepairable {
            Some(reason) => self.name(stripe, reason),
            None => self.still_lost += outcome.still_lost,
        }
    }

    fn name(&mut self, stripe: StripeId, reason: String) {
        self.unrepairable += 1;
        if self.examples.len() < NAMED {
            self.examples.push(format!("stripe {stripe}: {reason}"));
        }
    }
}

/// Stripes that may have lost chunks, most endangered first, and whether each is in debt and must be examined.
async fn endangered(client: &Client, gone: &HashSet<SiteId>) -> Result<Vec<(StripeId, bool)>, ClientError> {
    let mut stripes: HashMap<StripeId, (usize, bool)> = HashMap::new();
    for (placement, lost) in endangered_placements(client, gone).await? {
        let mut rows = Rows::with_prefix(&keys::reverses(placement));
        while let Some(page) = rows.next(client).await? {
            for stripe in page.iter().filter_map(|row| keys::reverse_stripe(&row.key)) {
                stripes.entry(stripe).or_default().0 = lost;
            }
        }
    }
    let mut rows = Rows::with_prefix(keys::DEBTS);
    while let Some(page) = rows.next(client).await? {
        for stripe in page.iter().filter_map(|row| keys::stripe_of(&row.key)) {
            let entry = stripes.entry(stripe).or_default();
            (entry.0, entry.1) = (entry.0 + 1, true);
        }
    }
    let mut work: Vec<_> = stripes.into_iter().collect();
    work.sort_unstable_by_key(|&(stripe, (lost, _))| (std::cmp::Reverse(lost), stripe));
    Ok(work.into_iter().map(|(stripe, (_, in_debt))| (stripe, in_debt)).collect())
}

/// Sets of sites that contain one that is gone, and how many of theirs are.
async fn endangered_placements(
    client: &Client,
    gone: &HashSet<SiteId>,
) -> Result<HashMap<u64, usize>, ClientError> {
    let mut placements = HashMap::new();
    for &site in gone {
        let mut rows = Rows::with_prefix(&keys::placements(site));
        while let Some(page) = rows.next(client).await? {
            for row in page {
                let Some(placement) = keys::placement_number(&row.key) else { continue };
                let record: records::Placement = row.record()?;
                let lost = record.sites.iter().filter(|&&site| gone.contains(&SiteId(site))).count();
                placements.insert(placement, lost);
            }
        }
    }
    Ok(placements)
}
