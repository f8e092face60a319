//! The operations of clients, and how their results enter the history.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use striate_client::{
    Client, ClientError, CompleteUpload, CompletedPart, CopyRequest, CreateUpload, ExpectedDigests,
    ListRequest, ObjectAttributes, ObjectInfo, PutBody, PutRequest, ReadOrder, ReadRange, UploadPartRequest,
    WriteCondition,
};
use striate_history::{Call, Condition, ObservedObject, Outcome, Value};
use striate_meta::MetaError;

use super::reading::{JudgedRead, get, read_many};

/// Bucket of all objects.
pub const BUCKET: &str = "faults";
/// Keys per page of a listing.
const PAGE: usize = 7;

/// Kinds of operations, as rows of the coverage table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A put of a key at which the client knows of no object.
    Put,
    /// A put that replaces an object.
    Overwrite,
    /// A put with a condition.
    ConditionalPut,
    /// A read of a whole object.
    Get,
    /// A read of a range.
    RangedGet,
    /// A read of many objects and ranges in one request.
    BatchGet,
    /// A delete, some with a condition.
    Delete,
    /// One page of a listing.
    List,
    /// Creation of an upload.
    CreateUpload,
    /// Upload of a part.
    UploadPart,
    /// Completion of an upload.
    CompleteUpload,
    /// Abortion of an upload.
    AbortUpload,
    /// A copy.
    Copy,
    /// An operator's verification and repair of all endangered stripes.
    Heal,
    /// A step of the repair service.
    Repair,
    /// A step of the scrub.
    Scrub,
    /// A step of a move, whatever its purpose.
    Move,
    /// A chunk leaves a draining site.
    Drain,
    /// A chunk leaves a site that is fuller than others.
    Rebalance,
    /// A chunk moves to a site that is asked for its neighbours.
    Optimise,
    /// A step of the collectors.
    Collect,
    /// A step of the packing service.
    Pack,
    /// A step of sealing cold packed data.
    Seal,
}

impl Kind {
    /// All kinds, in the order of the table.
    pub const ALL: [Self; 23] = [
        Self::Put,
        Self::Overwrite,
        Self::ConditionalPut,
        Self::Get,
        Self::RangedGet,
        Self::BatchGet,
        Self::Delete,
        Self::List,
        Self::CreateUpload,
        Self::UploadPart,
        Self::CompleteUpload,
        Self::AbortUpload,
        Self::Copy,
        Self::Heal,
        Self::Repair,
        Self::Scrub,
        Self::Move,
        Self::Drain,
        Self::Rebalance,
        Self::Optimise,
        Self::Collect,
        Self::Pack,
        Self::Seal,
    ];

    /// Returns the kind's name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Overwrite => "overwrite",
            Self::ConditionalPut => "cond. put",
            Self::Get => "get",
            Self::RangedGet => "range get",
            Self::BatchGet => "batch get",
            Self::Delete => "delete",
            Self::List => "list",
            Self::CreateUpload => "create upl.",
            Self::UploadPart => "part",
            Self::CompleteUpload => "complete",
            Self::AbortUpload => "abort",
            Self::Copy => "copy",
            Self::Heal => "heal",
            Self::Repair => "repair",
            Self::Scrub => "scrub",
            Self::Move => "move",
            Self::Drain => "drain",
            Self::Rebalance => "rebalance",
            Self::Optimise => "optimise",
            Self::Collect => "collect",
            Self::Pack => "pack",
            Self::Seal => "seal",
        }
    }
}

/// One operation with its arguments.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Puts a value.
    Put {
        /// Key of the object.
        key: String,
        /// Value to write.
        value: Value,
        /// Condition of the write.
        condition: Condition,
        /// Kind in the coverage table.
        kind: Kind,
    },
    /// Reads an object or a range of it.
    Get {
        /// Key of the object.
        key: String,
        /// Range to read.
        range: ReadRange,
    },
    /// Reads many objects and ranges in one request.
    ReadMany {
        /// Keys and ranges; a key may occur more than once.
        items: Vec<(String, ReadRange)>,
        /// Order of the results.
        order: ReadOrder,
    },
    /// Deletes an object.
    Delete {
        /// Key of the object.
        key: String,
        /// Condition of the delete.
        condition: Condition,
    },
    /// Lists a page.
    List {
        /// Prefix of the listed keys.
        prefix: String,
        /// Listed keys come after this one.
        after: String,
    },
    /// Begins an upload.
    CreateUpload {
        /// Key of the future object.
        key: String,
    },
    /// Uploads a part.
    UploadPart {
        /// The upload.
        upload: Upload,
        /// Part number.
        number: u32,
        /// Bytes of the part.
        bytes: Bytes,
    },
    /// Completes an upload from its parts.
    CompleteUpload {
        /// The upload.
        upload: Upload,
        /// Condition of the write.
        condition: Condition,
    },
    /// Aborts an upload.
    AbortUpload {
        /// The upload.
        upload: Upload,
    },
    /// Copies an object.
    Copy {
        /// Key of the source.
        from: String,
        /// Key of the copy.
        to: String,
        /// Condition of the write.
        condition: Condition,
    },
}

/// An upload in progress.
#[derive(Clone, Debug, PartialEq)]
pub struct Upload {
    /// Key of the future object.
    pub key: String,
    /// Upload id from the store.
    pub id: String,
    /// Value of the completed object.
    pub value: Value,
    /// End offset of each part in the value; part numbers start at 1.
    pub ends: Vec<u64>,
    /// ETags of the stored parts.
    pub etags: Vec<Option<String>>,
}

/// Result of an operation.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Outcomes for the history, one for each of [`Operation::calls`].
    pub outcomes: Vec<Outcome>,
    /// What the operation created besides objects.
    pub created: MultipartResult,
    /// Error of a failed operation.
    pub error: Option<String>,
    /// Description of a broken invariant, if the operation found one.
    pub broken: Option<String>,
}

impl Answer {
    /// Creates the answer of a read from its items.
    pub fn of_items(items: Vec<JudgedRead>) -> Self {
        let mut answer =
            Self { outcomes: Vec::new(), created: MultipartResult::Nothing, error: None, broken: None };
        for JudgedRead { outcome, error, broken } in items {
            answer.outcomes.push(outcome);
            answer.error = answer.error.or(error);
            answer.broken = answer.broken.or(broken);
        }
        answer
    }
}

/// What an operation created besides objects.
#[derive(Clone, Debug, PartialEq)]
pub enum MultipartResult {
    /// Nothing.
    Nothing,
    /// An upload with this id.
    Upload(String),
    /// A part with this ETag.
    Part(String),
}

impl Operation {
    /// Returns the operation's kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Put { kind, .. } => *kind,
            Self::Get { range: ReadRange::Whole, .. } => Kind::Get,
            Self::Get { .. } => Kind::RangedGet,
            Self::ReadMany { .. } => Kind::BatchGet,
            Self::Delete { .. } => Kind::Delete,
            Self::List { .. } => Kind::List,
            Self::CreateUpload { .. } => Kind::CreateUpload,
            Self::UploadPart { .. } => Kind::UploadPart,
            Self::CompleteUpload { .. } => Kind::CompleteUpload,
            Self::AbortUpload { .. } => Kind::AbortUpload,
            Self::Copy { .. } => Kind::Copy,
        }
    }

    /// Returns the operation's calls in the history. Each item of a batch is a separate read; upload steps with no
    /// visible effect are no calls.
    pub fn calls(&self) -> Vec<Call> {
        vec![match self.clone() {
            Self::Put { key, value, condition, .. } => Call::Put { key, version: value.into(), condition },
            Self::Get { key, .. } => Call::Get { key },
            Self::ReadMany { items, .. } => {
                return items.into_iter().map(|(key, _)| Call::Get { key }).collect();
            }
            Self::Delete { key, condition } => Call::Delete { key, condition },
            Self::List { prefix, after } => Call::List { prefix, after },
            Self::CompleteUpload { upload, condition } => {
                Call::CompleteMultipart { key: upload.key, version: upload.value.into(), condition }
            }
            Self::Copy { from, to, condition } => Call::Copy { from, to, condition },
            Self::CreateUpload { .. } | Self::UploadPart { .. } | Self::AbortUpload { .. } => {
                return Vec::new();
            }
        }]
    }

    /// Runs the operation on a client.
    pub async fn run(self, client: &Client) -> Answer {
        match self {
            Self::Put { key, value, condition, .. } => {
                written(client.put(put(key, value, &condition)).await.map(|info| Some(info.etag)))
            }
            Self::Get { key, range } => get(client, key, range).await,
            Self::ReadMany { items, order } => read_many(client, items, order).await,
            Self::Delete { key, condition } => {
                written(client.delete(BUCKET, &key, write_condition(&condition)).await.map(|_| None))
            }
            Self::List { prefix, after } => list(client, prefix, after).await,
            Self::CreateUpload { key } => {
                let request = CreateUpload { bucket: BUCKET.to_owned(), key, ..CreateUpload::default() };
                created(client.create_upload(request).await.map(|upload| MultipartResult::Upload(upload.id)))
            }
            Self::UploadPart { upload, number, bytes } => created(
                client
                    .upload_part(part(upload, number, bytes))
                    .await
                    .map(|part| MultipartResult::Part(part.etag)),
            ),
            Self::CompleteUpload { upload, condition } => written(
                client.complete_upload(complete(upload, &condition)).await.map(|info| Some(info.etag)),
            ),
            Self::AbortUpload { upload } => created(
                client.abort_upload(BUCKET, &upload.key, &upload.id).await.map(|()| MultipartResult::Nothing),
            ),
            Self::Copy { from, to, condition } => {
                let copied = client.copy(copy(from, to, &condition)).await;
                written(copied.map(|info: ObjectInfo| Some(info.etag)))
            }
        }
    }
}

/// Maximum duration of an operation (I12): all deadlines and retries together, with a large margin.
pub const LONGEST: Duration = Duration::from_secs(300);

fn put(key: String, value: Value, condition: &Condition) -> PutRequest {
    PutRequest {
        bucket: BUCKET.to_owned(),
        key,
        attributes: ObjectAttributes::default(),
        condition: write_condition(condition),
        profile: None,
        content_len: value.id.is_multiple_of(2).then_some(value.len),
        digests: ExpectedDigests::default(),
        body: Box::new(OneFrame(Some(value.bytes()))),
    }
}

fn part(upload: Upload, number: u32, bytes: Bytes) -> UploadPartRequest {
    UploadPartRequest {
        bucket: BUCKET.to_owned(),
        key: upload.key,
        upload: upload.id,
        number,
        content_len: Some(bytes.len() as u64),
        digests: ExpectedDigests::default(),
        body: Box::new(OneFrame(Some(bytes))),
    }
}

fn complete(upload: Upload, condition: &Condition) -> CompleteUpload {
    let parts = (1..).zip(upload.etags.into_iter().flatten());
    let parts = parts.map(|(number, etag)| CompletedPart { number, etag, checksums: Vec::new() });
    CompleteUpload {
        bucket: BUCKET.to_owned(),
        key: upload.key,
        upload: upload.id,
        parts: parts.take(upload.ends.len()).collect(),
        condition: write_condition(condition),
        ..CompleteUpload::default()
    }
}

fn copy(from: String, to: String, condition: &Condition) -> CopyRequest {
    CopyRequest {
        source_bucket: BUCKET.to_owned(),
        source_key: from,
        bucket: BUCKET.to_owned(),
        key: to,
        condition: write_condition(condition),
        ..CopyRequest::default()
    }
}

fn write_condition(condition: &Condition) -> WriteCondition {
    match condition {
        Condition::None => WriteCondition::default(),
        Condition::IfNoneMatch => WriteCondition { if_absent: true, ..WriteCondition::default() },
        Condition::IfMatch(etag) => {
            WriteCondition { if_match: Some(vec![etag.clone()]), ..WriteCondition::default() }
        }
    }
}

fn written(result: Result<Option<String>, ClientError>) -> Answer {
    let error = result.as_ref().err().map(ToString::to_string);
    let outcome = match result {
        Ok(etag) => Outcome::Done { etag },
        Err(ClientError::PreconditionFailed(_)) => Outcome::PreconditionFailed,
        Err(ClientError::NoSuchKey(_)) => Outcome::NoSuchKey,
        Err(ClientError::Meta(MetaError::UnknownOutcome(_))) => Outcome::Unknown,
        Err(_) => Outcome::NotApplied,
    };
    Answer { outcomes: vec![outcome], created: MultipartResult::Nothing, error, broken: None }
}

fn created(result: Result<MultipartResult, ClientError>) -> Answer {
    let error = result.as_ref().err().map(ToString::to_string);
    Answer { outcomes: Vec::new(), created: result.unwrap_or(MultipartResult::Nothing), error, broken: None }
}

async fn list(client: &Client, prefix: String, after: String) -> Answer {
    let request =
        ListRequest { bucket: BUCKET.to_owned(), prefix, after, max_keys: PAGE, ..ListRequest::default() };
    let result = client.list(request).await;
    let error = result.as_ref().err().map(ToString::to_string);
    let outcome = result.map_or(Outcome::NotApplied, |page| Outcome::Listed {
        entries: page
            .objects
            .into_iter()
            .map(|info| (info.key, ObservedObject::etag(info.etag, info.size)))
            .collect(),
        through: page.next,
    });
    Answer { outcomes: vec![outcome], created: MultipartResult::Nothing, error, broken: None }
}

struct OneFrame(Option<Bytes>);

#[async_trait]
impl PutBody for OneFrame {
    async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        self.0.take().map(Ok)
    }
}
