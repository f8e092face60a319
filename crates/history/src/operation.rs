//! What clients asked, and what they were answered.

use std::fmt::{self, Display, Formatter};

use super::Value;

/// An operation of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(pub(super) usize);

/// What a write makes of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The bytes.
    pub value: Value,
    /// The ETag that it will have, if the caller can tell before the answer.
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
    /// None.
    #[default]
    None,
    /// `If-None-Match: *`: the key is absent.
    IfNoneMatch,
    /// `If-Match`: the key is present with this ETag.
    IfMatch(String),
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Writes an object.
    Put {
        /// The key.
        key: String,
        /// What it is to be.
        version: Version,
        /// On what condition.
        condition: Condition,
    },
    /// Makes the parts of an upload an object. The parts themselves are not visible, and not part of a history.
    CompleteMultipart {
        /// The key.
        key: String,
        /// What it is to be.
        version: Version,
        /// On what condition.
        condition: Condition,
    },
    /// Writes to `to` what `from` is. The two need not be one instant: it is a read of `from` and a write of
    /// `to`, both between the call and its answer.
    Copy {
        /// The source's key.
        from: String,
        /// The key that is written.
        to: String,
        /// A condition on `to`.
        condition: Condition,
    },
    /// Removes an object. With `If-Match` it also succeeds where there is none.
    Delete {
        /// The key.
        key: String,
        /// On what condition.
        condition: Condition,
    },
    /// Reads bytes, all or a range of them.
    Get {
        /// The key.
        key: String,
    },
    /// Reads the description.
    Head {
        /// The key.
        key: String,
    },
    /// One page of a listing: of each key under the prefix, whether it is present. The keys' observations need
    /// not be of one instant. The pages of one listing are operations of their own.
    List {
        /// Keys that begin with this,
        prefix: String,
        /// and come after this one; empty for all.
        after: String,
    },
}

/// What a read or listing shows of an object; `None` for what the answer does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The value, recognised by its bytes.
    pub value: Option<Value>,
    /// The ETag.
    pub etag: Option<String>,
    /// The length in bytes.
    pub len: Option<u64>,
}

impl Seen {
    /// An answer that shows bytes.
    pub fn value(value: Value) -> Self {
        Self { value: Some(value), ..Self::default() }
    }

    /// An answer that shows an ETag and a length.
    pub fn etag(etag: impl Into<String>, len: u64) -> Self {
        Self { etag: Some(etag.into()), len: Some(len), value: None }
    }
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A write succeeded, with this ETag if the answer tells one.
    Done {
        /// Of what was written.
        etag: Option<String>,
    },
    /// What a get or head shows; `None` where there is no object.
    Read(Option<Seen>),
    /// A page of a listing.
    Listed {
        /// Keys with what is shown of them, in order.
        entries: Vec<(String, Seen)>,
        /// The last key that the page speaks of; `None` for a listing's last page.
        through: Option<String>,
    },
    /// A write was refused because its condition did not hold.
    PreconditionFailed,
    /// A write with `If-Match` found no object, or a copy no source.
    NoSuchKey,
    /// The operation failed for certain: it must never be visible (I5).
    NotApplied,
    /// A write may take effect at any time after its call, or never. So may one that was never answered.
    Unknown,
}

/// A call with its answer. Instants are pairs of nanoseconds and order of recording.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) client: u32,
    pub(super) call: Call,
    pub(super) invoked: (u64, usize),
    pub(super) completed: Option<((u64, usize), Outcome)>,
}

/// What is known of a write's effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Took,
    MayTake,
    Never,
}

impl Operation {
    /// The answer; an operation that was not answered is as good as unknown.
    pub(super) fn outcome(&self) -> &Outcome {
        self.completed.as_ref().map_or(&Outcome::Unknown, |(_, outcome)| outcome)
    }

    /// What it shows of a key, if it shows an object.
    pub(super) fn seen(&self, key: &str) -> Option<Seen> {
        match self.outcome() {
            Outcome::Read(seen) => seen.clone(),
            Outcome::Listed { entries, .. } => {
                entries.iter().find(|(listed, _)| listed == key).map(|(_, seen)| seen.clone())
            }
            Outcome::Done { etag } => Some(Seen { etag: etag.clone(), ..Seen::default() }),
            _ => None,
        }
    }

    /// What is known of its effect, if it is a write.
    pub(super) fn effect(&self) -> Effect {
        match self.outcome() {
            Outcome::Done { .. } => Effect::Took,
            Outcome::Unknown => Effect::MayTake,
            _ => Effect::Never,
        }
    }

    /// The version that a put or completion writes: the ETag is the answer's, or else the call's.
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
    /// Whether such a call is answered so.
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

    /// Whether it reads, lists or writes the key.
    pub(super) fn touches(&self, key: &str) -> bool {
        match self {
            Self::Get { key: read } | Self::Head { key: read } => read == key,
            Self::List { prefix, after } => key.starts_with(prefix.as_str()) && key > after.as_str(),
            Self::Copy { from, .. } if from == key => true,
            call => call.written() == Some(key),
        }
    }

    /// The key that it writes, if it writes.
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

impl Display for Seen {
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

/// What an operation showed of one key.
pub(super) fn shown(outcome: &Outcome, key: &str) -> String {
    let shown = |seen: Option<&Seen>| seen.map_or_else(|| "absent".to_owned(), Seen::to_string);
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
