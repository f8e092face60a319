//! Memory-only objects: the rows of those that are gone are removed, and no others.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use striate_client::{Client, CreateBucket};
use striate_control::{VolatileReport, sweep_volatile};
use striate_core::{ChunkId, Generation, SiteId, StripeId};
use striate_meta::records::{
    MemoryBlock, MemoryBlocks, Object, PartRun, UploadPart, UploadedParts, encode, object::Body, upload_part,
};
use striate_meta::{Commit, ScanRange, keys};
use striate_site::{Site, WriteRequest};

use crate::cluster::{BreakableSite, Cluster};

const VOLATILE: &str = "volatile";
const UPLOAD: [u8; 16] = [7; 16];

struct Memory {
    cluster: Cluster,
    sites: Vec<Arc<BreakableSite>>,
}

impl Memory {
    /// Creates three members of the memory tier, 101 to 103.
    async fn new() -> Self {
        let cluster = Cluster::start(6, "rs(4,2)").await;
        let sites: Vec<_> = (101..104).map(|number| BreakableSite::new(number, &cluster.runtime)).collect();
        let client = &cluster.client;
        let named = sites.iter().map(|site| site.clone() as Arc<dyn Site>);
        client.stripes().set_memory_sites(named.collect());
        let bucket = CreateBucket {
            name: VOLATILE.to_owned(),
            profile: Some("cache rs(10,1)".parse().unwrap()),
            ..CreateBucket::default()
        };
        client.create_bucket(bucket).await.unwrap();
        let this = Self { cluster, sites };
        for site in &this.sites {
            this.put_row(keys::memory_site(site.id()), Bytes::new()).await;
        }
        this
    }

    fn client(&self) -> &Client {
        &self.cluster.client
    }

    async fn put_row(&self, key: Bytes, value: Bytes) {
        let mut tx = self.client().stripes().transaction();
        tx.put(key, value);
        assert!(matches!(self.client().meta().commit(tx).await.unwrap(), Commit::Done(_)));
    }

    /// Stores a block of two data splits and a parity, on all three sites.
    async fn block(&self, name: u128) -> MemoryBlock {
        for (index, site) in self.sites.iter().enumerate() {
            let chunk = ChunkId { stripe: StripeId(name), index: index as u8, generation: Generation(0) };
            let (payload, priority) = (Bytes::from_static(b"split"), striate_site::Priority::Foreground);
            let request = WriteRequest { chunk, payload, granule_crcs: None, priority };
            site.write(request).await.unwrap();
        }
        MemoryBlock {
            content: Bytes::copy_from_slice(&name.to_be_bytes()),
            len: 10,
            splits: 2,
            sites: vec![101, 102, 103],
            ..MemoryBlock::default()
        }
    }

    async fn put(&self, key: &str, body: Body) {
        let object = Object { size: 10, body: Some(body), ..Object::default() };
        self.put_row(keys::object(VOLATILE, key), encode(&object)).await;
    }

    fn lose(&self, site: usize, name: u128) {
        self.sites[site].chunks.lock().retain(|chunk, _| chunk.stripe != StripeId(name));
    }

    async fn sweep(&self) -> VolatileReport {
        sweep_volatile(self.client().stripes()).await.unwrap()
    }

    async fn left(&self) -> Vec<String> {
        let rows = self.client().meta().scan(ScanRange::prefix(&keys::objects(VOLATILE)), 100).await.unwrap();
        let prefix = keys::objects(VOLATILE).len();
        rows.iter().map(|row| String::from_utf8(row.key[prefix..].to_vec()).unwrap()).collect()
    }
}

fn in_memory(blocks: Vec<MemoryBlock>) -> Body {
    Body::Memory(MemoryBlocks { blocks })
}

#[tokio::test(start_paused = true)]
async fn rows_of_objects_go_when_too_few_splits_are_left_and_not_before() {
    let memory = Memory::new().await;
    for (key, name) in [("a", 1), ("b", 2), ("c", 3)] {
        let second = memory.block(name + 10).await;
        memory.put(key, in_memory(vec![memory.block(name).await, second])).await;
    }
    assert_eq!(memory.sweep().await, VolatileReport { objects: 3, gone: 0 });
    memory.lose(0, 2);
    memory.lose(2, 13);
    assert_eq!(memory.sweep().await, VolatileReport { objects: 3, gone: 0 }, "what is left determines both");
    memory.lose(1, 13);
    assert_eq!(memory.sweep().await, VolatileReport { objects: 3, gone: 1 });
    assert_eq!(memory.left().await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn no_row_goes_while_a_site_that_may_have_a_split_does_not_answer() {
    let memory = Memory::new().await;
    memory.put("a", in_memory(vec![memory.block(1).await])).await;
    memory.lose(0, 1);
    *memory.sites[1].down.lock() = true;
    assert_eq!(memory.sweep().await.gone, 0);
    // Nor while this process does not know that site, or knows none.
    for known in [&memory.sites[..1], &[]] {
        let known = known.iter().map(|site| site.clone() as Arc<dyn Site>).collect();
        memory.client().stripes().set_memory_sites(known);
        assert_eq!(memory.sweep().await.gone, 0);
    }
    assert_eq!(memory.left().await, ["a"]);
    // The splits of a site that is no longer a member are gone.
    let named = memory.sites.iter().map(|site| site.clone() as Arc<dyn Site>).collect();
    memory.client().stripes().set_memory_sites(named);
    let mut tx = memory.client().stripes().transaction();
    tx.delete(keys::memory_site(SiteId(102)));
    memory.client().meta().commit(tx).await.unwrap();
    assert_eq!(memory.sweep().await.gone, 1);
    assert!(memory.left().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_object_of_parts_goes_with_its_parts() {
    let memory = Memory::new().await;
    for number in 1..=3 {
        let blocks = vec![memory.block(number.into()).await];
        let body = Some(upload_part::Body::Memory(MemoryBlocks { blocks }));
        let part = UploadPart { number, size: 10, body, ..UploadPart::default() };
        memory.put_row(keys::part(&UPLOAD, number), encode(&part)).await;
    }
    let runs = vec![PartRun { first_number: 1, count: 3, size: 10 }];
    let uploaded = UploadedParts { upload: Bytes::copy_from_slice(&UPLOAD), runs };
    memory.put("a", Body::Uploaded(uploaded)).await;
    assert_eq!(memory.sweep().await.gone, 0);
    memory.lose(0, 3);
    memory.lose(1, 3);
    assert_eq!(memory.sweep().await.gone, 1);
    let abandoned = striate_control::collection::parts::abandoned_parts(memory.client().stripes(), None, 10)
        .await
        .unwrap();
    assert_eq!(abandoned.len(), 1, "they are taken down in time");
}

#[tokio::test(start_paused = true)]
async fn a_walk_asks_for_many_objects_at_once_and_at_a_bounded_rate() {
    let memory = Memory::new().await;
    for number in 0..3_000 {
        let blocks = vec![memory.block(number).await];
        memory.put(&number.to_string(), in_memory(blocks)).await;
    }
    let began = memory.cluster.runtime.now();
    assert_eq!(memory.sweep().await.objects, 3_000);
    let took = memory.cluster.runtime.now() - began;
    assert!((0.59..1.0).contains(&took.as_secs_f64()), "{took:?}");
    for site in &memory.sites {
        assert_eq!(site.times_asked_for_many(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn rows_go_many_in_a_transaction_and_one_that_was_written_meanwhile_stays() {
    let memory = Memory::new().await;
    for number in 0..300 {
        let blocks = vec![memory.block(number).await];
        memory.put(&format!("{number:03}"), in_memory(blocks)).await;
        memory.lose(0, number);
        memory.lose(1, number);
    }
    let commits = async || {
        memory.put_row("revision".into(), Bytes::new()).await;
        memory.client().meta().get(b"revision").await.unwrap().unwrap().version.0
    };
    let again = in_memory(vec![memory.block(1_000).await]);
    let before = commits().await;
    // The object is written again while sites are asked.
    *memory.sites[2].lag.lock() = Duration::from_millis(10);
    let written = async {
        memory.cluster.runtime.sleep(Duration::from_millis(5)).await;
        memory.put("007", again).await;
    };
    let (report, ()) = futures::join!(memory.sweep(), written);
    assert_eq!((report.gone, memory.left().await), (299, vec!["007".to_owned()]));
    let took = commits().await - before;
    assert!((6..=6 + 50 + 3).contains(&took), "{took} commits");
}
