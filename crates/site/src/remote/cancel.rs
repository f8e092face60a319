//! Takes reads back that nobody waits for any more, and keeps their connections.
//!
//! The site is told on another connection which reads it may drop; their replies then end early, and the connections
//! serve the next exchange. All reads that were dropped at about the same time go into one message. Where that does
//! not work (the site does not answer at once, or all exchanges are taken), closing the connections does.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::future::join_all;
use http::Method;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::connection::{Call, Pool};
use super::replies::Frames;
use crate::api::SiteError;
use crate::protocol::CANCEL_PATH;
use crate::protocol::frame::encode_cancel;
use crate::protocol::limits::MAX_CANCELLED;

/// Sends the cancellations of one site.
pub(super) struct Canceller {
    pool: Arc<Pool>,
    /// To the task that sends them, which the first read starts: a read may be dropped where no task can be started.
    sender: OnceLock<UnboundedSender<Dropped>>,
}

/// A read that was dropped with a part of its reply still to come.
struct Dropped {
    id: u64,
    frames: Frames,
}

impl Canceller {
    pub(super) fn new(pool: Arc<Pool>) -> Self {
        Self { pool, sender: OnceLock::new() }
    }

    /// Starts the task, if it does not run yet. It ends with this handle.
    pub(super) fn start(&self) {
        self.sender.get_or_init(|| {
            let (sender, dropped) = unbounded_channel();
            self.pool.endpoint().runtime.spawn(run(Arc::clone(&self.pool), dropped));
            sender
        });
    }

    /// Lets go of a read.
    pub(super) fn cancel(&self, id: u64, frames: Frames) {
        if let Some(sender) = self.sender.get() {
            // Without the task, dropping the frames closes their connection.
            let _ = sender.send(Dropped { id, frames });
        }
    }
}

async fn run(pool: Arc<Pool>, mut dropped: UnboundedReceiver<Dropped>) {
    let mut batch = Vec::new();
    while dropped.recv_many(&mut batch, MAX_CANCELLED).await > 0 {
        let batch = std::mem::take(&mut batch);
        let of_task = Arc::clone(&pool);
        pool.endpoint().runtime.spawn(async move {
            let limit = of_task.endpoint().options.connect_timeout;
            // What has not ended by then is dropped with this future: its connection is closed.
            let _ = of_task.endpoint().runtime.timeout(limit, take_back(&of_task, batch)).await;
        });
    }
}

async fn take_back(pool: &Arc<Pool>, batch: Vec<Dropped>) -> Result<(), SiteError> {
    if !pool.has_place() {
        return Err(SiteError::Busy);
    }
    let ids: Vec<u64> = batch.iter().map(|dropped| dropped.id).collect();
    let (method, head, payload) = (Method::POST, encode_cancel(&ids), Bytes::new());
    let call = Call { method, path: CANCEL_PATH, head, payload, is_read: true };
    let (exchange, body) = pool.exchange(&call, drop).await?;
    Frames::new(exchange, body).drain(pool.endpoint()).await?;
    join_all(batch.into_iter().map(|dropped| dropped.frames.drain(pool.endpoint()))).await;
    Ok(())
}
