//! The invariants of reliability.md as code, under their names.
//!
//! I2 to I5 and I9 are decided by the [`history`](crate::history), but for bytes that belong to no value, which the
//! reader of a range sees at once (I2). The others look past the network into what is committed and stored:
//!
//! | | when | how |
//! |--|--|--|
//! | I1 | at the end, and with exactly r chunks of each stripe lost | every object reads back |
//! | I6 | at every survey | sites of a stripe, and racks |
//! | I7 | after every start of a site, and at the end | every chunk that is named there is stored, but those that the injector took |
//! | I8 | at every delete | no committed stripe names the chunk |
//! | I10 | at every survey | checksums and lengths are those of the stripe's first encoding |
//! | I11 | at every survey | generations |
//! | I12 | always | an operation ends in time |
//! | I13 | at the end | heal makes everything whole in time |
//! | Orphans | at the end | the collectors leave nothing that no stripe names ([`super::orphans`]) |
//! | I14 | two runs of one seed | the hash of all events |

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::FutureExt;
use parking_lot::Mutex;
use striate_core::{ChunkId, Generation, LoadReport, RackId, SiteId, StripeId};
use striate_meta::keys;
use striate_meta::records::{Location, Stripe};
use striate_site::{
    AssembleRequest, ChunkInfo, ChunkPage, ChunkStore, CombineRequest, DeleteRequest, ReadRequest,
    ReadStream, Site, SiteError, SiteStatus, SliceStream, WriteRequest,
};

use super::cluster::Cluster;
use super::engine::EngineMachine;
use super::site::SiteMachine;

/// The invariants' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// Every acknowledged object reads back while at most r chunks of each stripe are lost.
    I1,
    /// A read returns the correct bytes or an error.
    I2,
    /// Each key's history fits S3's model.
    I3,
    /// A listing equals the committed metadata.
    I4,
    /// A failed operation leaves nothing visible.
    I5,
    /// The chunks of a stripe sit on distinct sites, and at most f of them in one rack.
    I6,
    /// What metadata names is stored, within the repair debt.
    I7,
    /// Collection never removes what is named.
    I8,
    /// Deleted stays deleted.
    I9,
    /// Repaired bytes equal the original encoding.
    I10,
    /// Generations never go back.
    I11,
    /// Everything ends in time.
    I12,
    /// When faults stop, full redundancy returns within a bound.
    I13,
    /// The same seed gives the same trace.
    I14,
    /// What nothing names any more is collected: no invariant of reliability.md, but the design's (§4.5).
    Orphans,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Invariants that were found broken in a run, and what must be remembered to find it.
#[derive(Debug, Default)]
pub struct Broken {
    found: Mutex<Vec<(Invariant, String)>>,
    stripes: Mutex<BTreeMap<StripeId, Remembered>>,
}

/// What never changes of a stripe, and what only grows.
#[derive(Debug)]
struct Remembered {
    crcs: Vec<u32>,
    generation: u32,
    generations: Vec<u32>,
}

impl Broken {
    /// An invariant is broken.
    pub fn report(&self, invariant: Invariant, what: impl Into<String>) {
        self.found.lock().push((invariant, what.into()));
    }

    /// What was found first.
    pub fn first(&self) -> Option<(Invariant, String)> {
        self.found.lock().first().cloned()
    }

    /// I10 and I11: compares a stripe's record with what it was before.
    fn compare(&self, id: StripeId, stripe: &Stripe) {
        let crcs: Vec<u32> = stripe.locations.iter().map(|location| location.crc32c).collect();
        let generations: Vec<u32> = stripe.locations.iter().map(|location| location.generation).collect();
        let mut stripes = self.stripes.lock();
        if let Some(before) = stripes.get(&id) {
            if before.crcs != crcs {
                self.report(Invariant::I10, format!("the checksums of stripe {id} have changed"));
            }
            let goes_back = before.generations.iter().zip(&generations).any(|(before, now)| now < before);
            if stripe.generation < before.generation || goes_back {
                self.report(Invariant::I11, format!("a generation of stripe {id} has gone back"));
            }
        }
        if generations.iter().any(|&generation| generation > stripe.generation) {
            self.report(Invariant::I11, format!("stripe {id} has a chunk of a generation yet to come"));
        }
        stripes.insert(id, Remembered { crcs, generation: stripe.generation, generations });
    }
}

/// A chunk as it lies on its site's disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// There, and the bytes of the original encoding.
    Good,
    /// The write left it out.
    Debt,
    /// Its site is down, or no member any more.
    Away,
    /// Missing or damaged, and how.
    Bad(String),
}

/// A committed stripe.
#[derive(Clone, Debug)]
pub struct Surveyed {
    /// Its name.
    pub id: StripeId,
    /// Its record.
    pub record: Stripe,
    /// Its chunks.
    pub chunks: Vec<Condition>,
}

impl Surveyed {
    /// The name of one of its chunks.
    pub fn chunk(&self, index: usize) -> ChunkId {
        chunk_of(self.id, index, &self.record.locations[index])
    }

    /// Whether all chunks are good.
    pub fn is_whole(&self) -> bool {
        self.chunks.iter().all(|chunk| *chunk == Condition::Good)
    }
}

fn chunk_of(id: StripeId, index: usize, location: &Location) -> ChunkId {
    ChunkId { stripe: id, index: index as u8, generation: Generation(location.generation) }
}

/// All committed stripes at this instant; `None` when the metadata cannot be read now.
pub fn committed(cluster: &Cluster) -> Option<Vec<(StripeId, Stripe)>> {
    let rows = cluster.engine.peek_all(keys::STRIPES)?;
    Some(rows.iter().filter_map(|row| Some((keys::stripe_of(&row.key)?, row.record().ok()?))).collect())
}

/// All committed stripes with the condition of their chunks at this instant, past network and queues. Checks I6, I10
/// and I11 on the way. `None` when the metadata cannot be read now.
pub fn survey(cluster: &Cluster) -> Option<Vec<Surveyed>> {
    let stripes = committed(cluster)?;
    let surveyed = stripes.into_iter().map(|(id, record)| {
        check_placement(cluster, id, &record);
        cluster.broken.compare(id, &record);
        let condition = |(index, location): (usize, &Location)| match SiteId(location.site) {
            SiteId(0) => Condition::Debt,
            site => match cluster.site(site) {
                None => Condition::Away,
                Some(site) => look(&site, chunk_of(id, index, location), location, record.chunk_len),
            },
        };
        let chunks = record.locations.iter().enumerate().map(condition).collect();
        Surveyed { id, record, chunks }
    });
    Some(surveyed.collect())
}

/// I6, and that no write left out more chunks than its quorum allows (I7).
fn check_placement(cluster: &Cluster, id: StripeId, record: &Stripe) {
    let held: Vec<u32> =
        record.locations.iter().map(|location| location.site).filter(|&site| site != 0).collect();
    let distinct: BTreeSet<u32> = held.iter().copied().collect();
    // Every site is a rack of its own here, so that distinct sites are distinct racks.
    if distinct.len() < held.len() {
        cluster.broken.report(Invariant::I6, format!("stripe {id} has two chunks on one site: {held:?}"));
    }
    let debt = record.locations.len() - held.len();
    if debt > cluster.most_debt() {
        cluster.broken.report(
            Invariant::I7,
            format!(
                "stripe {id} was acknowledged with {debt} chunks missing, {} are allowed",
                cluster.most_debt()
            ),
        );
    }
}

fn look(site: &SiteMachine, chunk: ChunkId, location: &Location, chunk_len: u32) -> Condition {
    let Some(store) = site.store() else { return Condition::Away };
    // In virtual time the store answers at once.
    match store.verify(chunk).now_or_never() {
        Some(Ok(info)) if info.crc32c == location.crc32c && info.len == chunk_len => Condition::Good,
        Some(Ok(info)) => Condition::Bad(format!("{} bytes with checksum {:08x}", info.len, info.crc32c)),
        Some(Err(error)) => Condition::Bad(error.to_string()),
        None => Condition::Away,
    }
}

/// I7 for one site that has just started: it has every chunk that metadata names there, but those that were taken.
pub fn check_site(cluster: &Cluster, site: &SiteMachine) {
    let Some(stripes) = committed(cluster) else { return };
    for (id, record) in stripes {
        for (index, location) in record.locations.iter().enumerate().filter(|(_, at)| at.site == site.id().0)
        {
            let chunk = chunk_of(id, index, location);
            if cluster.ledger.is_hurt(site.id(), chunk) {
                continue;
            }
            if let Condition::Bad(why) = look(site, chunk, location, record.chunk_len) {
                let id = site.id();
                cluster
                    .broken
                    .report(Invariant::I7, format!("site {id} has lost chunk {chunk} in a crash: {why}"));
            }
        }
    }
}

/// A site that is watched: I8 at every delete.
#[derive(Debug)]
pub struct GuardedSite {
    site: Arc<SiteMachine>,
    engine: Arc<EngineMachine>,
    broken: Arc<Broken>,
}

impl GuardedSite {
    /// Watches `site`.
    pub fn new(site: Arc<SiteMachine>, engine: Arc<EngineMachine>, broken: Arc<Broken>) -> Self {
        Self { site, engine, broken }
    }

    /// I8: no committed stripe names a chunk that is to be deleted here.
    fn check_delete(&self, chunks: &[ChunkId]) {
        for chunk in chunks {
            let Some(Some(row)) = self.engine.peek(&keys::stripe(chunk.stripe)) else { continue };
            let Ok(record) = row.record::<Stripe>() else { continue };
            let named = record.locations.get(usize::from(chunk.index));
            if named.is_some_and(|at| at.site == self.id().0 && at.generation == chunk.generation.0) {
                let site = self.id();
                self.broken.report(
                    Invariant::I8,
                    format!("chunk {chunk} on site {site} is deleted while it is named"),
                );
            }
        }
    }
}

#[async_trait]
impl Site for GuardedSite {
    fn id(&self) -> SiteId {
        Site::id(&*self.site)
    }

    fn rack(&self) -> RackId {
        self.site.rack()
    }

    fn last_load(&self) -> LoadReport {
        self.site.last_load()
    }

    fn read(&self, request: ReadRequest) -> ReadStream {
        self.site.read(request)
    }

    async fn write(&self, request: WriteRequest) -> Result<LoadReport, SiteError> {
        self.site.write(request).await
    }

    async fn delete(&self, request: DeleteRequest) -> Result<LoadReport, SiteError> {
        self.check_delete(&request.chunks);
        self.site.delete(request).await
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        self.site.list(from, limit).await
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        self.site.verify(chunk).await
    }

    fn combine(&self, request: CombineRequest) -> SliceStream {
        self.site.combine(request)
    }

    async fn assemble(&self, request: AssembleRequest) -> Result<LoadReport, SiteError> {
        self.site.assemble(request).await
    }

    async fn status(&self) -> Result<SiteStatus, SiteError> {
        self.site.status().await
    }
}
