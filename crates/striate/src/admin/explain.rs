//! Explains how objects would be read now.

use http::Response;
use striate_commands::admin::messages::{Explain, Explanation, RemoteExplanation};
use striate_commands::failure::Failure;
use striate_plan::ReadPolicy;
use striate_s3::RemoteBuckets;

use super::{AdminService, Body, ok};

impl AdminService {
    pub(super) async fn explain(&self, wish: Explain) -> Result<Response<Body>, Failure> {
        let policy = wish.policy.as_deref().map(str::parse::<ReadPolicy>).transpose();
        let policy = policy.map_err(Failure::refused)?;
        let origins = self.shared.cluster.origins();
        let (remote, here): (Vec<_>, Vec<_>) =
            wish.objects.into_iter().partition(|(bucket, _)| origins.has(bucket));
        let read = self.shared.cluster.client().explain(&here, policy).await.map_err(Failure::failed)?;
        let mut explained = Explanation { read, elsewhere: Vec::new() };
        for (bucket, key) in remote {
            let found = origins.explain(&bucket, &key).await.map_err(Failure::failed)?;
            explained.elsewhere.push(RemoteExplanation {
                origin: found.origin,
                would: found.would,
                etag: found.etag,
                size: found.size,
                known_for_ms: found.known_for.as_millis() as u64,
                ttl_ms: found.ttl.as_millis() as u64,
                blocks: found.blocks,
                blocks_in_memory: found.blocks_in_memory,
                first_blocks: found.first_blocks,
                bucket,
                key,
            });
        }
        Ok(ok(&explained))
    }
}
