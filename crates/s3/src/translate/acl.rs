//! Access lists: every bucket and object has the owner's full control and nothing else.

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};
use striate_client::GetRequest;

use super::bucket::owner;
use super::{Translator, check_version, not_implemented};
use crate::authorize::{ACCOUNT_ID, Resource};
use crate::refusal::Refusal;

fn owners_full_control() -> Grants {
    let grantee = Grantee {
        display_name: owner().display_name,
        email_address: None,
        id: owner().id,
        type_: Type::from_static(Type::CANONICAL_USER),
        uri: None,
    };
    let permission = Permission::from_static(Permission::FULL_CONTROL);
    vec![Grant { grantee: Some(grantee), permission: Some(permission) }]
}

/// Allows a list that changes nothing. Accepting any other would be a broken promise.
fn check_list(
    canned: Option<&str>,
    policy: Option<&AccessControlPolicy>,
    granted: bool,
) -> Result<(), Refusal> {
    let is_owner = |grant: &Grant| {
        let full = grant.permission.as_ref().is_some_and(|it| it.as_str() == Permission::FULL_CONTROL);
        full && grant.grantee.as_ref().is_some_and(|it| it.id.as_deref() == Some(ACCOUNT_ID))
    };
    let only_owner =
        policy.is_none_or(|policy| policy.grants.as_ref().is_some_and(|grants| grants.iter().all(is_owner)));
    let canned = matches!(canned, None | Some("private" | "bucket-owner-full-control" | "bucket-owner-read"));
    match canned && only_owner && !granted {
        true => Ok(()),
        false => Err(not_implemented("Access lists other than the owner's full control are not available.")),
    }
}

impl Translator {
    pub(super) async fn bucket_acl_get(
        &self,
        request: S3Request<GetBucketAclInput>,
    ) -> S3Result<S3Response<GetBucketAclOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "GetBucketAcl", "s3:GetBucketAcl", resource)?;
        self.client.bucket(&request.input.bucket).await.map_err(|error| entered.fail(error))?;
        Ok(S3Response::new(GetBucketAclOutput { grants: Some(owners_full_control()), owner: Some(owner()) }))
    }

    pub(super) async fn bucket_acl_put(
        &self,
        request: S3Request<PutBucketAclInput>,
    ) -> S3Result<S3Response<PutBucketAclOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "PutBucketAcl", "s3:PutBucketAcl", resource)?;
        let input = &request.input;
        self.client.bucket(&input.bucket).await.map_err(|error| entered.fail(error))?;
        let granted = input.grant_full_control.is_some()
            || input.grant_read.is_some()
            || input.grant_read_acp.is_some()
            || input.grant_write.is_some()
            || input.grant_write_acp.is_some();
        let canned = input.acl.as_ref().map(|acl| acl.as_str());
        check_list(canned, input.access_control_policy.as_ref(), granted)?;
        Ok(S3Response::new(PutBucketAclOutput::default()))
    }

    pub(super) async fn object_acl_get(
        &self,
        request: S3Request<GetObjectAclInput>,
    ) -> S3Result<S3Response<GetObjectAclOutput>> {
        let resource = Resource::Object(&request.input.bucket, &request.input.key);
        let entered = self.enter(&request, "GetObjectAcl", "s3:GetObjectAcl", resource)?;
        let input = request.input;
        check_version(input.version_id.as_deref())?;
        let head = GetRequest { bucket: input.bucket, key: input.key, ..GetRequest::default() };
        self.client.head(head).await.map_err(|error| entered.fail(error))?;
        Ok(S3Response::new(GetObjectAclOutput {
            grants: Some(owners_full_control()),
            owner: Some(owner()),
            ..GetObjectAclOutput::default()
        }))
    }

    pub(super) async fn object_acl_put(
        &self,
        request: S3Request<PutObjectAclInput>,
    ) -> S3Result<S3Response<PutObjectAclOutput>> {
        let resource = Resource::Object(&request.input.bucket, &request.input.key);
        let entered = self.enter(&request, "PutObjectAcl", "s3:PutObjectAcl", resource)?;
        let input = request.input;
        check_version(input.version_id.as_deref())?;
        let head = GetRequest { bucket: input.bucket, key: input.key, ..GetRequest::default() };
        self.client.head(head).await.map_err(|error| entered.fail(error))?;
        let granted = input.grant_full_control.is_some()
            || input.grant_read.is_some()
            || input.grant_read_acp.is_some()
            || input.grant_write.is_some()
            || input.grant_write_acp.is_some();
        let canned = input.acl.as_ref().map(|acl| acl.as_str());
        check_list(canned, input.access_control_policy.as_ref(), granted)?;
        Ok(S3Response::new(PutObjectAclOutput::default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_list_that_holds_anyway_may_be_set() {
        assert_eq!(check_list(Some("private"), None, false), Ok(()));
        let full = AccessControlPolicy { grants: Some(owners_full_control()), owner: None };
        assert_eq!(check_list(None, Some(&full), false), Ok(()));
        assert_eq!(check_list(Some("public-read"), None, false).unwrap_err().status, 501);
        assert_eq!(check_list(None, None, true).unwrap_err().status, 501);
    }
}
