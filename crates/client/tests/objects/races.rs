//! Concurrent writers: exactly one wins where only one may, and buckets may be deleted under them.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use striate_client::{ClientError, CreateBucket, PutRequest, WriteCondition};
use striate_meta::{LeaseId, ScanRange, keys, records};
use striate_runtime::Runtime;

use crate::cluster::{BUCKET, Cluster, if_absent, if_match, in_virtual_time, noise, put};
use crate::invariants;

async fn all<T: Send + 'static>(
    runtime: &Runtime,
    tasks: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let tasks: Vec<_> = tasks.into_iter().map(|task| runtime.spawn(task)).collect();
    join_all(tasks).await.into_iter().map(|result| result.unwrap()).collect()
}

fn is_refusal(error: &ClientError) -> bool {
    matches!(error, ClientError::PreconditionFailed(_) | ClientError::Conflict)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_creations_exactly_one_wins() {
    let runtime = Runtime::real();
    let cluster = Arc::new(Cluster::open(runtime.clone()).await);
    for round in 0..10 {
        let key = format!("key-{round}");
        let writers = (0..16).map(|writer| {
            let (cluster, key) = (cluster.clone(), key.clone());
            async move { (writer, cluster.put_if(&key, &noise(1_500, writer), if_absent()).await) }
        });
        let results = all(&runtime, writers).await;
        let winners: Vec<u64> =
            results.iter().filter(|(_, result)| result.is_ok()).map(|(writer, _)| *writer).collect();
        assert_eq!(winners.len(), 1, "{winners:?}");
        assert!(results.iter().all(|(_, result)| result.as_ref().err().is_none_or(is_refusal)));
        assert_eq!(cluster.read(&key).await.unwrap(), noise(1_500, winners[0]));
    }
    invariants::check(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn compare_and_swap_by_etag_loses_no_update() {
    let runtime = Runtime::real();
    let cluster = Arc::new(Cluster::open(runtime.clone()).await);
    cluster.put("counter", b"0").await.unwrap();
    let writers = (0..8).map(|_| {
        let cluster = cluster.clone();
        async move {
            for _ in 0..10 {
                loop {
                    let object = cluster.client.get(crate::cluster::get(BUCKET, "counter")).await.unwrap();
                    let text = cluster.read("counter").await.unwrap();
                    let next = std::str::from_utf8(&text).unwrap().parse::<u32>().unwrap() + 1;
                    let condition = if_match(&object.info.etag);
                    match cluster.put_if("counter", next.to_string().as_bytes(), condition).await {
                        Ok(_) => break,
                        Err(error) => assert!(is_refusal(&error), "{error}"),
                    }
                }
            }
        }
    });
    all(&runtime, writers).await;
    assert_eq!(&cluster.read("counter").await.unwrap()[..], b"80");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unconditional_writers_of_one_key_all_succeed_and_readers_never_see_a_mixture() {
    let runtime = Runtime::real();
    let cluster = Arc::new(Cluster::open(runtime.clone()).await);
    cluster.put("key", &noise(2_500, 0)).await.unwrap();
    let writers = (0..4u64).map(|writer| {
        let cluster = cluster.clone();
        async move {
            for round in 0..20 {
                cluster.put("key", &noise(2_500, writer * 100 + round)).await.unwrap();
                let read = cluster.read("key").await;
                match read {
                    Ok(bytes) => {
                        let known = (0..400).any(|seed| noise(2_500, seed) == bytes);
                        assert!(known, "the bytes of one put");
                    }
                    // The object was replaced in the middle of the stream.
                    Err(ClientError::Inconsistent { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        }
    });
    all(&runtime, writers).await;
    invariants::check(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn deletes_and_puts_of_one_key_leave_nothing_behind() {
    let runtime = Runtime::real();
    let cluster = Arc::new(Cluster::open(runtime.clone()).await);
    let tasks = (0..6u64).map(|task| {
        let cluster = cluster.clone();
        async move {
            for round in 0..15 {
                match task % 2 {
                    0 => drop(cluster.put("key", &noise(8_000, task * 100 + round)).await.unwrap()),
                    _ => {
                        cluster.client.delete(BUCKET, "key", WriteCondition::default()).await.unwrap();
                    }
                }
            }
        }
    });
    all(&runtime, tasks).await;
    invariants::check(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_bucket_is_never_deleted_with_an_object_in_it() {
    let runtime = Runtime::real();
    let cluster = Arc::new(Cluster::open(runtime.clone()).await);
    for round in 0..20 {
        let name = format!("doomed-{round}");
        cluster.create_bucket(&name).await;
        let puts = (0..4).map(|writer| {
            let (cluster, bucket) = (cluster.clone(), name.clone());
            async move {
                let request = PutRequest { bucket, ..put(&format!("key-{writer}"), &noise(1_200, writer)) };
                cluster.client.put(request).await.map(|_| ())
            }
        });
        let deletes = (0..2).map(|_| {
            let (cluster, bucket) = (cluster.clone(), name.clone());
            async move { cluster.client.delete_bucket(&bucket).await }
        });
        let (puts, deletes) = futures::join!(all(&runtime, puts), all(&runtime, deletes));
        let exists = cluster.client.bucket(&name).await.is_ok();
        let stored = puts.iter().filter(|result| result.is_ok()).count();
        assert_eq!(exists, stored > 0, "{puts:?} {deletes:?}");
        let allowed = |error: &ClientError| matches!(error, ClientError::NoSuchBucket(_));
        assert!(puts.iter().all(|result| result.as_ref().err().is_none_or(allowed)), "{puts:?}");
        assert_eq!(deletes.iter().any(Result::is_ok), !exists, "{deletes:?}");
    }
    invariants::check(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_creators_of_a_bucket_one_owns_it() {
    let runtime = Runtime::real();
    let cluster = Arc::new(Cluster::open(runtime.clone()).await);
    let creators = (0..8).map(|creator| {
        let cluster = cluster.clone();
        let owner = format!("owner-{creator}");
        let request = CreateBucket { name: "shared".to_owned(), owner, ..CreateBucket::default() };
        async move { cluster.client.create_bucket(request).await }
    });
    let results = all(&runtime, creators).await;
    let winners: Vec<_> = results.iter().flatten().collect();
    assert_eq!(winners.len(), 1);
    assert_eq!(cluster.client.bucket("shared").await.unwrap(), *winners[0]);
}

#[test]
fn a_writer_whose_lease_has_ended_goes_on_as_a_new_one() {
    in_virtual_time(11, |runtime| async move {
        let cluster = Cluster::open(runtime.clone()).await;
        cluster.put("before", &noise(300_000, 1)).await.unwrap();
        let intents = || async {
            let rows = cluster.meta.scan(ScanRange::prefix(keys::INTENTS), 10).await.unwrap();
            rows.iter().map(|row| row.record::<records::Intent>().unwrap()).collect::<Vec<_>>()
        };
        let first = intents().await.remove(0);
        // The process was paused for longer than its lease, and a collector has fenced it.
        cluster.meta.revoke_lease(LeaseId(first.lease)).await.unwrap();
        runtime.sleep(Duration::from_secs(15)).await;
        cluster.put("after", &noise(300_000, 2)).await.unwrap();
        let second = intents().await.into_iter().find(|intent| intent.writer != first.writer);
        let lease = second.expect("a new writer").lease;
        assert!(cluster.meta.is_alive(LeaseId(lease)).await.unwrap());
        for (key, seed) in [("before", 1), ("after", 2)] {
            assert_eq!(cluster.read(key).await.unwrap(), noise(300_000, seed));
        }
    });
}
