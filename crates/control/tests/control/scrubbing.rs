//! The scrub: verifies every chunk within a cycle, evenly, and resumes where it was.

use std::time::Duration;

use striate_control::{keep_scrubbing, verify};
use striate_meta::keys;
use striate_meta::records::{self, ScrubCount, ScrubWork};

use crate::cluster::{Cluster, content, go_on};

const OBJECTS: u64 = 40;
const CHUNKS: u64 = 6 * OBJECTS;
const CYCLE: Duration = Duration::from_secs(86_400);

async fn filled() -> Cluster {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    for key in 0..OBJECTS as usize {
        cluster.put(&format!("object{key}"), &content(key, 6_000)).await.unwrap();
    }
    cluster
}

async fn work(cluster: &Cluster) -> ScrubWork {
    let row = cluster.meta.get(&keys::scrub_work()).await.unwrap().expect("it was told");
    row.record().unwrap()
}

fn verified(count: Option<ScrubCount>) -> u64 {
    count.map_or(0, |count| count.chunks)
}

#[tokio::test(start_paused = true)]
async fn every_chunk_is_verified_once_in_a_cycle_and_evenly() {
    let cluster = filled().await;
    let _task = cluster.runtime.spawn(keep_scrubbing(cluster.client.stripes().clone(), CYCLE));
    for tenth in 1..10 {
        cluster.runtime.sleep(CYCLE / 10).await;
        let verified = verified(work(&cluster).await.count);
        let expected = CHUNKS * tenth / 10;
        assert!((expected - 6..=expected + 6).contains(&verified), "{verified} of {expected}");
    }
    cluster.runtime.sleep(CYCLE / 10 + Duration::from_secs(60)).await;
    let work = work(&cluster).await;
    let last = work.last.unwrap();
    assert_eq!((work.cycle, last.stripes, last.chunks, last.damaged), (2, OBJECTS, CHUNKS, 0));
    assert_eq!(last.bytes, CHUNKS * 1_500);
}

#[tokio::test(start_paused = true)]
async fn what_it_finds_damaged_is_in_debt() {
    let cluster = filled().await;
    cluster.sites[2].corrupt_all();
    let _task = cluster.runtime.spawn(keep_scrubbing(cluster.client.stripes().clone(), CYCLE));
    cluster.runtime.sleep(CYCLE / 2).await;
    let half = cluster.debts().await as u64;
    assert!((OBJECTS / 2 - 2..=OBJECTS / 2 + 2).contains(&half), "{half} in debt after half of the cycle");
    cluster.runtime.sleep(CYCLE / 2 + Duration::from_secs(60)).await;
    assert_eq!(cluster.debts().await as u64, OBJECTS);
    assert_eq!(work(&cluster).await.last.unwrap().damaged, OBJECTS);
}

#[tokio::test(start_paused = true)]
async fn a_stripe_whose_record_is_wrong_is_named_and_those_after_it_are_verified() {
    let cluster = filled().await;
    let (id, record) = cluster.stripes().await.into_iter().next().unwrap();
    let record = records::Stripe { profile: "rs(4".to_owned(), ..record };
    let mut tx = cluster.client.stripes().transaction();
    tx.put(keys::stripe(id), records::encode(&record));
    cluster.meta.commit(tx).await.unwrap();
    let _task = cluster.runtime.spawn(keep_scrubbing(cluster.client.stripes().clone(), CYCLE));
    cluster.runtime.sleep(CYCLE + Duration::from_secs(60)).await;
    let last = work(&cluster).await.last.unwrap();
    assert_eq!((last.stripes, last.chunks, last.damaged), (OBJECTS, CHUNKS - 6, 1));
    let report = verify(cluster.client.stripes(), go_on).await.unwrap();
    assert!(report.progress.damaged == 1 && report.examples[0].contains(&id.to_string()), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn another_process_goes_on_where_the_last_one_was() {
    let cluster = filled().await;
    for _ in 0..8 {
        let task = cluster.runtime.spawn(keep_scrubbing(cluster.client.stripes().clone(), CYCLE));
        cluster.runtime.sleep(CYCLE / 8).await;
        task.abort();
        let _ = task.await;
        // Time without a scrub does not count.
        cluster.runtime.sleep(CYCLE).await;
    }
    let before = work(&cluster).await;
    assert!(before.cycle == 1 && (CHUNKS * 9 / 10..=CHUNKS).contains(&verified(before.count)), "{before:?}");
    let _task = cluster.runtime.spawn(keep_scrubbing(cluster.client.stripes().clone(), CYCLE));
    cluster.runtime.sleep(CYCLE / 10).await;
    let after = work(&cluster).await;
    assert_eq!((after.cycle, after.last.unwrap().stripes), (2, OBJECTS));
}

#[tokio::test(start_paused = true)]
async fn it_waits_while_requests_wait_until_it_is_far_behind() {
    let cluster = filled().await;
    cluster.sites.iter().for_each(|site| site.queue(9));
    let _task = cluster.runtime.spawn(keep_scrubbing(cluster.client.stripes().clone(), CYCLE));
    cluster.runtime.sleep(CYCLE / 2).await;
    let verified = verified(work(&cluster).await.count);
    let late = CHUNKS / 20;
    assert!((CHUNKS / 2 - late - 12..=CHUNKS / 2 - late + 6).contains(&verified), "{verified}");
}
