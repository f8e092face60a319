//! Changes members of sealed wide stripes: dead ones leave holes or are replaced, and holes are filled.
//!
//! Each is a change of content. The local parities of the positions and all global ones are rewritten in place
//! ([`super::parities`]), and one transaction names them together with the change of the members. Before it, the old
//! files are named; after it, the new ones.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use futures::future::join_all;
use striate_codec::{ChecksumChange, MultipleChecksums};
use striate_core::{ChunkRange, Generation, RackId, SiteId, StripeId};
use striate_meta::records::{Location, Stripe, WideState};
use striate_meta::{Precondition, Transaction, keys};
use striate_plan::LeavingRacks;
use striate_site::Priority;

use super::claim::{is_free, member_of};
use super::links::{KnownRacks, admits, copy_of, is_same_file, sites_of};
use super::parities::{Difference, make_parities, name_parities, parities_of, places_of};
use super::seal::{commit, products_of};
use crate::error::StripeError;
use crate::table::{OpenedStripe, own_locations, wide_of};
use crate::write::change::{LocatedFile, StripeChange};
use crate::write::entry::{has_entry, put_record, unnamed_of};
use crate::write::release::add_garbage;
use crate::write::writes::Writes;

/// Attempts of a transaction while other changes win.
pub(super) const ATTEMPTS: usize = 8;

/// Outcome of a change of members, or of the content of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeOutcome {
    /// The change was made.
    Done,
    /// Not possible now: another change is in progress, a repair must come first, or records have changed meanwhile.
    NotNow,
    /// The new member is unfit: it is lost, dead or another stripe's, or the rule forbids its place.
    Unfit,
}

/// A chunk that leaves a wide stripe or joins it.
pub(super) struct MovedChunk {
    stripe: OpenedStripe,
    index: usize,
    /// Checksums of its multiples, padded with zeros to the length of the wide stripe's chunks.
    products: MultipleChecksums,
}

impl MovedChunk {
    fn file(&self) -> LocatedFile {
        let site = SiteId(self.stripe.record.locations[self.index].site);
        LocatedFile { chunk: self.stripe.file(self.index), len: self.stripe.record.chunk_len, site }
    }
}

/// Old and new member of a position; `None` is a hole.
pub(super) struct Change {
    pub(super) position: usize,
    pub(super) old: Option<MovedChunk>,
    pub(super) new: Option<MovedChunk>,
    /// The wide stripe that the new member leaves, and its position there.
    pub(super) comes_from: Option<(StripeId, usize)>,
}

impl Change {
    fn both(&self) -> impl Iterator<Item = &MovedChunk> {
        self.old.iter().chain(&self.new)
    }

    /// Returns the difference of the old and the new member, in chunks of `len` bytes.
    fn difference(&self, len: u32) -> Difference {
        let zeros = MultipleChecksums::of_zeros(len.into());
        let products = |chunk: &Option<MovedChunk>| chunk.as_ref().map_or(zeros, |chunk| chunk.products);
        let mut checksums = ChecksumChange::default();
        checksums.replace(&products(&self.old), &products(&self.new), 0);
        Difference { position: self.position, files: self.both().map(MovedChunk::file).collect(), checksums }
    }
}

/// Puts `new`, a stripe and the index of its data chunk, at a position of a sealed wide stripe. Its present member
/// must be dead.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn exchange(
    writes: &Writes,
    id: StripeId,
    position: usize,
    new: (StripeId, usize),
) -> Result<ExchangeOutcome, StripeError> {
    let Some(wide) = writes.shared.table.find(id).await? else { return Ok(ExchangeOutcome::NotNow) };
    if !is_changeable(writes, &wide, &[new.0]).await? {
        return Ok(ExchangeOutcome::NotNow);
    }
    let old = match wide.record.member_chunks().find(|&(at, ..)| at == position) {
        None => None,
        Some((_, stripe, index)) => match leaving_chunk(writes, &wide, position, (stripe, index)).await? {
            Some(old) => Some(old),
            None => return Ok(ExchangeOutcome::NotNow),
        },
    };
    let Some(new) = joining_chunk(writes, &wide, position, new).await? else {
        return Ok(ExchangeOutcome::Unfit);
    };
    change_members(writes, wide, vec![Change { position, old, new: Some(new), comes_from: None }]).await
}

/// Whether members of a wide stripe can change, as far as is known beforehand: it is sealed, neither it nor the
/// stripes of the joining chunks are in debt, and the sites of its parities answer.
pub(super) async fn is_changeable(
    writes: &Writes,
    wide: &OpenedStripe,
    joining: &[StripeId],
) -> Result<bool, StripeError> {
    // Waiting for changes in progress is a courtesy: closing this change cancels them.
    if !wide.record.is_sealed() || !wide.record.entries.is_empty() {
        return Ok(false);
    }
    let debts: Vec<_> = joining.iter().copied().chain([wide.id]).map(keys::debt).collect();
    let is_whole = !writes.shared.table.meta().get_many(&debts).await?.iter().any(Option::is_some);
    Ok(is_whole && has_parities(writes, wide).await?)
}

/// Whether the sites of a wide stripe's parities answer and have them. Reads a byte of each: if one were missing, the
/// others would be made for nothing.
async fn has_parities(writes: &Writes, wide: &OpenedStripe) -> Result<bool, StripeError> {
    let (sites, deadline) = (&writes.shared.sites, writes.shared.options.read_deadline);
    let snapshot = sites.snapshot();
    if !own_locations(&wide.record).all(|(_, at)| snapshot.is_readable(SiteId(at.site))) {
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

/// Rewrites the parities that cover the changed positions, and commits them with the change.
///
/// # Errors
/// When the metadata store fails.
pub(super) async fn change_members(
    writes: &Writes,
    wide: OpenedStripe,
    changes: Vec<Change>,
) -> Result<ExchangeOutcome, StripeError> {
    match MadeChange::make(writes, wide, changes).await? {
        Some(made) => close(writes, made).await,
        None => Ok(ExchangeOutcome::NotNow),
    }
}

/// A change of members whose parities are made, and not named yet.
pub(super) struct MadeChange<'a> {
    change: StripeChange<'a>,
    /// The record with the entry of this change.
    before: Stripe,
    changes: Vec<Change>,
    /// Parities that were rewritten.
    parities: Vec<usize>,
    generation: Generation,
}

impl<'a> MadeChange<'a> {
    /// Makes the parities that cover the changed positions. Returns `None` if they cannot be made now.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(super) async fn make(
        writes: &'a Writes,
        wide: OpenedStripe,
        changes: Vec<Change>,
    ) -> Result<Option<Self>, StripeError> {
        let positions: Vec<usize> = changes.iter().map(|change| change.position).collect();
        let Some(parities) = parities_of(&wide, &positions) else { return Ok(None) };
        let id = wide.id;
        let mut change = StripeChange::new(writes, wide, Priority::Background).await?;
        let before = change.record.clone();
        let Some(generation) = change.open(&places_of(&before, &parities)).await? else {
            return Ok(None);
        };
        change.make_together(parities.len());
        let differences: Vec<Difference> =
            changes.iter().map(|moved| moved.difference(before.chunk_len)).collect();
        let whole_chunk: Vec<Range<u32>> = std::iter::once(0..before.chunk_len).collect();
        let parity_change = (&parities[..], &differences[..]);
        if let Err(error) =
            make_parities(writes, &mut change, &before, parity_change, &whole_chunk, generation).await
        {
            tracing::debug!(wide = %id, ?positions, %error, "the parities of a change of members cannot be made now");
            change.give_up(&[], generation).await;
            writes.shared.table.report_damage(&error).await?;
            return Ok(None);
        }
        Ok(Some(Self { change, before, changes, parities, generation }))
    }

    pub(super) fn id(&self) -> StripeId {
        self.change.id
    }

    /// Cancels the change.
    pub(super) async fn give_up(mut self) {
        self.change.give_up(&[], self.generation).await;
    }

    /// Records that a transaction has closed the change.
    pub(super) fn note_closed(&mut self) {
        self.change.note_closed();
    }

    /// Returns the names of the stripes of the new members.
    fn joining(&self) -> impl Iterator<Item = StripeId> {
        self.changes.iter().filter_map(|change| change.new.as_ref()).map(|new| new.stripe.id)
    }

    /// Whether, by the current record, this change was not cancelled, its positions have the members they had, and
    /// the parities that it rewrote are still named.
    fn is_as_before(&self, current: &Stripe) -> bool {
        let positions = || self.changes.iter().map(|change| change.position);
        let is_same_chunk =
            |index: usize| is_same_file(&current.locations[index], &self.before.locations[index]);
        has_entry(current, self.generation)
            && current.is_sealed()
            && positions().all(|at| current.members[at] == self.before.members[at])
            && positions().chain(self.parities.iter().copied()).all(is_same_chunk)
    }

    /// Adds to `tx` what closes the change on top of the current records: the wide stripe names the new parities and
    /// members, and cancels every other change of it in progress, whose files were made from the old content. Returns
    /// `false` if it can no longer be closed.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(super) async fn add_closing(
        &self,
        writes: &Writes,
        tx: &mut Transaction,
        owners: &mut OwnStripes,
    ) -> Result<bool, StripeError> {
        let Some(current) = writes.shared.table.find(self.id()).await? else { return Ok(false) };
        if !self.is_as_before(&current.record) {
            return Ok(false);
        }
        tx.require_unchanged(keys::stripe(current.id), Some(&current.row));
        // Closes this change's own entry and cancels the others.
        let mut wide = current.clone();
        let entries = std::mem::take(&mut wide.record.entries);
        for Change { position, old, new, comes_from } in &self.changes {
            (wide.record.locations[*position], wide.record.members[*position]) = Default::default();
            if let Some(old) = old
                && !owners.take_out(writes, old, (current.id, *position)).await?
            {
                return Ok(false);
            }
            if let (Some(new), Some(claim)) = (new, comes_from)
                && !owners.take_out(writes, new, *claim).await?
            {
                return Ok(false);
            }
            if let Some(new) = new
                && !owners.put_in(writes, new, &mut wide, *position).await?
            {
                return Ok(false);
            }
        }
        let mut garbage = name_parities(&self.change, &mut wide.record, &self.parities, self.generation);
        garbage.extend(entries.iter().flat_map(|entry| unnamed_of(&wide.record, entry)));
        put_record(tx, current.id, &wide.record, &current.record);
        add_garbage(tx, current.id, garbage);
        Ok(true)
    }
}

/// Returns the member at a position, if it is dead and its bytes exist.
pub(super) async fn leaving_chunk(
    writes: &Writes,
    wide: &OpenedStripe,
    position: usize,
    (id, index): (StripeId, usize),
) -> Result<Option<MovedChunk>, StripeError> {
    match writes.shared.table.find(id).await? {
        Some(stripe) if is_dead_member(wide, position, &stripe, index) => {
            moved_chunk(writes, stripe, index, wide.record.chunk_len).await
        }
        _ => Ok(None),
    }
}

/// Returns a chunk that may take a position, if its bytes exist.
async fn joining_chunk(
    writes: &Writes,
    wide: &OpenedStripe,
    position: usize,
    (id, index): (StripeId, usize),
) -> Result<Option<MovedChunk>, StripeError> {
    match writes.shared.table.find(id).await? {
        Some(stripe)
            if index < stripe.code.k() && may_join(writes, wide, position, &stripe.record, index) =>
        {
            moved_chunk(writes, stripe, index, wide.record.chunk_len).await
        }
        _ => Ok(None),
    }
}

fn is_dead_member(wide: &OpenedStripe, position: usize, stripe: &OpenedStripe, index: usize) -> bool {
    stripe.record.dead
        && stripe.wide_of(index) == Some((wide.id, position))
        && is_same_file(&wide.record.locations[position], &stripe.record.locations[index])
}

/// Whether a data chunk of `stripe` may be the member at a position: it is free, and the placement rule admits it
/// there.
fn may_join(writes: &Writes, wide: &OpenedStripe, position: usize, stripe: &Stripe, index: usize) -> bool {
    let is_admitted =
        |site: u32| admits_member(writes, wide, position, SiteId(site), &LeavingRacks::default());
    stripe
        .locations
        .get(index)
        .is_some_and(|at| is_free(stripe, at, wide.record.chunk_len) && is_admitted(at.site))
}

/// Whether the placement rule admits a chunk at `site` as the member at a position, where chunks may leave these racks.
/// False if another chunk is on a site that this process does not know, because it has left or just joined: its rack
/// counts too.
pub(crate) fn admits_member(
    writes: &Writes,
    wide: &OpenedStripe,
    position: usize,
    site: SiteId,
    leaving: &LeavingRacks,
) -> bool {
    let sites = &writes.shared.sites;
    let rack_of = |site: SiteId| -> Option<RackId> { sites.get(site).map(|site| site.rack()) };
    let racks = KnownRacks { rack_of: &rack_of, sizes: sites.rack_sizes(), leaving };
    admits(wide, position, site, &racks) && sites_of(&wide.record).all(|site| rack_of(SiteId(site)).is_some())
}

/// Returns `None` if the site does not have the chunk, or does not answer.
pub(super) async fn moved_chunk(
    writes: &Writes,
    stripe: OpenedStripe,
    index: usize,
    len: u32,
) -> Result<Option<MovedChunk>, StripeError> {
    let lens = (stripe.record.chunk_len, len);
    match products_of(writes, stripe.file(index), &stripe.record.locations[index], lens).await {
        Ok(products) => Ok(Some(MovedChunk { stripe, index, products })),
        Err(StripeError::Meta(error)) => Err(error.into()),
        Err(error) => {
            writes.shared.table.report_damage(&error).await?;
            Ok(None)
        }
    }
}

/// Names the new parities and members, in one transaction with the records of all members' own stripes.
async fn close(writes: &Writes, mut made: MadeChange<'_>) -> Result<ExchangeOutcome, StripeError> {
    for _ in 0..ATTEMPTS {
        let (mut tx, mut owners) = (writes.shared.table.transaction(), OwnStripes::default());
        if !made.add_closing(writes, &mut tx, &mut owners).await? {
            break;
        }
        for stripe in made.joining() {
            tx.require(Precondition::Absent(keys::debt(stripe)));
        }
        let mut ids = owners.put(&mut tx);
        ids.push(made.id());
        if commit(writes, tx, &ids).await? {
            made.note_closed();
            return Ok(ExchangeOutcome::Done);
        }
    }
    made.give_up().await;
    Ok(ExchangeOutcome::NotNow)
}

/// Current records of the members' own stripes, and what a transaction makes of them.
#[derive(Default)]
pub(super) struct OwnStripes(BTreeMap<StripeId, (OpenedStripe, Stripe)>);

impl OwnStripes {
    /// Returns the record of a chunk's own stripe, if it still has the content that was added up.
    async fn record_of(
        &mut self,
        writes: &Writes,
        chunk: &MovedChunk,
    ) -> Result<Option<&mut Stripe>, StripeError> {
        let (current, record) = match self.0.entry(chunk.stripe.id) {
            Entry::Occupied(occupied) => occupied.into_mut(),
            Entry::Vacant(vacant) => {
                let Some(current) = writes.shared.table.find(chunk.stripe.id).await? else { return Ok(None) };
                let record = current.record.clone();
                vacant.insert((current, record))
            }
        };
        let content = |stripe: &OpenedStripe| {
            let at = &stripe.record.locations[chunk.index];
            (at.crc32c, at.content_version)
        };
        Ok((content(current) == content(&chunk.stripe)).then_some(record))
    }

    /// Removes a member's claim to its position. Returns `false` if it does not claim it now, or has died since it was
    /// read.
    async fn take_out(
        &mut self,
        writes: &Writes,
        old: &MovedChunk,
        (wide, position): (StripeId, usize),
    ) -> Result<bool, StripeError> {
        let Some(record) = self.record_of(writes, old).await? else { return Ok(false) };
        let location = &mut record.locations[old.index];
        let is_claimed = wide_of(location) == Some((wide, position));
        *location = copy_of(location);
        Ok(is_claimed && record.dead == old.stripe.record.dead)
    }

    /// Claims the vacant position for the new member, whose stripe may drop its parities from now on. Returns `false`
    /// if the chunk may no longer be there.
    async fn put_in(
        &mut self,
        writes: &Writes,
        new: &MovedChunk,
        wide: &mut OpenedStripe,
        position: usize,
    ) -> Result<bool, StripeError> {
        let Some(record) = self.record_of(writes, new).await? else { return Ok(false) };
        if !may_join(writes, wide, position, record, new.index) {
            return Ok(false);
        }
        let location = &mut record.locations[new.index];
        wide.record.locations[position] = copy_of(location);
        location.claim(wide.id, position);
        wide.record.members[position] = member_of(new.stripe.id, new.index, record.chunk_len);
        wide.record.set_wide_state(WideState::Sealed);
        Ok(true)
    }

    /// Adds the records to `tx`; returns the names of their stripes.
    pub(super) fn put(&self, tx: &mut Transaction) -> Vec<StripeId> {
        for (&id, (current, record)) in &self.0 {
            tx.require_unchanged(keys::stripe(id), Some(&current.row));
            put_record(tx, id, record, &current.record);
        }
        self.0.keys().copied().collect()
    }
}
