//! The load of sites as the statistics service sees it.

use std::time::Duration;

use striate_control::{SiteLoadView, SiteStatistics};

use crate::cluster::Cluster;

fn omegas(statistics: &SiteStatistics) -> Vec<(u32, f64)> {
    statistics.view().iter().map(|view| (view.site.0, (view.omega * 1e6).round() / 1e6)).collect()
}

#[tokio::test(start_paused = true)]
async fn what_sites_tell_is_taken_down_and_a_loud_moment_counts_half() {
    let cluster = Cluster::start(3, "rs(2,1)").await;
    let statistics = SiteStatistics::default();
    assert_eq!(statistics.view(), []);
    cluster.sites[0].tell(1, 400, 200, 10);
    cluster.sites[1].tell(0, 0, 0, 10);
    cluster.sites[2].tell(0, 100, 0, 40);
    statistics.round(cluster.client.stripes()).await;
    assert_eq!(omegas(&statistics), [(1, 0.65), (2, 0.05), (3, 0.3)]);
    let imbalance: Vec<_> =
        statistics.view().iter().map(|SiteLoadView { imbalance, .. }| *imbalance).collect();
    assert!((imbalance[0] - 0.95).abs() < 1e-9 && (imbalance[1] - 0.85).abs() < 1e-9, "{imbalance:?}");

    cluster.sites[0].tell(1, 0, 200, 10);
    statistics.round(cluster.client.stripes()).await;
    assert_eq!(omegas(&statistics)[0], (1, 0.45));
}

/// Two sites are equally busy, and one reads three times as much; once all sites report their bytes, these count.
#[tokio::test(start_paused = true)]
async fn a_disks_share_of_time_is_spread_by_what_sites_read() {
    let cluster = Cluster::start(3, "rs(2,1)").await;
    let statistics = SiteStatistics::default();
    for (site, (io_permille, rate)) in cluster.sites.iter().zip([(400, 30), (400, 10), (100, 20)]) {
        site.tell(1, 0, io_permille, 10);
        *site.read_rate.lock() = (rate != 20).then_some(rate);
    }
    let shares = || statistics.view().iter().map(|view| view.load.io).collect::<Vec<_>>();
    statistics.round(cluster.client.stripes()).await;
    assert_eq!(shares(), [0.4, 0.4, 0.1], "one does not tell");
    *cluster.sites[2].read_rate.lock() = Some(20);
    statistics.round(cluster.client.stripes()).await;
    assert!(
        shares().iter().zip([0.45, 0.15, 0.3]).all(|(got, share)| (got - share).abs() < 1e-9),
        "{:?}",
        shares()
    );
}

#[tokio::test(start_paused = true)]
async fn a_site_that_does_not_answer_has_no_load_until_it_does() {
    let cluster = Cluster::start(3, "rs(2,1)").await;
    let statistics = SiteStatistics::default();
    *cluster.sites[1].down.lock() = true;
    statistics.round(cluster.client.stripes()).await;
    assert_eq!(omegas(&statistics).iter().map(|(site, _)| *site).collect::<Vec<_>>(), [1, 3]);
    *cluster.sites[1].down.lock() = false;
    statistics.round(cluster.client.stripes()).await;
    assert_eq!(statistics.view().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn rounds_go_on_every_5_to_10_seconds_until_the_service_is_given_up() {
    let cluster = Cluster::start(3, "rs(2,1)").await;
    let statistics = SiteStatistics::default();
    let service = cluster.runtime.spawn(statistics.clone().run(cluster.client.stripes().clone()));
    cluster.runtime.sleep(Duration::from_secs(100)).await;
    let asked = cluster.sites[0].times_asked();
    assert!((10..=20).contains(&asked), "{asked} rounds in 100 s");
    service.abort();
    cluster.runtime.sleep(Duration::from_secs(100)).await;
    assert_eq!(cluster.sites[0].times_asked(), asked);
}
