//! A cluster's processes, all in this one: control, sites and gateways over one metadata engine, each on its own port.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Parser;
use futures::StreamExt;
use striate::identity::{identify, sealing_key};
use striate::membership::client::{Channel, ControlClient};
use striate::membership::messages::cluster_control_client::ClusterControlClient;
use striate::membership::messages::{ListSitesRequest, RegisterRequest, SetDrainingRequest, Site};
use striate::start::cluster::{Caching, Cluster, Settings};
use striate::start::roster::Roster;
use striate::{administer, control_process, site_process};
use striate_client::{ClientError, CreateBucket, ExpectedDigests, GetRequest, PutBody, PutRequest};
use striate_commands::args::{Cli, Command, ControlArgs, HostPort, SiteArgs};
use striate_core::{ChunkId, Formats, Generation, SiteId, StripeId};
use striate_meta::{MemoryStore, MetaStore, Transaction, TxId, keys, records};
use striate_runtime::{JoinHandle, Runtime};
use striate_site::{Priority, WriteRequest};
use striate_stripe::StripeOptions;
use striate_trust::{Role, Trust};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Timeout for waits; nothing here takes this long.
pub const PATIENCE: Duration = Duration::from_secs(60);

fn command(line: &[String]) -> Command {
    Cli::try_parse_from(std::iter::once("striate".to_owned()).chain(line.iter().cloned())).unwrap().command
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A cluster with one control process, and what is needed to add others.
pub struct TestCluster {
    root: tempfile::TempDir,
    pub runtime: Runtime,
    pub meta: Arc<dyn MetaStore>,
    control: HostPort,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

/// A site's process, which can be stopped alone.
pub struct RunningSite {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl RunningSite {
    pub async fn stop(self) {
        self.stop.send(true).unwrap();
        self.task.await.unwrap();
    }
}

impl TestCluster {
    pub async fn start() -> Self {
        let (root, runtime) = (tempfile::tempdir().unwrap(), Runtime::real());
        let meta: Arc<dyn MetaStore> = Arc::new(MemoryStore::new(runtime.clone()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let control = listener.local_addr().unwrap().to_string().parse().unwrap();
        let (stop, _) = watch::channel(false);
        let mut cluster = Self { root, runtime, meta, control, stop, tasks: Vec::new() };
        let init = words(&["admin", "init", &cluster.path("ca").display().to_string()]);
        let Command::Admin(init) = command(&init) else { panic!("not an admin command") };
        administer::run(cluster.runtime.clone(), init).await.unwrap();
        cluster.identity("control", "c1").await;
        let identity = cluster.path("c1").display().to_string();
        let line = words(&["control", "--metadata", "etcd://unused/striate", "--identity", &identity]);
        let Command::Control(args) = command(&line) else { panic!("not a control process") };
        // Otherwise the first key goes into a file in the working directory.
        cluster.make_key(&args).await;
        let (runtime, meta) = (cluster.runtime.clone(), cluster.meta.clone());
        let mut stopped = cluster.stop.subscribe();
        let serving = async move {
            let shutdown = async move { drop(stopped.wait_for(|&stop| stop).await) };
            control_process::serve(runtime, &args, meta, listener, shutdown).await.unwrap();
        };
        cluster.tasks.push(cluster.runtime.spawn(serving));
        cluster
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    async fn identity(&self, role: &str, name: &str) {
        let (authority, to) = (self.path("ca").display().to_string(), self.path(name).display().to_string());
        let line = words(&["admin", "certificate", role, name, "--authority", &authority, "--to", &to]);
        let Command::Admin(issue) = command(&line) else { panic!("not an admin command") };
        administer::run(self.runtime.clone(), issue).await.unwrap();
    }

    async fn make_key(&self, args: &ControlArgs) {
        let sealing = sealing_key(&args.identity).unwrap();
        let sealing = striate_s3::SealingKey::new(&sealing);
        let keys = striate_s3::KeyStore::new(self.runtime.clone(), self.meta.clone(), sealing, None).unwrap();
        keys.create("for the test").await.unwrap();
    }

    fn site_args(&self, number: usize, rack: &str, port: u16) -> SiteArgs {
        let (data, identity) = (self.path(&format!("disk{number}")), self.path(&format!("s{number}")));
        let line = words(&["site", "--data", &data.display().to_string(), "--rack", rack, "--identity"]);
        let mut line = [line, vec![identity.display().to_string()]].concat();
        line.extend(words(&[
            "--control",
            &self.control.to_string(),
            "--address",
            &format!("127.0.0.1:{port}"),
        ]));
        match command(&line) {
            Command::Site(args) => args,
            other => panic!("{other:?}"),
        }
    }

    /// Starts the site on `disk{number}`.
    pub async fn run_site(&self, number: usize, rack: &str) -> RunningSite {
        if !self.path(&format!("s{number}")).exists() {
            self.identity("site", &format!("s{number}")).await;
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let args = self.site_args(number, rack, listener.local_addr().unwrap().port());
        let (stop, stopped) = watch::channel(false);
        let runtime = self.runtime.clone();
        let task = self.runtime.spawn(async move {
            site_process::serve(runtime, &args, vec![listener], stopped).await.unwrap();
        });
        RunningSite { stop, task }
    }

    async fn trust(&self, role: Role, name: &str) -> Trust {
        self.identity(&role.to_string(), name).await;
        identify(&self.runtime, &self.path(name), role).unwrap()
    }

    pub async fn client(&self, role: Role, name: &str) -> ControlClient {
        ControlClient::new(self.runtime.clone(), self.trust(role, name).await, vec![self.control.clone()])
    }

    /// Waits until the sites that control lists satisfy `is_so`.
    pub async fn wait_for_sites(&self, is_so: impl Fn(&[Site], &str) -> bool) -> Vec<Site> {
        let admin = self.client(Role::Admin, "admin").await;
        let list = |mut control: ClusterControlClient<Channel>| async move {
            control.list_sites(ListSitesRequest {}).await
        };
        let waiting = async {
            loop {
                let listed = admin.ask(list).await.unwrap();
                if is_so(&listed.sites, &listed.profile) {
                    return listed.sites;
                }
                self.runtime.sleep(Duration::from_millis(50)).await;
            }
        };
        self.runtime.timeout(PATIENCE, waiting).await.expect("it becomes so")
    }

    pub async fn gateway(&self, name: &str) -> Cluster {
        let trust = self.trust(Role::Gateway, name).await;
        let settings = Settings {
            profile: None,
            region: "us-east-1".to_owned(),
            given_key: None,
            stripes: StripeOptions { in_flight_bytes: 32 << 20, ..StripeOptions::default() },
            caching: Caching::default(),
            upkeep: striate_control::UpkeepOptions::by_hand(),
        };
        let sealing = sealing_key(&self.path(name)).unwrap();
        let gateway = Cluster::join(self.runtime.clone(), self.meta.clone(), &trust, sealing, settings).await;
        let gateway = gateway.unwrap();
        gateway.start_background();
        gateway
    }

    pub async fn stop(self) {
        self.stop.send(true).unwrap();
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

struct Whole(Option<Bytes>);

#[async_trait::async_trait]
impl PutBody for Whole {
    async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        self.0.take().map(Ok)
    }
}

pub async fn put(gateway: &Cluster, key: &str, bytes: &Bytes) -> Result<(), ClientError> {
    let request = PutRequest {
        bucket: "bucket".to_owned(),
        key: key.to_owned(),
        attributes: Default::default(),
        condition: Default::default(),
        profile: None,
        content_len: Some(bytes.len() as u64),
        digests: ExpectedDigests::default(),
        body: Box::new(Whole(Some(bytes.clone()))),
    };
    gateway.client().put(request).await.map(drop)
}

pub async fn get(gateway: &Cluster, key: &str) -> Result<Bytes, ClientError> {
    let request = GetRequest { bucket: "bucket".to_owned(), key: key.to_owned(), ..GetRequest::default() };
    let mut body = gateway.client().get(request).await?.body;
    let mut bytes = Vec::new();
    while let Some(piece) = body.next().await {
        bytes.extend_from_slice(&piece?);
    }
    Ok(bytes.into())
}

pub fn noise(len: usize) -> Bytes {
    (0..len).map(|i| (i * 7 + i / 253) as u8).collect()
}

pub async fn wait_until(runtime: &Runtime, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            runtime.sleep(Duration::from_millis(50)).await;
        }
    };
    runtime.timeout(PATIENCE, waiting).await.expect("it becomes so");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_follow_sites_that_join_move_and_drain() {
    let cluster = TestCluster::start().await;
    let mut sites = Vec::new();
    for number in 1..=4 {
        sites.push(cluster.run_site(number, ["a", "b", "c"][number % 3]).await);
    }
    let listed = cluster.wait_for_sites(|sites, profile| sites.len() == 4 && profile == "rs(2,2)").await;
    let numbers: Vec<u32> = listed.iter().map(|site| site.site).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);

    let (first, second) = (cluster.gateway("g1").await, cluster.gateway("g2").await);
    first
        .client()
        .create_bucket(CreateBucket { name: "bucket".to_owned(), ..CreateBucket::default() })
        .await
        .unwrap();
    let bytes = noise(3_000_000);
    put(&first, "one", &bytes).await.unwrap();
    assert_eq!(get(&second, "one").await.unwrap(), bytes, "what one gateway acknowledged the other reads");

    // A fifth and a sixth site join: both gateways use them for new objects. The profile stays until an operator chooses
    // the one of six sites, because there is an object.
    for number in 5..=6 {
        sites.push(cluster.run_site(number, ["a", "b", "c"][number % 3]).await);
    }
    for gateway in [&first, &second] {
        wait_until(&cluster.runtime, || gateway.client().stripes().candidates().len() == 6).await;
        assert_eq!(gateway.profile().to_string(), "rs(2,2)");
    }
    let refused = first.choose_profile(&"rs(10,4)".parse().unwrap()).await.unwrap_err();
    assert!(refused.to_string().contains("have no place for all of its chunks"), "{refused}");
    first.choose_profile(&"rs(4,2)".parse().unwrap()).await.unwrap();
    for gateway in [&first, &second] {
        wait_until(&cluster.runtime, || gateway.profile().to_string() == "rs(4,2)").await;
    }
    put(&second, "two", &bytes).await.unwrap();
    assert_eq!(get(&first, "two").await.unwrap(), bytes);

    // A draining site gets no new chunks, and is still read.
    let admin = cluster.client(Role::Admin, "admin").await;
    let drain = |mut control: ClusterControlClient<Channel>| async move {
        control.set_draining(SetDrainingRequest { site: 1, draining: true }).await
    };
    admin.ask(drain).await.unwrap();
    for gateway in [&first, &second] {
        wait_until(&cluster.runtime, || {
            let draining = gateway
                .client()
                .stripes()
                .sites()
                .iter()
                .any(|view| view.draining && view.site.id() == SiteId(1));
            draining && gateway.client().stripes().candidates().len() == 5
        })
        .await;
    }
    let before = first.client().stripes().site(SiteId(1)).unwrap().status().await.unwrap().store.chunks;
    for number in 0..10 {
        put(&first, &format!("later{number}"), &bytes).await.unwrap();
    }
    let after = first.client().stripes().site(SiteId(1)).unwrap().status().await.unwrap().store.chunks;
    assert_eq!((before > 0, after), (true, before));
    assert_eq!(get(&second, "one").await.unwrap(), bytes);

    // A site that returns at another address keeps its number and its chunks.
    let address = |sites: &[Site]| sites.iter().find(|site| site.site == 2).unwrap().address.clone();
    let old = address(&listed);
    let number: usize = listed.iter().find(|site| site.site == 2).unwrap().peer[1..].parse().unwrap();
    sites.remove(number - 1).stop().await;
    let again = cluster.run_site(number, ["a", "b", "c"][number % 3]).await;
    cluster.wait_for_sites(|sites, _| address(sites) != old).await;
    let reached = async {
        while second.client().stripes().site(SiteId(2)).unwrap().status().await.is_err() {
            cluster.runtime.sleep(Duration::from_millis(50)).await;
        }
    };
    cluster.runtime.timeout(PATIENCE, reached).await.expect("the gateway finds it");
    assert_eq!(get(&second, "two").await.unwrap(), bytes);

    first.close().await;
    second.close().await;
    for site in sites.into_iter().chain([again]) {
        site.stop().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_refuses_what_a_role_has_no_right_to() {
    let cluster = TestCluster::start().await;
    let register = |disk: u8| {
        move |mut control: ClusterControlClient<Channel>| async move {
            let request = RegisterRequest {
                disk: vec![disk; 16],
                site: 0,
                address: "h:1".to_owned(),
                rack: "a".to_owned(),
                capacity_bytes: 0,
                record_format: Formats::NEWEST.records,
                chunk_format: Formats::NEWEST.chunks,
            };
            control.register(request).await
        }
    };
    let site = cluster.client(Role::Site, "s1").await;
    let reply = site.ask(register(1)).await.unwrap();
    assert_eq!((reply.site, reply.sites.len()), (1, 1));
    assert_eq!(site.ask(register(1)).await.unwrap().site, 1, "the same disk is the same site");
    let other = cluster.client(Role::Site, "s2").await;
    let refused = other.ask(register(1)).await.unwrap_err().to_string();
    assert!(refused.contains("site 1 belongs to the process s1"), "{refused}");
    assert_eq!(other.ask(register(2)).await.unwrap().site, 2);

    let drain = |mut control: ClusterControlClient<Channel>| async move {
        control.set_draining(SetDrainingRequest { site: 1, draining: true }).await
    };
    let refused = site.ask(drain).await.unwrap_err().to_string();
    assert!(refused.contains("only the role admin"), "{refused}");
    let admin = cluster.client(Role::Admin, "admin").await;
    assert!(admin.ask(register(3)).await.is_err());
    // A gateway may not ask this at all.
    let gateway = cluster.client(Role::Gateway, "g1").await;
    assert!(gateway.ask(drain).await.is_err());
    admin.ask(drain).await.unwrap();
    let sites = cluster.wait_for_sites(|_, _| true).await;
    let states: Vec<&str> = sites.iter().map(|site| site.state.as_str()).collect();
    assert_eq!(states, ["draining", "active"]);
    cluster.stop().await;
}

/// Puts formats in force as a control process of release 0.1 would have.
pub async fn put_old_formats_in_force(meta: &Arc<dyn MetaStore>) {
    let row = meta.get(&keys::cluster()).await.unwrap().unwrap();
    let mut record: records::Cluster = row.record().unwrap();
    (record.record_format, record.chunk_format) = (0, 0);
    record.needs_release = String::new();
    let mut tx = Transaction::new(TxId(1));
    tx.put(keys::cluster(), records::encode(&record));
    meta.commit(tx).await.unwrap();
}

/// Writes a chunk of several granules to site 1.
async fn write_chunk(gateway: &Cluster, number: u64) {
    let chunk = ChunkId { stripe: StripeId::new(9, number), index: 0, generation: Generation(1) };
    let (payload, priority) = (Bytes::from(vec![7; 10_000]), Priority::Foreground);
    let site = gateway.client().stripes().site(SiteId(1)).unwrap();
    site.write(WriteRequest { chunk, payload, granule_crcs: None, priority }).await.unwrap();
}

/// Returns the newest format version of a segment in a site's directory.
fn newest_segment(directory: &Path) -> u8 {
    let files =
        std::fs::read_dir(directory.join(".striate/chunks")).unwrap().map(|entry| entry.unwrap().path());
    let segments = files.filter(|path| path.extension().is_some_and(|extension| extension == "seg"));
    segments.map(|path| std::fs::read(path).unwrap()[8]).max().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newer_formats_come_when_all_processes_read_them_and_then_older_sites_are_refused() {
    let cluster = TestCluster::start().await;
    let row = || async {
        let row = cluster.meta.get(&keys::cluster()).await.unwrap()?;
        Some(row.record::<records::Cluster>().unwrap().formats())
    };
    cluster.wait_for_sites(|sites, _| sites.is_empty()).await;
    assert_eq!(row().await, Some(Formats::NEWEST), "a new cluster begins with the newest formats");
    put_old_formats_in_force(&cluster.meta).await;

    let site = cluster.run_site(1, "a").await;
    cluster.wait_for_sites(|sites, _| sites.len() == 1).await;
    let required = || Roster::read(&cluster.path("disk1")).unwrap().unwrap().0.formats.in_force;
    wait_until(&cluster.runtime, || required() == Formats::OLDEST).await;
    let gateway = cluster.gateway("g1").await;
    assert_eq!(gateway.client().stripes().formats(), Formats::OLDEST);
    wait_until(&cluster.runtime, || gateway.client().stripes().sites().len() == 1).await;
    let all_are_known = async {
        loop {
            let readers = gateway.formats().await.unwrap().readers;
            let is_known =
                |who: &&str| readers.iter().any(|reader| reader.who == *who && reader.reads.is_some());
            if ["site 1", "control c1", "leader c1"].iter().all(is_known) {
                return;
            }
            cluster.runtime.sleep(Duration::from_millis(50)).await;
        }
    };
    cluster.runtime.timeout(PATIENCE, all_are_known).await.expect("every process reports");

    // A writing gateway of release 0.1: it reports nothing, and its intents have a live lease.
    let lease = cluster.meta.grant_lease(Duration::from_secs(1_000)).await.unwrap().id;
    let intent = records::Intent { writer: 99, first_sequence: 0, count: 1_024, lease: lease.0 };
    let mut tx = Transaction::new(TxId(2));
    tx.put(keys::intent(99, 0), records::encode(&intent));
    cluster.meta.commit(tx).await.unwrap();
    let held = gateway.finalize_upgrade().await.unwrap_err().to_string();
    assert!(held.contains("writer number 99"), "{held}");
    assert_eq!(row().await, Some(Formats::OLDEST));
    cluster.meta.revoke_lease(lease).await.unwrap();
    write_chunk(&gateway, 1).await;
    assert_eq!(newest_segment(&cluster.path("disk1")), 1, "the site writes what 0.1 reads until then");

    assert_eq!(gateway.finalize_upgrade().await.unwrap(), Formats::NEWEST);
    assert_eq!((row().await, gateway.client().stripes().formats()), (Some(Formats::NEWEST), Formats::NEWEST));
    wait_until(&cluster.runtime, || required() == Formats::NEWEST).await;
    let newer_chunks = async {
        for number in 2.. {
            write_chunk(&gateway, number).await;
            if newest_segment(&cluster.path("disk1")) == 2 {
                break;
            }
        }
    };
    cluster.runtime.timeout(PATIENCE, newer_chunks).await.expect("the site learns of it");
    let old = cluster.client(Role::Site, "s2").await;
    let register = |mut control: ClusterControlClient<Channel>| async move {
        let (address, rack) = ("h:1".to_owned(), "a".to_owned());
        control.register(RegisterRequest { disk: vec![9; 16], address, rack, ..Default::default() }).await
    };
    let refused = old.ask(register).await.unwrap_err().to_string();
    let newer = format!("start striate {} or newer", Formats::NEWEST.release());
    assert!(refused.contains(&newer), "{refused}");

    gateway.close().await;
    site.stop().await;
    cluster.stop().await;
}
