//! Finds where a key's history goes wrong: the first answer that no order explains, and the answers that would have
//! been possible.

use super::search::{Action, OPEN, Step, search};
use super::states::{ABSENT, FIRST_VERSION, OTHER, State, States};

/// Maximum number of versions that are tried as answers: the last ones written.
const MAX_TRIED: usize = 12;

/// The first answer that no order explains. All answers before it have an explanation.
#[derive(Debug)]
pub(super) struct UnexplainedAnswer {
    /// The operation with this answer.
    pub(super) operation: usize,
    /// The states that the operation could have found.
    pub(super) states: Vec<State>,
}

/// Finds the answer, if there is one. A history without an explanation stays so with every further answer, so a binary
/// search works.
pub(super) fn blame(steps: &[Step]) -> Option<UnexplainedAnswer> {
    if search(steps.to_vec()) {
        return None;
    }
    let mut ends: Vec<(u32, usize)> = steps.iter().map(|step| (step.end, step.operation)).collect();
    ends.retain(|&(end, _)| end != OPEN);
    ends.sort_unstable();
    let first = ends.partition_point(|&(end, _)| search(until(steps, end)));
    let (end, operation) = ends[first.min(ends.len() - 1)];
    let steps_before = until(steps, end);
    Some(UnexplainedAnswer { operation, states: possible(&steps_before, operation) })
}

/// The steps known at the event of this rank. A write without an answer by then may have happened or not.
fn until(steps: &[Step], rank: u32) -> Vec<Step> {
    let until_end = |step: &Step| match step.action {
        _ if step.end <= rank => Some(step.clone()),
        Action::Write { .. } if step.start < rank => Some(Step { end: OPEN, ..step.clone() }),
        _ => None,
    };
    steps.iter().filter_map(until_end).collect()
}

/// The states that the operation could have found.
fn possible(steps: &[Step], operation: usize) -> Vec<State> {
    let Some(own_step) = steps.iter().find(|step| step.operation == operation) else { return Vec::new() };
    let others: Vec<Step> = steps.iter().filter(|step| step.operation != operation).cloned().collect();
    let mut writes: Vec<(u32, &[State])> = others
        .iter()
        .filter_map(|step| match &step.action {
            Action::Write { to, .. } => Some((step.start, &to[..])),
            Action::Observe(_) => None,
        })
        .collect();
    writes.sort_unstable_by(|a, b| b.cmp(a));
    let mut tried: Vec<State> = writes.into_iter().flat_map(|(_, to)| to).copied().collect();
    tried.retain(|&state| state >= FIRST_VERSION);
    tried.truncate(MAX_TRIED);
    tried.extend([ABSENT, OTHER]);
    tried.sort_unstable();
    tried.dedup();
    let could_be = |&state: &State| {
        let found = Step { action: Action::Observe(States::of(vec![state])), ..own_step.clone() };
        search(others.iter().cloned().chain([found]).collect())
    };
    tried.into_iter().filter(could_be).collect()
}
