//! The reference model: decides whether the answers that clients got are answers that a store with S3's semantics may
//! give.
//!
//! A [`History`] holds every call with its answer. [`History::check`] decides, for each key on its own, whether the
//! operations can be put into one order that respects real time (an operation that was answered before another was
//! called comes first) and in which each operation finds what the one before left: *linearizability* (Herlihy and Wing,
//! ACM TOPLAS 12(3), 1990). That a history may be judged key by key is their locality theorem. See [`search`] for the
//! algorithm.
//!
//! The model of a key is a register: absent, or a version. It decides these invariants:
//! - I2: what a read shows was written there;
//! - I3: the last completed write wins, and conditions are honoured;
//! - I4: each listing shows each key as it was at one instant of the listing: it has what was acknowledged before it,
//!   and nothing that was deleted before it;
//! - I5: what failed is never visible;
//! - I9: what was deleted stays deleted.
//!
//! A call whose outcome is unknown may take effect at any later time, or never. All keys are absent in the beginning. A
//! copy is a read of its source and a write of its destination, which need not be one instant. Not checked: order
//! across keys, common prefixes, and the parts of unfinished uploads.

mod blame;
mod operation;
mod projection;
mod search;
#[cfg(test)]
mod simulation;
mod states;
#[cfg(test)]
mod tests;
mod value;
mod violation;

pub use operation::{Call, Condition, ObservedObject, OperationId, Outcome, Version};
pub use value::Value;
pub use violation::Violation;

use blame::blame;
use operation::Operation;
use projection::Projection;
use search::Action;
use states::States;

/// Recorded calls and answers.
///
/// Record a call before it is sent, and an answer after it has arrived. Events of one instant count in the order in
/// which they are recorded; instants of different machines need one clock.
#[derive(Clone, Debug, Default)]
pub struct History {
    operations: Vec<Operation>,
    /// Number of events recorded so far.
    events: usize,
}

impl History {
    /// Creates an empty history.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of calls.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether there are no calls.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Records that a client calls at this instant.
    pub fn invoke(&mut self, client: u32, at_ns: u64, call: Call) -> OperationId {
        let invoked = self.event(at_ns);
        self.operations.push(Operation { client, call, invoked, completed: None });
        OperationId(self.operations.len() - 1)
    }

    /// Records that a call is answered at this instant.
    ///
    /// # Panics
    /// If the call was already answered, the answer belongs to another kind of call, or it comes before the call.
    pub fn complete(&mut self, id: OperationId, at_ns: u64, outcome: Outcome) {
        let at = self.event(at_ns);
        let operation = &mut self.operations[id.0];
        assert!(operation.completed.is_none(), "{} was answered before", operation.call);
        assert!(operation.call.can_end_with(&outcome), "{} is not answered by {outcome:?}", operation.call);
        assert!(operation.invoked < at, "{} is answered before it was made", operation.call);
        operation.completed = Some((at, outcome));
    }

    fn event(&mut self, at_ns: u64) -> (u64, usize) {
        self.events += 1;
        (at_ns, self.events)
    }

    /// Checks all keys, in order.
    ///
    /// # Errors
    /// The violation of the first key that has one.
    pub fn check(&self) -> Result<(), Violation> {
        let projection = Projection::new(&self.operations)?;
        projection.keys().into_iter().try_for_each(|key| self.check_key(&projection, key))
    }

    fn check_key(&self, projection: &Projection<'_>, key: &str) -> Result<(), Violation> {
        let of_key = projection.of(key);
        let nothing = States::of(Vec::new());
        for step in &of_key.steps {
            let operation = &self.operations[step.operation];
            if matches!(&step.action, Action::Observe(states) if *states == nothing)
                && let Some(seen) = operation.observed(key)
            {
                return Err(Violation::never_written(&self.operations, key, step.operation, &seen));
            }
        }
        match blame(&of_key.steps) {
            None => Ok(()),
            Some(blame) => Err(Violation::unexplained(&self.operations, key, &of_key.versions, &blame)),
        }
    }
}
