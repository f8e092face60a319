//! Bucket configurations that Striate does not support. They read as not set, and deleting them succeeds. Writing them
//! is refused, because a configuration that is accepted and ignored is worse than none. The table of operations says
//! what the answer to each is.

use s3s::{S3Request, S3Response, S3Result};
use striate_client::ClientError;

use super::Translator;
use crate::authorize::Resource;
use crate::operations::Server;

impl Translator {
    /// Responds as S3 does for a bucket without this configuration.
    pub(super) async fn not_set<I, O: Default>(
        &self,
        request: &S3Request<I>,
        bucket: &str,
        operation: &'static str,
    ) -> S3Result<S3Response<O>> {
        let entered = self.enter(request, operation, Resource::Bucket(bucket))?;
        self.client.bucket(bucket).await.map_err(|error| entered.fail(error))?;
        match entered.carried.operation.server {
            Server::NotSet(code) => Err(entered.fail(ClientError::NotSet(code))),
            Server::Cleared => Ok(S3Response::with_status(O::default(), http::StatusCode::NO_CONTENT)),
            _ => Ok(S3Response::new(O::default())),
        }
    }
}
