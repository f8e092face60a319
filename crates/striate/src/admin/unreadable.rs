//! Lists the objects that cannot be read now.

use std::collections::BTreeSet;
use std::io;

use bytes::Bytes;
use futures::StreamExt;
use http::Response;
use striate_control::UnreadableObjects;
use striate_core::SiteId;
use tokio::sync::mpsc;

use super::{AdminService, Body, WAITING_LINES, text_lines};

impl AdminService {
    /// Answers with a line for each object that cannot be read, a JSON array of bucket and key, and last the report.
    pub(super) async fn unreadable(&self) -> Response<Body> {
        let cluster = self.shared.cluster.clone();
        let answering: BTreeSet<SiteId> = cluster.answering_sites().await;
        let (lines, receiver) = mpsc::channel(WAITING_LINES);
        self.runtime().spawn(async move {
            let line = |value: serde_json::Value| Ok::<_, io::Error>(Bytes::from(format!("{value}\n")));
            let mut walk = UnreadableObjects::new(&answering);
            loop {
                match walk.next(cluster.client().stripes()).await {
                    Ok(Some(found)) => {
                        for object in found {
                            if lines.send(line(serde_json::json!(object))).await.is_err() {
                                // The command has gone.
                                return;
                            }
                        }
                    }
                    Ok(None) => return drop(lines.send(line(serde_json::json!(walk.report()))).await),
                    // The command detects a failure by the missing last line, and the log has the reason.
                    Err(error) => {
                        return tracing::error!(%error, "objects that cannot be read were not all listed");
                    }
                }
            }
        });
        let lines = futures::stream::unfold(receiver, |mut receiver| async move {
            let line = receiver.recv().await?;
            Some((line, receiver))
        });
        text_lines(lines.boxed())
    }
}
