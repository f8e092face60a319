//! A member's site: checks its identity, opens its chunk store, and puts a queue in front of it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use striate_commands::admin::find::STATE_FOLDER;
use striate_core::{ClusterId, FormatsInForce, RackId};
use striate_runtime::Runtime;
use striate_site::disk::{DiskStoreOptions, ReopenableStore};
use striate_site::filesystem::{FileSystem, RealFileSystem};
use striate_site::identity::{DISK_FORMAT, DiskId, Identity, IdentityError};
use striate_site::{ChunkStore as _, LocalSite, QueueLimits, Site, SiteDirectory, SiteIdentity, StoreStatus};

use super::modes::tighten_directory;
use super::roster::Member;

/// A site of this process on a directory. Cheap to clone.
#[derive(Clone)]
pub struct DiskSite {
    site: Arc<LocalSite>,
    store: Arc<ReopenableStore>,
}

/// Returns the metadata folder of a directory.
pub fn meta_folder(directory: &Path) -> PathBuf {
    directory.join(STATE_FOLDER).join("meta")
}

/// Returns the failure domain of a member: on one machine, every directory is its own.
pub fn rack_of(member: &Member) -> RackId {
    RackId(format!("disk-{}", member.site))
}

impl DiskSite {
    /// Opens the site of a member, which writes the `formats` in force. Writes its identity if an interrupted admission
    /// has not.
    ///
    /// # Errors
    /// If the directory is not this member's, or its store cannot be opened. The message names the remedy.
    pub async fn open(
        runtime: &Runtime,
        cluster: ClusterId,
        member: &Member,
        formats: &FormatsInForce,
    ) -> Result<Self, String> {
        Self::open_in(runtime, cluster, member, rack_of(member), formats).await
    }

    /// Opens the site as [`DiskSite::open`] does, but in the failure domain `rack`.
    ///
    /// # Errors
    /// As for [`DiskSite::open`].
    pub async fn open_in(
        runtime: &Runtime,
        cluster: ClusterId,
        member: &Member,
        rack: RackId,
        formats: &FormatsInForce,
    ) -> Result<Self, String> {
        let (rt, member, formats) = (runtime.clone(), member.clone(), formats.clone());
        let opened = runtime.run_blocking(move || open_store(&rt, cluster, &member, rack, formats)).await;
        let (store, identity) = opened?;
        let site = LocalSite::new(runtime.clone(), identity, store.clone(), QueueLimits::default());
        Ok(Self { site: Arc::new(site), store })
    }

    /// Returns the site as clients see it.
    pub fn site(&self) -> Arc<dyn Site> {
        self.site.clone()
    }

    /// Returns the site as its service sees it.
    pub fn local(&self) -> Arc<LocalSite> {
        self.site.clone()
    }

    /// Gives the site a directory of the other sites.
    pub fn set_directory(&self, directory: Weak<dyn SiteDirectory>) {
        self.site.set_directory(directory);
    }

    /// Returns the state of its store.
    pub fn status(&self) -> StoreStatus {
        self.store.status()
    }

    /// Looks at the disk now; see [`ReopenableStore::look`].
    pub async fn look(&self) {
        self.store.look().await;
    }

    /// Returns why the site takes no writes until it is reopened; `None` if it takes them, or will once its disk
    /// answers.
    pub fn failure(&self) -> Option<String> {
        self.store.failure()
    }

    /// Reopens the site's store, as [`ReopenableStore::reopen`] does. It never ends if the disk hangs.
    ///
    /// # Errors
    /// If the directory is not this member's, or its store cannot be used.
    pub async fn reopen(&self, runtime: &Runtime, cluster: ClusterId, member: &Member) -> Result<(), String> {
        let (store, member) = (self.store.clone(), member.clone());
        let reopen = move || {
            let identity =
                Identity::read(&RealFileSystem, &member.path).map_err(|error| error.to_string())?;
            let disk = DiskId(u128::from_be_bytes(member.disk.0));
            let checked = identity.check(&member.path, cluster, member.site, Some(disk));
            checked.map_err(|error| error.to_string())?;
            store.reopen().map_err(|error| error.to_string())
        };
        runtime.run_blocking(reopen).await
    }

    /// Writes a snapshot of the index and releases the directory.
    pub async fn close(&self) {
        if let Err(error) = self.store.close().await {
            tracing::warn!(site = %self.site.id(), %error, "no snapshot was written; the next start scans the segments");
        }
    }
}

fn open_store(
    runtime: &Runtime,
    cluster: ClusterId,
    member: &Member,
    rack: RackId,
    formats: FormatsInForce,
) -> Result<(Arc<ReopenableStore>, SiteIdentity), String> {
    let fs: Arc<dyn FileSystem> = Arc::new(RealFileSystem);
    let disk = DiskId(u128::from_be_bytes(member.disk.0));
    match Identity::read(&*fs, &member.path) {
        Ok(identity) => {
            identity.check(&member.path, cluster, member.site, Some(disk)).map_err(|e| e.to_string())?
        }
        Err(IdentityError::Blank(_)) => {
            let identity = Identity {
                format: DISK_FORMAT,
                cluster,
                site: member.site,
                disk,
                rack: rack.clone(),
                created: runtime.wall_time().as_secs(),
            };
            identity.write(&*fs, &member.path).map_err(|error| error.to_string())?;
        }
        Err(error) => return Err(error.to_string()),
    }
    if let Err(error) = tighten_directory(&member.path) {
        tracing::warn!(directory = %member.path.display(), %error, "other users may still read files in this directory");
    }
    std::fs::create_dir_all(meta_folder(&member.path))
        .map_err(|error| format!("{}: {error}", meta_folder(&member.path).display()))?;
    let open_files = striate_listen::descriptors::segments_of_disk();
    let options = DiskStoreOptions { formats, open_files, ..DiskStoreOptions::default() };
    let store = ReopenableStore::open(runtime, fs, &member.path, options);
    let store = store.map_err(|error| error.to_string())?;
    Ok((Arc::new(store), SiteIdentity { cluster, site: member.site, rack }))
}
