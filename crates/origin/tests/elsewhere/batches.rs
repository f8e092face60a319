//! Batches on a bucket with an origin.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use http::Method;
use striate_client::{
    ClientError, GetRequest, ObjectHead, ObjectInfo, PutBody, PutRequest, ReadCondition, ReadOrder, ReadRange,
};
use striate_s3::RemoteBuckets;

use crate::store::Faults;
use crate::{BUCKET, Gateway, LONG, MIB, World, noise, none};

type Answer = Result<(ObjectHead, Vec<u8>), ClientError>;

fn item(key: &str) -> GetRequest {
    let (bucket, key) = (BUCKET.to_owned(), key.to_owned());
    GetRequest { bucket, key, condition: ReadCondition::default(), range: ReadRange::Whole, taken_bytes: 0 }
}

fn range(key: &str, first: u64, last: u64) -> GetRequest {
    GetRequest { range: ReadRange::Bytes { first, last: Some(last) }, ..item(key) }
}

/// Reads items in a batch. Returns the result of each, and the order in which items ended.
async fn read(gateway: &Gateway, items: Vec<GetRequest>, order: ReadOrder) -> (Vec<Answer>, Vec<usize>) {
    let count = items.len();
    let mut parts = gateway.origins.read_many(BUCKET, items, order);
    let (mut open, mut ended, mut order) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    while let Some((position, part)) = parts.next().await {
        assert!(!ended.contains_key(&position), "nothing comes after an item's end");
        let answer = match part {
            Err(error) => Err(error),
            Ok(part) => {
                let (_, bytes): &mut (Option<ObjectHead>, Vec<u8>) = open.entry(position).or_default();
                part.pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
                if let Some(head) = part.head {
                    open.get_mut(&position).unwrap().0 = Some(*head);
                }
                if !part.is_last {
                    continue;
                }
                let (head, bytes) = open.remove(&position).unwrap();
                Ok((head.expect("a head came first"), bytes))
            }
        };
        ended.insert(position, answer);
        order.push(position);
    }
    assert_eq!(ended.len(), count, "every item is answered");
    (ended.into_values().collect(), order)
}

async fn sizes(gateway: &Gateway, keys: &[&str], until_gap: bool) -> Result<Vec<Option<u64>>, ClientError> {
    let keys = keys.iter().map(|key| (*key).to_owned()).collect();
    gateway.origins.sizes_of(BUCKET, keys, until_gap).await
}

fn bytes_of(answer: &Answer) -> &[u8] {
    &answer.as_ref().unwrap().1
}

#[tokio::test]
async fn objects_and_ranges_come_from_the_origin_once_and_then_from_memory() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    let lens = [0, 1, 1_000, 100_000, 200_000, MIB, 3 * MIB + 7];
    let wholes: Vec<Vec<u8>> = (0..).zip(lens).map(|(seed, len)| noise(len, seed)).collect();
    wholes.iter().enumerate().for_each(|(number, whole)| world.store.put(&number.to_string(), whole.clone()));
    for order in [ReadOrder::Completion, ReadOrder::Requests] {
        for round in 0..2 {
            let before = (world.store.asked(), world.store.sent());
            let mut items: Vec<_> = (0..lens.len()).map(|number| item(&number.to_string())).collect();
            items.push(range("6", 2 * MIB as u64 - 5, 2 * MIB as u64 + 4));
            let (answers, ended) = read(&gateway, items, order).await;
            for (answer, whole) in answers.iter().zip(&wholes) {
                assert!(bytes_of(answer) == whole);
            }
            assert_eq!(bytes_of(&answers[lens.len()]), &wholes[6][2 * MIB - 5..2 * MIB + 5]);
            let head = &answers[lens.len()].as_ref().unwrap().0;
            assert_eq!((head.info.size, head.range.start), (3 * MIB as u64 + 7, 2 * MIB as u64 - 5));
            if order == ReadOrder::Requests {
                assert!(ended.is_sorted(), "{ended:?}");
            }
            world.settle().await;
            if round > 0 {
                let after = (world.store.asked(), world.store.sent());
                assert_eq!(after, before, "the origin is not asked again");
            }
        }
    }
}

#[tokio::test]
async fn an_item_that_fails_fails_by_itself() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    world.store.put("good", "bytes");
    world.store.put("secret", "bytes");
    world.store.set_faults(Faults { denied: Some("secret"), ..Faults::default() });
    let if_match = |etag: &str| ReadCondition { if_match: Some(vec![etag.to_owned()]), ..Default::default() };
    for order in [ReadOrder::Completion, ReadOrder::Requests] {
        let other = GetRequest { condition: if_match("other"), ..item("good") };
        let items = vec![
            item("none"),
            item("secret"),
            item("good"),
            range("good", 5, 9),
            other,
            item(""),
            GetRequest { condition: if_match("*"), ..item("none") },
        ];
        let (answers, _) = read(&gateway, items, order).await;
        assert!(matches!(&answers[0], Err(ClientError::NoSuchKey(key)) if key == "none"), "{:?}", answers[0]);
        assert!(matches!(answers[1], Err(ClientError::OriginDenied { .. })), "{:?}", answers[1]);
        assert_eq!(bytes_of(&answers[2]), b"bytes");
        assert!(matches!(answers[3], Err(ClientError::InvalidRange { size: 5 })), "{:?}", answers[3]);
        assert!(matches!(answers[4], Err(ClientError::PreconditionFailed(_))), "{:?}", answers[4]);
        assert!(matches!(answers[5], Err(ClientError::InvalidArgument(_))), "and never a listing");
        assert!(matches!(answers[6], Err(ClientError::NoSuchKey(_))), "{:?}", answers[6]);
    }
    let keys = ["good", "none", "secret", "good"];
    assert_eq!(sizes(&gateway, &keys, false).await.unwrap(), [Some(5), None, None, Some(5)]);
    assert_eq!(sizes(&gateway, &keys, true).await.unwrap(), [Some(5)]);
}

#[tokio::test]
async fn an_origin_that_fails_is_no_missing_object() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    world.store.put("k", "bytes");
    world.store.set_faults(Faults { unavailable: 1_000, ..Faults::default() });
    assert!(matches!(sizes(&gateway, &["k"], false).await, Err(ClientError::Origin { .. })));
    let (answers, _) = read(&gateway, vec![item("k")], ReadOrder::Completion).await;
    assert!(matches!(answers[0], Err(ClientError::Origin { .. })));
}

#[tokio::test]
async fn what_is_being_written_passes_by_and_its_neighbours_do_not() {
    let world = World::new(6).await;
    let (one, other) = (world.gateway(LONG).await, world.gateway(LONG).await);
    let old = noise(300_000, 1);
    for key in ["a", "b"] {
        world.store.put(key, old.clone());
    }
    let both = || vec![item("a"), item("b"), range("b", 10, 19)];
    for answer in read(&other, both(), ReadOrder::Requests).await.0 {
        assert!(answer.is_ok());
    }
    world.settle().await;
    world.store.set_faults(Faults { slow_write: Duration::from_millis(400), ..Faults::default() });
    let new = noise(200_001, 2);
    let reads = async {
        world.settle().await;
        let (gets, heads) = world.store.asked();
        let (answers, _) = read(&other, both(), ReadOrder::Completion).await;
        assert!(bytes_of(&answers[0]) == old && bytes_of(&answers[1]) == old);
        assert_eq!(bytes_of(&answers[2]), &old[10..20]);
        assert_eq!(world.store.asked(), (gets + 2, heads), "for the one that is written alone");
        assert_eq!(sizes(&other, &["a", "b"], false).await.unwrap(), [Some(300_000); 2]);
        assert_eq!(world.store.asked(), (gets + 2, heads + 1));
    };
    futures::future::join(one.put("b", &new), reads).await;
    let (answers, _) = read(&other, both(), ReadOrder::Completion).await;
    assert!(bytes_of(&answers[0]) == old && bytes_of(&answers[1]) == new, "and is seen at once");
    assert_eq!(sizes(&other, &["b"], false).await.unwrap(), [Some(200_001)]);
}

#[tokio::test]
async fn a_batch_asks_an_origin_for_sixteen_things_at_a_time() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    let keys: Vec<String> = (0..200).map(|number| format!("k{number}")).collect();
    keys.iter().for_each(|key| world.store.put(key, key.clone()));
    world.store.set_faults(Faults { slow: Duration::from_millis(20), ..Faults::default() });
    let items = || keys.iter().map(|key| item(key)).collect();
    let (answers, ended) = read(&gateway, items(), ReadOrder::Requests).await;
    assert!(answers.iter().zip(&keys).all(|(answer, key)| bytes_of(answer) == key.as_bytes()));
    assert!(ended.is_sorted());
    assert_eq!(world.store.most_open(), 16);
    let other = world.gateway(LONG).await;
    read(&other, items(), ReadOrder::Completion).await;
    let named: Vec<&str> = keys.iter().map(String::as_str).collect();
    let last = world.gateway(LONG).await;
    assert!(sizes(&last, &named, false).await.unwrap().iter().all(Option::is_some));
    assert_eq!(world.store.most_open(), 16);
}

/// No item waits for memory that a later item holds.
#[tokio::test]
async fn large_objects_in_order_need_no_more_memory_than_there_is() {
    let mut world = World::new(1).await;
    let whole = noise(3 * MIB, 1);
    let items = || (0..12).map(|number| item(&number.to_string())).collect::<Vec<_>>();
    (0..12).for_each(|number| world.store.put(&number.to_string(), whole.clone()));
    let filling = world.gateway(LONG).await;
    read(&filling, items(), ReadOrder::Requests).await;
    world.settle().await;
    world.in_flight_bytes = Some(2 * MIB);
    let gateway = world.gateway(LONG).await;
    // This gateway knows all objects: as long as there is memory to read into, it fetches nothing.
    sizes(&gateway, &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"], false).await.unwrap();
    let sent = world.store.sent();
    for order in [ReadOrder::Requests, ReadOrder::Completion] {
        for answer in read(&gateway, items(), order).await.0 {
            assert!(bytes_of(&answer) == whole);
        }
        assert_eq!(world.store.sent(), sent);
    }
}

struct Body(Vec<Result<Bytes, ClientError>>);

#[async_trait]
impl PutBody for Body {
    async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }
}

fn put(key: &str, len: u64, pieces: Vec<Result<Bytes, ClientError>>) -> PutRequest {
    PutRequest {
        bucket: BUCKET.to_owned(),
        key: key.to_owned(),
        attributes: striate_client::ObjectAttributes::default(),
        condition: striate_client::WriteCondition::default(),
        profile: None,
        content_len: Some(len),
        digests: striate_client::ExpectedDigests::default(),
        body: Box::new(Body(pieces)),
    }
}

pub(crate) fn put_all(key: &str, bytes: &[u8]) -> PutRequest {
    let pieces = bytes.chunks(100_000).map(|piece| Ok(Bytes::copy_from_slice(piece)));
    put(key, bytes.len() as u64, pieces.collect())
}

#[tokio::test]
async fn a_batch_creates_what_does_not_exist_and_nothing_from_a_wrong_body() {
    let world = World::new(6).await;
    let (one, other) = (world.gateway(LONG).await, world.gateway(LONG).await);
    world.store.put("old", "as it was");
    world.store.set_faults(Faults { denied: Some("secret"), ..Faults::default() });
    let large = noise(3 * MIB, 1);
    let wrong = || Err(ClientError::Body("a checksum".to_owned()));
    let outcomes = one
        .origins
        .create_many(
            BUCKET,
            vec![
                put_all("new", b"bytes"),
                put_all("old", b"others"),
                put_all("large", &large),
                put_all("empty", b""),
                put("wrong", 3, vec![Ok(Bytes::from_static(b"abc")), wrong()]),
                put("large-wrong", 2 * MIB as u64, vec![Ok(large.clone().into()), wrong()]),
                put_all("secret", b"bytes"),
            ],
        )
        .await;
    let created = |outcome: &Result<ObjectInfo, ClientError>| outcome.as_ref().unwrap().clone();
    let head = other.ask(Method::HEAD, "new", &[], none()).await.unwrap();
    assert_eq!(head.headers()["etag"], format!("\"{}\"", created(&outcomes[0]).etag));
    assert!(matches!(outcomes[1], Err(ClientError::PreconditionFailed(_))), "{:?}", outcomes[1]);
    assert_eq!((created(&outcomes[2]).size, created(&outcomes[3]).size), (3 * MIB as u64, 0));
    assert!(outcomes[4].is_err() && outcomes[5].is_err());
    assert!(matches!(outcomes[6], Err(ClientError::OriginDenied { .. })), "{:?}", outcomes[6]);
    assert_eq!(world.store.get("old").unwrap(), "as it was");
    assert_eq!(world.store.get("large").unwrap(), large);
    assert!(["wrong", "large-wrong", "secret"].iter().all(|key| world.store.get(key).is_none()));
    let keys = ["new", "old", "large", "empty", "wrong"];
    let expected = [Some(5), Some(9), Some(3 * MIB as u64), Some(0), None];
    assert_eq!(sizes(&other, &keys, false).await.unwrap(), expected, "seen at once");
}

/// What this gateway knows is not enough: another gateway may have written meanwhile.
#[tokio::test]
async fn of_two_batches_that_create_the_same_object_one_does() {
    let world = World::new(6).await;
    let gateways = [world.gateway(LONG).await, world.gateway(LONG).await];
    world.store.set_faults(Faults { slow_write: Duration::from_millis(100), ..Faults::default() });
    let create = |number: usize| {
        let requests = vec![put_all("k", &[number as u8; 100])];
        gateways[number].origins.create_many(BUCKET, requests)
    };
    let outcomes = futures::future::join_all([create(0), create(1)]).await.concat();
    let winner = outcomes.iter().position(Result::is_ok).unwrap();
    assert!(matches!(outcomes[1 - winner], Err(ClientError::PreconditionFailed(_))));
    for gateway in &gateways {
        assert_eq!(gateway.get("k").await, [winner as u8; 100]);
    }
}
