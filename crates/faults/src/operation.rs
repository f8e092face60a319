//! What clients ask: operations, and how their answers are put into the history.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use striate_client::{
    Client, ClientError, CompleteUpload, CompletedPart, CopyRequest, CreateUpload, ExpectedDigests,
    ListRequest, ObjectAttributes, ObjectInfo, PutBody, PutRequest, ReadOrder, ReadRange, UploadPartRequest,
    WriteCondition,
};
use striate_history::{Call, Condition, Outcome, Seen, Value};
use striate_meta::MetaError;

use super::reading::{Judged, get, read_many};

/// The bucket of all objects.
pub const BUCKET: &str = "faults";
/// Keys of one page of a listing.
const PAGE: usize = 7;

/// Kinds of operations, as rows of the table of what was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A put where the client knows of no object.
    Put,
    /// A put over an object.
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
    /// The beginning of an upload.
    CreateUpload,
    /// A part.
    UploadPart,
    /// The end of an upload.
    CompleteUpload,
    /// The other end of an upload.
    AbortUpload,
    /// A copy.
    Copy,
    /// An operator's verification and repair of all endangered stripes.
    Heal,
    /// A step of the repair service.
    Repair,
    /// A step of the scrub.
    Scrub,
    /// A step of a move, whatever it is for.
    Move,
    /// A chunk is taken off a site that is being emptied.
    Drain,
    /// A chunk is taken off a site that is fuller than others.
    Rebalance,
    /// A chunk is taken to a site that is asked for its neighbours.
    Optimise,
    /// A step of the collectors.
    Collect,
    /// A step of the packing service.
    Pack,
    /// A step of sealing what is packed and cold.
    Seal,
}

impl Kind {
    /// All, in the order of the table.
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

    /// Its name in the table.
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

/// One operation, with all that it needs.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Puts a value.
    Put {
        /// Where.
        key: String,
        /// What.
        value: Value,
        /// On what condition.
        condition: Condition,
        /// Its row of the table.
        kind: Kind,
    },
    /// Reads an object or a range of it.
    Get {
        /// Which.
        key: String,
        /// Which part.
        range: ReadRange,
    },
    /// Reads many objects and ranges in one request.
    ReadMany {
        /// Which, and which parts; a key may come more than once.
        items: Vec<(String, ReadRange)>,
        /// In which order they are answered.
        order: ReadOrder,
    },
    /// Deletes an object.
    Delete {
        /// Which.
        key: String,
        /// On what condition.
        condition: Condition,
    },
    /// Lists a page.
    List {
        /// Of keys that begin with this,
        prefix: String,
        /// and come after this one.
        after: String,
    },
    /// Begins an upload.
    CreateUpload {
        /// Where the object will be.
        key: String,
    },
    /// Uploads a part.
    UploadPart {
        /// Of which upload.
        upload: Upload,
        /// Its number.
        number: u32,
        /// Its bytes.
        bytes: Bytes,
    },
    /// Makes parts of an upload an object.
    CompleteUpload {
        /// Which.
        upload: Upload,
        /// On what condition.
        condition: Condition,
    },
    /// Aborts an upload.
    AbortUpload {
        /// Which.
        upload: Upload,
    },
    /// Copies an object.
    Copy {
        /// Which.
        from: String,
        /// Where to.
        to: String,
        /// On what condition.
        condition: Condition,
    },
}

/// An upload that has begun.
#[derive(Clone, Debug, PartialEq)]
pub struct Upload {
    /// Its key.
    pub key: String,
    /// Its id, as the store gave it.
    pub id: String,
    /// What the object will be.
    pub value: Value,
    /// Where its parts end in the value; their numbers count from 1.
    pub ends: Vec<u64>,
    /// ETags of the parts that were stored.
    pub etags: Vec<Option<String>>,
}

/// How an operation ended.
#[derive(Clone, Debug)]
pub struct Answer {
    /// For the history: one for each of [`Operation::calls`].
    pub outcomes: Vec<Outcome>,
    /// What it made.
    pub made: Made,
    /// Why it failed, if so.
    pub error: Option<String>,
    /// An invariant that it found broken.
    pub broken: Option<String>,
}

impl Answer {
    /// Of a read, by its items.
    pub fn of_items(items: Vec<Judged>) -> Self {
        let mut answer = Self { outcomes: Vec::new(), made: Made::Nothing, error: None, broken: None };
        for Judged { outcome, error, broken } in items {
            answer.outcomes.push(outcome);
            answer.error = answer.error.or(error);
            answer.broken = answer.broken.or(broken);
        }
        answer
    }
}

/// What an operation made beside objects.
#[derive(Clone, Debug, PartialEq)]
pub enum Made {
    /// Nothing.
    Nothing,
    /// An upload with this id.
    Upload(String),
    /// A part with this ETag.
    Part(String),
}

impl Operation {
    /// Its row of the table.
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

    /// What it is in the history: each item of a batch is a read of its own, and steps of an upload that nobody sees
    /// are nothing.
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

    /// Asks it of a client.
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
                made(client.create_upload(request).await.map(|upload| Made::Upload(upload.id)))
            }
            Self::UploadPart { upload, number, bytes } => {
                made(client.upload_part(part(upload, number, bytes)).await.map(|part| Made::Part(part.etag)))
            }
            Self::CompleteUpload { upload, condition } => written(
                client.complete_upload(complete(upload, &condition)).await.map(|info| Some(info.etag)),
            ),
            Self::AbortUpload { upload } => {
                made(client.abort_upload(BUCKET, &upload.key, &upload.id).await.map(|()| Made::Nothing))
            }
            Self::Copy { from, to, condition } => {
                let copied = client.copy(copy(from, to, &condition)).await;
                written(copied.map(|info: ObjectInfo| Some(info.etag)))
            }
        }
    }
}

/// How long an operation may take at most (I12): all deadlines and retries together, with much to spare.
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
        Condition::IfNoneMatch => WriteCondition { if_absent: true, if_match: None },
        Condition::IfMatch(etag) => WriteCondition { if_absent: false, if_match: Some(vec![etag.clone()]) },
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
    Answer { outcomes: vec![outcome], made: Made::Nothing, error, broken: None }
}

fn made(result: Result<Made, ClientError>) -> Answer {
    let error = result.as_ref().err().map(ToString::to_string);
    Answer { outcomes: Vec::new(), made: result.unwrap_or(Made::Nothing), error, broken: None }
}

async fn list(client: &Client, prefix: String, after: String) -> Answer {
    let request =
        ListRequest { bucket: BUCKET.to_owned(), prefix, after, max_keys: PAGE, ..ListRequest::default() };
    let result = client.list(request).await;
    let error = result.as_ref().err().map(ToString::to_string);
    let outcome = result.map_or(Outcome::NotApplied, |page| Outcome::Listed {
        entries: page.objects.into_iter().map(|info| (info.key, Seen::etag(info.etag, info.size))).collect(),
        through: page.next,
    });
    Answer { outcomes: vec![outcome], made: Made::Nothing, error, broken: None }
}

struct OneFrame(Option<Bytes>);

#[async_trait]
impl PutBody for OneFrame {
    async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        self.0.take().map(Ok)
    }
}
