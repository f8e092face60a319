//! Read-repair: what a read finds missing or damaged becomes debt, which the repair service pays (design.md §8).
//!
//! A read never waits for it: a task of its own writes the debt's row. There are few of them at a time, and what is
//! left out because of that is reported by the next read that finds it. One version of a stripe is reported once, so
//! that a bad chunk of a popular object costs one transaction; after its repair the stripe has another version.

use std::collections::HashMap;

use bytes::Bytes;
use parking_lot::Mutex;
use striate_core::StripeId;
use striate_meta::{Commit, Revision, keys};
use striate_site::SiteError;

use super::Stripes;
use super::read::OpenedStripe;

/// Reports that are remembered. When there are more all are forgotten: telling a thing twice does no harm.
const REMEMBERED: usize = 4_096;
/// Reports that are written at the same time.
const UNDER_WAY: usize = 32;

/// Damage that this client has reported.
#[derive(Debug, Default)]
pub(super) struct DamageReports(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    reported: HashMap<StripeId, Revision>,
    under_way: usize,
}

impl DamageReports {
    /// False where this version was reported already, or too many reports are under way.
    fn begin(&self, stripe: StripeId, version: Revision) -> bool {
        let mut state = self.0.lock();
        if state.under_way == UNDER_WAY || state.reported.get(&stripe) == Some(&version) {
            return false;
        }
        if state.reported.len() == REMEMBERED {
            state.reported.clear();
        }
        state.reported.insert(stripe, version);
        state.under_way += 1;
        true
    }

    fn end(&self, stripe: StripeId, is_written: bool) {
        let mut state = self.0.lock();
        state.under_way -= 1;
        if !is_written {
            state.reported.remove(&stripe);
        }
    }

    fn forget(&self, stripe: StripeId) {
        self.0.lock().reported.remove(&stripe);
    }
}

impl Stripes {
    /// Marks a stripe as in debt when one of its chunks is missing or damaged where the record has it. The record must
    /// be unchanged: a chunk that was moved meanwhile is not lost (design.md §10.5).
    pub(super) fn report_damage(&self, stripe: &OpenedStripe, index: usize, error: &SiteError) {
        if !matches!(error, SiteError::Missing(_) | SiteError::Corrupt { .. })
            || !self.shared.damage.begin(stripe.id, stripe.row.version)
        {
            return;
        }
        tracing::warn!(stripe = %stripe.id, index, %error, "damaged chunk found by a read: its stripe is in debt");
        let mut tx = self.transaction();
        tx.require_unchanged(keys::stripe(stripe.id), Some(&stripe.row));
        tx.put(keys::debt(stripe.id), Bytes::new());
        let (shared, id) = (self.shared.clone(), stripe.id);
        self.shared.runtime.spawn(async move {
            let is_written = matches!(shared.meta.commit(tx).await, Ok(Commit::Done(_)));
            shared.damage.end(id, is_written);
        });
    }

    /// Forgets that a stripe was reported, so that new damage is reported again.
    pub(crate) fn forget_report(&self, stripe: StripeId) {
        self.shared.damage.forget(stripe);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_reported_once_and_the_next_one_again() {
        let (reports, stripe) = (DamageReports::default(), StripeId::new(1, 1));
        assert!(reports.begin(stripe, Revision(1)) && !reports.begin(stripe, Revision(1)));
        reports.end(stripe, true);
        assert!(!reports.begin(stripe, Revision(1)));
        assert!(reports.begin(stripe, Revision(2)));
        reports.end(stripe, false);
        assert!(reports.begin(stripe, Revision(2)), "it was not written");
    }

    #[test]
    fn reports_under_way_and_remembered_are_bounded() {
        let reports = DamageReports::default();
        let begun = (0..100).filter(|&number| reports.begin(StripeId::new(1, number), Revision(1))).count();
        assert_eq!(begun, UNDER_WAY);
        (0..UNDER_WAY as u64).for_each(|number| reports.end(StripeId::new(1, number), true));
        for number in 0..3 * REMEMBERED as u64 {
            assert!(reports.begin(StripeId::new(2, number), Revision(1)));
            reports.end(StripeId::new(2, number), true);
            assert!(reports.0.lock().reported.len() <= REMEMBERED);
        }
    }
}
