//! Figures of a bucket: how much is packed, lives, is dead and waits. The walk that finds objects to pack counts
//! them.
//!
//! Rows say what lives and in which groups. A group's record says what was written into it; the difference is dead.
//! No directory is read for this. Groups in which nothing lives are not counted: no row leads to them, and the
//! repacker releases them as soon as it sees their marks.

use std::collections::BTreeMap;

use striate_core::StripeId;
use striate_meta::records::{Object, PackingFigures, Stripe, object::Body};
use striate_stripe::{StripeError, Stripes, stripe_id};

use crate::packing::PackReport;

/// Group records read together.
const PAGE: usize = 500;

/// The figures of a bucket while its rows are counted.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    figures: PackingFigures,
    /// Living objects of each group.
    groups: BTreeMap<StripeId, LiveData>,
}

#[derive(Clone, Copy, Debug, Default)]
struct LiveData {
    objects: u64,
    bytes: u64,
}

impl Tally {
    /// Counts a packed object; ignores others.
    pub(crate) fn see(&mut self, object: &Object) -> Result<(), StripeError> {
        if let Some(Body::Extent(extent)) = &object.body {
            let living = self.groups.entry(stripe_id(&extent.stripe)?).or_default();
            *living = LiveData { objects: living.objects + 1, bytes: living.bytes + u64::from(extent.len) };
        }
        Ok(())
    }

    /// Counts an object that packing would take.
    pub(crate) fn see_waiting(&mut self, len: u64, has_settled: bool) {
        self.figures.waiting_objects += 1;
        self.figures.waiting_bytes += len;
        if has_settled {
            self.figures.settled_objects += 1;
            self.figures.settled_bytes += len;
        }
    }

    /// Returns the figures after all rows were counted. `packed` was packed meanwhile.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(crate) async fn finish(
        self,
        stripes: &Stripes,
        packed: &PackReport,
    ) -> Result<PackingFigures, StripeError> {
        let Self { mut figures, groups } = self;
        let ids: Vec<StripeId> = groups.keys().copied().collect();
        for page in ids.chunks(PAGE) {
            // Groups without a record were released meanwhile: nothing in them lives any more.
            for (id, record) in stripes.records_of(page).await? {
                add_group(&mut figures, &record, groups[&id]);
            }
        }
        figures.waiting_objects = figures.waiting_objects.saturating_sub(packed.objects);
        figures.waiting_bytes = figures.waiting_bytes.saturating_sub(packed.bytes);
        figures.settled_objects = figures.settled_objects.saturating_sub(packed.objects);
        figures.settled_bytes = figures.settled_bytes.saturating_sub(packed.bytes);
        figures.live_objects += packed.objects;
        figures.live_bytes += packed.bytes;
        figures.dead_objects += packed.overtaken;
        figures.groups += packed.groups;
        figures.partition_bytes += packed.partition_bytes;
        Ok(figures)
    }
}

fn add_group(figures: &mut PackingFigures, record: &Stripe, living: LiveData) {
    figures.groups += 1;
    figures.partition_bytes += record.len;
    figures.live_objects += living.objects;
    figures.live_bytes += living.bytes;
    figures.dead_objects += record.packed_objects.saturating_sub(living.objects);
    figures.dead_bytes += record.packed_bytes.saturating_sub(living.bytes);
}

/// Adds `other` to `sum`.
pub(crate) fn add(sum: &mut PackingFigures, other: &PackingFigures) {
    sum.live_objects += other.live_objects;
    sum.live_bytes += other.live_bytes;
    sum.dead_objects += other.dead_objects;
    sum.dead_bytes += other.dead_bytes;
    sum.waiting_objects += other.waiting_objects;
    sum.waiting_bytes += other.waiting_bytes;
    sum.settled_objects += other.settled_objects;
    sum.settled_bytes += other.settled_bytes;
    sum.groups += other.groups;
    sum.partition_bytes += other.partition_bytes;
}
