//! DeleteObject and DeleteObjects.

use futures::StreamExt;
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};
use striate_client::WriteCondition;

use super::{AuthorisedRequest, Translator, check_version, etags, not_implemented};
use crate::authorize::Resource;
use crate::failure;
use crate::refusal::Refusal;

/// Maximum number of objects in one DeleteObjects, as in S3.
const MAX_OBJECTS: usize = 1_000;
/// Maximum number of concurrent deletes of one request.
const AT_ONCE: usize = 16;

impl Translator {
    pub(super) async fn delete(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let resource = Resource::Object(&request.input.bucket, &request.input.key);
        let entered = self.enter(&request, "DeleteObject", "s3:DeleteObject", resource)?;
        let input = request.input;
        check_version(input.version_id.as_deref())?;
        if input.if_match_last_modified_time.is_some() || input.if_match_size.is_some() {
            return Err(not_implemented("Delete by size or time is not available; use If-Match.").into());
        }
        let condition = WriteCondition { if_absent: false, if_match: input.if_match.map(etags) };
        let deleted = self.client.delete(&input.bucket, &input.key, condition).await;
        deleted.map_err(|error| entered.fail(error))?;
        Ok(S3Response::with_status(DeleteObjectOutput::default(), http::StatusCode::NO_CONTENT))
    }

    pub(super) async fn delete_many(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "DeleteObjects", "s3:DeleteObject", resource)?;
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
        let ObjectIdentifier { key, version_id, e_tag, .. } = object;
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
        let condition =
            WriteCondition { if_absent: false, if_match: e_tag.map(|etag| vec![etag.into_value()]) };
        match self.client.delete(bucket, &key, condition).await {
            Ok(_) => Ok(DeletedObject { key: Some(key), version_id, ..DeletedObject::default() }),
            Err(error) => Err(fail(failure::code_of(&error).1, error.to_string())),
        }
    }
}
