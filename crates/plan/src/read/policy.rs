//! What every read policy is: a value that says how it reads, and a planner that keeps what it learns.
//!
//! A policy is three choices: which sets of chunks it considers, where it knows the sites' loads from, and what it
//! minimises. Who executes plans asks the policy and never matches on it.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rand::RngCore;
use serde::{Deserialize, Serialize};
use striate_codec::CodecError;
use striate_core::SiteId;

use super::adaptive::Adaptive;
use super::cost_model::CostModel;
use super::normal::Normal;
use super::piece::{QueryPiece, QueryPlan};
use crate::cost::{SiteCost, SiteQueue};

/// What a read is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Somebody waits for all of it.
    Query,
    /// It is read ahead of a receiver who takes one block after the other: bytes count more than the last chunk's time.
    Ahead,
    /// Some of it was asked for and is missing or late: only what completes the pieces is asked for, and no extra chunk.
    Rest,
}

/// What is to be planned, and what is known of the sites.
pub struct ReadQuery<'a> {
    /// Its pieces.
    pub pieces: &'a [QueryPiece<'a>],
    /// What it is for.
    pub purpose: Purpose,
    /// Whether a site can be asked.
    pub can_be_asked: &'a dyn Fn(SiteId) -> bool,
    /// What a site costs; `None` when it cannot be asked.
    pub cost: &'a dyn Fn(SiteId) -> Option<SiteCost>,
    /// What waits at a site; `None` when it cannot be asked. Where sites were probed for this query
    /// ([`Policy::sites_to_probe`]), what they told, and `None` for all others.
    pub queue: &'a dyn Fn(SiteId) -> Option<SiteQueue>,
}

impl ReadQuery<'_> {
    /// What a site costs that can be asked.
    pub(super) fn cost_if_asked(&self, site: SiteId) -> Option<SiteCost> {
        (self.cost)(site).filter(|_| (self.can_be_asked)(site))
    }
}

/// What all sites have told at one probe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Probe {
    /// The time since the probe before, or since probing began.
    pub since_last: Duration,
    /// What each site told that answered, in ascending order.
    pub sites: Vec<ProbedSite>,
}

/// What a site answers to a probe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbedSite {
    /// The site.
    pub site: SiteId,
    /// Requests that wait or are served.
    pub requests: f64,
    /// Q_j: the bytes that those ask for.
    pub bytes: f64,
}

/// Chooses the chunks of queries. One for each process that reads; what it keeps is memory.
pub trait ReadPlanner: fmt::Debug + Send {
    /// Plans a query: chunks that determine every piece together with those that are awaited, and extra ones.
    ///
    /// # Errors
    /// [`CodecError::Insufficient`] when the chunks of a piece that can be had do not determine it.
    fn plan(&mut self, query: &ReadQuery<'_>, rng: &mut dyn RngCore) -> Result<QueryPlan, CodecError>;

    /// Takes what a probe of all sites has told ([`Policy::probe_every`]).
    fn take_probe(&mut self, _probe: &Probe, _rng: &mut dyn RngCore) {}

    /// Whether there is work for the background: plans that are to be found for later.
    fn has_background_work(&self) -> bool {
        false
    }

    /// Does it.
    fn work_in_background(&mut self) {}
}

/// How the chunks of reads are chosen.
pub trait Policy: fmt::Debug + fmt::Display + Send + Sync {
    /// What plans by this policy.
    fn planner(&self) -> Box<dyn ReadPlanner>;

    /// Whether planning is worth its time for a query. One for which it is not is read normally, and locks, draws and solves
    /// nothing.
    fn is_worth_planning(&self, _query: &ReadQuery<'_>) -> bool {
        true
    }

    /// δ: chunks asked beyond a determining set, whatever the sites' queues are.
    fn extra_reads(&self) -> usize {
        0
    }

    /// δ at most.
    fn most_extra_reads(&self) -> usize {
        self.extra_reads()
    }

    /// Whether reads that are no longer needed are taken back.
    fn cancels(&self) -> bool {
        true
    }

    /// Whether a site is late that takes longer than its queue lets expect. Any site is after it has been silent for long.
    fn predicts_lateness(&self) -> bool {
        false
    }

    /// The sites that are asked for their queues before a query is planned, each once. The planner then knows of no other
    /// site's queue.
    fn sites_to_probe(&self, _query: &ReadQuery<'_>, _rng: &mut dyn RngCore) -> Vec<SiteId> {
        Vec::new()
    }

    /// How often all sites are asked for their load, if they are.
    fn probe_every(&self) -> Option<Duration> {
        None
    }

    /// How long it takes to find plans in the background: a probe is of use, and work in the background done, after it.
    fn solve_time(&self) -> Duration {
        Duration::ZERO
    }

    /// For how long a site may be silent before others are asked, if that is not to follow from what reads usually take.
    fn time_out(&self) -> Option<Duration> {
        None
    }

    /// Whether plans are solved for, which takes processor time.
    fn optimises(&self) -> bool {
        false
    }

    /// Why a chunk is read.
    fn why(&self, chunk: ChosenChunk) -> ChunkChoice;
}

/// A chunk that a plan asks for.
#[derive(Clone, Copy, Debug)]
pub struct ChosenChunk {
    /// It is data that was wanted.
    pub is_wanted: bool,
    /// Its site is asked for other chunks too.
    pub shares_site: bool,
    /// The plan was found before.
    pub is_cached: bool,
}

/// Why a chunk is read or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChunkChoice {
    /// Read: it is data, and the policy takes data where it can.
    Systematic,
    /// Read in the place of a data chunk that cannot be had.
    Substitute,
    /// Read: its site is asked for other chunks of the query anyway.
    SharedSite,
    /// Read: its site is among the cheapest of the block.
    LeastCost,
    /// Read: it was drawn.
    Drawn,
    /// Not read: others suffice.
    NotNeeded,
    /// Cannot be had: it was never written (debt).
    InDebt,
    /// Cannot be had: its site does not answer or is not known.
    NoAnswer,
    /// Not read, as its site does not answer: sites of its wide stripe add it up in their racks.
    Computed,
}

impl ChunkChoice {
    /// Whether the chunk is read.
    pub fn is_read(self) -> bool {
        !matches!(self, Self::NotNeeded | Self::InDebt | Self::NoAnswer | Self::Computed)
    }

    /// The choice in words.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Systematic => "read: data, nothing to decode",
            Self::Substitute => "read: in the place of a data chunk that cannot be had",
            Self::SharedSite => "read: its site is asked anyway",
            Self::LeastCost => "read: cheap",
            Self::Drawn => "read: drawn",
            Self::NotNeeded => "not needed",
            Self::InDebt => "cannot be had: never written (debt)",
            Self::NoAnswer => "cannot be had: its site does not answer",
            Self::Computed => "computed from its wide stripe: its site does not answer",
        }
    }
}

/// A [`Policy`], shared. Two are equal when they are written alike.
#[derive(Clone)]
pub struct ReadPolicy(Arc<dyn Policy>);

/// Why a text is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a read policy: write adaptive, adaptive(W), normal, cost-model or cost-model(D), where W is the share of the load \
     that a read adds and D the number of extra chunks"
)]
pub struct PolicyError(pub String);

impl ReadPolicy {
    /// A policy to read by.
    pub fn new(policy: impl Policy + 'static) -> Self {
        Self(Arc::new(policy))
    }
}

impl Deref for ReadPolicy {
    type Target = dyn Policy;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref()
    }
}

impl Default for ReadPolicy {
    fn default() -> Self {
        Self::new(Normal)
    }
}

impl PartialEq for ReadPolicy {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.to_string() == other.to_string()
    }
}

impl fmt::Debug for ReadPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ReadPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for ReadPolicy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        if let Some(adaptive) = Adaptive::parse(text) {
            return Ok(Self::new(adaptive));
        }
        match name_and_extra_reads(text) {
            Some(("normal", None)) => Ok(Self::new(Normal)),
            Some(("cost-model", extra_reads)) => {
                Ok(Self::new(CostModel { extra_reads: extra_reads.unwrap_or(0) }))
            }
            _ => Err(PolicyError(text.to_owned())),
        }
    }
}

/// The name and the D of `name` or `name(D)`; `None` for other texts.
pub fn name_and_extra_reads(text: &str) -> Option<(&str, Option<usize>)> {
    match text.split_once('(') {
        None => Some((text, None)),
        Some((name, rest)) => Some((name, Some(rest.strip_suffix(')')?.trim().parse().ok()?))),
    }
}

/// Writes `name`, or `name(D)` with extra chunks.
///
/// # Errors
/// When the formatter fails.
pub fn write_with_extra_reads(f: &mut fmt::Formatter<'_>, name: &str, extra_reads: usize) -> fmt::Result {
    match extra_reads {
        0 => f.write_str(name),
        _ => write!(f, "{name}({extra_reads})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_survive_their_text() {
        for text in ["normal", "adaptive", "adaptive(0.5)", "adaptive(0)", "cost-model", "cost-model(2)"] {
            assert_eq!(text.parse::<ReadPolicy>().expect("a policy").to_string(), text);
        }
    }

    #[test]
    fn what_is_no_policy_is_refused_with_the_way_out() {
        for text in [
            "",
            "Normal",
            "normal(1)",
            "cost-model(x)",
            "cost-model(1",
            "random",
            "adaptive(-1)",
            "adaptive(inf)",
        ] {
            let error = text.parse::<ReadPolicy>().expect_err("no policy").to_string();
            assert!(error.contains("cost-model(D)") && error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
