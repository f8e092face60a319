//! Watches, which survive the failure of the member that they started at.
//!
//! A watch asks for everything from the revision after the newest one, so it begins exactly now even at a member that
//! lags. On failure it resumes at another member, with the revision after the last one that it delivered. When the
//! watcher's buffer is full, the call ends, because a call that is not read would block everything else on its
//! connection. A new call resumes once there is room; etcd keeps the events meanwhile. The watch ends when a revision
//! that it needs was compacted away.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, stream};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tonic::Streaming;

use super::EtcdStore;
use super::layout::{KeySpace, revision};
use super::members::{Failure, Members};
use super::wire::{
    Answer, Event, EventType, RequestUnion, WatchClient, WatchCreateRequest, WatchRequest, WatchResponse, get,
};
use crate::store::{MetaError, Watch, WatchEvent, prefix_end};
use crate::watch::WATCH_BUFFER_EVENTS;

impl EtcdStore {
    pub(super) async fn start_watch(&self, prefix: &[u8]) -> Result<Watch, MetaError> {
        let newest = self.range(get(self.keys.version())).await.map_err(Failure::into_error)?.revision();
        let (events, watch) = mpsc::channel(WATCH_BUFFER_EVENTS);
        let start = self.keys.row(prefix);
        let end = prefix_end(&start);
        let follow = ActiveWatch {
            members: self.members.clone(),
            keys: self.keys.clone(),
            start,
            end,
            next: newest + 1,
            events,
        };
        self.members.runtime.spawn(follow.run());
        Ok(watch)
    }
}

/// A watch in progress.
struct ActiveWatch {
    members: Arc<Members>,
    keys: KeySpace,
    start: Bytes,
    end: Bytes,
    /// First revision that was not delivered.
    next: i64,
    events: mpsc::Sender<WatchEvent>,
}

/// The watch has ended for good.
struct WatchEnded;

/// Why a call to etcd ended.
enum CallEnd {
    /// The member or the connection to it failed.
    Failed,
    /// The watcher's buffer is full.
    Full,
}

impl ActiveWatch {
    async fn run(mut self) {
        let watcher = self.events.clone();
        tokio::select! {
            WatchEnded = self.follow() => {}
            () = watcher.closed() => {}
        }
    }

    async fn follow(&mut self) -> WatchEnded {
        let mut attempts = 0;
        loop {
            let (number, _) = self.members.preferred();
            match self.open().await {
                Ok(answers) => {
                    let before = self.next;
                    let over = match self.deliver(answers).await {
                        Ok(over) => over,
                        Err(WatchEnded) => return WatchEnded,
                    };
                    if self.next > before {
                        attempts = 0;
                    }
                    if matches!(over, CallEnd::Full) {
                        let _ = self.events.reserve_many(WATCH_BUFFER_EVENTS).await;
                        continue;
                    }
                }
                Err(failure) => tracing::debug!(?failure, "a watch waits for etcd"),
            }
            self.members.turn_from(number);
            attempts += 1;
            self.members.pause(attempts, self.members.deadline()).await;
        }
    }

    async fn open(&self) -> Result<Streaming<WatchResponse>, Failure> {
        let (_, channel) = self.members.preferred();
        let create = WatchCreateRequest {
            key: self.start.clone(),
            range_end: self.end.clone(),
            start_revision: self.next,
            progress_notify: true,
        };
        let message = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        // Ending the stream of requests would end the watch.
        let request =
            self.members.request(&channel, stream::iter([message]).chain(stream::pending())).await?;
        let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
        let answers = client.watch(request).await;
        answers.map(tonic::Response::into_inner).map_err(|status| Failure::Unclear(status.to_string()))
    }

    /// Delivers events until the call ends.
    async fn deliver(&mut self, mut answers: Streaming<WatchResponse>) -> Result<CallEnd, WatchEnded> {
        while let Ok(Some(answer)) = answers.message().await {
            if answer.canceled {
                tracing::debug!(reason = answer.cancel_reason, "etcd ended a watch");
                return if answer.compact_revision > 0 { Err(WatchEnded) } else { Ok(CallEnd::Failed) };
            }
            for events in answer.events.chunk_by(|a, b| changed_at(a) == changed_at(b)) {
                if let Some(over) = self.send(events)? {
                    return Ok(over);
                }
            }
            // A progress notification: no event up to this revision is still to come.
            if answer.events.is_empty() && !answer.created {
                self.next = self.next.max(answer.header.map_or(0, |header| header.revision) + 1);
            }
        }
        Ok(CallEnd::Failed)
    }

    /// Delivers all events of one revision, or none.
    fn send(&mut self, events: &[Event]) -> Result<Option<CallEnd>, WatchEnded> {
        let Some(at) = events.first().and_then(changed_at).filter(|&at| at >= self.next) else {
            return Ok(None);
        };
        let revision = revision(at).map_err(|_| WatchEnded)?;
        let room = match self.events.try_reserve_many(events.len()) {
            Ok(room) => room,
            // No watcher has room for this many.
            Err(_) if events.len() > WATCH_BUFFER_EVENTS => return Err(WatchEnded),
            Err(TrySendError::Full(())) => return Ok(Some(CallEnd::Full)),
            Err(TrySendError::Closed(())) => return Err(WatchEnded),
        };
        for (slot, event) in room.zip(events) {
            let Some(kv) = &event.kv else { return Err(WatchEnded) };
            let value = match event.r#type() {
                EventType::Put => Some(kv.value.clone()),
                EventType::Delete => None,
            };
            slot.send(WatchEvent { key: self.keys.row_key(&kv.key), value, revision });
        }
        self.next = at + 1;
        Ok(None)
    }
}

/// Returns the revision of an event.
fn changed_at(event: &Event) -> Option<i64> {
    event.kv.as_ref().map(|kv| kv.mod_revision)
}
