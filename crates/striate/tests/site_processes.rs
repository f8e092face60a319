//! Sites as `striate site` runs them, each on a port and a directory of its own, that work together.

use std::path::{Path, PathBuf};

use futures::StreamExt;
use striate::args::{Cli, Command, SiteArgs};
use striate::site_list::SiteList;
use striate::site_process;
use striate_codec::accumulate;
use striate_core::{ChunkId, Generation, SiteId, StripeId};
use striate_runtime::{JoinHandle, Runtime};
use striate_site::protocol::session::ClusterSecret;
use striate_site::{CombineRequest, CombineSource, Priority, RemoteSite, Site, SiteError, WriteRequest};
use tokio::net::TcpListener;
use tokio::sync::watch;

use clap::Parser;

const CHUNK_LEN: usize = 300_000;

/// Three sites over TCP.
struct Sites {
    root: tempfile::TempDir,
    runtime: Runtime,
    secret: ClusterSecret,
    list: PathBuf,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

fn arguments(line: &[&str]) -> SiteArgs {
    match Cli::try_parse_from(["striate", "site"].iter().chain(line)).unwrap().command {
        Command::Site(args) => args,
        other => panic!("{other:?}"),
    }
}

impl Sites {
    /// Starts them; those in `listed` are in the list that each of them is given.
    async fn start(listed: &[u32]) -> Self {
        let (root, runtime) = (tempfile::tempdir().unwrap(), Runtime::real());
        let secret_file = root.path().join("secret").display().to_string();
        site_process::run(runtime.clone(), arguments(&["--make-secret", &secret_file])).await.unwrap();
        let secret = site_process::read_secret(Path::new(&secret_file)).unwrap();
        let mut listeners = Vec::new();
        let (mut text, mut all) = (String::new(), String::new());
        for number in 1..=3 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let line = format!("{number} {} rack-{number}\n", listener.local_addr().unwrap());
            text.push_str(if listed.contains(&number) { &line } else { "" });
            all.push_str(&line);
            listeners.push(listener);
        }
        let (list, list_file) = (root.path().join("all"), root.path().join("sites"));
        std::fs::write(&list, all).unwrap();
        std::fs::write(&list_file, text).unwrap();
        let (stop, stopped) = watch::channel(false);
        let mut tasks = Vec::new();
        for (number, listener) in (1..=3).zip(listeners) {
            let directory = root.path().join(format!("disk{number}")).display().to_string();
            let (number, list) = (number.to_string(), list_file.display().to_string());
            let args = ["--id", &number, "--secret", &secret_file, "--sites", &list, &directory];
            let (args, mut stopped, runtime_of_site) = (arguments(&args), stopped.clone(), runtime.clone());
            tasks.push(runtime.spawn(async move {
                let shutdown = async move { drop(stopped.wait_for(|&stopped| stopped).await) };
                site_process::serve(runtime_of_site, &args, listener, shutdown).await.unwrap();
            }));
        }
        Self { root, runtime, secret, list, stop, tasks }
    }

    /// A client of one of them, with a chunk written to it.
    async fn with_chunk(&self, number: u32) -> RemoteSite {
        let list = SiteList::read(&self.list).unwrap();
        let cluster = site_process::cluster_of(&self.secret);
        let listed = list.sites().iter().find(|listed| listed.site == SiteId(number)).unwrap();
        let site = listed.connect(&self.runtime, &self.secret, cluster);
        let (chunk, payload) = (chunk(number), payload(number).into());
        let request = WriteRequest { chunk, payload, granule_crcs: None, priority: Priority::Foreground };
        site.write(request).await.unwrap();
        site
    }

    async fn stop(self) {
        self.stop.send(true).unwrap();
        for task in self.tasks {
            task.await.unwrap();
        }
        drop(self.root);
    }
}

fn chunk(number: u32) -> ChunkId {
    ChunkId { stripe: StripeId::new(7, number.into()), index: number as u8, generation: Generation(1) }
}

fn payload(number: u32) -> Vec<u8> {
    (0..CHUNK_LEN).map(|i| (i * 7 + number as usize * 131 + i / 253) as u8).collect()
}

/// coefficient · chunk of the site + what comes from `upstream`.
fn request(number: u32, upstream: Vec<CombineSource>) -> CombineRequest {
    CombineRequest {
        offset: 11,
        len: 250_000,
        slice_len: 64 << 10,
        local: vec![(number as u8 + 4, chunk(number))],
        upstream,
        priority: Priority::Repair,
    }
}

fn from(site: u32, request: CombineRequest) -> CombineSource {
    CombineSource { site: SiteId(site), request }
}

async fn combined(site: &RemoteSite, request: CombineRequest) -> Result<Vec<u8>, SiteError> {
    let mut sum = Vec::new();
    let mut slices = site.combine(request);
    while let Some(slice) = slices.next().await {
        sum.extend_from_slice(&slice?);
    }
    Ok(sum)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sites_add_up_each_others_chunks_and_name_the_one_that_is_not_listed() {
    let sites = Sites::start(&[1, 2, 3]).await;
    let (first, _second, _third) =
        (sites.with_chunk(1).await, sites.with_chunk(2).await, sites.with_chunk(3).await);
    let mut expected = vec![0; 250_000];
    for number in 1..=3 {
        accumulate(number as u8 + 4, &payload(number)[11..250_011], &mut expected);
    }
    let chain = request(1, vec![from(2, request(2, vec![from(3, request(3, Vec::new()))]))]);
    assert_eq!(combined(&first, chain).await, Ok(expected.clone()));
    let star = request(1, vec![from(2, request(2, Vec::new())), from(3, request(3, Vec::new()))]);
    assert_eq!(combined(&first, star).await, Ok(expected));
    let stranger = request(1, vec![from(2, request(2, vec![from(9, request(3, Vec::new()))]))]);
    let error = combined(&first, stranger).await.unwrap_err().to_string();
    assert!(error.contains("site 2") && error.contains("site 9 is not known here"), "{error}");
    sites.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_that_its_list_leaves_out_does_not_start() {
    let sites = Sites::start(&[1, 2]).await;
    let [_, _, third] = <[_; 3]>::try_from(sites.tasks).ok().unwrap();
    let panicked = third.await.unwrap_err().into_panic();
    let reason = panicked.downcast_ref::<String>().unwrap();
    assert!(reason.contains("site 3 itself is not in the list"), "{reason}");
}
