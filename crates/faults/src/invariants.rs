//! The invariants of reliability.md as code, under their names.
//!
//! I2 to I5 and I9 are decided by the [`history`](striate_history), except that the reader of a range detects bytes
//! that belong to no value at once (I2). The other checks bypass the network and look at what is committed and stored.
//! A *commit* here is one that writes a stripe's record; a *survey* reads all stripes:
//!
//! | | checked | what holds |
//! |--|--|--|
//! | I1 | at the end, and with exactly r chunks of each stripe lost | every object reads back |
//! | I6 | at every commit and survey | sites of a stripe, and racks |
//! | | at the end | each local group is in as few racks as hold it |
//! | I7 | at every commit that names a chunk, after every start of a site, and at the end | every named chunk is stored, unless destroyed |
//! | | at every commit of a put | it leaves out no more chunks than its quorum allows |
//! | I8 | at every delete, before and after ([`super::guard`]) | no committed stripe names what it removes |
//! | I10 | at every commit and survey | checksums and lengths are those of the first encoding, or of a later content version |
//! | I11 | at every commit and survey | generations grow, and a new place has the newest one |
//! | I12 | always | an operation ends in time |
//! | I13 | at the end | the services restore full redundancy, and empty the draining sites, in time |
//! | Orphans | at the end | the collectors leave nothing that no stripe names ([`super::orphans`]) |
//! | | at every commit that ends a change | what the change wrote is named or garbage |
//! | Members | at every commit and survey | wide stripes and their members' own stripes agree ([`super::wide`]) |
//! | Protected | at every commit and survey | parities are dropped only where sealed wide stripes protect all that they protected |
//! | I14 | two runs of one seed | the hash of all events |

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use parking_lot::Mutex;
use striate_codec::{ChunkSet, Code};
use striate_core::{ChunkId, Generation, RackId, SiteId, StripeId};
use striate_meta::records::{self, Entry, Garbage, GarbageChunk, Location, Stripe, WideState};
use striate_meta::{Precondition, Revision, Row, Transaction, Write, keys};
use striate_plan::{PlacementFault, is_durable};
use striate_site::{ChunkStore, SiteError};
use striate_stripe::{StripeOptions, file_of, holders, is_hole, len_of, own_locations};

use super::cluster::Cluster;
use super::site::SiteMachine;
use super::wide::{self, Sealing};

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
    /// Every operation ends in time.
    I12,
    /// When faults stop, full redundancy returns within a bound.
    I13,
    /// The same seed gives the same trace.
    I14,
    /// What nothing names is collected: not an invariant of reliability.md, but of the design (§4.5).
    Orphans,
    /// A wide stripe's record agrees with its members' own stripes, and these name it as their wide stripe.
    Members,
    /// No parity is dropped before a sealed wide stripe protects what it protected.
    Protected,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Broken invariants found in a run, and the state needed to find them.
#[derive(Debug, Default)]
pub struct Violations {
    found: Mutex<Vec<(Invariant, String)>>,
    stripes: Mutex<BTreeMap<StripeId, CommittedStripe>>,
    sealing: Mutex<Sealing>,
}

/// A stripe's record as last committed.
#[derive(Debug)]
struct CommittedStripe {
    record: Stripe,
    /// Revision of the row.
    revision: Revision,
}

/// Returns true if two records of a stripe have the same encoding. The parities of a wide stripe have no checksums
/// before they are computed, and other members are another encoding.
fn is_same_encoding(before: &Stripe, now: &Stripe) -> bool {
    let k = before.members.len();
    let mut both = before.locations.iter().zip(&now.locations).enumerate();
    let is_same = |(index, (before, now)): (usize, (&Location, &Location))| {
        // A change in place gives the chunk a new content version.
        before.content_version < now.content_version
            || (before.content_version == now.content_version
                && (before.crc32c == now.crc32c || (k > 0 && index >= k && before.crc32c == 0)))
    };
    before.members != now.members || (before.chunk_len == now.chunk_len && both.all(is_same))
}

fn place(at: &Location) -> (u32, u32) {
    (at.site, at.generation)
}

impl Violations {
    /// Reports a broken invariant.
    pub fn report(&self, invariant: Invariant, what: impl Into<String>) {
        self.found.lock().push((invariant, what.into()));
    }

    /// Returns the first report.
    pub fn first(&self) -> Option<(Invariant, String)> {
        self.found.lock().first().cloned()
    }

    /// I10 and I11: compares a stripe's record with the previous one. Returns the chunks in a new place, and whether
    /// the stripe is new. Skips a commit that is answered again, or after a later one. The members of a wide stripe
    /// are files of other stripes and are not compared.
    fn compare(&self, id: StripeId, stripe: &Stripe, revision: Revision) -> (Vec<usize>, bool) {
        let own = || own_locations(stripe);
        let mut stripes = self.stripes.lock();
        let before = stripes.get(&id);
        if before.is_some_and(|before| before.revision > revision) {
            return (Vec::new(), false);
        }
        let before = before.map(|before| &before.record);
        if own().any(|(_, at)| at.generation > stripe.generation) {
            self.report(Invariant::I11, format!("stripe {id} has a chunk of a generation yet to come"));
        }
        if let Some(before) = before {
            self.compare_with(id, before, stripe);
        }
        self.sealing.lock().count(before, stripe);
        let is_anew = |&(index, at): &(usize, &Location)| {
            at.site != 0 && before.is_none_or(|before| place(&before.locations[index]) != place(at))
        };
        let anew = own().filter(is_anew).map(|(index, _)| index).collect();
        // A put names all its chunks under its own generation.
        let is_put = stripe.members.is_empty() && own().all(|(_, at)| at.generation == stripe.generation);
        let is_new = before.is_none() && is_put;
        stripes.insert(id, CommittedStripe { record: stripe.clone(), revision });
        (anew, is_new)
    }

    fn compare_with(&self, id: StripeId, before: &Stripe, now: &Stripe) {
        if !is_same_encoding(before, now) {
            self.report(Invariant::I10, format!("the encoding of stripe {id} has changed"));
        }
        for ((_, before), (_, now)) in own_locations(before).zip(own_locations(now)) {
            let is_elsewhere = now.site != before.site && now.site != 0;
            if now.generation < before.generation || (is_elsewhere && now.generation == before.generation) {
                let what = format!("a generation of stripe {id} has gone back, or has two places");
                self.report(Invariant::I11, what);
            }
        }
        if now.generation < before.generation {
            self.report(Invariant::I11, format!("the generation of stripe {id} has gone back"));
        }
    }

    /// Returns what happened to wide stripes.
    pub fn sealing(&self) -> Sealing {
        *self.sealing.lock()
    }

    /// Orphans: every place in an entry that a commit removes, and every chunk that the record named before, is named
    /// by the new record or becomes garbage in the same commit. A commit whose answer was lost is not observed, so
    /// the check requires that the replaced record is the one last seen.
    fn check_unnamed(&self, id: StripeId, stripe: &Stripe, transaction: &Transaction) {
        let stripes = self.stripes.lock();
        let key = keys::stripe(id);
        let replaced = transaction.preconditions.iter().find_map(|rule| match rule {
            Precondition::Version(required, version) if *required == key => Some(*version),
            _ => None,
        });
        let Some(before) = stripes.get(&id).filter(|before| Some(before.revision) == replaced) else {
            return;
        };
        let garbage = garbage_of(transaction, id);
        for (index, at) in own_locations(&before.record).filter(|(_, at)| at.site != 0) {
            let file = at.to_garbage(index);
            if !garbage.contains(&file) && !names(stripe, &file) {
                let what = format!("{file:?} of stripe {id} was named, and is not garbage");
                self.report(Invariant::Orphans, what);
            }
        }
        let is_open = |entry: &&Entry| stripe.entries.iter().any(|open| open.generation == entry.generation);
        for entry in before.record.entries.iter().filter(|entry| !is_open(entry)) {
            for place in &entry.places {
                let file =
                    GarbageChunk { index: place.index, site: place.site, generation: entry.generation };
                if !garbage.contains(&file) && !names(stripe, &file) {
                    let what = format!(
                        "{file:?} of stripe {id} is neither named nor garbage when its change has ended"
                    );
                    self.report(Invariant::Orphans, what);
                }
            }
        }
    }
}

/// Returns true if a record names a file of its stripe, as a chunk or as a copy of one.
pub fn names(stripe: &Stripe, file: &GarbageChunk) -> bool {
    let at = own_locations(stripe).find(|(index, _)| *index == file.index as usize);
    let is_chunk = at.is_some_and(|(_, at)| (at.site, at.generation) == (file.site, file.generation));
    let file_of = |copy: &striate_meta::records::Copy| (copy.index, copy.site, copy.generation);
    is_chunk || stripe.copies.iter().any(|copy| file_of(copy) == (file.index, file.site, file.generation))
}

/// Checks every stripe record when it is committed, and every removal of a mark: I6, I7, I10 and I11.
pub fn watch_commits(cluster: &Arc<Cluster>) {
    let weak = Arc::downgrade(cluster);
    cluster.engine.observe(move |transaction, revision| {
        let Some(cluster) = weak.upgrade() else { return };
        for (id, record) in stripes_of(transaction) {
            cluster.broken.check_unnamed(id, &record, transaction);
            check_commit(&cluster, id, &record, revision);
        }
        wide::check_commit(&cluster, transaction);
        cluster.packed.observe(&cluster, transaction, revision);
    });
}

/// Returns the stripe records that a transaction writes.
fn stripes_of(transaction: &Transaction) -> Vec<(StripeId, Stripe)> {
    let record = |write: &Write| {
        let Write::Put(key, value) = write else { return None };
        let id = keys::stripe_of(key).filter(|_| key.starts_with(keys::STRIPES))?;
        Some((id, records::decode(value).ok()?))
    };
    transaction.writes.iter().filter_map(record).collect()
}

/// Returns the chunks of a stripe that a transaction turns into garbage.
fn garbage_of(transaction: &Transaction, id: StripeId) -> Vec<GarbageChunk> {
    let garbage = |write: &Write| {
        let Write::Put(key, value) = write else { return None };
        let garbage: Garbage = key.starts_with(keys::GARBAGE).then(|| records::decode(value).ok())??;
        (garbage.stripe == id.to_bytes().as_slice()).then_some(garbage.chunks)
    };
    transaction.writes.iter().filter_map(garbage).flatten().collect()
}

fn check_commit(cluster: &Cluster, id: StripeId, record: &Stripe, revision: Revision) {
    check_placement(cluster, id, record);
    let (anew, is_new) = cluster.broken.compare(id, record, revision);
    if is_new {
        check_debt(cluster, id, record);
    }
    for index in anew {
        check_stored(cluster, file_of(id, record, index), &record.locations[index], record.chunk_len);
    }
    for copy in &record.copies {
        let index = copy.index as usize;
        let as_location =
            Location { site: copy.site, generation: copy.generation, ..record.locations[index].clone() };
        let file = ChunkId { stripe: id, index: copy.index as u8, generation: Generation(copy.generation) };
        check_stored(cluster, file, &as_location, record.chunk_len);
    }
}

/// Checks I7 for one file that a record names.
fn check_stored(cluster: &Cluster, chunk: ChunkId, at: &Location, chunk_len: u32) {
    let Some(site) = cluster.site(SiteId(at.site)) else { return };
    if cluster.ledger.is_hurt(site.id(), chunk) {
        return;
    }
    if let Some(why) = lacks(&site, chunk, at, chunk_len) {
        let what = format!("chunk {chunk} is named on site {}, which has not stored it: {why}", site.id());
        cluster.broken.report(Invariant::I7, what);
    }
}

/// Describes why a site lacks a chunk or has other bytes; `None` if it has the chunk, or this cannot be determined
/// now.
fn lacks(site: &SiteMachine, chunk: ChunkId, location: &Location, chunk_len: u32) -> Option<String> {
    if site.is_failing() || site.fs().is_dead() {
        return None;
    }
    match site.store()?.verify(chunk).now_or_never()? {
        Ok(info) if (info.crc32c, info.len) == (location.crc32c, chunk_len) => None,
        Ok(info) => Some(format!("{} bytes with checksum {:08x}", info.len, info.crc32c)),
        Err(error @ (SiteError::Missing(_) | SiteError::Corrupt { .. })) => Some(error.to_string()),
        Err(_) => None,
    }
}

/// State of a chunk on its site's disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Present, with the bytes of the original encoding.
    Good,
    /// Left out by the write.
    Debt,
    /// Its site is down or no longer a member.
    Away,
    /// Not stored anywhere by design: a dropped parity, a parity not computed yet, or a hole.
    NoPlace,
    /// Missing or damaged; the text says how.
    Bad(String),
}

/// A committed stripe with the condition of its chunks.
#[derive(Clone, Debug)]
pub struct SurveyedStripe {
    /// Stripe id.
    pub id: StripeId,
    /// Committed record.
    pub record: Stripe,
    /// The stripe's code.
    pub code: Code,
    /// Condition of each chunk.
    pub chunks: Vec<Condition>,
}

impl SurveyedStripe {
    /// Returns the file of a chunk.
    pub fn chunk(&self, index: usize) -> ChunkId {
        file_of(self.id, &self.record, index)
    }

    /// Returns the good chunks. A hole counts as good.
    pub fn good(&self) -> ChunkSet {
        let is_good = |(index, chunk): &(usize, &Condition)| match chunk {
            Condition::Good => true,
            Condition::NoPlace => is_hole(&self.record, *index),
            _ => false,
        };
        self.chunks.iter().enumerate().filter(is_good).map(|(index, _)| index).collect()
    }

    /// Returns true if all chunks are good.
    pub fn is_whole(&self) -> bool {
        self.chunks.iter().all(|chunk| matches!(chunk, Condition::Good | Condition::NoPlace))
    }

    /// Returns true if a local group, or the stripe, is in more racks than can hold it.
    pub fn is_spread(&self, cluster: &Cluster) -> bool {
        self.protects() && placement_fault(cluster, &self.record).is_some_and(|fault| fault.is_spread())
    }

    /// Returns true if the stripe protects its chunks. A stripe without its parities does not, nor does an unsealed
    /// wide stripe.
    pub fn protects(&self) -> bool {
        match self.record.wide_state() {
            WideState::Narrow => !self.record.dropped && !self.record.dead,
            _ => self.record.is_sealed(),
        }
    }
}

/// Returns all committed stripes at this instant; `None` if the metadata cannot be read now.
pub fn committed(cluster: &Cluster) -> Option<Vec<(StripeId, Stripe)>> {
    Some(committed_rows(cluster)?.into_iter().map(|(id, record, _)| (id, record)).collect())
}

/// Returns all committed stripes with the revisions of their rows; `None` if the metadata cannot be read now.
fn committed_rows(cluster: &Cluster) -> Option<Vec<(StripeId, Stripe, Revision)>> {
    let rows = cluster.engine.peek_all(keys::STRIPES)?;
    let stripe = |row: &Row| Some((keys::stripe_of(&row.key)?, row.record().ok()?, row.version));
    Some(rows.iter().filter_map(stripe).collect())
}

/// Returns all committed stripes with the current condition of their chunks, bypassing network and queues. Checks I6,
/// I10 and I11 on the way. `None` if the metadata cannot be read now.
pub fn survey(cluster: &Cluster) -> Option<Vec<SurveyedStripe>> {
    let stripes = committed_rows(cluster)?;
    check_index(cluster, &stripes)?;
    let surveyed = stripes.into_iter().map(|(id, record, revision)| {
        check_placement(cluster, id, &record);
        cluster.broken.compare(id, &record, revision);
        let (_, code) = cluster.profile_of(&record);
        let condition = |(index, location): (usize, &Location)| match SiteId(location.site) {
            _ if !has_place(&record, code.k(), index) => Condition::NoPlace,
            SiteId(0) => Condition::Debt,
            site => match cluster.site(site) {
                None => Condition::Away,
                Some(site) => {
                    condition_of(&site, file_of(id, &record, index), location, len_of(&record, index))
                }
            },
        };
        let chunks = record.locations.iter().enumerate().map(condition).collect();
        SurveyedStripe { id, record, code, chunks }
    });
    let surveyed: Vec<SurveyedStripe> = surveyed.collect();
    wide::check_all(cluster, surveyed.iter().map(|stripe| (stripe.id, &stripe.record)));
    Some(surveyed)
}

/// I8 of the index: each site leads to the stripes that have chunks on it. `None` if the metadata cannot be read now.
fn check_index(cluster: &Cluster, stripes: &[(StripeId, Stripe, Revision)]) -> Option<()> {
    let keys_of = |prefix: &[u8]| -> Option<BTreeSet<Bytes>> {
        Some(cluster.engine.peek_all(prefix)?.into_iter().map(|row| row.key).collect())
    };
    let (placements, reverses) = (keys_of(keys::PLACEMENTS)?, keys_of(keys::REVERSES)?);
    for (id, record, _) in stripes {
        let sites = holders(record);
        let placement = keys::placement_of(sites.iter().copied());
        // A wide stripe without parities has no chunks of its own.
        if !sites.is_empty() && !reverses.contains(&keys::reverse(placement, *id)) {
            cluster.broken.report(Invariant::I8, format!("stripe {id} is not in the index"));
        }
        for site in sites.into_iter().filter(|&site| !placements.contains(&keys::placement(site, placement)))
        {
            cluster.broken.report(Invariant::I8, format!("site {site} does not lead to stripe {id}"));
        }
    }
    Some(())
}

/// Returns true if the record requires a chunk to be stored. The members of an unsealed wide stripe are required only
/// by their own stripes, those of a dead stripe only by their wide stripes.
fn has_place(record: &Stripe, k: usize, index: usize) -> bool {
    match record.wide_state() {
        WideState::Building | WideState::Aborting => false,
        _ => striate_stripe::has_place(record, k, index),
    }
}

/// I6.
fn check_placement(cluster: &Cluster, id: StripeId, record: &Stripe) {
    // An unsealed wide stripe may have stale locations of its members. A stripe without parities, or a dead one,
    // protects nothing: the wide stripes of its chunks decide where they may be.
    let is_unsealed = matches!(record.wide_state(), WideState::Building | WideState::Aborting);
    if is_unsealed || record.dropped || record.dead {
        return;
    }
    let held: Vec<u32> =
        record.locations.iter().map(|location| location.site).filter(|&site| site != 0).collect();
    let distinct: BTreeSet<u32> = held.iter().copied().collect();
    if distinct.len() < held.len() {
        cluster.broken.report(Invariant::I6, format!("stripe {id} has two chunks on one site: {held:?}"));
    }
    let fault = placement_fault(cluster, record);
    // A group that is leaving a rack has chunks there and in the new one.
    if let Some(fault) = fault.filter(|fault| !fault.is_spread()) {
        let what = format!("stripe {id}, {}: {fault}: {held:?}", record.profile);
        cluster.broken.report(Invariant::I6, what);
    }
}

/// Returns why the placement of a stripe's chunks on the member sites is not legal, if it is not.
fn placement_fault(cluster: &Cluster, record: &Stripe) -> Option<PlacementFault> {
    let racks: BTreeMap<SiteId, RackId> =
        cluster.sites().iter().map(|site| (site.id(), RackId(site.machine.rack.to_string()))).collect();
    let known_site = |at: &Location| Some(SiteId(at.site)).filter(|site| racks.contains_key(site));
    let sites: Vec<SiteId> = record.locations.iter().map(|at| known_site(at).unwrap_or(SiteId(0))).collect();
    striate_plan::check_placement(&cluster.rule_of(record), &sites, |site| racks.get(&site)).err()
}

/// I7: the write that made the stripe left out no more than it may: the rest decodes after any further loss.
fn check_debt(cluster: &Cluster, id: StripeId, record: &Stripe) {
    let is_held = |(index, at): (usize, &Location)| (at.site != 0).then_some(index);
    let held: ChunkSet = record.locations.iter().enumerate().filter_map(is_held).collect();
    let surplus = StripeOptions::default().write_surplus;
    if !is_durable(cluster.code(), &held, surplus) {
        let what = format!(
            "stripe {id} was acknowledged with only chunks {held:?}, which do not bear {surplus} loss"
        );
        cluster.broken.report(Invariant::I7, what);
    }
}

fn condition_of(site: &SiteMachine, chunk: ChunkId, location: &Location, chunk_len: u32) -> Condition {
    let Some(store) = site.store() else { return Condition::Away };
    // In virtual time the store returns at once.
    match store.verify(chunk).now_or_never() {
        Some(Ok(info)) if info.crc32c == location.crc32c && info.len == chunk_len => Condition::Good,
        Some(Ok(info)) => Condition::Bad(format!("{} bytes with checksum {:08x}", info.len, info.crc32c)),
        Some(Err(error)) => Condition::Bad(error.to_string()),
        None => Condition::Away,
    }
}

/// Returns true if no committed stripe names a site; false if the metadata cannot be read now.
pub fn is_empty(cluster: &Cluster, site: SiteId) -> bool {
    let is_named = |(_, record): &(StripeId, Stripe)| own_locations(record).any(|(_, at)| at.site == site.0);
    committed(cluster).is_some_and(|stripes| !stripes.iter().any(is_named))
}

/// Returns true if every stripe tolerates the loss of one more chunk, and none can come to name a destroyed chunk.
pub fn can_spare_one(cluster: &Cluster) -> bool {
    survey(cluster).is_some_and(|stripes| {
        let survives = |stripe: &SurveyedStripe| stripe.code.survives(&stripe.good(), 1);
        stripes.iter().all(|stripe| !stripe.protects() || survives(stripe))
            && !may_name_what_was_taken(cluster, &stripes)
    })
}

/// Returns true if a running repair or move may still name a chunk that the injector has destroyed. While the
/// stripe's record has the chunk's generation, no other change has intervened.
pub fn may_name_what_was_taken(cluster: &Cluster, stripes: &[SurveyedStripe]) -> bool {
    let taken = cluster.ledger.taken();
    stripes.iter().any(|stripe| {
        let first = ChunkId { stripe: stripe.id, index: 0, generation: Generation(0) };
        let mut of_stripe =
            taken.range((first, SiteId(0))..).take_while(|(chunk, _)| chunk.stripe == stripe.id);
        of_stripe.any(|&(chunk, site)| {
            chunk.generation.0 == stripe.record.generation
                && !names(&stripe.record, &GarbageChunk::of(chunk, site))
        })
    })
}

/// Checks I7 for a site that has just started: it has every chunk that metadata names there, except destroyed ones.
pub fn check_site(cluster: &Cluster, site: &SiteMachine) {
    let Some(stripes) = committed(cluster) else { return };
    for (id, record) in stripes {
        for (index, location) in own_locations(&record).filter(|(_, at)| at.site == site.id().0) {
            let chunk = file_of(id, &record, index);
            if cluster.ledger.is_hurt(site.id(), chunk) {
                continue;
            }
            if let Condition::Bad(why) = condition_of(site, chunk, location, record.chunk_len) {
                let id = site.id();
                cluster
                    .broken
                    .report(Invariant::I7, format!("site {id} has lost chunk {chunk} in a crash: {why}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripe(generation: u32, at: [(u32, u32); 2]) -> Stripe {
        let location = |(site, generation)| Location { site, generation, ..Location::default() };
        Stripe { generation, locations: at.map(location).to_vec(), ..Stripe::default() }
    }

    #[test]
    fn a_generation_that_goes_back_is_found_and_a_commit_that_is_answered_again_is_not_one() {
        let id = StripeId::new(1, 1);
        let broken = Violations::default();
        let written = stripe(1, [(1, 1), (2, 1)]);
        assert_eq!(broken.compare(id, &written, Revision(5)), (vec![0, 1], true));
        assert_eq!(broken.compare(id, &stripe(2, [(1, 1), (3, 2)]), Revision(7)), (vec![1], false));
        assert_eq!(broken.compare(id, &written, Revision(5)), (Vec::new(), false), "answered once more");
        assert_eq!(broken.first(), None);
        broken.compare(id, &written, Revision(9));
        assert_eq!(broken.first().map(|(invariant, _)| invariant), Some(Invariant::I11));
    }
}
