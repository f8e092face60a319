//! Many puts in one call.
//!
//! The rows of all keys are looked up together, in windows. Then each put runs as [`Client::put`] does: up to
//! [`PUTS_AT_ONCE`] at the same time, every block with its own share of the byte budget. The metadata engine may
//! group commits that wait at the same time into one write.
//!
//! Puts begin in the order of the requests, so that their bodies may arrive one after the other from one connection:
//! a body that waits for those before it holds no memory, and those before it have begun.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use striate_meta::records::Bucket;
use striate_meta::{Row, keys};
use tokio::sync::Semaphore;
use tracing::{Instrument, debug_span};

use crate::commit::KeyState;
use crate::record::check_key;
use crate::task::Task;
use crate::{Client, ClientError, ObjectInfo, PutRequest};

/// Number of keys whose rows are looked up together.
const LOOKED_UP_AT_ONCE: usize = 128;
/// Maximum number of concurrent puts of one call.
const PUTS_AT_ONCE: usize = 64;

impl Client {
    /// Stores many objects, each as [`Client::put`] does; one that fails does not fail the others. Returns the
    /// results in the order of the requests when all have ended.
    ///
    /// Bodies are requested in the order of the requests, several at a time.
    pub async fn put_many(&self, requests: Vec<PutRequest>) -> Vec<Result<ObjectInfo, ClientError>> {
        let span = debug_span!("put_many", requests = requests.len() as i64);
        let mut requests = requests.into_iter();
        let (room, mut puts) = (Arc::new(Semaphore::new(PUTS_AT_ONCE)), Vec::new());
        loop {
            let window: Vec<PutRequest> = requests.by_ref().take(LOOKED_UP_AT_ONCE).collect();
            if window.is_empty() {
                break;
            }
            let row_keys = rows_of(&window);
            let rows = self.inner.meta.get_many(&row_keys).instrument(span.clone()).await;
            // Without rows each put looks them up itself, and reports the error.
            let mut states = states_of(&window, rows.unwrap_or_default());
            let depends = window.iter().map(|request| request.condition.is_any()).collect();
            self.mark_gone(depends, &mut states).await;
            for (request, state) in window.into_iter().zip(states) {
                let permit = Arc::clone(&room).acquire_owned().await.expect("the semaphore is never closed");
                let client = self.clone();
                let put = async move {
                    let _permit = permit;
                    check_key(&request.key)?;
                    match state {
                        Some(current) => client.put_over(current, request).await,
                        None => client.put(request).await,
                    }
                };
                puts.push(Task::spawn(&self.inner.runtime, put.instrument(span.clone())));
            }
        }
        let mut outcomes = Vec::with_capacity(puts.len());
        for put in puts {
            outcomes.push(put.await);
        }
        outcomes
    }

    /// Asks the memory sites for all objects in memory only on which a put `depends`. If that fails, each put asks
    /// for itself.
    async fn mark_gone(&self, depends: Vec<bool>, states: &mut [Option<KeyState>]) {
        let depending = states.iter_mut().zip(depends).filter(|(_, depends)| *depends);
        let exists =
            |state: &Option<KeyState>| state.as_ref().is_some_and(|current| current.object.is_some());
        let mut depending: Vec<&mut Option<KeyState>> =
            depending.map(|(state, _)| state).filter(|state| exists(state)).collect();
        let objects = depending.iter().filter_map(|state| state.as_ref()?.object.as_ref());
        let gone = self.are_gone(&objects.collect::<Vec<_>>()).await;
        for (position, state) in depending.iter_mut().enumerate() {
            match (&gone, &mut **state) {
                (Ok(gone), Some(current)) => current.is_gone = gone[position],
                _ => **state = None,
            }
        }
    }
}

/// Returns the keys of the requests' bucket rows, then those of their object rows.
fn rows_of(requests: &[PutRequest]) -> Vec<Bytes> {
    let objects = requests.iter().filter(|request| check_key(&request.key).is_ok());
    let objects = objects.map(|request| keys::object(&request.bucket, &request.key));
    buckets_of(requests).into_iter().map(keys::bucket).chain(objects).collect()
}

/// Returns the buckets of the requests in order, without consecutive repetitions.
fn buckets_of(requests: &[PutRequest]) -> Vec<&str> {
    let mut buckets: Vec<&str> = requests.iter().map(|request| &*request.bucket).collect();
    buckets.dedup();
    buckets
}

/// Returns the state of each request's key from the rows of [`rows_of`]; `None` if the put must look it up itself.
fn states_of(requests: &[PutRequest], rows: Vec<Option<Row>>) -> Vec<Option<KeyState>> {
    let mut rows = rows.into_iter();
    let buckets: HashMap<&str, Option<Row>> =
        buckets_of(requests).into_iter().map(|bucket| (bucket, rows.next().flatten())).collect();
    let mut state = |request: &PutRequest| {
        check_key(&request.key).ok()?;
        let row = rows.next()?;
        let bucket_row = buckets.get(&*request.bucket)?.clone()?;
        // If the bucket has got an origin meanwhile, the put that looks it up refuses it.
        let is_here = |bucket: &Bucket| !bucket.deleting && bucket.origin.is_none();
        let bucket: Bucket = bucket_row.record().ok().filter(is_here)?;
        let object = row.as_ref().map(Row::record).transpose().ok()?;
        Some(KeyState { bucket, bucket_row, row, object, is_gone: false })
    };
    requests.iter().map(&mut state).collect()
}
