"""Sends every operation of S3's published model, and every condition of it, and compares the store before and after.

botocore's model says which operations there are; docs/src/s3.md says which of them are served. Whatever is not must change nothing.
"""

import datetime
import re
import sys
from dataclasses import dataclass, field

from botocore.exceptions import ClientError

from . import ROOT

PAGE = ROOT / "docs" / "src" / "s3.md"
# Operations that may change the store when they are served.
WRITES = {
    "AbortMultipartUpload", "CompleteMultipartUpload", "CopyObject", "CreateBucket", "CreateMultipartUpload", "DeleteBucket",
    "DeleteBucketCors", "DeleteBucketTagging", "DeleteObject", "DeleteObjects", "DeleteObjectTagging", "PutBucketCors",
    "PutBucketTagging", "PutObject", "PutObjectTagging", "UploadPart", "UploadPartCopy",
}
# Members of inputs that make an operation conditional, or apply it to a part of an object.
CONDITION = re.compile(r"(^|[a-z])If(None)?Match|(^|[a-z])If(Un)?[Mm]odifiedSince|^WriteOffsetBytes$")
# Conditions of a request to delete many objects, which are in its document.
OF_DELETES = {"ETag": '"00000000000000000000000000000000"', "LastModifiedTime": datetime.datetime(2000, 1, 1), "Size": 999}
LONG_AGO, FAR_OFF = datetime.datetime(2000, 1, 1), datetime.datetime(2100, 1, 1)
# Headers that make any HTTP request conditional, with values that no object of the tests meets.
HTTP_CONDITIONS = [
    ("If-Match", '"00000000000000000000000000000000"'),
    ("If-Match", '"00000000000000000000000000000000", "11111111111111111111111111111111"'),
    ("If-None-Match", "*"),
    ("If-Modified-Since", "Fri, 01 Jan 2100 00:00:00 GMT"),
    ("If-Unmodified-Since", "Sat, 01 Jan 2000 00:00:00 GMT"),
    ("If-Range", '"00000000000000000000000000000000"'),
    ("Content-Range", "bytes 0-1/10"),
    ("x-amz-if-match-size", "999"),
    ("x-amz-if-match-last-modified-time", "Sat, 01 Jan 2000 00:00:00 GMT"),
    ("x-amz-if-match-initiated-time", "Sat, 01 Jan 2000 00:00:00 GMT"),
    ("x-amz-write-offset-bytes", "3"),
    ("x-goog-if-generation-match", "0"),
]
# Requests of other dialects, and of SDKs that are newer than the gateway.
FOREIGN = [
    ("DELETE", "{object}", "annotation"), ("PUT", "{object}", "annotation=&annotationName=a"), ("PUT", "{object}", "encryption"),
    ("PUT", "{object}", "renameObject"), ("PUT", "{object}", "partNumber=1"), ("PUT", "{object}", "uploadId=x"),
    ("PUT", "{object}", "append&position=8"), ("PUT", "{object}", "position=8"), ("PUT", "{object}", "versionId=v1"),
    ("PUT", "{object}", "%61cl&append"), ("PUT", "{object}", "tagging&t%61gging"), ("PUT", "{object}", "compose"),
    ("PUT", "{object}", "newThing"), ("PUT", "{object}", "new=1&x-id=PutObjectNewThing"), ("POST", "{object}", "rename&name=z"),
    ("PUT", "{object}", "x-amz-copy-source=b%2Fk"), ("DELETE", "{object}", "x-amz-if-match-size=999"),
    *(("DELETE", "{object}", name) for name in (
        "acl", "retention", "legal-hold", "torrent", "attributes", "cors", "lifecycle", "policy", "encryption", "%61cl", "uploads",
        "restore", "versionId=v1", "partNumber=1", "append", "newThing")),
    *(("HEAD", "{object}", name) for name in ("acl", "tagging", "retention", "attributes", "uploads")),
    ("GET", "{object}", "annotation"), ("GET", "{object}", "annotation&annotationName=a"), ("GET", "{bucket}", "abac"),
    *(("DELETE", "{bucket}", name) for name in (
        "uploads", "versioning", "acl", "notification", "logging", "object-lock", "location", "versions", "accelerate",
        "requestPayment", "metadataConfiguration", "metadataTable", "abac", "list-type=2", "delete", "anything", "%75ploads")),
    *(("PUT", "{bucket}", name) for name in ("abac", "metadataInventoryTable", "metadataJournalTable", "uploads", "quota")),
]


def states(page=PAGE):
    """Returns {operation: state} of the page on S3: `yes`, `not set` or `no`."""
    rows = re.findall(r"^\| ([\w, ]+) \| [^|]* \| (yes|not set|no)\b", page.read_text(), re.MULTILINE)
    return {name: state for names, state in rows for name in names.split(", ")}


def snapshot(s3):
    """Returns everything that a client sees of a store."""
    store = {}
    for bucket in s3.list_buckets()["Buckets"]:
        name = bucket["Name"]
        objects = {}
        for listed in s3.list_objects_v2(Bucket=name).get("Contents", []):
            key = listed["Key"]
            objects[key] = [str(listed[fact]) for fact in ("ETag", "LastModified", "Size")]
            if key != "source":
                read = s3.get_object(Bucket=name, Key=key)
                tags = s3.get_object_tagging(Bucket=name, Key=key)["TagSet"] if read.get("TagCount") else []
                objects[key] += [read["Body"].read(), read["ContentType"], read["Metadata"], tags]
        uploads = {}
        for upload in s3.list_multipart_uploads(Bucket=name).get("Uploads", []):
            parts = s3.list_parts(Bucket=name, Key=upload["Key"], UploadId=upload["UploadId"]).get("Parts", [])
            uploads[upload["UploadId"]] = [(part["PartNumber"], part["ETag"]) for part in parts]
        settings = [_setting(get, name) for get in (s3.get_bucket_tagging, s3.get_bucket_cors)] if objects else []
        store[name] = (objects, uploads, settings)
    return store


def _setting(get, bucket):
    try:
        answer = get(Bucket=bucket)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return {name: value for name, value in answer.items() if name != "ResponseMetadata"}


@dataclass
class Walk:
    """A store with an object, an upload and tags in `full`, and nothing in `empty`."""

    s3: object
    full: str
    empty: str
    # Makes a bucket of the kind that is tested.
    make_bucket: object
    # Further clients whose stores must not change, as that of an origin.
    others: list = field(default_factory=list)
    upload: str = ""

    def fill(self):
        """Restores what an operation that is served has changed."""
        names = {bucket["Name"] for bucket in self.s3.list_buckets()["Buckets"]}
        for name in (self.full, self.empty):
            if name not in names:
                self.make_bucket(name)
        self._clear(self.empty)
        self._clear(self.full)
        self.s3.put_object(Bucket=self.full, Key="k", Body=b"0123456789", Metadata={"m": "1"}, Tagging="a=b")
        self.s3.put_object(Bucket=self.full, Key="source", Body=b"source")
        self.s3.put_bucket_tagging(Bucket=self.full, Tagging={"TagSet": [{"Key": "t", "Value": "v"}]})
        rule = {"AllowedMethods": ["GET"], "AllowedOrigins": ["https://example.com"]}
        self.s3.put_bucket_cors(Bucket=self.full, CORSConfiguration={"CORSRules": [rule]})
        self.upload = self.s3.create_multipart_upload(Bucket=self.full, Key="k")["UploadId"]
        part = {"Bucket": self.full, "Key": "k", "UploadId": self.upload, "PartNumber": 1}
        self.part = self.s3.upload_part(**part, Body=b"part")["ETag"]
        self.before = self.state()

    def _clear(self, bucket):
        for listed in self.s3.list_objects_v2(Bucket=bucket).get("Contents", []):
            self.s3.delete_object(Bucket=bucket, Key=listed["Key"])
        for upload in self.s3.list_multipart_uploads(Bucket=bucket).get("Uploads", []):
            self.s3.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])

    def state(self):
        return [snapshot(client) for client in (self.s3, *self.others)]

    def minimal(self, shape, bucket, name=None):
        """Returns the smallest valid value of a shape."""
        known = {
            "Bucket": bucket, "Key": "k", "UploadId": self.upload, "PartNumber": 1, "Policy": "{}", "RequestRoute": "route",
            "RequestToken": "token", "CopySource": {"Bucket": self.full, "Key": "source"}, "ETag": self.part,
            "RenameSource": f"/{self.full}/source", "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": self.part}]},
        }
        if name in known:
            return known[name]
        if shape.type_name == "structure":
            wanted = set(shape.required_members)
            payload = shape.serialization.get("payload")
            if payload:
                wanted.add(payload)
            wanted.update({"MultipartUpload"} & set(shape.members))
            if getattr(shape, "is_tagged_union", False):
                wanted.add(min(shape.members))
            return {member: self.minimal(shape.members[member], bucket, member) for member in wanted}
        if shape.type_name == "list":
            return [self.minimal(shape.member, bucket)]
        simple = {"integer": 1, "long": 1, "boolean": True, "blob": b"body", "map": {}, "timestamp": LONG_AGO}
        if shape.type_name == "string":
            return shape.enum[0] if shape.enum else "x" * max(1, shape.metadata.get("min", 1))
        return simple[shape.type_name]

    def send(self, operation, arguments, headers=None):
        """Sends an operation; returns its status and, of a request that deletes many, how many deletes failed."""
        from botocore import xform_name

        def add(request, **_):
            for name, value in (headers or {}).items():
                request.headers[name] = value

        events = self.s3.meta.events
        events.register_first("before-sign.s3", add, unique_id="walk")
        try:
            answer = getattr(self.s3, xform_name(operation))(**arguments)
            body = answer.get("Body")
            if hasattr(body, "read"):
                body.read()
            errors = answer.get("Errors") if operation == "DeleteObjects" else None
            return 412 if errors else answer["ResponseMetadata"]["HTTPStatusCode"]
        except ClientError as error:
            return error.response["ResponseMetadata"]["HTTPStatusCode"]
        finally:
            events.unregister("before-sign.s3", unique_id="walk")

    def operations(self):
        """Sends every operation to the full and to the empty bucket. Returns (number, what is wrong)."""
        model, served, wrong, sent = self.s3.meta.service_model, states(), [], 0
        for operation in model.operation_names:
            shape = model.operation_model(operation).input_shape
            for bucket in (self.full, self.empty):
                if not self.upload:
                    self.fill()
                if bucket == self.empty and "Key" in shape.members:
                    continue
                arguments = self.minimal(shape, bucket)
                if operation == "CreateBucket":
                    arguments = {"Bucket": f"{bucket}-new"}
                status = self.send(operation, arguments)
                sent += 1
                state = served.get(operation)
                if operation in WRITES and state == "yes":
                    if operation == "CreateBucket":
                        self.s3.delete_bucket(**arguments)
                    self.fill()
                    continue
                if self.state() != self.before:
                    wrong.append(f"{operation} in {bucket} changed the store ({status})")
                    self.fill()
                if state == "no" and status < 400 or status >= 500 and status != 501 or state is None:
                    wrong.append(f"{operation} in {bucket} was answered {status}, and the page says {state}")
        return len(model.operation_names), sent, wrong

    def conditions(self):
        """Sends every operation with each of its conditions, which does not hold. Returns (number of fields, what is wrong)."""
        model, wrong, walked = self.s3.meta.service_model, [], 0
        self.fill()
        for operation in model.operation_names:
            shape = model.operation_model(operation).input_shape
            names = [name for name in (shape.members if shape else ()) if CONDITION.search(name)]
            for name in names:
                arguments = self.minimal(shape, self.full)
                arguments[name] = self._unmet(name)
                walked += 1
                wrong += self._refused(operation, arguments, name)
        for name, value in OF_DELETES.items():
            walked += 1
            arguments = {"Bucket": self.full, "Delete": {"Objects": [{"Key": "k", name: value}]}}
            wrong += self._refused("DeleteObjects", arguments, name)
        return walked, wrong

    def http_conditions(self):
        """Sends every operation that writes with each condition of HTTP and of other dialects."""
        model, wrong, walked = self.s3.meta.service_model, [], 0
        self.fill()
        for operation in sorted(WRITES | {"PutObjectAcl", "PutBucketAcl"}):
            shape = model.operation_model(operation).input_shape
            for name, value in HTTP_CONDITIONS:
                arguments = self.minimal(shape, self.empty if operation == "DeleteBucket" else self.full)
                walked += 1
                wrong += self._refused(operation, arguments, name, {name: value})
        return walked, wrong

    def _unmet(self, name):
        if "Size" in name:
            return 999
        if name == "WriteOffsetBytes":
            return 3
        if "UnmodifiedSince" in name or "Time" in name:
            return LONG_AGO
        if "odifiedSince" in name:
            return FAR_OFF
        if "NoneMatch" in name:
            source = name != "IfNoneMatch"
            object_etag = self.s3.head_object(Bucket=self.full, Key="source" if source else "k")["ETag"]
            return object_etag if source else "*"
        return '"00000000000000000000000000000000"'

    def _refused(self, operation, arguments, name, headers=None):
        status = self.send(operation, arguments, headers)
        # A cache's validator in the future is no date to compare with: such a read is answered in full.
        is_read = operation.startswith(("Get", "Head", "List"))
        wrong = []
        if status < 300 and not (is_read and name == "IfModifiedSince"):
            wrong.append(f"{operation} with {name} was answered {status}")
        if status >= 500 and status != 501:
            wrong.append(f"{operation} with {name} failed: {status}")
        if self.state() != self.before:
            wrong.append(f"{operation} with {name} changed the store ({status})")
            self.fill()
        return wrong

    def foreign(self, raw):
        """Sends the requests of other dialects. Returns (number, what is wrong)."""
        wrong = []
        self.fill()
        for method, where, query in FOREIGN:
            for bucket in (self.full, self.empty):
                if bucket == self.empty and "object" in where:
                    continue
                path = where.format(object=f"/{bucket}/k", bucket=f"/{bucket}")
                pairs = [tuple(pair.split("=", 1)) if "=" in pair else (pair, "") for pair in query.split("&")]
                status = send_query(raw, method, path, pairs)
                if not (400 <= status < 500 or status == 501):
                    wrong.append(f"{method} {path}?{query} was answered {status}")
                if self.state() != self.before:
                    wrong.append(f"{method} {path}?{query} changed the store ({status})")
                    self.fill()
        return len(FOREIGN), wrong


def send_query(raw, method, path, pairs):
    """Sends a request whose query is percent-encoded as given."""
    from urllib.parse import unquote

    from . import sigv4
    request = sigv4.Request(method, path, [(unquote(name), unquote(value)) for name, value in pairs], {}, b"")
    sigv4.sign_headers(request, raw.credentials, raw.host, payload_hash=sigv4.UNSIGNED)
    query = "&".join(f"{name}={value}" for name, value in pairs)
    return raw.send_raw(method, f"{path}?{query}", request.headers).status


def main():
    """Walks a server, whose endpoint and keys are in the environment, and prints what was sent and what is wrong as JSON."""
    import json
    import os
    import subprocess

    import boto3
    from botocore.config import Config

    from .s3 import Client
    from .sigv4 import Credentials

    def boto(endpoint, access_key, secret_key):
        config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}, inject_host_prefix=False)
        return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=access_key,
                            aws_secret_access_key=secret_key, config=config)

    asked = json.load(sys.stdin)
    s3 = boto(*asked["server"])
    others = [boto(*other) for other in asked["others"]]

    def make(name):
        if asked["make"]:
            subprocess.run([part.replace("NAME", name) for part in asked["make"]], check=True, capture_output=True,
                           env={**os.environ, **asked["environment"]})
        else:
            s3.create_bucket(Bucket=name)

    for other in others:
        for name in ("full-bucket", "empty-bucket"):
            other.create_bucket(Bucket=f"their-{name}")
    walk = Walk(s3, "full-bucket", "empty-bucket", make, others)
    known, sent, wrong = walk.operations()
    fields, wrong_fields = walk.conditions()
    headers, wrong_headers = walk.http_conditions()
    endpoint, *keys = asked["server"]
    foreign, wrong_foreign = walk.foreign(Client(endpoint, Credentials(*keys)))
    json.dump({
        "operations": {"known": known, "sent": sent, "wrong": wrong}, "fields": {"sent": fields, "wrong": wrong_fields},
        "headers": {"sent": headers, "wrong": wrong_headers}, "foreign": {"sent": foreign, "wrong": wrong_foreign},
    }, sys.stdout)


if __name__ == "__main__":
    main()
