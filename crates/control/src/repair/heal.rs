//! Heal: makes every stripe whole again that the store knows to be endangered.
//!
//! The work list holds the stripes in debt (writes that missed a site, damage that reads and verify found), and the
//! stripes of sites that are gone, found through the reverse index. Those with the most chunks lost come first. An
//! interrupted heal starts again with what is left.
//!
//! Writers and readers continue meanwhile and may make new debt, so heal takes the list again, round after round,
//! until it is empty. The next round retries what a round could not repair, except stripes that only lack a site:
//! another try does not help them until the set of sites changes. Rounds that make no further stripe whole are
//! bounded; the report then names what is left.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use serde::Serialize;
use striate_core::{SiteId, StripeId};
use striate_stripe::{StripeError, Stripes};

use crate::repair::absence::AbsentSites;
use crate::repair::pace::RepairPace;
use crate::repair::wide_losses::WideLosses;
use crate::repair::work_list::{ListScope, WorkList};
use crate::repair::{RepairOutcome, repair_stripe};

/// Stripes repaired concurrently.
const CONCURRENCY: usize = 8;
/// Maximum number of remaining stripes that a report names.
const NAMED: usize = 20;
/// Consecutive rounds without progress after which a heal ends.
const STALLED_ROUNDS: u32 = 3;
/// Pause after a round without progress, for sites that come back.
const STALL_PAUSE: Duration = Duration::from_secs(1);

/// Progress of a heal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HealProgress {
    /// Number of the current list of endangered stripes; 0 before the first.
    pub round: u32,
    /// Endangered stripes found, over all rounds.
    pub stripes_total: u64,
    /// Stripes examined so far, over all rounds.
    pub stripes_done: u64,
    /// Chunks rebuilt.
    pub chunks: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// Result of a heal, and what it left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HealReport {
    /// Progress at the end.
    pub progress: HealProgress,
    /// Sites whose chunks counted as lost.
    pub gone_sites: Vec<u32>,
    /// Whether the heal was stopped before its end.
    pub stopped: bool,
    /// Stripes that are not whole.
    pub left: u64,
    /// Chunks of the remaining stripes that are still missing for lack of a site.
    pub still_lost: u64,
    /// Chunks of the remaining stripes on sites that did not answer.
    pub unknown: u64,
    /// Remaining stripes that cannot be repaired now.
    pub unrepairable: u64,
    /// Some of the remaining stripes, with the reasons.
    pub examples: Vec<String>,
}

impl HealReport {
    /// Returns whether every stripe is whole.
    pub fn is_whole(&self) -> bool {
        !self.stopped && self.left == 0
    }
}

/// Repairs endangered stripes until none is left; calls `progress` after each. After `Break` no further stripe is
/// started, those in progress are finished, and the report says so.
///
/// # Errors
/// When the metadata store fails. Run it again: what was repaired stays repaired.
pub async fn heal(
    stripes: &Stripes,
    progress: impl FnMut(&HealProgress) -> ControlFlow<()>,
) -> Result<HealReport, StripeError> {
    let heal = Heal {
        stripes,
        tell: progress,
        progress: HealProgress::default(),
        absent: AbsentSites::default(),
        takers: BTreeSet::new(),
        deficits: BTreeMap::new(),
        healed: BTreeSet::new(),
        wide: WideLosses::default(),
    };
    heal.run().await
}

/// State of a heal.
struct Heal<'a, P> {
    stripes: &'a Stripes,
    tell: P,
    progress: HealProgress,
    /// Sites whose chunks count as lost in this round.
    absent: AbsentSites,
    /// Sites that take chunks in this round.
    takers: BTreeSet<SiteId>,
    /// Stripes that were examined and are not whole.
    deficits: BTreeMap<StripeId, StripeDeficit>,
    /// Stripes that this heal has made whole.
    healed: BTreeSet<StripeId>,
    wide: WideLosses,
}

/// What a stripe lacks after its examination.
struct StripeDeficit {
    still_lost: u64,
    unknown: u64,
    astray: u64,
    refused: Vec<String>,
    unrepairable: Option<String>,
}

impl StripeDeficit {
    /// Creates the entry of a stripe that could not be examined.
    fn failed(reason: String) -> Self {
        let unrepairable = Some(reason);
        Self { still_lost: 0, unknown: 0, astray: 0, refused: Vec::new(), unrepairable }
    }

    /// Returns whether another try changes nothing while the sites are the same.
    fn wants_only_a_site(&self) -> bool {
        self.unknown == 0 && self.refused.is_empty() && self.unrepairable.is_none()
    }

    fn describe(&self) -> String {
        if let Some(reason) = &self.unrepairable {
            return reason.clone();
        }
        let mut lacks = Vec::new();
        if self.still_lost > 0 {
            lacks.push(format!("{} chunks without a site that takes them", self.still_lost));
        }
        if self.unknown > 0 {
            lacks.push(format!("{} chunks on sites that did not answer", self.unknown));
        }
        if self.astray > 0 {
            lacks.push(format!("{} chunks in racks that their groups do not need", self.astray));
        }
        lacks.extend(self.refused.iter().cloned());
        lacks.join("; ")
    }
}

impl From<RepairOutcome> for StripeDeficit {
    fn from(outcome: RepairOutcome) -> Self {
        let RepairOutcome { still_lost, unknown, astray, refused, unrepairable, .. } = outcome;
        Self { still_lost, unknown, astray, refused, unrepairable }
    }
}

impl<P: FnMut(&HealProgress) -> ControlFlow<()>> Heal<'_, P> {
    async fn run(mut self) -> Result<HealReport, StripeError> {
        let mut stalled = 0;
        loop {
            let work = self.next_round().await?;
            if work.is_empty() {
                return Ok(self.report(false));
            }
            let healed_before = self.healed.len();
            if self.round(work).await?.is_break() {
                return Ok(self.report(true));
            }
            stalled = if self.healed.len() > healed_before { 0 } else { stalled + 1 };
            if stalled == STALLED_ROUNDS {
                return Ok(self.report(false));
            }
            if stalled > 0 {
                self.stripes.runtime().sleep(STALL_PAUSE).await;
            }
        }
    }

    /// Takes a new list of the stripes that are worth a try now.
    async fn next_round(&mut self) -> Result<Vec<(StripeId, bool)>, StripeError> {
        let absent = AbsentSites::at_once(self.stripes).await?;
        let takers = self.stripes.candidates().iter().map(|candidate| candidate.site).collect();
        let sites_changed = absent != self.absent || takers != self.takers;
        (self.absent, self.takers) = (absent, takers);
        let ranks = self.wide.rank(self.stripes, &self.absent.gone).await?;
        let mut work = WorkList::take(self.stripes, &self.absent, ranks, ListScope::All).await?.stripes;
        // Stripes that are no longer listed were deleted, or repaired by another process.
        let listed: BTreeSet<StripeId> = work.iter().map(|&(stripe, _)| stripe).collect();
        self.deficits.retain(|stripe, _| listed.contains(stripe));
        if !sites_changed {
            work.retain(|(stripe, _)| {
                self.deficits.get(stripe).is_none_or(|deficit| !deficit.wants_only_a_site())
            });
        }
        if !work.is_empty() {
            self.progress.round += 1;
            self.progress.stripes_total += work.len() as u64;
        }
        Ok(work)
    }

    /// Tries to repair every stripe of the list, until it is told to stop.
    async fn round(&mut self, work: Vec<(StripeId, bool)>) -> Result<ControlFlow<()>, StripeError> {
        let mut flow = (self.tell)(&self.progress);
        let (stripes, absent, pace) = (self.stripes, self.absent.clone(), RepairPace::unlimited());
        let repair = |(stripe, in_debt)| {
            let (absent, pace) = (&absent, &pace);
            async move { (stripe, repair_stripe(stripes, stripe, absent, pace, in_debt).await) }
        };
        let mut waiting = work.into_iter();
        let mut repairs = stream::FuturesUnordered::new();
        loop {
            while flow.is_continue() && repairs.len() < CONCURRENCY {
                let Some(next) = waiting.next() else { break };
                repairs.push(repair(next));
            }
            let Some((stripe, outcome)) = repairs.next().await else { return Ok(flow) };
            match outcome {
                Ok(outcome) => self.add(stripe, outcome),
                Err(StripeError::Meta(error)) => return Err(error.into()),
                Err(error) => drop(self.deficits.insert(stripe, StripeDeficit::failed(error.to_string()))),
            }
            self.progress.stripes_done += 1;
            if (self.tell)(&self.progress).is_break() {
                flow = ControlFlow::Break(());
            }
        }
    }

    fn add(&mut self, stripe: StripeId, outcome: RepairOutcome) {
        self.progress.chunks += outcome.chunks;
        self.progress.bytes += outcome.bytes;
        if outcome.is_whole() {
            self.deficits.remove(&stripe);
            self.healed.insert(stripe);
            self.wide.forget(stripe);
        } else {
            self.deficits.insert(stripe, outcome.into());
        }
    }

    fn report(self, stopped: bool) -> HealReport {
        let deficits = self.deficits;
        let repairable = || deficits.values().filter(|deficit| deficit.unrepairable.is_none());
        let name = |(stripe, deficit): (&StripeId, &StripeDeficit)| {
            format!("stripe {stripe}: {}", deficit.describe())
        };
        HealReport {
            progress: self.progress,
            gone_sites: self.absent.gone.iter().map(|site| site.0).collect(),
            stopped,
            left: deficits.len() as u64,
            still_lost: repairable().map(|deficit| deficit.still_lost).sum(),
            unknown: repairable().map(|deficit| deficit.unknown).sum(),
            unrepairable: (deficits.len() - repairable().count()) as u64,
            examples: deficits.iter().take(NAMED).map(name).collect(),
        }
    }
}
