//! Which blocks are asked for together, over all gateways.
//!
//! Every gateway samples its own requests and reports what it has; here the last report of each is kept, and all are
//! brought together when somebody wants to know. They are hints: a control process that has just started knows nothing
//! until gateways report again, and a gateway that is gone is forgotten after [`KEPT`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use striate_plan::{CoAccess, CoAccessLimits, CoAccessSnapshot, SnapshotError};
use striate_runtime::Instant;

/// A report counts for so long.
pub const KEPT: Duration = Duration::from_secs(60 * 60);
/// Of so many gateways; each takes about 2 MB at most.
const MOST_GATEWAYS: usize = 256;

/// The reports of gateways. A cheap handle.
#[derive(Clone, Debug, Default)]
pub struct GatheredAccess {
    reports: Arc<Mutex<BTreeMap<String, Report>>>,
}

#[derive(Clone, Debug)]
struct Report {
    at: Instant,
    snapshot: Arc<CoAccessSnapshot>,
}

/// The report of one gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportView {
    /// Who reported.
    pub gateway: String,
    /// Requests in its interval.
    pub requests: usize,
    /// Since then.
    pub age: Duration,
}

/// Why a report was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// It is malformed.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// There are too many reporters.
    #[error("{MOST_GATEWAYS} gateways report already")]
    TooMany,
}

impl GatheredAccess {
    /// Keeps the report of `gateway`, in the place of an earlier one.
    ///
    /// # Errors
    /// [`ReportError`]; the earlier one stays.
    pub fn report(&self, gateway: &str, snapshot: CoAccessSnapshot, now: Instant) -> Result<(), ReportError> {
        snapshot.check()?;
        let mut reports = self.reports.lock();
        reports.retain(|_, report| now.saturating_duration_since(report.at) < KEPT);
        if reports.len() >= MOST_GATEWAYS && !reports.contains_key(gateway) {
            return Err(ReportError::TooMany);
        }
        reports.insert(gateway.to_owned(), Report { at: now, snapshot: Arc::new(snapshot) });
        Ok(())
    }

    /// The reports that count at `now`, in the order of the gateways' names.
    pub fn view(&self, now: Instant) -> Vec<ReportView> {
        let view = |(gateway, report): (String, Report)| ReportView {
            gateway,
            requests: report.snapshot.requests.len(),
            age: now.saturating_duration_since(report.at),
        };
        self.counting(now).into_iter().map(view).collect()
    }

    /// The statistics of all gateways together. Costs what observing their requests costs: up to 100,000 blocks.
    pub fn together(&self, now: Instant) -> CoAccess {
        let reports = self.counting(now);
        let snapshots = reports.iter().map(|(_, report)| report.snapshot.as_ref());
        // Checked when they came.
        CoAccess::merged(CoAccessLimits::default(), snapshots).unwrap_or_default()
    }

    fn counting(&self, now: Instant) -> Vec<(String, Report)> {
        let reports = self.reports.lock();
        let counts = |report: &Report| now.saturating_duration_since(report.at) < KEPT;
        let counting = reports.iter().filter(|(_, report)| counts(report));
        counting.map(|(gateway, report)| (gateway.clone(), report.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use striate_core::StripeId;
    use striate_runtime::run_in_virtual_time;

    use super::*;

    fn block(sequence: u64) -> StripeId {
        StripeId::new(1, sequence)
    }

    fn snapshot(requests: &[&[u64]]) -> CoAccessSnapshot {
        let mut statistics = CoAccess::default();
        requests.iter().for_each(|request| statistics.observe(request.iter().map(|&id| block(id))));
        statistics.snapshot()
    }

    #[test]
    fn what_gateways_saw_counts_together_and_once() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let gathered = GatheredAccess::default();
            gathered.report("g1", snapshot(&[&[1, 2]]), runtime.now()).unwrap();
            gathered.report("g2", snapshot(&[&[1, 3], &[1, 2]]), runtime.now()).unwrap();
            // Reported again: in the place of what it said before.
            gathered.report("g1", snapshot(&[&[1, 2], &[4, 5]]), runtime.now()).unwrap();
            let together = gathered.together(runtime.now());
            assert_eq!(together.totals().requests, 4);
            assert_eq!((together.count(block(1)), together.count_together(block(1), block(2))), (3, 2));
            let names: Vec<_> = gathered.view(runtime.now()).into_iter().map(|view| view.gateway).collect();
            assert_eq!(names, ["g1", "g2"]);
        });
    }

    #[test]
    fn a_gateway_that_is_gone_is_forgotten() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let gathered = GatheredAccess::default();
            gathered.report("gone", snapshot(&[&[1, 2]]), runtime.now()).unwrap();
            runtime.sleep(KEPT / 2).await;
            gathered.report("here", snapshot(&[&[3]]), runtime.now()).unwrap();
            runtime.sleep(KEPT / 2).await;
            assert_eq!(gathered.view(runtime.now()).len(), 1);
            assert_eq!(gathered.together(runtime.now()).count(block(1)), 0);
        });
    }

    #[test]
    fn a_malformed_report_is_refused_and_the_earlier_one_stays() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let gathered = GatheredAccess::default();
            gathered.report("g", snapshot(&[&[1]]), runtime.now()).unwrap();
            let malformed = CoAccessSnapshot { requests: vec![vec![7]], ..CoAccessSnapshot::default() };
            assert!(gathered.report("g", malformed, runtime.now()).is_err());
            assert_eq!(gathered.together(runtime.now()).count(block(1)), 1);
        });
    }

    #[test]
    fn there_are_bounds() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let gathered = GatheredAccess::default();
            let report = |name: String| gathered.report(&name, snapshot(&[&[1]]), runtime.now());
            (0..MOST_GATEWAYS).for_each(|number| report(number.to_string()).unwrap());
            assert_eq!(report("another".to_owned()), Err(ReportError::TooMany));
            assert_eq!(report("0".to_owned()), Ok(()));
        });
    }
}
