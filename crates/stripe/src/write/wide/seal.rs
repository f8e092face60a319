//! Sealing: partitions become members of a wide stripe without moving. The wide stripe gets parities; then the
//! parities of the members' own stripes go.
//!
//! The next step follows from the record alone, so that any service can resume where another has ended ([`advance`]):
//!
//! - *building*: members are *claimed*: their own stripes record which wide stripe they belong to. Then the parities are
//!   made by trees, verified on their media against predicted checksums, and named: the wide stripe is sealed.
//! - *sealed*: own stripes whose data chunks are all in sealed wide stripes drop their parities, while the sites of all
//!   these answer. Then the wide stripe is *complete*.
//! - *aborting*: the claims are removed, then the record.
//!
//! At every step each data chunk is protected in full by its own stripe, by the wide one, or by both.
//!
//! One process at a time makes the parities. The entry that it opens first makes other processes leave the wide
//! stripe alone.

use futures::future::try_join_all;
use futures::stream::{self, StreamExt, TryStreamExt};
use striate_codec::{MultipleChecksums, predict_checksum};
use striate_core::{ChunkId, Generation, Profile, SiteId, StripeId};
use striate_meta::records::{Location, Member, Stripe, WideState};
use striate_meta::{Commit, Precondition, keys};
use striate_site::{Priority, SiteError};

use super::claim::{ClaimOutcome, MemberStripes, check_places, claim, member_of, take_claims_back};
use super::links::copy_of;
use super::narrow::drop_narrow_parities;
use crate::error::StripeError;
use crate::table::{OpenedStripe, inconsistent, is_hole};
use crate::write::change::{DebtEffect, StripeChange};
use crate::write::entry::{cancel, put_record};
use crate::write::group::Packer;
use crate::write::writes::Writes;

/// Number of data chunks read at the same time for their checksums.
pub(super) const READ_AT_ONCE: usize = 16;
/// Attempts of a step while other changes win.
const ATTEMPTS: usize = 16;

/// Plan of a new wide stripe.
#[derive(Clone, Debug)]
pub struct WidePlan {
    /// Profile, of the wide layout.
    pub profile: Profile,
    /// Length of a chunk in bytes.
    pub chunk_len: u32,
    /// The k members by position: a stripe and the index of its data chunk. `None` is a hole.
    pub members: Vec<Option<(StripeId, usize)>>,
}

/// State in which an advance left a wide stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WideStep {
    /// Complete: nothing is left to do.
    Complete,
    /// Sealed, but some own stripes keep their parities for now: they are in debt, or have other data chunks in no
    /// sealed stripe.
    Sealed,
    /// Given up and removed.
    Aborted,
    /// No such stripe exists.
    Gone,
    /// Being built, and nothing can be done now: another process is making the parities, or has died while doing so.
    /// Its entry is then cancelled once its lease has ended.
    Postponed,
}

impl Packer {
    /// Names a wide stripe (S1): from now on any service can find it and resume it. Returns `None` if a member is
    /// unfit: it is lost or gone, is a member of another stripe, or has moved to a place that the rule forbids.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn begin_wide(&self, plan: &WidePlan) -> Result<Option<StripeId>, StripeError> {
        let shared = &self.writes().shared;
        let code = shared.table.code(&plan.profile)?;
        let ids: Vec<StripeId> = plan.members.iter().flatten().map(|&(stripe, _)| stripe).collect();
        let own = MemberStripes::read(self.writes(), &ids).await?;
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
            let Some((own_record, location)) = own.free_member(stripe, index, plan.chunk_len) else {
                return Ok(None);
            };
            record.locations[position] = copy_of(location);
            record.members.push(member_of(stripe, index, own_record.chunk_len));
        }
        // Claims require the rows read here, or check them again.
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

/// Advances a wide stripe until nothing is left to do, or nothing can be done now.
///
/// # Errors
/// When the metadata store fails, or the parities cannot be made now; [`StripeError::Unreadable`] and
/// [`StripeError::TooFewSites`] say why.
pub(crate) async fn advance(writes: &Writes, id: StripeId) -> Result<WideStep, StripeError> {
    for _ in 0..ATTEMPTS {
        let Some(stripe) = writes.shared.table.find(id).await? else { return Ok(WideStep::Gone) };
        match stripe.record.wide_state() {
            WideState::Narrow => return Ok(WideStep::Gone),
            WideState::Building if !stripe.record.entries.is_empty() => return Ok(WideStep::Postponed),
            WideState::Building => match claim(writes, &stripe).await? {
                ClaimOutcome::All => seal(writes, stripe).await?,
                ClaimOutcome::NotNow => {}
                ClaimOutcome::Never => begin_to_abort(writes, &stripe).await?,
            },
            WideState::Sealed => {
                if !drop_narrow_parities(writes, &stripe).await? {
                    return Ok(WideStep::Sealed);
                }
                // S7.
                set_state(writes, &stripe, WideState::Complete).await?;
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

/// Aborts a wide stripe that is being built (A1). Returns `false` if it is not, or no longer.
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

/// Puts the predicted checksums of the parities into the record.
fn predict_checksums(
    change: &mut StripeChange<'_>,
    products: &[MultipleChecksums],
) -> Result<(), StripeError> {
    let k = change.code.k();
    for index in k..change.code.n() {
        let mut row = change.code.row(index);
        let holes = (0..k).filter(|&position| is_hole(&change.record, position));
        holes.for_each(|position| row[position] = 0);
        let predicted = predict_checksum(&row, products, change.record.chunk_len.into());
        change.record.locations[index].crc32c =
            predicted.map_err(|error| inconsistent(change.id, error.to_string()))?;
    }
    Ok(())
}

/// S3 to S5: makes the parities at their sites, verifies them and names them.
async fn seal(writes: &Writes, stripe: OpenedStripe) -> Result<(), StripeError> {
    let (id, k) = (stripe.id, stripe.code.k());
    let products = products_of_members(writes, &stripe).await?;
    let mut change = StripeChange::new(writes, stripe, Priority::Background).await?;
    if !change.record.entries.is_empty() {
        // Another process was faster.
        return Ok(());
    }
    predict_checksums(&mut change, &products)?;
    let parities: Vec<usize> = (k..change.code.n()).collect();
    let mut candidates = writes.shared.sites.candidates();
    candidates.retain(|candidate| change.record.locations.iter().all(|at| at.site != candidate.site.0));
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
    // Together: the trees fill each other's pauses, and read a member while the page cache still has it.
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
    if !change.swap(replaced, DebtEffect::AsItIs).await? {
        change.give_up(&[], generation).await;
    }
    Ok(())
}

/// Makes one parity by its tree, and reads it back from its medium.
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

/// Reads a new chunk back from its medium and compares its checksum.
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

/// Returns the checksums of all multiples of each member, as their sites compute them.
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

/// Returns the checksums of all multiples of a chunk, as its site computes them. `len` is the chunk's length in
/// bytes, and `padded_len` the length to which zeros extend it.
pub(super) async fn products_of(
    writes: &Writes,
    file: ChunkId,
    location: &Location,
    (len, padded_len): (u32, u32),
) -> Result<MultipleChecksums, StripeError> {
    let products = writes.shared.sites.required(SiteId(location.site))?.products(file, len).await?;
    match products.0[0] == location.crc32c {
        true => Ok(products.followed_by_zeros(u64::from(padded_len - len))),
        false => Err(StripeError::Site(SiteError::Missing(file))),
    }
}

/// Records another state of a wide stripe, unless its record has changed meanwhile.
async fn set_state(writes: &Writes, wide: &OpenedStripe, state: WideState) -> Result<(), StripeError> {
    let mut record = wide.record.clone();
    record.set_wide_state(state);
    let mut tx = writes.shared.table.transaction_on(wide);
    put_record(&mut tx, wide.id, &record, &wide.record);
    commit(writes, tx, &[wide.id]).await.map(drop)
}

/// A1: begins to abort. Entries are cancelled, and no further claim is made.
async fn begin_to_abort(writes: &Writes, wide: &OpenedStripe) -> Result<(), StripeError> {
    for entry in &wide.record.entries {
        cancel(writes, wide.id, entry.generation).await?;
    }
    let Some(stripe) = writes.shared.table.find(wide.id).await? else { return Ok(()) };
    if stripe.record.wide_state() != WideState::Building || !stripe.record.entries.is_empty() {
        return Ok(());
    }
    set_state(writes, &stripe, WideState::Aborting).await
}

/// A3: removes the record.
async fn remove(writes: &Writes, wide: &OpenedStripe) -> Result<bool, StripeError> {
    let mut tx = writes.shared.table.transaction_on(wide);
    tx.delete(keys::stripe(wide.id)).delete(keys::change(wide.id)).delete(keys::debt(wide.id));
    commit(writes, tx, &[wide.id]).await
}

/// Commits a change of these stripes' records. Returns `false` if one was changed meanwhile.
pub(super) async fn commit(
    writes: &Writes,
    tx: striate_meta::Transaction,
    ids: &[StripeId],
) -> Result<bool, StripeError> {
    let forget = || ids.iter().for_each(|&id| writes.shared.table.forget(id));
    forget();
    let is_committed = matches!(writes.shared.table.meta().commit(tx).await?, Commit::Done(_));
    forget();
    Ok(is_committed)
}
