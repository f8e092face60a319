//! Sealing: partitions that stay where they are become members of a wide stripe, which gets parities; then the parities of their own
//! stripes go.
//!
//! What is to be done next follows from the record alone, so that any service goes on where another has ended
//! ([`advance`]):
//!
//! | state | what is done | until |
//! |--|--|--|
//! | building | members are *claimed*: their own stripes say which wide stripe they belong to; then the parities are made by trees, verified on their media against predicted checksums, and named | sealed |
//! | sealed | own stripes of which all data chunks are in sealed wide stripes drop their parities, while the sites of all these answer | complete |
//! | aborting | claims are taken back, then the record goes | gone |
//!
//! At every step each data chunk is protected in full by its own stripe, by the wide one, or by both.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use futures::future::try_join_all;
use futures::stream::{self, StreamExt, TryStreamExt};
use striate_codec::{Code, MultipleChecksums, predict_checksum};
use striate_core::{ChunkId, Generation, Profile, RackId, SiteId, StripeId};
use striate_meta::records::{GarbageChunk, Location, Member, Stripe, WideState};
use striate_meta::{Commit, Precondition, Row, ScanRange, keys};
use striate_plan::{PlacementFault, PlacementRule, check_placement};
use striate_site::{Priority, SiteError};

use super::links::{copy_of, is_same_file};
use crate::error::StripeError;
use crate::table::{OpenedStripe, holders, inconsistent, is_hole, wide_of};
use crate::write::change::{Debt, StripeChange};
use crate::write::entry::{cancel, put_record, unnamed_of};
use crate::write::group::Packer;
use crate::write::placements::require_placement;
use crate::write::release::add_garbage;
use crate::write::writes::Writes;

/// Own stripes that one transaction claims: with the wide one, as many preconditions as a transaction may have.
const CLAIMED_AT_ONCE: usize = 45;
/// Data chunks that are read at the same time for their checksums.
const READ_AT_ONCE: usize = 16;
/// So often a step is tried again that loses against other changes.
const ATTEMPTS: usize = 16;
/// So many debts are looked through as a whole.
const FEW_DEBTS: usize = 256;

/// What a wide stripe is to be made of.
#[derive(Clone, Debug)]
pub struct WidePlan {
    /// Its profile, of the wide layout.
    pub profile: Profile,
    /// Bytes of each chunk.
    pub chunk_len: u32,
    /// The k members, by position: a stripe and the index of its data chunk. `None` is a hole.
    pub members: Vec<Option<(StripeId, usize)>>,
}

/// What became of a wide stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WideStep {
    /// It is complete, and nothing is left to be done.
    Complete,
    /// Some own stripes keep their parities for now: they are in debt, or others of their data chunks are in no sealed stripe.
    Sealed,
    /// It was given up, and is gone.
    Aborted,
    /// There is no such stripe.
    Gone,
}

impl Packer {
    /// Names a wide stripe (S1): from now on it is found, and any service goes on with it. `None` where a member cannot be one: it
    /// is lost or gone, or is a member of another, or has moved to where the rule does not let it be.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn begin_wide(&self, plan: &WidePlan) -> Result<Option<StripeId>, StripeError> {
        let shared = &self.writes().shared;
        let code = shared.table.code(&plan.profile)?;
        let ids: Vec<StripeId> = plan.members.iter().flatten().map(|&(stripe, _)| stripe).collect();
        let own = Own::read(self.writes(), &ids).await?;
        let mut record = Stripe {
            profile: plan.profile.to_string(),
            chunk_len: plan.chunk_len,
            locations: vec![Location::default(); code.n()],
            generation: 0,
            len: code.k() as u64 * u64::from(plan.chunk_len),
            ..Stripe::default()
        };
        record.set_wide_state(WideState::Building);
        for (position, member) in plan.members.iter().enumerate() {
            let Some((stripe, index)) = *member else {
                record.members.push(Member::default());
                continue;
            };
            let Some((of, location)) = own.free_member(stripe, index, plan.chunk_len) else {
                return Ok(None);
            };
            record.locations[position] = copy_of(location);
            record.members.push(member_of(stripe, index, of.chunk_len));
        }
        // Claims require what is read here, or what is checked again.
        if check_places(self.writes(), &plan.profile, &code, &record).is_err() {
            return Ok(None);
        }
        let name = self.names().await?.name_stripe().await?;
        let mut tx = shared.table.transaction();
        tx.require(Precondition::Exists(name.range.key())).delete(name.range.key());
        tx.require_unchanged(keys::stripe(name.id), None);
        put_record(&mut tx, name.id, &record, &Stripe::default());
        match self.submit(&tx).await? {
            Commit::Done(_) => Ok(Some(name.id)),
            Commit::Conflict { .. } => Err(crate::write::put::fenced()),
        }
    }
}

/// The own stripes of members, as they were read.
struct Own(Vec<(StripeId, Row, Stripe)>);

impl Own {
    async fn read(writes: &Writes, ids: &[StripeId]) -> Result<Self, StripeError> {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let keys: Vec<Bytes> = ids.iter().map(|&id| keys::stripe(id)).collect();
        let mut own = Vec::with_capacity(ids.len());
        for (id, row) in ids.into_iter().zip(writes.shared.table.meta().get_many(&keys).await?) {
            if let Some(row) = row {
                let record = row.record()?;
                own.push((id, row, record));
            }
        }
        Ok(Self(own))
    }

    fn location(&self, stripe: StripeId, index: usize) -> Option<(&Stripe, &Location)> {
        let at = self.0.binary_search_by_key(&stripe, |(id, ..)| *id).ok()?;
        let record = &self.0[at].2;
        Some((record, record.locations.get(index)?))
    }

    /// Where a chunk is that may become a member.
    fn free_member(&self, stripe: StripeId, index: usize, chunk_len: u32) -> Option<(&Stripe, &Location)> {
        let (record, location) = self.location(stripe, index)?;
        is_free(record, location, chunk_len).then_some((record, location))
    }
}

/// Whether a chunk may become a member of a wide stripe with chunks of `chunk_len` bytes.
pub(super) fn is_free(stripe: &Stripe, location: &Location, chunk_len: u32) -> bool {
    let is_narrow = stripe.members.is_empty() && !stripe.dead;
    location.site != 0 && location.wide.is_empty() && is_narrow && stripe.chunk_len <= chunk_len
}

/// A chunk of `len` bytes as a member.
pub(super) fn member_of(stripe: StripeId, index: usize, len: u32) -> Member {
    Member { stripe: stripe.to_bytes().to_vec().into(), index: index as u32, len }
}

/// Goes on with a wide stripe until nothing is left to be done, or nothing can be now.
///
/// # Errors
/// When the metadata store fails, or parities cannot be made now: [`StripeError::Unreadable`] or [`StripeError::TooFewSites`] say
/// why.
pub(crate) async fn advance(writes: &Writes, id: StripeId) -> Result<WideStep, StripeError> {
    for _ in 0..ATTEMPTS {
        let Some(stripe) = writes.shared.table.find(id).await? else { return Ok(WideStep::Gone) };
        match stripe.record.wide_state() {
            WideState::Narrow => return Ok(WideStep::Gone),
            WideState::Building => match claim(writes, &stripe).await? {
                Claimed::All => seal(writes, stripe).await?,
                Claimed::NotNow => {}
                Claimed::Never => begin_to_abort(writes, &stripe).await?,
            },
            WideState::Sealed => {
                if !drop_narrow_parities(writes, &stripe).await? {
                    return Ok(WideStep::Sealed);
                }
                settle(writes, &stripe).await?;
            }
            WideState::Complete => return Ok(WideStep::Complete),
            WideState::Aborting => {
                if take_claims_back(writes, &stripe).await? && remove(writes, &stripe).await? {
                    return Ok(WideStep::Aborted);
                }
            }
        }
    }
    Err(StripeError::Busy)
}

/// Gives a wide stripe up that is being built (A1). `false` when it is not, or not any more.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn abort(writes: &Writes, id: StripeId) -> Result<bool, StripeError> {
    for _ in 0..ATTEMPTS {
        let Some(stripe) = writes.shared.table.find(id).await? else { return Ok(false) };
        match stripe.record.wide_state() {
            WideState::Building => begin_to_abort(writes, &stripe).await?,
            WideState::Aborting => return Ok(true),
            WideState::Narrow | WideState::Sealed | WideState::Complete => return Ok(false),
        }
    }
    Err(StripeError::Busy)
}

/// What claiming came to.
enum Claimed {
    All,
    /// Records have changed meanwhile.
    NotNow,
    /// A member is lost or gone, or another's, or where the rule does not let it be.
    Never,
}

/// S2 and S2′: writes into the members' own stripes where they belong to. Copies that are out of date are mended first.
async fn claim(writes: &Writes, wide: &OpenedStripe) -> Result<Claimed, StripeError> {
    let all: Vec<(usize, StripeId, usize)> = wide.record.member_chunks().collect();
    let own = Own::read(writes, &all.iter().map(|&(_, stripe, _)| stripe).collect::<Vec<_>>()).await?;
    let (mut refreshed, mut unclaimed) = (wide.record.clone(), Vec::new());
    for (position, stripe, index) in all {
        let Some((record, location)) = own.location(stripe, index) else { return Ok(Claimed::Never) };
        match wide_of(location) {
            Some(at) if at == (wide.id, position) => continue,
            None if is_free(record, location, wide.record.chunk_len) => {
                unclaimed.push((position, stripe, index))
            }
            Some(_) | None => return Ok(Claimed::Never),
        }
        if !is_same_file(&refreshed.locations[position], location) {
            refreshed.locations[position] = copy_of(location);
        }
    }
    if refreshed.locations != wide.record.locations {
        return refresh(writes, wide, refreshed).await;
    }
    if unclaimed.is_empty() {
        return Ok(Claimed::All);
    }
    unclaimed.sort_by_key(|&(_, stripe, _)| stripe);
    let mut from = 0;
    while from < unclaimed.len() {
        let mut stripes = 0;
        let mut to = from;
        while to < unclaimed.len() && stripes < CLAIMED_AT_ONCE {
            let of = unclaimed[to].1;
            to += unclaimed[to..].iter().take_while(|&&(_, stripe, _)| stripe == of).count();
            stripes += 1;
        }
        if !claim_some(writes, wide, &own, &unclaimed[from..to]).await? {
            return Ok(Claimed::NotNow);
        }
        from = to;
    }
    // What was read before the last claim may have changed since.
    Ok(Claimed::NotNow)
}

async fn claim_some(
    writes: &Writes,
    wide: &OpenedStripe,
    own: &Own,
    members: &[(usize, StripeId, usize)],
) -> Result<bool, StripeError> {
    let mut tx = writes.shared.table.transaction();
    tx.require_unchanged(keys::stripe(wide.id), Some(&wide.row));
    for (id, row, before) in &own.0 {
        let mut record = before.clone();
        for &(position, _, index) in members.iter().filter(|(_, stripe, _)| stripe == id) {
            record.locations[index].claim(wide.id, position);
        }
        if record != *before {
            tx.require_unchanged(keys::stripe(*id), Some(row));
            put_record(&mut tx, *id, &record, before);
        }
    }
    let ids: Vec<StripeId> = members.iter().map(|&(_, stripe, _)| stripe).collect();
    commit(writes, tx, &ids).await
}

/// Whether the members are where the rule lets them be, as this process knows the sites.
fn check_places(
    writes: &Writes,
    profile: &Profile,
    code: &Code,
    record: &Stripe,
) -> Result<(), PlacementFault> {
    let racks = writes.shared.sites.rack_count();
    let rule = striate_plan::PlacementRule::new(profile, code, racks);
    let views = writes.shared.sites.views();
    let known: HashMap<SiteId, RackId> =
        views.iter().map(|view| (view.site.id(), view.site.rack())).collect();
    let sites: Vec<SiteId> = record.locations.iter().map(|at| SiteId(at.site)).collect();
    check_placement(&rule, &sites, |site| known.get(&site))
}

/// S2′: a member has moved before it was claimed.
async fn refresh(writes: &Writes, wide: &OpenedStripe, record: Stripe) -> Result<Claimed, StripeError> {
    match check_places(writes, &wide.profile, &wide.code, &record) {
        Ok(()) => {}
        // It may be back soon.
        Err(PlacementFault::UnknownSite(_)) => return Ok(Claimed::NotNow),
        Err(_) => return Ok(Claimed::Never),
    }
    let mut tx = writes.shared.table.transaction();
    tx.require_unchanged(keys::stripe(wide.id), Some(&wide.row));
    put_record(&mut tx, wide.id, &record, &wide.record);
    commit(writes, tx, &[wide.id]).await?;
    Ok(Claimed::NotNow)
}

/// S3 to S5: the parities are made where they will be, verified and named.
async fn seal(writes: &Writes, stripe: OpenedStripe) -> Result<(), StripeError> {
    let (id, k) = (stripe.id, stripe.code.k());
    let products = products_of_members(writes, &stripe).await?;
    let mut change = StripeChange::new(writes, stripe, Priority::Background).await?;
    for index in k..change.code.n() {
        let mut row = change.code.row(index);
        let holes = (0..k).filter(|&position| is_hole(&change.record, position));
        holes.for_each(|position| row[position] = 0);
        let predicted = predict_checksum(&row, &products, change.record.chunk_len.into());
        change.record.locations[index].crc32c =
            predicted.map_err(|error| inconsistent(id, error.to_string()))?;
    }
    let parities: Vec<usize> = (k..change.code.n()).collect();
    let mut candidates = writes.shared.sites.candidates();
    candidates.retain(|of| change.record.locations.iter().all(|at| at.site != of.site.0));
    let (racks, mut random) = (change.racks(&parities), writes.shared.runtime.rng());
    let places = change.rule().draw_parities(&mut random, &candidates, &racks, k);
    if places.len() < parities.len() {
        return Err(StripeError::TooFewSites {
            available: places.len(),
            needed: parities.len(),
            reason: format!("the parities of wide stripe {id} have no legal sites"),
        });
    }
    let Some(generation) = change.open(&places).await? else { return Ok(()) };
    // Together: the trees fill each other's pauses, and read a member while the system's cache still has it.
    change.make_together(places.len());
    let making = places.iter().map(|&(index, site)| make_parity(writes, &change, index, site, generation));
    if let Err(error) = try_join_all(making).await {
        change.give_up(&[], generation).await;
        return Err(error);
    }
    let mut replaced = Vec::new();
    for &(index, site) in &places {
        replaced.extend(change.replace(index, site, generation));
    }
    change.record.set_wide_state(WideState::Sealed);
    if !change.swap(replaced, Debt::AsItIs).await? {
        change.give_up(&[], generation).await;
    }
    Ok(())
}

/// One parity: made by its tree, and read back from its medium.
async fn make_parity(
    writes: &Writes,
    change: &StripeChange<'_>,
    index: usize,
    site: SiteId,
    generation: Generation,
) -> Result<(), StripeError> {
    let row = change.code.row(index);
    let terms: Vec<(u8, usize)> = (0..change.code.k())
        .filter(|&position| row[position] != 0 && change.record.locations[position].site != 0)
        .map(|position| (row[position], position))
        .collect();
    let tree = change.combine_tree(site, &terms, |_| 0.0);
    change.assemble_chunk(index, generation, &tree).await?;
    verify_made(writes, change, index, site, generation).await
}

/// A chunk that was made is read back from its medium.
pub(super) async fn verify_made(
    writes: &Writes,
    change: &StripeChange<'_>,
    index: usize,
    site: SiteId,
    generation: Generation,
) -> Result<(), StripeError> {
    let handle = writes.shared.sites.required(site)?;
    let info = handle.verify(ChunkId { stripe: change.id, index: index as u8, generation }).await?;
    match info.crc32c == change.record.locations[index].crc32c {
        true => Ok(()),
        false => Err(inconsistent(change.id, format!("chunk {index} is not what it was to be"))),
    }
}

/// The checksums of all multiples of each member, as their sites compute them.
async fn products_of_members(
    writes: &Writes,
    stripe: &OpenedStripe,
) -> Result<Vec<MultipleChecksums>, StripeError> {
    let of_position = |position: usize| async move {
        let location = &stripe.record.locations[position];
        match is_hole(&stripe.record, position) {
            true => Ok(MultipleChecksums::of_zeros(stripe.record.chunk_len.into())),
            false => {
                let len = (stripe.len_of(position), stripe.record.chunk_len);
                products_of(writes, stripe.file(position), location, len).await
            }
        }
    };
    stream::iter(0..stripe.code.k()).map(of_position).buffered(READ_AT_ONCE).try_collect().await
}

/// The checksums of all multiples of a chunk, as its site computes them; `len` is its length in bytes and that to which it is filled up
/// with zeros.
pub(super) async fn products_of(
    writes: &Writes,
    file: ChunkId,
    location: &Location,
    (len, to): (u32, u32),
) -> Result<MultipleChecksums, StripeError> {
    let products = writes.shared.sites.required(SiteId(location.site))?.products(file, len).await?;
    match products.0[0] == location.crc32c {
        true => Ok(products.followed_by_zeros(u64::from(to - len))),
        false => Err(StripeError::Site(SiteError::Missing(file))),
    }
}

/// S6: whether every own stripe has dropped its parities that may. Those that cannot yet are found again with another wide stripe, or
/// when their debt is paid.
async fn drop_narrow_parities(writes: &Writes, wide: &OpenedStripe) -> Result<bool, StripeError> {
    let mut ids: Vec<StripeId> = wide.record.member_chunks().map(|(_, stripe, _)| stripe).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut are_all = true;
    for id in ids {
        are_all &= drop_parities_of(writes, id).await? != Dropped::NotNow;
    }
    Ok(are_all)
}

#[derive(PartialEq, Eq)]
enum Dropped {
    Done,
    /// A data chunk is in no wide stripe, or in one that is not sealed: whoever seals that one comes by again.
    Later,
    /// It, or a wide stripe of its, is in debt, or lacks a site, or it is being changed all the time.
    NotNow,
}

async fn drop_parities_of(writes: &Writes, id: StripeId) -> Result<Dropped, StripeError> {
    for _ in 0..ATTEMPTS {
        let Some(stripe) = writes.shared.table.find(id).await? else { return Ok(Dropped::Done) };
        if stripe.record.dropped {
            return Ok(Dropped::Done);
        }
        let k = stripe.code.k();
        let mut wides: Vec<StripeId> =
            stripe.record.locations[..k].iter().filter_map(wide_of).map(|(wide, _)| wide).collect();
        if wides.len() < k {
            return Ok(Dropped::Later);
        }
        wides.sort_unstable();
        wides.dedup();
        let keys: Vec<Bytes> = wides.iter().map(|&wide| keys::stripe(wide)).collect();
        let sites = writes.shared.sites.snapshot();
        let mut members = BTreeSet::new();
        for row in writes.shared.table.meta().get_many(&keys).await? {
            let record = row.map(|row| row.record::<Stripe>()).transpose()?;
            let Some(record) = record.filter(Stripe::is_sealed) else { return Ok(Dropped::Later) };
            let is_there = |(index, at): (usize, &Location)| {
                is_hole(&record, index) || sites.is_readable(SiteId(at.site))
            };
            // What it may lose is for losses to come.
            if !record.locations.iter().enumerate().all(is_there) {
                return Ok(Dropped::NotNow);
            }
            members.extend(record.member_chunks().map(|(_, stripe, _)| stripe));
        }
        if any_in_debt(writes, &members).await? {
            return Ok(Dropped::NotNow);
        }
        let debts: Vec<Bytes> = wides.iter().copied().chain([id]).map(keys::debt).collect();
        if writes.shared.table.meta().get_many(&debts).await?.iter().any(Option::is_some) {
            return Ok(Dropped::NotNow);
        }
        if drop_once(writes, &stripe, debts).await? {
            return Ok(Dropped::Done);
        }
    }
    Ok(Dropped::NotNow)
}

/// Whether one of these stripes is known to lack something.
async fn any_in_debt(writes: &Writes, ids: &BTreeSet<StripeId>) -> Result<bool, StripeError> {
    let meta = writes.shared.table.meta();
    // Mostly there are few: then one look at all of them serves.
    let debts = meta.scan(ScanRange::prefix(keys::DEBTS), FEW_DEBTS).await?;
    if debts.len() < FEW_DEBTS {
        return Ok(debts.iter().filter_map(|row| keys::stripe_of(&row.key)).any(|id| ids.contains(&id)));
    }
    let keys: Vec<Bytes> = ids.iter().copied().map(keys::debt).collect();
    Ok(meta.get_many(&keys).await?.iter().any(Option::is_some))
}

/// Has a stripe do without its parities; answers the files of those that it had.
pub(in crate::write) fn do_without_parities(record: &mut Stripe, k: usize) -> Vec<GarbageChunk> {
    let named = record.locations.iter().enumerate().skip(k).filter(|(_, at)| at.site != 0);
    let garbage = named.map(|(index, at)| at.to_garbage(index)).collect();
    record.locations[k..].iter_mut().for_each(|at| at.site = 0);
    record.dropped = true;
    garbage
}

async fn drop_once(writes: &Writes, stripe: &OpenedStripe, debts: Vec<Bytes>) -> Result<bool, StripeError> {
    let (id, before, k) = (stripe.id, &stripe.record, stripe.code.k());
    let mut record = before.clone();
    let mut garbage = do_without_parities(&mut record, k);
    // A repair of a parity that closes later would name what nobody keeps.
    let entries = std::mem::take(&mut record.entries);
    garbage.extend(entries.iter().flat_map(|entry| unnamed_of(before, entry)));
    let old = keys::placement_of(holders(before));
    let new = writes.ensure_placement(&holders(&record)).await?;
    let mut tx = writes.shared.table.transaction();
    tx.require_unchanged(keys::stripe(id), Some(&stripe.row));
    require_placement(&mut tx, new);
    for debt in debts {
        tx.require(Precondition::Absent(debt));
    }
    put_record(&mut tx, id, &record, before);
    if old != new {
        tx.delete(keys::reverse(old, id)).put(keys::reverse(new, id), Bytes::new());
    }
    if !garbage.is_empty() {
        add_garbage(&mut tx, id, garbage);
    }
    let is_done = commit(writes, tx, &[id]).await?;
    if !is_done {
        writes.forget_placement(new);
    }
    Ok(is_done)
}

/// S6 for one stripe that has cooled. `false` where it must keep its parities: one of its chunks is in no sealed wide stripe, or something
/// is in debt.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn drop_parities(writes: &Writes, id: StripeId) -> Result<bool, StripeError> {
    Ok(drop_parities_of(writes, id).await? == Dropped::Done)
}

/// N: a stripe gets its own parities back, since what it holds is read often. They become debt, which repair pays; its wide stripes go on
/// protecting it. `false` where it has not dropped them, or has changed meanwhile.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn narrow_again(writes: &Writes, id: StripeId) -> Result<bool, StripeError> {
    let Some(stripe) = writes.shared.table.find(id).await? else { return Ok(false) };
    if !stripe.record.dropped || stripe.record.dead || !keeps_rule(writes, &stripe) {
        return Ok(false);
    }
    let record = Stripe { dropped: false, ..stripe.record.clone() };
    let mut tx = writes.shared.table.transaction();
    tx.require_unchanged(keys::stripe(id), Some(&stripe.row));
    put_record(&mut tx, id, &record, &stripe.record);
    tx.put(keys::debt(id), Bytes::new());
    commit(writes, tx, &[id]).await
}

/// Whether a stripe's data chunks are where its own rule lets them be: while it had no parities only their wide stripes' did.
fn keeps_rule(writes: &Writes, stripe: &OpenedStripe) -> bool {
    let sites = &writes.shared.sites;
    let rule = PlacementRule::new(&stripe.profile, &stripe.code, sites.rack_count());
    let places: Vec<SiteId> = stripe.record.locations.iter().map(|at| SiteId(at.site)).collect();
    let racks: HashMap<SiteId, RackId> =
        places.iter().filter_map(|&site| Some((site, sites.get(site)?.rack()))).collect();
    check_placement(&rule, &places, |site| racks.get(&site)).is_ok()
}

/// S7: nothing is left to be done.
async fn settle(writes: &Writes, wide: &OpenedStripe) -> Result<(), StripeError> {
    let mut record = wide.record.clone();
    record.set_wide_state(WideState::Complete);
    let mut tx = writes.shared.table.transaction();
    tx.require_unchanged(keys::stripe(wide.id), Some(&wide.row));
    put_record(&mut tx, wide.id, &record, &wide.record);
    commit(writes, tx, &[wide.id]).await.map(drop)
}

/// A1: no further claim is made; entries are cancelled.
async fn begin_to_abort(writes: &Writes, wide: &OpenedStripe) -> Result<(), StripeError> {
    for entry in &wide.record.entries {
        cancel(writes, wide.id, entry.generation).await?;
    }
    let Some(stripe) = writes.shared.table.find(wide.id).await? else { return Ok(()) };
    if stripe.record.wide_state() != WideState::Building || !stripe.record.entries.is_empty() {
        return Ok(());
    }
    let mut record = stripe.record.clone();
    record.set_wide_state(WideState::Aborting);
    let mut tx = writes.shared.table.transaction();
    tx.require_unchanged(keys::stripe(wide.id), Some(&stripe.row));
    put_record(&mut tx, wide.id, &record, &stripe.record);
    commit(writes, tx, &[wide.id]).await.map(drop)
}

/// A2: whether no own stripe names the wide one any more.
async fn take_claims_back(writes: &Writes, wide: &OpenedStripe) -> Result<bool, StripeError> {
    let ids: Vec<StripeId> = wide.record.member_chunks().map(|(_, stripe, _)| stripe).collect();
    let own = Own::read(writes, &ids).await?;
    let mut is_done = true;
    for (id, row, before) in &own.0 {
        let mut record = before.clone();
        for location in &mut record.locations {
            if wide_of(location).is_some_and(|(of, _)| of == wide.id) {
                *location = copy_of(location);
            }
        }
        if record != *before {
            let mut tx = writes.shared.table.transaction();
            tx.require_unchanged(keys::stripe(*id), Some(row));
            put_record(&mut tx, *id, &record, before);
            is_done &= commit(writes, tx, &[*id]).await?;
        }
    }
    Ok(is_done)
}

/// A3.
async fn remove(writes: &Writes, wide: &OpenedStripe) -> Result<bool, StripeError> {
    let mut tx = writes.shared.table.transaction();
    tx.require_unchanged(keys::stripe(wide.id), Some(&wide.row));
    tx.delete(keys::stripe(wide.id)).delete(keys::change(wide.id)).delete(keys::debt(wide.id));
    commit(writes, tx, &[wide.id]).await
}

/// Commits a change of these stripes' records; `false` when one was changed meanwhile.
pub(super) async fn commit(
    writes: &Writes,
    tx: striate_meta::Transaction,
    of: &[StripeId],
) -> Result<bool, StripeError> {
    let forget = || of.iter().for_each(|&id| writes.shared.table.forget(id));
    forget();
    let done = matches!(writes.shared.table.meta().commit(tx).await?, Commit::Done(_));
    forget();
    Ok(done)
}
