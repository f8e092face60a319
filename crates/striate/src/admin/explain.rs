//! How objects would be read now.

use http::Response;
use striate_commands::admin::messages::Explain;
use striate_commands::failure::Failure;
use striate_plan::ReadPolicy;

use super::{AdminService, Body, ok};

impl AdminService {
    pub(super) async fn explain(&self, wish: Explain) -> Result<Response<Body>, Failure> {
        let policy = wish.policy.as_deref().map(str::parse::<ReadPolicy>).transpose();
        let policy = policy.map_err(Failure::refused)?;
        let explained = self.shared.cluster.client().explain(&wish.objects, policy).await;
        Ok(ok(&explained.map_err(Failure::failed)?))
    }
}
