//! Many objects in one call: each result is that of a get, whatever happens to the others.

use std::time::Duration;

use futures::StreamExt;
use striate_client::{ClientError, GetRequest, ReadCondition, ReadOrder, ReadRange};

use crate::cluster::{BUCKET, Cluster, get, in_virtual_time, noise, whole};
use crate::invariants;

const ORDERS: [ReadOrder; 2] = [ReadOrder::Completion, ReadOrder::Requests];
const HOUR: Duration = Duration::from_secs(3_600);

/// Inline, one block, a few listed blocks, and many block rows; the budget has 16 blocks of 1,000 bytes.
const LENS: [usize; 6] = [0, 1, 100, 1_000, 3_500, 40_000];

fn key(number: usize) -> String {
    format!("key-{number:03}")
}

fn bytes_of(number: usize) -> Vec<u8> {
    noise(LENS[number % LENS.len()], number as u64)
}

async fn put_all(cluster: &Cluster, count: usize) {
    for number in 0..count {
        cluster.put(&key(number), &bytes_of(number)).await.unwrap();
    }
}

fn ranged(key: &str, range: ReadRange) -> GetRequest {
    GetRequest { range, ..get(BUCKET, key) }
}

fn if_match(key: &str, etag: &str) -> GetRequest {
    let condition = ReadCondition { if_match: Some(vec![etag.to_owned()]), ..ReadCondition::default() };
    GetRequest { condition, ..get(BUCKET, key) }
}

/// The objects exceed the memory and one look-up window, and some are missing.
#[test]
fn hundreds_of_objects_of_all_sizes_are_read_within_a_small_budget() {
    for order in ORDERS {
        in_virtual_time(1, async |runtime| {
            let cluster = Cluster::open(runtime.clone()).await;
            put_all(&cluster, 60).await;
            let requests: Vec<_> = (0..300).map(|number| get(BUCKET, &key(number % 75))).collect();
            let reads = cluster.read_many(requests, order);
            let answers = runtime.timeout(HOUR, reads).await.expect("somebody waits for ever");
            for (number, answer) in answers.into_iter().enumerate() {
                match answer {
                    Ok((info, bytes)) => {
                        assert_eq!(info.key, key(number % 75));
                        assert_eq!(bytes, bytes_of(number % 75), "{number}");
                    }
                    Err(ClientError::NoSuchKey(missing)) => {
                        assert!(number % 75 >= 60, "{missing}");
                    }
                    Err(error) => panic!("{number}: {error}"),
                }
            }
            // All memory was returned.
            cluster.put("last", &noise(40_000, 9)).await.unwrap();
            invariants::check(&cluster).await;
        });
    }
}

#[test]
fn every_failure_is_its_own_requests() {
    for order in ORDERS {
        in_virtual_time(2, async |runtime| {
            let cluster = Cluster::open(runtime).await;
            let inline = cluster.put("inline", b"inline").await.unwrap();
            let large = cluster.put("large", &noise(40_000, 1)).await.unwrap();
            let bytes = |first, last| ReadRange::Bytes { first, last };
            let requests = vec![
                get(BUCKET, "none"),
                get("no-bucket", "inline"),
                get(BUCKET, ""),
                get(BUCKET, &"x".repeat(1_025)),
                if_match("inline", "other"),
                if_match("large", "other"),
                if_match("inline", &inline.etag),
                if_match("large", &large.etag),
                ranged("inline", bytes(6, None)),
                ranged("inline", bytes(2, Some(3))),
                ranged("large", bytes(40_000, None)),
                ranged("large", bytes(990, Some(1_009))),
                ranged("large", ReadRange::Suffix { len: 7 }),
                ranged("large", ReadRange::Part(2)),
                ranged("large", bytes(0, None)),
            ];
            let answers = cluster.read_many(requests, order).await;
            let shown: Vec<String> = answers
                .iter()
                .map(|answer| match answer {
                    Ok((_, bytes)) => format!("{} bytes", bytes.len()),
                    Err(error) => error.to_string(),
                })
                .collect();
            for (number, expected) in [
                "there is no object \"none\"",
                "there is no bucket \"no-bucket\"",
                "a key has at least one byte and no NUL",
                "the key has 1025 bytes, 1024 are allowed",
                "the condition If-Match does not hold",
                "the condition If-Match does not hold",
                "6 bytes",
                "40000 bytes",
                "the range is outside the object's 6 bytes",
                "2 bytes",
                "the range is outside the object's 40000 bytes",
                "20 bytes",
                "7 bytes",
                "the range is outside the object's 40000 bytes",
                "40000 bytes",
            ]
            .into_iter()
            .enumerate()
            {
                assert_eq!(shown[number], expected, "{number}");
            }
            assert_eq!(&answers[9].as_ref().unwrap().1[..], b"li");
            assert_eq!(answers[11].as_ref().unwrap().1, noise(40_000, 1)[990..1_010]);
            assert_eq!(answers[12].as_ref().unwrap().1, noise(40_000, 1)[39_993..]);
        });
    }
}

/// Completion order returns ready results first; request order makes them wait for the requests before.
#[test]
fn the_order_is_that_of_completion_or_that_of_the_requests() {
    in_virtual_time(3, async |runtime| {
        let cluster = Cluster::open(runtime).await;
        put_all(&cluster, 6).await;
        let requests = || vec![get(BUCKET, &key(5)), get(BUCKET, &key(3)), get(BUCKET, &key(0))];
        let mut positions = Vec::new();
        for order in ORDERS {
            let parts = cluster.client.read_many(requests(), order);
            let ends = parts.filter_map(async |(position, part)| part.unwrap().is_last.then_some(position));
            positions.push(ends.collect::<Vec<usize>>().await);
        }
        assert_eq!(positions, [[2, 1, 0], [0, 1, 2]]);
    });
}

/// The receiver takes one part and pauses: the work in flight is bounded, other requests continue, and so does the
/// receiver later.
#[test]
fn a_receiver_that_pauses_stops_the_reading_and_holds_up_nobody() {
    for order in ORDERS {
        in_virtual_time(4, async |runtime| {
            let cluster = Cluster::open(runtime.clone()).await;
            put_all(&cluster, 60).await;
            let requests: Vec<_> = (0..60).map(|number| get(BUCKET, &key(number))).collect();
            let mut paused = Vec::new();
            for _ in 0..2 {
                let mut parts = cluster.client.read_many(requests.clone(), order);
                parts.next().await.unwrap().1.unwrap();
                paused.push(parts);
            }
            // Longer than any deadline: the sites must not be counted as late because of it.
            runtime.sleep(HOUR).await;
            let other = noise(40_000, 1);
            let put = cluster.put("other", &other);
            runtime.timeout(HOUR, put).await.expect("paused reads hold up a put").unwrap();
            let get = runtime.timeout(HOUR, cluster.read("other")).await;
            assert_eq!(get.expect("paused reads hold up a get").unwrap(), other);
            let one = paused.pop().unwrap();
            let rest = runtime.timeout(HOUR, one.all(async |(_, part)| part.is_ok())).await;
            assert!(rest.expect("a paused read holds up another one"));
            let answers = runtime.timeout(HOUR, cluster.read_many(requests.clone(), order)).await;
            assert!(answers.expect("a paused read holds up another one").iter().all(Result::is_ok));
            assert!(
                cluster.client.stripes().sites().iter().all(|site| site.readable),
                "a site was taken for dead"
            );
        });
    }
}

/// Two receivers alternate with a put and a get over one budget of 16 blocks.
#[test]
fn many_reads_puts_and_gets_share_a_small_budget() {
    in_virtual_time(5, async |runtime| {
        let cluster = Cluster::open(runtime.clone()).await;
        put_all(&cluster, 30).await;
        let requests: Vec<_> = (0..30).map(|number| get(BUCKET, &key(number))).collect();
        let many = (0..6).map(|number| cluster.read_many(requests.clone(), ORDERS[number % 2]));
        let puts = (0..6).map(async |number| {
            cluster.put(&format!("put-{number}"), &noise(40_000, number)).await.unwrap();
        });
        let gets = (0..6).map(async |_| assert_eq!(cluster.read(&key(5)).await.unwrap(), bytes_of(5)));
        let all = async {
            futures::join!(
                futures::future::join_all(many),
                futures::future::join_all(puts),
                futures::future::join_all(gets)
            )
        };
        let (answers, _, _) = runtime.timeout(HOUR, all).await.expect("somebody waits for ever");
        for answers in answers {
            for (number, answer) in answers.into_iter().enumerate() {
                assert_eq!(answer.unwrap().1, bytes_of(number));
            }
        }
    });
}

/// Objects are replaced and deleted between their look-up and the reads of their blocks.
#[test]
fn objects_that_are_replaced_or_deleted_meanwhile_are_read_whole_old_or_new_or_are_gone() {
    for (seed, order) in (0..8).flat_map(|seed| ORDERS.map(|order| (seed, order))) {
        in_virtual_time(seed, async |runtime| {
            let cluster = Cluster::open(runtime.clone()).await;
            put_all(&cluster, 60).await;
            let requests: Vec<_> = (0..60).map(|number| get(BUCKET, &key(number))).collect();
            let mut parts = cluster.client.read_many(requests, order);
            let first = parts.next().await.unwrap();
            let new = |number: usize| noise(2_000, 1_000 + number as u64);
            for number in 0..60 {
                match number % 3 {
                    0 => drop(cluster.put(&key(number), &new(number)).await.unwrap()),
                    1 => cluster
                        .client
                        .delete(BUCKET, &key(number), Default::default())
                        .await
                        .map(drop)
                        .unwrap(),
                    _ => {}
                }
            }
            let parts = futures::stream::iter([first]).chain(parts).boxed();
            for (number, answer) in whole(60, parts).await.into_iter().enumerate() {
                match (answer, number % 3) {
                    (Ok((_, bytes)), 0) => {
                        assert!(bytes == bytes_of(number) || bytes == new(number), "{number}");
                    }
                    (Ok((_, bytes)), _) => assert_eq!(bytes, bytes_of(number), "{number}"),
                    (Err(ClientError::NoSuchKey(_)), 1) => {}
                    // Ends early, like a get whose object vanishes during the read.
                    (Err(ClientError::Inconsistent { .. } | ClientError::Unreadable { .. }), 0 | 1) => {}
                    (Err(error), _) => panic!("{number}: {error}"),
                }
            }
        });
    }
}

/// With two sites lost, all objects are read around them. With a third, objects with lost chunks fail and inline ones
/// do not.
#[test]
fn lost_sites_are_read_around_and_too_many_fail_what_needs_them() {
    for order in ORDERS {
        in_virtual_time(6, async |runtime| {
            let cluster = Cluster::open(runtime).await;
            put_all(&cluster, 24).await;
            let requests: Vec<_> = (0..24).map(|number| get(BUCKET, &key(number))).collect();
            cluster.stores[0].wipe();
            cluster.stores[1].wipe();
            for (number, answer) in cluster.read_many(requests.clone(), order).await.into_iter().enumerate() {
                assert_eq!(answer.unwrap().1, bytes_of(number), "{number}");
            }
            cluster.stores[2].wipe();
            for (number, answer) in cluster.read_many(requests, order).await.into_iter().enumerate() {
                match answer {
                    Ok((_, bytes)) => assert_eq!(bytes, bytes_of(number)),
                    Err(error) => {
                        assert!(matches!(error, ClientError::Unreadable { needed: 4, .. }), "{error}");
                        assert!(LENS[number % LENS.len()] >= 1_000, "{number} is inline");
                    }
                }
            }
        });
    }
}

/// An unreadable object does not fail those that were read together with it.
#[test]
fn an_unreadable_object_fails_alone() {
    for order in ORDERS {
        in_virtual_time(7, async |runtime| {
            let cluster = Cluster::open(runtime).await;
            cluster.put("lost", &noise(900, 0)).await.unwrap();
            cluster.stores[..3].iter().for_each(|store| store.wipe());
            for number in 0..3 {
                cluster.put(&key(number), &noise(900, number as u64)).await.unwrap();
            }
            let keys = [key(0), "lost".to_owned(), key(1), key(2)];
            let requests = keys.iter().map(|key| get(BUCKET, key)).collect();
            let answers = cluster.read_many(requests, order).await;
            let read: Vec<bool> = answers.iter().map(Result::is_ok).collect();
            assert_eq!(read, [true, false, true, true]);
        });
    }
}
