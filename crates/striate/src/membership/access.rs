//! Gateways report to control which blocks are read together (EC-Store §V-A, over several gateways).

use std::sync::Arc;
use std::time::Duration;

use striate_control::AccessReport;
use striate_core::StripeId;
use striate_plan::{CoAccessSnapshot, PartitionReads};
use striate_stripe::Stripes;

use super::client::{Channel, ControlClient};
use super::messages::ReportAccessRequest;
use super::messages::cluster_control_client::ClusterControlClient;
use super::messages::report_access_request::{NamedBlock, Partition};

/// Interval between reports.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// Number of hottest blocks that are reported with the names of their objects.
const NAMED: usize = 64;
/// Number of most-read partitions that are reported.
const PARTITIONS: usize = 1_024;
/// Maximum length of a name in bytes: a bucket's, a slash and a key.
const MAX_NAME_LEN: usize = 63 + 1 + 1_024;

/// Reports changes to all control processes. Runs until the task is dropped.
pub async fn keep_reporting(stripes: Stripes, control: ControlClient) {
    let (mut reported, mut is_heard) = (0, true);
    loop {
        stripes.runtime().sleep(REPORT_EVERY).await;
        let observed = stripes.sampler().totals().observed + stripes.sampler().partition_reads();
        if observed == reported && is_heard {
            continue;
        }
        let objects =
            stripes.sampler().hottest(NAMED).into_iter().filter_map(|hot| Some((hot.block, hot.object?)));
        let report = AccessReport {
            snapshot: stripes.sampler().snapshot(),
            requests: stripes.requests(),
            objects: objects.collect(),
            partitions: stripes.sampler().hottest_partitions(PARTITIONS),
        };
        let request = ReportAccessRequest::from(&report);
        let tell = |mut control: ClusterControlClient<Channel>| {
            let request = request.clone();
            async move { control.report_access(request).await }
        };
        let unheard = control.tell_all(tell).await;
        // Logged once per outage: nothing depends on it.
        if !unheard.is_empty() && is_heard {
            tracing::warn!(
                reasons = unheard.join("; "),
                "the statistics of requests could not be reported; will try again"
            );
        }
        (reported, is_heard) = (observed, unheard.is_empty());
    }
}

impl From<&AccessReport> for ReportAccessRequest {
    fn from(report: &AccessReport) -> Self {
        let AccessReport { snapshot, requests, objects, partitions } = report;
        let named = |(block, object): &(StripeId, Arc<str>)| NamedBlock {
            writer: block.writer(),
            sequence: block.sequence(),
            object: object.to_string(),
        };
        let reads = |reads: &PartitionReads| Partition {
            writer: reads.partition.0.writer(),
            sequence: reads.partition.0.sequence(),
            chunk: reads.partition.1.into(),
            count: reads.count,
        };
        Self {
            blocks: snapshot.blocks.iter().flat_map(|&(writer, sequence)| [writer, sequence]).collect(),
            lengths: snapshot.requests.iter().map(|request| request.len() as u32).collect(),
            accesses: snapshot.requests.concat(),
            requests: *requests,
            named: objects.iter().map(named).collect(),
            partitions: partitions.iter().map(reads).collect(),
        }
    }
}

impl TryFrom<ReportAccessRequest> for AccessReport {
    type Error = &'static str;

    /// Checks only the form: what a request names may not exist.
    fn try_from(report: ReportAccessRequest) -> Result<Self, Self::Error> {
        let (blocks, []) = report.blocks.as_chunks::<2>() else { return Err("half a block") };
        if report.named.len() > NAMED || report.named.iter().any(|block| block.object.len() > MAX_NAME_LEN) {
            return Err("too many names, or too long ones");
        }
        if report.partitions.len() > PARTITIONS
            || report.partitions.iter().any(|partition| partition.chunk > 255)
        {
            return Err("too many partitions, or no chunks");
        }
        let reads = |partition: &Partition| PartitionReads {
            partition: (StripeId::new(partition.writer, partition.sequence), partition.chunk as u8),
            count: partition.count,
        };
        let partitions = report.partitions.iter().map(reads).collect();
        let (mut requests, mut unassigned) = (Vec::with_capacity(report.lengths.len()), &report.accesses[..]);
        for length in report.lengths {
            let (request, rest) =
                unassigned.split_at_checked(length as usize).ok_or("fewer accesses than promised")?;
            requests.push(request.to_vec());
            unassigned = rest;
        }
        if !unassigned.is_empty() {
            return Err("more accesses than promised");
        }
        let snapshot = CoAccessSnapshot {
            blocks: blocks.iter().map(|&[writer, sequence]| (writer, sequence)).collect(),
            requests,
        };
        let named = report.named.into_iter();
        let objects = named.map(|block| (StripeId::new(block.writer, block.sequence), block.object.into()));
        Ok(Self { snapshot, requests: report.requests, objects: objects.collect(), partitions })
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
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
        let objects = vec![(StripeId::new(3, 9), Arc::from("photos/cat"))];
        let partitions = vec![PartitionReads { partition: (StripeId::new(3, 9), 5), count: 70 }];
        let report = AccessReport { snapshot, requests: 56_000, objects, partitions };
        let bytes = ReportAccessRequest::from(&report).encode_to_vec();
        assert_eq!(AccessReport::try_from(ReportAccessRequest::decode(&bytes[..]).unwrap()), Ok(report));
    }

    #[test]
    fn the_longest_report_fits_a_message() {
        let mut statistics = CoAccess::default();
        // No block twice: the interval then has the maximum number of blocks.
        for request in 0..20_000_u64 {
            statistics.observe((0..100).map(|block| StripeId::new(request, block)));
        }
        let name = "n".repeat(MAX_NAME_LEN);
        let report = AccessReport {
            snapshot: statistics.snapshot(),
            requests: u64::MAX,
            objects: (0..NAMED as u64).map(|block| (StripeId::new(block, 0), name.as_str().into())).collect(),
            partitions: vec![
                PartitionReads { partition: (StripeId::new(1, 1), 255), count: u64::MAX };
                PARTITIONS
            ],
        };
        let len = ReportAccessRequest::from(&report).encoded_len();
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
        assert!(AccessReport::try_from(report.clone()).is_ok());
        let half = ReportAccessRequest { blocks: vec![1, 2, 3], ..report.clone() };
        let more = ReportAccessRequest { lengths: vec![2], ..report.clone() };
        let fewer = ReportAccessRequest { lengths: vec![], ..report.clone() };
        let long = NamedBlock { object: "n".repeat(MAX_NAME_LEN + 1), ..NamedBlock::default() };
        let long = ReportAccessRequest { named: vec![long], ..report.clone() };
        let many = ReportAccessRequest { named: vec![NamedBlock::default(); NAMED + 1], ..report };
        for malformed in [half, more, fewer, long, many] {
            assert!(AccessReport::try_from(malformed.clone()).is_err(), "{malformed:?}");
        }
    }
}
