//! The embedded metadata of a store whose server is stopped.
//!
//! The directories are locked as a server would lock them, so no server runs or starts meanwhile; this protects a
//! migration from writers. Only the metadata is opened.

use striate_commands::admin::find::STATE_FOLDER;
use striate_commands::failure::{Failure, Outcome};
use striate_core::ClusterId;
use striate_meta::EmbeddedStore;
use striate_meta::embedded::{MetaDirectory, Options};
use striate_runtime::Runtime;

use super::cluster::layout;
use super::lock::{DirectoryLock, LOCK_FILE};
use super::plan::StartPlan;
use super::prepare::PreparedStart;
use super::site::meta_folder;
use crate::ellipsis::expand_all;

/// Open metadata, and the locks of the directories.
#[derive(Debug)]
pub struct OfflineStore {
    /// Metadata store.
    pub store: EmbeddedStore,
    /// Cluster that the metadata belongs to.
    pub cluster: ClusterId,
    _locks: Vec<DirectoryLock>,
}

impl OfflineStore {
    /// Opens the metadata in the directories that a server is started with.
    ///
    /// # Errors
    /// If there is no store in them, too few of them are present, or a server runs.
    pub async fn open(runtime: &Runtime, arguments: &[String]) -> Outcome<Self> {
        let directories = expand_all(arguments).map_err(Failure::refused)?;
        let PreparedStart { plan, locks } = PreparedStart::new(runtime, &directories).await?;
        let plan = match plan {
            StartPlan::Open(plan) => plan,
            StartPlan::First { .. } => {
                return Err(Failure::refused("there is no store in these directories"));
            }
        };
        let mut present = Vec::new();
        for missing in &plan.missing {
            let (path, found) = (missing.member.path.display(), &missing.found);
            tracing::warn!(directory = %path, found, "a disk is missing; its metadata is not read");
        }
        for member in &plan.present {
            let witness = member.path.join(STATE_FOLDER).join(LOCK_FILE);
            match MetaDirectory::open_with_witness(member.disk, meta_folder(&member.path), witness) {
                Ok(directory) => present.push(directory),
                Err(error) => {
                    tracing::warn!(directory = %member.path.display(), %error, "no metadata in this directory");
                }
            }
        }
        let store = EmbeddedStore::open(runtime, Options::default(), layout(&plan.roster), &present).await;
        Ok(Self {
            store: store.map_err(Failure::refused)?,
            cluster: plan.roster.cluster,
            _locks: locks.into_values().collect(),
        })
    }
}
