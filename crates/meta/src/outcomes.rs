//! Outcomes of recent transactions, so that one that is submitted twice is applied once (design.md §10.2).
//!
//! Only commits are remembered: a transaction that conflicted wrote nothing, so submitting it again is like submitting
//! it for the first time. The window is bounded (I12); a client gives up on an unknown outcome long before that many
//! transactions have followed.

use std::collections::{HashMap, VecDeque};

use crate::store::{Revision, TxId};

/// Number of commits remembered.
pub const REMEMBERED_COMMITS: usize = 1 << 17;

/// The latest [`REMEMBERED_COMMITS`] commits.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    revisions: HashMap<TxId, Revision>,
    order: VecDeque<TxId>,
}

impl Outcomes {
    /// Returns the revision that `id` committed with.
    pub(crate) fn get(&self, id: TxId) -> Option<Revision> {
        self.revisions.get(&id).copied()
    }

    /// Remembers a commit and forgets the oldest one when the window is full.
    pub(crate) fn insert(&mut self, id: TxId, revision: Revision) {
        if self.revisions.insert(id, revision).is_none() {
            self.order.push_back(id);
        }
        if self.order.len() > REMEMBERED_COMMITS
            && let Some(oldest) = self.order.pop_front()
        {
            self.revisions.remove(&oldest);
        }
    }
}
