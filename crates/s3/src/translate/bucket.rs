//! Operations on buckets.

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};
use striate_client::CreateBucket;

use super::put::volatile_header;
use super::{Translator, not_implemented, profile_of, timestamp};
use crate::authorize::{ACCOUNT_ID, ACCOUNT_NAME, Resource};
use crate::refusal::Refusal;

/// The region that S3 does not name.
const UNNAMED_REGION: &str = "us-east-1";
/// Maximum number of buckets in one page of ListBuckets, as in S3.
const MAX_BUCKETS: usize = 10_000;

pub(super) fn owner() -> Owner {
    Owner { display_name: Some(ACCOUNT_NAME.to_owned()), id: Some(ACCOUNT_ID.to_owned()) }
}

impl Translator {
    pub(super) async fn bucket_create(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "CreateBucket", "s3:CreateBucket", resource)?;
        let input = &request.input;
        if input.object_lock_enabled_for_bucket == Some(true) {
            return Err(not_implemented("Object lock is not available.").into());
        }
        if input.acl.as_ref().is_some_and(|acl| acl.as_str() != "private") {
            return Err(not_implemented(
                "Access lists other than the owner's full control are not available.",
            )
            .into());
        }
        let constraint = input
            .create_bucket_configuration
            .as_ref()
            .and_then(|configuration| configuration.location_constraint.as_ref());
        let region = constraint.map(|region| region.as_str().to_owned()).filter(|region| !region.is_empty());
        let create = CreateBucket {
            name: input.bucket.clone(),
            owner: entered.identity.access_key.clone(),
            profile: profile_of(&request.headers)?,
            region: region.unwrap_or_else(|| self.region.clone()),
            ..CreateBucket::default()
        };
        self.client.create_bucket(create).await.map_err(|error| entered.fail(error))?;
        let location = Some(format!("/{}", request.input.bucket));
        Ok(S3Response::new(CreateBucketOutput { location }))
    }

    pub(super) async fn bucket_head(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "HeadBucket", "s3:ListBucket", resource)?;
        let bucket = self.client.bucket(&request.input.bucket).await.map_err(|error| entered.fail(error))?;
        let is_here = bucket.origin.is_none();
        let headers = volatile_header(bucket.profile.parse().ok().filter(|_| is_here));
        let region = self.region_of(bucket.region);
        let output = HeadBucketOutput { bucket_region: Some(region), ..HeadBucketOutput::default() };
        Ok(S3Response::with_headers(output, headers))
    }

    pub(super) async fn bucket_delete(
        &self,
        request: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "DeleteBucket", "s3:DeleteBucket", resource)?;
        self.client.delete_bucket(&request.input.bucket).await.map_err(|error| entered.fail(error))?;
        Ok(S3Response::with_status(DeleteBucketOutput::default(), http::StatusCode::NO_CONTENT))
    }

    pub(super) async fn bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "GetBucketLocation", "s3:GetBucketLocation", resource)?;
        let bucket = self.client.bucket(&request.input.bucket).await.map_err(|error| entered.fail(error))?;
        let region = self.region_of(bucket.region);
        let location_constraint = (region != UNNAMED_REGION).then(|| BucketLocationConstraint::from(region));
        Ok(S3Response::new(GetBucketLocationOutput { location_constraint }))
    }

    pub(super) async fn buckets(
        &self,
        request: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        let entered = self.enter(&request, "ListBuckets", "s3:ListAllMyBuckets", Resource::Account)?;
        let input = request.input;
        let max = match input.max_buckets {
            None => MAX_BUCKETS,
            Some(max) if (1..=MAX_BUCKETS as i32).contains(&max) => max as usize,
            Some(_) => {
                return Err(Refusal::bad("InvalidArgument", "max-buckets must be from 1 to 10000.").into());
            }
        };
        let prefix = input.prefix.clone().unwrap_or_default();
        let mut after =
            input.continuation_token.as_deref().map(super::list::open_token).transpose()?.unwrap_or_default();
        let mut buckets = Vec::new();
        let truncated = loop {
            let page = self.client.list_buckets(&after, 1_000).await.map_err(|error| entered.fail(error))?;
            let Some(last) = page.last() else { break false };
            after.clone_from(&last.name);
            let in_region = |region: &str| match &input.bucket_region {
                Some(requested) => self.region_of(region.to_owned()) == *requested,
                None => true,
            };
            buckets.extend(page.into_iter().filter(|b| b.name.starts_with(&prefix) && in_region(&b.region)));
            if buckets.len() > max {
                buckets.truncate(max);
                break true;
            }
        };
        let token = buckets.last().filter(|_| truncated).map(|last| super::list::seal_token(&last.name));
        let paged = input.max_buckets.is_some() || input.continuation_token.is_some();
        let shown = buckets.into_iter().map(|bucket| Bucket {
            bucket_region: paged.then(|| self.region_of(bucket.region)),
            creation_date: Some(timestamp(bucket.created_unix_ms)),
            name: Some(bucket.name),
        });
        Ok(S3Response::new(ListBucketsOutput {
            buckets: Some(shown.collect()),
            continuation_token: token,
            owner: Some(owner()),
            prefix: input.prefix,
        }))
    }

    fn region_of(&self, region: String) -> String {
        if region.is_empty() { self.region.clone() } else { region }
    }
}
