//! Many puts in one call, and look-ups of which keys exist: each result is that of a put or a head, whatever happens
//! to the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use striate_client::{ClientError, EtagSource, ExpectedDigests, ObjectInfo, PutBody, PutRequest};
use tokio::sync::Notify;

use crate::cluster::{BUCKET, Cluster, Frames, if_absent, in_virtual_time, noise, put};
use crate::invariants;

const HOUR: Duration = Duration::from_secs(3_600);
/// Inline, one block, a few listed blocks, and many block rows; the budget has 16 blocks of 1,000 bytes.
const LENS: [usize; 6] = [0, 1, 100, 1_000, 3_500, 40_000];

fn key(number: usize) -> String {
    format!("key-{number:03}")
}

fn bytes_of(number: usize) -> Vec<u8> {
    noise(LENS[number % LENS.len()], number as u64)
}

/// A put that only creates.
fn create(number: usize) -> PutRequest {
    let digests = ExpectedDigests { etag: EtagSource::Version, ..ExpectedDigests::default() };
    PutRequest { condition: if_absent(), digests, ..put(&key(number), &bytes_of(number)) }
}

/// Bodies that arrive one after the other, as from one connection.
struct Turns {
    next: AtomicUsize,
    passed: Vec<Notify>,
}

/// A body that yields nothing before its turn.
struct InTurn {
    turns: Arc<Turns>,
    position: usize,
    body: Box<dyn PutBody>,
    begun: bool,
}

#[async_trait::async_trait]
impl PutBody for InTurn {
    async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        if !self.begun {
            self.turns.passed[self.position].notified().await;
            assert_eq!(self.turns.next.fetch_add(1, Ordering::SeqCst), self.position);
            self.begun = true;
        }
        let piece = self.body.next().await;
        if piece.is_none() {
            self.turns.passed[self.position + 1].notify_one();
        }
        piece
    }
}

/// The objects exceed the memory and the number of concurrent puts, and all arrive on one connection.
#[test]
fn hundreds_of_objects_of_all_sizes_are_created_within_a_small_budget() {
    in_virtual_time(1, async |runtime| {
        let cluster = Cluster::open(runtime.clone()).await;
        let passed = (0..=300).map(|_| Notify::new()).collect();
        let turns = Arc::new(Turns { next: AtomicUsize::new(0), passed });
        turns.passed[0].notify_one();
        let in_turn = |position: usize| {
            let request = create(position);
            let (turns, body) = (turns.clone(), request.body);
            PutRequest { body: Box::new(InTurn { turns, position, body, begun: false }), ..request }
        };
        let puts = cluster.client.put_many((0..300).map(in_turn).collect());
        let infos = runtime.timeout(HOUR, puts).await.expect("somebody waits for ever");
        for (number, info) in infos.into_iter().enumerate() {
            let ObjectInfo { key: of, etag, .. } = info.unwrap();
            assert_eq!((of, etag.ends_with("-0")), (key(number), true));
            assert_eq!(cluster.read(&key(number)).await.unwrap(), bytes_of(number), "{number}");
        }
        // All memory was returned.
        cluster.put("last", &noise(40_000, 9)).await.unwrap();
        invariants::check(&cluster).await;
    });
}

#[test]
fn what_exists_stays_as_it_is_and_every_failure_is_its_own() {
    in_virtual_time(2, async |runtime| {
        let cluster = Cluster::open(runtime).await;
        cluster.put(&key(3), b"as it was").await.unwrap();
        let broken =
            PutRequest { body: Frames::failing(&noise(2_500, 1), 500), content_len: None, ..create(9) };
        let nowhere = PutRequest { bucket: "no-bucket".to_owned(), ..create(10) };
        let nameless = PutRequest { key: String::new(), ..create(11) };
        let requests = vec![create(2), create(3), broken, nowhere, nameless, create(4), create(4)];
        let outcomes = cluster.client.put_many(requests).await;
        let is_new = outcomes.iter().map(Result::is_ok).collect::<Vec<_>>();
        // Either of the two puts that create the same key may win.
        assert_eq!(is_new[..5], [true, false, false, false, false]);
        assert!(is_new[5] != is_new[6]);
        assert!(matches!(outcomes[1], Err(ClientError::PreconditionFailed(_))));
        assert!(matches!(outcomes[2], Err(ClientError::Body(_))));
        assert!(matches!(outcomes[3], Err(ClientError::NoSuchBucket(_))));
        assert!(matches!(outcomes[4], Err(ClientError::InvalidArgument(_))));
        assert_eq!(cluster.read(&key(3)).await.unwrap(), &b"as it was"[..]);
        assert_eq!(cluster.read(&key(4)).await.unwrap(), bytes_of(4));
        assert!(cluster.read(&key(9)).await.is_err());
        invariants::check(&cluster).await;
    });
}

#[test]
fn those_who_create_the_same_keys_at_the_same_time_share_them_without_mixing() {
    for seed in 0..20 {
        in_virtual_time(seed, async |runtime| {
            let cluster = Cluster::open(runtime).await;
            let of = |writer: usize| {
                let request = |number: usize| PutRequest {
                    condition: if_absent(),
                    ..put(&key(number), &noise(1_500, writer as u64))
                };
                cluster.client.put_many((0..20).map(request).collect())
            };
            let (first, second) = futures::join!(of(1), of(2));
            for number in 0..20 {
                let winner = match (&first[number], &second[number]) {
                    (Ok(_), Err(ClientError::PreconditionFailed(_))) => 1,
                    (Err(ClientError::PreconditionFailed(_)), Ok(_)) => 2,
                    other => panic!("{number}: {other:?}"),
                };
                assert_eq!(cluster.read(&key(number)).await.unwrap(), noise(1_500, winner));
            }
            invariants::check(&cluster).await;
        });
    }
}

#[test]
fn sizes_are_those_of_the_objects_and_end_at_the_first_gap_where_that_is_asked() {
    in_virtual_time(3, async |runtime| {
        let cluster = Cluster::open(runtime).await;
        let requests = (0..600).filter(|number| *number != 550).map(create).collect();
        assert!(cluster.client.put_many(requests).await.iter().all(Result::is_ok));
        let keys: Vec<String> = (0..600).map(key).chain([String::new(), "\0".to_owned()]).collect();
        let mut expected: Vec<Option<u64>> =
            (0..600).map(|number| Some(LENS[number % LENS.len()] as u64)).collect();
        expected[550] = None;
        let prefix = expected[..550].to_vec();
        expected.extend([None, None]);
        assert_eq!(cluster.client.sizes_of(BUCKET, &keys, false).await.unwrap(), expected);
        assert_eq!(cluster.client.sizes_of(BUCKET, &keys, true).await.unwrap(), prefix);
        assert!(cluster.client.sizes_of(BUCKET, &keys[550..551], true).await.unwrap().is_empty());
        let nowhere = cluster.client.sizes_of("no-bucket", &keys, false).await;
        assert!(matches!(nowhere, Err(ClientError::NoSuchBucket(_))));
    });
}
