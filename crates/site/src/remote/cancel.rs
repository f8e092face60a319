//! Takes reads back that nobody waits for any more, and keeps their connections.
//!
//! The site is told on another connection which reads it may drop; their replies then end early, and the connections
//! serve the next exchange. All reads that were dropped at about the same time go into one message. Where that does
//! not work (the site does not answer at once, or all exchanges are taken), closing the connections does.

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

/// Sends the cancellations of one site: to the task that does it, which the first read starts, because a read may be
/// dropped where no task can be started.
#[derive(Default)]
pub(super) struct Canceller(OnceLock<UnboundedSender<Dropped>>);

/// A read that was dropped with a part of its reply still to come.
pub(super) struct Dropped {
    pub(super) site: Arc<Inner>,
    /// What the site knows it by.
    pub(super) id: u64,
    pub(super) frames: Frames,
}

impl Canceller {
    /// Starts the task, if it does not run yet. It ends with this handle.
    pub(super) fn start(&self, runtime: &Runtime) {
        self.0.get_or_init(|| {
            let (sender, dropped) = unbounded_channel();
            runtime.spawn(run(runtime.clone(), dropped));
            sender
        });
    }

    /// Lets go of a read.
    pub(super) fn cancel(&self, dropped: Dropped) {
        if let Some(sender) = self.0.get() {
            // Without the task, dropping the frames closes their connection.
            let _ = sender.send(dropped);
        }
    }
}

async fn run(runtime: Runtime, mut dropped: UnboundedReceiver<Dropped>) {
    let mut batch = Vec::new();
    while dropped.recv_many(&mut batch, MAX_CANCELLED).await > 0 {
        let batch = std::mem::take(&mut batch);
        let of_task = runtime.clone();
        runtime.spawn(async move {
            let limit = batch[0].site.endpoint().options.connect_timeout;
            // What has not ended by then is dropped with this future: its connection is closed.
            let _ = of_task.timeout(limit, take_back(batch)).await;
        });
    }
}

async fn take_back(batch: Vec<Dropped>) -> Result<(), SiteError> {
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
