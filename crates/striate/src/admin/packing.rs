//! Packing: its state, packing on request, and unpacking. One of these operations runs at a time in a cluster; the
//! service rests meanwhile.

use http::Response;
use striate_commands::admin::messages::{Line, PackNow};
use striate_commands::failure::Failure;
use striate_control::PackRequest;

use super::{AdminService, Body, STOPPING, ok};

/// Reasons why an operation does not start.
const RUNNING: &str =
    "packing by hand, or its undoing, is running already; wait for it, or stop that command";

const RUNNING_ELSEWHERE: &str = "packing by hand, or its undoing, is running already at another gateway; wait for it, or stop that command \
    (where a gateway has died in it, some seconds)";

impl AdminService {
    pub(super) async fn packing(&self, bucket: Option<&str>) -> Result<Response<Body>, Failure> {
        let cluster = &self.shared.cluster;
        if let Some(name) = bucket {
            cluster.client().bucket(name).await.map_err(Failure::failed)?;
        }
        Ok(ok(&cluster.packing(bucket).await.map_err(Failure::failed)?))
    }

    pub(super) fn pack(self, wish: PackNow) -> Response<Body> {
        self.long_operation(move |service, mut pace| async move {
            let Some(_alone) = service.alone(&service.shared.packing).await else {
                return Line::Failed(RUNNING.to_owned());
            };
            let cluster = &service.shared.cluster;
            let _hold = match cluster
                .upkeep()
                .packing()
                .hold(cluster.client().stripes(), &service.shared.process)
                .await
            {
                Ok(Some(hold)) => hold,
                Ok(None) => return Line::Failed(RUNNING_ELSEWHERE.to_owned()),
                Err(error) => return Line::Failed(error.to_string()),
            };
            let wish = PackRequest { bucket: wish.bucket, now: wish.now, cold: wish.cold };
            let packed = striate_control::pack_now(cluster.client().stripes(), &wish, |progress| {
                pace.progress(progress)
            });
            match packed.await {
                Ok(report) if report.stopped => Line::Failed(STOPPING.to_owned()),
                Ok(report) => Line::Report(serde_json::json!({ "report": report })),
                Err(error) => Line::Failed(error.to_string()),
            }
        })
    }

    pub(super) fn unpack(self, bucket: String) -> Response<Body> {
        self.long_operation(move |service, mut pace| async move {
            let Some(_alone) = service.alone(&service.shared.packing).await else {
                return Line::Failed(RUNNING.to_owned());
            };
            let (cluster, client) = (&service.shared.cluster, service.shared.cluster.client());
            let _hold = match cluster.upkeep().packing().hold(client.stripes(), &service.shared.process).await
            {
                Ok(Some(hold)) => hold,
                Ok(None) => return Line::Failed(RUNNING_ELSEWHERE.to_owned()),
                Err(error) => return Line::Failed(error.to_string()),
            };
            let before = match client.stop_packing(&bucket).await {
                Ok(before) => before,
                Err(error) => return Line::Failed(error.to_string()),
            };
            let group_len = client.options().group_len;
            let unpacked = striate_control::unpack_bucket(client.stripes(), &bucket, group_len, |progress| {
                pace.progress(progress)
            });
            match unpacked.await {
                Ok(report) if report.stopped => Line::Failed(STOPPING.to_owned()),
                Ok(report) => Line::Report(serde_json::json!({
                    "whole": report.is_whole(), "setting_before": before, "report": report
                })),
                Err(error) => Line::Failed(error.to_string()),
            }
        })
    }
}
