//! s3s's trait, with one line per method. The table of operations ([`crate::operations`]) says which are here.

use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result};

use super::Translator;

#[async_trait::async_trait]
impl S3 for Translator {
    async fn list_buckets(
        &self,
        request: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        self.buckets(request).await
    }

    async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        self.bucket_create(request).await
    }

    async fn head_bucket(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        self.bucket_head(request).await
    }

    async fn delete_bucket(
        &self,
        request: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        self.bucket_delete(request).await
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.bucket_location(request).await
    }

    async fn list_objects(
        &self,
        request: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        self.list_v1(request).await
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        self.list_v2(request).await
    }

    async fn list_object_versions(
        &self,
        request: S3Request<ListObjectVersionsInput>,
    ) -> S3Result<S3Response<ListObjectVersionsOutput>> {
        self.list_versions(request).await
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        self.put(request).await
    }

    async fn get_object(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        self.get(request).await
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        self.head(request).await
    }

    async fn get_object_attributes(
        &self,
        request: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<S3Response<GetObjectAttributesOutput>> {
        self.attributes(request).await
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.delete(request).await
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        self.delete_many(request).await
    }

    async fn copy_object(
        &self,
        request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        self.copy(request).await
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        self.upload_create(request).await
    }

    async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        self.upload_put(request).await
    }

    async fn upload_part_copy(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        self.upload_copy(request).await
    }

    async fn list_parts(&self, request: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        self.upload_parts(request).await
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        self.uploads(request).await
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        self.upload_complete(request).await
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.upload_abort(request).await
    }

    async fn get_object_tagging(
        &self,
        request: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        self.object_tags_get(request).await
    }

    async fn put_object_tagging(
        &self,
        request: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        self.object_tags_put(request).await
    }

    async fn delete_object_tagging(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        self.object_tags_delete(request).await
    }

    async fn get_bucket_tagging(
        &self,
        request: S3Request<GetBucketTaggingInput>,
    ) -> S3Result<S3Response<GetBucketTaggingOutput>> {
        self.bucket_tags_get(request).await
    }

    async fn put_bucket_tagging(
        &self,
        request: S3Request<PutBucketTaggingInput>,
    ) -> S3Result<S3Response<PutBucketTaggingOutput>> {
        self.bucket_tags_put(request).await
    }

    async fn delete_bucket_tagging(
        &self,
        request: S3Request<DeleteBucketTaggingInput>,
    ) -> S3Result<S3Response<DeleteBucketTaggingOutput>> {
        self.bucket_tags_delete(request).await
    }

    async fn get_bucket_cors(
        &self,
        request: S3Request<GetBucketCorsInput>,
    ) -> S3Result<S3Response<GetBucketCorsOutput>> {
        self.cors_get(request).await
    }

    async fn put_bucket_cors(
        &self,
        request: S3Request<PutBucketCorsInput>,
    ) -> S3Result<S3Response<PutBucketCorsOutput>> {
        self.cors_put(request).await
    }

    async fn delete_bucket_cors(
        &self,
        request: S3Request<DeleteBucketCorsInput>,
    ) -> S3Result<S3Response<DeleteBucketCorsOutput>> {
        self.cors_delete(request).await
    }

    async fn get_bucket_acl(
        &self,
        request: S3Request<GetBucketAclInput>,
    ) -> S3Result<S3Response<GetBucketAclOutput>> {
        self.bucket_acl_get(request).await
    }

    async fn put_bucket_acl(
        &self,
        request: S3Request<PutBucketAclInput>,
    ) -> S3Result<S3Response<PutBucketAclOutput>> {
        self.bucket_acl_put(request).await
    }

    async fn get_object_acl(
        &self,
        request: S3Request<GetObjectAclInput>,
    ) -> S3Result<S3Response<GetObjectAclOutput>> {
        self.object_acl_get(request).await
    }

    async fn put_object_acl(
        &self,
        request: S3Request<PutObjectAclInput>,
    ) -> S3Result<S3Response<PutObjectAclOutput>> {
        self.object_acl_put(request).await
    }

    async fn get_bucket_policy(
        &self,
        request: S3Request<GetBucketPolicyInput>,
    ) -> S3Result<S3Response<GetBucketPolicyOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "GetBucketPolicy").await
    }

    async fn get_bucket_policy_status(
        &self,
        request: S3Request<GetBucketPolicyStatusInput>,
    ) -> S3Result<S3Response<GetBucketPolicyStatusOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "GetBucketPolicyStatus").await
    }

    async fn get_bucket_lifecycle_configuration(
        &self,
        request: S3Request<GetBucketLifecycleConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketLifecycleConfigurationOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "GetBucketLifecycleConfiguration").await
    }

    async fn get_bucket_encryption(
        &self,
        request: S3Request<GetBucketEncryptionInput>,
    ) -> S3Result<S3Response<GetBucketEncryptionOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "GetBucketEncryption").await
    }

    async fn get_bucket_replication(
        &self,
        request: S3Request<GetBucketReplicationInput>,
    ) -> S3Result<S3Response<GetBucketReplicationOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "GetBucketReplication").await
    }

    async fn get_bucket_website(
        &self,
        request: S3Request<GetBucketWebsiteInput>,
    ) -> S3Result<S3Response<GetBucketWebsiteOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "GetBucketWebsite").await
    }

    async fn get_bucket_ownership_controls(
        &self,
        request: S3Request<GetBucketOwnershipControlsInput>,
    ) -> S3Result<S3Response<GetBucketOwnershipControlsOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "GetBucketOwnershipControls").await
    }

    async fn get_public_access_block(
        &self,
        request: S3Request<GetPublicAccessBlockInput>,
    ) -> S3Result<S3Response<GetPublicAccessBlockOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "GetPublicAccessBlock").await
    }

    async fn get_object_lock_configuration(
        &self,
        request: S3Request<GetObjectLockConfigurationInput>,
    ) -> S3Result<S3Response<GetObjectLockConfigurationOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "GetObjectLockConfiguration").await
    }

    async fn get_object_retention(
        &self,
        request: S3Request<GetObjectRetentionInput>,
    ) -> S3Result<S3Response<GetObjectRetentionOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "GetObjectRetention").await
    }

    async fn get_object_legal_hold(
        &self,
        request: S3Request<GetObjectLegalHoldInput>,
    ) -> S3Result<S3Response<GetObjectLegalHoldOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "GetObjectLegalHold").await
    }

    async fn get_bucket_analytics_configuration(
        &self,
        request: S3Request<GetBucketAnalyticsConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketAnalyticsConfigurationOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "GetBucketAnalyticsConfiguration").await
    }

    async fn get_bucket_intelligent_tiering_configuration(
        &self,
        request: S3Request<GetBucketIntelligentTieringConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketIntelligentTieringConfigurationOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "GetBucketIntelligentTieringConfiguration").await
    }

    async fn get_bucket_inventory_configuration(
        &self,
        request: S3Request<GetBucketInventoryConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketInventoryConfigurationOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "GetBucketInventoryConfiguration").await
    }

    async fn get_bucket_metrics_configuration(
        &self,
        request: S3Request<GetBucketMetricsConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketMetricsConfigurationOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "GetBucketMetricsConfiguration").await
    }

    async fn get_bucket_logging(
        &self,
        request: S3Request<GetBucketLoggingInput>,
    ) -> S3Result<S3Response<GetBucketLoggingOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "GetBucketLogging").await
    }

    async fn get_bucket_notification_configuration(
        &self,
        request: S3Request<GetBucketNotificationConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketNotificationConfigurationOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "GetBucketNotificationConfiguration").await
    }

    async fn get_bucket_versioning(
        &self,
        request: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "GetBucketVersioning").await
    }

    async fn get_bucket_accelerate_configuration(
        &self,
        request: S3Request<GetBucketAccelerateConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketAccelerateConfigurationOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "GetBucketAccelerateConfiguration").await
    }

    async fn list_bucket_analytics_configurations(
        &self,
        request: S3Request<ListBucketAnalyticsConfigurationsInput>,
    ) -> S3Result<S3Response<ListBucketAnalyticsConfigurationsOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "ListBucketAnalyticsConfigurations").await
    }

    async fn list_bucket_intelligent_tiering_configurations(
        &self,
        request: S3Request<ListBucketIntelligentTieringConfigurationsInput>,
    ) -> S3Result<S3Response<ListBucketIntelligentTieringConfigurationsOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "ListBucketIntelligentTieringConfigurations").await
    }

    async fn list_bucket_inventory_configurations(
        &self,
        request: S3Request<ListBucketInventoryConfigurationsInput>,
    ) -> S3Result<S3Response<ListBucketInventoryConfigurationsOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "ListBucketInventoryConfigurations").await
    }

    async fn list_bucket_metrics_configurations(
        &self,
        request: S3Request<ListBucketMetricsConfigurationsInput>,
    ) -> S3Result<S3Response<ListBucketMetricsConfigurationsOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "ListBucketMetricsConfigurations").await
    }

    async fn delete_bucket_policy(
        &self,
        request: S3Request<DeleteBucketPolicyInput>,
    ) -> S3Result<S3Response<DeleteBucketPolicyOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "DeleteBucketPolicy").await
    }

    async fn delete_bucket_lifecycle(
        &self,
        request: S3Request<DeleteBucketLifecycleInput>,
    ) -> S3Result<S3Response<DeleteBucketLifecycleOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "DeleteBucketLifecycle").await
    }

    async fn delete_bucket_encryption(
        &self,
        request: S3Request<DeleteBucketEncryptionInput>,
    ) -> S3Result<S3Response<DeleteBucketEncryptionOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "DeleteBucketEncryption").await
    }

    async fn delete_bucket_replication(
        &self,
        request: S3Request<DeleteBucketReplicationInput>,
    ) -> S3Result<S3Response<DeleteBucketReplicationOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "DeleteBucketReplication").await
    }

    async fn delete_bucket_website(
        &self,
        request: S3Request<DeleteBucketWebsiteInput>,
    ) -> S3Result<S3Response<DeleteBucketWebsiteOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "DeleteBucketWebsite").await
    }

    async fn delete_bucket_ownership_controls(
        &self,
        request: S3Request<DeleteBucketOwnershipControlsInput>,
    ) -> S3Result<S3Response<DeleteBucketOwnershipControlsOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "DeleteBucketOwnershipControls").await
    }

    async fn delete_public_access_block(
        &self,
        request: S3Request<DeletePublicAccessBlockInput>,
    ) -> S3Result<S3Response<DeletePublicAccessBlockOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "DeletePublicAccessBlock").await
    }

    async fn delete_bucket_analytics_configuration(
        &self,
        request: S3Request<DeleteBucketAnalyticsConfigurationInput>,
    ) -> S3Result<S3Response<DeleteBucketAnalyticsConfigurationOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "DeleteBucketAnalyticsConfiguration").await
    }

    async fn delete_bucket_intelligent_tiering_configuration(
        &self,
        request: S3Request<DeleteBucketIntelligentTieringConfigurationInput>,
    ) -> S3Result<S3Response<DeleteBucketIntelligentTieringConfigurationOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "DeleteBucketIntelligentTieringConfiguration").await
    }

    async fn delete_bucket_inventory_configuration(
        &self,
        request: S3Request<DeleteBucketInventoryConfigurationInput>,
    ) -> S3Result<S3Response<DeleteBucketInventoryConfigurationOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "DeleteBucketInventoryConfiguration").await
    }

    async fn delete_bucket_metrics_configuration(
        &self,
        request: S3Request<DeleteBucketMetricsConfigurationInput>,
    ) -> S3Result<S3Response<DeleteBucketMetricsConfigurationOutput>> {
        let bucket = &request.input.bucket;
        self.not_set(&request, bucket, "DeleteBucketMetricsConfiguration").await
    }

    async fn get_bucket_request_payment(
        &self,
        request: S3Request<GetBucketRequestPaymentInput>,
    ) -> S3Result<S3Response<GetBucketRequestPaymentOutput>> {
        let bucket = &request.input.bucket;
        let mut answer: S3Response<GetBucketRequestPaymentOutput> =
            self.not_set(&request, bucket, "GetBucketRequestPayment").await?;
        answer.output.payer = Some(Payer::from_static(Payer::BUCKET_OWNER));
        Ok(answer)
    }
}
