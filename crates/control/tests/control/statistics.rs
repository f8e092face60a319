//! The load of sites, as the statistics service knows it.

use std::time::Duration;

use striate_control::{SiteLoadView, SiteStatistics};

use crate::cluster::Cluster;

fn omegas(statistics: &SiteStatistics) -> Vec<(u32, f64)> {
    statistics.view().iter().map(|view| (view.site.0, (view.omega * 1e6).round() / 1e6)).collect()
}

#[tokio::test(start_paused = true)]
async fn what_sites_tell_is_taken_down_and_silent_ones_are_asked() {
    let cluster = Cluster::start(3, "rs(2,1)").await;
    let statistics = SiteStatistics::default();
    assert_eq!(statistics.view(), []);
    // The first has told its load, the others have told nothing and are asked.
    cluster.sites[0].tell(1, 400, 200, 10);
    cluster.sites[1].tell(0, 0, 0, 10);
    cluster.sites[2].tell(0, 100, 0, 40);
    statistics.round(&cluster.client).await;
    assert_eq!(omegas(&statistics), [(1, 0.65), (2, 0.05), (3, 0.3)]);
    assert_eq!(cluster.sites.iter().map(|site| site.times_asked()).collect::<Vec<_>>(), [0, 1, 1]);
    let imbalance: Vec<_> =
        statistics.view().iter().map(|SiteLoadView { imbalance, .. }| *imbalance).collect();
    assert!((imbalance[0] - 0.95).abs() < 1e-9 && (imbalance[1] - 0.85).abs() < 1e-9, "{imbalance:?}");

    // Nothing new from the first: it is asked too. A loud moment counts half.
    cluster.sites[0].tell(1, 0, 200, 10);
    statistics.round(&cluster.client).await;
    assert_eq!(omegas(&statistics)[0], (1, 0.45));
    assert_eq!(cluster.sites[0].times_asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_site_that_does_not_answer_has_no_load_until_it_does() {
    let cluster = Cluster::start(3, "rs(2,1)").await;
    let statistics = SiteStatistics::default();
    *cluster.sites[1].down.lock() = true;
    statistics.round(&cluster.client).await;
    assert_eq!(omegas(&statistics).iter().map(|(site, _)| *site).collect::<Vec<_>>(), [1, 3]);
    *cluster.sites[1].down.lock() = false;
    statistics.round(&cluster.client).await;
    assert_eq!(statistics.view().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn rounds_go_on_every_5_to_10_seconds_until_the_service_is_given_up() {
    let cluster = Cluster::start(3, "rs(2,1)").await;
    let statistics = SiteStatistics::default();
    let service = cluster.runtime.spawn(statistics.clone().run(cluster.client.clone()));
    cluster.runtime.sleep(Duration::from_secs(100)).await;
    let asked = cluster.sites[0].times_asked();
    assert!((10..=20).contains(&asked), "{asked} rounds in 100 s");
    service.abort();
    cluster.runtime.sleep(Duration::from_secs(100)).await;
    assert_eq!(cluster.sites[0].times_asked(), asked);
}
