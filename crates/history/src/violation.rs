//! Violations of the model, with the operations that show them.

use std::fmt::{self, Display, Formatter};

use super::blame::UnexplainedAnswer;
use super::operation::{Effect, ObservedObject, Operation, Outcome, shown};
use super::states::{ABSENT, FIRST_VERSION, OTHER, State};
use super::{OperationId, Value};

/// Maximum number of operations that a violation shows.
const MAX_SHOWN: usize = 16;

/// A history that the store's model does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant that is broken: I2, I3, I4, I5 or I9.
    pub invariant: &'static str,
    /// The key whose history is wrong.
    pub key: String,
    /// The operation whose answer is wrong.
    pub operation: OperationId,
    /// What was expected and what was seen.
    pub reason: String,
    /// The operations around it, one per line.
    pub context: Vec<String>,
}

impl std::error::Error for Violation {}

impl Display for Violation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} broken for key {:?}: {}", self.invariant, self.key, self.reason)?;
        self.context.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

impl Violation {
    /// An answer names another ETag than its call announced.
    pub(super) fn wrong_etag(operations: &[Operation], index: usize) -> Self {
        let key = operations[index].call.written().unwrap_or_default();
        let reason = "the answer names another ETag than these bytes have".to_owned();
        Self::new("I3", operations, key, index, reason, &[])
    }

    /// One ETag stands for two values.
    pub(super) fn shared_etag(operations: &[Operation], first: usize, second: usize, etag: &str) -> Self {
        let key = operations[second].call.written().unwrap_or_default();
        let reason = format!("ETag {etag} stands for two different values");
        Self::new("I3", operations, key, second, reason, &[first])
    }

    /// An operation shows a version that the key never was and never may have been.
    pub(super) fn never_written(
        operations: &[Operation],
        key: &str,
        index: usize,
        seen: &ObservedObject,
    ) -> Self {
        let writes = |operation: &Operation| {
            let written = operation.version().filter(|_| operation.call.written() == Some(key));
            written.is_some_and(|(value, etag)| {
                let same_etag = seen.etag.is_some() && etag == seen.etag.as_deref();
                seen.value.map_or(same_etag, |seen| seen == value)
            })
        };
        let failed =
            operations.iter().position(|operation| writes(operation) && operation.effect() == Effect::Never);
        match failed {
            Some(failed) => {
                let reason = format!("{seen} is visible, though its write failed");
                Self::new("I5", operations, key, index, reason, &[failed])
            }
            None => {
                let reason = format!("{seen} was never written there");
                Self::new("I2", operations, key, index, reason, &[])
            }
        }
    }

    /// No order of the operations explains the answer of this one.
    pub(super) fn unexplained(
        operations: &[Operation],
        key: &str,
        versions: &[(Value, Option<String>)],
        blame: &UnexplainedAnswer,
    ) -> Self {
        let operation = &operations[blame.operation];
        let expected: Vec<String> =
            blame.states.iter().take(4).map(|&state| describe(state, versions)).collect();
        let more = if blame.states.len() > 4 { " or others" } else { "" };
        let answer = shown(operation.outcome(), key);
        let reason =
            format!("the key can only be {}{more}, but the answer is: {answer}", expected.join(" or "));
        let sees_object = operation.observed(key).is_some() && operation.effect() == Effect::Never;
        let invariant = match operation.outcome() {
            _ if sees_object && blame.states == [ABSENT] => "I9",
            Outcome::Listed { .. } => "I4",
            _ => "I3",
        };
        let values: Vec<Value> = blame
            .states
            .iter()
            .filter_map(|&state| Some(versions.get(state.checked_sub(FIRST_VERSION)? as usize)?.0))
            .take(4)
            .collect();
        let writers = (0..operations.len()).filter(|&index| {
            let value = operations[index].version().map(|(value, _)| value);
            operations[index].call.written() == Some(key)
                && value.is_some_and(|value| values.contains(&value))
        });
        let writers: Vec<usize> = writers.take(4).collect();
        Self::new(invariant, operations, key, blame.operation, reason, &writers)
    }

    fn new(
        invariant: &'static str,
        operations: &[Operation],
        key: &str,
        index: usize,
        reason: String,
        also: &[usize],
    ) -> Self {
        let context = context(operations, key, index, also);
        Self { invariant, key: key.to_owned(), operation: OperationId(index), reason, context }
    }
}

fn describe(state: State, versions: &[(Value, Option<String>)]) -> String {
    match state {
        ABSENT => "absent".to_owned(),
        OTHER => "a version that was never seen".to_owned(),
        _ => match &versions[(state - FIRST_VERSION) as usize] {
            (value, Some(etag)) => format!("{value}, ETag {etag}"),
            (value, None) => value.to_string(),
        },
    }
}

/// The operations on the key that are concurrent with this one, the last ones before it, and `also`.
fn context(operations: &[Operation], key: &str, index: usize, also: &[usize]) -> Vec<String> {
    let shown = &operations[index];
    let end = shown.completed.as_ref().map(|(at, _)| *at);
    let touches = |operation: &Operation| operation.call.touches(key);
    let mut indices: Vec<usize> = (0..operations.len())
        .filter(|&other| other != index && touches(&operations[other]))
        .filter(|&other| end.is_none_or(|end| operations[other].invoked < end))
        .collect();
    // Sort the operations that ended last first, after those that never ended.
    indices.sort_by_key(|&other| {
        let operation = &operations[other];
        (
            operation.effect() == Effect::Never,
            std::cmp::Reverse(operation.completed.as_ref().map(|(at, _)| *at)),
        )
    });
    indices.truncate(MAX_SHOWN - 1 - also.len());
    indices.extend(also);
    indices.push(index);
    indices.sort_by_key(|&other| (operations[other].invoked, other));
    indices.dedup();
    let line = |&other: &usize| {
        let mark = if other == index { "> " } else { "  " };
        format!("{mark}{}", describe_operation(&operations[other], key))
    };
    indices.iter().map(line).collect()
}

fn describe_operation(operation: &Operation, key: &str) -> String {
    let seconds = |at: u64| format!("{:.9}", at as f64 / 1e9);
    let end = operation.completed.as_ref().map_or_else(|| "…".to_owned(), |(at, _)| seconds(at.0));
    format!(
        "{} to {end} s, client {}: {} -> {}",
        seconds(operation.invoked.0),
        operation.client,
        operation.call,
        shown(operation.outcome(), key)
    )
}
