//! The table of operations: s3s's trait, with one line per method. Operations that are missing here return 501.

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
        self.unset(&request, bucket, "GetBucketPolicy", "s3:GetBucketPolicy", "NoSuchBucketPolicy").await
    }

    async fn get_bucket_policy_status(
        &self,
        request: S3Request<GetBucketPolicyStatusInput>,
    ) -> S3Result<S3Response<GetBucketPolicyStatusOutput>> {
        let bucket = &request.input.bucket;
        self.unset(
            &request,
            bucket,
            "GetBucketPolicyStatus",
            "s3:GetBucketPolicyStatus",
            "NoSuchBucketPolicy",
        )
        .await
    }

    async fn get_bucket_lifecycle_configuration(
        &self,
        request: S3Request<GetBucketLifecycleConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketLifecycleConfigurationOutput>> {
        let bucket = &request.input.bucket;
        self.unset(
            &request,
            bucket,
            "GetBucketLifecycleConfiguration",
            "s3:GetLifecycleConfiguration",
            "NoSuchLifecycleConfiguration",
        )
        .await
    }

    async fn get_bucket_encryption(
        &self,
        request: S3Request<GetBucketEncryptionInput>,
    ) -> S3Result<S3Response<GetBucketEncryptionOutput>> {
        let bucket = &request.input.bucket;
        self.unset(
            &request,
            bucket,
            "GetBucketEncryption",
            "s3:GetEncryptionConfiguration",
            "ServerSideEncryptionConfigurationNotFoundError",
        )
        .await
    }

    async fn get_bucket_replication(
        &self,
        request: S3Request<GetBucketReplicationInput>,
    ) -> S3Result<S3Response<GetBucketReplicationOutput>> {
        let bucket = &request.input.bucket;
        self.unset(
            &request,
            bucket,
            "GetBucketReplication",
            "s3:GetReplicationConfiguration",
            "ReplicationConfigurationNotFoundError",
        )
        .await
    }

    async fn get_bucket_website(
        &self,
        request: S3Request<GetBucketWebsiteInput>,
    ) -> S3Result<S3Response<GetBucketWebsiteOutput>> {
        let bucket = &request.input.bucket;
        self.unset(&request, bucket, "GetBucketWebsite", "s3:GetBucketWebsite", "NoSuchWebsiteConfiguration")
            .await
    }

    async fn get_bucket_ownership_controls(
        &self,
        request: S3Request<GetBucketOwnershipControlsInput>,
    ) -> S3Result<S3Response<GetBucketOwnershipControlsOutput>> {
        let bucket = &request.input.bucket;
        self.unset(
            &request,
            bucket,
            "GetBucketOwnershipControls",
            "s3:GetBucketOwnershipControls",
            "OwnershipControlsNotFoundError",
        )
        .await
    }

    async fn get_public_access_block(
        &self,
        request: S3Request<GetPublicAccessBlockInput>,
    ) -> S3Result<S3Response<GetPublicAccessBlockOutput>> {
        let bucket = &request.input.bucket;
        self.unset(
            &request,
            bucket,
            "GetPublicAccessBlock",
            "s3:GetBucketPublicAccessBlock",
            "NoSuchPublicAccessBlockConfiguration",
        )
        .await
    }

    async fn get_object_lock_configuration(
        &self,
        request: S3Request<GetObjectLockConfigurationInput>,
    ) -> S3Result<S3Response<GetObjectLockConfigurationOutput>> {
        let bucket = &request.input.bucket;
        self.unset(
            &request,
            bucket,
            "GetObjectLockConfiguration",
            "s3:GetBucketObjectLockConfiguration",
            "ObjectLockConfigurationNotFoundError",
        )
        .await
    }

    async fn get_object_retention(
        &self,
        request: S3Request<GetObjectRetentionInput>,
    ) -> S3Result<S3Response<GetObjectRetentionOutput>> {
        let bucket = &request.input.bucket;
        self.unset(
            &request,
            bucket,
            "GetObjectRetention",
            "s3:GetObjectRetention",
            "NoSuchObjectLockConfiguration",
        )
        .await
    }

    async fn get_object_legal_hold(
        &self,
        request: S3Request<GetObjectLegalHoldInput>,
    ) -> S3Result<S3Response<GetObjectLegalHoldOutput>> {
        let bucket = &request.input.bucket;
        self.unset(
            &request,
            bucket,
            "GetObjectLegalHold",
            "s3:GetObjectLegalHold",
            "NoSuchObjectLockConfiguration",
        )
        .await
    }

    async fn get_bucket_analytics_configuration(
        &self,
        request: S3Request<GetBucketAnalyticsConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketAnalyticsConfigurationOutput>> {
        let bucket = &request.input.bucket;
        self.unset(
            &request,
            bucket,
            "GetBucketAnalyticsConfiguration",
            "s3:GetAnalyticsConfiguration",
            "NoSuchConfiguration",
        )
        .await
    }

    async fn get_bucket_intelligent_tiering_configuration(
        &self,
        request: S3Request<GetBucketIntelligentTieringConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketIntelligentTieringConfigurationOutput>> {
        let bucket = &request.input.bucket;
        self.unset(
            &request,
            bucket,
            "GetBucketIntelligentTieringConfiguration",
            "s3:GetIntelligentTieringConfiguration",
            "NoSuchConfiguration",
        )
        .await
    }

    async fn get_bucket_inventory_configuration(
        &self,
        request: S3Request<GetBucketInventoryConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketInventoryConfigurationOutput>> {
        let bucket = &request.input.bucket;
        self.unset(
            &request,
            bucket,
            "GetBucketInventoryConfiguration",
            "s3:GetInventoryConfiguration",
            "NoSuchConfiguration",
        )
        .await
    }

    async fn get_bucket_metrics_configuration(
        &self,
        request: S3Request<GetBucketMetricsConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketMetricsConfigurationOutput>> {
        let bucket = &request.input.bucket;
        self.unset(
            &request,
            bucket,
            "GetBucketMetricsConfiguration",
            "s3:GetMetricsConfiguration",
            "NoSuchConfiguration",
        )
        .await
    }

    async fn get_bucket_logging(
        &self,
        request: S3Request<GetBucketLoggingInput>,
    ) -> S3Result<S3Response<GetBucketLoggingOutput>> {
        let bucket = &request.input.bucket;
        self.empty(&request, bucket, "GetBucketLogging", "s3:GetBucketLogging").await
    }

    async fn get_bucket_notification_configuration(
        &self,
        request: S3Request<GetBucketNotificationConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketNotificationConfigurationOutput>> {
        let bucket = &request.input.bucket;
        self.empty(&request, bucket, "GetBucketNotificationConfiguration", "s3:GetBucketNotification").await
    }

    async fn get_bucket_versioning(
        &self,
        request: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        let bucket = &request.input.bucket;
        self.empty(&request, bucket, "GetBucketVersioning", "s3:GetBucketVersioning").await
    }

    async fn get_bucket_accelerate_configuration(
        &self,
        request: S3Request<GetBucketAccelerateConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketAccelerateConfigurationOutput>> {
        let bucket = &request.input.bucket;
        self.empty(&request, bucket, "GetBucketAccelerateConfiguration", "s3:GetAccelerateConfiguration")
            .await
    }

    async fn list_bucket_analytics_configurations(
        &self,
        request: S3Request<ListBucketAnalyticsConfigurationsInput>,
    ) -> S3Result<S3Response<ListBucketAnalyticsConfigurationsOutput>> {
        let bucket = &request.input.bucket;
        self.empty(&request, bucket, "ListBucketAnalyticsConfigurations", "s3:GetAnalyticsConfiguration")
            .await
    }

    async fn list_bucket_intelligent_tiering_configurations(
        &self,
        request: S3Request<ListBucketIntelligentTieringConfigurationsInput>,
    ) -> S3Result<S3Response<ListBucketIntelligentTieringConfigurationsOutput>> {
        let bucket = &request.input.bucket;
        self.empty(
            &request,
            bucket,
            "ListBucketIntelligentTieringConfigurations",
            "s3:GetIntelligentTieringConfiguration",
        )
        .await
    }

    async fn list_bucket_inventory_configurations(
        &self,
        request: S3Request<ListBucketInventoryConfigurationsInput>,
    ) -> S3Result<S3Response<ListBucketInventoryConfigurationsOutput>> {
        let bucket = &request.input.bucket;
        self.empty(&request, bucket, "ListBucketInventoryConfigurations", "s3:GetInventoryConfiguration")
            .await
    }

    async fn list_bucket_metrics_configurations(
        &self,
        request: S3Request<ListBucketMetricsConfigurationsInput>,
    ) -> S3Result<S3Response<ListBucketMetricsConfigurationsOutput>> {
        let bucket = &request.input.bucket;
        self.empty(&request, bucket, "ListBucketMetricsConfigurations", "s3:GetMetricsConfiguration").await
    }

    async fn delete_bucket_analytics_configuration(
        &self,
        request: S3Request<DeleteBucketAnalyticsConfigurationInput>,
    ) -> S3Result<S3Response<DeleteBucketAnalyticsConfigurationOutput>> {
        let bucket = &request.input.bucket;
        let operation = "DeleteBucketAnalyticsConfiguration";
        self.cleared(&request, bucket, operation, "s3:PutAnalyticsConfiguration").await
    }

    async fn delete_bucket_intelligent_tiering_configuration(
        &self,
        request: S3Request<DeleteBucketIntelligentTieringConfigurationInput>,
    ) -> S3Result<S3Response<DeleteBucketIntelligentTieringConfigurationOutput>> {
        let bucket = &request.input.bucket;
        let operation = "DeleteBucketIntelligentTieringConfiguration";
        self.cleared(&request, bucket, operation, "s3:PutIntelligentTieringConfiguration").await
    }

    async fn delete_bucket_inventory_configuration(
        &self,
        request: S3Request<DeleteBucketInventoryConfigurationInput>,
    ) -> S3Result<S3Response<DeleteBucketInventoryConfigurationOutput>> {
        let bucket = &request.input.bucket;
        let operation = "DeleteBucketInventoryConfiguration";
        self.cleared(&request, bucket, operation, "s3:PutInventoryConfiguration").await
    }

    async fn delete_bucket_metrics_configuration(
        &self,
        request: S3Request<DeleteBucketMetricsConfigurationInput>,
    ) -> S3Result<S3Response<DeleteBucketMetricsConfigurationOutput>> {
        let bucket = &request.input.bucket;
        let operation = "DeleteBucketMetricsConfiguration";
        self.cleared(&request, bucket, operation, "s3:PutMetricsConfiguration").await
    }

    async fn delete_bucket_policy(
        &self,
        request: S3Request<DeleteBucketPolicyInput>,
    ) -> S3Result<S3Response<DeleteBucketPolicyOutput>> {
        let bucket = &request.input.bucket;
        self.cleared(&request, bucket, "DeleteBucketPolicy", "s3:DeleteBucketPolicy").await
    }

    async fn delete_bucket_lifecycle(
        &self,
        request: S3Request<DeleteBucketLifecycleInput>,
    ) -> S3Result<S3Response<DeleteBucketLifecycleOutput>> {
        let bucket = &request.input.bucket;
        self.cleared(&request, bucket, "DeleteBucketLifecycle", "s3:PutLifecycleConfiguration").await
    }

    async fn delete_bucket_encryption(
        &self,
        request: S3Request<DeleteBucketEncryptionInput>,
    ) -> S3Result<S3Response<DeleteBucketEncryptionOutput>> {
        let bucket = &request.input.bucket;
        self.cleared(&request, bucket, "DeleteBucketEncryption", "s3:PutEncryptionConfiguration").await
    }

    async fn delete_bucket_replication(
        &self,
        request: S3Request<DeleteBucketReplicationInput>,
    ) -> S3Result<S3Response<DeleteBucketReplicationOutput>> {
        let bucket = &request.input.bucket;
        self.cleared(&request, bucket, "DeleteBucketReplication", "s3:PutReplicationConfiguration").await
    }

    async fn delete_bucket_website(
        &self,
        request: S3Request<DeleteBucketWebsiteInput>,
    ) -> S3Result<S3Response<DeleteBucketWebsiteOutput>> {
        let bucket = &request.input.bucket;
        self.cleared(&request, bucket, "DeleteBucketWebsite", "s3:DeleteBucketWebsite").await
    }

    async fn delete_bucket_ownership_controls(
        &self,
        request: S3Request<DeleteBucketOwnershipControlsInput>,
    ) -> S3Result<S3Response<DeleteBucketOwnershipControlsOutput>> {
        let bucket = &request.input.bucket;
        self.cleared(&request, bucket, "DeleteBucketOwnershipControls", "s3:PutBucketOwnershipControls").await
    }

    async fn delete_public_access_block(
        &self,
        request: S3Request<DeletePublicAccessBlockInput>,
    ) -> S3Result<S3Response<DeletePublicAccessBlockOutput>> {
        let bucket = &request.input.bucket;
        self.cleared(&request, bucket, "DeletePublicAccessBlock", "s3:PutBucketPublicAccessBlock").await
    }

    async fn get_bucket_request_payment(
        &self,
        request: S3Request<GetBucketRequestPaymentInput>,
    ) -> S3Result<S3Response<GetBucketRequestPaymentOutput>> {
        let bucket = &request.input.bucket;
        let (operation, action) = ("GetBucketRequestPayment", "s3:GetBucketRequestPayment");
        let mut answer: S3Response<GetBucketRequestPaymentOutput> =
            self.empty(&request, bucket, operation, action).await?;
        answer.output.payer = Some(Payer::from_static(Payer::BUCKET_OWNER));
        Ok(answer)
    }
}
