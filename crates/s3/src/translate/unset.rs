//! Bucket configurations that Striate does not have: read, they are not set; deleted, they were not set;
//! written, they are refused, because a configuration that is taken and not followed is worse than none.

use s3s::{S3Request, S3Response, S3Result};
use striate_client::ClientError;

use super::Translator;
use crate::authorize::Resource;

impl Translator {
    /// Reading answers 404 with S3's code for a configuration that is not set.
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

    /// Reading answers an empty configuration, where S3 has no code for none.
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

    /// Deleting what is not set succeeds.
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
