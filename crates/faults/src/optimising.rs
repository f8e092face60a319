//! The optimising mover of the process that leads, as `striate control --optimise-placement` runs it.
//!
//! Gateways report what they have sampled, which is all of their requests here, and takes no message: a report is a hint. Few
//! requests are needed, and much may be moved, so that something is in a run of seconds.

use std::time::Duration;

use striate_client::Client;
use striate_control::movement::{AccessSource, Allowance, Optimiser, OptimiserOptions, Underway};
use striate_control::{AccessReport, GatheredAccess, SiteStatistics};

use super::cluster::Cluster;

/// Pause between two rounds.
const EVERY: Duration = Duration::from_secs(1);
/// Requests before anything is moved, of the 500 of a run.
const LEAST_REQUESTS: usize = 20;
/// Blocks drawn in a round: there are some tens.
const DRAWS: usize = 16;

/// Moves chunks for the readers' sake until the faults end.
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
        let mut underway = Underway::default();
        while cluster.moves_chunks() {
            underway.during(client.runtime().sleep(EVERY)).await;
            report(cluster, client, &access);
            // The metadata fails as often as everything else, and the next round goes on.
            let _ = optimiser.begin_round(client.stripes(), &source, &statistics, &mut underway).await;
        }
        let _ = underway.finish().await;
    };
    futures::join!(look, make_moves);
}

/// What every gateway that runs has sampled.
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
