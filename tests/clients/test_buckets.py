"""Buckets with boto3: life, names, tagging, CORS, location, and configurations that are not set."""

import pytest
from conftest import failing


def test_create_head_list_delete(s3, bucket):
    assert s3.head_bucket(Bucket=bucket)["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert bucket in [entry["Name"] for entry in s3.list_buckets()["Buckets"]]
    s3.delete_bucket(Bucket=bucket)
    with failing("404", 404):
        s3.head_bucket(Bucket=bucket)
    with failing("NoSuchBucket", 404):
        s3.delete_bucket(Bucket=bucket)


@pytest.mark.minio_differs("answers 409 in us-east-1 too")
def test_creating_again(s3, bucket):
    s3.create_bucket(Bucket=bucket)
    assert [entry["Name"] for entry in s3.list_buckets()["Buckets"]].count(bucket) == 1


def test_a_full_bucket_stays(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    with failing("BucketNotEmpty", 409):
        s3.delete_bucket(Bucket=bucket)
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"


def test_a_bucket_with_nothing_but_uploads_goes_with_them(s3, bucket):
    where = {"Bucket": bucket, "Key": "k"}
    upload = s3.create_multipart_upload(**where)["UploadId"]
    s3.upload_part(**where, UploadId=upload, PartNumber=1, Body=b"x" * 100_000)
    s3.create_multipart_upload(Bucket=bucket, Key="another")
    s3.delete_bucket(Bucket=bucket)
    with failing(("NoSuchBucket", "NoSuchUpload"), 404):
        s3.upload_part(**where, UploadId=upload, PartNumber=2, Body=b"x")
    with failing(("NoSuchBucket", "NoSuchUpload"), 404):
        s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": "x"}]})
    s3.create_bucket(Bucket=bucket)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)
    with failing("NoSuchUpload", 404):
        s3.list_parts(**where, UploadId=upload)


def test_a_bucket_made_again_is_empty(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    s3.delete_object(Bucket=bucket, Key="k")
    s3.delete_bucket(Bucket=bucket)
    s3.create_bucket(Bucket=bucket)
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


@pytest.mark.parametrize("name", ["ab", "a" * 64, "Upper", "under_score", "-dash", "dash-", "a..b", "192.168.1.1"])
def test_bad_names(raw, name):
    answer = raw.send("PUT", f"/{name}")
    assert (answer.status, answer.code) == (400, "InvalidBucketName")


def test_location(s3, bucket):
    assert s3.get_bucket_location(Bucket=bucket)["LocationConstraint"] in (None, "us-east-1")


def test_location_constraint_of_this_region(raw, bucket):
    body = b"<CreateBucketConfiguration><LocationConstraint>us-east-1</LocationConstraint></CreateBucketConfiguration>"
    assert raw.send("PUT", f"/{bucket}-here", body=body).status == 200


@pytest.mark.minio_differs("has no bucket tagging by this name in its gateway mode")
def test_tagging(s3, bucket):
    with failing("NoSuchTagSet", 404):
        s3.get_bucket_tagging(Bucket=bucket)
    s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": [{"Key": "a", "Value": "1"}]})
    assert s3.get_bucket_tagging(Bucket=bucket)["TagSet"] == [{"Key": "a", "Value": "1"}]
    s3.delete_bucket_tagging(Bucket=bucket)
    with failing("NoSuchTagSet", 404):
        s3.get_bucket_tagging(Bucket=bucket)


CORS = {"CORSRules": [{"AllowedMethods": ["GET", "PUT"], "AllowedOrigins": ["https://*.example.org"],
                       "AllowedHeaders": ["x-amz-*"], "ExposeHeaders": ["ETag"], "MaxAgeSeconds": 60}]}


@pytest.mark.minio_differs("has no CORS per bucket")
def test_cors_is_kept(s3, bucket):
    with failing("NoSuchCORSConfiguration", 404):
        s3.get_bucket_cors(Bucket=bucket)
    s3.put_bucket_cors(Bucket=bucket, CORSConfiguration=CORS)
    assert s3.get_bucket_cors(Bucket=bucket)["CORSRules"] == CORS["CORSRules"]
    s3.delete_bucket_cors(Bucket=bucket)
    with failing("NoSuchCORSConfiguration", 404):
        s3.get_bucket_cors(Bucket=bucket)


@pytest.mark.minio_differs("has no CORS per bucket")
def test_cors_is_obeyed(s3, raw, bucket):
    s3.put_bucket_cors(Bucket=bucket, CORSConfiguration=CORS)
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    asked = {"host": raw.host, "origin": "https://www.example.org", "access-control-request-method": "PUT",
             "access-control-request-headers": "x-amz-date"}
    answer = raw.send_raw("OPTIONS", f"/{bucket}/k", asked)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == "https://www.example.org"
    assert "PUT" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-max-age"] == "60"
    elsewhere = raw.send_raw("OPTIONS", f"/{bucket}/k", {**asked, "origin": "https://evil.org"})
    assert elsewhere.status == 403
    read = raw.send("GET", f"/{bucket}/k", headers={"origin": "https://www.example.org"})
    assert read.headers["access-control-allow-origin"] == "https://www.example.org"
    assert read.headers["access-control-expose-headers"] == "ETag"


@pytest.mark.parametrize("operation, code", [
    ("get_bucket_policy", "NoSuchBucketPolicy"), ("get_bucket_lifecycle_configuration", "NoSuchLifecycleConfiguration"),
    ("get_bucket_encryption", "ServerSideEncryptionConfigurationNotFoundError"),
    ("get_object_lock_configuration", "ObjectLockConfigurationNotFoundError"),
    ("get_bucket_replication", "ReplicationConfigurationNotFoundError"),
    pytest.param("get_bucket_website", "NoSuchWebsiteConfiguration", marks=pytest.mark.minio_differs("not implemented")),
    pytest.param("get_public_access_block", "NoSuchPublicAccessBlockConfiguration", marks=pytest.mark.minio_differs("not implemented")),
    pytest.param("get_bucket_ownership_controls", "OwnershipControlsNotFoundError", marks=pytest.mark.minio_differs("not implemented")),
])
def test_what_is_not_set_is_not_found(s3, bucket, operation, code):
    with failing(code, 404):
        getattr(s3, operation)(Bucket=bucket)


def test_what_is_not_set_is_empty(s3, bucket):
    assert "Status" not in s3.get_bucket_versioning(Bucket=bucket)
    assert "LoggingEnabled" not in s3.get_bucket_logging(Bucket=bucket)
    notification = s3.get_bucket_notification_configuration(Bucket=bucket)
    assert not [name for name in notification if name.endswith("Configurations")]
    assert s3.get_bucket_acl(Bucket=bucket)["Grants"][0]["Permission"] == "FULL_CONTROL"


@pytest.mark.minio_differs("knows neither acceleration nor payer of every release")
def test_acceleration_and_payer(s3, bucket):
    assert "Status" not in s3.get_bucket_accelerate_configuration(Bucket=bucket)
    assert s3.get_bucket_request_payment(Bucket=bucket)["Payer"] == "BucketOwner"


def test_an_unknown_operation_is_refused_clearly(raw, bucket):
    answer = raw.send("PUT", f"/{bucket}", query=[("analytics", ""), ("id", "x")], body=b"<AnalyticsConfiguration/>")
    assert answer.status in (400, 501), answer
