//! Starts with directories in every condition: first start, restart, reordered, added, missing, replaced, foreign,
//! locked, newer. Each test runs a real store over temporary directories in this process.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::TryStreamExt;
use striate::start::cluster::{Caching, Cluster, OpenedCluster, Settings};
use striate::start::offline::OfflineStore;
use striate::start::prepare::PreparedStart;
use striate_client::{ClientError, CreateBucket, ExpectedDigests, GetRequest, PutBody, PutRequest};
use striate_commands::args::{AdminCommand, HostPort, MigrateArgs, Source};
use striate_commands::failure::Outcome;
use striate_meta::MemoryStore;
use striate_meta::migration::{MigrationEnd, migrate};
use striate_runtime::Runtime;
use striate_stripe::StripeOptions;

/// Directories `1` to `n` below a temporary one.
struct Disks {
    root: tempfile::TempDir,
}

impl Disks {
    fn new(count: usize) -> Self {
        let disks = Self { root: tempfile::tempdir().unwrap() };
        (1..=count).for_each(|number| std::fs::create_dir(disks.path(number)).unwrap());
        disks
    }

    fn path(&self, number: usize) -> PathBuf {
        std::fs::canonicalize(self.root.path()).unwrap().join(number.to_string())
    }

    fn paths(&self, numbers: &[usize]) -> Vec<PathBuf> {
        numbers.iter().map(|&number| self.path(number)).collect()
    }

    /// Starts on these directories. A dropped lock may be held a moment longer: a child that another test forks holds
    /// it until it executes its program.
    async fn start(&self, numbers: &[usize]) -> Outcome<OpenedCluster> {
        let runtime = Runtime::real();
        for _ in 0..100 {
            match start(&self.paths(numbers)).await {
                Err(refused) if refused.to_string().contains("in use by another server") => {
                    runtime.sleep(Duration::from_millis(20)).await;
                }
                outcome => return outcome,
            }
        }
        start(&self.paths(numbers)).await
    }

    fn wipe(&self, number: usize) {
        std::fs::remove_dir_all(self.path(number)).unwrap();
        std::fs::create_dir(self.path(number)).unwrap();
    }
}

async fn start(paths: &[PathBuf]) -> Outcome<OpenedCluster> {
    start_with(Runtime::real(), paths, 1).await
}

async fn start_with(runtime: Runtime, paths: &[PathBuf], write_surplus: usize) -> Outcome<OpenedCluster> {
    let arguments: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let prepared = PreparedStart::new(&runtime, &arguments).await?;
    let settings = Settings {
        profile: None,
        region: "us-east-1".to_owned(),
        given_key: None,
        stripes: StripeOptions { in_flight_bytes: 32 << 20, write_surplus, ..StripeOptions::default() },
        caching: Caching::default(),
        upkeep: striate_control::UpkeepOptions::by_hand(),
    };
    Cluster::open(runtime, prepared, settings).await
}

/// Ignores progress and never stops.
fn go_on<T>(_: &T) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A body in one piece.
struct Whole(Option<bytes::Bytes>);

#[async_trait::async_trait]
impl PutBody for Whole {
    async fn next(&mut self) -> Option<Result<bytes::Bytes, ClientError>> {
        self.0.take().map(Ok)
    }
}

async fn put(cluster: &Cluster, key: &str, byte: u8) {
    try_put(cluster, key, byte).await.unwrap();
}

async fn try_put(cluster: &Cluster, key: &str, byte: u8) -> Result<(), ClientError> {
    let bucket = CreateBucket { name: "bucket".to_owned(), ..CreateBucket::default() };
    match cluster.client().create_bucket(bucket).await {
        Ok(_) | Err(ClientError::BucketAlreadyOwned(_)) => {}
        Err(error) => panic!("{error}"),
    }
    let body = bytes::Bytes::from(vec![byte; 300_000]);
    let request = PutRequest {
        bucket: "bucket".to_owned(),
        key: key.to_owned(),
        attributes: Default::default(),
        condition: Default::default(),
        profile: None,
        content_len: Some(body.len() as u64),
        digests: ExpectedDigests::default(),
        body: Box::new(Whole(Some(body))),
    };
    cluster.client().put(request).await.map(drop)
}

async fn assert_reads(cluster: &Cluster, key: &str, byte: u8) {
    let request = GetRequest { bucket: "bucket".to_owned(), key: key.to_owned(), ..GetRequest::default() };
    let object = cluster.client().get(request).await.unwrap_or_else(|error| panic!("{key}: {error}"));
    let pieces: Vec<bytes::Bytes> =
        object.body.try_collect().await.unwrap_or_else(|error| panic!("{key}: {error}"));
    let bytes = pieces.concat();
    assert_eq!(bytes.len(), 300_000);
    assert!(bytes.iter().all(|&found| found == byte), "{key} reads other bytes");
}

/// Returns the error of a start that must be refused, and checks that it wrote nothing.
async fn refusal(paths: &[PathBuf]) -> String {
    let before: Vec<_> = paths.iter().map(|path| snapshot(path)).collect();
    let error = start(paths).await.err().expect("the start must be refused").to_string();
    let after: Vec<_> = paths.iter().map(|path| snapshot(path)).collect();
    assert_eq!(before, after, "a refused start wrote something");
    error
}

/// Returns the names and contents of all files below a directory.
fn snapshot(path: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut open = vec![path.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.path() {
                path if path.is_dir() => open.push(path),
                path => files.push((path.clone(), std::fs::read(&path).unwrap_or_default())),
            }
        }
    }
    files.sort();
    files
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_start_makes_a_key_and_a_restart_finds_everything_in_any_order() {
    let disks = Disks::new(4);
    let first = disks.start(&[1, 2, 3, 4]).await.unwrap();
    assert!(first.is_new);
    put(&first.cluster, "a", 1).await;
    let id = first.cluster.id();
    first.cluster.close().await;
    drop(first);

    let again = disks.start(&[3, 1, 4, 2]).await.unwrap();
    assert!(!again.is_new);
    assert_eq!(again.cluster.id(), id);
    assert_reads(&again.cluster, "a", 1).await;
    let status = again.cluster.status("").await;
    assert_eq!(status.warnings, Vec::<String>::new());
    assert_eq!((status.sites.len(), status.profile.to_string().as_str()), (4, "rs(2,2)"));
    again.cluster.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disks_may_be_swapped_and_blank_ones_join() {
    let disks = Disks::new(4);
    let first = disks.start(&[1, 2, 3]).await.unwrap().cluster;
    put(&first, "a", 1).await;
    first.close().await;
    drop(first);
    std::fs::rename(disks.path(1), disks.path(9)).unwrap();
    std::fs::rename(disks.path(2), disks.path(1)).unwrap();
    std::fs::rename(disks.path(9), disks.path(2)).unwrap();

    let again = disks.start(&[1, 2, 3, 4]).await.unwrap().cluster;
    assert_reads(&again, "a", 1).await;
    let status = again.status("").await;
    let numbers: Vec<_> = status.sites.iter().map(|site| site.site).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    assert_eq!(status.sites[0].address, disks.path(2).display().to_string());
    again.close().await;
    drop(again);
    // The new member counts from now on: with two of the four missing, nothing starts.
    assert!(refusal(&disks.paths(&[1, 2])).await.contains("3 are needed"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_disk_is_worked_around_replaced_and_healed_and_then_others_may_go() {
    let disks = Disks::new(4);
    let first = disks.start(&[1, 2, 3, 4]).await.unwrap().cluster;
    put(&first, "a", 1).await;
    first.close().await;
    drop(first);
    disks.wipe(1);
    disks.wipe(2);

    let degraded = disks.start(&[1, 2, 3, 4]).await.unwrap().cluster;
    assert_reads(&degraded, "a", 1).await;
    let status = degraded.status("").await;
    assert!(status.warnings.iter().any(|warning| warning.contains("disk replace")), "{:?}", status.warnings);
    let healthy = degraded.replace(&disks.path(3)).await.unwrap_err().to_string();
    assert!(healthy.contains("healthy"), "{healthy}");
    for number in [1, 2] {
        degraded.replace(&disks.path(number)).await.unwrap();
    }
    let report = striate_control::heal(degraded.client().stripes(), go_on).await.unwrap();
    assert!(report.is_whole(), "{report:?}");
    assert_eq!(degraded.status("").await.warnings, Vec::<String>::new());
    degraded.close().await;
    drop(degraded);

    disks.wipe(3);
    disks.wipe(4);
    let others = disks.start(&[1, 2, 3, 4]).await.unwrap().cluster;
    assert_reads(&others, "a", 1).await;
    others.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_vanishes_under_the_server_is_worked_around_and_can_be_replaced_while_it_runs() {
    let disks = Disks::new(4);
    let cluster = disks.start(&[1, 2, 3, 4]).await.unwrap().cluster;
    cluster.start_background();
    put(&cluster, "a", 1).await;
    disks.wipe(2);
    assert_reads(&cluster, "a", 1).await;
    put(&cluster, "b", 2).await;
    assert_reads(&cluster, "b", 2).await;
    let replaced = cluster.replace(&disks.path(2)).await.unwrap();
    assert_eq!((replaced.old.0, replaced.new.0), (2, 5));
    let report = striate_control::heal(cluster.client().stripes(), go_on).await.unwrap();
    assert!(report.is_whole(), "{report:?}");
    let verified = striate_control::verify(cluster.client().stripes(), go_on).await.unwrap();
    assert!(verified.is_clean(), "{verified:?}");
    cluster.close().await;
}

/// The remains of a wipe beside a writing server: no roster, no identity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remains_of_this_store_make_room_for_a_new_disk_and_those_of_others_are_left_alone() {
    let (disks, theirs) = (Disks::new(4), Disks::new(1));
    let other = theirs.start(&[1]).await.unwrap().cluster;
    other.close().await;
    drop(other);
    let cluster = disks.start(&[1, 2, 3, 4]).await.unwrap().cluster;
    put(&cluster, "a", 1).await;

    // Parts of the folder that the server has locked, chunks included.
    let state = disks.path(1).join(".striate");
    ["cluster", "identity.json", "admin.sock"]
        .iter()
        .for_each(|name| drop(std::fs::remove_file(state.join(name))));
    let segment = std::fs::read_dir(state.join("chunks")).unwrap().count();
    assert!(segment > 0);
    let replaced = cluster.replace(&disks.path(1)).await.unwrap();
    let aside = disks.path(1).join(".striate.aside-1");
    assert_eq!(replaced.aside.as_deref(), Some(&*aside));
    assert_eq!(std::fs::read_dir(aside.join("chunks")).unwrap().count(), segment, "nothing is deleted");

    // A folder without contents is removed; data of another or an unknown store stays.
    disks.wipe(2);
    std::fs::create_dir_all(disks.path(2).join(".striate/meta")).unwrap();
    assert_eq!(cluster.replace(&disks.path(2)).await.unwrap().aside, None);
    assert!(striate_control::heal(cluster.client().stripes(), go_on).await.unwrap().is_whole());
    disks.wipe(3);
    let copy = |folder: &str, name: &str| {
        std::fs::create_dir_all(disks.path(3).join(".striate").join(folder)).unwrap();
        let file = Path::new(".striate").join(folder).join(name);
        std::fs::copy(theirs.path(1).join(&file), disks.path(3).join(&file)).unwrap();
    };
    copy("meta", "meta.redb");
    let before = snapshot(&disks.path(3));
    let unknown = cluster.replace(&disks.path(3)).await.unwrap_err().to_string();
    assert!(unknown.contains("meta.redb") && unknown.contains("nothing says"), "{unknown}");
    copy("meta", "meta.epoch");
    let foreign = cluster.replace(&disks.path(3)).await.unwrap_err().to_string();
    assert!(foreign.contains("it belongs to cluster"), "{foreign}");
    assert_eq!(
        snapshot(&disks.path(3)).iter().filter(|file| !before.contains(file)).count(),
        2,
        "epoch and lock"
    );

    // A restart treats it as a missing disk; remains with this cluster's record then make room, too.
    cluster.close().await;
    drop(cluster);
    disks.wipe(3);
    std::fs::create_dir_all(disks.path(3).join(".striate/meta")).unwrap();
    let record = ".striate/meta/meta.epoch";
    std::fs::copy(disks.path(4).join(record), disks.path(3).join(record)).unwrap();
    std::fs::write(disks.path(3).join(".striate/meta/meta.redb"), b"x").unwrap();
    let cluster = disks.start(&[1, 2, 3, 4]).await.unwrap().cluster;
    assert_reads(&cluster, "a", 1).await;
    let replaced = cluster.replace(&disks.path(3)).await.unwrap();
    assert!(replaced.aside.unwrap().join("meta/meta.redb").exists());
    assert!(striate_control::heal(cluster.client().stripes(), go_on).await.unwrap().is_whole());
    assert_eq!(cluster.status("").await.warnings, Vec::<String>::new());
    cluster.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_write_surplus_decides_with_how_many_sites_writes_go_on() {
    for (surplus, goes_on) in [(1, false), (0, true)] {
        let disks = Disks::new(6);
        let paths = disks.paths(&[1, 2, 3, 4, 5, 6]);
        let cluster = start_with(Runtime::real(), &paths, surplus).await.unwrap().cluster;
        assert_eq!(cluster.profile().to_string(), "rs(4,2)");
        put(&cluster, "a", 1).await;
        [1, 2].iter().for_each(|&number| disks.wipe(number));
        match try_put(&cluster, "b", 2).await {
            Ok(()) => assert!(goes_on),
            Err(error) => {
                assert!(matches!(error, ClientError::TooFewSites { available: 4, needed: 5, .. }), "{error}");
                assert!(!goes_on);
            }
        }
        assert_eq!(cluster.health().await.refusal.is_none(), goes_on);
        assert_reads(&cluster, "a", 1).await;
        if goes_on {
            assert_reads(&cluster, "b", 2).await;
        }
        cluster.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn metadata_mirrors_are_watched_while_nobody_writes_and_read_now_and_then() {
    let runtime = Runtime::deterministic(1, Duration::from_secs(1_700_000_000));
    let disks = Disks::new(4);
    let paths = disks.paths(&[1, 2, 3, 4]);
    let open = async || start_with(runtime.clone(), &paths, 1).await.unwrap().cluster;
    let cluster = open().await;
    cluster.start_background();
    let mirrors = async |cluster: &Cluster| -> Vec<PathBuf> {
        let states = cluster.mirror_states().await;
        assert!(states.iter().all(|mirror| mirror.in_sync), "{states:?}");
        states.into_iter().map(|mirror| mirror.directory).collect()
    };
    let folder = |number| disks.path(number).join(".striate/meta");
    assert_eq!(mirrors(&cluster).await, [folder(1), folder(2), folder(3)]);
    disks.wipe(1);
    runtime.sleep(Duration::from_secs(3)).await;
    assert_eq!(mirrors(&cluster).await, [folder(2), folder(3), folder(4)], "another one took its place");
    cluster.close().await;
    drop(cluster);

    // Damage a mirror that serves no reads.
    let file = folder(3).join("meta.redb");
    let mut bytes = std::fs::read(&file).unwrap();
    let rack = |bytes: &[u8]| bytes.windows(6).position(|text| text == b"disk-4");
    while let Some(place) = rack(&bytes) {
        bytes[place] = b'x';
    }
    std::fs::write(&file, bytes).unwrap();
    let cluster = open().await;
    cluster.start_background();
    runtime.sleep(Duration::from_secs(60)).await;
    assert_eq!(mirrors(&cluster).await.len(), 3);
    assert!(rack(&std::fs::read(&file).unwrap()).is_none(), "nobody noticed yet");
    runtime.sleep(Duration::from_secs(600)).await;
    let states = cluster.mirror_states().await;
    let repaired = rack(&std::fs::read(&file).unwrap()).is_some();
    assert!(repaired, "it was ejected and copied anew: {states:?}");
    cluster.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_too_many_missing_nothing_is_changed_and_everything_reads_when_they_return() {
    let disks = Disks::new(4);
    let first = disks.start(&[1, 2, 3, 4]).await.unwrap().cluster;
    put(&first, "a", 1).await;
    first.close().await;
    drop(first);
    for number in [1, 2, 3] {
        std::fs::rename(disks.path(number), disks.path(number + 10)).unwrap();
        std::fs::create_dir(disks.path(number)).unwrap();
    }
    let error = refusal(&disks.paths(&[1, 2, 3, 4])).await;
    for number in [1, 2, 3] {
        assert!(error.contains(&disks.path(number).display().to_string()), "{error}");
    }
    for number in [1, 2, 3] {
        std::fs::remove_dir(disks.path(number)).unwrap();
        std::fs::rename(disks.path(number + 10), disks.path(number)).unwrap();
    }
    let again = disks.start(&[1, 2, 3, 4]).await.unwrap().cluster;
    assert_reads(&again, "a", 1).await;
    again.close().await;
}

/// A way to make a directory unusable, also for root, and to undo it.
#[derive(Clone, Copy, Debug)]
enum Spoiled {
    FileInItsPlace,
    CircularLink,
    DamagedFile(&'static str),
    FolderInPlaceOf(&'static str),
}

impl Spoiled {
    const ALL: [Self; 6] = [
        Self::FileInItsPlace,
        Self::CircularLink,
        Self::DamagedFile("cluster"),
        Self::DamagedFile("meta/meta.epoch"),
        Self::FolderInPlaceOf("cluster"),
        Self::FolderInPlaceOf("meta/meta.epoch"),
    ];

    fn apply(self, path: &Path) {
        let (aside, file) = (path.with_extension("aside"), |name: &str| path.join(".striate").join(name));
        match self {
            Self::FileInItsPlace | Self::CircularLink => std::fs::rename(path, &aside).unwrap(),
            Self::DamagedFile(name) | Self::FolderInPlaceOf(name) => {
                std::fs::rename(file(name), &aside).unwrap();
            }
        }
        match self {
            Self::FileInItsPlace => std::fs::write(path, b"a file").unwrap(),
            Self::CircularLink => std::os::unix::fs::symlink(path, path).unwrap(),
            Self::DamagedFile(name) => {
                let mut bytes = std::fs::read(&aside).unwrap();
                bytes[20] ^= 1;
                std::fs::write(file(name), bytes).unwrap();
            }
            Self::FolderInPlaceOf(name) => std::fs::create_dir(file(name)).unwrap(),
        }
    }

    fn undo(self, path: &Path) {
        let (aside, file) = (path.with_extension("aside"), |name: &str| path.join(".striate").join(name));
        match self {
            Self::FileInItsPlace | Self::CircularLink => {
                std::fs::remove_file(path).unwrap();
                std::fs::rename(aside, path).unwrap();
            }
            Self::DamagedFile(name) => std::fs::rename(aside, file(name)).unwrap(),
            Self::FolderInPlaceOf(name) => {
                std::fs::remove_dir(file(name)).unwrap();
                std::fs::rename(aside, file(name)).unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_cannot_be_used_is_left_out_and_left_alone_and_is_back_when_it_can() {
    let disks = Disks::new(4);
    let first = disks.start(&[1, 2, 3, 4]).await.unwrap().cluster;
    put(&first, "a", 1).await;
    first.close().await;
    drop(first);
    for (round, spoiled) in Spoiled::ALL.into_iter().enumerate() {
        let path = disks.path(round % 4 + 1);
        spoiled.apply(&path);
        let before = snapshot(&path);
        let degraded = disks.start(&[1, 2, 3, 4]).await;
        let degraded = degraded.unwrap_or_else(|error| panic!("{spoiled:?}: {error}")).cluster;
        assert_reads(&degraded, "a", 1).await;
        let status = degraded.status("").await;
        let said = status.warnings.iter().filter(|warning| warning.contains("excluded at the start"));
        assert_eq!(said.count(), 1, "{spoiled:?}: {:?}", status.warnings);
        let refused = degraded.replace(&path).await.unwrap_err().to_string();
        assert!(refused.contains(&path.display().to_string()), "{spoiled:?}: {refused}");
        put(&degraded, "b", round as u8).await;
        degraded.close().await;
        drop(degraded);
        assert_eq!(snapshot(&path), before, "{spoiled:?}: it was written to");
        spoiled.undo(&path);
        let whole = disks.start(&[1, 2, 3, 4]).await.unwrap().cluster;
        assert_reads(&whole, "b", round as u8).await;
        assert!(striate_control::heal(whole.client().stripes(), go_on).await.unwrap().is_whole());
        whole.restore_mirrors().await.unwrap();
        assert_eq!(whole.status("").await.warnings, Vec::<String>::new(), "{spoiled:?}");
        whole.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disks_that_cannot_be_used_count_with_those_that_are_missing() {
    let disks = Disks::new(4);
    let first = disks.start(&[1, 2, 3, 4]).await.unwrap().cluster;
    put(&first, "a", 1).await;
    first.close().await;
    drop(first);
    Spoiled::DamagedFile("meta/meta.epoch").apply(&disks.path(1));
    std::fs::rename(disks.path(2), disks.path(20)).unwrap();
    let degraded = disks.start(&[1, 2, 3, 4]).await.unwrap().cluster;
    assert_reads(&degraded, "a", 1).await;
    degraded.close().await;
    drop(degraded);
    Spoiled::DamagedFile("cluster").apply(&disks.path(3));
    let error = refusal(&disks.paths(&[1, 2, 3, 4])).await;
    for word in ["meta.epoch: it is damaged", "cluster: it is damaged", "does not exist", "2 are needed"] {
        assert!(error.contains(word), "{word}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_of_another_disk_or_a_newer_program_refuses_the_start() {
    let disks = Disks::new(4);
    disks.start(&[1, 2, 3, 4]).await.unwrap().cluster.close().await;
    let epoch = |disks: &Disks, number| disks.path(number).join(".striate/meta/meta.epoch");
    let own = std::fs::read(epoch(&disks, 2)).unwrap();
    std::fs::copy(epoch(&disks, 1), epoch(&disks, 2)).unwrap();
    let swapped = refusal(&disks.paths(&[1, 2, 3, 4])).await;
    assert!(swapped.contains("copied from another disk"), "{swapped}");
    let newer = String::from_utf8(own.clone()).unwrap().replace("\"version\":1", "\"version\":9");
    std::fs::write(epoch(&disks, 2), newer).unwrap();
    let newer = refusal(&disks.paths(&[1, 2, 3, 4])).await;
    assert!(newer.contains("start a newer striate"), "{newer}");
    std::fs::write(epoch(&disks, 2), own).unwrap();
    disks.start(&[1, 2, 3, 4]).await.unwrap().cluster.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_copies_of_mirrors_and_a_foreign_sealing_key_are_named() {
    let disks = Disks::new(3);
    let first = disks.start(&[1, 2, 3]).await.unwrap().cluster;
    first.keys().create("").await.unwrap();
    first.close().await;
    drop(first);
    let databases: Vec<PathBuf> = (1..=3)
        .map(|number| disks.path(number).join(".striate/meta/meta.redb"))
        .filter(|path| path.exists())
        .collect();
    let copies: Vec<Vec<u8>> = databases.iter().map(|path| std::fs::read(path).unwrap()).collect();
    let second = disks.start(&[1, 2, 3]).await.unwrap().cluster;
    put(&second, "a", 1).await;
    second.close().await;
    drop(second);

    let named = async |cluster: &Cluster, word: &str| {
        let warnings = cluster.status("").await.warnings;
        warnings.iter().filter(|warning| warning.contains(word)).count()
    };
    std::fs::write(&databases[0], &copies[0]).unwrap();
    let one = disks.start(&[1, 2, 3]).await.unwrap().cluster;
    assert_eq!(named(&one, "old copy").await, 1);
    assert_reads(&one, "a", 1).await;
    one.close().await;
    drop(one);
    databases.iter().zip(&copies).for_each(|(path, copy)| std::fs::write(path, copy).unwrap());
    let all = disks.start(&[1, 2, 3]).await.unwrap().cluster;
    assert_eq!(named(&all, "old copy").await, databases.len());
    assert_eq!(named(&all, "sealing.key").await, 0);
    all.close().await;
    drop(all);

    for number in 1..=3 {
        std::fs::write(disks.path(number).join(".striate/sealing.key"), "7".repeat(64)).unwrap();
    }
    let foreign = disks.start(&[1, 2, 3]).await.unwrap().cluster;
    assert_eq!((named(&foreign, "old copy").await, named(&foreign, "sealing.key").await), (0, 1));
    foreign.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_replaced_locked_and_newer_directories_are_refused_with_the_way_out() {
    let (mine, theirs) = (Disks::new(3), Disks::new(3));
    let other = theirs.start(&[1, 2, 3]).await.unwrap().cluster;
    other.close().await;
    drop(other);
    let cluster = mine.start(&[1, 2, 3]).await.unwrap().cluster;
    let locked = mine.start(&[1, 2, 3]).await.err().unwrap().to_string();
    assert!(locked.contains("another server"), "{locked}");
    // A disk is replaced while it is away.
    std::fs::rename(mine.path(3), mine.path(30)).unwrap();
    std::fs::create_dir(mine.path(3)).unwrap();
    cluster.replace(&mine.path(3)).await.unwrap();
    cluster.close().await;
    drop(cluster);

    let mixed = [mine.path(1), mine.path(2), theirs.path(3)];
    let foreign = refusal(&mixed).await;
    assert!(foreign.contains("cluster") && foreign.contains("one cluster only"), "{foreign}");
    let returned = refusal(&mine.paths(&[1, 2, 30])).await;
    assert!(returned.contains("was replaced"), "{returned}");
    let roster = mine.path(1).join(".striate/cluster");
    let text = std::fs::read_to_string(&roster).unwrap();
    std::fs::write(&roster, text.replace("\"version\":2", "\"version\":7")).unwrap();
    let newer = refusal(&mine.paths(&[1, 2, 3])).await;
    assert!(newer.contains("newer version"), "{newer}");
}

#[tokio::test]
async fn a_busy_port_is_named_and_nothing_is_written() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let address = HostPort { host: "127.0.0.1".to_owned(), port };
    let error = striate::server::listen(&address, "--address").await.unwrap_err().to_string();
    assert!(error.contains(&port.to_string()) && error.contains("choose another with --address"), "{error}");
}

/// A store whose metadata was moved away: no server starts on it until that is undone.
#[tokio::test]
async fn metadata_that_were_moved_are_not_started_with_again() {
    let (disks, runtime) = (Disks::new(3), Runtime::real());
    let cluster = disks.start(&[1, 2, 3]).await.unwrap().cluster;
    cluster.keys().create("").await.unwrap();
    let arguments: Vec<String> =
        disks.paths(&[1, 2, 3]).iter().map(|path| path.display().to_string()).collect();
    let refused = OfflineStore::open(&runtime, &arguments).await.unwrap_err();
    assert!(refused.to_string().contains("in use by another server"), "{refused}");
    cluster.close().await;
    drop(cluster);

    let offline = OfflineStore::open(&runtime, &arguments).await.unwrap();
    let target = MemoryStore::new(runtime.clone());
    let (from, to) = (
        MigrationEnd { store: &offline.store, name: "here" },
        MigrationEnd { store: &target, name: "etcd://there/striate" },
    );
    let rows = migrate(&runtime, from, to, &mut |_| {}).await.unwrap();
    assert!(rows >= 5, "{rows} rows: the cluster's, three sites', a key's");
    offline.store.close().await;
    drop(offline);

    let refused = disks.start(&[1, 2, 3]).await.err().expect("its metadata are elsewhere");
    assert!(refused.to_string().contains("moved to etcd://there/striate; start with that"), "{refused}");

    let command = || {
        let directories = arguments.clone();
        let args = MigrateArgs { from: Source::Embedded, to: None, cancel: true, quiet: true, directories };
        AdminCommand::Migrate(Box::new(args))
    };
    // The refused start closes what it had opened a little later.
    while let Err(refused) = striate::administer::run(runtime.clone(), command()).await {
        assert!(refused.to_string().contains("in use by another server"), "{refused}");
    }
    disks.start(&[1, 2, 3]).await.unwrap().cluster.close().await;
}
