//! Bucket configurations that Striate does not support. They read as not set, and deleting them succeeds. Writing them
//! is refused, because a configuration that is accepted and ignored is worse than none.

use s3s::{S3Request, S3Response, S3Result};
use striate_client::ClientError;

use super::Translator;
use crate::authorize::Resource;

impl Translator {
    /// Responds to a read with 404 and S3's code for a configuration that is not set.
    pub(super) async fn unset<I, O>(
        &self,
        request: &S3Request<I>,
        bucket: &str,
        operation: &'static str,
        action: &'static str,
        code: &'static str,
    ) -> S3Result<S3Response<O>> {
        let entered = self.enter(request, operation, action, Resource::Bucket(bucket))?;
        self.client.bucket(bucket).await.map_err(|error| entered.fail(error))?;
        Err(entered.fail(ClientError::NotSet(code)))
    }

    /// Responds to a read with an empty configuration, where S3 has no code for a missing one.
    pub(super) async fn empty<I, O: Default>(
        &self,
        request: &S3Request<I>,
        bucket: &str,
        operation: &'static str,
        action: &'static str,
    ) -> S3Result<S3Response<O>> {
        let entered = self.enter(request, operation, action, Resource::Bucket(bucket))?;
        self.client.bucket(bucket).await.map_err(|error| entered.fail(error))?;
        Ok(S3Response::new(O::default()))
    }

    /// Responds to a delete with success.
    pub(super) async fn cleared<I, O: Default>(
        &self,
        request: &S3Request<I>,
        bucket: &str,
        operation: &'static str,
        action: &'static str,
    ) -> S3Result<S3Response<O>> {
        let answer = self.empty(request, bucket, operation, action).await?;
        Ok(S3Response { status: Some(http::StatusCode::NO_CONTENT), ..answer })
    }
}
