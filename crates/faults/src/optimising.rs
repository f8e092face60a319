//! The optimising mover of the leading process, as run by `striate control --optimise-placement`.
//!
//! Gateways report what they have sampled, which here is all of their requests. A report takes no message, because it
//! is only a hint. The thresholds are low and the allowance is high, so that the mover acts within a run of seconds.

use std::time::Duration;

use striate_client::Client;
use striate_control::movement::{AccessSource, ActiveMoves, Allowance, Optimiser, OptimiserOptions};
use striate_control::{AccessReport, GatheredAccess, SiteStatistics};

use super::cluster::Cluster;

/// Pause between two rounds.
const EVERY: Duration = Duration::from_secs(1);
/// Requests before any chunk is moved; a run has 500.
const LEAST_REQUESTS: usize = 20;
/// Blocks drawn per round; there are a few dozen.
const DRAWS: usize = 16;

/// Moves chunks to speed up reads until the faults end.
pub async fn keep_optimising(cluster: &Cluster, client: &Client) {
    let optimiser = Optimiser::new(OptimiserOptions {
        allowance: Allowance::OfTraffic(0.5),
        draws: DRAWS,
        least_requests: LEAST_REQUESTS,
        ..OptimiserOptions::default()
    });
    let (access, statistics) = (GatheredAccess::default(), SiteStatistics::default());
    let source = AccessSource::Gathered(access.clone());
    let look = async {
        while cluster.moves_chunks() {
            client.runtime().sleep(EVERY).await;
            statistics.round(client.stripes()).await;
        }
    };
    let make_moves = async {
        let mut active_moves = ActiveMoves::default();
        while cluster.moves_chunks() {
            active_moves.during(client.runtime().sleep(EVERY)).await;
            report(cluster, client, &access);
            // The metadata fails as often as everything else; the next round tries again.
            let _ = optimiser.begin_round(client.stripes(), &source, &statistics, &mut active_moves).await;
        }
        let _ = active_moves.finish().await;
    };
    futures::join!(look, make_moves);
}

/// Collects the samples of every running gateway.
fn report(cluster: &Cluster, client: &Client, access: &GatheredAccess) {
    for gateway in &cluster.gateways {
        let Some(of_gateway) = gateway.client() else { continue };
        let report = AccessReport {
            snapshot: of_gateway.stripes().sampler().snapshot(),
            requests: of_gateway.stripes().requests(),
            ..AccessReport::default()
        };
        let name = format!("gateway-{}", gateway.machine.number);
        access.report(&name, report, client.runtime().now()).expect("few gateways, and well-formed reports");
    }
}
