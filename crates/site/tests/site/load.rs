//! What counts in the load that a site reports: what it still has to send or to store.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use striate_core::ChunkRange;
use striate_runtime::Runtime;
use striate_site::filesystem::SimulatedFileSystem;
use striate_site::protocol::limits::ServiceLimits;
use striate_site::transport_conformance::chunk;
use striate_site::{
    DiskStore, DiskStoreOptions, MemoryStore, Priority, QueueLimits, ReadRequest, Site, SiteError,
};

use super::fixture::{Narrow, local, remote, remote_by, serve, serve_narrow, write_request};

/// Chunks that need no disk are not read by workers, but they still have to be sent: a site with slow
/// connections must not look idle.
#[tokio::test]
async fn what_is_read_without_waiting_counts_until_it_is_sent() {
    let runtime = Runtime::real();
    let store = Arc::new(MemoryStore::default());
    let site = local(&runtime, 1, store, QueueLimits::default());
    // A chunk is more than the kernel takes for a receiver that does not read.
    let (len, count) = (1 << 20, 16);
    for number in 0..count {
        site.write(write_request(number, len)).await.unwrap();
    }
    let served = serve_narrow(&runtime, site.clone(), ServiceLimits::default());
    let remote = remote_by(&runtime, Arc::new(Narrow), 1, &served.address);
    let whole = |number| ChunkRange { chunk: chunk(number), offset: 0, len: len as u32 };
    let read = |number| {
        let ranges = vec![whole(number), whole(number + 1)];
        remote.read(ReadRequest { ranges, priority: Priority::Foreground, deadline: None })
    };
    let mut replies: Vec<_> = (0..count / 2).map(|pair| read(2 * pair)).collect();
    // The second replies are not taken.
    for reply in &mut replies {
        reply.next().await.unwrap().result.unwrap();
    }
    let load = site.last_load();
    assert!(load.queue_bytes >= len as u64 && load.queue_requests == 0, "{load:?}");
    for reply in &mut replies {
        reply.next().await.unwrap().result.unwrap();
    }
    drop(replies);
    while site.last_load().queue_bytes > 0 {
        runtime.sleep(Duration::from_millis(2)).await;
    }
}

/// A chunk that came over the network stays in memory until the disk has it, and is counted until then.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_received_for_a_disk_that_hangs_counts_when_its_sender_has_gone() {
    let (runtime, fs) = (Runtime::real(), SimulatedFileSystem::new(1, 1 << 30));
    let options = DiskStoreOptions { reserve_bytes: Some(0), ..DiskStoreOptions::default() };
    let store = DiskStore::open(&runtime, Arc::new(fs.clone()), Path::new("/disk"), options).unwrap();
    let site = local(&runtime, 1, Arc::new(store), QueueLimits::default());
    let len = 100_000;
    let limits = ServiceLimits { receiving_bytes: 2 * len as u64, ..ServiceLimits::default() };
    let served = serve(&runtime, site.clone(), limits).await;
    let remote = remote(&runtime, 1, &served.address);
    remote.write(write_request(1, len)).await.unwrap();
    let mut hang = fs.hold_next_sync();
    let send = |number| {
        let remote = remote.clone();
        runtime.spawn(async move { remote.write(write_request(number, len)).await })
    };
    let senders = [send(2), send(3)];
    hang.begun().await;
    while site.last_load().queue_requests < 2 {
        runtime.sleep(Duration::from_millis(2)).await;
    }
    for sender in senders {
        sender.abort();
        assert!(sender.await.is_err(), "it has gone");
    }
    // The site notices at some point that the clients have gone.
    for _ in 0..100 {
        let refused = runtime.timeout(Duration::from_secs(1), remote.write(write_request(4, len))).await;
        assert_eq!(refused.expect("an answer at once"), Err(SiteError::Busy));
        runtime.sleep(Duration::from_millis(2)).await;
    }
    drop(hang);
    // The write whose client has gone may have been skipped, and no longer counts.
    while remote.write(write_request(4, len)).await == Err(SiteError::Busy) {
        runtime.sleep(Duration::from_millis(2)).await;
    }
}
