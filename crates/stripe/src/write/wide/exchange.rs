//! Members of sealed wide stripes that change: dead ones leave holes or are replaced, and a hole is filled.
//!
//! Each is a change of content. The local parities of the positions and all global ones are rewritten in place
//! ([`super::parities`]), and one transaction names them together with the change of the members: before it the old files are named,
//! after it the new ones.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use futures::future::join_all;
use striate_codec::{ChecksumChange, MultipleChecksums};
use striate_core::{ChunkRange, Generation, RackId, SiteId, StripeId};
use striate_meta::records::{Location, Stripe, WideState};
use striate_meta::{Precondition, Transaction, keys};
use striate_site::Priority;

use super::claim::{is_free, member_of};
use super::links::{admits, copy_of, is_same_file, sites_of};
use super::parities::{Difference, make_parities, name_parities, parities_of, places_of};
use super::seal::{commit, products_of};
use crate::error::StripeError;
use crate::table::{OpenedStripe, own_locations, wide_of};
use crate::write::change::{FileAt, StripeChange};
use crate::write::entry::{has_entry, put_record, unnamed_of};
use crate::write::release::add_garbage;
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

/// One chunk that goes out of a wide stripe or comes in.
pub(super) struct Moved {
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

/// What a position holds, and is to hold; `None`: a hole.
pub(super) struct Change {
    pub(super) position: usize,
    pub(super) old: Option<Moved>,
    pub(super) new: Option<Moved>,
}

impl Change {
    fn both(&self) -> impl Iterator<Item = &Moved> {
        self.old.iter().chain(&self.new)
    }

    /// The difference of the old and the new member, in chunks of `len` bytes.
    fn difference(&self, len: u32) -> Difference {
        let zeros = MultipleChecksums::of_zeros(len.into());
        let products = |of: &Option<Moved>| of.as_ref().map_or(zeros, |of| of.products);
        let mut checksums = ChecksumChange::default();
        checksums.replace(&products(&self.old), &products(&self.new), 0);
        Difference { position: self.position, files: self.both().map(Moved::file).collect(), checksums }
    }
}

/// Puts `new`, a stripe and the index of its data chunk, at a position of a sealed wide stripe. What was there must be dead.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn exchange(
    writes: &Writes,
    id: StripeId,
    position: usize,
    new: (StripeId, usize),
) -> Result<Exchange, StripeError> {
    let Some(wide) = writes.shared.table.find(id).await? else { return Ok(Exchange::NotNow) };
    if !is_changeable(writes, &wide, &[new.0]).await? {
        return Ok(Exchange::NotNow);
    }
    let old = match wide.record.member_chunks().find(|&(at, ..)| at == position) {
        None => None,
        Some((_, of, index)) => match leaving(writes, &wide, position, (of, index)).await? {
            Some(old) => Some(old),
            None => return Ok(Exchange::NotNow),
        },
    };
    let Some(new) = coming(writes, &wide, position, new).await? else { return Ok(Exchange::Unfit) };
    change_members(writes, wide, vec![Change { position, old, new: Some(new) }]).await
}

/// Whether members of a wide stripe can change, as far as is known before it is tried: it is sealed, neither it nor the stripes of
/// those that are to come in lack anything, and the sites of its parities answer.
pub(super) async fn is_changeable(
    writes: &Writes,
    wide: &OpenedStripe,
    coming: &[StripeId],
) -> Result<bool, StripeError> {
    // To wait for changes that are under way is a courtesy: what is closed here cancels them.
    if !wide.record.is_sealed() || !wide.record.entries.is_empty() {
        return Ok(false);
    }
    let debts: Vec<_> = coming.iter().copied().chain([wide.id]).map(keys::debt).collect();
    let is_whole = !writes.shared.table.meta().get_many(&debts).await?.iter().any(Option::is_some);
    Ok(is_whole && has_parities(writes, wide).await?)
}

/// Whether the sites of a wide stripe's parities answer and have them, by a byte of each: or the others would be made for nothing.
async fn has_parities(writes: &Writes, wide: &OpenedStripe) -> Result<bool, StripeError> {
    let (sites, deadline) = (&writes.shared.sites, writes.shared.options.read_deadline);
    let known = sites.snapshot();
    if !own_locations(&wide.record).all(|(_, at)| known.is_readable(SiteId(at.site))) {
        return Ok(false);
    }
    let first_byte = |(index, at): (usize, &Location)| {
        let (site, range) = (SiteId(at.site), ChunkRange { chunk: wide.file(index), offset: 0, len: 1 });
        async move { (site, sites.read_range(site, range, Priority::Background, deadline).await) }
    };
    for (site, read) in join_all(own_locations(&wide.record).map(first_byte)).await {
        if let Err(error) = read {
            sites.note_failure(site, &error);
            writes.shared.table.report_damage(&error.into()).await?;
            return Ok(false);
        }
    }
    Ok(true)
}

/// Rewrites the parities that cover these positions, and commits them with the change.
///
/// # Errors
/// When the metadata store fails.
pub(super) async fn change_members(
    writes: &Writes,
    wide: OpenedStripe,
    changes: Vec<Change>,
) -> Result<Exchange, StripeError> {
    let positions: Vec<usize> = changes.iter().map(|of| of.position).collect();
    let Some(parities) = parities_of(&wide, &positions) else { return Ok(Exchange::NotNow) };
    let id = wide.id;
    let mut change = StripeChange::new(writes, wide, Priority::Background).await?;
    let before = change.record.clone();
    let Some(generation) = change.open(&places_of(&before, &parities)).await? else {
        return Ok(Exchange::NotNow);
    };
    change.make_together(parities.len());
    let differences: Vec<Difference> = changes.iter().map(|of| of.difference(before.chunk_len)).collect();
    let whole: Vec<Range<u32>> = std::iter::once(0..before.chunk_len).collect();
    let of = (&parities[..], &differences[..]);
    if let Err(error) = make_parities(writes, &mut change, &before, of, &whole, generation).await {
        tracing::debug!(wide = %id, ?positions, %error, "the parities of a change of members cannot be made now");
        change.give_up(&[], generation).await;
        writes.shared.table.report_damage(&error).await?;
        return Ok(Exchange::NotNow);
    }
    let plan = Plan { changes, parities };
    close(writes, &mut change, &before, &plan, generation).await
}

/// What changes together.
struct Plan {
    changes: Vec<Change>,
    /// The parities that were rewritten.
    parities: Vec<usize>,
}

/// The member at a position, if it is dead and its bytes are there.
pub(super) async fn leaving(
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
        Some(stripe)
            if index < stripe.code.k() && may_come_in(writes, wide, position, &stripe.record, index) =>
        {
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

/// Whether a data chunk of `stripe` may be the member at a position: it is free, where one of the position's racks is, and by the rule for
/// places.
fn may_come_in(writes: &Writes, wide: &OpenedStripe, position: usize, stripe: &Stripe, index: usize) -> bool {
    let is_admitted = |site: u32| admits_member(writes, wide, position, SiteId(site));
    stripe
        .locations
        .get(index)
        .is_some_and(|at| is_free(stripe, at, wide.record.chunk_len) && is_admitted(at.site))
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

/// Names the new parities and the new members, in one transaction with the records of all members' own stripes. Every other change of
/// the wide stripe that is under way is cancelled: its files are made from what was there before.
async fn close(
    writes: &Writes,
    change: &mut StripeChange<'_>,
    before: &Stripe,
    plan: &Plan,
    generation: Generation,
) -> Result<Exchange, StripeError> {
    let positions = || plan.changes.iter().map(|of| of.position);
    for _ in 0..ATTEMPTS {
        let now = writes.shared.table.find(change.id).await?;
        let Some(now) = now.filter(|now| has_entry(&now.record, generation)) else {
            // Closed by a commit whose answer was lost, or cancelled: nothing is left to be done.
            change.note_closed();
            return Ok(Exchange::NotNow);
        };
        let is_as_before =
            |index: usize| is_same_file(&now.record.locations[index], &before.locations[index]);
        let is_same = now.record.is_sealed()
            && positions().all(|at| now.record.members[at] == before.members[at])
            && positions().chain(plan.parities.iter().copied()).all(is_as_before);
        if !is_same {
            break;
        }
        let Some((tx, mut ids)) = closing(writes, change, &now, plan, generation).await? else { break };
        ids.push(change.id);
        if commit(writes, tx, &ids).await? {
            change.note_closed();
            return Ok(Exchange::Done);
        }
    }
    change.give_up(&[], generation).await;
    Ok(Exchange::NotNow)
}

/// The transaction that closes a change on top of the records as they are now, and the members' own stripes that it changes. `None` where
/// it cannot be closed any more.
async fn closing(
    writes: &Writes,
    change: &StripeChange<'_>,
    now: &OpenedStripe,
    plan: &Plan,
    generation: Generation,
) -> Result<Option<(Transaction, Vec<StripeId>)>, StripeError> {
    let mut tx = writes.shared.table.transaction();
    tx.require_unchanged(keys::stripe(now.id), Some(&now.row));
    // This change's own entry is closed, and the others are cancelled.
    let mut wide = now.clone();
    let entries = std::mem::take(&mut wide.record.entries);
    let mut owners = Owners::default();
    for Change { position, old, new } in &plan.changes {
        (wide.record.locations[*position], wide.record.members[*position]) = Default::default();
        if let Some(old) = old
            && !owners.take_out(writes, old, (now.id, *position)).await?
        {
            return Ok(None);
        }
        if let Some(new) = new
            && !owners.put_in(writes, &mut tx, new, &mut wide, *position).await?
        {
            return Ok(None);
        }
    }
    let mut garbage = name_parities(change, &mut wide.record, &plan.parities, generation);
    garbage.extend(entries.iter().flat_map(|entry| unnamed_of(&wide.record, entry)));
    put_record(&mut tx, now.id, &wide.record, &now.record);
    add_garbage(&mut tx, now.id, garbage);
    let ids = owners.put(&mut tx);
    Ok(Some((tx, ids)))
}

/// The members' own stripes as they are now, and what a transaction makes of their records.
#[derive(Default)]
struct Owners(BTreeMap<StripeId, (OpenedStripe, Stripe)>);

impl Owners {
    /// The record of a chunk's own stripe, if it still has what was added up.
    async fn of(&mut self, writes: &Writes, of: &Moved) -> Result<Option<&mut Stripe>, StripeError> {
        let (now, record) = match self.0.entry(of.stripe.id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => {
                let Some(now) = writes.shared.table.find(of.stripe.id).await? else { return Ok(None) };
                let record = now.record.clone();
                free.insert((now, record))
            }
        };
        let content = |stripe: &OpenedStripe| {
            let at = &stripe.record.locations[of.index];
            (at.crc32c, at.content_version)
        };
        Ok((content(now) == content(&of.stripe)).then_some(record))
    }

    /// The old member claims the place no more. `false` where it does not claim it now, or is not dead.
    async fn take_out(
        &mut self,
        writes: &Writes,
        old: &Moved,
        (wide, position): (StripeId, usize),
    ) -> Result<bool, StripeError> {
        let Some(record) = self.of(writes, old).await? else { return Ok(false) };
        let location = &mut record.locations[old.index];
        let is_there = record.dead && wide_of(location) == Some((wide, position));
        *location = copy_of(location);
        Ok(is_there)
    }

    /// The new member claims the vacant place, and its stripe may drop its parities from now on. `false` where the chunk may not be there
    /// any more.
    async fn put_in(
        &mut self,
        writes: &Writes,
        tx: &mut Transaction,
        new: &Moved,
        wide: &mut OpenedStripe,
        position: usize,
    ) -> Result<bool, StripeError> {
        let Some(record) = self.of(writes, new).await? else { return Ok(false) };
        if !may_come_in(writes, wide, position, record, new.index) {
            return Ok(false);
        }
        let location = &mut record.locations[new.index];
        wide.record.locations[position] = copy_of(location);
        location.claim(wide.id, position);
        wide.record.members[position] = member_of(new.stripe.id, new.index, record.chunk_len);
        wide.record.set_wide_state(WideState::Sealed);
        tx.require(Precondition::Absent(keys::debt(new.stripe.id)));
        Ok(true)
    }

    /// Adds the records to `tx`; answers whose they are.
    fn put(&self, tx: &mut Transaction) -> Vec<StripeId> {
        for (&id, (now, record)) in &self.0 {
            tx.require_unchanged(keys::stripe(id), Some(&now.row));
            put_record(tx, id, record, &now.record);
        }
        self.0.keys().copied().collect()
    }
}
