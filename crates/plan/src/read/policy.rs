//! What all read policies have in common: a value that says how to read, and a planner that keeps what it learns.
//!
//! A policy makes three choices: which sets of chunks to consider, where to learn the sites' loads, and what to
//! minimise. The code that executes plans queries the policy and never matches on it.

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

/// The purpose of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPurpose {
    /// The caller waits for all of it.
    Query,
    /// Read-ahead for a receiver that takes one block after the other: bytes count more than the time of the last
    /// chunk.
    Ahead,
    /// Some requested chunks are missing or late: request only what completes the pieces, and no extra chunks.
    Rest,
}

/// A query to plan, with the states of the sites.
pub struct ReadQuery<'a> {
    /// The pieces of the query.
    pub pieces: &'a [QueryPiece<'a>],
    /// The purpose of the read.
    pub purpose: ReadPurpose,
    /// Returns whether a site can be asked.
    pub can_be_asked: &'a dyn Fn(SiteId) -> bool,
    /// Returns the cost of a site, or `None` if it cannot be asked.
    pub cost: &'a dyn Fn(SiteId) -> Option<SiteCost>,
    /// Returns the queue of a site, or `None` if it cannot be asked. If sites were probed for this query
    /// ([`Policy::sites_to_probe`]), it returns their reports, and `None` for all other sites.
    pub queue: &'a dyn Fn(SiteId) -> Option<SiteQueue>,
}

impl ReadQuery<'_> {
    /// Returns the cost of a site if it can be asked.
    pub(super) fn cost_if_asked(&self, site: SiteId) -> Option<SiteCost> {
        (self.cost)(site).filter(|_| (self.can_be_asked)(site))
    }
}

/// The reports of all sites at one probe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Probe {
    /// Time since the previous probe, or since probing began.
    pub since_last: Duration,
    /// The reports of the sites that replied, ascending by site.
    pub sites: Vec<ProbedSite>,
}

/// A site's reply to a probe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbedSite {
    /// The site.
    pub site: SiteId,
    /// Number of requests queued or being served.
    pub requests: f64,
    /// Q_j: bytes that those requests ask for.
    pub bytes: f64,
}

/// Chooses the chunks of queries. Each reading process has one; its state is only in memory.
pub trait ReadPlanner: fmt::Debug + Send {
    /// Plans a query: chunks that determine every piece together with the awaited ones, and extra chunks.
    ///
    /// # Errors
    /// [`CodecError::Insufficient`] if the available chunks of a piece do not determine it.
    fn plan(&mut self, query: &ReadQuery<'_>, rng: &mut dyn RngCore) -> Result<QueryPlan, CodecError>;

    /// Takes the reports of a probe of all sites ([`Policy::probe_every`]).
    fn take_probe(&mut self, _probe: &Probe, _rng: &mut dyn RngCore) {}

    /// Returns whether there is background work: plans to find for later queries.
    fn has_background_work(&self) -> bool {
        false
    }

    /// Does the background work.
    fn work_in_background(&mut self) {}
}

/// Decides how the chunks of reads are chosen.
pub trait Policy: fmt::Debug + fmt::Display + Send + Sync {
    /// Creates a planner for this policy.
    fn planner(&self) -> Box<dyn ReadPlanner>;

    /// Returns whether a query is worth the time to plan it. Otherwise it is read normally, without locks, draws or
    /// solvers.
    fn is_worth_planning(&self, _query: &ReadQuery<'_>) -> bool {
        true
    }

    /// Returns δ: the number of chunks requested beyond a determining set, whatever the sites' queues are.
    fn extra_reads(&self) -> usize {
        0
    }

    /// Returns the maximum of δ.
    fn most_extra_reads(&self) -> usize {
        self.extra_reads()
    }

    /// Returns whether requests that are no longer needed are cancelled.
    fn cancels(&self) -> bool {
        true
    }

    /// Returns whether a site counts as late when it takes longer than its queue predicts. A long silence makes any
    /// site late.
    fn predicts_lateness(&self) -> bool {
        false
    }

    /// Returns the sites to ask for their queues before a query is planned, each once. The planner then knows the
    /// queues of no other sites.
    fn sites_to_probe(&self, _query: &ReadQuery<'_>, _rng: &mut dyn RngCore) -> Vec<SiteId> {
        Vec::new()
    }

    /// Returns the interval between probes of all sites, if there are any.
    fn probe_every(&self) -> Option<Duration> {
        None
    }

    /// Returns the time that background planning takes. The results of a probe and of background work count only after
    /// it.
    fn solve_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns how long a site may be silent before others are asked, unless that follows from the usual duration of
    /// reads.
    fn time_out(&self) -> Option<Duration> {
        None
    }

    /// Returns whether plans are optimised, which takes processor time.
    fn optimises(&self) -> bool {
        false
    }

    /// Returns why a chunk is read.
    fn why(&self, chunk: ChosenChunk) -> ChunkChoice;
}

/// A chunk that a plan requests.
#[derive(Clone, Copy, Debug)]
pub struct ChosenChunk {
    /// Whether it is a wanted data chunk.
    pub is_wanted: bool,
    /// Whether its site is asked for other chunks too.
    pub shares_site: bool,
    /// Whether the plan was found before.
    pub is_cached: bool,
}

/// Why a chunk is read or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChunkChoice {
    /// Read: it is data, and the policy prefers data.
    Systematic,
    /// Read to replace an unavailable data chunk.
    Substitute,
    /// Read: its site is asked for other chunks of the query anyway.
    SharedSite,
    /// Read: its site is among the cheapest of the block.
    LeastCost,
    /// Read: it was drawn at random.
    Drawn,
    /// Not read: others suffice.
    NotNeeded,
    /// Unavailable: it was never written (debt).
    InDebt,
    /// Not stored: a parity that its stripe has dropped, because wide stripes protect the data.
    Dropped,
    /// Unavailable: its site is unreachable or unknown.
    NoAnswer,
    /// Not read, because its site is unreachable: sites of its wide stripe compute it as sums added up in their racks.
    Computed,
}

impl ChunkChoice {
    /// Returns whether the chunk is read.
    pub fn is_read(self) -> bool {
        !matches!(self, Self::NotNeeded | Self::InDebt | Self::Dropped | Self::NoAnswer | Self::Computed)
    }

    /// Returns the choice as text.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Systematic => "read: data, nothing to decode",
            Self::Substitute => "read: in the place of a data chunk that cannot be had",
            Self::SharedSite => "read: its site is asked anyway",
            Self::LeastCost => "read: cheap",
            Self::Drawn => "read: drawn",
            Self::NotNeeded => "not needed",
            Self::InDebt => "cannot be had: never written (debt)",
            Self::Dropped => "not kept: wide stripes protect the data",
            Self::NoAnswer => "cannot be had: its site does not answer",
            Self::Computed => "computed from its wide stripe: its site does not answer",
        }
    }
}

/// A shared [`Policy`]. Two are equal if their texts are.
#[derive(Clone)]
pub struct ReadPolicy(Arc<dyn Policy>);

/// A text that is not a read policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a read policy: write adaptive, adaptive(W), normal, cost-model or cost-model(D), where W is the share of the load \
     that a read adds and D the number of extra chunks"
)]
pub struct PolicyError(pub String);

impl ReadPolicy {
    /// Wraps a policy.
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

/// Splits `name` or `name(D)` into the name and D; `None` for other texts.
pub fn name_and_extra_reads(text: &str) -> Option<(&str, Option<usize>)> {
    match text.split_once('(') {
        None => Some((text, None)),
        Some((name, rest)) => Some((name, Some(rest.strip_suffix(')')?.trim().parse().ok()?))),
    }
}

/// Writes `name`, or `name(D)` with extra chunks.
///
/// # Errors
/// If the formatter fails.
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
