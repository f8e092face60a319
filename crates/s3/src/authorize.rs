//! Authorisation. There is one account: every valid key may act on everything in it.
//!
//! Every handler calls [`authorize`] with the action and the resource that it is about to touch, including copy
//! sources. Policies, once they exist, will be decided here and nowhere else.

use crate::refusal::Refusal;

/// Canonical user id of the account, as S3 shows owners: the SHA-256 of `striate`.
pub(crate) const ACCOUNT_ID: &str = "f94ead647a85f148edebbe4afe8b46a09d96f108a46d77ade25612f30f795315";
/// Name of the account.
pub(crate) const ACCOUNT_NAME: &str = "striate";

/// An authenticated caller: an access key whose signature was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub access_key: String,
}

/// The resource of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource<'a> {
    /// The list of buckets.
    Account,
    /// A bucket.
    Bucket(&'a str),
    /// An object.
    Object(&'a str, &'a str),
}

/// Decides whether `identity` may do `action` (an IAM action such as `s3:GetObject`) to `resource`.
/// Anonymous requests may do nothing.
pub(crate) fn authorize(
    action: &'static str,
    resource: Resource<'_>,
    identity: Option<&Identity>,
) -> Result<(), Refusal> {
    match identity {
        Some(_) => Ok(()),
        None => {
            tracing::debug!(action, ?resource, "an anonymous request was denied");
            Err(Refusal::anonymous())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_valid_key_may_act_and_nobody_may_not() {
        let identity = Identity { access_key: "k".to_owned() };
        assert_eq!(authorize("s3:GetObject", Resource::Object("b", "k"), Some(&identity)), Ok(()));
        let denied = authorize("s3:ListAllMyBuckets", Resource::Account, None).unwrap_err();
        assert_eq!((denied.code, denied.status.as_u16()), ("AccessDenied", 403));
    }
}
