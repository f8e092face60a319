//! Retiring a site of a cluster, through all its processes.

use std::time::Duration;

use striate::membership::client::{Channel, ControlError};
use striate::membership::messages::cluster_control_client::ClusterControlClient;
use striate::membership::messages::{RegisterRequest, RetireSiteRequest, SetDrainingRequest};
use striate::start::roster::Roster;
use striate_client::CreateBucket;
use striate_control::ProcessReport;
use striate_core::Formats;
use striate_trust::Role;

use crate::cluster_processes::{
    PATIENCE, TestCluster, get, noise, put, put_old_formats_in_force, wait_until,
};

impl TestCluster {
    async fn retire(&self, site: u32) -> Result<(), String> {
        let ask = move |mut control: ClusterControlClient<Channel>| async move {
            control.retire_site(RetireSiteRequest { site }).await
        };
        let admin = self.client(Role::Admin, "admin").await;
        admin.ask(ask).await.map(drop).map_err(|error| error.to_string())
    }

    /// Retires a site once all processes have reported the formats that they read.
    async fn retire_later(&self, site: u32) -> Result<(), String> {
        let trying = async {
            loop {
                match self.retire(site).await {
                    Err(reason) if reason.contains("if they have just started") => {
                        self.runtime.sleep(Duration::from_millis(200)).await;
                    }
                    retired => return retired,
                }
            }
        };
        self.runtime.timeout(PATIENCE, trying).await.expect("they report")
    }

    async fn drain(&self, site: u32) {
        let ask = move |mut control: ClusterControlClient<Channel>| async move {
            control.set_draining(SetDrainingRequest { site, draining: true }).await
        };
        self.client(Role::Admin, "admin").await.ask(ask).await.unwrap();
    }

    /// Registers the disk of a site's directory, as its process does every ten seconds.
    async fn register_disk(&self, number: usize) -> Result<u32, ControlError> {
        let (roster, disk) = Roster::read(&self.path(&format!("disk{number}"))).unwrap().unwrap();
        let request = RegisterRequest {
            disk: disk.0.to_vec(),
            site: roster.members[0].site.0,
            address: "h:1".to_owned(),
            rack: "a".to_owned(),
            capacity_bytes: 0,
            record_format: Formats::NEWEST.records,
            chunk_format: Formats::NEWEST.chunks,
        };
        let ask = |mut control: ClusterControlClient<Channel>| {
            let request = request.clone();
            async move { control.register(request).await }
        };
        let site = self.client(Role::Site, &format!("s{number}")).await;
        Ok(site.ask(ask).await?.site)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_site_is_retired_and_holds_nothing_up_any_more() {
    let cluster = TestCluster::start().await;
    cluster.wait_for_sites(|sites, _| sites.is_empty()).await;
    put_old_formats_in_force(&cluster.meta).await;
    let mut sites = Vec::new();
    for number in 1..=4 {
        sites.push(cluster.run_site(number, ["a", "b", "c"][number % 3]).await);
    }
    cluster.wait_for_sites(|sites, _| sites.len() == 4).await;
    let gateway = cluster.gateway("g1").await;
    // The gateway's process does the same.
    let (runtime, writer) = (&cluster.runtime, gateway.client().clone());
    let report = ProcessReport::new(runtime.clone(), cluster.meta.clone(), "gateway", "g1", "this program");
    let reporting = runtime.spawn(report.keep(move || Some(writer.stripes().writer_lease())));
    let bucket = CreateBucket { name: "bucket".to_owned(), ..CreateBucket::default() };
    gateway.client().create_bucket(bucket).await.unwrap();
    wait_until(&cluster.runtime, || gateway.client().stripes().candidates().len() == 4).await;
    let bytes = noise(300_000);
    put(&gateway, "object", &bytes).await.unwrap();

    // A fifth site joins, gets no chunks, and is lost.
    let fifth = cluster.run_site(5, "a").await;
    cluster.wait_for_sites(|sites, _| sites.len() == 5).await;
    let refused = cluster.retire(5).await.unwrap_err();
    assert!(refused.contains("site 5 answers and takes chunks"), "{refused}");
    fifth.stop().await;
    // No other site can take the chunks of the first one.
    cluster.drain(1).await;
    let refused = cluster.retire_later(1).await.unwrap_err();
    assert!(refused.contains("site 1 still has a chunk of one stripe"), "{refused}");
    wait_until(&cluster.runtime, || gateway.client().stripes().sites().len() == 5).await;
    let held = gateway.finalize_upgrade().await.unwrap_err().to_string();
    assert!(held.contains("site 5"), "{held}");

    cluster.retire_later(5).await.unwrap();
    wait_until(&cluster.runtime, || gateway.client().stripes().sites().len() == 4).await;
    let status = gateway.status("").await;
    assert!(status.sites.iter().all(|site| site.site != 5), "{:?}", status.sites);
    assert!(status.warnings.iter().all(|warning| !warning.contains("site 5")), "{:?}", status.warnings);
    assert_eq!(gateway.finalize_upgrade().await.unwrap(), Formats::NEWEST);
    assert_eq!(get(&gateway, "object").await.unwrap(), bytes);

    // If its disk returns, it is refused. Once emptied, it is another disk, under the same certificate.
    let refused = cluster.register_disk(5).await.unwrap_err().to_string();
    assert!(refused.contains("site 5 was given up for good: empty its directory"), "{refused}");
    std::fs::remove_dir_all(cluster.path("disk5")).unwrap();
    let emptied = cluster.run_site(5, "a").await;
    let listed = cluster.wait_for_sites(|sites, _| sites.len() == 6).await;
    let of_process = |number: u32| listed.iter().find(|site| site.site == number).unwrap();
    assert_eq!((of_process(5).state.as_str(), of_process(6).peer.as_str()), ("retired", "s5"));

    reporting.abort();
    gateway.close().await;
    for site in sites.into_iter().chain([emptied]) {
        site.stop().await;
    }
    cluster.stop().await;
}
