//! Invariants of the whole store while it is idle, checked by reading all of it:
//!
//! - every stripe row is named by exactly one object, part or segment, or by garbage awaiting deletion (I7, I8);
//! - every chunk is named by a stripe's row or by a garbage row: nothing leaks;
//! - every chunk that a stripe's row names is stored (I7);
//! - part rows belong to an upload, an object or abandoned work; no segment is pending.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use striate_core::{ChunkId, Generation, StripeId};
use striate_meta::records::{self, Block, Garbage, ManifestSegment, object::Body, upload_part};
use striate_meta::{Row, ScanRange, keys};
use striate_site::ChunkStore;

use crate::cluster::Cluster;

struct Contents {
    /// Stripes, and how often each is named.
    named: BTreeMap<StripeId, usize>,
    uploads: BTreeSet<Bytes>,
    garbage_chunks: BTreeSet<(u32, ChunkId)>,
}

pub async fn rows(cluster: &Cluster, prefix: &[u8]) -> Vec<Row> {
    cluster.meta.scan(ScanRange::prefix(prefix), usize::MAX).await.unwrap()
}

fn record<R: records::Record>(row: &Row) -> R {
    row.record().unwrap()
}

fn stripe_id(bytes: &Bytes) -> StripeId {
    StripeId::from_bytes(bytes.as_ref().try_into().unwrap())
}

impl Contents {
    fn name_blocks(&mut self, blocks: &[Block]) {
        for block in blocks {
            *self.named.entry(stripe_id(&block.stripe)).or_default() += 1;
        }
    }

    /// Names the blocks of a segment. Returns their total length in bytes.
    async fn name_segment(&mut self, cluster: &Cluster, segment: &ManifestSegment) -> u64 {
        let id: [u8; 16] = segment.id.as_ref().try_into().unwrap();
        let blocks: Vec<Block> = rows(cluster, &keys::blocks(&id)).await.iter().map(record).collect();
        assert_eq!(blocks.len(), segment.block_count as usize, "a segment has all its blocks");
        self.name_blocks(&blocks);
        blocks.iter().map(|block| u64::from(block.len)).sum()
    }
}

async fn read_contents(cluster: &Cluster) -> Contents {
    let mut contents =
        Contents { named: BTreeMap::new(), uploads: BTreeSet::new(), garbage_chunks: BTreeSet::new() };
    for row in rows(cluster, b"o/").await {
        match record::<records::Object>(&row).body.unwrap() {
            Body::Inline(_) => {}
            Body::Blocks(list) => contents.name_blocks(&list.blocks),
            Body::Manifest(manifest) => {
                for segment in &manifest.segments {
                    assert_eq!(contents.name_segment(cluster, segment).await, segment.size);
                }
            }
            Body::Uploaded(uploaded) => drop(contents.uploads.insert(uploaded.upload)),
            Body::Extent(_) | Body::Memory(_) => panic!("everything here is in split stripes"),
        }
    }
    for row in rows(cluster, b"u/").await {
        contents.uploads.insert(record::<records::Upload>(&row).id);
    }
    for row in rows(cluster, keys::ABANDONED).await {
        contents.uploads.insert(record::<records::AbandonedParts>(&row).upload);
    }
    for row in rows(cluster, b"t/").await {
        assert!(contents.uploads.contains(&row.key[2..18]), "a part belongs to something");
        match record::<records::UploadPart>(&row).body.unwrap() {
            upload_part::Body::Blocks(list) => contents.name_blocks(&list.blocks),
            upload_part::Body::Segment(segment) => {
                assert_eq!(contents.name_segment(cluster, &segment).await, segment.size);
            }
            upload_part::Body::Memory(_) => panic!("everything here is in split stripes"),
        }
    }
    for row in rows(cluster, keys::GARBAGE).await {
        let garbage: Garbage = record(&row);
        if let Some(segment) = &garbage.segment {
            contents.name_segment(cluster, segment).await;
            continue;
        }
        let stripe = stripe_id(&garbage.stripe);
        for chunk in garbage.chunks {
            let (index, generation) = (chunk.index as u8, Generation(chunk.generation));
            contents.garbage_chunks.insert((chunk.site, ChunkId { stripe, index, generation }));
        }
    }
    contents
}

/// Checks the invariants above. No operation may be in progress.
pub async fn check(cluster: &Cluster) {
    let contents = read_contents(cluster).await;
    assert!(rows(cluster, keys::PENDING).await.is_empty(), "no segment is pending");
    let mut stored: BTreeSet<(u32, ChunkId)> = BTreeSet::new();
    for (index, store) in cluster.stores.iter().enumerate() {
        let page = store.list(None, usize::MAX).await.unwrap();
        stored.extend(page.chunks.iter().map(|info| (index as u32 + 1, info.chunk)));
    }
    let mut named_chunks = contents.garbage_chunks.clone();
    let mut stripes = BTreeSet::new();
    for row in rows(cluster, keys::STRIPES).await {
        let id = keys::stripe_of(&row.key).unwrap();
        stripes.insert(id);
        let stripe: records::Stripe = record(&row);
        for (index, location) in
            stripe.locations.iter().enumerate().filter(|(_, location)| location.site != 0)
        {
            let chunk =
                ChunkId { stripe: id, index: index as u8, generation: Generation(location.generation) };
            assert!(stored.contains(&(location.site, chunk)), "{chunk:?} is named and not stored");
            named_chunks.insert((location.site, chunk));
        }
    }
    for (stripe, times) in &contents.named {
        assert_eq!(*times, 1, "{stripe} is named once");
        assert!(stripes.contains(stripe), "{stripe} is named and has no row");
    }
    for stripe in &stripes {
        assert!(contents.named.contains_key(stripe), "{stripe} has a row and is named by nothing");
    }
    for chunk in &stored {
        assert!(named_chunks.contains(chunk), "{chunk:?} is stored and named by nothing");
    }
}
