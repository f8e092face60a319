//! Unnamed chunks are removed, and none that is named or may still be named (I8).

use std::time::Duration;

use crate::cluster::{BreakableSite, Cluster, content, go_on};
use bytes::Bytes;
use striate_control::{GarbageCollector, OrphanReport, collect_orphans, heal, verify};
use striate_core::{ChunkId, Formats, Generation, StripeId};
use striate_meta::records::Intent;
use striate_meta::{ScanRange, keys};

/// Collects garbage: two rounds with the grace between them.
async fn collect(cluster: &Cluster) {
    let mut collector = GarbageCollector::default();
    collector.round(cluster.client.stripes()).await.unwrap();
    cluster.runtime.sleep(Duration::from_secs(61)).await;
    collector.round(cluster.client.stripes()).await.unwrap();
}

/// Ends the intents as if the writer of all chunks were dead: nothing can name what it reserved any more.
async fn end_intents(cluster: &Cluster) {
    for row in cluster.meta.scan(ScanRange::prefix(keys::INTENTS), 10).await.unwrap() {
        assert!(row.record::<Intent>().is_ok());
        let mut tx = cluster.client.stripes().transaction();
        tx.delete(row.key);
        cluster.meta.commit(tx).await.unwrap();
    }
}

fn store(site: &BreakableSite, chunk: ChunkId) {
    site.chunks.lock().insert(chunk, (Bytes::from_static(b"left behind"), 0));
}

#[tokio::test(start_paused = true)]
async fn a_repairs_write_that_timed_out_leaves_no_orphan() {
    let mut cluster = Cluster::start(6, "rs(4,2)").await;
    cluster.put("key", &content(1, 9_000)).await.unwrap();
    cluster.retire(0).await;
    cluster.add(10).await;
    *cluster.sites[5].mute.lock() = true;
    let report = heal(cluster.client.stripes(), go_on).await.unwrap();
    assert_eq!(report.still_lost, 1, "{report:?}");
    assert!(!cluster.sites[5].chunks.lock().is_empty(), "every round's was stored all the same");
    collect(&cluster).await;
    assert!(cluster.sites[5].chunks.lock().is_empty());

    *cluster.sites[5].mute.lock() = false;
    assert!(heal(cluster.client.stripes(), go_on).await.unwrap().is_whole());
    collect(&cluster).await;
    assert_eq!(cluster.chunk_count(), 6);
    assert!(verify(cluster.client.stripes(), go_on).await.unwrap().is_clean());
}

#[tokio::test(start_paused = true)]
async fn orphans_become_garbage_once_no_intent_covers_them() {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    cluster.put("key", &content(1, 9_000)).await.unwrap();
    let (stripe, record) = cluster.stripes().await.remove(0);
    let elsewhere = cluster.sites.iter().find(|site| site.chunks.lock().keys().all(|chunk| chunk.index != 0));
    let elsewhere = elsewhere.unwrap();
    // A copy on a site that is not the named one, a generation of an earlier repair, and a put that never ended.
    store(elsewhere, ChunkId { stripe, index: 0, generation: Generation(record.locations[0].generation) });
    store(elsewhere, ChunkId { stripe, index: 5, generation: Generation(0) });
    let unfinished = StripeId::new(stripe.writer(), stripe.sequence() + 500);
    store(elsewhere, ChunkId { stripe: unfinished, index: 0, generation: Generation(1) });

    let verified = verify(cluster.client.stripes(), go_on).await.unwrap();
    assert_eq!(verified.orphans, 0, "the writer's lease is alive");
    end_intents(&cluster).await;
    let three = OrphanReport { orphans: 3, unexplained: 0 };
    assert_eq!(verify(cluster.client.stripes(), go_on).await.unwrap().orphans, 3);
    assert_eq!(
        collect_orphans(cluster.client.stripes()).await.unwrap(),
        three,
        "verify has only counted them"
    );
    assert_eq!(
        collect_orphans(cluster.client.stripes()).await.unwrap().orphans,
        0,
        "they are garbage already"
    );
    assert_eq!(verify(cluster.client.stripes(), go_on).await.unwrap().orphans, 0);
    assert_eq!(cluster.chunk_count(), 6 + 3, "the grace has not passed");
    collect(&cluster).await;
    assert_eq!(cluster.chunk_count(), 6);
    assert_eq!(cluster.get("key").await.unwrap(), content(1, 9_000));
    assert!(verify(cluster.client.stripes(), go_on).await.unwrap().is_clean());
}

/// Metadata that is older than the chunks must not mistake them for orphans: they are all that is left.
#[tokio::test(start_paused = true)]
async fn chunks_that_the_metadata_has_never_heard_of_stay() {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    cluster.put("key", &content(1, 9_000)).await.unwrap();
    end_intents(&cluster).await;
    let (stripe, record) = cluster.stripes().await.remove(0);
    let newer = Generation(record.generation + 1);
    store(&cluster.sites[0], ChunkId { stripe, index: 0, generation: newer });
    let of_another = StripeId::new(stripe.writer() + 100, 0);
    store(&cluster.sites[0], ChunkId { stripe: of_another, index: 0, generation: Generation(1) });
    let verified = verify(cluster.client.stripes(), go_on).await.unwrap();
    assert_eq!((verified.orphans, verified.unexplained), (0, 2), "{verified:?}");
    let collected = collect_orphans(cluster.client.stripes()).await.unwrap();
    assert_eq!(collected, OrphanReport { orphans: 0, unexplained: 2 });
    collect(&cluster).await;
    assert_eq!(cluster.chunk_count(), 6 + 2);
}

/// A collection of orphans meets a repair between its write and its commit: one of the two gives way, and the named
/// chunk stays. This applies while the record format has no entries; with them no collection mistakes such a chunk
/// for an orphan (`entries.rs`).
#[tokio::test(start_paused = true)]
async fn i8_a_repair_under_way_is_fenced_before_its_chunk_is_collected() {
    let mut cluster = Cluster::start_with(6, "rs(4,2)", Formats::OLDEST).await;
    cluster.put("key", &content(1, 9_000)).await.unwrap();
    end_intents(&cluster).await;
    cluster.retire(0).await;
    cluster.add(10).await;
    *cluster.sites[5].mute.lock() = true;
    let write_takes = cluster.client.stripes().options().write_deadline;
    let meeting = async {
        cluster.runtime.sleep(write_takes / 2).await;
        assert_eq!(cluster.sites[5].chunks.lock().len(), 1, "the repair waits for its write");
        let before = cluster.stripes().await.remove(0).1.generation;
        assert_eq!(collect_orphans(cluster.client.stripes()).await.unwrap().orphans, 1);
        assert_eq!(cluster.stripes().await.remove(0).1.generation, before + 1, "the repair is fenced");
        *cluster.sites[5].mute.lock() = false;
    };
    let (report, ()) = futures::future::join(heal(cluster.client.stripes(), go_on), meeting).await;
    report.unwrap();
    assert!(heal(cluster.client.stripes(), go_on).await.unwrap().is_whole());
    collect(&cluster).await;
    assert!(verify(cluster.client.stripes(), go_on).await.unwrap().is_clean());
    assert_eq!(cluster.chunk_count(), 6);
}
