//! Access lists: every bucket and object has the owner's full control and nothing else.

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};
use striate_client::GetRequest;

use super::bucket::owner;
use super::{Translator, check_version};
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

/// Canned lists that grant nothing beyond the owner's full control.
const OWNERS: [&str; 3] = ["private", "bucket-owner-full-control", "bucket-owner-read"];
/// Canned lists that grant more.
const OTHERS: [&str; 5] =
    ["public-read", "public-read-write", "authenticated-read", "aws-exec-read", "log-delivery-write"];

/// Refuses a list that grants more than the owner's full control. Accepting it would be a broken promise. Buckets
/// behave as new ones in S3, which enforce that everything belongs to their owner.
pub(super) fn not_supported() -> Refusal {
    Refusal::bad("AccessControlListNotSupported", "The bucket does not allow ACLs")
}

/// Checks the name of a canned list. Returns whether it grants no more than the owner's full control.
///
/// # Errors
/// InvalidArgument for an unknown name.
pub(super) fn is_owners(canned: &str) -> Result<bool, Refusal> {
    match canned {
        "" => Ok(true),
        canned if OWNERS.contains(&canned) => Ok(true),
        canned if OTHERS.contains(&canned) => Ok(false),
        _ => Err(Refusal::bad("InvalidArgument", format!("x-amz-acl: there is no canned list {canned:?}"))),
    }
}

/// Checks a document's form: an owner, and grants of known permissions to somebody.
fn check_document(policy: &AccessControlPolicy) -> Result<(), Refusal> {
    const PERMISSIONS: [&str; 5] = [
        Permission::FULL_CONTROL,
        Permission::READ,
        Permission::READ_ACP,
        Permission::WRITE,
        Permission::WRITE_ACP,
    ];
    const TYPES: [&str; 3] = [Type::AMAZON_CUSTOMER_BY_EMAIL, Type::CANONICAL_USER, Type::GROUP];
    let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    let is_known = |grant: &Grant| {
        let permission = grant.permission.as_ref().is_some_and(|it| PERMISSIONS.contains(&it.as_str()));
        let grantee = grant.grantee.as_ref().is_some_and(|it| {
            let names = [&it.id, &it.uri, &it.email_address].into_iter().any(is_set);
            names && TYPES.contains(&it.type_.as_str())
        });
        permission && grantee
    };
    let has_owner = policy.owner.as_ref().is_some_and(|owner| is_set(&owner.id));
    match has_owner && policy.grants.iter().flatten().all(is_known) {
        true => Ok(()),
        false => Err(Refusal::bad(
            "MalformedACLError",
            "The XML you provided was not well-formed or did not validate against our published schema",
        )),
    }
}

/// Allows a list that changes nothing.
///
/// # Errors
/// AccessControlListNotSupported for any other; S3's codes for a request that names none, or several.
fn check_list(
    canned: Option<&str>,
    policy: Option<&AccessControlPolicy>,
    granted: bool,
) -> Result<(), Refusal> {
    if canned.is_none() && policy.is_none() && !granted {
        return Err(Refusal::bad("MissingSecurityHeader", "Your request was missing a required header"));
    }
    if !is_owners(canned.unwrap_or_default())? {
        return Err(not_supported());
    }
    if canned.is_some() && granted {
        let message = "Specifying both Canned ACLs and Header Grants is not allowed";
        return Err(Refusal::bad("InvalidRequest", message));
    }
    if policy.is_some() && (canned.is_some() || granted) {
        return Err(Refusal::bad("UnexpectedContent", "This request does not support content"));
    }
    policy.map(check_document).transpose()?;
    let is_owner = |grant: &Grant| {
        let full = grant.permission.as_ref().is_some_and(|it| it.as_str() == Permission::FULL_CONTROL);
        full && grant.grantee.as_ref().is_some_and(|it| it.id.as_deref() == Some(ACCOUNT_ID))
    };
    let only_owner = policy.is_none_or(|policy| policy.grants.iter().flatten().all(is_owner));
    match only_owner && !granted {
        true => Ok(()),
        false => Err(not_supported()),
    }
}

impl Translator {
    pub(super) async fn bucket_acl_get(
        &self,
        request: S3Request<GetBucketAclInput>,
    ) -> S3Result<S3Response<GetBucketAclOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "GetBucketAcl", resource)?;
        self.client.bucket(&request.input.bucket).await.map_err(|error| entered.fail(error))?;
        Ok(S3Response::new(GetBucketAclOutput { grants: Some(owners_full_control()), owner: Some(owner()) }))
    }

    pub(super) async fn bucket_acl_put(
        &self,
        request: S3Request<PutBucketAclInput>,
    ) -> S3Result<S3Response<PutBucketAclOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "PutBucketAcl", resource)?;
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
        let entered = self.enter(&request, "GetObjectAcl", resource)?;
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
        let entered = self.enter(&request, "PutObjectAcl", resource)?;
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
        let full = AccessControlPolicy { grants: Some(owners_full_control()), owner: Some(owner()) };
        assert_eq!(check_list(None, Some(&full), false), Ok(()));
        let code = |canned, policy, granted| check_list(canned, policy, granted).unwrap_err().code;
        assert_eq!(code(Some("public-read"), None, false), "AccessControlListNotSupported");
        assert_eq!(code(None, None, true), "AccessControlListNotSupported");
        assert_eq!(code(Some("invalid"), None, false), "InvalidArgument");
        assert_eq!(code(None, None, false), "MissingSecurityHeader");
        assert_eq!(code(Some("private"), None, true), "InvalidRequest");
        assert_eq!(code(Some("private"), Some(&full), false), "UnexpectedContent");
        let mut other = full.clone();
        other.grants.iter_mut().flatten().for_each(|grant| {
            grant.permission = Some(Permission::from_static(Permission::READ));
        });
        assert_eq!(code(None, Some(&other), false), "AccessControlListNotSupported");
        let nobodys = AccessControlPolicy { grants: Some(owners_full_control()), owner: None };
        assert_eq!(code(None, Some(&nobodys), false), "MalformedACLError");
    }
}
