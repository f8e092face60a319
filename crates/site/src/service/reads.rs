//! Running reads by id, so that they can be cancelled.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;
use futures::stream::{AbortHandle, Abortable};
use parking_lot::Mutex;

use crate::api::{ReadReply, ReadStream};

/// Running reads by id. Ids are random; if two reads have the same, closing their connections still cancels both.
#[derive(Debug, Default)]
pub(super) struct Reads(Mutex<HashMap<u64, AbortHandle>>);

impl Reads {
    /// Returns `replies` as a stream that ends when the read is cancelled.
    pub(super) fn cancellable(self: &Arc<Self>, id: u64, replies: ReadStream) -> ReadStream {
        let (handle, registration) = AbortHandle::new_pair();
        self.0.lock().insert(id, handle);
        Box::pin(Cancellable { id, reads: Arc::clone(self), replies: Abortable::new(replies, registration) })
    }

    /// Cancels a read. A read that has already ended is unknown and ignored.
    pub(super) fn cancel(&self, id: u64) {
        if let Some(handle) = self.0.lock().remove(&id) {
            handle.abort();
        }
    }
}

struct Cancellable {
    id: u64,
    reads: Arc<Reads>,
    replies: Abortable<ReadStream>,
}

impl Stream for Cancellable {
    type Item = ReadReply;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ReadReply>> {
        Pin::new(&mut self.replies).poll_next(context)
    }
}

impl Drop for Cancellable {
    fn drop(&mut self) {
        self.reads.0.lock().remove(&self.id);
    }
}
