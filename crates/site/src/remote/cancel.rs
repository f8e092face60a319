//! Cancels reads that are no longer wanted, and keeps their connections.
//!
//! A message on another connection names the reads that the site may drop. Their replies then end early, and their
//! connections serve the next exchange. Reads that were dropped at about the same time share one message. Where that
//! does not work (the site does not reply at once, or all exchanges are in use), the connections are closed instead.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use http::Method;
use striate_runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::Inner;
use super::connection::Call;
use super::replies::Frames;
use crate::api::SiteError;
use crate::protocol::CANCEL_PATH;
use crate::protocol::frame::encode_cancel;
use crate::protocol::limits::MAX_CANCELLED;

/// Sends the cancellations of one site. A task does this, which the first read starts, because a read may be dropped
/// where no task can be started.
#[derive(Default)]
pub(super) struct Canceller(OnceLock<UnboundedSender<CancelledRead>>);

/// A read that was dropped before its reply had ended.
pub(super) struct CancelledRead {
    pub(super) site: Arc<Inner>,
    /// Identifier of the read at the site.
    pub(super) id: u64,
    pub(super) frames: Frames,
}

impl Canceller {
    /// Starts the task, unless it is running. It ends with this handle.
    pub(super) fn start(&self, runtime: &Runtime) {
        self.0.get_or_init(|| {
            let (sender, dropped) = unbounded_channel();
            runtime.spawn(run(runtime.clone(), dropped));
            sender
        });
    }

    /// Cancels a read.
    pub(super) fn cancel(&self, dropped: CancelledRead) {
        if let Some(sender) = self.0.get() {
            // Without the task, dropping the frames closes their connection.
            let _ = sender.send(dropped);
        }
    }
}

async fn run(runtime: Runtime, mut dropped: UnboundedReceiver<CancelledRead>) {
    let mut batch = Vec::new();
    while dropped.recv_many(&mut batch, MAX_CANCELLED).await > 0 {
        let batch = std::mem::take(&mut batch);
        let of_task = runtime.clone();
        runtime.spawn(async move {
            let limit = batch[0].site.endpoint().options.connect_timeout;
            // Reads that have not ended by then are dropped with this future, which closes their connections.
            let _ = of_task.timeout(limit, take_back(batch)).await;
        });
    }
}

async fn take_back(batch: Vec<CancelledRead>) -> Result<(), SiteError> {
    let site = Arc::clone(&batch[0].site);
    if !site.pool.has_place() {
        return Err(SiteError::Busy);
    }
    let ids: Vec<u64> = batch.iter().map(|dropped| dropped.id).collect();
    let (method, head, payload) = (Method::POST, encode_cancel(&ids), Bytes::new());
    site.answer(&Call { method, path: CANCEL_PATH, head, payload, is_read: true, work: Duration::ZERO })
        .await?;
    join_all(batch.into_iter().map(|dropped| dropped.frames.drain(site.endpoint()))).await;
    Ok(())
}
