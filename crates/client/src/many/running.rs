//! Running work of a read of many objects: one task each, cancelled on drop.

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use striate_stripe::{BlocksRead, Span};
use tokio::sync::mpsc::{self, Sender};
use tracing::Instrument;

use super::look_up::{Entry, SingleRead, Step};
use super::{Limits, ObjectHead, ObjectPart, Query, ReadOrder};
use crate::condition::check_read;
use crate::get::{Budget, ends_early, span_of};
use crate::task::Task;
use crate::{ClientError, GetObject, GetRequest};

/// Result of a piece of running work.
pub(super) enum Event {
    /// Rows were looked up.
    LookedUp(Vec<Step>),
    /// The blocks of a group were read, or one of them cannot be.
    Group(Vec<Entry>, Result<BlocksRead, ClientError>),
    /// The next part of an object that is read alone.
    Part { position: usize, weight: u64, result: Result<ObjectPart, ClientError> },
}

/// Looks up a window of requests.
pub(super) fn look_up(
    query: &Query,
    requests: Vec<(usize, GetRequest)>,
    order: ReadOrder,
    limits: Limits,
) -> BoxStream<'static, Event> {
    let positions: Vec<usize> = requests.iter().map(|(position, _)| *position).collect();
    let client = query.client.clone();
    let task = query.spawn(async move { Ok(client.look_up(requests, order, limits).await) });
    let looked_up = async move {
        let steps = task.await;
        // A task that was stopped has answered no request.
        let steps = steps.unwrap_or_else(|error| vec![Step::failed(&positions, &error)]);
        Event::LookedUp(steps)
    };
    stream::once(looked_up).boxed()
}

/// Reads the blocks of a group.
pub(super) fn group(query: &Query, entries: Vec<Entry>) -> BoxStream<'static, Event> {
    let spans: Vec<Span> = entries.iter().flat_map(Entry::spans).cloned().collect();
    if let Some(sample) = &query.sample {
        entries.iter().for_each(|entry| entry.note(sample));
    }
    let client = query.client.clone();
    let task = query.spawn(async move { client.read_noted_spans(&spans).await });
    stream::once(async move { Event::Group(entries, task.await) }).boxed()
}

/// Reads one object or range.
pub(super) fn alone(query: &Query, alone: SingleRead, limits: Limits) -> BoxStream<'static, Event> {
    let (position, weight) = (alone.position, alone.weight);
    let (sender, parts) = mpsc::channel(1);
    let of_task = query.clone();
    let task = query.spawn(async move {
        let budget = if limits.is_narrow { Budget::Narrow } else { Budget::BlockByBlock };
        send_parts(of_task, alone, budget, sender).await;
        Ok(())
    });
    let next = move |state: Option<(mpsc::Receiver<_>, Task<()>)>| async move {
        let (mut parts, task) = state?;
        let result: Result<ObjectPart, ClientError> = match parts.recv().await {
            Some(result) => result,
            // The task ended before its last part: it panicked, or was stopped.
            None => return Some((Err(task.await.err().unwrap_or(ClientError::Busy)), None)),
        };
        let goes_on = result.as_ref().is_ok_and(|part| !part.is_last);
        Some((result, goes_on.then_some((parts, task))))
    };
    let parts = stream::unfold(Some((parts, task)), next);
    parts.map(move |result| Event::Part { position, weight, result }).boxed()
}

/// Sends an object's parts, each once the one before it was taken, so that what is read and not yet taken counts
/// against the byte budget.
async fn send_parts(
    query: Query,
    alone: SingleRead,
    budget: Budget,
    parts: Sender<Result<ObjectPart, ClientError>>,
) {
    let GetObject { info, range, mut body, .. } = match query.open_alone(alone, budget).await {
        Ok(object) => object,
        // A send error means that there is no receiver any more, here and below.
        Err(error) => return parts.send(Err(error)).await.unwrap_or_default(),
    };
    let mut left = range.end - range.start;
    let mut head = Some(Box::new(ObjectHead { info, range }));
    loop {
        let Ok(room) = parts.reserve().await else { return };
        let piece = match body.next().await.transpose() {
            Ok(None) if left > 0 => Err(ends_early(left)),
            piece => piece,
        };
        let piece = match piece {
            Ok(piece) => piece,
            Err(error) => return room.send(Err(error)),
        };
        left = left.saturating_sub(piece.as_ref().map_or(0, Bytes::len) as u64);
        let is_last = left == 0;
        room.send(Ok(ObjectPart { head: head.take(), pieces: piece.into_iter().collect(), is_last }));
        if is_last {
            // The last piece counts until it is taken.
            return parts.reserve().await.map(drop).unwrap_or_default();
        }
    }
}

impl Query {
    /// Opens an object as a get does, without reading ahead: others of the same receiver are read meanwhile.
    async fn open_alone(&self, alone: SingleRead, budget: Budget) -> Result<GetObject, ClientError> {
        let SingleRead { request, row, .. } = alone;
        let Self { client, sample, .. } = self;
        let (span, sample) = (span_of(&request), sample.clone());
        match row {
            Some(row) => {
                let object = client.get_from(row, request, budget, sample, check_read);
                object.instrument(span).await
            }
            None => client.get_with(request, budget, sample, check_read).instrument(span).await,
        }
    }
}
