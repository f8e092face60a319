//! Changes of disks: replacing, adding, draining, removing.

use std::time::Duration;

use http::Response;
use hyper::body::Incoming;
use striate_commands::admin::find::{SOCKET_NAME, STATE_FOLDER, is_alive};
use striate_commands::admin::messages::{
    DiskOutcome, DiskPath, DrainDisk, DrainProgress, Line, ReplaceOutcome,
};
use striate_commands::failure::{Failure, Outcome};

use super::{AdminService, Body, ProgressPacer, STOPPING, about, changed, read};
use crate::start::cluster::LeavingDisk;

/// Interval between two looks at what is left on a disk that drains.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl AdminService {
    /// Serves `POST /v1/disks/…`.
    pub(super) async fn disks(&self, change: &str, body: Incoming) -> Result<Response<Body>, Failure> {
        if change == "drain" {
            let wish: DrainDisk = read(body).await?;
            let subject = wish.path.display().to_string();
            return Ok(about(&subject, self.clone().drain(wish)));
        }
        let DiskPath { path } = read(body).await?;
        let cluster = &self.shared.cluster;
        let (LeavingDisk { site, path }, is_empty) = match change {
            "replace" => return self.replace(&path).await,
            "add" => {
                let site = cluster.admit(&path).await?;
                tracing::info!(path = %path.display(), %site, "disk added");
                self.serve_new_directories();
                (LeavingDisk { site, path }, true)
            }
            "resume" => (cluster.set_disk_draining(&path, false).await?, false),
            "remove" => {
                let removed = cluster.remove_disk(&path).await?;
                tracing::info!(path = %removed.path.display(), site = %removed.site, "disk removed");
                (removed, true)
            }
            _ => {
                return Err(Failure::failed(format!("this server knows no change of disks called {change}")));
            }
        };
        Ok(changed(&path.display().to_string(), &DiskOutcome { site: site.0, path: path.clone(), is_empty }))
    }

    async fn replace(&self, path: &std::path::Path) -> Result<Response<Body>, Failure> {
        let replaced = self.shared.cluster.replace(path).await?;
        tracing::info!(path = %path.display(), old = %replaced.old, new = %replaced.new, "disk replaced");
        self.serve_new_directories();
        let mut notes = Vec::new();
        if let Some(aside) = &replaced.aside {
            notes.push(format!(
                "files of this store that were left in the directory, without the identity of a disk, were moved to {}; \
                 remove that folder once the store is whole again",
                aside.display()
            ));
        }
        notes
            .push("the lost chunks are rebuilt in the background; `striate heal` does it at once".to_owned());
        let outcome = ReplaceOutcome { old_site: replaced.old.0, new_site: replaced.new.0, notes };
        Ok(changed(&path.display().to_string(), &outcome))
    }

    /// Serves the admin socket in the directories that have none.
    fn serve_new_directories(&self) {
        for directory in self.shared.cluster.directories() {
            let folder = directory.join(STATE_FOLDER);
            if folder.is_dir() && !is_alive(&folder.join(SOCKET_NAME)) {
                self.serve_directory(&directory);
            }
        }
    }

    fn drain(self, wish: DrainDisk) -> Response<Body> {
        self.long_operation(move |service, pace| async move {
            match service.drained(wish, pace).await {
                Ok(Some(outcome)) => Line::Report(serde_json::to_value(outcome).unwrap_or_default()),
                Ok(None) => Line::Failed(STOPPING.to_owned()),
                Err(failure) => Line::Failed(failure.to_string()),
            }
        })
    }

    /// Drains a disk, and waits until it is empty if that is wished; `None` if the wait was ended.
    async fn drained(&self, wish: DrainDisk, mut pace: ProgressPacer) -> Outcome<Option<DiskOutcome>> {
        let cluster = &self.shared.cluster;
        let LeavingDisk { site, path } = cluster.set_disk_draining(&wish.path, true).await?;
        loop {
            let left = cluster.contents_of(site).await?;
            let is_empty = left.is_none();
            if is_empty || !wish.wait {
                return Ok(Some(DiskOutcome { site: site.0, path, is_empty }));
            }
            if pace.progress(&DrainProgress { left: left.unwrap_or_default() }).is_break() {
                return Ok(None);
            }
            self.runtime().sleep(LOOK_EVERY).await;
        }
    }
}
