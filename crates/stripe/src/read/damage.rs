//! Read-repair: chunks that a read finds missing or damaged become debt, which the repair service pays (design.md
//! §8).
//!
//! A separate task writes the debt's row, so a read never waits for it. Only a few such tasks run at a time; damage
//! left out because of that is reported by the next read that finds it. Each version of a stripe is reported once, so
//! that a bad chunk of a popular object costs one transaction. After its repair the stripe has another version.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use striate_core::StripeId;
use striate_meta::{Commit, Revision, keys};
use striate_runtime::Runtime;
use striate_site::SiteError;

use crate::table::{OpenedStripe, StripeTable};

/// Maximum number of reports remembered. When full, all are forgotten: a repeated report does no harm.
const REMEMBERED: usize = 4_096;
/// Maximum number of reports being written at a time.
const UNDER_WAY: usize = 32;

/// Damage that this client has found and reported.
pub(super) struct DamageReports {
    runtime: Runtime,
    table: Arc<StripeTable>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    reported: HashMap<StripeId, Revision>,
    under_way: usize,
}

impl State {
    /// Claims a report. Returns false if this version was already reported, or too many reports are being written.
    fn begin(&mut self, stripe: StripeId, version: Revision) -> bool {
        if self.under_way == UNDER_WAY || self.reported.get(&stripe) == Some(&version) {
            return false;
        }
        if self.reported.len() == REMEMBERED {
            self.reported.clear();
        }
        self.reported.insert(stripe, version);
        self.under_way += 1;
        true
    }

    fn end(&mut self, stripe: StripeId, is_written: bool) {
        self.under_way -= 1;
        if !is_written {
            self.reported.remove(&stripe);
        }
    }
}

impl DamageReports {
    /// Creates an empty set of reports.
    pub(super) fn new(runtime: Runtime, table: Arc<StripeTable>) -> Self {
        Self { runtime, table, state: Arc::default() }
    }

    /// Puts a stripe in debt when one of its chunks is missing or damaged where the record has it. The record must be
    /// unchanged: a chunk that has moved meanwhile is not lost (design.md §10.5).
    pub(super) fn report(&self, stripe: &OpenedStripe, index: usize, error: &SiteError) {
        if !matches!(error, SiteError::Missing(_) | SiteError::Corrupt { .. })
            || !self.state.lock().begin(stripe.id, stripe.row.version)
        {
            return;
        }
        tracing::warn!(stripe = %stripe.id, index, %error, "damaged chunk found by a read: its stripe is in debt");
        let mut tx = self.table.transaction();
        tx.require_unchanged(keys::stripe(stripe.id), Some(&stripe.row));
        tx.put(keys::debt(stripe.id), Bytes::new());
        let (table, state, id) = (self.table.clone(), self.state.clone(), stripe.id);
        self.runtime.spawn(async move {
            let is_written = matches!(table.meta().commit(tx).await, Ok(Commit::Done(_)));
            state.lock().end(id, is_written);
        });
    }

    /// Forgets that a stripe was reported, so that new damage is reported again.
    pub(super) fn forget(&self, stripe: StripeId) {
        self.state.lock().reported.remove(&stripe);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_reported_once_and_the_next_one_again() {
        let (mut reports, stripe) = (State::default(), StripeId::new(1, 1));
        assert!(reports.begin(stripe, Revision(1)) && !reports.begin(stripe, Revision(1)));
        reports.end(stripe, true);
        assert!(!reports.begin(stripe, Revision(1)));
        assert!(reports.begin(stripe, Revision(2)));
        reports.end(stripe, false);
        assert!(reports.begin(stripe, Revision(2)), "it was not written");
    }

    #[test]
    fn reports_under_way_and_remembered_are_bounded() {
        let mut reports = State::default();
        let begun = (0..100).filter(|&number| reports.begin(StripeId::new(1, number), Revision(1))).count();
        assert_eq!(begun, UNDER_WAY);
        (0..UNDER_WAY as u64).for_each(|number| reports.end(StripeId::new(1, number), true));
        for number in 0..3 * REMEMBERED as u64 {
            assert!(reports.begin(StripeId::new(2, number), Revision(1)));
            reports.end(StripeId::new(2, number), true);
            assert!(reports.reported.len() <= REMEMBERED);
        }
    }
}
