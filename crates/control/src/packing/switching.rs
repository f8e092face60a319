//! Switches objects' rows to the group that now has their bytes (P3): as many in a transaction as fit.
//!
//! A new group is protected by its reservation. For a group that others live in, and whose chunks were changed in
//! place (P6), the transaction requires its record as it was read, with the contents that the extents name. It also
//! puts the group's mark, so that no process releases or refills the group because of an earlier look.

use std::collections::BTreeSet;

use bytes::Bytes;
use striate_core::StripeId;
use striate_meta::records::{Extent, Garbage, Object, object::Body};
use striate_meta::store::limits::{MAX_OPERATIONS, MAX_TRANSACTION_BYTES};
use striate_meta::{Commit, Row, Transaction, keys, records};
use striate_stripe::{CodingGroup, StoredBytes, StripeError, Stripes, SwitchOutcome};

use crate::packing::Candidate;

/// Rows looked up together; each takes two operations of a transaction.
const BATCH: usize = 46;
/// Attempts to commit a batch while other processes change its rows.
const MAX_ATTEMPTS: usize = 3;
/// Operations of a transaction besides the objects' rows: the reservation, or the group's record and its mark; and
/// the garbage.
const OTHER_OPERATIONS: usize = 3;
/// Bytes of the other operations, and of marks.
const OTHER_BYTES: usize = 16 << 10;

/// An object in a group, with its earlier location.
pub(crate) struct PackedObject {
    pub(crate) candidate: Candidate,
    pub(crate) extent: Extent,
}

/// The group that now has the objects' bytes.
pub(crate) enum TargetGroup<'a> {
    /// A new, reserved group.
    Group(&'a CodingGroup<'a>),
    /// A group whose chunks were changed in place.
    Refilled(StripeId),
}

impl TargetGroup<'_> {
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
        packed: &[PackedObject],
    ) -> Result<SwitchOutcome, StripeError> {
        match self {
            Self::Group(group) => group.switch(tx).await,
            Self::Refilled(id) => switch_in_place(stripes, *id, tx, packed).await,
        }
    }
}

/// Like [`CodingGroup::switch`], for a group without a reservation.
async fn switch_in_place(
    stripes: &Stripes,
    id: StripeId,
    mut tx: Transaction,
    packed: &[PackedObject],
) -> Result<SwitchOutcome, StripeError> {
    let Some(stripe) = stripes.find(id).await? else { return Ok(SwitchOutcome::Conflict) };
    let has = |PackedObject { extent, .. }: &PackedObject| {
        let location = stripe.record.locations.get(extent.index as usize);
        location.is_some_and(|location| location.content_version == extent.content_version)
    };
    if stripe.record.dead || !packed.iter().all(has) {
        return Ok(SwitchOutcome::Conflict);
    }
    tx.require_unchanged(keys::stripe(id), Some(&stripe.row)).put(keys::mark(id), Bytes::new());
    Ok(match stripes.submit(&tx).await? {
        Commit::Done(_) => SwitchOutcome::Done,
        Commit::Conflict { .. } => SwitchOutcome::Conflict,
    })
}

/// Result of one transaction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Step {
    /// Number of leading objects that need no further transaction.
    pub(crate) finished: usize,
    /// Objects whose rows now name the group, and their bytes.
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
}

/// Switches the rows of the first of these objects, at least one, to the group's extents, if they still name what was
/// packed.
///
/// # Errors
/// When the metadata store fails, or the reservation is gone.
pub(crate) async fn switch(
    stripes: &Stripes,
    target: &TargetGroup<'_>,
    packed: &[PackedObject],
    profile: &str,
) -> Result<Step, StripeError> {
    let batch = &packed[..packed.len().min(BATCH)];
    let keys: Vec<Bytes> = batch.iter().map(|packed| packed.candidate.key.clone()).collect();
    let mut finished = batch.len();
    for _ in 0..MAX_ATTEMPTS {
        let rows = stripes.meta().get_many(&keys).await?;
        let mut switch = RowSwitch::new(stripes.transaction(), profile);
        let rows = batch.iter().zip(rows).enumerate();
        finished = batch.len();
        for (position, (packed, row)) in rows {
            let Some(row) = row else { continue };
            if !switch.add(packed, &row)? {
                finished = position;
                break;
            }
        }
        let (objects, bytes) = (switch.objects, switch.bytes);
        let tx = switch.finish(target.id());
        if objects == 0 || target.switch(stripes, tx, batch).await? == SwitchOutcome::Done {
            return Ok(Step { finished, objects, bytes });
        }
    }
    Ok(Step { finished, ..Step::default() })
}

/// A growing transaction that switches rows.
struct RowSwitch<'a> {
    tx: Transaction,
    profile: &'a str,
    /// Stripes that nothing names afterwards.
    released: Vec<Bytes>,
    /// Packed stripes in which something died.
    sources: BTreeSet<StripeId>,
    objects: u64,
    bytes: u64,
}

impl<'a> RowSwitch<'a> {
    fn new(tx: Transaction, profile: &'a str) -> Self {
        Self { tx, profile, released: Vec::new(), sources: BTreeSet::new(), objects: 0, bytes: 0 }
    }

    /// Adds an object's row if it still names what was packed. Returns `false` if the transaction has no room for it.
    fn add(&mut self, packed: &PackedObject, row: &Row) -> Result<bool, StripeError> {
        let mut object: Object = row.record()?;
        if object.body.as_ref().and_then(stored).as_ref() != Some(&packed.candidate.stored) {
            return Ok(true);
        }
        object.body = Some(Body::Extent(packed.extent.clone()));
        object.profile = self.profile.to_owned();
        let value = records::encode(&object);
        let source = match &packed.candidate.stored {
            StoredBytes::Block(_) | StoredBytes::Memory(_) => None,
            StoredBytes::Extent(_) => Some(packed.candidate.stored.stripe()?),
        };
        let marks = self.sources.len() + usize::from(source.is_some_and(|id| !self.sources.contains(&id)));
        let operations = self.tx.preconditions.len() + self.tx.writes.len() + 2 + marks + OTHER_OPERATIONS;
        let bytes = self.tx.size() + 2 * row.key.len() + value.len() + OTHER_BYTES;
        // A single row always fits.
        if self.objects > 0 && (operations > MAX_OPERATIONS || bytes > MAX_TRANSACTION_BYTES) {
            return Ok(false);
        }
        match (&packed.candidate.stored, source) {
            (StoredBytes::Block(block), _) => self.released.push(block.stripe.clone()),
            (StoredBytes::Extent(_) | StoredBytes::Memory(_), source) => self.sources.extend(source),
        }
        self.tx.require_unchanged(row.key.clone(), Some(row)).put(row.key.clone(), value);
        self.objects += 1;
        self.bytes += u64::from(packed.extent.len);
        Ok(true)
    }

    /// Completes the transaction with what the rows named before: it becomes garbage, or is marked.
    fn finish(self, target: StripeId) -> Transaction {
        let Self { mut tx, released, sources, .. } = self;
        if !released.is_empty() {
            let id = target.to_bytes();
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

/// Returns the bytes of an object that consists of one piece.
fn stored(body: &Body) -> Option<StoredBytes> {
    match body {
        Body::Blocks(list) => match list.blocks.as_slice() {
            [block] => Some(block.clone().into()),
            _ => None,
        },
        Body::Extent(extent) => Some(extent.clone().into()),
        Body::Inline(_) | Body::Manifest(_) | Body::Uploaded(_) | Body::Memory(_) => None,
    }
}
