//! Dead space: when the services have finished, every stripe is named by a row, and a packed stripe without a mark is
//! dense (design.md §10.15).
//!
//! No other check notices a lost mark, or a stripe that was forgotten when its object was packed: all chunks exist
//! and a record names them. A mark that is removed too early is detected at once, by comparing the rows with what was
//! packed; by the end of a run another death would have restored it. A wide stripe is named by its members.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use parking_lot::Mutex;
use striate_client::Client;
use striate_control::liveness;
use striate_core::StripeId;
use striate_meta::records::{Block, Extent, Object, Stripe, UploadPart, object, upload_part};
use striate_meta::{Revision, Row, Transaction, Write, keys};

use super::cluster::Cluster;
use super::invariants::{self, Invariant};
use super::packing;
use super::wide;

const OBJECTS: &[u8] = b"o/";

/// Describes the stripes that waste space; `None` if the metadata cannot be read now. Call it when nothing else is
/// left to collect.
pub async fn unaccounted(cluster: &Cluster, client: &Client) -> Option<Vec<String>> {
    let (named, packed) = named(cluster)?;
    let mut left = Vec::new();
    for (id, record) in invariants::committed(cluster)? {
        if !named.contains(&id) && !wide::has_members(&record) {
            left.push(format!("stripe {id}, which no row names"));
        }
    }
    for id in packed {
        let found = liveness(client.stripes(), id).await.ok()?;
        let share = found.map_or(0.0, |found| found.dead_share());
        if share > packing::OPTIONS.dead_share {
            left.push(format!("stripe {id}, of which {share:.2} is dead: {found:?}"));
        }
    }
    Some(left)
}

/// Places of objects in packed stripes, recorded from the transactions that switched rows to them.
#[derive(Debug, Default)]
pub struct PackedPlaces(Mutex<PlaceLog>);

#[derive(Debug, Default)]
struct PlaceLog {
    places: BTreeMap<StripeId, BTreeMap<Place, Entry>>,
    /// Stripes whose partitions were changed in place. Rows do not name all of their places, so directories decide at
    /// the end of the run.
    refilled: BTreeSet<StripeId>,
    /// Revision of the latest transaction.
    newest: u64,
}

/// Chunk and offset.
type Place = (u32, u32);
/// Key of the object's row, and its length in bytes.
type Entry = (Bytes, u32);

impl PackedPlaces {
    /// Records what a transaction has switched, and checks the marks that it removed. Marks are not checked for a
    /// commit that is answered again, or after a later one, because rows have changed since.
    pub fn observe(&self, cluster: &Cluster, transaction: &Transaction, revision: Revision) {
        for write in &transaction.writes {
            let Write::Put(key, value) = write else { continue };
            let row = Row { key: key.clone(), value: value.clone(), version: Revision(0) };
            if let Some(id) = refilled(&row) {
                self.0.lock().refilled.insert(id);
            }
            if let Some(extent) = extent_of(&row) {
                let Some(id) = id(&extent.stripe) else { continue };
                let entry = (key.clone(), extent.len);
                let mut seen = self.0.lock();
                seen.places.entry(id).or_default().insert((extent.index, extent.offset), entry);
            }
        }
        if !self.is_news(revision) {
            return;
        }
        let deleted = |prefix: &'static [u8]| {
            let key = move |write: &Write| match write {
                Write::Delete(key) if key.starts_with(prefix) => keys::stripe_of(key),
                _ => None,
            };
            transaction.writes.iter().filter_map(key).collect::<Vec<_>>()
        };
        let (released, settles) = (deleted(keys::STRIPES), !deleted(keys::INTENTS).is_empty());
        let is_dead = |id: &StripeId| released.contains(id) || wide::is_dead(cluster, *id);
        for id in deleted(keys::MARKS).into_iter().filter(|id| !is_dead(id)) {
            let bound = if settles { 0.0 } else { packing::OPTIONS.dead_share };
            if let Some(share) = self.unmarked_share(cluster, id).filter(|share| *share > bound) {
                let what = format!("the mark of stripe {id} was taken away, of which {share:.2} is dead");
                cluster.broken.report(Invariant::Orphans, what);
            }
        }
    }

    fn is_news(&self, revision: Revision) -> bool {
        let newest = &mut self.0.lock().newest;
        let is_news = revision.0 > *newest;
        *newest = revision.0.max(*newest);
        is_news
    }

    /// Returns the dead share of a stripe without a mark; `None` if it has one, or the rows cannot be read now.
    fn unmarked_share(&self, cluster: &Cluster, id: StripeId) -> Option<f64> {
        let marks = cluster.engine.peek_all(keys::MARKS)?;
        if marks.iter().any(|row| keys::stripe_of(&row.key) == Some(id)) {
            return None;
        }
        let rows = cluster.engine.peek_all(OBJECTS)?;
        let rows: BTreeMap<&Bytes, &Row> = rows.iter().map(|row| (&row.key, row)).collect();
        let packed = self.0.lock();
        if packed.refilled.contains(&id) {
            return None;
        }
        let (mut dead, mut all) = (0, 0);
        for (place, (key, len)) in packed.places.get(&id)? {
            let named = rows.get(key).and_then(|row| extent_of(row));
            let lives = named.is_some_and(|extent| {
                extent.stripe == id.to_bytes().as_slice() && (extent.index, extent.offset) == *place
            });
            all += len;
            dead += if lives { 0 } else { *len };
        }
        Some(f64::from(dead) / f64::from(all.max(1)))
    }
}

/// Returns the stripe of a row if some of its partitions were changed in place.
fn refilled(row: &Row) -> Option<StripeId> {
    let id = row.key.starts_with(keys::STRIPES).then(|| keys::stripe_of(&row.key))??;
    let record: Stripe = row.record().ok()?;
    let is_refilled = record.locations.iter().any(|location| location.content_version > 0);
    (is_refilled && record.members.is_empty()).then_some(id)
}

/// Returns the place at which a row's object is packed.
fn extent_of(row: &Row) -> Option<Extent> {
    if !row.key.starts_with(OBJECTS) {
        return None;
    }
    match row.record::<Object>().ok()?.body? {
        object::Body::Extent(extent) => Some(extent),
        _ => None,
    }
}

/// Returns the stripes that rows name, and those of them that are packed.
fn named(cluster: &Cluster) -> Option<(BTreeSet<StripeId>, BTreeSet<StripeId>)> {
    let (mut named, mut packed) = (BTreeSet::new(), BTreeSet::new());
    for row in cluster.engine.peek_all(OBJECTS)? {
        match row.record::<Object>().ok()?.body {
            Some(object::Body::Blocks(list)) => named.extend(list.blocks.iter().filter_map(of_block)),
            Some(object::Body::Extent(extent)) => {
                let id = id(&extent.stripe)?;
                named.insert(id);
                packed.insert(id);
            }
            _ => {}
        }
    }
    let blocks = cluster.engine.peek_all(b"k/")?;
    named.extend(blocks.iter().filter_map(|row: &Row| of_block(&row.record::<Block>().ok()?)));
    for row in cluster.engine.peek_all(b"t/")? {
        if let Some(upload_part::Body::Blocks(list)) = row.record::<UploadPart>().ok()?.body {
            named.extend(list.blocks.iter().filter_map(of_block));
        }
    }
    Some((named, packed))
}

fn of_block(block: &Block) -> Option<StripeId> {
    id(&block.stripe)
}

fn id(bytes: &Bytes) -> Option<StripeId> {
    Some(StripeId::from_bytes(bytes.as_ref().try_into().ok()?))
}
