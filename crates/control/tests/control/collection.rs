//! Garbage and abandoned puts: nothing that is named is ever removed (I8), and nothing unnamed stays.

use std::time::Duration;

use crate::cluster::{BUCKET, Cluster, OneShot, content, go_on, options};
use bytes::Bytes;
use striate_client::{Client, ClientError, CreateUpload, UploadPartRequest, WriteCondition};
use striate_control::collection::parts::abandoned_parts;
use striate_control::{GarbageCollector, collect_abandoned, heal, verify};
use striate_meta::records::Intent;
use striate_meta::{LeaseId, ScanRange, keys};
use striate_site::Site;

#[tokio::test(start_paused = true)]
async fn i9_overwritten_and_deleted_chunks_go_after_the_grace_and_not_before() {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    let mut collector = GarbageCollector::default();
    for round in 0..3 {
        cluster.put("key", &content(round, 9_000)).await.unwrap();
    }
    cluster.put("gone", &content(9, 9_000)).await.unwrap();
    cluster.client.delete(BUCKET, "gone", WriteCondition::default()).await.unwrap();
    assert_eq!(collector.round(cluster.client.stripes()).await.unwrap(), 0);
    assert_eq!(cluster.chunk_count(), 4 * 6);
    cluster.runtime.sleep(Duration::from_secs(61)).await;
    assert_eq!(collector.round(cluster.client.stripes()).await.unwrap(), 3);
    assert_eq!(cluster.chunk_count(), 6);
    assert_eq!(cluster.get("key").await.unwrap(), content(2, 9_000));
    assert!(matches!(cluster.get("gone").await, Err(ClientError::NoSuchKey(_))));
}

#[tokio::test(start_paused = true)]
async fn objects_of_many_blocks_are_taken_down_whole() {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    let mut collector = GarbageCollector::default();
    let large = content(1, 70 << 20);
    cluster.put("large", &large).await.unwrap();
    assert_eq!(cluster.get("large").await.unwrap(), large);
    cluster.put("large", b"small").await.unwrap();
    collector.round(cluster.client.stripes()).await.unwrap();
    let chunks = cluster.chunk_count();
    cluster.runtime.sleep(Duration::from_secs(59)).await;
    collector.round(cluster.client.stripes()).await.unwrap();
    assert!(chunks > 0 && cluster.chunk_count() == chunks, "before the grace");
    cluster.runtime.sleep(Duration::from_secs(2)).await;
    // The first round expands the segment into stripes, which do not wait for another grace.
    for _ in 0..2 {
        collector.round(cluster.client.stripes()).await.unwrap();
    }
    assert_eq!(cluster.chunk_count(), 0);
    assert_eq!(verify(cluster.client.stripes(), go_on).await.unwrap().progress.stripes, 0);
}

/// Other garbage does not wait until all of its blocks are released, nor are all of them in memory together.
#[tokio::test(start_paused = true)]
async fn an_object_of_very_many_blocks_is_taken_down_in_rounds_that_soon_follow_each_other() {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    cluster.client.update_bucket(BUCKET, |bucket| bucket.block_len = 16).await.unwrap();
    cluster.put("large", &content(1, 16 * 4_200)).await.unwrap();
    assert_eq!(cluster.stripes().await.len(), 4_200);
    cluster.put("large", b"small").await.unwrap();
    cluster.runtime.spawn(GarbageCollector::default().run(cluster.client.stripes().clone()));
    // Rounds are 15 s apart. The first one sees the object, and the fifth releases most of its blocks.
    cluster.runtime.sleep(Duration::from_millis(75_050)).await;
    let left = cluster.stripes().await.len();
    assert!((1..=200).contains(&left), "{left}");
    cluster.runtime.sleep(Duration::from_secs(1)).await;
    assert_eq!((cluster.stripes().await.len(), cluster.chunk_count()), (0, 6 * left));
    cluster.runtime.sleep(Duration::from_secs(15)).await;
    assert_eq!(cluster.chunk_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn parts_of_uploads_that_are_gone_are_taken_down_after_the_grace() {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    let mut collector = GarbageCollector::default();
    let (bucket, key) = (BUCKET.to_owned(), "key".to_owned());
    let create = CreateUpload { bucket: bucket.clone(), key: key.clone(), ..CreateUpload::default() };
    let upload = cluster.client.create_upload(create).await.unwrap().id;
    for number in 1..4 {
        let part = UploadPartRequest {
            bucket: bucket.clone(),
            key: key.clone(),
            upload: upload.clone(),
            number,
            content_len: None,
            digests: Default::default(),
            body: Box::new(OneShot(Some(Ok(content(number as usize, 9_000).into())))),
        };
        cluster.client.upload_part(part).await.unwrap();
    }
    cluster.client.abort_upload(BUCKET, "key", &upload).await.unwrap();
    collector.round(cluster.client.stripes()).await.unwrap();
    assert_eq!(cluster.chunk_count(), 3 * 6);
    for _ in 0..2 {
        cluster.runtime.sleep(Duration::from_secs(61)).await;
        collector.round(cluster.client.stripes()).await.unwrap();
    }
    cluster.runtime.sleep(Duration::from_secs(61)).await;
    collector.round(cluster.client.stripes()).await.unwrap();
    assert_eq!(cluster.chunk_count(), 0);
    assert!(abandoned_parts(cluster.client.stripes(), None, 1).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_leaves_nothing() {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    let broken = OneShot(Some(Err(ClientError::Body("the sender went away".to_owned()))));
    assert!(cluster.put_body("key", Box::new(broken)).await.is_err());
    assert!(matches!(cluster.get("key").await, Err(ClientError::NoSuchKey(_))));
    assert_eq!(cluster.chunk_count(), 0);
}

/// A body that returns one large piece and then never ends.
struct Endless(Option<Bytes>);

#[async_trait::async_trait]
impl striate_client::PutBody for Endless {
    async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        match self.0.take() {
            Some(bytes) => Some(Ok(bytes)),
            None => std::future::pending().await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn i8_what_a_dead_writer_left_is_collected_and_what_it_finished_stays() {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    cluster.put("finished", &content(3, 50_000)).await.unwrap();
    let body = Box::new(Endless(Some(content(4, 60 << 20).into())));
    {
        let put = cluster.put_body("unfinished", body);
        assert!(cluster.runtime.timeout(Duration::from_secs(5), put).await.is_err());
        // The writer dies here: the test puts back by hand what it would have cleaned up in the background.
    }
    let orphan = cluster.sites[0].chunks.lock().keys().next().copied().unwrap();
    let sequence = striate_core::StripeId::new(orphan.stripe.writer(), orphan.stripe.sequence() + 500);
    let stray = striate_core::ChunkId { stripe: sequence, ..orphan };
    cluster.sites[0].chunks.lock().insert(stray, (Bytes::from_static(b"x"), 0));
    assert_eq!(collect_abandoned(cluster.client.stripes()).await.unwrap().intents, 0, "its lease is alive");

    let rows =
        cluster.meta.scan(striate_meta::ScanRange::prefix(striate_meta::keys::INTENTS), 10).await.unwrap();
    let intent: striate_meta::records::Intent = rows[0].record().unwrap();
    cluster.meta.revoke_lease(striate_meta::LeaseId(intent.lease)).await.unwrap();
    let handles = cluster.sites.iter().map(|site| site.clone() as std::sync::Arc<dyn Site>).collect();
    let next = Client::open(cluster.runtime.clone(), cluster.meta.clone(), handles, options("rs(4,2)"));
    let next = next.await.unwrap();
    let report = collect_abandoned(next.stripes()).await.unwrap();
    assert!(report.intents >= 1 && report.chunks >= 1, "{report:?}");
    assert!(!cluster.sites[0].chunks.lock().contains_key(&stray));
    assert_eq!(cluster.get("finished").await.unwrap(), content(3, 50_000));
    let error = cluster.put("fenced", &content(5, 50_000)).await.unwrap_err();
    assert!(matches!(error, ClientError::Meta(_)), "{error}");
}

/// A read that began before an overwrite needs the old chunks for as long as the grace, even if the gateway that
/// wrote them has died meanwhile.
#[tokio::test(start_paused = true)]
async fn i8_what_a_dead_writers_object_named_until_it_was_overwritten_stays_for_the_grace() {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    cluster.put("key", &content(1, 9_000)).await.unwrap();
    cluster.put("gone", &content(2, 9_000)).await.unwrap();
    let rows = cluster.meta.scan(ScanRange::prefix(keys::INTENTS), 10).await.unwrap();
    let intent: Intent = rows[0].record().unwrap();
    cluster.meta.revoke_lease(LeaseId(intent.lease)).await.unwrap();
    let handles = cluster.sites.iter().map(|site| site.clone() as std::sync::Arc<dyn Site>).collect();
    let next = Client::open(cluster.runtime.clone(), cluster.meta.clone(), handles, options("rs(4,2)"));
    let next = next.await.unwrap();
    next.delete(BUCKET, "gone", WriteCondition::default()).await.unwrap();
    next.delete(BUCKET, "key", WriteCondition::default()).await.unwrap();
    // A chunk that was never named has no grace.
    let finished = cluster.sites[0].chunks.lock().keys().next().copied().unwrap();
    let stripe = striate_core::StripeId::new(finished.stripe.writer(), finished.stripe.sequence() + 500);
    let stray = striate_core::ChunkId { stripe, ..finished };
    cluster.sites[0].chunks.lock().insert(stray, (Bytes::from_static(b"x"), 0));

    let mut collector = GarbageCollector::default();
    collector.round(next.stripes()).await.unwrap();
    let report = collect_abandoned(next.stripes()).await.unwrap();
    assert_eq!((report.intents, report.chunks), (1, 1), "{report:?}");
    assert_eq!(cluster.chunk_count(), 2 * 6);
    cluster.runtime.sleep(Duration::from_secs(61)).await;
    collector.round(next.stripes()).await.unwrap();
    assert_eq!(cluster.chunk_count(), 0);
}

/// The range of a dead writer also has stripes that it finished. While one of them is repaired, the new chunk is not
/// named yet, and must not be removed: the repair gives way, or its chunk stays.
#[tokio::test(start_paused = true)]
async fn i8_a_repair_under_way_in_a_dead_writers_range_keeps_its_chunk_or_is_fenced() {
    let mut cluster = Cluster::start(6, "rs(4,2)").await;
    cluster.put("key", &content(1, 9_000)).await.unwrap();
    cluster.retire(0).await;
    cluster.add(10).await;
    let rows = cluster.meta.scan(ScanRange::prefix(keys::INTENTS), 10).await.unwrap();
    let intent: Intent = rows[0].record().unwrap();
    cluster.meta.revoke_lease(LeaseId(intent.lease)).await.unwrap();
    *cluster.sites[5].lag.lock() = Duration::from_secs(1);
    let meeting = async {
        cluster.runtime.sleep(Duration::from_millis(1_500)).await;
        assert_eq!(cluster.sites[5].chunks.lock().len(), 1, "the repair waits for its write");
        let report = collect_abandoned(cluster.client.stripes()).await.unwrap();
        assert!(report.intents >= 1, "{report:?}");
    };
    let (report, ()) = futures::future::join(heal(cluster.client.stripes(), go_on), meeting).await;
    report.unwrap();
    let verified = verify(cluster.client.stripes(), go_on).await.unwrap();
    assert_eq!(verified.progress.damaged, 0, "what is named is there: {verified:?}");
    assert!(heal(cluster.client.stripes(), go_on).await.unwrap().is_whole());
    let mut collector = GarbageCollector::default();
    collector.round(cluster.client.stripes()).await.unwrap();
    cluster.runtime.sleep(Duration::from_secs(61)).await;
    collector.round(cluster.client.stripes()).await.unwrap();
    assert_eq!(cluster.chunk_count(), 6);
}
