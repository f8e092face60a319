//! Watches, which outlive the member they began at.
//!
//! A watch asks for everything from the revision after the newest one, so that it begins exactly now also at
//! a member that lags; and goes on at another member with the revision after the last one it delivered. It
//! ends when the watcher lags behind its buffer, or when a revision that is wanted was compacted away.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, stream};
use tokio::sync::mpsc;
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
        let follow = Follow {
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
struct Follow {
    members: Arc<Members>,
    keys: KeySpace,
    start: Bytes,
    end: Bytes,
    /// The first revision that was not delivered.
    next: i64,
    events: mpsc::Sender<WatchEvent>,
}

/// The watch has ended for good.
struct Ended;

impl Follow {
    async fn run(mut self) {
        let watcher = self.events.clone();
        tokio::select! {
            Ended = self.follow() => {}
            () = watcher.closed() => {}
        }
    }

    async fn follow(&mut self) -> Ended {
        let mut attempts = 0;
        loop {
            let (number, _) = self.members.preferred();
            match self.open().await {
                Ok(answers) => {
                    let before = self.next;
                    if let Err(Ended) = self.deliver(answers).await {
                        return Ended;
                    }
                    if self.next > before {
                        attempts = 0;
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
        // The end of the requests would be the end of the watch.
        let request =
            self.members.request(&channel, stream::iter([message]).chain(stream::pending())).await?;
        let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
        let answers = client.watch(request).await;
        answers.map(tonic::Response::into_inner).map_err(|status| Failure::Unclear(status.to_string()))
    }

    /// Delivers events until the call ends.
    async fn deliver(&mut self, mut answers: Streaming<WatchResponse>) -> Result<(), Ended> {
        while let Ok(Some(answer)) = answers.message().await {
            if answer.canceled {
                tracing::debug!(reason = answer.cancel_reason, "etcd ended a watch");
                return if answer.compact_revision > 0 { Err(Ended) } else { Ok(()) };
            }
            for event in &answer.events {
                self.send(event)?;
            }
            let newest = answer.events.iter().filter_map(|event| event.kv.as_ref()).map(|kv| kv.mod_revision);
            match newest.max() {
                Some(newest) => self.next = newest + 1,
                // News of progress: nothing up to this revision is still to come.
                None if !answer.created => {
                    self.next = self.next.max(answer.header.map_or(0, |header| header.revision) + 1);
                }
                None => {}
            }
        }
        Ok(())
    }

    fn send(&self, event: &Event) -> Result<(), Ended> {
        let Some(kv) = event.kv.as_ref().filter(|kv| kv.mod_revision >= self.next) else { return Ok(()) };
        let value = match event.r#type() {
            EventType::Put => Some(kv.value.clone()),
            EventType::Delete => None,
        };
        let revision = revision(kv.mod_revision).map_err(|_| Ended)?;
        let event = WatchEvent { key: self.keys.row_key(&kv.key), value, revision };
        self.events.try_send(event).map_err(|_| Ended)
    }
}
