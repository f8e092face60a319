//! Read-repair: chunks that a read finds missing or damaged become debt, which the repair service pays (design.md
//! §8).
//!
//! A separate task writes the debt's row, so a read never waits for it. Only a few such tasks run at a time; damage
//! left out because of that is reported by the next read that finds it. Each version of a stripe is reported once in ten
//! minutes, so that a bad chunk of a popular object costs few transactions. After its repair the stripe has another
//! version. It keeps its version where another process found it whole after all; what is damaged later is then reported
//! too.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use striate_core::StripeId;
use striate_meta::{Commit, Revision, keys};
use striate_runtime::{Instant, Runtime};
use striate_site::SiteError;

use crate::table::{OpenedStripe, StripeTable};

/// Maximum number of reports remembered. When full, all are forgotten: a repeated report does no harm.
const REMEMBERED: usize = 4_096;
/// Time after which a version of a stripe is reported again.
const REPEATED_AFTER: Duration = Duration::from_secs(600);
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
    /// Reported version of each stripe, and when it was reported.
    reported: HashMap<StripeId, (Revision, Instant)>,
    under_way: usize,
}

impl State {
    /// Claims a report. Returns false if this version was reported lately, or too many reports are being written.
    fn begin(&mut self, stripe: StripeId, version: Revision, now: Instant) -> bool {
        let is_recent = |&(reported, at): &(Revision, Instant)| {
            reported == version && now.saturating_duration_since(at) < REPEATED_AFTER
        };
        if self.under_way == UNDER_WAY || self.reported.get(&stripe).is_some_and(is_recent) {
            return false;
        }
        if self.reported.len() == REMEMBERED {
            self.reported.clear();
        }
        self.reported.insert(stripe, (version, now));
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
            || !self.state.lock().begin(stripe.id, stripe.row.version, self.runtime.now())
        {
            return;
        }
        tracing::warn!(stripe = %stripe.id, index, %error, "damaged chunk found by a read: its stripe is in debt");
        let mut tx = self.table.transaction_on(stripe);
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

    #[tokio::test(start_paused = true)]
    async fn a_version_is_reported_once_in_a_while_and_the_next_one_at_once() {
        let (mut reports, stripe, now) = (State::default(), StripeId::new(1, 1), Runtime::real().now());
        assert!(reports.begin(stripe, Revision(1), now) && !reports.begin(stripe, Revision(1), now));
        reports.end(stripe, true);
        assert!(!reports.begin(stripe, Revision(1), now));
        assert!(reports.begin(stripe, Revision(2), now));
        reports.end(stripe, false);
        assert!(reports.begin(stripe, Revision(2), now), "it was not written");
        reports.end(stripe, true);
        assert!(!reports.begin(stripe, Revision(2), now + REPEATED_AFTER / 2));
        assert!(reports.begin(stripe, Revision(2), now + REPEATED_AFTER), "there may be other damage");
        assert!(!reports.begin(stripe, Revision(2), now + REPEATED_AFTER));
    }

    #[tokio::test(start_paused = true)]
    async fn reports_under_way_and_remembered_are_bounded() {
        let (mut reports, now) = (State::default(), Runtime::real().now());
        let mut begin = |number| reports.begin(StripeId::new(1, number), Revision(1), now);
        assert_eq!((0..100).filter(|&number| begin(number)).count(), UNDER_WAY);
        (0..UNDER_WAY as u64).for_each(|number| reports.end(StripeId::new(1, number), true));
        for number in 0..3 * REMEMBERED as u64 {
            assert!(reports.begin(StripeId::new(2, number), Revision(1), now));
            reports.end(StripeId::new(2, number), true);
            assert!(reports.reported.len() <= REMEMBERED);
        }
    }
}
