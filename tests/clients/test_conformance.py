"""What S3 promises beside its operations: documents as clients write them, lists in headers, errors, checksums of parts, regions.

Every test fails on 0.5.0.
"""

import base64
import hashlib
import hmac
import http.client
import json
import urllib.parse
import uuid
import xml.etree.ElementTree as ElementTree
import zlib

import boto3
import pytest
from botocore.config import Config
from conftest import boto, failing
from proving import sigv4
from proving.servers import DOMAIN
from test_bad_chunks import SIGNED, SIGNED_TRAILER, UNSIGNED_TRAILER, Chunked

pytestmark = [
    pytest.mark.front_differs("another store answers"),
    pytest.mark.minio_differs("the wording and the codes are S3's"),
]


def code_of(answer):
    root = ElementTree.fromstring(answer.body)
    return answer.status, root.findtext("Code")


def crc32(data):
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def sha256(data):
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


def lines(server, url, method="GET", headers=(), body=None):
    """Sends a request, presigned or unsigned, with these header lines, of which a name may come twice."""
    url = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.putrequest(method, url.path + (f"?{url.query}" if url.query else ""), skip_host=True)
    connection.putheader("host", url.netloc)
    for name, value in headers:
        connection.putheader(name, value)
    if body is not None:
        connection.putheader("content-length", str(len(body)))
    connection.endheaders(body)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


# Routes and signatures.


def test_what_is_no_operation_is_refused_without_a_signature(server, s3, raw, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    copy = [("x-amz-copy-source", f"{bucket}/k")]
    for method, path, headers, status, expected in [
        ("POST", "/", [], 405, {"Code": "MethodNotAllowed", "Method": "POST", "ResourceType": "SERVICE"}),
        ("POST", "/{}/k", [], 405, {"Code": "MethodNotAllowed", "ResourceType": "OBJECT"}),
        ("PUT", "/{}/k?uploadId=u", [], 405, {"Code": "MethodNotAllowed", "ResourceType": "UPLOAD"}),
        ("PUT", "/{}/k?partNumber=1", [], 400, {"Code": "InvalidArgument"}),
        ("GET", "/{}/k?uploads", [], 400, {"Code": "InvalidRequest"}), ("GET", "/{}/k?versions", [], 400, {"Code": "InvalidRequest"}),
        ("DELETE", "/{}/k", copy, 400, {"Code": "InvalidArgument"}), ("GET", "/{}", copy, 400, {"Code": "InvalidArgument"}),
        ("POST", "/{}/k?uploadId=u", copy, 400, {"Code": "InvalidArgument"}),
        ("POST", "/{}", [("content-type", "application/json")], 412, {"Code": "PreconditionFailed"}),
        ("PUT", "/{}/k?newer", [], 501, {"Code": "NotImplemented"}),
        # What is an operation needs a signature, served or not.
        ("GET", "/{}/k", [], 403, {"Code": "AccessDenied"}), ("PUT", "/{}/k?retention", [], 403, {"Code": "AccessDenied"}),
        ("DELETE", "/{}", [], 403, {"Code": "AccessDenied"}), ("GET", "/", [], 403, {"Code": "AccessDenied"}),
    ]:
        for name in (bucket, "no-such-bucket-here"):
            answer, content = lines(server, server.endpoint + path.format(name), method, headers, b"")
            root = ElementTree.fromstring(content)
            assert (answer.status, {field: root.findtext(field) for field in expected}) == (status, expected), (method, path)
        # A signature changes nothing about what is no operation.
        if status != 403:
            path, _, query = path.format(bucket).partition("?")
            pairs = [query.partition("=")[::2]] if query else []
            assert raw.send(method, path, pairs, dict(headers)).status == status, (method, path)
    assert lines(server, f"{server.endpoint}/{bucket}/k?uploadId=u", "PUT", [], b"")[0].headers["allow"] == "DELETE, POST, GET"
    assert raw.get(bucket, "k") == b"x"


def test_codes_of_signatures_dates_and_tokens(server, s3, bucket):
    url = s3.generate_presigned_url("get_object", {"Bucket": bucket, "Key": "k"})
    signature = url.partition("X-Amz-Signature=")[2]
    scheme = "AWS4-HMAC-SHA256"
    signed = f"Credential={server.credentials.access_key}/20260101/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature={signature}"
    plain = f"{server.endpoint}/{bucket}/k"
    for address, headers, status, code in [
        (plain, {"authorization": ""}, 403, "AccessDenied"), (plain, {"authorization": "word"}, 400, "InvalidArgument"),
        (plain, {"authorization": f"AWS2-HMAC-SHA1 {signed}", "x-amz-date": "20260101T000000Z"}, 400, "InvalidArgument"),
        (plain, {"authorization": "AWS key:signature"}, 400, "InvalidRequest"),
        (plain, {"authorization": f"{scheme} {signed}", "x-amz-date": "01012026"}, 403, "AccessDenied"),
        (plain, {"authorization": f"{scheme} {signed}", "x-amz-date": ""}, 403, "AccessDenied"),
        (f"{url}&X-Amz-Security-Token=token", {}, 400, "InvalidToken"),
    ]:
        answer, content = lines(server, address, "GET", headers.items())
        assert (answer.status, ElementTree.fromstring(content).findtext("Code")) == (status, code), headers
    for wrong in ("0" * 64, "no signature"):
        answer, content = lines(server, url.replace(signature, urllib.parse.quote(wrong)), "GET")
        root = ElementTree.fromstring(content)
        assert (answer.status, root.findtext("Code"), root.findtext("SignatureProvided")) == (403, "SignatureDoesNotMatch", wrong)
        assert root.findtext("AWSAccessKeyId") == server.credentials.access_key
        assert root.findtext("StringToSign").startswith(f"{scheme}\n") and root.findtext("CanonicalRequest").startswith(f"GET\n/{bucket}/k\n")
        assert bytes.fromhex(root.findtext("StringToSignBytes")).decode() == root.findtext("StringToSign")


def test_a_wrong_hash_of_the_body_is_named_beside_the_right_one(raw, s3, bucket):
    wrong, right = hashlib.sha256(b"other").hexdigest(), hashlib.sha256(b"<Tagging/>").hexdigest()
    for path, query in ((f"/{bucket}/k", []), (f"/{bucket}", [("tagging", "")])):
        answer = raw.send("PUT", path, query, body=b"<Tagging/>", payload_hash=wrong)
        root = ElementTree.fromstring(answer.body)
        assert (answer.status, root.findtext("Code")) == (400, "XAmzContentSHA256Mismatch")
        assert (root.findtext("ClientComputedContentSHA256"), root.findtext("S3ComputedContentSHA256")) == (wrong, right)
    with failing("404", 404):
        s3.head_object(Bucket=bucket, Key="k")


# Frames.


CRC32_OF_DATA = crc32(b"dummy data")


@pytest.mark.parametrize("body, code", [
    (b"A\ndummy data\r\n0\r\n%b\r\n", "IncompleteBody"), (b"A\r\ndummy data0\r\n%b\r\n", "IncompleteBody"),
    (b"J\r\ndummy data\r\n0\r\n%b\r\n", "IncompleteBody"), (b"9\r\ndummy data\r\n0\r\n%b\r\n", "IncompleteBody"),
    (b"A\r\ndummy data\r\n0\r\n%b", "IncompleteBody"), (b"A\r\ndummy data\r\n0\r\n", "IncompleteBody"),
    (b"A\r\n", "IncompleteBody"), (b"A\r\ndummy data\r\n0\r\n\r\n", "MalformedTrailerError"),
    (b"A\r\ndummy data\r\n0\r\nno trailer\r\n\r\n", "MalformedTrailerError"),
    (b"A\r\ndummy data\r\n0\r\n%bx-amz-meta-a:1\r\n\r\n", "MalformedTrailerError"),
])
def test_codes_of_broken_frames(server, raw, bucket, body, code):
    upload = Chunked(raw, server.credentials, bucket, UNSIGNED_TRAILER, 10, "x-amz-checksum-crc32")
    trailer = f"x-amz-checksum-crc32:{CRC32_OF_DATA}\r\n".encode()
    answer = upload.send(body.replace(b"%b", trailer))
    assert (answer.status, answer.code) == (400, code)
    assert raw.send("HEAD", f"/{bucket}/k").status == 404


def test_codes_of_broken_signed_frames(server, raw, bucket):
    def sent(kind, change, trailer=None, announced="x-amz-checksum-crc32"):
        upload = Chunked(raw, server.credentials, bucket, kind, 10, announced if kind == SIGNED_TRAILER else None)
        body = upload.chunk(b"dummy data") + upload.chunk(b"")
        body += upload.trailer(*trailer) if trailer else b""
        answer = upload.send(change(body + b"\r\n"))
        return answer.status, answer.code

    right = ("x-amz-checksum-crc32", CRC32_OF_DATA)
    broken = (400, "IncompleteBody")
    assert sent(SIGNED, lambda body: body.replace(b"chunk-signature=", b"", 1)) == broken
    assert sent(SIGNED, lambda body: body.replace(b"chunk-signature=", b"chunk-signature=0", 1)) == broken
    assert sent(SIGNED_TRAILER, lambda body: body.replace(b"x-amz-trailer-signature", b"x-amz-trailer-signatory"), right) == broken
    assert sent(SIGNED_TRAILER, lambda body: body.replace(b"=\r\nx-amz-trailer", b"=\rx-amz-trailer"), right) == broken
    assert sent(SIGNED_TRAILER, lambda body: body, ("x-amz-meta-a", "b")) == (400, "MalformedTrailerError")
    assert sent(SIGNED_TRAILER, lambda body: body, right, None) == (400, "MalformedTrailerError")
    assert raw.send("HEAD", f"/{bucket}/k").status == 404
    assert sent(SIGNED_TRAILER, lambda body: body, right)[0] == 200


def test_frames_without_their_length_or_around_documents(server, raw, bucket):
    for length in ("x", "", "-1"):
        upload = Chunked(raw, server.credentials, bucket, UNSIGNED_TRAILER, length)
        answer = upload.send(b"A\r\ndummy data\r\n0\r\n\r\n")
        assert (answer.status, answer.code) == (411, "MissingContentLength")
    for query in ("tagging", "cors", "policy", "versioning"):
        headers = {"x-amz-decoded-content-length": "5"}
        answer = raw.send("PUT", f"/{bucket}", [(query, "")], headers, b"5\r\nabcde\r\n0\r\n\r\n", payload_hash=UNSIGNED_TRAILER)
        assert (answer.status, answer.code) == (400, "InvalidRequest"), query


# Documents.


def test_sections_prefixes_and_references_in_documents(s3, raw, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    document = b"<Tagging><TagSet><Tag><Key>k</Key><Value><![CDATA[v=w]]></Value></Tag></TagSet></Tagging>"
    assert raw.send("PUT", f"/{bucket}/k", [("tagging", "")], body=document).status == 200
    assert s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == [{"Key": "k", "Value": "v=w"}]
    for name, written in [("a&b", "<![CDATA[a&b]]>"), ("p", "p"), ("\U0001f600", "&#x1F600;")]:
        s3.put_object(Bucket=bucket, Key=name, Body=b"x")
        document = f'<s:Delete xmlns:s="http://s3.amazonaws.com/doc/2006-03-01/"><s:Object><s:Key>{written}</s:Key></s:Object></s:Delete>'
        answer = raw.send("POST", f"/{bucket}", [("delete", "")], body=document.encode())
        assert answer.status == 200, answer.body
        with failing("404", 404):
            s3.head_object(Bucket=bucket, Key=name)


@pytest.mark.parametrize("key, read", [("a\rb", "a\rb"), ("a\x01b", "a\ufffdb"), ("a\uffffb", "a\ufffdb")])
def test_every_parser_reads_what_is_answered(s3, raw, bucket, key, read):
    s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    for query in ([], [("list-type", "2")]):
        root = ElementTree.fromstring(raw.send("GET", f"/{bucket}", query).body)
        assert [element.text for element in root.iter() if element.tag.endswith("}Key")] == [read]
    assert [item["Key"] for item in s3.list_objects_v2(Bucket=bucket)["Contents"]] == [key], "url-encoded, it is exact"
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key)
    assert upload["Key"] == read
    s3.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload["UploadId"])


def test_error_documents_name_the_request_and_the_resource(s3, raw, bucket):
    for path, query, body, code in [
        (f"/{bucket}/none", [], b"", "NoSuchKey"), (f"/{bucket}", [("delete", "")], b"<Delete>", "MalformedXML"),
        (f"/{bucket}", [("uploads", ""), ("max-uploads", "-1")], b"", "InvalidArgument"),
    ]:
        answer = raw.send("POST" if body else "GET", path, query, body=body)
        root = ElementTree.fromstring(answer.body)
        assert root.findtext("Code") == code
        assert root.findtext("Message") and root.findtext("HostId") and root.findtext("Resource") == path
        assert root.findtext("RequestId") == answer.headers["x-amz-request-id"]
        assert root.findtext("BucketName") == bucket and root.findtext("Key") == (path.partition("/none")[1][1:] or None)
        assert answer.headers["content-type"] == "application/xml"


# Headers.


@pytest.mark.parametrize("sent, kept", [("aws-chunked", None), ("AWS-Chunked", None), ("gzip, aws-chunked", "gzip"), ("gzip", "gzip")])
def test_aws_chunked_is_no_encoding_of_an_object(s3, bucket, sent, kept):
    s3.put_object(Bucket=bucket, Key="put", Body=b"x", ContentEncoding=sent)
    s3.copy_object(Bucket=bucket, Key="copy", CopySource=f"{bucket}/put", MetadataDirective="REPLACE", ContentEncoding=sent)
    upload = s3.create_multipart_upload(Bucket=bucket, Key="parts", ContentEncoding=sent)["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key="parts", UploadId=upload, PartNumber=1, Body=b"x")
    s3.complete_multipart_upload(Bucket=bucket, Key="parts", UploadId=upload,
                                 MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    for key in ("put", "copy", "parts"):
        assert s3.head_object(Bucket=bucket, Key=key).get("ContentEncoding") == kept, key


def test_conditions_list_etags(s3, raw, bucket):
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"x")["ETag"]
    for headers, status in [
        ({"if-none-match": f'"x", {etag}'}, 304), ({"if-none-match": '"x", "y"'}, 200),
        ({"if-match": f'"x", {etag}'}, 200), ({"if-match": '"x", "y"'}, 412),
    ]:
        assert raw.send("GET", f"/{bucket}/k", headers=headers).status == status, headers
        assert raw.send("HEAD", f"/{bucket}/k", headers=headers).status == status, headers
    put = raw.send("PUT", f"/{bucket}/k", headers={"if-match": '"x", "y"'}, body=b"new")
    assert put.status == 412 and raw.get(bucket, "k") == b"x"
    copy = {"x-amz-copy-source": f"{bucket}/k", "x-amz-copy-source-if-match": '"x", "y"'}
    assert raw.send("PUT", f"/{bucket}/copy", headers=copy).status == 412
    copy["x-amz-copy-source-if-match"] = f'"x", {etag}'
    assert raw.send("PUT", f"/{bucket}/copy", headers=copy).status == 200


@pytest.mark.parametrize("asked, body", [
    ("bytes=2-9223372036854775808", b"2345"), ("bytes=2-99999999999999999999", b"2345"), ("bytes=-18446744073709551616", b"012345"),
])
def test_ranges_end_with_the_object(raw, bucket, asked, body):
    raw.put(bucket, "k", b"012345")
    answer = raw.send("GET", f"/{bucket}/k", headers={"range": asked})
    assert (answer.status, answer.body) == (206, body)
    assert raw.send("GET", f"/{bucket}/k", headers={"range": "bytes=9223372036854775808-"}).status == 416


def test_lines_of_one_header_are_joined(server, s3, bucket):
    url = s3.generate_presigned_url("put_object", {"Bucket": bucket, "Key": "k"})
    headers = [("cache-control", "no-cache"), ("cache-control", "max-age=1"), ("content-language", "de"), ("content-language", "en")]
    answer, content = lines(server, url, "PUT", headers, b"x")
    assert answer.status == 200, content
    head = s3.head_object(Bucket=bucket, Key="k")
    assert head["CacheControl"] == "no-cache, max-age=1" and head["ContentLanguage"] == "de, en"


def test_lines_of_metadata_are_joined_with_a_comma(server, raw, s3, bucket):
    request = sigv4.Request("PUT", f"/{bucket}/k", [], {"x-amz-meta-a": "1,2,3"})
    sigv4.sign_headers(request, server.credentials, raw.host, sigv4.now(), hashlib.sha256(b"").hexdigest())
    headers = [(name, value) for name, value in request.headers.items() if name not in ("host", "x-amz-meta-a")]
    headers += [("x-amz-meta-a", "1"), ("X-Amz-Meta-A", "2"), ("x-amz-meta-a", "3")]
    answer, content = lines(server, f"http://{raw.host}/{bucket}/k", "PUT", headers, b"")
    assert answer.status == 200, content
    assert s3.head_object(Bucket=bucket, Key="k")["Metadata"] == {"a": "1,2,3"}


def test_a_signed_body_may_come_without_its_length(server, raw, bucket):
    def pieces():
        yield b"hello "
        yield b"world"

    url = boto(server).generate_presigned_url("put_object", {"Bucket": bucket, "Key": "k"})
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("PUT", url.removeprefix(server.endpoint), pieces(), {"transfer-encoding": "chunked"}, encode_chunked=True)
    assert connection.getresponse().status == 200
    connection.close()
    assert raw.get(bucket, "k") == b"hello world"


def test_refused_headers(raw, bucket):
    raw.put(bucket, "k", b"x")
    for method, path, headers, code in [
        ("PUT", "new", {"content-md5": ""}, "InvalidDigest"),
        ("PUT", "new", {"x-amz-acl": "public-read"}, "AccessControlListNotSupported"),
        ("PUT", "new", {"x-amz-acl": "everybody"}, "InvalidArgument"),
        ("PUT", "new", {"x-amz-website-redirect-location": "elsewhere"}, "InvalidRedirectLocation"),
        ("PUT", "new", {"x-amz-copy-source": f"{bucket}/k", "x-amz-meta-a": "x" * 2100}, "MetadataTooLarge"),
        ("GET", "k?attributes", {"x-amz-object-attributes": "ETag,Colour"}, "InvalidArgument"),
        ("GET", "k?attributes", {"x-amz-object-attributes": ""}, "InvalidRequest"),
    ]:
        path, _, query = path.partition("?")
        answer = raw.send(method, f"/{bucket}/{path}", [(query, "")] if query else [], headers)
        assert code_of(answer) == (400, code), headers
    assert raw.send("HEAD", f"/{bucket}/new").status == 404
    assert raw.send("PUT", f"/{bucket}/new", headers={"x-amz-server-side-encryption": "AES256"}).status == 501


def test_attributes_and_tag_counts(s3, bucket):
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"x", Tagging="a=1&b=2")["ETag"].strip('"')
    assert s3.get_object_attributes(Bucket=bucket, Key="k", ObjectAttributes=["ETag"])["ETag"] == etag
    assert s3.head_object(Bucket=bucket, Key="k")["ResponseMetadata"]["HTTPHeaders"]["x-amz-tagging-count"] == "2"


def test_tags_are_letters_digits_spaces_and_eight_signs(s3, raw, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", Tagging="key+1=%C3%BC%2B-%3D._:/@&only&")
    assert s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == [{"Key": "key 1", "Value": "\u00fc+-=._:/@"}, {"Key": "only", "Value": ""}]
    for tags in ("=", "=v", "k%", "k=%z1", "k=1&k=2"):
        assert code_of(raw.send("PUT", f"/{bucket}/new", headers={"x-amz-tagging": tags})) == (400, "InvalidArgument"), tags
    for tags in ("k?=v", "k*=v", "k=v!", "k=%2C", "k=%0A", "k=%F0%9F%98%80"):
        assert code_of(raw.send("PUT", f"/{bucket}/new", headers={"x-amz-tagging": tags})) == (400, "InvalidTag"), tags
    with failing("InvalidTag", 400):
        s3.put_object_tagging(Bucket=bucket, Key="k", Tagging={"TagSet": [{"Key": "k", "Value": "a,b"}]})
    with failing("InvalidTag", 400):
        s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": [{"Key": "a#b", "Value": ""}]})
    assert raw.send("HEAD", f"/{bucket}/new").status == 404
    put = s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": [{"Key": "a", "Value": "1"}]})
    assert put["ResponseMetadata"]["HTTPStatusCode"] == 204


def test_listings_without_delimiter_or_token(raw, s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    for query in ([("delimiter", "")], [("list-type", "2"), ("delimiter", ""), ("continuation-token", "")], [("versions", ""), ("delimiter", "")]):
        answer = raw.send("GET", f"/{bucket}", query)
        assert answer.status == 200 and b"<Delimiter" not in answer.body and b"<Key>k</Key>" in answer.body
    marker = [("uploads", ""), ("key-marker", "k"), ("upload-id-marker", "none")]
    assert code_of(raw.send("GET", f"/{bucket}", marker)) == (400, "InvalidArgument")


# Checksums.


def test_an_object_without_a_checksum_gets_one(server, bucket):
    plain = boto(server, request_checksum_calculation="when_required", response_checksum_validation="when_required")
    plain.put_object(Bucket=bucket, Key="k", Body=b"123456789")
    # CRC-64/NVME of the catalogue's check string.
    head = plain.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert head["ChecksumCRC64NVME"] == base64.b64encode(bytes.fromhex("ae8b14860a799888")).decode()
    assert head["ChecksumType"] == "FULL_OBJECT"
    upload = plain.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    part = plain.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"123456789")
    done = plain.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=upload,
                                           MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    assert done["ChecksumCRC64NVME"] == head["ChecksumCRC64NVME"]


def test_the_checksum_of_a_completion_is_the_objects(s3, bucket):
    data = b"x" * 100
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k", ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=data, ChecksumCRC32=crc32(data))
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    with failing("BadDigest", 400):
        s3.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=upload, MultipartUpload=parts, ChecksumCRC32=crc32(b"other"))
    done = s3.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=upload, MultipartUpload=parts, ChecksumCRC32=crc32(data))
    assert done["ChecksumCRC32"] == crc32(data)


def test_parts_come_with_the_checksum_that_was_promised(server, s3, bucket):
    plain = boto(server, request_checksum_calculation="when_required")
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k", ChecksumAlgorithm="SHA256")["UploadId"]
    part = {"Bucket": bucket, "Key": "k", "UploadId": upload, "Body": b"x"}
    for more in ({}, {"ChecksumCRC32": crc32(b"x")}):
        with failing("InvalidRequest", 400):
            plain.upload_part(PartNumber=1, **part, **more)
    assert s3.list_parts(Bucket=bucket, Key="k", UploadId=upload).get("Parts", []) == []
    parts = [
        {"PartNumber": number, "ETag": s3.upload_part(PartNumber=number, ChecksumSHA256=sha256(b"x" * (5 << 20)),
                                                     **{**part, "Body": b"x" * (5 << 20)})["ETag"]} for number in (1, 2)]
    parts[0]["ChecksumSHA256"] = sha256(b"x" * (5 << 20))
    with failing("InvalidRequest", 400):
        s3.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=upload, MultipartUpload={"Parts": parts})
    parts[1]["ChecksumSHA256"] = parts[0]["ChecksumSHA256"]
    done = s3.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=upload, MultipartUpload={"Parts": parts})
    assert done["ChecksumSHA256"].endswith("-2")


def test_what_a_completion_says_of_its_parts(s3, raw, bucket):
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k", ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")["UploadId"]
    etag = s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"x", ChecksumCRC32=crc32(b"x"))["ETag"]
    number, tag = "<PartNumber>1</PartNumber>", f"<ETag>{etag}</ETag>"
    right, wrong = f"<ChecksumCRC32>{crc32(b'x')}</ChecksumCRC32>", f"<ChecksumCRC32>{crc32(b'y')}</ChecksumCRC32>"
    foreign = f"<ChecksumSHA256>{sha256(b'x')}</ChecksumSHA256>"
    for part, code in [
        (number, "MalformedXML"), (tag, "MalformedXML"), (number + tag + wrong, "InvalidPart"), (number + tag + foreign, "BadDigest"),
        (number + tag + right + foreign, "InvalidArgument"), (number + tag + "<ChecksumCRC32>no base64</ChecksumCRC32>", "InvalidArgument"),
    ]:
        document = f"<CompleteMultipartUpload><Part>{part}</Part></CompleteMultipartUpload>".encode()
        assert code_of(raw.send("POST", f"/{bucket}/k", [("uploadId", upload)], body=document)) == (400, code), part
    document = f"<CompleteMultipartUpload><Part>{number}{tag}{right}</Part></CompleteMultipartUpload>".encode()
    assert raw.send("POST", f"/{bucket}/k", [("uploadId", upload)], body=document).status == 200


def test_an_empty_checksum_is_none(raw, s3, bucket):
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    for query in ([], [("partNumber", "1"), ("uploadId", upload)]):
        answer = raw.send("PUT", f"/{bucket}/k", query, {"x-amz-checksum-crc32": ""}, b"x")
        assert code_of(answer) == (400, "InvalidRequest")


def test_an_upload_in_a_missing_bucket(s3):
    with failing("NoSuchBucket", 404):
        s3.upload_part(Bucket="no-such-bucket-here", Key="k", UploadId="none", PartNumber=1, Body=b"x")


# Buckets.


def test_creating_ones_own_bucket_again_changes_nothing(server, s3, raw, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": [{"Key": "a", "Value": "1"}]})
    s3.create_bucket(Bucket=bucket)
    assert s3.get_bucket_tagging(Bucket=bucket)["TagSet"] == [{"Key": "a", "Value": "1"}]
    assert raw.get(bucket, "k") == b"x"
    made = f"made-{uuid.uuid4().hex[:12]}"
    server.run("bucket", "create", "--profile", "none", made)
    s3.create_bucket(Bucket=made)
    answer = raw.send("PUT", f"/{made}", headers={"x-striate-profile": "rs(4,2)"})
    assert code_of(answer) == (409, "BucketAlreadyOwnedByYou"), "its profile is another"
    s3.delete_bucket(Bucket=made)


def test_what_a_new_bucket_cannot_be(raw, s3):
    name = f"new-{uuid.uuid4().hex[:12]}"
    region = b"<CreateBucketConfiguration><LocationConstraint>%s</LocationConstraint></CreateBucketConfiguration>"
    twice = b"<CreateBucketConfiguration><Tags>" + b"<Tag><Key>a</Key><Value>1</Value></Tag>" * 2 + b"</Tags></CreateBucketConfiguration>"
    for bucket, headers, body, code in [
        (name, {}, region % b"eu-west-1", "InvalidLocationConstraint"), (name, {}, region % b"nowhere", "InvalidLocationConstraint"),
        (name, {"x-amz-object-ownership": "Mine"}, b"", "InvalidArgument"), (name, {}, twice, "InvalidTag"),
        (name, {"x-amz-acl": "public-read"}, b"", "InvalidBucketAclWithObjectOwnership"),
        ("foo.-bar", {}, b"", "InvalidBucketName"), ("foo-.bar", {}, b"", "InvalidBucketName"),
    ]:
        assert code_of(raw.send("PUT", f"/{bucket}", headers=headers, body=body)) == (400, code)
    assert raw.send("HEAD", f"/{name}").status == 404
    once = twice.replace(b"<Tag><Key>a</Key><Value>1</Value></Tag>", b"", 1)
    assert raw.send("PUT", f"/{name}", body=once).status == 200
    assert s3.get_bucket_tagging(Bucket=name)["TagSet"] == [{"Key": "a", "Value": "1"}]
    s3.delete_bucket(Bucket=name)


def test_the_region_is_named_also_by_refusals(server, raw, bucket):
    signed = raw.send("HEAD", f"/{bucket}")
    assert signed.status == 200 and signed.headers["x-amz-bucket-region"] == "us-east-1"
    anonymous, _ = lines(server, f"{server.endpoint}/{bucket}", "HEAD")
    assert anonymous.status == 403 and anonymous.headers["x-amz-bucket-region"] == "us-east-1"


def test_lists_and_configurations_of_buckets(raw, bucket):
    assert code_of(raw.send("PUT", f"/{bucket}", [("acl", "")])) == (400, "MissingSecurityHeader")
    assert code_of(raw.send("PUT", f"/{bucket}", [("acl", "")], {"x-amz-acl": "everybody"})) == (400, "InvalidArgument")
    assert code_of(raw.send("PUT", f"/{bucket}", [("acl", "")], {"x-amz-acl": "public-read"})) == (400, "AccessControlListNotSupported")
    for name in ("analytics", "inventory", "metrics", "intelligent-tiering"):
        assert raw.send("DELETE", f"/{bucket}", [(name, ""), ("id", "x")]).status == 204, name
    raw.put(bucket, "k", b"x")
    assert raw.send("GET", f"/{bucket}/k", [("torrent", "")]).status == 405


def test_rules_and_preflights_that_no_browser_could_use(server, s3, bucket):
    def put(**rule):
        rules = [{"AllowedMethods": ["GET"], "AllowedOrigins": ["*"], **rule}]
        s3.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": rules})

    for rule in ({"AllowedHeaders": ["a header"]}, {"ExposeHeaders": ["x(y)"]}, {"ExposeHeaders": ["x-amz-*"]}):
        with failing("InvalidRequest", 400):
            put(**rule)
    put(AllowedHeaders=["x-amz-*"])
    for method, headers in [("PATCH", []), ("get", []), ("GET", [("access-control-request-headers", "x(y)")])]:
        asked = [("origin", "http://a.test"), ("access-control-request-method", method), *headers]
        assert lines(server, f"{server.endpoint}/{bucket}/k", "OPTIONS", asked)[0].status == 400
    assert lines(server, f"{server.endpoint}/{bucket}/k", "OPTIONS", [("access-control-request-method", "GET")])[0].status == 400


# Addresses and forms.


@pytest.mark.parametrize("style, forwarded, start", [
    ("path", None, "http://{host}/{bucket}"), ("virtual", None, "http://{bucket}.{host}"), ("virtual", "https", "https://{bucket}.{host}"),
])
def test_a_completion_names_the_object_as_it_was_addressed(server, s3, bucket, style, forwarded, start):
    host = f"{DOMAIN}:{server.port}"
    signer = boto3.client(
        "s3", endpoint_url=f"http://{host}", region_name="us-east-1", aws_access_key_id=server.credentials.access_key,
        aws_secret_access_key=server.credentials.secret_key, config=Config(signature_version="s3v4", s3={"addressing_style": style}))
    upload = s3.create_multipart_upload(Bucket=bucket, Key="v/mp u")["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key="v/mp u", UploadId=upload, PartNumber=1, Body=b"x")
    url = signer.generate_presigned_url("complete_multipart_upload", {"Bucket": bucket, "Key": "v/mp u", "UploadId": upload})
    document = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{part['ETag']}</ETag></Part></CompleteMultipartUpload>"
    headers = [("x-forwarded-proto", forwarded)] if forwarded else []
    answer, content = lines(server, url, "POST", headers, document.encode())
    assert answer.status == 200, content
    assert f"<Location>{start.format(host=host, bucket=bucket)}/v/mp%20u</Location>".encode() in content


def post_form(server, s3, bucket, policy, more=(), signed=True):
    """Sends a form with a file of one byte."""
    encoded = base64.b64encode(json.dumps(policy).encode()).decode()
    fields = {"key": "k", "policy": encoded, **dict(more)}
    if signed:
        presigned = s3.generate_presigned_post(bucket, "k")["fields"]
        fields |= {name: presigned[name] for name in ("x-amz-algorithm", "x-amz-credential", "x-amz-date")}
        key = f"AWS4{server.credentials.secret_key}".encode()
        for part in presigned["x-amz-credential"].split("/")[1:]:
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        fields["x-amz-signature"] = hmac.new(key, encoded.encode(), hashlib.sha256).hexdigest()
    boundary = uuid.uuid4().hex
    start = f"--{boundary}\r\nContent-Disposition: form-data; name="
    body = "".join(f'{start}"{name}"\r\n\r\n{value}\r\n' for name, value in fields.items())
    body = f'{body}{start}"file"; filename="f"\r\n\r\nx\r\n--{boundary}--\r\n'.encode()
    headers = [("content-type", f"multipart/form-data; boundary={boundary}")]
    answer, content = lines(server, f"{server.endpoint}/{bucket}", "POST", headers, body)
    return answer.status, ElementTree.fromstring(content).findtext("Code") if content else None


def test_forms_are_read_as_s3_reads_them(server, s3, bucket):
    free = [["starts-with", f"$x-amz-{name}", ""] for name in ("algorithm", "credential", "date")]
    policy = {"expiration": "2099-01-01T00:00:00.000Z", "conditions": [{"bucket": bucket}, {"key": "k"}, *free]}
    assert post_form(server, s3, bucket, policy) == (204, None)
    assert post_form(server, s3, bucket, policy, {"x-amz-checksum-sha256": sha256(b"x")}) == (204, None)
    with_space = {**policy, "expiration": "2099-01-01 00:00:00+00:00"}
    assert post_form(server, s3, bucket, with_space) == (400, "InvalidPolicyDocument")
    with_nothing = {**policy, "conditions": [*policy["conditions"], {}]}
    assert post_form(server, s3, bucket, with_nothing) == (400, "InvalidPolicyDocument")
    assert post_form(server, s3, bucket, policy, signed=False) == (400, "InvalidArgument")
