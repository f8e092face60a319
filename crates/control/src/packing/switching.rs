//! Switching objects' rows to the group that has their bytes now (P3): as many in a transaction as it takes.
//!
//! A group that is new is protected by its reservation. One that others live in, and whose chunks were changed in place (P6), is
//! required as it is read, with the contents that the extents name; its mark is put, so that nobody releases or refills it who has looked
//! before.

use std::collections::BTreeSet;

use bytes::Bytes;
use striate_core::StripeId;
use striate_meta::records::{Extent, Garbage, Object, object::Body};
use striate_meta::store::limits::{MAX_OPERATIONS, MAX_TRANSACTION_BYTES};
use striate_meta::{Commit, Row, Transaction, keys, records};
use striate_stripe::{CodingGroup, Stored, StripeError, Stripes, Switched};

use crate::packing::Candidate;

/// Rows looked up together; each costs two operations of a transaction.
const BATCH: usize = 46;
/// How often a batch is tried against rows that others change.
const MAX_ATTEMPTS: usize = 3;
/// Operations of a transaction besides the objects' rows: the reservation, or the group's record and its mark, and the garbage.
const OTHER_OPERATIONS: usize = 3;
/// Bytes of these, and of marks.
const OTHER_BYTES: usize = 16 << 10;

/// An object in a group, and where it was before.
pub(crate) struct Packed {
    pub(crate) of: Candidate,
    pub(crate) extent: Extent,
}

/// The group that has objects' bytes now.
pub(crate) enum Home<'a> {
    /// It is new, and reserved.
    Group(&'a CodingGroup<'a>),
    /// Chunks of it were changed in place.
    Refilled(StripeId),
}

impl Home<'_> {
    fn id(&self) -> StripeId {
        match self {
            Self::Group(group) => group.id(),
            Self::Refilled(id) => *id,
        }
    }

    /// Submits a transaction that names some of these extents.
    async fn switch(
        &self,
        stripes: &Stripes,
        tx: Transaction,
        packed: &[Packed],
    ) -> Result<Switched, StripeError> {
        match self {
            Self::Group(group) => group.switch(tx).await,
            Self::Refilled(id) => switch_in_place(stripes, *id, tx, packed).await,
        }
    }
}

/// As [`CodingGroup::switch`], of a group without a reservation.
async fn switch_in_place(
    stripes: &Stripes,
    id: StripeId,
    mut tx: Transaction,
    packed: &[Packed],
) -> Result<Switched, StripeError> {
    let Some(stripe) = stripes.find(id).await? else { return Ok(Switched::Conflict) };
    let has = |Packed { extent, .. }: &Packed| {
        let location = stripe.record.locations.get(extent.index as usize);
        location.is_some_and(|location| location.content_version == extent.content_version)
    };
    if stripe.record.dead || !packed.iter().all(has) {
        return Ok(Switched::Conflict);
    }
    tx.require_unchanged(keys::stripe(id), Some(&stripe.row)).put(keys::mark(id), Bytes::new());
    Ok(match stripes.submit(&tx).await? {
        Commit::Done(_) => Switched::Done,
        Commit::Conflict { .. } => Switched::Conflict,
    })
}

/// What one transaction did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Step {
    /// So many of the first objects need no other one.
    pub(crate) taken: usize,
    /// Objects whose rows name the group now, and their bytes.
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
}

/// Switches rows of the first of these objects, not none, to the group's extents, as far as they still name what was packed.
///
/// # Errors
/// When the metadata store fails, or the reservation is gone.
pub(crate) async fn switch(
    stripes: &Stripes,
    home: &Home<'_>,
    packed: &[Packed],
    profile: &str,
) -> Result<Step, StripeError> {
    let batch = &packed[..packed.len().min(BATCH)];
    let keys: Vec<Bytes> = batch.iter().map(|packed| packed.of.key.clone()).collect();
    let mut taken = batch.len();
    for _ in 0..MAX_ATTEMPTS {
        let rows = stripes.meta().get_many(&keys).await?;
        let mut switch = Switch::new(stripes.transaction(), profile);
        let rows = batch.iter().zip(rows).enumerate();
        taken = batch.len();
        for (position, (packed, row)) in rows {
            let Some(row) = row else { continue };
            if !switch.add(packed, &row)? {
                taken = position;
                break;
            }
        }
        let (objects, bytes) = (switch.objects, switch.bytes);
        let tx = switch.finish(home.id());
        if objects == 0 || home.switch(stripes, tx, batch).await? == Switched::Done {
            return Ok(Step { taken, objects, bytes });
        }
    }
    Ok(Step { taken, ..Step::default() })
}

/// A transaction that switches rows, as it grows.
struct Switch<'a> {
    tx: Transaction,
    profile: &'a str,
    /// Stripes that nothing names afterwards,
    released: Vec<Bytes>,
    /// and those in which something died.
    sources: BTreeSet<StripeId>,
    objects: u64,
    bytes: u64,
}

impl<'a> Switch<'a> {
    fn new(tx: Transaction, profile: &'a str) -> Self {
        Self { tx, profile, released: Vec::new(), sources: BTreeSet::new(), objects: 0, bytes: 0 }
    }

    /// Adds an object's row, if it still names what was packed; false where the transaction has no room for it.
    fn add(&mut self, packed: &Packed, row: &Row) -> Result<bool, StripeError> {
        let mut object: Object = row.record()?;
        if object.body.as_ref().and_then(stored).as_ref() != Some(&packed.of.stored) {
            return Ok(true);
        }
        object.body = Some(Body::Extent(packed.extent.clone()));
        object.profile = self.profile.to_owned();
        let value = records::encode(&object);
        let source = match &packed.of.stored {
            Stored::Block(_) | Stored::Memory(_) => None,
            Stored::Extent(_) => Some(packed.of.stored.stripe()?),
        };
        let marks = self.sources.len() + usize::from(source.is_some_and(|id| !self.sources.contains(&id)));
        let operations = self.tx.preconditions.len() + self.tx.writes.len() + 2 + marks + OTHER_OPERATIONS;
        let bytes = self.tx.size() + 2 * row.key.len() + value.len() + OTHER_BYTES;
        // One row alone always has room.
        if self.objects > 0 && (operations > MAX_OPERATIONS || bytes > MAX_TRANSACTION_BYTES) {
            return Ok(false);
        }
        match (&packed.of.stored, source) {
            (Stored::Block(block), _) => self.released.push(block.stripe.clone()),
            (Stored::Extent(_) | Stored::Memory(_), source) => self.sources.extend(source),
        }
        self.tx.require_unchanged(row.key.clone(), Some(row)).put(row.key.clone(), value);
        self.objects += 1;
        self.bytes += u64::from(packed.extent.len);
        Ok(true)
    }

    /// With what rows named before: it becomes garbage, or is marked.
    fn finish(self, home: StripeId) -> Transaction {
        let Self { mut tx, released, sources, .. } = self;
        if !released.is_empty() {
            let id = home.to_bytes();
            let garbage = Garbage { stripe: id.to_vec().into(), stripes: released, ..Garbage::default() };
            let key = keys::garbage(&id, tx.id.0);
            tx.put(key, records::encode(&garbage));
        }
        for source in sources {
            tx.put(keys::mark(source), Bytes::new());
        }
        tx
    }
}

/// The bytes that an object's body names in one piece.
fn stored(body: &Body) -> Option<Stored> {
    match body {
        Body::Blocks(list) => match list.blocks.as_slice() {
            [block] => Some(block.clone().into()),
            _ => None,
        },
        Body::Extent(extent) => Some(extent.clone().into()),
        Body::Inline(_) | Body::Manifest(_) | Body::Uploaded(_) | Body::Memory(_) => None,
    }
}
