//! Access keys.

use std::time::Duration;

use http::{Method, Response};
use hyper::body::Incoming;
use striate_s3::{Credentials, KeyInfo};

use super::{AdminService, Body, ok, read};
use crate::admin::messages::{KeyShown, MakeKey, NewKey, RotateKey};
use crate::failure::Failure;

impl AdminService {
    pub(super) async fn keys(
        &self,
        method: Method,
        steps: &[&str],
        body: Incoming,
    ) -> Result<Response<Body>, Failure> {
        let keys = self.shared.cluster.keys();
        match (method, steps) {
            (Method::GET, []) => {
                let list = keys.list().await.map_err(Failure::failed)?;
                Ok(ok(&list.into_iter().map(KeyShown::from).collect::<Vec<_>>()))
            }
            (Method::POST, []) => {
                let wish: MakeKey = read(body).await?;
                let made = keys.create(&wish.description).await.map_err(Failure::failed)?;
                tracing::info!(access_key = made.access_key, "access key created");
                Ok(ok(&NewKey::from(made)))
            }
            (Method::POST, [name, "rotate"]) => {
                let wish: RotateKey = read(body).await?;
                let grace = Duration::from_secs(wish.grace_s);
                let made = keys.rotate(name, grace).await.map_err(Failure::failed)?;
                tracing::info!(access_key = made.access_key, grace_s = wish.grace_s, "access key rotated");
                Ok(ok(&NewKey::from(made)))
            }
            (Method::POST, [name, "revoke"]) => {
                keys.revoke(name).await.map_err(Failure::failed)?;
                tracing::info!(access_key = *name, "access key revoked");
                Ok(ok(&serde_json::json!({})))
            }
            _ => Err(Failure::failed("keys can be listed, created, rotated and revoked")),
        }
    }
}

impl From<Credentials> for NewKey {
    fn from(made: Credentials) -> Self {
        Self { access_key: made.access_key, secret: made.secret.to_string() }
    }
}

impl From<KeyInfo> for KeyShown {
    fn from(info: KeyInfo) -> Self {
        Self {
            access_key: info.access_key,
            description: info.description,
            created_unix_ms: info.created_unix_ms,
            revoked: info.revoked,
            is_static: info.is_static,
        }
    }
}
