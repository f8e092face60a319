//! `striate explain` against a running store, over its admin socket.

use std::sync::Arc;

use bytes::Bytes;
use striate::admin::AdminService;
use striate::start::cluster::{Caching, Cluster, Settings};
use striate::start::prepare::PreparedStart;
use striate_client::{ClientError, CreateBucket, ExpectedDigests, PutBody, PutRequest, ReadExplanation};
use striate_commands::admin::client::AdminClient;
use striate_commands::admin::messages::Explain;
use striate_commands::args::AdminArgs;
use striate_commands::failure::Outcome;
use striate_runtime::Runtime;
use striate_stripe::{BlockExplanation, ChunkChoice, QueryExplanation, StripeOptions};

struct Whole(Option<Bytes>);

#[async_trait::async_trait]
impl PutBody for Whole {
    async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        self.0.take().map(Ok)
    }
}

/// A store over six directories, rs(4,2), with a command's connection to it.
struct Store {
    root: tempfile::TempDir,
    cluster: Cluster,
    admin: AdminClient,
    _stopping: tokio::sync::watch::Sender<bool>,
}

impl Store {
    async fn open() -> Self {
        let root = tempfile::tempdir().unwrap();
        let paths: Vec<String> =
            (1..=6).map(|number| root.path().join(number.to_string()).display().to_string()).collect();
        paths.iter().for_each(|path| std::fs::create_dir(path).unwrap());
        let prepared = PreparedStart::new(&Runtime::real(), &paths).await.unwrap();
        let settings = Settings {
            profile: None,
            region: "us-east-1".to_owned(),
            given_key: None,
            stripes: StripeOptions { in_flight_bytes: 32 << 20, ..StripeOptions::default() },
            caching: Caching::default(),
            upkeep: striate_control::UpkeepOptions::by_hand(),
        };
        let cluster = Cluster::open(Runtime::real(), prepared, settings).await.unwrap().cluster;
        let (sender, stopping) = tokio::sync::watch::channel(false);
        let service =
            AdminService::new(cluster.clone(), String::new(), String::new(), None, Arc::default(), stopping);
        let socket = root.path().join("admin.sock");
        service.serve_socket(&socket);
        let args = AdminArgs { dir: None, admin_socket: Some(socket) };
        let admin = AdminClient::find(Runtime::real(), &args).unwrap();
        let bucket = CreateBucket { name: "bucket".to_owned(), ..CreateBucket::default() };
        cluster.client().create_bucket(bucket).await.unwrap();
        Self { root, cluster, admin, _stopping: sender }
    }

    async fn put(&self, key: &str, len: usize) {
        let request = PutRequest {
            bucket: "bucket".to_owned(),
            key: key.to_owned(),
            attributes: Default::default(),
            condition: Default::default(),
            profile: None,
            content_len: Some(len as u64),
            digests: ExpectedDigests::default(),
            body: Box::new(Whole(Some(vec![7; len].into()))),
        };
        self.cluster.client().put(request).await.unwrap();
    }

    async fn explain(&self, keys: &[&str], policy: Option<&str>) -> Outcome<ReadExplanation> {
        let objects = keys.iter().map(|key| ("bucket".to_owned(), (*key).to_owned())).collect();
        let wish = Explain { objects, policy: policy.map(str::to_owned) };
        self.admin.post("/v1/explain", &wish).await
    }
}

fn read(query: &QueryExplanation) -> Vec<(usize, usize, ChunkChoice)> {
    let chunks = |(number, block): (usize, &striate_stripe::BlockExplanation)| {
        let read = block.chunks.clone().into_iter().filter(|chunk| chunk.choice.is_read());
        read.map(move |chunk| (number, chunk.index, chunk.choice)).collect::<Vec<_>>()
    };
    query.blocks.iter().enumerate().flat_map(chunks).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_is_explained_chunk_by_chunk_and_its_cost_is_that_of_its_sites() {
    let store = Store::open().await;
    store.put("large", 9 << 20).await;
    store.put("small", 100).await;
    store.put("medium", 300_000).await;

    let explained = store.explain(&["large", "small", "medium"], None).await.unwrap();
    let counts: Vec<_> =
        explained.objects.iter().map(|it| (it.size, it.is_inline, it.first_block, it.block_count)).collect();
    assert_eq!(counts, [(9 << 20, false, 0, 3), (100, true, 3, 0), (300_000, false, 3, 1)]);
    let query = &explained.query;
    assert_eq!(query.policy, "normal");
    let expected: Vec<_> =
        (0..4).flat_map(|block| (0..4).map(move |index| (block, index, ChunkChoice::Systematic))).collect();
    assert_eq!(read(query), expected, "data chunks, and nothing else");

    // Six idle sites, of which about four are asked for each block; the cost model needs four in all.
    for (policy, sites) in [("cost-model", 4), ("cost-model(1)", 5), ("adaptive", 5)] {
        let query = store.explain(&["large", "small", "medium"], Some(policy)).await.unwrap().query;
        assert_eq!(query.sites.iter().filter(|site| site.chunks_read > 0).count(), sites, "{policy}");
        assert!(query.gap <= 0.02, "{query:?}");
        let opened = query.sites.iter().filter(|site| site.chunks_read > 0);
        let of_sites: f64 = opened.map(|site| site.cost.unwrap()).sum();
        let of_chunks = |block: &BlockExplanation| -> f64 {
            let read = block.chunks.iter().filter(|chunk| chunk.choice.is_read());
            let of_64_kib =
                |number| query.sites.iter().find(|site| site.site == number).unwrap().transfer.unwrap();
            read.map(|chunk| of_64_kib(chunk.site) * f64::from(block.chunk_len) / 65_536.0).sum()
        };
        let of_chunks: f64 = query.blocks.iter().map(of_chunks).sum();
        assert!((query.cost - of_sites - of_chunks).abs() < 1e-9, "{query:?}");
        for site in &query.sites {
            let parts: f64 = site.parts.iter().map(|part| part.value).sum();
            assert_eq!(site.cost, Some(parts), "{site:?}");
        }
        assert!(read(&query).iter().all(|(.., choice)| *choice == ChunkChoice::SharedSite), "{query:?}");
    }
    store.cluster.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_chunks_are_named_and_what_cannot_be_read_is_refused_with_the_reason() {
    let store = Store::open().await;
    store.put("key", 300_000).await;
    let whole = store.explain(&["key"], None).await.unwrap().query;
    let lost = whole.blocks[0].chunks[0].site;
    for gone in 0..3 {
        let site = whole.blocks[0].chunks[gone].site;
        let rest = store.cluster.client().stripes().sites().into_iter().map(|view| view.site);
        store.cluster.client().stripes().set_sites(rest.filter(|it| it.id().0 != site).collect());
        let explained = store.explain(&["key"], None).await;
        match gone {
            0 | 1 => {
                let query = explained.unwrap().query;
                let choices: Vec<_> = query.blocks[0].chunks.iter().map(|chunk| chunk.choice).collect();
                assert_eq!(
                    choices.iter().filter(|choice| **choice == ChunkChoice::NoAnswer).count(),
                    gone + 1
                );
                assert_eq!(
                    choices.iter().filter(|choice| **choice == ChunkChoice::Substitute).count(),
                    gone + 1
                );
                let lost = query.sites.iter().find(|site| site.site == lost).unwrap();
                assert_eq!((lost.cost, lost.chunks_read), (None, 0));
            }
            _ => {
                let refused = explained.unwrap_err().to_string();
                assert!(refused.contains("[0, 1, 2]") && refused.contains("do not answer"), "{refused}");
            }
        }
    }
    let refused = store.explain(&["absent"], None).await.unwrap_err().to_string();
    assert!(refused.contains("absent"), "{refused}");
    let refused = store.explain(&["key"], Some("fastest")).await.unwrap_err().to_string();
    assert!(refused.contains("cost-model"), "{refused}");
    assert!(store.root.path().exists());
    store.cluster.close().await;
}
