"""Listing with boto3: order, prefixes, delimiters, pages, encoding."""

import pytest
from conftest import failing

KEYS = ["a", "a/1", "a/2", "a/b/1", "a-b", "b", "b/1/x", "b/2/y", "b/2/z", "c d", "c+d", "c%d", "é", "日"]


@pytest.fixture
def filled(raw, bucket):
    for key in KEYS:
        if key in ("a", "b"):
            continue  # some stores cannot keep a key together with keys below it; test_objects.py tests that
        raw.put(bucket, key, key.encode())
    return bucket


EXPECTED = sorted((key for key in KEYS if key not in ("a", "b")), key=lambda key: key.encode())


def names(answer):
    return [entry["Key"] for entry in answer.get("Contents", [])]


def groups(answer):
    return [entry["Prefix"] for entry in answer.get("CommonPrefixes", [])]


def test_keys_come_in_byte_order_with_their_facts(s3, filled):
    answer = s3.list_objects_v2(Bucket=filled)
    assert names(answer) == EXPECTED
    assert answer["KeyCount"] == len(EXPECTED)
    assert not answer["IsTruncated"]
    for entry in answer["Contents"]:
        assert entry["Size"] == len(entry["Key"].encode())
        assert entry["ETag"].startswith('"')
        assert entry["StorageClass"] == "STANDARD"


def test_an_empty_bucket(s3, bucket):
    answer = s3.list_objects_v2(Bucket=bucket)
    assert (answer["KeyCount"], names(answer), answer["IsTruncated"]) == (0, [], False)


def test_prefix(s3, filled):
    assert names(s3.list_objects_v2(Bucket=filled, Prefix="a/")) == ["a/1", "a/2", "a/b/1"]
    assert names(s3.list_objects_v2(Bucket=filled, Prefix="nothing")) == []


def test_delimiter(s3, filled):
    answer = s3.list_objects_v2(Bucket=filled, Delimiter="/")
    assert groups(answer) == ["a/", "b/"]
    assert names(answer) == [key for key in EXPECTED if "/" not in key]
    assert answer["KeyCount"] == 2 + len(names(answer))


def test_prefix_with_delimiter(s3, filled):
    answer = s3.list_objects_v2(Bucket=filled, Prefix="a/", Delimiter="/")
    assert (names(answer), groups(answer)) == (["a/1", "a/2"], ["a/b/"])


@pytest.mark.minio_differs("groups only by '/' within a directory")
def test_a_delimiter_of_several_characters(s3, filled):
    assert groups(s3.list_objects_v2(Bucket=filled, Prefix="b", Delimiter="/2/")) == ["b/2/"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("delimiter", ["", "/"])
def test_pages_add_up(s3, filled, size, delimiter):
    whole = s3.list_objects_v2(Bucket=filled, Delimiter=delimiter)
    found_names, found_groups = [], []
    for page in s3.get_paginator("list_objects_v2").paginate(
            Bucket=filled, Delimiter=delimiter, PaginationConfig={"PageSize": size}):
        assert page["KeyCount"] <= size
        found_names += names(page)
        found_groups += groups(page)
    assert (found_names, found_groups) == (names(whole), groups(whole))


@pytest.mark.parametrize("size", [1, 3])
def test_pages_of_version_one(s3, filled, size):
    found = [key for page in s3.get_paginator("list_objects").paginate(Bucket=filled, PaginationConfig={"PageSize": size})
             for key in names(page)]
    assert found == EXPECTED


def test_version_one_with_marker_and_delimiter(s3, filled):
    answer = s3.list_objects(Bucket=filled, Delimiter="/", MaxKeys=2)
    assert answer["IsTruncated"] and answer["NextMarker"]
    rest = s3.list_objects(Bucket=filled, Delimiter="/", Marker=answer["NextMarker"])
    whole = s3.list_objects(Bucket=filled, Delimiter="/")
    assert groups(answer) + groups(rest) == groups(whole)
    assert names(answer) + names(rest) == names(whole)


def test_start_after(s3, filled):
    assert names(s3.list_objects_v2(Bucket=filled, StartAfter="b/2/y"))[0] == "b/2/z"
    assert names(s3.list_objects_v2(Bucket=filled, StartAfter="a/1x"))[0] == "a/2"


def test_no_keys_at_all(s3, filled):
    answer = s3.list_objects_v2(Bucket=filled, MaxKeys=0)
    assert (answer["KeyCount"], answer["IsTruncated"]) == (0, False)


def test_more_than_a_thousand_are_never_sent(s3, filled):
    assert s3.list_objects_v2(Bucket=filled, MaxKeys=5000)["MaxKeys"] <= 5000
    assert names(s3.list_objects_v2(Bucket=filled, MaxKeys=5000)) == EXPECTED


def test_url_encoding(raw, filled):
    answer = raw.send("GET", f"/{filled}", query=[("list-type", "2"), ("encoding-type", "url"), ("prefix", "c")])
    for part in (b"<EncodingType>url</EncodingType>", b"<Key>c%25d</Key>", b"<Key>c%2Bd</Key>"):
        assert part in answer.body
    assert b"<Key>c+d</Key>" in answer.body or b"<Key>c%20d</Key>" in answer.body


@pytest.mark.parametrize("query", [("max-keys", "x"), ("max-keys", "-1"), ("continuation-token", "forged!"), ("encoding-type", "rot13")])
def test_bad_arguments(raw, filled, query):
    answer = raw.send("GET", f"/{filled}", query=[("list-type", "2"), query])
    assert (answer.status, answer.code) in [(400, "InvalidArgument"), (400, "InvalidRequest")]


def test_deleting_while_listing_skips_nothing_else(s3, filled):
    page = s3.list_objects_v2(Bucket=filled, MaxKeys=3)
    for key in names(page):
        s3.delete_object(Bucket=filled, Key=key)
    rest = s3.list_objects_v2(Bucket=filled, ContinuationToken=page["NextContinuationToken"])
    assert names(page) + names(rest) == EXPECTED


def test_owner_only_when_asked(s3, filled):
    assert "Owner" not in s3.list_objects_v2(Bucket=filled)["Contents"][0]
    assert "Owner" in s3.list_objects_v2(Bucket=filled, FetchOwner=True)["Contents"][0]


def test_a_missing_bucket(s3):
    with failing("NoSuchBucket", 404):
        s3.list_objects(Bucket="no-such-bucket-here")
