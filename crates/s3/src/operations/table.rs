//! The rows: S3's published model (botocore's `service-2.json` of 2006-03-01), and what Striate has beside it.

use super::{Operation, RequestBody, Selector, Server, Target, Verb};
use crate::batch::Kind;

use Server::{Cleared, Empty, Nobody, NotSet, Translator};

/// Parameters of a read, each of which replaces the header of the answer that it names after `response-`. Sorted.
pub const RESPONSE_PARAMETERS: [&str; 6] = [
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
];
/// Parameters of a read.
const OF_OBJECT: [&str; RESPONSE_PARAMETERS.len() + 2] = {
    let mut all = ["versionId"; RESPONSE_PARAMETERS.len() + 2];
    all[1] = "partNumber";
    let mut at = 0;
    while at < RESPONSE_PARAMETERS.len() {
        all[at + 2] = RESPONSE_PARAMETERS[at];
        at += 1;
    }
    all
};
const VERSION: &[&str] = &["versionId"];
const TOKEN: &[&str] = &["continuation-token"];

/// Conditions of a read, on the object.
const OF_READ: &[&str] =
    &["if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range"];
/// Conditions of a write, on the object that is replaced.
const OF_WRITE: &[&str] = &["if-match", "if-none-match"];
/// Conditions of a copy, on its source and on the object that is replaced.
const OF_COPY: &[&str] = &[
    "if-match",
    "if-none-match",
    "x-amz-copy-source-if-match",
    "x-amz-copy-source-if-none-match",
    "x-amz-copy-source-if-modified-since",
    "x-amz-copy-source-if-unmodified-since",
];
/// Conditions of the copy of a part, on its source.
const OF_SOURCE: &[&str] = &[
    "x-amz-copy-source-if-match",
    "x-amz-copy-source-if-none-match",
    "x-amz-copy-source-if-modified-since",
    "x-amz-copy-source-if-unmodified-since",
];
/// Conditions of a delete.
const OF_DELETE: &[&str] = &["if-match", "x-amz-if-match-last-modified-time", "x-amz-if-match-size"];

const fn row(verb: Verb, target: Target, name: &'static str, action: &'static str) -> Operation {
    Operation {
        name,
        aliases: &[],
        verb,
        target,
        selectors: &[],
        header: None,
        parameters: &[],
        conditions: &[],
        body: RequestBody::Nothing,
        server: Nobody,
        forwarded: false,
        action,
    }
}

const fn service(verb: Verb, name: &'static str, action: &'static str) -> Operation {
    row(verb, Target::Service, name, action)
}

const fn bucket(verb: Verb, name: &'static str, action: &'static str) -> Operation {
    let body = match verb {
        Verb::Put | Verb::Post => RequestBody::Document,
        _ => RequestBody::Nothing,
    };
    Operation { body, ..row(verb, Target::Bucket, name, action) }
}

/// Requests about objects are passed on to a bucket's origin.
const fn object(verb: Verb, name: &'static str, action: &'static str) -> Operation {
    let body = match verb {
        Verb::Post => RequestBody::Document,
        _ => RequestBody::Nothing,
    };
    Operation { body, forwarded: true, ..row(verb, Target::Object, name, action) }
}

const fn any(name: &'static str) -> Selector {
    Selector { name, values: &[] }
}

const fn one_of(name: &'static str, values: &'static [&'static str]) -> Selector {
    Selector { name, values }
}

impl Operation {
    const fn at(self, selectors: &'static [Selector]) -> Self {
        Self { selectors, ..self }
    }

    const fn with_header(self, header: &'static str) -> Self {
        Self { header: Some(header), ..self }
    }

    const fn takes(self, parameters: &'static [&'static str]) -> Self {
        Self { parameters, ..self }
    }

    const fn evaluates(self, conditions: &'static [&'static str]) -> Self {
        Self { conditions, ..self }
    }

    const fn by(self, server: Server) -> Self {
        Self { server, ..self }
    }

    const fn document(self) -> Self {
        Self { body: RequestBody::Document, ..self }
    }

    const fn stream(self) -> Self {
        Self { body: RequestBody::Stream, ..self }
    }

    const fn passed_on(self) -> Self {
        Self { forwarded: true, ..self }
    }

    const fn kept_here(self) -> Self {
        Self { forwarded: false, ..self }
    }

    const fn also_named(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }
}

/// Parameters of other stores' dialects that select an operation there. What has one of them is refused: the store that
/// it was meant for would not have run the plain operation. They are Ceph's and Alibaba's appends, Huawei's and
/// Alibaba's operations on objects, Wasabi's and Google's composition, and MinIO's extensions.
pub(super) const DIALECTS: [&str; 30] = [
    "append",
    "asyncFetch",
    "backtosource",
    "billing",
    "bucketInfo",
    "callback",
    "cname",
    "compliance",
    "compose",
    "directcoldaccess",
    "events",
    "extendRetention",
    "fan-out",
    "lambdaArn",
    "legalHold",
    "modify",
    "objectMeta",
    "position",
    "protection",
    "quota",
    "rename",
    "replication-check",
    "replication-metrics",
    "replication-reset",
    "replication-reset-status",
    "storageClass",
    "symlink",
    "truncate",
    "worm",
    "wormExtend",
];

/// Every operation, known to S3 or ours.
pub(crate) static OPERATIONS: &[Operation] = &[
    // The account.
    service(Verb::Get, "ListBuckets", "s3:ListAllMyBuckets")
        .takes(&["max-buckets", "continuation-token", "prefix", "bucket-region"])
        .by(Translator),
    service(Verb::Get, "ListDirectoryBuckets", "s3express:ListAllMyDirectoryBuckets")
        .at(&[one_of("x-id", &["ListDirectoryBuckets"])])
        .takes(&["continuation-token", "max-directory-buckets"]),
    service(Verb::Get, "Health", "").by(Server::Gateway),
    service(Verb::Options, "Preflight", "").by(Server::Gateway),
    // Buckets.
    bucket(Verb::Put, "CreateBucket", "s3:CreateBucket").by(Translator),
    bucket(Verb::Head, "HeadBucket", "s3:ListBucket").by(Translator),
    bucket(Verb::Delete, "DeleteBucket", "s3:DeleteBucket").by(Translator),
    bucket(Verb::Get, "GetBucketLocation", "s3:GetBucketLocation").at(&[any("location")]).by(Translator),
    bucket(Verb::Get, "ListObjects", "s3:ListBucket")
        .takes(&["delimiter", "encoding-type", "marker", "max-keys", "prefix", "list-type"])
        .by(Translator)
        .passed_on(),
    bucket(Verb::Get, "ListObjectsV2", "s3:ListBucket")
        .at(&[one_of("list-type", &["2"])])
        .takes(&[
            "delimiter",
            "encoding-type",
            "max-keys",
            "prefix",
            "continuation-token",
            "fetch-owner",
            "start-after",
        ])
        .by(Translator)
        .passed_on(),
    bucket(Verb::Get, "ListObjectVersions", "s3:ListBucketVersions")
        .at(&[any("versions")])
        .takes(&["delimiter", "encoding-type", "key-marker", "max-keys", "prefix", "version-id-marker"])
        .by(Translator)
        .passed_on(),
    bucket(Verb::Get, "ListMultipartUploads", "s3:ListBucketMultipartUploads")
        .at(&[any("uploads")])
        .takes(&["delimiter", "encoding-type", "key-marker", "max-uploads", "prefix", "upload-id-marker"])
        .by(Translator)
        .passed_on(),
    bucket(Verb::Post, "DeleteObjects", "s3:DeleteObject").at(&[any("delete")]).by(Translator).passed_on(),
    bucket(Verb::Post, "BatchRead", "s3:GetObject")
        .at(&[one_of("batch", &["", "read"])])
        .by(Server::Batch(Kind::Read)),
    bucket(Verb::Post, "BatchPut", "s3:PutObject")
        .at(&[one_of("batch", &["put"])])
        .by(Server::Batch(Kind::Put))
        .stream(),
    bucket(Verb::Post, "BatchExists", "s3:GetObject")
        .at(&[one_of("batch", &["exists"])])
        .by(Server::Batch(Kind::Exists)),
    bucket(Verb::Post, "PostObject", "s3:PutObject").by(Server::Form).stream(),
    // Settings of buckets that are kept.
    bucket(Verb::Get, "GetBucketTagging", "s3:GetBucketTagging").at(&[any("tagging")]).by(Translator),
    bucket(Verb::Put, "PutBucketTagging", "s3:PutBucketTagging").at(&[any("tagging")]).by(Translator),
    bucket(Verb::Delete, "DeleteBucketTagging", "s3:PutBucketTagging").at(&[any("tagging")]).by(Translator),
    bucket(Verb::Get, "GetBucketCors", "s3:GetBucketCORS").at(&[any("cors")]).by(Translator),
    bucket(Verb::Put, "PutBucketCors", "s3:PutBucketCORS").at(&[any("cors")]).by(Translator),
    bucket(Verb::Delete, "DeleteBucketCors", "s3:PutBucketCORS").at(&[any("cors")]).by(Translator),
    bucket(Verb::Get, "GetBucketAcl", "s3:GetBucketAcl").at(&[any("acl")]).by(Translator),
    bucket(Verb::Put, "PutBucketAcl", "s3:PutBucketAcl").at(&[any("acl")]).by(Translator),
    // Settings of buckets that are never set.
    bucket(Verb::Get, "GetBucketPolicy", "s3:GetBucketPolicy")
        .at(&[any("policy")])
        .by(NotSet("NoSuchBucketPolicy")),
    bucket(Verb::Put, "PutBucketPolicy", "s3:PutBucketPolicy").at(&[any("policy")]),
    bucket(Verb::Delete, "DeleteBucketPolicy", "s3:DeleteBucketPolicy").at(&[any("policy")]).by(Cleared),
    bucket(Verb::Get, "GetBucketPolicyStatus", "s3:GetBucketPolicyStatus")
        .at(&[any("policyStatus")])
        .by(NotSet("NoSuchBucketPolicy")),
    bucket(Verb::Get, "GetBucketLifecycleConfiguration", "s3:GetLifecycleConfiguration")
        .at(&[any("lifecycle")])
        .also_named(&["GetBucketLifecycle"])
        .by(NotSet("NoSuchLifecycleConfiguration")),
    bucket(Verb::Put, "PutBucketLifecycleConfiguration", "s3:PutLifecycleConfiguration")
        .at(&[any("lifecycle")])
        .also_named(&["PutBucketLifecycle"]),
    bucket(Verb::Delete, "DeleteBucketLifecycle", "s3:PutLifecycleConfiguration")
        .at(&[any("lifecycle")])
        .by(Cleared),
    bucket(Verb::Get, "GetBucketEncryption", "s3:GetEncryptionConfiguration")
        .at(&[any("encryption")])
        .by(NotSet("ServerSideEncryptionConfigurationNotFoundError")),
    bucket(Verb::Put, "PutBucketEncryption", "s3:PutEncryptionConfiguration").at(&[any("encryption")]),
    bucket(Verb::Delete, "DeleteBucketEncryption", "s3:PutEncryptionConfiguration")
        .at(&[any("encryption")])
        .by(Cleared),
    bucket(Verb::Get, "GetBucketReplication", "s3:GetReplicationConfiguration")
        .at(&[any("replication")])
        .by(NotSet("ReplicationConfigurationNotFoundError")),
    bucket(Verb::Put, "PutBucketReplication", "s3:PutReplicationConfiguration").at(&[any("replication")]),
    bucket(Verb::Delete, "DeleteBucketReplication", "s3:PutReplicationConfiguration")
        .at(&[any("replication")])
        .by(Cleared),
    bucket(Verb::Get, "GetBucketWebsite", "s3:GetBucketWebsite")
        .at(&[any("website")])
        .by(NotSet("NoSuchWebsiteConfiguration")),
    bucket(Verb::Put, "PutBucketWebsite", "s3:PutBucketWebsite").at(&[any("website")]),
    bucket(Verb::Delete, "DeleteBucketWebsite", "s3:DeleteBucketWebsite").at(&[any("website")]).by(Cleared),
    bucket(Verb::Get, "GetBucketOwnershipControls", "s3:GetBucketOwnershipControls")
        .at(&[any("ownershipControls")])
        .by(NotSet("OwnershipControlsNotFoundError")),
    bucket(Verb::Put, "PutBucketOwnershipControls", "s3:PutBucketOwnershipControls")
        .at(&[any("ownershipControls")]),
    bucket(Verb::Delete, "DeleteBucketOwnershipControls", "s3:PutBucketOwnershipControls")
        .at(&[any("ownershipControls")])
        .by(Cleared),
    bucket(Verb::Get, "GetPublicAccessBlock", "s3:GetBucketPublicAccessBlock")
        .at(&[any("publicAccessBlock")])
        .by(NotSet("NoSuchPublicAccessBlockConfiguration")),
    bucket(Verb::Put, "PutPublicAccessBlock", "s3:PutBucketPublicAccessBlock")
        .at(&[any("publicAccessBlock")]),
    bucket(Verb::Delete, "DeletePublicAccessBlock", "s3:PutBucketPublicAccessBlock")
        .at(&[any("publicAccessBlock")])
        .by(Cleared),
    bucket(Verb::Get, "GetObjectLockConfiguration", "s3:GetBucketObjectLockConfiguration")
        .at(&[any("object-lock")])
        .by(NotSet("ObjectLockConfigurationNotFoundError")),
    bucket(Verb::Put, "PutObjectLockConfiguration", "s3:PutBucketObjectLockConfiguration")
        .at(&[any("object-lock")]),
    bucket(Verb::Get, "GetBucketLogging", "s3:GetBucketLogging").at(&[any("logging")]).by(Empty),
    bucket(Verb::Put, "PutBucketLogging", "s3:PutBucketLogging").at(&[any("logging")]),
    bucket(Verb::Get, "GetBucketNotificationConfiguration", "s3:GetBucketNotification")
        .at(&[any("notification")])
        .also_named(&["GetBucketNotification"])
        .by(Empty),
    bucket(Verb::Put, "PutBucketNotificationConfiguration", "s3:PutBucketNotification")
        .at(&[any("notification")])
        .also_named(&["PutBucketNotification"]),
    bucket(Verb::Get, "GetBucketVersioning", "s3:GetBucketVersioning")
        .at(&[any("versioning")])
        .by(Empty)
        .passed_on(),
    bucket(Verb::Put, "PutBucketVersioning", "s3:PutBucketVersioning").at(&[any("versioning")]),
    bucket(Verb::Get, "GetBucketAccelerateConfiguration", "s3:GetAccelerateConfiguration")
        .at(&[any("accelerate")])
        .by(Empty),
    bucket(Verb::Put, "PutBucketAccelerateConfiguration", "s3:PutAccelerateConfiguration")
        .at(&[any("accelerate")]),
    bucket(Verb::Get, "GetBucketRequestPayment", "s3:GetBucketRequestPayment")
        .at(&[any("requestPayment")])
        .by(Empty),
    bucket(Verb::Put, "PutBucketRequestPayment", "s3:PutBucketRequestPayment").at(&[any("requestPayment")]),
    bucket(Verb::Get, "GetBucketAnalyticsConfiguration", "s3:GetAnalyticsConfiguration")
        .at(&[any("analytics"), any("id")])
        .by(NotSet("NoSuchConfiguration")),
    bucket(Verb::Get, "ListBucketAnalyticsConfigurations", "s3:GetAnalyticsConfiguration")
        .at(&[any("analytics")])
        .takes(TOKEN)
        .by(Empty),
    bucket(Verb::Put, "PutBucketAnalyticsConfiguration", "s3:PutAnalyticsConfiguration")
        .at(&[any("analytics"), any("id")]),
    bucket(Verb::Delete, "DeleteBucketAnalyticsConfiguration", "s3:PutAnalyticsConfiguration")
        .at(&[any("analytics"), any("id")])
        .by(Cleared),
    bucket(Verb::Get, "GetBucketIntelligentTieringConfiguration", "s3:GetIntelligentTieringConfiguration")
        .at(&[any("intelligent-tiering"), any("id")])
        .by(NotSet("NoSuchConfiguration")),
    bucket(Verb::Get, "ListBucketIntelligentTieringConfigurations", "s3:GetIntelligentTieringConfiguration")
        .at(&[any("intelligent-tiering")])
        .takes(TOKEN)
        .by(Empty),
    bucket(Verb::Put, "PutBucketIntelligentTieringConfiguration", "s3:PutIntelligentTieringConfiguration")
        .at(&[any("intelligent-tiering"), any("id")]),
    bucket(
        Verb::Delete,
        "DeleteBucketIntelligentTieringConfiguration",
        "s3:PutIntelligentTieringConfiguration",
    )
    .at(&[any("intelligent-tiering"), any("id")])
    .by(Cleared),
    bucket(Verb::Get, "GetBucketInventoryConfiguration", "s3:GetInventoryConfiguration")
        .at(&[any("inventory"), any("id")])
        .by(NotSet("NoSuchConfiguration")),
    bucket(Verb::Get, "ListBucketInventoryConfigurations", "s3:GetInventoryConfiguration")
        .at(&[any("inventory")])
        .takes(TOKEN)
        .by(Empty),
    bucket(Verb::Put, "PutBucketInventoryConfiguration", "s3:PutInventoryConfiguration")
        .at(&[any("inventory"), any("id")]),
    bucket(Verb::Delete, "DeleteBucketInventoryConfiguration", "s3:PutInventoryConfiguration")
        .at(&[any("inventory"), any("id")])
        .by(Cleared),
    bucket(Verb::Get, "GetBucketMetricsConfiguration", "s3:GetMetricsConfiguration")
        .at(&[any("metrics"), any("id")])
        .by(NotSet("NoSuchConfiguration")),
    bucket(Verb::Get, "ListBucketMetricsConfigurations", "s3:GetMetricsConfiguration")
        .at(&[any("metrics")])
        .takes(TOKEN)
        .by(Empty),
    bucket(Verb::Put, "PutBucketMetricsConfiguration", "s3:PutMetricsConfiguration")
        .at(&[any("metrics"), any("id")]),
    bucket(Verb::Delete, "DeleteBucketMetricsConfiguration", "s3:PutMetricsConfiguration")
        .at(&[any("metrics"), any("id")])
        .by(Cleared),
    // Settings of buckets that S3 has and Striate does not know.
    bucket(Verb::Get, "CreateSession", "s3express:CreateSession").at(&[any("session")]),
    bucket(Verb::Get, "GetBucketAbac", "s3:GetBucketABAC").at(&[any("abac")]),
    bucket(Verb::Put, "PutBucketAbac", "s3:PutBucketABAC").at(&[any("abac")]),
    bucket(Verb::Post, "CreateBucketMetadataConfiguration", "s3:CreateBucketMetadataTableConfiguration")
        .at(&[any("metadataConfiguration")]),
    bucket(Verb::Get, "GetBucketMetadataConfiguration", "s3:GetBucketMetadataTableConfiguration")
        .at(&[any("metadataConfiguration")]),
    bucket(Verb::Delete, "DeleteBucketMetadataConfiguration", "s3:DeleteBucketMetadataTableConfiguration")
        .at(&[any("metadataConfiguration")]),
    bucket(Verb::Post, "CreateBucketMetadataTableConfiguration", "s3:CreateBucketMetadataTableConfiguration")
        .at(&[any("metadataTable")]),
    bucket(Verb::Get, "GetBucketMetadataTableConfiguration", "s3:GetBucketMetadataTableConfiguration")
        .at(&[any("metadataTable")]),
    bucket(
        Verb::Delete,
        "DeleteBucketMetadataTableConfiguration",
        "s3:DeleteBucketMetadataTableConfiguration",
    )
    .at(&[any("metadataTable")]),
    bucket(
        Verb::Put,
        "UpdateBucketMetadataAnnotationTableConfiguration",
        "s3:UpdateBucketMetadataAnnotationTableConfiguration",
    )
    .at(&[any("metadataAnnotationTable")]),
    bucket(
        Verb::Put,
        "UpdateBucketMetadataInventoryTableConfiguration",
        "s3:UpdateBucketMetadataInventoryTableConfiguration",
    )
    .at(&[any("metadataInventoryTable")]),
    bucket(
        Verb::Put,
        "UpdateBucketMetadataJournalTableConfiguration",
        "s3:UpdateBucketMetadataJournalTableConfiguration",
    )
    .at(&[any("metadataJournalTable")]),
    bucket(Verb::Post, "WriteGetObjectResponse", "s3-object-lambda:WriteGetObjectResponse")
        .with_header("x-amz-request-route"),
    // Objects.
    object(Verb::Get, "GetObject", "s3:GetObject").takes(&OF_OBJECT).evaluates(OF_READ).by(Translator),
    object(Verb::Head, "HeadObject", "s3:GetObject").takes(&OF_OBJECT).evaluates(OF_READ).by(Translator),
    object(Verb::Put, "PutObject", "s3:PutObject").evaluates(OF_WRITE).by(Translator).stream(),
    object(Verb::Delete, "DeleteObject", "s3:DeleteObject")
        .takes(VERSION)
        .evaluates(OF_DELETE)
        .by(Translator),
    object(Verb::Put, "CopyObject", "s3:PutObject")
        .with_header("x-amz-copy-source")
        .evaluates(OF_COPY)
        .by(Translator),
    object(Verb::Get, "GetObjectAttributes", "s3:GetObjectAttributes")
        .at(&[any("attributes")])
        .takes(VERSION)
        .by(Translator),
    object(Verb::Get, "GetObjectTagging", "s3:GetObjectTagging")
        .at(&[any("tagging")])
        .takes(VERSION)
        .by(Translator),
    object(Verb::Put, "PutObjectTagging", "s3:PutObjectTagging")
        .at(&[any("tagging")])
        .takes(VERSION)
        .by(Translator)
        .document(),
    object(Verb::Delete, "DeleteObjectTagging", "s3:DeleteObjectTagging")
        .at(&[any("tagging")])
        .takes(VERSION)
        .by(Translator),
    object(Verb::Get, "GetObjectAcl", "s3:GetObjectAcl").at(&[any("acl")]).takes(VERSION).by(Translator),
    object(Verb::Put, "PutObjectAcl", "s3:PutObjectAcl")
        .at(&[any("acl")])
        .takes(VERSION)
        .by(Translator)
        .document(),
    object(Verb::Post, "CreateMultipartUpload", "s3:PutObject").at(&[any("uploads")]).by(Translator),
    object(Verb::Put, "UploadPart", "s3:PutObject")
        .at(&[any("partNumber"), any("uploadId")])
        .by(Translator)
        .stream(),
    object(Verb::Put, "UploadPartCopy", "s3:PutObject")
        .at(&[any("partNumber"), any("uploadId")])
        .with_header("x-amz-copy-source")
        .evaluates(OF_SOURCE)
        .by(Translator),
    object(Verb::Post, "CompleteMultipartUpload", "s3:PutObject")
        .at(&[any("uploadId")])
        .evaluates(OF_WRITE)
        .by(Translator),
    object(Verb::Delete, "AbortMultipartUpload", "s3:AbortMultipartUpload")
        .at(&[any("uploadId")])
        .evaluates(&["x-amz-if-match-initiated-time"])
        .by(Translator),
    object(Verb::Get, "ListParts", "s3:ListMultipartUploadParts")
        .at(&[any("uploadId")])
        .takes(&["max-parts", "part-number-marker"])
        .by(Translator),
    object(Verb::Get, "GetObjectRetention", "s3:GetObjectRetention")
        .at(&[any("retention")])
        .takes(VERSION)
        .by(NotSet("NoSuchObjectLockConfiguration")),
    object(Verb::Put, "PutObjectRetention", "s3:PutObjectRetention")
        .at(&[any("retention")])
        .takes(VERSION)
        .document(),
    object(Verb::Get, "GetObjectLegalHold", "s3:GetObjectLegalHold")
        .at(&[any("legal-hold")])
        .takes(VERSION)
        .by(NotSet("NoSuchObjectLockConfiguration")),
    object(Verb::Put, "PutObjectLegalHold", "s3:PutObjectLegalHold")
        .at(&[any("legal-hold")])
        .takes(VERSION)
        .document(),
    object(Verb::Get, "GetObjectTorrent", "s3:GetObjectTorrent").at(&[any("torrent")]).by(Server::Withdrawn),
    object(Verb::Post, "RestoreObject", "s3:RestoreObject").at(&[any("restore")]).takes(VERSION),
    object(Verb::Post, "SelectObjectContent", "s3:GetObject")
        .at(&[any("select"), one_of("select-type", &["2"])]),
    object(Verb::Put, "UpdateObjectEncryption", "s3:UpdateObjectEncryption")
        .at(&[any("encryption")])
        .takes(VERSION)
        .document(),
    object(Verb::Get, "GetObjectAnnotation", "s3:GetObjectAnnotation")
        .at(&[any("annotation"), any("annotationName")])
        .takes(VERSION),
    object(Verb::Get, "ListObjectAnnotations", "s3:ListObjectAnnotations").at(&[any("annotation")]).takes(&[
        "versionId",
        "max-annotation-results",
        "annotation-prefix",
        "continuation-token",
    ]),
    object(Verb::Put, "PutObjectAnnotation", "s3:PutObjectAnnotation")
        .at(&[any("annotation"), any("annotationName")])
        .takes(VERSION)
        .evaluates(&["x-amz-object-if-match"])
        .stream(),
    object(Verb::Delete, "DeleteObjectAnnotation", "s3:DeleteObjectAnnotation")
        .at(&[any("annotation"), any("annotationName")])
        .takes(VERSION)
        .evaluates(&["x-amz-object-if-match"]),
    // Of directory buckets, which no origin has: their endpoints take other signatures.
    object(Verb::Put, "RenameObject", "s3express:RenameObject")
        .at(&[any("renameObject")])
        .with_header("x-amz-rename-source")
        .kept_here(),
];
