//! `striate pack …` and the other visible effects of packing, against a running server: the program itself, as a user
//! types it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use striate::admin::AdminService;
use striate_client::CreateBucket;
use striate_commands::admin::client::AdminClient;
use striate_commands::admin::messages::{PackNow, PackingStatus};
use striate_commands::args::AdminArgs;
use striate_runtime::Runtime;
use tokio::sync::watch;

use crate::cluster_processes::{PATIENCE, TestCluster, get, noise, put, wait_until};

/// Number of objects of some 50 KB each: they fill one group of partitions of 1 MiB under rs(4,2), but not a second.
const OBJECTS: usize = 100;

/// A server over some directories, which is killed with the test.
pub(crate) struct Server {
    root: tempfile::TempDir,
    runtime: Runtime,
    process: std::process::Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn striate(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_striate"));
    command
        .args(arguments)
        .env("STRIATE_RUN_DIR", root.join("run"))
        .env("STRIATE_ACCESS_KEY", "tester")
        .env("STRIATE_SECRET_KEY", "a-secret-for-this-test")
        .env("STRIATE_ORIGIN_ACCESS_KEY", "tester")
        .env("STRIATE_ORIGIN_SECRET_KEY", "a-secret-for-this-test")
        .env_remove("STRIATE_PACK")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn content(object: usize) -> Vec<u8> {
    (0..50_000 + object).map(|byte| (byte * 31 + object * 17 + byte / 251) as u8).collect()
}

impl Server {
    pub(crate) async fn start(directories: usize, options: &[&str]) -> Self {
        let (root, runtime) = (tempfile::tempdir().unwrap(), Runtime::real());
        std::fs::create_dir(root.path().join("run")).unwrap();
        let disks = format!("{}/disk{{1...{directories}}}", root.path().display());
        let arguments = ["server", &disks, "--address", "127.0.0.1:0", "--console-address", "127.0.0.1:0"];
        let arguments = [&arguments[..], options].concat();
        let mut process = striate(root.path(), &arguments);
        let process = process.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut server = Self { root, runtime, process };
        while !server.run(&["status"]).await.status.success() {
            assert!(server.process.try_wait().unwrap().is_none(), "the server stopped");
            server.runtime.sleep(Duration::from_millis(20)).await;
        }
        server
    }

    pub(crate) async fn run(&self, arguments: &[&str]) -> Output {
        let mut command = striate(self.root.path(), arguments);
        self.runtime.run_blocking(move || command.output().unwrap()).await
    }

    /// Returns the output of a command that must succeed.
    pub(crate) async fn ask(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments).await;
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) async fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ask(arguments).await).unwrap()
    }

    async fn upload(&self, bucket: &str) {
        let folder = self.root.path().join("objects");
        if !folder.exists() {
            std::fs::create_dir(&folder).unwrap();
            for object in 0..OBJECTS {
                std::fs::write(folder.join(format!("{object:03}")), content(object)).unwrap();
            }
        }
        let (from, to) = (folder.display().to_string(), format!("s3://{bucket}/"));
        self.ask(&["cp", "--quiet", "--recursive", &from, &to]).await;
    }

    async fn assert_reads(&self, bucket: &str) {
        let to = self.root.path().join("read");
        let _ = std::fs::remove_dir_all(&to);
        let (from, folder) = (format!("s3://{bucket}/"), to.display().to_string());
        self.ask(&["cp", "--quiet", "--recursive", &from, &folder]).await;
        let mut files = Vec::new();
        files_below(&to, &mut files);
        assert_eq!(files.len(), OBJECTS);
        for file in files {
            let object: usize = file.file_name().unwrap().to_str().unwrap().parse().unwrap();
            assert!(std::fs::read(&file).unwrap() == content(object), "object {object}");
        }
    }

    /// Returns the key of an object that is packed, or of one that is not.
    async fn key_that(&self, bucket: &str, is_packed: bool) -> Option<String> {
        let listed = self.ask(&["ls", "--recursive", &format!("s3://{bucket}")]).await;
        for key in listed.lines().filter_map(|line| line.split_whitespace().last()) {
            let name = format!("s3://{bucket}/{}", key.trim_start_matches(&format!("s3://{bucket}/")));
            let explained = self.json(&["explain", "--json", &name]).await;
            if explained["query"]["blocks"][0]["extent"].is_object() == is_packed {
                return Some(name);
            }
        }
        None
    }
}

fn files_below(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() { files_below(&entry, files) } else { files.push(entry) }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_packs_looks_and_undoes_it() {
    let server = Server::start(6, &["--pack", "off"]).await;
    server.ask(&["bucket", "create", "photos"]).await;
    server.upload("photos").await;
    let young = server.ask(&["pack", "run", "photos"]).await;
    assert!(young.contains("0 objects (0 B) packed"), "{young}");
    assert!(
        young.contains("100 small objects") && young.contains("100 not settled (--now takes them)"),
        "{young}"
    );

    let report = server.json(&["pack", "run", "photos", "--now", "--quiet", "--json"]).await;
    let packed = report["report"]["progress"]["packed"]["objects"].as_u64().unwrap();
    assert!(packed > 70 && packed < 100, "{report}");
    server.assert_reads("photos").await;

    let status = server.json(&["pack", "status", "photos", "--json"]).await;
    let (all, bucket) = (&status["packing"]["figures"], &status["buckets"][0]);
    assert_eq!((bucket["bucket"].as_str(), bucket["figures"] == *all), (Some("photos"), true), "{status}");
    assert_eq!((all["live_objects"].as_u64(), all["groups"].as_u64()), (Some(packed), Some(1)), "{status}");
    assert_eq!(all["waiting_objects"].as_u64(), Some(100 - packed));
    let text = server.ask(&["pack", "status"]).await;
    assert!(text.contains("photos") && text.contains("LIVE") && text.contains("s ago"), "{text}");
    let status = server.json(&["status", "--json"]).await;
    assert_eq!(status["packing"]["figures"]["live_objects"].as_u64(), Some(packed));
    let text = server.ask(&["status"]).await;
    assert!(text.contains("1 group (4.0 MiB)"), "{text}");

    let name = server.key_that("photos", true).await.unwrap();
    let explained = server.json(&["explain", "--json", &name]).await;
    let block = &explained["query"]["blocks"][0];
    let options = block["options"].as_array().unwrap();
    let kinds: Vec<_> = options.iter().map(|option| option["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["normal", "global"], "rs has no local groups: {explained}");
    let (normal, global) = (&options[0], &options[1]);
    assert_eq!(normal["chunks"].as_array().unwrap().len(), 1);
    assert_eq!(normal["chunks"][0], block["extent"]["chunk"]);
    assert_eq!(global["chunks"].as_array().unwrap().len(), 4);
    assert_eq!(global["bytes"].as_u64().unwrap(), 4 * block["len"].as_u64().unwrap());
    assert_eq!((normal["is_chosen"].as_bool(), global["is_chosen"].as_bool()), (Some(true), Some(false)));
    assert!(global["cost"].as_f64().unwrap() > normal["cost"].as_f64().unwrap());
    let text = server.ask(&["explain", &name]).await;
    assert!(text.contains("packed: at") && text.contains("normal") && text.contains("PREDICTED"), "{text}");

    let undone = server.ask(&["pack", "undo", "photos"]).await;
    assert!(
        undone.contains("is set to --pack off") && undone.contains(&format!("{packed} objects")),
        "{undone}"
    );
    server.assert_reads("photos").await;
    assert_eq!(server.key_that("photos", true).await, None);
    let text = server.ask(&["pack", "status", "photos"]).await;
    assert!(text.contains("its own setting is off"), "{text}");
    let text = server.ask(&["bucket", "set", "photos", "--pack", "8MiB"]).await;
    assert!(text.contains("8MiB"), "{text}");
    let refused = said(&server.run(&["pack", "undo", "absent"]).await);
    assert!(refused.contains("absent"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_say_themselves_whether_they_are_packed() {
    let server = Server::start(7, &[]).await;
    for (options, name) in [
        (&["--profile", "packed lrc(4,2,1)"][..], "thumbnails"),
        (&["--pack", "off"], "sessions"),
        (&["--pack", "4MiB", "--profile", "rs(3,2)"], "logs"),
        (&["--profile", "replica(3)"], "copies"),
    ] {
        server.ask(&[&["bucket", "create"], options, &[name]].concat()).await;
    }
    let info = server.ask(&["bucket", "info", "thumbnails"]).await;
    assert!(info.contains("packed lrc(4,2,1)"), "{info}");
    let info = server.ask(&["bucket", "info", "logs"]).await;
    assert!(info.contains("4MiB"), "{info}");
    let info = server.json(&["bucket", "info", "--json", "logs"]).await;
    assert_eq!(info["profile"], "rs(3,2)");
    assert_eq!(info["packing"], "4MiB");
    let listed = server.json(&["bucket", "list", "--json"]).await;
    assert!(listed.as_array().unwrap().contains(&info), "{listed}");
    let refused =
        said(&server.run(&["bucket", "create", "--pack", "auto", "--profile", "none", "nothing"]).await);
    assert!(refused.contains("whole copies"), "{refused}");
    let set = ["bucket", "set", "sessions", "--pack", "auto", "--class", "STANDARD=rs(40,2)"];
    let refused = said(&server.run(&set).await);
    assert!(refused.contains("rs(40,2) needs 42 disks"), "{refused}");
    assert_eq!(server.json(&["bucket", "info", "--json", "sessions"]).await["packing"], "off");

    server.upload("sessions").await;
    server.upload("thumbnails").await;
    let text = server.ask(&["pack", "run", "--now"]).await;
    assert!(text.contains("sessions is left alone: its own setting is off"), "{text}");
    assert!(text.contains("copies is left alone") && text.contains("whole copies"), "{text}");
    assert_eq!(server.key_that("sessions", true).await, None);
    let name = server.key_that("thumbnails", true).await.expect("it was packed");
    let explained = server.json(&["explain", "--json", &name]).await;
    let options = explained["query"]["blocks"][0]["options"].as_array().unwrap();
    let kinds: Vec<_> = options.iter().map(|option| option["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["normal", "local", "global"], "{explained}");
    let bytes = |option: usize| options[option]["bytes"].as_u64().unwrap();
    assert_eq!(bytes(1), 2 * bytes(0), "the other data chunk of its group, and the local parity");
    assert!(bytes(2) >= 3 * bytes(0), "{explained}");
    server.assert_reads("thumbnails").await;
    let refused = said(&server.run(&["bucket", "delete", "thumbnails"]).await);
    assert!(refused.contains("`striate rm --recursive s3://thumbnails/` empties it"), "{refused}");
    let status = server.json(&["pack", "status", "--json"]).await;
    let of = |name: &str| {
        let buckets = status["buckets"].as_array().unwrap();
        buckets.iter().find(|bucket| bucket["bucket"] == name).unwrap_or(&Value::Null).clone()
    };
    assert_eq!(of("thumbnails")["partition_len"], 32 << 20, "64 MiB for bodies allow it: {status}");
    assert_eq!(of("thumbnails")["group_bytes"], 128 << 20, "{status}");
    assert_eq!(of("logs")["partition_len"], 4 << 20, "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_packs_by_hand_and_shows_what_the_leader_says() {
    let cluster = TestCluster::start().await;
    let mut sites = Vec::new();
    for number in 1..=6 {
        sites.push(cluster.run_site(number, ["a", "b", "c"][number % 3]).await);
    }
    cluster.wait_for_sites(|sites, profile| sites.len() == 6 && profile == "rs(4,2)").await;
    let gateway = cluster.gateway("g1").await;
    let bucket = CreateBucket { name: "bucket".to_owned(), ..CreateBucket::default() };
    gateway.client().create_bucket(bucket).await.unwrap();
    wait_until(&cluster.runtime, || gateway.client().stripes().candidates().len() == 6).await;
    let bytes = noise(100_000);
    for object in 0..60 {
        put(&gateway, &format!("{object:02}"), &bytes).await.unwrap();
    }
    let (_stop, stopping) = watch::channel(false);
    let service =
        AdminService::new(gateway.clone(), String::new(), String::new(), None, Default::default(), stopping);
    let socket = cluster.path("admin.sock");
    service.serve_socket(&socket);
    let args = AdminArgs { dir: None, admin_socket: Some(socket) };
    let admin = AdminClient::find(cluster.runtime.clone(), &args).unwrap();
    let wish = PackNow { now: true, ..PackNow::default() };
    let report = admin.follow_with("/v1/packing/run", &wish, |_| {}).await.unwrap();
    assert!(report["report"]["progress"]["packed"]["objects"].as_u64().unwrap() > 30, "{report}");
    for object in 0..60 {
        assert_eq!(get(&gateway, &format!("{object:02}")).await.unwrap(), bytes);
    }
    let told = async {
        loop {
            let status: PackingStatus = admin.get("/v1/packing").await.unwrap();
            if let Some(packing) = status.packing.filter(|packing| packing.setting == "auto") {
                return (packing, status.buckets);
            }
            cluster.runtime.sleep(Duration::from_millis(100)).await;
        }
    };
    let (packing, buckets) = cluster.runtime.timeout(PATIENCE, told).await.expect("the leader tells");
    assert_eq!((packing.settled_after_s, buckets[0].partition_len), (3_600, Some(16 << 20)));
    assert!(packing.figures.live_objects > 30, "{packing:?}");

    let report = admin.follow("/v1/packing/undo/bucket", |_| {}).await.unwrap();
    assert_eq!(report["whole"], true, "{report}");
    for object in 0..60 {
        assert_eq!(get(&gateway, &format!("{object:02}")).await.unwrap(), bytes);
    }
    gateway.close().await;
    for site in sites {
        site.stop().await;
    }
    cluster.stop().await;
}
