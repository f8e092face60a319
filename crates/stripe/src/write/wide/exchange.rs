//! Members of sealed wide stripes that change: a dead one leaves a hole or is replaced, and a hole is filled.
//!
//! Each is one change of content. The local parity of the position and all global ones are made anew where they are
//! ([`super::parities`]), and one transaction names them together with the change of the member: before it the old files are named,
//! after it the new ones.

use striate_codec::{ChecksumChange, MultipleChecksums};
use striate_core::{Generation, RackId, SiteId, StripeId};
use striate_meta::records::{Stripe, WideState};
use striate_meta::{Precondition, Transaction, keys};
use striate_site::Priority;

use super::claim::{is_free, member_of};
use super::links::{admits, copy_of, is_same_file, sites_of};
use super::parities::{Difference, make_parities, name_parities, parities_of, places_of};
use super::seal::{commit, products_of};
use crate::error::StripeError;
use crate::table::{OpenedStripe, wide_of};
use crate::write::change::{FileAt, StripeChange};
use crate::write::entry::{has_entry, put_record, unnamed_of};
use crate::write::release::{add_garbage, release_stripe};
use crate::write::writes::Writes;

/// So often a transaction is tried again that loses against other changes.
const ATTEMPTS: usize = 8;

/// What became of a change of members, or of what one holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// It is as was asked.
    Done,
    /// It cannot be now: another change is under way, something is to be repaired first, or records have changed meanwhile.
    NotNow,
    /// The member that was to come in cannot: it is lost, dead, another's, or the rule does not let it be there.
    Unfit,
}

/// Has a dead stripe leave its wide stripes. Its chunks become garbage when it has left the last; those of a wide stripe without
/// members too.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn leave(writes: &Writes, id: StripeId) -> Result<Exchange, StripeError> {
    for _ in 0..=u8::MAX {
        let Some(stripe) = writes.shared.table.find(id).await? else { return Ok(Exchange::Done) };
        if !stripe.record.dead {
            return Ok(Exchange::Done);
        }
        let Some((wide, position)) = stripe.record.locations.iter().find_map(wide_of) else {
            let mut tx = writes.shared.table.transaction();
            tx.require_unchanged(keys::stripe(id), Some(&stripe.row));
            release_stripe(&mut tx, id, &stripe.record);
            match commit(writes, tx, &[id]).await? {
                true => return Ok(Exchange::Done),
                false => continue,
            }
        };
        match exchange(writes, wide, position, None).await? {
            Exchange::Done => dissolve(writes, wide).await?,
            not_yet => return Ok(not_yet),
        }
    }
    Ok(Exchange::NotNow)
}

/// A sealed wide stripe of which all positions are holes protects nothing.
async fn dissolve(writes: &Writes, id: StripeId) -> Result<(), StripeError> {
    let Some(wide) = writes.shared.table.find(id).await? else { return Ok(()) };
    if !wide.record.is_sealed() || wide.record.member_chunks().next().is_some() {
        return Ok(());
    }
    let mut tx = writes.shared.table.transaction();
    tx.require_unchanged(keys::stripe(id), Some(&wide.row));
    release_stripe(&mut tx, id, &wide.record);
    commit(writes, tx, &[id]).await.map(drop)
}

/// One chunk that goes out of a wide stripe or comes in.
struct Moved {
    stripe: OpenedStripe,
    index: usize,
    /// Its multiples' checksums, filled up with zeros to the length of the wide stripe's chunks.
    products: MultipleChecksums,
}

impl Moved {
    fn file(&self) -> FileAt {
        let site = SiteId(self.stripe.record.locations[self.index].site);
        FileAt { chunk: self.stripe.file(self.index), len: self.stripe.record.chunk_len, site }
    }
}

/// What a change of the member at one position is made of.
struct Plan {
    position: usize,
    old: Option<Moved>,
    new: Option<Moved>,
    /// The parities that change, with the position's coefficients in them.
    parities: Vec<(usize, u8)>,
}

/// Puts `new`, a stripe and the index of its data chunk, at a position of a sealed wide stripe, or leaves a hole there. What was there
/// must be dead.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn exchange(
    writes: &Writes,
    id: StripeId,
    position: usize,
    new: Option<(StripeId, usize)>,
) -> Result<Exchange, StripeError> {
    let Some(wide) = writes.shared.table.find(id).await? else { return Ok(Exchange::NotNow) };
    let plan = match plan(writes, &wide, position, new).await? {
        Ok(plan) => plan,
        Err(why_not) => return Ok(why_not),
    };
    let mut change = StripeChange::new(writes, wide, Priority::Background).await?;
    let before = change.record.clone();
    let places = places_of(&before, &plan.parities);
    let Some(generation) = change.open(&places).await? else { return Ok(Exchange::NotNow) };
    let difference = difference_of(&plan, before.chunk_len);
    if let Err(error) = make_parities(writes, &mut change, &before, &difference, generation).await {
        tracing::debug!(wide = %id, position, %error, "the parities of a change of members cannot be made now");
        change.give_up(&[], generation).await;
        writes.shared.table.report_damage(&error).await?;
        return Ok(Exchange::NotNow);
    }
    close(writes, &mut change, &before, &plan, generation).await
}

/// Looks at what takes part. `Err` has why it cannot be.
async fn plan(
    writes: &Writes,
    wide: &OpenedStripe,
    position: usize,
    new: Option<(StripeId, usize)>,
) -> Result<Result<Plan, Exchange>, StripeError> {
    let table = &writes.shared.table;
    let of_position = wide.record.member_chunks().find(|&(at, ..)| at == position);
    // To wait for changes that are under way is a courtesy: what is closed here cancels them.
    if !wide.record.is_sealed() || !wide.record.entries.is_empty() {
        return Ok(Err(Exchange::NotNow));
    }
    let debts: Vec<_> = new.iter().map(|&(id, _)| id).chain([wide.id]).map(keys::debt).collect();
    if table.meta().get_many(&debts).await?.iter().any(Option::is_some) {
        return Ok(Err(Exchange::NotNow));
    }
    let old = match of_position {
        None => None,
        Some((_, id, index)) => match leaving(writes, wide, position, (id, index)).await? {
            Some(old) => Some(old),
            None => return Ok(Err(Exchange::NotNow)),
        },
    };
    let new = match new {
        None => None,
        Some(chunk) => match coming(writes, wide, position, chunk).await? {
            Some(new) => Some(new),
            None => return Ok(Err(Exchange::Unfit)),
        },
    };
    Ok(match parities_of(wide, position) {
        None => Err(Exchange::NotNow),
        Some(parities) => Ok(Plan { position, old, new, parities }),
    })
}

/// The member at a position, if it is dead and its bytes are there.
async fn leaving(
    writes: &Writes,
    wide: &OpenedStripe,
    position: usize,
    (id, index): (StripeId, usize),
) -> Result<Option<Moved>, StripeError> {
    match writes.shared.table.find(id).await? {
        Some(stripe) if is_dead_member(wide, position, &stripe, index) => {
            moved(writes, stripe, index, wide.record.chunk_len).await
        }
        _ => Ok(None),
    }
}

/// A chunk that may take a position, if its bytes are there.
async fn coming(
    writes: &Writes,
    wide: &OpenedStripe,
    position: usize,
    (id, index): (StripeId, usize),
) -> Result<Option<Moved>, StripeError> {
    match writes.shared.table.find(id).await? {
        Some(stripe) if may_come_in(writes, wide, position, &stripe, index) => {
            moved(writes, stripe, index, wide.record.chunk_len).await
        }
        _ => Ok(None),
    }
}

fn is_dead_member(wide: &OpenedStripe, position: usize, stripe: &OpenedStripe, index: usize) -> bool {
    stripe.record.dead
        && stripe.wide_of(index) == Some((wide.id, position))
        && is_same_file(&wide.record.locations[position], &stripe.record.locations[index])
}

/// Whether a chunk may be the member at a position: it is free, where one of the position's racks is, and by the rule for places.
fn may_come_in(
    writes: &Writes,
    wide: &OpenedStripe,
    position: usize,
    stripe: &OpenedStripe,
    index: usize,
) -> bool {
    let Some(location) = stripe.record.locations.get(index).filter(|_| index < stripe.code.k()) else {
        return false;
    };
    is_free(&stripe.record, location, wide.record.chunk_len)
        && admits_member(writes, wide, position, SiteId(location.site))
}

/// Whether a chunk at `site` may be the member at a position, by the rule for places. Not where another chunk is on a site that this process
/// does not know, one that has left or has just joined: its rack counts too.
pub(crate) fn admits_member(writes: &Writes, wide: &OpenedStripe, position: usize, site: SiteId) -> bool {
    let sites = &writes.shared.sites;
    let rack_of = |site: SiteId| -> Option<RackId> { sites.get(site).map(|site| site.rack()) };
    sites_of(&wide.record).all(|site| rack_of(SiteId(site)).is_some())
        && rack_of(site).is_some_and(|rack| admits(wide, position, site, &rack, &rack_of, sites.rack_count()))
}

/// `None` where its site does not have it, or does not answer.
async fn moved(
    writes: &Writes,
    stripe: OpenedStripe,
    index: usize,
    len: u32,
) -> Result<Option<Moved>, StripeError> {
    let lens = (stripe.record.chunk_len, len);
    match products_of(writes, stripe.file(index), &stripe.record.locations[index], lens).await {
        Ok(products) => Ok(Some(Moved { stripe, index, products })),
        Err(StripeError::Meta(error)) => Err(error.into()),
        Err(error) => {
            writes.shared.table.report_damage(&error).await?;
            Ok(None)
        }
    }
}

/// The difference of the old and the new member, where there are any.
fn difference_of(plan: &Plan, len: u32) -> Difference {
    let zeros = MultipleChecksums::of_zeros(len.into());
    let products = |of: &Option<Moved>| of.as_ref().map_or(zeros, |of| of.products);
    let mut checksums = ChecksumChange::default();
    checksums.replace(&products(&plan.old), &products(&plan.new), 0);
    let files = [&plan.old, &plan.new].into_iter().flatten().map(Moved::file).collect();
    let ranges = std::iter::once(0..len).collect();
    Difference { parities: plan.parities.clone(), files, ranges, checksums }
}

/// Names the new parities and the new member, in one transaction with the records of both members' own stripes. Every other change of
/// the wide stripe that is under way is cancelled: its files are made from what was there before.
async fn close(
    writes: &Writes,
    change: &mut StripeChange<'_>,
    before: &Stripe,
    plan: &Plan,
    generation: Generation,
) -> Result<Exchange, StripeError> {
    for _ in 0..ATTEMPTS {
        let now = writes.shared.table.find(change.id).await?;
        let Some(now) = now.filter(|now| has_entry(&now.record, generation)) else {
            // Closed by a commit whose answer was lost, or cancelled: nothing is left to be done.
            change.note_closed();
            return Ok(Exchange::NotNow);
        };
        let is_as_before =
            |index: usize| is_same_file(&now.record.locations[index], &before.locations[index]);
        let is_same = now.record.members[plan.position] == before.members[plan.position]
            && is_as_before(plan.position)
            && plan.parities.iter().all(|&(index, _)| is_as_before(index))
            && now.record.is_sealed();
        if !is_same {
            break;
        }
        let Some(tx) = closing(writes, change, &now, plan, generation).await? else { break };
        let own = [&plan.old, &plan.new].into_iter().flatten().map(|of| of.stripe.id);
        let ids: Vec<StripeId> = own.chain([change.id]).collect();
        if commit(writes, tx, &ids).await? {
            change.note_closed();
            return Ok(Exchange::Done);
        }
    }
    change.give_up(&[], generation).await;
    Ok(Exchange::NotNow)
}

/// A member's own stripe as it is now, if it still has what was added up.
async fn own_now(writes: &Writes, of: &Moved) -> Result<Option<OpenedStripe>, StripeError> {
    let content = |stripe: &OpenedStripe| {
        let at = &stripe.record.locations[of.index];
        (at.crc32c, at.content_version)
    };
    let now = writes.shared.table.find(of.stripe.id).await?;
    Ok(now.filter(|now| content(now) == content(&of.stripe)))
}

/// The transaction that closes a change on top of the records as they are now. `None` where it cannot be closed any more.
async fn closing(
    writes: &Writes,
    change: &StripeChange<'_>,
    now: &OpenedStripe,
    plan: &Plan,
    generation: Generation,
) -> Result<Option<Transaction>, StripeError> {
    let mut tx = writes.shared.table.transaction();
    tx.require_unchanged(keys::stripe(now.id), Some(&now.row));
    // This change's own entry is closed, and the others are cancelled.
    let mut wide = now.clone();
    let entries = std::mem::take(&mut wide.record.entries);
    (wide.record.locations[plan.position], wide.record.members[plan.position]) = Default::default();
    if let Some(old) = &plan.old
        && !take_out(writes, &mut tx, old, (now.id, plan.position)).await?
    {
        return Ok(None);
    }
    if let Some(new) = &plan.new
        && !put_in(writes, &mut tx, new, &mut wide, plan.position).await?
    {
        return Ok(None);
    }
    let mut garbage = name_parities(change, &mut wide.record, &plan.parities, generation);
    garbage.extend(entries.iter().flat_map(|entry| unnamed_of(&wide.record, entry)));
    put_record(&mut tx, now.id, &wide.record, &now.record);
    add_garbage(&mut tx, now.id, garbage);
    Ok(Some(tx))
}

/// The old member's own stripe claims the place no more. `false` where it does not claim it now, or is not dead.
async fn take_out(
    writes: &Writes,
    tx: &mut Transaction,
    old: &Moved,
    place: (StripeId, usize),
) -> Result<bool, StripeError> {
    let Some(own) = own_now(writes, old).await? else { return Ok(false) };
    if !own.record.dead || own.wide_of(old.index) != Some(place) {
        return Ok(false);
    }
    let mut left = own.record.clone();
    left.locations[old.index] = copy_of(&left.locations[old.index]);
    tx.require_unchanged(keys::stripe(own.id), Some(&own.row));
    put_record(tx, own.id, &left, &own.record);
    Ok(true)
}

/// The new member's own stripe claims the vacant place, and may drop its parities from now on. `false` where the chunk may not be there
/// any more.
async fn put_in(
    writes: &Writes,
    tx: &mut Transaction,
    new: &Moved,
    wide: &mut OpenedStripe,
    position: usize,
) -> Result<bool, StripeError> {
    let Some(own) = own_now(writes, new).await? else { return Ok(false) };
    if !may_come_in(writes, wide, position, &own, new.index) {
        return Ok(false);
    }
    let mut claimed = own.record.clone();
    wide.record.locations[position] = copy_of(&claimed.locations[new.index]);
    wide.record.members[position] = member_of(own.id, new.index, own.record.chunk_len);
    wide.record.set_wide_state(WideState::Sealed);
    claimed.locations[new.index].claim(wide.id, position);
    tx.require_unchanged(keys::stripe(own.id), Some(&own.row));
    tx.require(Precondition::Absent(keys::debt(own.id)));
    put_record(tx, own.id, &claimed, &own.record);
    Ok(true)
}
