//! Upgrades of a store over directories: newer formats wait for an operator, and then keep older programs out.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use striate::start::cluster::{Caching, Cluster, Settings};
use striate::start::prepare::PreparedStart;
use striate::start::roster::{RequiredFormats, Roster};
use striate_commands::failure::Outcome;
use striate_core::{ChunkId, Formats, Generation, SiteId, StripeId};
use striate_meta::{keys, records};
use striate_runtime::Runtime;
use striate_site::{Priority, WriteRequest};
use striate_stripe::StripeOptions;

/// Three directories.
struct Store {
    root: tempfile::TempDir,
}

impl Store {
    fn new() -> Self {
        let store = Self { root: tempfile::tempdir().unwrap() };
        store.paths().iter().for_each(|path| std::fs::create_dir(path).unwrap());
        store
    }

    fn paths(&self) -> Vec<PathBuf> {
        (1..=3).map(|number| self.root.path().join(number.to_string())).collect()
    }

    async fn start(&self, paths: &[PathBuf]) -> Outcome<Cluster> {
        let arguments: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        let prepared = PreparedStart::new(&Runtime::real(), &arguments).await?;
        let settings = Settings {
            profile: None,
            region: "us-east-1".to_owned(),
            given_key: None,
            stripes: StripeOptions { in_flight_bytes: 32 << 20, ..StripeOptions::default() },
            caching: Caching::default(),
            upkeep: striate_control::UpkeepOptions::by_hand(),
        };
        Ok(Cluster::open(Runtime::real(), prepared, settings).await?.cluster)
    }

    /// Creates a store as release 0.1 leaves it: no formats in its rosters and its cluster's row.
    async fn of_release_0_1() -> Self {
        let store = Self::new();
        let cluster = store.start(&store.paths()).await.unwrap();
        assert_eq!(
            cluster.client().stripes().formats(),
            Formats::NEWEST,
            "a new store begins with the newest formats"
        );
        change_row(&cluster, |row| {
            (row.record_format, row.chunk_format, row.needs_release) = (0, 0, String::new());
        })
        .await;
        close(cluster).await;
        for path in store.paths() {
            let (roster, disk) = Roster::read(&path).unwrap().unwrap();
            let old = roster.changed(|roster| roster.formats = RequiredFormats::default());
            old.write(&path, disk).unwrap();
            assert!(first_line(&path).contains("\"version\":1,"));
        }
        store
    }
}

/// Closes a store; its directories are free afterwards.
async fn close(cluster: Cluster) {
    cluster.close().await;
}

async fn change_row(cluster: &Cluster, change: impl FnOnce(&mut records::Cluster)) {
    let row = cluster.meta().get(&keys::cluster()).await.unwrap().unwrap();
    let mut record: records::Cluster = row.record().unwrap();
    change(&mut record);
    let mut tx = cluster.client().stripes().transaction();
    tx.put(keys::cluster(), records::encode(&record));
    cluster.meta().commit(tx).await.unwrap();
}

/// Returns the schema version of the cluster's row.
async fn schema(cluster: &Cluster) -> u8 {
    cluster.meta().get(&keys::cluster()).await.unwrap().unwrap().value[0]
}

/// Writes a chunk of several granules to the first site.
async fn write_chunk(cluster: &Cluster, number: u64) {
    let chunk = ChunkId { stripe: StripeId::new(9, number), index: 0, generation: Generation(1) };
    let (payload, priority) = (Bytes::from(vec![7; 10_000]), Priority::Foreground);
    let site = cluster.client().stripes().site(SiteId(1)).unwrap();
    site.write(WriteRequest { chunk, payload, granule_crcs: None, priority }).await.unwrap();
}

/// Returns the format versions of the segments in the first directory.
fn segment_versions(store: &Store) -> BTreeSet<u8> {
    let files = std::fs::read_dir(store.paths()[0].join(".striate/chunks")).unwrap();
    let files = files.map(|entry| entry.unwrap().path());
    let segments = files.filter(|path| path.extension().is_some_and(|extension| extension == "seg"));
    segments.map(|path| std::fs::read(path).unwrap()[8]).collect()
}

fn first_line(path: &Path) -> String {
    let text = std::fs::read_to_string(path.join(".striate/cluster")).unwrap();
    text.lines().next().unwrap().to_owned()
}

#[tokio::test]
async fn a_store_of_release_0_1_keeps_its_formats_until_somebody_finalizes_the_upgrade() {
    let store = Store::of_release_0_1().await;
    let cluster = store.start(&store.paths()).await.unwrap();
    assert_eq!((cluster.client().stripes().formats(), schema(&cluster).await), (Formats::OLDEST, 1));
    assert!(store.paths().iter().all(|path| first_line(path).contains("\"version\":1,")), "it can go back");
    write_chunk(&cluster, 1).await;
    assert_eq!(segment_versions(&store), [1].into(), "also from what was written meanwhile");
    let formats = cluster.status("").await.formats.unwrap();
    assert_eq!((formats.in_force, formats.target), (Formats::OLDEST, Formats::NEWEST));
    assert!(formats.holding.is_empty() && !formats.is_finalized(), "{formats:?}");

    assert_eq!(cluster.finalize_upgrade().await.unwrap(), Formats::NEWEST);
    assert_eq!((cluster.client().stripes().formats(), schema(&cluster).await), (Formats::NEWEST, 2));
    for path in store.paths() {
        assert!(
            first_line(&path).contains("\"version\":2,"),
            "release 0.1 refuses it: {}",
            first_line(&path)
        );
    }
    assert!(cluster.status("").await.formats.unwrap().is_finalized());
    write_chunk(&cluster, 2).await;
    assert_eq!(segment_versions(&store), [1, 2].into(), "the running sites learn of it");
    close(cluster).await;
    let cluster = store.start(&store.paths()).await.unwrap();
    assert_eq!(cluster.client().stripes().formats(), Formats::NEWEST);
    let site = cluster.client().stripes().site(SiteId(1)).unwrap();
    assert_eq!(site.list(None, 10).await.unwrap().chunks.len(), 2, "chunks of both formats are there");
    close(cluster).await;
}

/// The row decides; after a crash before the rosters followed it, the next start corrects them.
#[tokio::test]
async fn rosters_follow_the_row_at_the_next_start() {
    let store = Store::of_release_0_1().await;
    let cluster = store.start(&store.paths()).await.unwrap();
    change_row(&cluster, |row| row.set_formats(Formats::NEWEST)).await;
    close(cluster).await;
    assert!(store.paths().iter().all(|path| first_line(path).contains("\"version\":1,")));
    let cluster = store.start(&store.paths()).await.unwrap();
    assert!(store.paths().iter().all(|path| first_line(path).contains("\"version\":2,")));
    write_chunk(&cluster, 1).await;
    assert_eq!(segment_versions(&store), [2].into(), "and the sites the rosters");
    close(cluster).await;
}

/// A directory that was away while the upgrade was finalized does not admit an older program.
#[tokio::test]
async fn a_directory_that_was_away_gets_the_formats_when_it_returns() {
    let store = Store::of_release_0_1().await;
    let paths = store.paths();
    let cluster = store.start(&paths[..2]).await.unwrap();
    cluster.finalize_upgrade().await.unwrap();
    close(cluster).await;
    assert!(first_line(&paths[2]).contains("\"version\":1,"));
    let cluster = store.start(&paths).await.unwrap();
    assert!(paths.iter().all(|path| first_line(path).contains("\"version\":2,")));
    close(cluster).await;
}

#[tokio::test]
async fn a_store_with_formats_of_a_later_release_is_refused_by_its_name() {
    let later = Formats { records: Formats::NEWEST.records + 1, ..Formats::NEWEST };
    let store = Store::new();
    close(store.start(&store.paths()).await.unwrap()).await;
    let (roster, disk) = Roster::read(&store.paths()[1]).unwrap().unwrap();
    let required = RequiredFormats { in_force: later, needs: "7.8.9".to_owned() };
    roster.changed(|roster| roster.formats = required).write(&store.paths()[1], disk).unwrap();
    let error = store.start(&store.paths()).await.unwrap_err().to_string();
    assert!(error.contains("start striate 7.8.9 or newer"), "{error}");

    // Only the metadata names the formats.
    let store = Store::new();
    let cluster = store.start(&store.paths()).await.unwrap();
    change_row(&cluster, |row| {
        (row.record_format, row.needs_release) = (later.records, "7.8.9".to_owned());
    })
    .await;
    close(cluster).await;
    let error = store.start(&store.paths()).await.unwrap_err().to_string();
    assert!(error.contains("start striate 7.8.9 or newer"), "{error}");
}
