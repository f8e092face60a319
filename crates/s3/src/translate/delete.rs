//! DeleteObject and DeleteObjects.

use futures::StreamExt;
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};
use striate_client::WriteCondition;

use super::{AuthorisedRequest, Translator, check_version, etags_of, unix_seconds};
use crate::authorize::Resource;
use crate::failure;
use crate::refusal::Refusal;

/// Maximum number of objects in one DeleteObjects, as in S3.
const MAX_OBJECTS: usize = 1_000;
/// Maximum number of concurrent deletes of one request.
const AT_ONCE: usize = 16;

/// Returns the conditions of a delete.
fn delete_condition(
    if_match: Option<Vec<String>>,
    last_modified_time: Option<&Timestamp>,
    size: Option<i64>,
) -> Result<WriteCondition, Refusal> {
    let size = size.map(u64::try_from).transpose();
    Ok(WriteCondition {
        if_absent: false,
        if_match,
        if_modified_at: last_modified_time.map(unix_seconds),
        if_size: size.map_err(|_| Refusal::bad("InvalidArgument", "The size must not be negative."))?,
    })
}

impl Translator {
    pub(super) async fn delete(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let resource = Resource::Object(&request.input.bucket, &request.input.key);
        let entered = self.enter(&request, "DeleteObject", resource)?;
        // Every field is named, so that a condition that a later s3s parses is not dropped.
        let DeleteObjectInput {
            bucket,
            key,
            version_id,
            if_match,
            if_match_last_modified_time,
            if_match_size,
            bypass_governance_retention: _,
            expected_bucket_owner: _,
            mfa: _,
            request_payer: _,
        } = request.input;
        check_version(version_id.as_deref())?;
        let if_match = etags_of(&entered.carried, "if-match", if_match);
        let condition = delete_condition(if_match, if_match_last_modified_time.as_ref(), if_match_size)?;
        let deleted = self.client.delete(&bucket, &key, condition).await;
        deleted.map_err(|error| entered.fail(error))?;
        Ok(S3Response::with_status(DeleteObjectOutput::default(), http::StatusCode::NO_CONTENT))
    }

    pub(super) async fn delete_many(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "DeleteObjects", resource)?;
        let (bucket, delete) = (request.input.bucket, request.input.delete);
        if delete.objects.is_empty() || delete.objects.len() > MAX_OBJECTS {
            let message = format!("A DeleteObjects request names 1 to {MAX_OBJECTS} objects.");
            return Err(Refusal::bad("MalformedXML", message).into());
        }
        entered.trace.add_keys(delete.objects.iter().map(|object| object.key.as_str()));
        self.client.bucket(&bucket).await.map_err(|error| entered.fail(error))?;
        let deletes = delete.objects.into_iter().map(|object| self.delete_one(&entered, &bucket, object));
        let results: Vec<_> = futures::stream::iter(deletes).buffered(AT_ONCE).collect().await;
        let quiet = delete.quiet == Some(true);
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for result in results {
            match result {
                Ok(object) if !quiet => deleted.push(object),
                Ok(_) => {}
                Err(error) => errors.push(error),
            }
        }
        Ok(S3Response::new(DeleteObjectsOutput {
            deleted: Some(deleted),
            errors: Some(errors),
            ..DeleteObjectsOutput::default()
        }))
    }

    async fn delete_one(
        &self,
        entered: &AuthorisedRequest,
        bucket: &str,
        object: ObjectIdentifier,
    ) -> Result<DeletedObject, Error> {
        let ObjectIdentifier { key, version_id, e_tag, last_modified_time, size } = object;
        let fail = |code: &str, message: String| Error {
            code: Some(code.to_owned()),
            key: Some(key.clone()),
            message: Some(message),
            version_id: version_id.clone(),
        };
        if let Err(error) = entered.also("s3:DeleteObject", Resource::Object(bucket, &key)) {
            return Err(fail(error.code().as_str(), error.message().unwrap_or_default().to_owned()));
        }
        check_version(version_id.as_deref()).map_err(|refusal| fail(refusal.code, refusal.message))?;
        let if_match = e_tag.map(|etag| vec![etag.into_value()]);
        let condition = delete_condition(if_match, last_modified_time.as_ref(), size);
        let condition = condition.map_err(|refusal| fail(refusal.code, refusal.message))?;
        match self.client.delete(bucket, &key, condition).await {
            Ok(_) => Ok(DeletedObject { key: Some(key), version_id, ..DeletedObject::default() }),
            Err(error) => Err(fail(failure::code_of(&error).1, error.to_string())),
        }
    }
}
