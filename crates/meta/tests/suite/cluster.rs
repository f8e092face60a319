//! Clusters of temporary directories.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use striate_core::ClusterId;
use striate_meta::conformance::Store;
use striate_meta::embedded::{DiskId, EmbeddedStore, Layout, MetaDirectory, Options};
use striate_meta::{Commit, MetaError, MetaStore, Transaction, TxId};
use striate_runtime::Runtime;
use tempfile::TempDir;

/// Directories on the machine's disk, removed on drop.
pub struct Cluster {
    root: TempDir,
    pub layout: Layout,
    pub options: Options,
}

impl Cluster {
    pub fn new(total_directories: usize, tolerance: usize) -> Self {
        let root = TempDir::new().expect("a temporary directory can be made");
        let layout = Layout { cluster: ClusterId(7), total_directories, tolerance };
        let options = Options { min_free_bytes: 0, reserve_bytes: 4096, ..Options::default() };
        let cluster = Self { root, layout, options };
        (0..total_directories).for_each(|number| std::fs::create_dir(cluster.path(number)).unwrap());
        cluster
    }

    pub fn path(&self, number: usize) -> PathBuf {
        self.root.path().join(format!("disk{number}"))
    }

    pub fn disk(number: usize) -> DiskId {
        DiskId([number as u8 + 1; 16])
    }

    pub fn directory(&self, number: usize) -> MetaDirectory {
        MetaDirectory::open(Self::disk(number), self.path(number)).expect("the directory exists")
    }

    /// Returns the directories that exist, except those in `without`.
    pub fn present(&self, without: &[usize]) -> Vec<MetaDirectory> {
        let there = |number: &usize| !without.contains(number) && self.path(*number).exists();
        (0..self.layout.total_directories).filter(there).map(|number| self.directory(number)).collect()
    }

    /// Runs `rm -rf`, and repeats it if the running engine meanwhile put something into the directory.
    pub fn wipe(&self, number: usize) {
        while let Err(error) = std::fs::remove_dir_all(self.path(number)) {
            assert_eq!(error.kind(), std::io::ErrorKind::DirectoryNotEmpty);
        }
    }

    /// Replaces a lost disk with a blank one.
    pub fn replace(&self, number: usize) {
        std::fs::create_dir(self.path(number)).unwrap();
    }

    pub async fn create(&self, runtime: &Runtime) -> EmbeddedStore {
        EmbeddedStore::create(runtime, self.options, self.layout, &self.present(&[])).await.unwrap();
        self.open(runtime, &[]).await.unwrap()
    }

    pub async fn open(&self, runtime: &Runtime, without: &[usize]) -> Result<EmbeddedStore, MetaError> {
        EmbeddedStore::open(runtime, self.options, self.layout, &self.present(without)).await
    }
}

/// Returns a deterministic runtime.
pub fn virtual_runtime() -> Runtime {
    Runtime::deterministic(1, Duration::ZERO)
}

pub fn shared(store: &EmbeddedStore) -> Store {
    Arc::new(store.clone())
}

/// Sets one row.
pub async fn put(store: &EmbeddedStore, key: &str, value: &str) -> Result<Commit, MetaError> {
    let TxId(id) = striate_meta::conformance::fresh_id();
    let mut tx = Transaction::new(TxId(id));
    tx.put(key.to_owned(), value.to_owned());
    store.commit(tx).await
}

/// Reads a row's value as text.
pub async fn get(store: &EmbeddedStore, key: &str) -> Result<Option<String>, MetaError> {
    let row = store.get(key.as_bytes()).await?;
    Ok(row.map(|row| String::from_utf8_lossy(&row.value).into_owned()))
}

/// Runs `future` on tokio's paused clock.
pub fn in_virtual_time<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a current-thread runtime starts").block_on(future)
}
