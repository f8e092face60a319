//! The default profile: shows and changes it.

use http::{Method, Response};
use hyper::body::Incoming;
use striate_commands::admin::messages::ChooseProfile;
use striate_commands::failure::Failure;

use super::{AdminService, Body, ok, read};

impl AdminService {
    pub(super) async fn profile(&self, method: Method, body: Incoming) -> Result<Response<Body>, Failure> {
        let cluster = &self.shared.cluster;
        if method == Method::POST {
            let wish: ChooseProfile = read(body).await?;
            cluster.choose_profile(&wish.profile).await?;
        }
        Ok(ok(&cluster.profile_state()))
    }
}
