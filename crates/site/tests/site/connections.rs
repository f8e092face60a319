//! Connections of a client to its site: after a restart, after reads that were dropped, and when the site stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use striate_core::{ChunkRange, LoadReport};
use striate_runtime::Runtime;
use striate_site::protocol::limits::ServiceLimits;
use striate_site::transport_conformance::{GatedStore, chunk, payload};
use striate_site::{
    ByteStream, ChunkStore, Connector, MemoryStore, Priority, QueueLimits, ReadRequest, RemoteOptions,
    RemoteSite, Site, SiteError, TcpConnector,
};
use striate_trust::Role;
use tokio::net::{TcpListener, TcpStream};

use super::fixture::{Open, identity, local, remote, serve, serve_on, write_request};

#[tokio::test]
async fn a_client_outlives_a_restart_of_its_site() {
    let runtime = Runtime::real();
    let store: Arc<dyn ChunkStore> = Arc::new(MemoryStore::default());
    let first = local(&runtime, 1, Arc::clone(&store), QueueLimits::default());
    first.write(write_request(1, 1_000)).await.unwrap();
    let mut served = serve(&runtime, first, ServiceLimits::default()).await;
    let remote = remote(&runtime, 1, &served.address);
    let read = async || {
        let ranges = vec![ChunkRange { chunk: chunk(1), offset: 0, len: 1_000 }];
        let request = ReadRequest { ranges, priority: Priority::Foreground, deadline: None };
        remote.read(request).next().await.unwrap().result
    };
    assert_eq!(read().await, Ok(payload(1, 1_000)));
    assert!(remote.status().await.is_ok());
    served.stop.take().unwrap().send(()).unwrap();
    served.task.await.unwrap();
    assert!(matches!(read().await, Err(SiteError::Unavailable(_))));
    assert!(matches!(remote.status().await, Err(SiteError::Unavailable(_))));

    let listener = TcpListener::bind(&served.address).await.unwrap();
    let second = local(&runtime, 1, store, QueueLimits::default());
    let _served = serve_on(&runtime, listener, Open(Role::Gateway), second, ServiceLimits::default());
    assert_eq!(read().await, Ok(payload(1, 1_000)));
    assert!(remote.status().await.is_ok());
    assert_ne!(remote.last_load(), LoadReport::default());
}

/// Counts the connections that it makes.
#[derive(Debug, Default)]
struct Counting(AtomicUsize);

#[async_trait]
impl Connector for Counting {
    async fn connect(&self, address: &str) -> std::io::Result<Box<dyn ByteStream>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        TcpConnector.connect(address).await
    }
}

/// Drops reads after their first reply, each while the site is at its second chunk and the third waits. Returns the
/// number of connections that ten of them took.
async fn connections_of_dropped_reads(options: RemoteOptions) -> usize {
    let runtime = Runtime::real();
    let store = Arc::new(GatedStore::default());
    let site = local(&runtime, 1, store.clone(), QueueLimits { workers: 1, ..QueueLimits::default() });
    for number in 1..=3 {
        site.write(write_request(number, 1_000)).await.unwrap();
    }
    let served = serve(&runtime, site.clone(), ServiceLimits::default()).await;
    let connector = Arc::new(Counting::default());
    let (address, made) = (&served.address, Arc::clone(&connector));
    let remote = RemoteSite::new(runtime.clone(), connector, address, identity(1), options);
    for _ in 0..10 {
        store.hold(chunk(2));
        let ranges = (1..=3).map(|number| ChunkRange { chunk: chunk(number), offset: 0, len: 1_000 });
        let request =
            ReadRequest { ranges: ranges.collect(), priority: Priority::Foreground, deadline: None };
        let mut replies = remote.read(request);
        assert_eq!(replies.next().await.unwrap().result, Ok(payload(1, 1_000)));
        store.wait_begun(chunk(2)).await;
        drop(replies);
        while site.report_load().queue_bytes > 1_000 {
            runtime.sleep(Duration::from_millis(1)).await;
        }
        store.release(chunk(2));
        while site.report_load().queue_requests > 0 {
            runtime.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(store.take_begun(), [chunk(1), chunk(2)], "what waited is never begun");
    }
    made.0.load(Ordering::Relaxed)
}

#[tokio::test]
async fn a_read_that_is_dropped_leaves_the_queue_and_keeps_its_connection() {
    let connections = connections_of_dropped_reads(RemoteOptions::default()).await;
    // A read that begins before the previous one is fully cancelled needs one more connection.
    assert!(connections <= 5, "{connections}");
}

#[tokio::test]
async fn where_a_read_cannot_be_cancelled_its_connection_is_closed() {
    let options = RemoteOptions { max_in_flight: 1, ..RemoteOptions::default() };
    assert_eq!(connections_of_dropped_reads(options).await, 10);
}

#[tokio::test]
async fn a_stopping_site_finishes_the_requests_under_way() {
    let runtime = Runtime::real();
    let store = Arc::new(GatedStore::default());
    let site = local(&runtime, 1, store.clone(), QueueLimits::default());
    site.write(write_request(1, 1_000)).await.unwrap();
    let mut served = serve(&runtime, site, ServiceLimits::default()).await;
    let remote = remote(&runtime, 1, &served.address);
    store.hold(chunk(1));
    let ranges = vec![ChunkRange { chunk: chunk(1), offset: 0, len: 1_000 }];
    let replies = remote.read(ReadRequest { ranges, priority: Priority::Foreground, deadline: None });
    let reading = runtime.spawn(replies.collect::<Vec<_>>());
    store.wait_begun(chunk(1)).await;
    served.stop.take().unwrap().send(()).unwrap();
    store.release(chunk(1));
    assert_eq!(reading.await.unwrap()[0].result, Ok(payload(1, 1_000)));
    served.task.await.unwrap();
    assert!(TcpStream::connect(&served.address).await.is_err());
}
