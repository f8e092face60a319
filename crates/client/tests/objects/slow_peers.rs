//! Peers that stall: their memory goes to active peers, and they are served when they resume. Time is virtual.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use striate_client::{
    ClientError, ClientOptions, GetObject, ObjectStream, PutBody, PutRequest, ReadOrder, ReadRange,
};
use striate_runtime::Runtime;
use striate_stripe::StripeOptions;
use tokio::sync::mpsc;

use crate::cluster::{BUCKET, Cluster, get, in_virtual_time, noise, options, put, whole};
use crate::invariants;

const KIB: usize = 1 << 10;
const BLOCK: usize = 512 * KIB;
const OBJECT: usize = 8 * BLOCK;
const BUDGET: usize = 8 * BLOCK;
const IDLE: Duration = Duration::from_secs(1);

async fn open(runtime: &Runtime) -> Cluster {
    let stripes = StripeOptions { in_flight_bytes: BUDGET, ..options().stripes };
    let options = ClientOptions { block_len: BLOCK as u32, stripes, ..options() };
    let meta = std::sync::Arc::new(striate_meta::MemoryStore::new(runtime.clone()));
    let cluster = Cluster::open_with(runtime.clone(), meta, options).await;
    cluster.put("object", &noise(OBJECT, 1)).await.unwrap();
    cluster
}

fn taken(cluster: &Cluster) -> usize {
    cluster.client.stripes().budget().view().taken
}

/// Takes only the first piece of an object.
async fn begun(cluster: &Cluster) -> (ObjectStream, Vec<u8>) {
    let GetObject { mut body, .. } = cluster.client.get(get(BUCKET, "object")).await.unwrap();
    let first = body.next().await.unwrap().unwrap();
    (body, first.to_vec())
}

async fn rest(mut body: ObjectStream, mut bytes: Vec<u8>) -> Vec<u8> {
    while let Some(piece) = body.next().await {
        bytes.extend_from_slice(&piece.unwrap());
    }
    bytes
}

#[test]
fn receivers_that_stop_hold_a_piece_at_most_and_go_on_where_they_stopped() {
    in_virtual_time(1, async |runtime| {
        let cluster = open(&runtime).await;
        let mut stopped = Vec::new();
        for _ in 0..12 {
            stopped.push(begun(&cluster).await);
            runtime.sleep(IDLE).await;
            cluster.client.stripes().budget().release_idle(IDLE);
        }
        let view = cluster.client.stripes().budget().view();
        // Pieces of 128 KiB count until they pin much of the budget; later pieces are small, and left to buffers.
        let large = stopped.iter().map(|(_, first)| first.len()).filter(|&len| len > 64 * KIB);
        let pinned: usize = large.sum();
        assert_eq!((view.taken, view.pinned, view.waiting), (pinned, pinned, 0));
        assert!(pinned <= BUDGET / 8 + 128 * KIB, "{pinned}");
        // New receivers start small, and are served as fast as ever.
        assert_eq!(cluster.read("object").await.unwrap(), noise(OBJECT, 1));
        for (body, first) in stopped {
            assert!(rest(body, first).await == noise(OBJECT, 1));
        }
        assert_eq!(taken(&cluster), 0);
    });
}

/// Other requests pin half of the memory.
#[test]
fn while_memory_is_short_parts_grow_with_what_the_connection_has_taken() {
    for (taken, largest) in [(0, 64 * KIB), (2 << 20, 64 * KIB), (64 << 20, 128 * KIB)] {
        in_virtual_time(4, async |runtime| {
            let cluster = open(&runtime).await;
            let budget = cluster.client.stripes().budget().clone();
            let share = budget.acquire(BUDGET / 2 + KIB).await.unwrap();
            let _pinned = budget.pin(share, BUDGET / 2 + KIB);
            let request = striate_client::GetRequest { taken_bytes: taken, ..get(BUCKET, "object") };
            let GetObject { mut body, .. } = cluster.client.get(request).await.unwrap();
            let (mut bytes, mut lens) = (Vec::new(), Vec::new());
            while let Some(piece) = body.next().await {
                let piece = piece.unwrap();
                lens.push(piece.len());
                bytes.extend_from_slice(&piece);
            }
            assert!(bytes == noise(OBJECT, 1));
            assert_eq!((lens[0], lens.into_iter().max()), (64 * KIB, Some(largest)), "{taken}");
        });
    }
}

/// No sweeper runs here: waiters reclaim the memory that they need themselves.
#[test]
fn who_waits_is_given_what_stopped_receivers_hold() {
    in_virtual_time(2, async |runtime| {
        let cluster = open(&runtime).await;
        let mut stopped = Vec::new();
        for _ in 0..40 {
            let began = runtime.now();
            stopped.push(begun(&cluster).await);
            assert!(runtime.now() - began < IDLE, "after {} that stopped", stopped.len() - 1);
        }
        let began = runtime.now();
        cluster.put("other", &noise(OBJECT, 2)).await.unwrap();
        assert_eq!(cluster.read("other").await.unwrap(), noise(OBJECT, 2));
        assert!(runtime.now() - began < IDLE);
        let view = cluster.client.stripes().budget().view();
        assert!(view.released > 0 && view.refused == 0, "{view:?}");
    });
}

/// Whenever memory is reclaimed, and whatever is read, the bytes are right.
#[test]
fn memory_may_be_taken_back_between_any_two_pieces() {
    for seed in 0..20 {
        in_virtual_time(seed, async |runtime| {
            let cluster = open(&runtime).await;
            let budget = cluster.client.stripes().budget();
            let (first, last) = (seed * 7_919, Some(OBJECT as u64 - seed * 104_729 % 1_000_000));
            let ranges = [ReadRange::Whole, ReadRange::Bytes { first, last }];
            for range in ranges {
                let request = striate_client::GetRequest { range, ..get(BUCKET, "object") };
                let GetObject { mut body, range, .. } = cluster.client.get(request).await.unwrap();
                let mut bytes = Vec::new();
                while let Some(piece) = body.next().await {
                    bytes.extend_from_slice(&piece.unwrap());
                    let dice = runtime.random_u64();
                    runtime.sleep(Duration::from_millis(dice % 5_000)).await;
                    if dice.is_multiple_of(3) {
                        budget.release_idle(Duration::ZERO);
                    }
                }
                assert!(bytes == noise(OBJECT, 1)[range.start as usize..range.end as usize]);
            }
            assert_eq!(taken(&cluster), 0);
        });
    }
}

#[test]
fn a_batch_read_whose_receiver_stops_gives_way_and_goes_on() {
    for order in [ReadOrder::Completion, ReadOrder::Requests] {
        for seed in 0..10 {
            in_virtual_time(seed, async |runtime| {
                let cluster = open(&runtime).await;
                let lens = [100, 5_000, 200 * KIB, 40 * KIB, 700 * KIB, 3];
                for (number, &len) in lens.iter().enumerate() {
                    cluster.put(&format!("k{number}"), &noise(len, number as u64)).await.unwrap();
                }
                let keys: Vec<usize> = (0..60).map(|position| position * 5 % 7).collect();
                // The seventh key is missing.
                let requests = keys.iter().map(|key| get(BUCKET, &format!("k{key}"))).collect();
                let budget = cluster.client.stripes().budget().clone();
                let others = (runtime.clone(), budget.clone());
                let slow = cluster.client.read_many(requests, order).then(move |part| {
                    let (runtime, budget) = others.clone();
                    async move {
                        let dice = runtime.random_u64();
                        if dice.is_multiple_of(4) {
                            runtime.sleep(Duration::from_secs(3)).await;
                            budget.release_idle(IDLE);
                        }
                        part
                    }
                });
                let answers = whole(keys.len(), slow.boxed()).await;
                for (key, answer) in keys.into_iter().zip(answers) {
                    match answer {
                        Ok((_, bytes)) => assert!(bytes == noise(lens[key], key as u64)),
                        Err(ClientError::NoSuchKey(_)) => assert_eq!(key, 6),
                        Err(error) => panic!("{error}"),
                    }
                }
                assert!(budget.view().released > 0);
                // Cancelled reads hold their memory until their tasks end.
                runtime.sleep(IDLE).await;
                assert_eq!(taken(&cluster), 0);
            });
        }
    }
}

/// Ten stalled batch reads would otherwise hold almost five times the budget.
#[test]
fn batch_reads_that_stop_hold_little() {
    in_virtual_time(3, async |runtime| {
        let cluster = open(&runtime).await;
        let mut stopped = Vec::new();
        for _ in 0..10 {
            let requests = (0..10).map(|_| get(BUCKET, "object")).collect();
            let mut parts = cluster.client.read_many(requests, ReadOrder::Completion);
            parts.next().await.unwrap().1.unwrap();
            stopped.push(parts);
        }
        let began = runtime.now();
        cluster.put("other", &noise(OBJECT, 2)).await.unwrap();
        assert_eq!(cluster.read("other").await.unwrap(), noise(OBJECT, 2));
        assert!(runtime.now() - began < IDLE, "{:?}", runtime.now() - began);
    });
}

/// A body whose bytes arrive when the test sends them.
struct Sent(mpsc::UnboundedReceiver<Bytes>);

#[async_trait::async_trait]
impl PutBody for Sent {
    async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        self.0.recv().await.map(Ok)
    }
}

/// Starts a put. Returns its sender and its task.
fn begun_put(
    runtime: &Runtime,
    cluster: &Cluster,
    key: &str,
    len: usize,
) -> (mpsc::UnboundedSender<Bytes>, striate_runtime::JoinHandle<Result<(), ClientError>>) {
    let (sender, body) = mpsc::unbounded_channel();
    let request = PutRequest { body: Box::new(Sent(body)), content_len: Some(len as u64), ..put(key, b"") };
    let client = cluster.client.clone();
    (sender, runtime.spawn(async move { client.put(request).await.map(drop) }))
}

#[test]
fn a_put_holds_what_has_come() {
    in_virtual_time(4, async |runtime| {
        let cluster = open(&runtime).await;
        let bytes = noise(OBJECT, 3);
        let mut stopped = Vec::new();
        for number in 0..100 {
            let (sender, task) = begun_put(&runtime, &cluster, &format!("slow-{number}"), OBJECT);
            sender.send(Bytes::copy_from_slice(&bytes[..1])).unwrap();
            stopped.push((sender, task));
        }
        runtime.sleep(IDLE).await;
        assert_eq!(taken(&cluster), 100 * 4 * KIB, "a byte each");
        let some = 100 * KIB;
        for (sender, _) in &stopped[..4] {
            sender.send(Bytes::copy_from_slice(&bytes[1..some])).unwrap();
        }
        runtime.sleep(IDLE / 10).await;
        assert_eq!(taken(&cluster), 96 * 4 * KIB + 4 * 128 * KIB, "memory follows in steps");
        for (sender, task) in stopped.drain(..4) {
            sender.send(Bytes::copy_from_slice(&bytes[some..])).unwrap();
            drop(sender);
            task.await.unwrap().unwrap();
        }
        for number in 0..4 {
            assert!(cluster.read(&format!("slow-{number}")).await.unwrap() == bytes);
        }
        for (sender, task) in stopped {
            drop(sender);
            assert!(matches!(task.await.unwrap(), Err(ClientError::IncompleteBody { .. })));
        }
        assert_eq!(taken(&cluster), 0);
        invariants::check(&cluster).await;
    });
}

/// Starts puts that stall with all but a byte of a block: as many as may hold memory. Returns their senders and tasks.
async fn stalled_puts(
    runtime: &Runtime,
    cluster: &Cluster,
    bytes: &[u8],
) -> Vec<(mpsc::UnboundedSender<Bytes>, striate_runtime::JoinHandle<Result<(), ClientError>>)> {
    let mut stopped = Vec::new();
    for number in 0..4 {
        let (sender, task) = begun_put(runtime, cluster, &format!("slow-{number}"), BLOCK);
        sender.send(Bytes::copy_from_slice(&bytes[..BLOCK - 1])).unwrap();
        stopped.push((sender, task));
    }
    runtime.sleep(IDLE / 10).await;
    assert_eq!(taken(cluster), BUDGET / 2);
    stopped
}

/// Senders that stall with most of a block sent hold their memory while nobody else wants it, however long.
#[test]
fn who_needs_memory_has_the_slowest_sender_cut_and_the_others_end() {
    in_virtual_time(5, async |runtime| {
        let cluster = open(&runtime).await;
        let bytes = noise(BLOCK, 4);
        let stopped = stalled_puts(&runtime, &cluster, &bytes).await;
        runtime.sleep(Duration::from_secs(100)).await;
        let began = runtime.now();
        cluster.put("other", &bytes).await.unwrap();
        assert!(runtime.now() - began < IDLE, "{:?}", runtime.now() - began);
        assert_eq!(cluster.client.stripes().budget().view().cut, 1);
        let mut cut = 0;
        for (sender, task) in stopped {
            let _ = sender.send(Bytes::copy_from_slice(&bytes[BLOCK - 1..]));
            drop(sender);
            match task.await.unwrap() {
                Ok(()) => {}
                Err(ClientError::Overloaded) => cut += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!((cut, taken(&cluster)), (1, 0));
        invariants::check(&cluster).await;
    });
}

/// Of those that have just begun, none is slow: a put that finds no memory is refused in time, and the others end.
#[test]
fn who_finds_no_memory_in_time_is_refused_and_the_others_end() {
    in_virtual_time(6, async |runtime| {
        let cluster = open(&runtime).await;
        let bytes = noise(BLOCK, 4);
        let all = cluster.client.stripes().budget().acquire(BUDGET).await.unwrap();
        let began = runtime.now();
        assert!(matches!(cluster.put("other", &bytes).await, Err(ClientError::Overloaded)));
        assert_eq!(runtime.now() - began, StripeOptions::default().memory_wait);
        drop(all);
        let stopped = stalled_puts(&runtime, &cluster, &bytes).await;
        for (sender, task) in stopped {
            sender.send(Bytes::copy_from_slice(&bytes[BLOCK - 1..])).unwrap();
            drop(sender);
            task.await.unwrap().unwrap();
        }
        cluster.put("other", &bytes).await.unwrap();
        assert_eq!(taken(&cluster), 0);
    });
}

/// A hundred slow uploads of another key and address: small and large requests beside them do not wait.
#[test]
fn slow_uploads_of_one_payer_hold_up_nobody() {
    in_virtual_time(7, async |runtime| {
        let cluster = open(&runtime).await;
        let attacker = cluster.client.paid_by(striate_client::Payer::named([&b"slow"[..]]));
        let honest = cluster.client.paid_by(striate_client::Payer::named([&b"honest"[..]]));
        let bytes = noise(OBJECT, 3);
        let mut stopped = Vec::new();
        for number in 0..100 {
            let (sender, body) = mpsc::unbounded_channel();
            sender.send(Bytes::copy_from_slice(&bytes[..100 * KIB])).unwrap();
            let body = Box::new(Sent(body));
            let key = format!("slow-{number}");
            let request = PutRequest { body, content_len: Some(OBJECT as u64), ..put(&key, b"") };
            let client = attacker.clone();
            stopped.push((sender, runtime.spawn(async move { client.put(request).await.map(drop) })));
        }
        runtime.sleep(IDLE * 2).await;
        for round in 0..50 {
            let began = runtime.now();
            for len in [3, 60 * KIB, OBJECT] {
                honest.put(put("honest", &bytes[..len])).await.unwrap();
                let GetObject { body, .. } = honest.get(get(BUCKET, "honest")).await.unwrap();
                assert!(rest(body, Vec::new()).await == bytes[..len]);
            }
            assert!(runtime.now() - began < IDLE / 2, "round {round}: {:?}", runtime.now() - began);
            for (sender, _) in &stopped {
                let _ = sender.send(Bytes::copy_from_slice(&bytes[..KIB]));
            }
            runtime.sleep(IDLE / 10).await;
        }
        assert!(taken(&cluster) <= BUDGET);
    });
}
