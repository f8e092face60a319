//! Exports and imports all metadata; the format is the metadata crate's ([`striate_meta::archive`]).
//!
//! An export is of one state, however long it takes. An import is saved to a file and checked completely before the
//! first row is written. Afterwards the rows of this store's own sites are corrected, the numbers of writers are raised
//! above those of both stores, and the server stops: a writer in the export may have had the same number as this
//! server's writer.

use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use futures::StreamExt;
use http::Response;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use striate_commands::failure::Failure;
use striate_meta::archive::{self, ImportOptions};
use striate_meta::{MetaStore, ScanRange, keys, records};
use tokio::io::{AsyncReadExt, BufReader};

use super::{AdminService, Body, ok, text_lines};

/// Size in bytes of the buffer between an export and its command.
const EXPORT_BUFFER: usize = 256 << 10;

/// A file that is removed on drop.
struct Spool(PathBuf);

impl Drop for Spool {
    fn drop(&mut self) {
        // A file that cannot be removed does no harm.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl AdminService {
    pub(super) async fn export(&self) -> Result<Response<Body>, Failure> {
        let cluster = self.shared.cluster.clone();
        let view = cluster.embedded()?.view().map_err(Failure::failed)?;
        let (mut writer, reader) = tokio::io::duplex(EXPORT_BUFFER);
        self.runtime().spawn(async move {
            // The command detects a failure by the missing last line, and the log has the reason.
            match archive::export(&view, cluster.id(), &mut writer, &mut |_| {}).await {
                Ok(progress) => tracing::info!(rows = progress.rows, "metadata exported"),
                Err(error) => tracing::error!(%error, "metadata was not exported"),
            }
        });
        let pieces = futures::stream::try_unfold(reader, |mut reader| async move {
            let mut piece = vec![0; EXPORT_BUFFER];
            let len = reader.read(&mut piece).await?;
            piece.truncate(len);
            Ok((len > 0).then(|| (Bytes::from(piece), reader)))
        });
        Ok(text_lines(pieces.boxed()))
    }

    pub(super) async fn import(&self, body: Incoming) -> Result<Response<Body>, Failure> {
        let cluster = &self.shared.cluster;
        let meta = cluster.embedded()?;
        let buckets = meta.scan(ScanRange::prefix(keys::BUCKETS), 1).await.map_err(Failure::failed)?;
        if !buckets.is_empty() {
            return Err(Failure::refused(
                "the store has buckets; metadata is imported into an empty store only",
            ));
        }
        let spool = self.take_down(body).await?;
        let open = async || -> io::Result<_> {
            let file = std::fs::File::open(&spool.0)?;
            Ok(BufReader::new(tokio::fs::File::from_std(file)))
        };
        archive::check(&mut open().await.map_err(Failure::failed)?).await.map_err(Failure::refused)?;
        let before = self.cluster_record().await?;
        let options = ImportOptions { cluster: Some(cluster.id()), force: true };
        let mut file = open().await.map_err(Failure::failed)?;
        let imported = archive::import(self.runtime(), meta, options, &mut file, &mut |_| {}).await;
        let progress = imported.map_err(Failure::failed)?;
        self.raise_counters(&before).await?;
        cluster.follow_roster().await.map_err(Failure::failed)?;
        tracing::warn!(rows = progress.rows, "metadata imported; the server stops now");
        self.shared.stop.notify_one();
        Ok(ok(&serde_json::json!({ "rows": progress.rows })))
    }

    async fn take_down(&self, mut body: Incoming) -> Result<Spool, Failure> {
        let directories = self.shared.cluster.directories();
        let directory = directories.first().ok_or_else(|| Failure::failed("no directory is here"))?;
        let spool = Spool(directory.join(super::STATE_FOLDER).join("import.tmp"));
        let fail = |error: io::Error| Failure::failed(format!("{}: {error}", spool.0.display()));
        let mut file = std::fs::File::create(&spool.0).map_err(fail)?;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Failure::failed(format!("the import broke: {error}")))?;
            if let Some(data) = frame.data_ref() {
                io::Write::write_all(&mut file, data).map_err(fail)?;
            }
        }
        Ok(spool)
    }

    async fn cluster_record(&self) -> Result<records::Cluster, Failure> {
        let row = self.shared.cluster.meta().get(&keys::cluster()).await.map_err(Failure::failed)?;
        let row = row.ok_or_else(|| Failure::failed("this store has no row of its own; start it again"))?;
        row.record().map_err(Failure::failed)
    }

    /// Raises the counters, so that numbers assigned by either store are never assigned again.
    async fn raise_counters(&self, before: &records::Cluster) -> Result<(), Failure> {
        let cluster = &self.shared.cluster;
        let row = cluster.meta().get(&keys::cluster()).await.map_err(Failure::failed)?;
        let imported = self.cluster_record().await?;
        let raised = records::Cluster {
            next_site: before.next_site.max(imported.next_site),
            next_writer: before.next_writer.max(imported.next_writer),
            next_epoch: before.next_epoch.max(imported.next_epoch),
            ..imported
        };
        let mut tx = cluster.client().stripes().transaction();
        tx.require_unchanged(keys::cluster(), row.as_ref()).put(keys::cluster(), records::encode(&raised));
        match cluster.meta().commit(tx).await.map_err(Failure::failed)? {
            striate_meta::Commit::Done(_) => Ok(()),
            striate_meta::Commit::Conflict { .. } => {
                Err(Failure::failed("another change came in between; import again into an empty store"))
            }
        }
    }
}
