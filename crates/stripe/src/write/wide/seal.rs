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
//!
//! Parities are made by one process at a time: the entry that it opens before it makes them tells others, who leave the wide stripe alone
//! while it is there.

use futures::future::try_join_all;
use futures::stream::{self, StreamExt, TryStreamExt};
use striate_codec::{MultipleChecksums, predict_checksum};
use striate_core::{ChunkId, Generation, Profile, SiteId, StripeId};
use striate_meta::records::{Location, Member, Stripe, WideState};
use striate_meta::{Commit, Precondition, keys};
use striate_site::{Priority, SiteError};

use super::claim::{Claimed, Own, check_places, claim, member_of, take_claims_back};
use super::links::copy_of;
use super::narrow::drop_narrow_parities;
use crate::error::StripeError;
use crate::table::{OpenedStripe, inconsistent, is_hole};
use crate::write::change::{Debt, StripeChange};
use crate::write::entry::{cancel, put_record};
use crate::write::group::Packer;
use crate::write::writes::Writes;

/// Data chunks that are read at the same time for their checksums.
pub(super) const READ_AT_ONCE: usize = 16;
/// So often a step is tried again that loses against other changes.
const ATTEMPTS: usize = 16;

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
    /// It is being built, and nothing can be done now: another process makes its parities, or has died in doing so. Then its entry goes when
    /// its lease has ended.
    Postponed,
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
            WideState::Building if !stripe.record.entries.is_empty() => return Ok(WideStep::Postponed),
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

/// S3 to S5: the parities are made where they will be, verified and named.
async fn seal(writes: &Writes, stripe: OpenedStripe) -> Result<(), StripeError> {
    let (id, k) = (stripe.id, stripe.code.k());
    let products = products_of_members(writes, &stripe).await?;
    let mut change = StripeChange::new(writes, stripe, Priority::Background).await?;
    if !change.record.entries.is_empty() {
        // Another process was faster.
        return Ok(());
    }
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
