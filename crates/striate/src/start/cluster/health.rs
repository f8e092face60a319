//! What health checks report: whether the store serves now, and whether all of it is there.
//!
//! A check waits for no request to fail. Each looks at the directories of this process, asks the sites of others and the
//! metadata engine, all at once and with a timeout below the two seconds within which a check answers. Several checks
//! share one look, so an idle process that nobody checks costs its sites nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use futures::future::join3;
use striate_commands::admin::messages::SiteState;
use striate_core::{Profile, RackId, SiteId};
use striate_meta::keys;
use striate_plan::RackSizes;

use super::Cluster;
use super::report::RemoteAnswers;

/// Age up to which the last look is reported again.
const FRESH_FOR: Duration = Duration::from_millis(500);
/// Timeout for disks, sites and the metadata engine to answer a look.
pub(super) const LOOK_TIMEOUT: Duration = Duration::from_millis(1_200);

/// What a look at the store has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Why reads or writes fail now, if they do.
    pub refusal: Option<Refused>,
    /// Whether, in addition, every site is there and takes chunks.
    pub is_whole: bool,
}

/// Why a store does not serve. Names no directory: health checks need no sign-in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The metadata does not answer.
    Metadata(String),
    /// The audit log has no room, and requests wait for it.
    NotRecorded,
    /// Too few sites take chunks.
    TooFewSites {
        /// Sites that take chunks.
        writable: usize,
        /// All sites.
        sites: usize,
        /// Sites that a write needs.
        needed: usize,
        /// The default profile.
        profile: Profile,
    },
    /// Enough sites take chunks, but the placement rule has no place for as many chunks as a write needs.
    NoPlace {
        /// Chunks for which there are places.
        room: usize,
        /// Chunks that a write needs.
        needed: usize,
        /// The default profile.
        profile: Profile,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Metadata(reason) => write!(f, "the metadata does not answer: {reason}"),
            Self::NotRecorded => {
                f.write_str("the audit log has no room, and requests that it does not record are refused")
            }
            Self::TooFewSites { writable, sites, needed, profile } => {
                write!(f, "{writable} of {sites} disks take writes; {profile} needs {needed}")
            }
            Self::NoPlace { room, needed, profile } => {
                write!(f, "the racks have places for {room} chunks of a stripe; {profile} needs {needed}")
            }
        }
    }
}

impl Cluster {
    /// Returns the health of the store, at most half a second old. Takes less than two seconds.
    pub async fn health(&self) -> Health {
        let runtime = &self.inner.runtime;
        let mut last = self.inner.health.lock().await;
        if let Some((at, health)) = &*last
            && runtime.now().saturating_duration_since(*at) < FRESH_FOR
        {
            return health.clone();
        }
        let (sites, _, engine) = self.look().await;
        let has_no_room = self.inner.audit.get().is_some_and(|audit| audit.refuses());
        let refusal = match engine {
            Ok(()) => self.write_refusal(&sites).or(has_no_room.then_some(Refused::NotRecorded)),
            Err(reason) => Some(Refused::Metadata(reason)),
        };
        let is_whole = refusal.is_none() && sites.iter().all(|site| site.state == "ok");
        let health = Health { refusal, is_whole };
        *last = Some((runtime.now(), health.clone()));
        health
    }

    /// Returns the sites that answer and whose disks do.
    pub async fn answering_sites(&self) -> BTreeSet<SiteId> {
        let (sites, ..) = self.look().await;
        let answer = sites.iter().filter(|site| !matches!(&*site.state, "missing" | "hanging"));
        answer.map(|site| SiteId(site.site)).collect()
    }

    /// Looks at all sites and at the metadata engine at once. Returns the state of the sites, what those in other processes
    /// answered, and why the engine did not.
    pub(super) async fn look(&self) -> (Vec<SiteState>, RemoteAnswers, Result<(), String>) {
        let directories = self.look_at_directories();
        let ((), engine, answers) =
            join3(directories, self.ask_engine(), self.ask_remote_sites(LOOK_TIMEOUT)).await;
        (self.site_states(&answers), answers, engine)
    }

    /// Returns why the metadata does not answer, if it does not.
    pub(super) async fn ask_engine(&self) -> Result<(), String> {
        let key = keys::cluster();
        let ask = self.inner.services.meta.get(&key);
        match self.inner.runtime.timeout(LOOK_TIMEOUT, ask).await {
            Ok(answer) => answer.map(drop).map_err(|error| error.to_string()),
            Err(_) => Err("timeout".to_owned()),
        }
    }

    /// Returns why new objects of the default profile are refused, if they are.
    pub(super) fn write_refusal(&self, sites: &[SiteState]) -> Option<Refused> {
        let (stripes, profile) = (self.inner.services.client.stripes(), self.profile());
        let code = stripes.code(&profile).ok()?;
        let rule = stripes.placement_rule(&profile).ok()?;
        let taking = sites_by_rack(sites, |site| site.state == "ok");
        let (writable, needed) = (taking.sites(), stripes.sites_needed(&profile).ok()?);
        let room = taking.room(rule.rack_limit()).min(code.n());
        if writable < needed {
            return Some(Refused::TooFewSites { writable, sites: sites.len(), needed, profile });
        }
        (room < needed).then_some(Refused::NoPlace { room, needed, profile })
    }
}

/// Returns the number of sites in each rack that meet a condition; racks without one count 0.
pub(super) fn sites_by_rack(sites: &[SiteState], counts: impl Fn(&SiteState) -> bool) -> RackSizes {
    let mut sizes = BTreeMap::<RackId, usize>::new();
    for site in sites {
        *sizes.entry(RackId(site.rack.clone())).or_default() += usize::from(counts(site));
    }
    sizes.into_values().collect()
}
