//! An operation as S3 requests: sent once, timed by the caller, and checked.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use http::{Method, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::SmallRng;
use striate_workload::{Kind, Operation, Workload};

use super::contents::Contents;
use crate::s3_endpoint::{Call, Refusal, S3Endpoint, SendError};

/// Maximum number of bytes read of an error's body.
const MAX_REFUSAL_BYTES: usize = 64 << 10;

/// The target of requests, and how to send them.
#[derive(Clone)]
pub struct Target {
    /// Endpoint of the store.
    pub endpoint: S3Endpoint,
    /// Bucket of the objects.
    pub bucket: String,
    /// Prefix of all keys.
    pub prefix: String,
    /// Contents of the objects.
    pub contents: Contents,
    /// Whether reads are compared with the contents.
    pub verifies: bool,
    /// Bytes that a read asks for, at a random offset; `None` for the whole object.
    pub range: Option<u64>,
    /// Whether signatures cover bodies.
    pub signs_bodies: bool,
    /// Timeout of a request.
    pub timeout: Duration,
}

/// The workload, shared by all that draw from it.
pub type SharedWorkload = Arc<Mutex<Box<dyn Workload>>>;

/// An operation with its keys and sizes.
#[derive(Debug, PartialEq)]
pub struct Request {
    /// Kind of the operation.
    pub kind: Kind,
    /// Object that the operation inserts, which is reported to the workload.
    pub inserted: Option<u64>,
    /// Objects to read first.
    reads: Vec<Read>,
    /// Change to make then.
    change: Option<Change>,
}

/// A read of one object.
#[derive(Debug, PartialEq)]
struct Read {
    object: u64,
    key: String,
    /// Bytes to read; `None` for the whole object.
    range: Option<Range<u64>>,
}

/// A change of one object.
#[derive(Debug, PartialEq)]
enum Change {
    Write { key: String, size: u64 },
    Delete { key: String },
}

/// The objects and bytes that a successful operation moved.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TransferSize {
    /// Number of objects that were read, written or deleted.
    pub objects: u64,
    /// Bytes of these objects.
    pub bytes: u64,
}

/// Why an operation failed.
#[derive(Debug, PartialEq)]
pub struct Problem {
    /// Kind by which the failure is counted.
    pub kind: String,
    /// Complete message.
    pub message: String,
}

impl Problem {
    fn new(kind: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind: kind.into(), message: message.into() }
    }
}

impl Request {
    /// Determines the operation's current keys and sizes. Reads ask for `range_len` bytes, if given, at an offset that
    /// `rng` draws; shorter objects are read completely.
    pub fn new(
        operation: &Operation,
        workload: &dyn Workload,
        range_len: Option<u64>,
        rng: &mut SmallRng,
    ) -> Self {
        let mut read = |object| {
            let size = workload.size(object);
            let range = range_len.filter(|len| *len < size).map(|len| {
                let first = rng.random_range(0..=size - len);
                first..first + len
            });
            Read { object, key: workload.key(object), range }
        };
        let write = |object| Some(Change::Write { key: workload.key(object), size: workload.size(object) });
        let (reads, change) = match operation {
            Operation::Read(objects) => (objects.iter().map(read).collect(), None),
            Operation::Update(object) | Operation::Insert(object) => (Vec::new(), write(*object)),
            Operation::ReadModifyWrite(object) => (vec![read(*object)], write(*object)),
            Operation::Delete(object) => (Vec::new(), Some(Change::Delete { key: workload.key(*object) })),
        };
        let inserted = match operation {
            Operation::Insert(object) => Some(*object),
            _ => None,
        };
        Self { kind: operation.kind(), inserted, reads, change }
    }
}

impl Target {
    /// Performs the operation: all reads at once, then the change.
    ///
    /// # Errors
    /// At the first failure.
    pub async fn perform(
        &self,
        request: &Request,
        workload: &SharedWorkload,
    ) -> Result<TransferSize, Problem> {
        let reads = request.reads.iter().map(|read| self.read(read, workload));
        let read: u64 = try_join_all(reads).await?.into_iter().sum();
        let mut moved = TransferSize { objects: request.reads.len() as u64, bytes: read };
        match &request.change {
            None => return Ok(moved),
            Some(Change::Write { key, size }) => {
                let body = self.contents.body(key, *size);
                self.within(key, self.send(Method::PUT, key, Vec::new(), body)).await?;
                moved.bytes += size;
            }
            Some(Change::Delete { key }) => {
                self.within(key, self.send(Method::DELETE, key, Vec::new(), bytes::Bytes::new())).await?;
            }
        }
        moved.objects += 1;
        Ok(moved)
    }

    /// Reads an object or a range of it; returns the number of bytes received.
    async fn read(&self, read: &Read, workload: &SharedWorkload) -> Result<u64, Problem> {
        let Read { object, key, range } = read;
        let len = self.within(key, self.receive(key, range.as_ref())).await?;
        let workload = workload.lock();
        let (is_right, expected) = match range {
            Some(range) => (len == range.end - range.start, range.end - range.start),
            None => (workload.may_have_size(*object, len), workload.size(*object)),
        };
        if is_right {
            return Ok(len);
        }
        let reason = format!(
            "{}: {len} bytes came, {expected} were expected; was it loaded with other options? --load writes it again",
            self.describe(key),
        );
        Err(Problem::new("wrong size", reason))
    }

    async fn receive(&self, key: &str, range: Option<&Range<u64>>) -> Result<u64, Problem> {
        let header = |range: &Range<u64>| ("range", format!("bytes={}-{}", range.start, range.end - 1));
        let headers = range.map(header).into_iter().collect();
        let mut body = self.send(Method::GET, key, headers, bytes::Bytes::new()).await?.into_body();
        let first = range.map_or(0, |range| range.start);
        let mut check = self.contents.check(key, first);
        let mut len = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                Problem::new("broken off", format!("{}: the answer broke off: {error}", self.describe(key)))
            })?;
            let Some(bytes) = frame.data_ref() else { continue };
            len += bytes.len() as u64;
            if self.verifies
                && let Err(at) = check.next(bytes)
            {
                let reason = format!(
                    "{}: the bytes from {at} on differ from what was written; was it loaded with another --seed?",
                    self.describe(key)
                );
                return Err(Problem::new("wrong contents", reason));
            }
        }
        Ok(len)
    }

    /// Sends a request and returns the answer, unless the store refuses.
    async fn send(
        &self,
        method: Method,
        key: &str,
        headers: Vec<(&'static str, String)>,
        body: bytes::Bytes,
    ) -> Result<Response<Incoming>, Problem> {
        let key = format!("{}{key}", self.prefix);
        let unsigned_body = !self.signs_bodies && !body.is_empty();
        let bucket = &self.bucket;
        let call = Call { method, bucket, key: &key, headers, body, unsigned_body, ..Call::default() };
        let answer = self.endpoint.send(&call).await.map_err(|error| {
            let kind = match &error {
                SendError::Malformed(_) => "malformed",
                SendError::Unreachable { .. } => "unreachable",
            };
            Problem::new(kind, error.to_string())
        })?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let body = http_body_util::Limited::new(answer.into_body(), MAX_REFUSAL_BYTES).collect().await;
        let refusal = Refusal::new(status, &body.map(|body| body.to_bytes()).unwrap_or_default());
        let kind = match refusal.code.as_str() {
            "" => format!("HTTP {}", status.as_u16()),
            code => code.to_owned(),
        };
        let way_out = if refusal.code == "NoSuchKey" { "; --load writes the objects first" } else { "" };
        Err(Problem::new(kind, format!("{}{way_out}", refusal.describe(&call))))
    }

    async fn within<T>(
        &self,
        key: &str,
        request: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        self.endpoint.runtime().timeout(self.timeout, request).await.unwrap_or_else(|_| {
            let reason = format!(
                "{}: no whole answer within {:?}; --timeout allows more",
                self.describe(key),
                self.timeout
            );
            Err(Problem::new("timeout", reason))
        })
    }

    fn describe(&self, key: &str) -> String {
        format!("s3://{}/{}{key}", self.bucket, self.prefix)
    }
}
