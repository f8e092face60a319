//! Calls of clients, and their answers.

use std::fmt::{self, Display, Formatter};

use super::Value;

/// Names an operation of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(pub(super) usize);

/// The version that a write gives to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The object's bytes.
    pub value: Value,
    /// The ETag of the version, if the caller knows it before the answer.
    pub etag: Option<String>,
}

impl From<Value> for Version {
    fn from(value: Value) -> Self {
        Self { value, etag: None }
    }
}

/// A write's condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// No condition.
    #[default]
    None,
    /// `If-None-Match: *`: the key is absent.
    IfNoneMatch,
    /// `If-Match`: the key is present with this ETag.
    IfMatch(String),
}

/// A call of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Writes an object.
    Put {
        /// The key to write.
        key: String,
        /// The version to write.
        version: Version,
        /// The condition of the write.
        condition: Condition,
    },
    /// Combines the parts of an upload into an object. The parts themselves are not visible, and not part of a history.
    CompleteMultipart {
        /// The key to write.
        key: String,
        /// The version to write.
        version: Version,
        /// The condition of the write.
        condition: Condition,
    },
    /// Copies `from` to `to`. The two need not be one instant: it is a read of `from` and a write of `to`, both between
    /// the call and its answer.
    Copy {
        /// The key of the source.
        from: String,
        /// The key to write.
        to: String,
        /// The condition on `to`.
        condition: Condition,
    },
    /// Removes an object. With `If-Match` it also succeeds if no object exists.
    Delete {
        /// The key to remove.
        key: String,
        /// The condition of the removal.
        condition: Condition,
    },
    /// Reads all bytes or a range of them.
    Get {
        /// The key to read.
        key: String,
    },
    /// Reads the description.
    Head {
        /// The key to read.
        key: String,
    },
    /// Lists one page: for each key under the prefix, whether it is present. The keys' observations need not be of one
    /// instant. The pages of one listing are separate operations.
    List {
        /// Prefix of the listed keys.
        prefix: String,
        /// The listed keys come after this one; empty for all.
        after: String,
    },
}

/// What a read or listing shows of an object; `None` for anything that the answer does not contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedObject {
    /// The value, recognised by its bytes.
    pub value: Option<Value>,
    /// The ETag of the object.
    pub etag: Option<String>,
    /// The length of the object in bytes.
    pub len: Option<u64>,
}

impl ObservedObject {
    /// An answer that shows bytes.
    pub fn value(value: Value) -> Self {
        Self { value: Some(value), ..Self::default() }
    }

    /// An answer that shows an ETag and a length.
    pub fn etag(etag: impl Into<String>, len: u64) -> Self {
        Self { etag: Some(etag.into()), len: Some(len), value: None }
    }
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A write succeeded, with this ETag if the answer contains one.
    Done {
        /// The ETag of the written version.
        etag: Option<String>,
    },
    /// A get or head shows this; `None` if there is no object.
    Read(Option<ObservedObject>),
    /// A page of a listing.
    Listed {
        /// The listed keys in order, with what is shown of each.
        entries: Vec<(String, ObservedObject)>,
        /// The last key that the page covers; `None` for a listing's last page.
        through: Option<String>,
    },
    /// A write was refused because its condition did not hold.
    PreconditionFailed,
    /// A write with `If-Match` found no object, or a copy no source.
    NoSuchKey,
    /// The operation failed for certain: it must never become visible (I5).
    NotApplied,
    /// A write may take effect at any time after its call, or never. A call without an answer counts as this.
    Unknown,
}

/// A call with its answer. An instant is a pair of nanoseconds and order of recording.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) client: u32,
    pub(super) call: Call,
    pub(super) invoked: (u64, usize),
    pub(super) completed: Option<((u64, usize), Outcome)>,
}

/// Knowledge of a write's effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Took,
    MayTake,
    Never,
}

impl Operation {
    /// The answer; `Unknown` for an operation without one.
    pub(super) fn outcome(&self) -> &Outcome {
        self.completed.as_ref().map_or(&Outcome::Unknown, |(_, outcome)| outcome)
    }

    /// What the operation shows of a key, if it shows an object.
    pub(super) fn observed(&self, key: &str) -> Option<ObservedObject> {
        match self.outcome() {
            Outcome::Read(seen) => seen.clone(),
            Outcome::Listed { entries, .. } => {
                entries.iter().find(|(listed, _)| listed == key).map(|(_, seen)| seen.clone())
            }
            Outcome::Done { etag } => {
                Some(ObservedObject { etag: etag.clone(), ..ObservedObject::default() })
            }
            _ => None,
        }
    }

    /// Whether the operation's write took effect.
    pub(super) fn effect(&self) -> Effect {
        match self.outcome() {
            Outcome::Done { .. } => Effect::Took,
            Outcome::Unknown => Effect::MayTake,
            _ => Effect::Never,
        }
    }

    /// The version that a put or completion writes. Its ETag is the answer's, or else the call's.
    pub(super) fn version(&self) -> Option<(Value, Option<&str>)> {
        let (Call::Put { version, .. } | Call::CompleteMultipart { version, .. }) = &self.call else {
            return None;
        };
        let answered = match self.outcome() {
            Outcome::Done { etag } => etag.as_deref(),
            _ => None,
        };
        Some((version.value, answered.or(version.etag.as_deref())))
    }
}

impl Call {
    /// Whether a call of this kind can have this answer.
    pub(super) fn can_end_with(&self, outcome: &Outcome) -> bool {
        match self {
            Self::Get { .. } | Self::Head { .. } => {
                matches!(outcome, Outcome::Read(_) | Outcome::NotApplied | Outcome::Unknown)
            }
            Self::List { .. } => {
                matches!(outcome, Outcome::Listed { .. } | Outcome::NotApplied | Outcome::Unknown)
            }
            _ => !matches!(outcome, Outcome::Read(_) | Outcome::Listed { .. }),
        }
    }

    /// Whether the call reads, lists or writes the key.
    pub(super) fn touches(&self, key: &str) -> bool {
        match self {
            Self::Get { key: read } | Self::Head { key: read } => read == key,
            Self::List { prefix, after } => key.starts_with(prefix.as_str()) && key > after.as_str(),
            Self::Copy { from, .. } if from == key => true,
            call => call.written() == Some(key),
        }
    }

    /// The key that the call writes, if any.
    pub(super) fn written(&self) -> Option<&str> {
        match self {
            Self::Put { key, .. } | Self::CompleteMultipart { key, .. } | Self::Delete { key, .. } => {
                Some(key)
            }
            Self::Copy { to, .. } => Some(to),
            Self::Get { .. } | Self::Head { .. } | Self::List { .. } => None,
        }
    }
}

impl Display for Condition {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::IfNoneMatch => write!(f, " if absent"),
            Self::IfMatch(etag) => write!(f, " if ETag {etag}"),
        }
    }
}

impl Display for Version {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.etag {
            Some(etag) => write!(f, "{} ETag {etag}", self.value),
            None => write!(f, "{}", self.value),
        }
    }
}

impl Display for ObservedObject {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let parts = [
            self.value.map(|value| value.to_string()),
            self.etag.as_ref().map(|etag| format!("ETag {etag}")),
            self.len.filter(|_| self.value.is_none()).map(|len| format!("{len} bytes")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() { write!(f, "an object") } else { write!(f, "{}", parts.join(", ")) }
    }
}

impl Display for Call {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put { key, version, condition } => write!(f, "PUT {key:?} {version}{condition}"),
            Self::CompleteMultipart { key, version, condition } => {
                write!(f, "COMPLETE {key:?} {version}{condition}")
            }
            Self::Copy { from, to, condition } => write!(f, "COPY {from:?} to {to:?}{condition}"),
            Self::Delete { key, condition } => write!(f, "DELETE {key:?}{condition}"),
            Self::Get { key } => write!(f, "GET {key:?}"),
            Self::Head { key } => write!(f, "HEAD {key:?}"),
            Self::List { prefix, after } if after.is_empty() => write!(f, "LIST {prefix:?}"),
            Self::List { prefix, after } => write!(f, "LIST {prefix:?} after {after:?}"),
        }
    }
}

/// Describes what an operation showed of one key.
pub(super) fn shown(outcome: &Outcome, key: &str) -> String {
    let shown =
        |seen: Option<&ObservedObject>| seen.map_or_else(|| "absent".to_owned(), ObservedObject::to_string);
    match outcome {
        Outcome::Done { etag: Some(etag) } => format!("done, ETag {etag}"),
        Outcome::Done { etag: None } => "done".to_owned(),
        Outcome::Read(seen) => shown(seen.as_ref()),
        Outcome::Listed { entries, .. } => {
            shown(entries.iter().find(|(listed, _)| listed == key).map(|(_, seen)| seen))
        }
        Outcome::PreconditionFailed => "precondition failed".to_owned(),
        Outcome::NoSuchKey => "no such key".to_owned(),
        Outcome::NotApplied => "failed".to_owned(),
        Outcome::Unknown => "unknown".to_owned(),
    }
}
