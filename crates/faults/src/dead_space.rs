//! Space that nothing lives in: once the services have rested, every stripe is named by a row, and a packed one that has no mark is
//! dense (design.md §10.15).
//!
//! A mark that was lost, or a stripe that was forgotten when its object was packed, shows nowhere else: all chunks are there,
//! and a record names them.

use std::collections::BTreeSet;

use bytes::Bytes;
use striate_client::Client;
use striate_control::liveness;
use striate_core::StripeId;
use striate_meta::Row;
use striate_meta::records::{Block, Object, UploadPart, object, upload_part};

use super::cluster::Cluster;
use super::invariants;
use super::packing;

/// Stripes that hold space for nothing, in words; `None` when the metadata cannot be read now. To be asked when nothing else is
/// left to collect.
pub async fn unaccounted(cluster: &Cluster, client: &Client) -> Option<Vec<String>> {
    let (named, packed) = named(cluster)?;
    let mut left = Vec::new();
    for (id, _) in invariants::committed(cluster)? {
        if !named.contains(&id) {
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

/// The stripes that rows name, and those of them that are packed.
fn named(cluster: &Cluster) -> Option<(BTreeSet<StripeId>, BTreeSet<StripeId>)> {
    let (mut named, mut packed) = (BTreeSet::new(), BTreeSet::new());
    for row in cluster.engine.peek_all(b"o/")? {
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
