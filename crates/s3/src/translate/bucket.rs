//! Operations on buckets.

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};
use striate_client::{ClientError, CreateBucket};
use striate_core::Profile;

use super::acl::is_owners;
use super::put::volatile_header;
use super::tagging::new_bucket_tags;
use super::{Translator, not_implemented, profile_of, timestamp};
use crate::authorize::{ACCOUNT_ID, ACCOUNT_NAME, Resource};
use crate::refusal::Refusal;
use crate::xml::Document;

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
        let entered = self.enter(&request, "CreateBucket", resource)?;
        let input = &request.input;
        check_new_bucket(input)?;
        let configuration = input.create_bucket_configuration.as_ref();
        let constraint = configuration.and_then(|configuration| configuration.location_constraint.as_ref());
        check_location(constraint.map(|region| region.as_str()), &self.region)?;
        let document = request.extensions.get::<Document>();
        let tags = document.map(|document| new_bucket_tags(&document.0)).transpose()?;
        let profile = profile_of(&request.headers)?;
        let create = CreateBucket {
            name: input.bucket.clone(),
            owner: entered.identity.access_key.clone(),
            profile,
            region: self.region.clone(),
            tags: tags.unwrap_or_default(),
            ..CreateBucket::default()
        };
        match self.client.create_bucket(create).await {
            Ok(_) => {}
            // As in S3, programs that create their bucket at each start succeed in this region only.
            Err(ClientError::BucketAlreadyOwned(name))
                if self.region == UNNAMED_REGION && self.has_profile(&name, profile).await? => {}
            Err(error) => return Err(entered.fail(error)),
        }
        let location = Some(format!("/{}", request.input.bucket));
        Ok(S3Response::new(CreateBucketOutput { location }))
    }

    /// Returns whether a bucket has the profile that a request names, if it names one.
    async fn has_profile(&self, bucket: &str, wish: Option<Profile>) -> S3Result<bool> {
        let Some(wish) = wish else { return Ok(true) };
        let bucket = self.client.bucket(bucket).await;
        Ok(bucket.is_ok_and(|bucket| bucket.profile.parse() == Ok(wish)))
    }

    pub(super) async fn bucket_head(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "HeadBucket", resource)?;
        let bucket = self.client.bucket(&request.input.bucket).await.map_err(|error| entered.fail(error))?;
        let is_here = bucket.origin.is_none();
        let headers = volatile_header(bucket.profile.parse().ok().filter(|_| is_here));
        let output =
            HeadBucketOutput { bucket_region: Some(self.region.clone()), ..HeadBucketOutput::default() };
        Ok(S3Response::with_headers(output, headers))
    }

    pub(super) async fn bucket_delete(
        &self,
        request: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "DeleteBucket", resource)?;
        self.client.delete_bucket(&request.input.bucket).await.map_err(|error| entered.fail(error))?;
        Ok(S3Response::with_status(DeleteBucketOutput::default(), http::StatusCode::NO_CONTENT))
    }

    pub(super) async fn bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "GetBucketLocation", resource)?;
        self.client.bucket(&request.input.bucket).await.map_err(|error| entered.fail(error))?;
        // Never the region that the bucket was made with: clients sign their next requests with this one.
        let region = self.region.clone();
        let location_constraint = (region != UNNAMED_REGION).then(|| BucketLocationConstraint::from(region));
        Ok(S3Response::new(GetBucketLocationOutput { location_constraint }))
    }

    pub(super) async fn buckets(
        &self,
        request: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        let entered = self.enter(&request, "ListBuckets", Resource::Account)?;
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
        let is_elsewhere = input.bucket_region.as_ref().is_some_and(|region| *region != self.region);
        let truncated = loop {
            if is_elsewhere {
                break false;
            }
            let page = self.client.list_buckets(&after, 1_000).await.map_err(|error| entered.fail(error))?;
            let Some(last) = page.last() else { break false };
            after.clone_from(&last.name);
            buckets.extend(page.into_iter().filter(|bucket| bucket.name.starts_with(&prefix)));
            if buckets.len() > max {
                buckets.truncate(max);
                break true;
            }
        };
        let token = buckets.last().filter(|_| truncated).map(|last| super::list::seal_token(&last.name));
        let paged = input.max_buckets.is_some() || input.continuation_token.is_some();
        let shown = buckets.into_iter().map(|bucket| Bucket {
            bucket_region: paged.then(|| self.region.clone()),
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
}

/// Refuses what a new bucket cannot have.
fn check_new_bucket(input: &CreateBucketInput) -> Result<(), Refusal> {
    const OWNERSHIPS: [&str; 3] = [
        ObjectOwnership::BUCKET_OWNER_ENFORCED,
        ObjectOwnership::BUCKET_OWNER_PREFERRED,
        ObjectOwnership::OBJECT_WRITER,
    ];
    if input.object_lock_enabled_for_bucket == Some(true) {
        return Err(not_implemented("Object lock is not available."));
    }
    if let Some(ownership) = input.object_ownership.as_ref().map(|ownership| ownership.as_str())
        && !OWNERSHIPS.contains(&ownership)
    {
        return Err(Refusal::bad(
            "InvalidArgument",
            format!("Invalid x-amz-object-ownership header: {ownership}"),
        ));
    }
    let granted = input.grant_full_control.is_some()
        || input.grant_read.is_some()
        || input.grant_read_acp.is_some()
        || input.grant_write.is_some()
        || input.grant_write_acp.is_some();
    match is_owners(input.acl.as_ref().map_or("", |acl| acl.as_str()))? && !granted {
        true => Ok(()),
        false => Err(Refusal::bad(
            "InvalidBucketAclWithObjectOwnership",
            "Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting",
        )),
    }
}

/// Accepts only the server's region: a client that asks for another would sign for that one, and be refused.
fn check_location(constraint: Option<&str>, region: &str) -> Result<(), Refusal> {
    match constraint {
        None | Some("") => Ok(()),
        Some(constraint) if constraint == region => Ok(()),
        // The name that S3 gave this region before regions had names.
        Some("EU") if region == "eu-west-1" => Ok(()),
        Some(constraint) => Err(Refusal::bad(
            "InvalidLocationConstraint",
            format!(
                "The specified location-constraint is not valid: {constraint:?}. This store is in {region}."
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_the_servers_region() {
        for (constraint, region) in [
            (None, "us-east-1"),
            (Some(""), "x"),
            (Some("us-east-1"), "us-east-1"),
            (Some("EU"), "eu-west-1"),
        ] {
            assert_eq!(check_location(constraint, region), Ok(()));
        }
        for (constraint, region) in
            [("eu-west-1", "us-east-1"), ("us-east-1", "eu-west-1"), ("EU", "us-east-1")]
        {
            let refusal = check_location(Some(constraint), region).unwrap_err();
            assert_eq!(refusal.code, "InvalidLocationConstraint");
            assert!(refusal.message.contains(region), "{}", refusal.message);
        }
    }

    #[test]
    fn new_buckets_have_a_known_ownership_and_no_lists() {
        let code = |change: fn(&mut CreateBucketInput)| {
            let mut input = CreateBucketInput::default();
            change(&mut input);
            check_new_bucket(&input).map_err(|refusal| refusal.code)
        };
        assert_eq!(code(|input| input.acl = Some("private".to_owned().into())), Ok(()));
        assert_eq!(
            code(|input| input.object_ownership = Some("Mine".to_owned().into())),
            Err("InvalidArgument")
        );
        assert_eq!(code(|input| input.acl = Some("public".to_owned().into())), Err("InvalidArgument"));
        for change in [
            (|input| input.acl = Some("public-read".to_owned().into())) as fn(&mut CreateBucketInput),
            |input| input.grant_read = Some("id=1".to_owned()),
        ] {
            assert_eq!(code(change), Err("InvalidBucketAclWithObjectOwnership"));
        }
    }
}
