//! A gateway reports to control which blocks are asked for together (EC-Store §V-A, over several gateways).

use std::time::Duration;

use striate_client::Client;
use striate_plan::CoAccessSnapshot;

use super::client::{Channel, ControlClient};
use super::messages::ReportAccessRequest;
use super::messages::cluster_control_client::ClusterControlClient;

/// Pause between two reports.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Reports to all control processes for ever, whenever there is something new.
pub async fn keep_reporting(client: Client, control: ControlClient) {
    let (mut reported, mut is_heard) = (0, true);
    loop {
        client.runtime().sleep(REPORT_EVERY).await;
        let observed = client.co_access_totals().observed;
        if observed == reported && is_heard {
            continue;
        }
        let snapshot = ReportAccessRequest::from(&client.co_access_snapshot());
        let request = ReportAccessRequest { requests: client.requests(), ..snapshot };
        let tell = |mut control: ClusterControlClient<Channel>| {
            let request = request.clone();
            async move { control.report_access(request).await }
        };
        let unheard = control.tell_all(tell).await;
        // Said once, and not again before it has worked: nothing depends on it.
        if !unheard.is_empty() && is_heard {
            tracing::warn!(
                reasons = unheard.join("; "),
                "the statistics of requests could not be reported; will try again"
            );
        }
        (reported, is_heard) = (observed, unheard.is_empty());
    }
}

impl From<&CoAccessSnapshot> for ReportAccessRequest {
    fn from(snapshot: &CoAccessSnapshot) -> Self {
        let (tail_places, tail_counts) = snapshot.tail.iter().copied().unzip();
        Self {
            blocks: snapshot.blocks.iter().flat_map(|&(writer, sequence)| [writer, sequence]).collect(),
            lengths: snapshot.requests.iter().map(|request| request.len() as u32).collect(),
            accesses: snapshot.requests.concat(),
            tail_places,
            tail_counts,
            requests: 0,
        }
    }
}

impl TryFrom<ReportAccessRequest> for CoAccessSnapshot {
    type Error = &'static str;

    /// Only the form is checked here: what a request names may not exist.
    fn try_from(report: ReportAccessRequest) -> Result<Self, Self::Error> {
        let (blocks, []) = report.blocks.as_chunks::<2>() else { return Err("half a block") };
        if report.tail_places.len() != report.tail_counts.len() {
            return Err("counters without a place");
        }
        let (mut requests, mut left) = (Vec::with_capacity(report.lengths.len()), &report.accesses[..]);
        for length in report.lengths {
            let (request, rest) =
                left.split_at_checked(length as usize).ok_or("fewer accesses than promised")?;
            requests.push(request.to_vec());
            left = rest;
        }
        match left {
            [] => Ok(Self {
                blocks: blocks.iter().map(|&[writer, sequence]| (writer, sequence)).collect(),
                requests,
                tail: report.tail_places.into_iter().zip(report.tail_counts).collect(),
            }),
            _ => Err("more accesses than promised"),
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use striate_core::StripeId;
    use striate_plan::CoAccess;

    use super::super::MAX_MESSAGE_LEN;
    use super::*;

    #[test]
    fn a_report_says_what_the_statistics_have() {
        let mut statistics = CoAccess::default();
        for request in 0..7_000_u64 {
            statistics.observe((0..3).map(|block| StripeId::new(request % 5, request * 7 % 100 + block)));
        }
        let snapshot = statistics.snapshot();
        assert!(!snapshot.tail.is_empty());
        let report = ReportAccessRequest::from(&snapshot).encode_to_vec();
        let report = ReportAccessRequest::decode(&report[..]).unwrap();
        assert_eq!(CoAccessSnapshot::try_from(report), Ok(snapshot));
    }

    #[test]
    fn the_longest_report_fits_a_message() {
        let mut statistics = CoAccess::default();
        // Never the same block twice, ten thousand intervals of them: the tail is full.
        for request in 0..20_000_u64 {
            statistics.observe((0..100).map(|block| StripeId::new(request, block)));
        }
        let len = ReportAccessRequest::from(&statistics.snapshot()).encoded_len();
        assert!((1 << 20..=MAX_MESSAGE_LEN).contains(&len), "{len}");
    }

    #[test]
    fn malformed_reports_are_refused() {
        let report = ReportAccessRequest {
            blocks: vec![1, 2],
            lengths: vec![1],
            accesses: vec![0],
            ..Default::default()
        };
        assert!(CoAccessSnapshot::try_from(report.clone()).is_ok());
        let half = ReportAccessRequest { blocks: vec![1, 2, 3], ..report.clone() };
        let more = ReportAccessRequest { lengths: vec![2], ..report.clone() };
        let fewer = ReportAccessRequest { lengths: vec![], ..report.clone() };
        let placeless = ReportAccessRequest { tail_counts: vec![1], ..report };
        for malformed in [half, more, fewer, placeless] {
            assert!(CoAccessSnapshot::try_from(malformed.clone()).is_err(), "{malformed:?}");
        }
    }
}
