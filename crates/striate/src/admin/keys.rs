//! Access keys.

use std::time::Duration;

use http::{Method, Response};
use hyper::body::Incoming;
use striate_commands::admin::messages::{KeySummary, MakeKey, NewKey, RotateKey};
use striate_commands::failure::Failure;
use striate_s3::{Credentials, KeyInfo};

use super::{AdminService, Body, changed, ok, read};

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
                Ok(ok(&list.into_iter().map(shown).collect::<Vec<_>>()))
            }
            (Method::POST, []) => {
                let wish: MakeKey = read(body).await?;
                let credentials = keys.create(&wish.description).await.map_err(Failure::failed)?;
                tracing::info!(access_key = credentials.access_key, "access key created");
                Ok(changed(&credentials.access_key.clone(), &new_key(credentials)))
            }
            (Method::POST, [name, "rotate"]) => {
                let wish: RotateKey = read(body).await?;
                let grace = Duration::from_secs(wish.grace_s);
                let credentials = keys.rotate(name, grace).await.map_err(Failure::failed)?;
                tracing::info!(
                    access_key = credentials.access_key,
                    grace_s = wish.grace_s,
                    "access key rotated"
                );
                Ok(ok(&new_key(credentials)))
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

fn new_key(credentials: Credentials) -> NewKey {
    NewKey { access_key: credentials.access_key, secret: credentials.secret.to_string() }
}

fn shown(info: KeyInfo) -> KeySummary {
    KeySummary {
        access_key: info.access_key,
        description: info.description,
        created_unix_ms: info.created_unix_ms,
        revoked: info.revoked,
        is_static: info.is_static,
    }
}
