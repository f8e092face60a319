//! Conditions, ranges and the headers of the responses.

use crate::fixture::Fixture;
use crate::wire::Request;

#[tokio::test]
async fn conditional_reads_answer_304_and_412_with_the_validators() {
    let fixture = Fixture::open().await;
    let etag = fixture.put("k", b"bytes").await.header("etag").unwrap().to_owned();
    assert_eq!(etag, "\"4b3a6218bb3e3a7303e8a171a60fcf92\"");
    let get = |name: &str, value: &str| Request::new("GET", "/bucket/k").header(name, value);
    let same = fixture.send(get("if-none-match", &etag)).await;
    assert_eq!((same.status, same.header("etag"), same.body.len()), (304, Some(etag.as_str()), 0));
    let future = fixture.send(get("if-modified-since", "Fri, 01 Jan 2100 00:00:00 GMT")).await;
    assert_eq!(future.status, 304);
    assert_eq!(fixture.send(get("if-modified-since", "not a date")).await.status, 200);
    let other = fixture.send(get("if-match", "\"0000\"")).await;
    assert_eq!(other.error(), (412, "PreconditionFailed"));
}

#[tokio::test]
async fn conditional_writes_are_honoured() {
    let fixture = Fixture::open().await;
    let put = |name: &str, value: &str| Request::new("PUT", "/bucket/k").body(b"new").header(name, value);
    assert_eq!(fixture.send(put("if-match", "\"0000\"")).await.status, 404);
    assert_eq!(fixture.send(put("if-none-match", "*")).await.status, 200);
    assert_eq!(fixture.send(put("if-none-match", "*")).await.error(), (412, "PreconditionFailed"));
    assert_eq!(fixture.send(put("if-match", "\"0000\"")).await.error(), (412, "PreconditionFailed"));
    assert_eq!(fixture.send(put("if-none-match", "\"0000\"")).await.error(), (501, "NotImplemented"));
}

#[tokio::test]
async fn ranges_answer_206_416_or_the_whole() {
    let fixture = Fixture::open().await;
    fixture.put("k", b"0123456789").await;
    let get = |range: &str| Request::new("GET", "/bucket/k").header("range", range);
    for (range, text, content_range) in [
        ("bytes=2-4", "234", "bytes 2-4/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=-3", "789", "bytes 7-9/10"),
        ("bytes=8-99", "89", "bytes 8-9/10"),
    ] {
        let answer = fixture.send(get(range)).await;
        assert_eq!(
            (answer.status, answer.text(), answer.header("content-range")),
            (206, text, Some(content_range))
        );
    }
    let beyond = fixture.send(get("bytes=10-")).await;
    assert_eq!(beyond.error(), (416, "InvalidRange"));
    assert_eq!(beyond.header("content-range"), Some("bytes */10"));
    for ignored in ["bytes=0-1,3-4", "items=0-1", "bytes=x"] {
        assert_eq!(fixture.send(get(ignored)).await.status, 200, "{ignored}");
    }
    let head = fixture.send(Request::new("HEAD", "/bucket/k")).await;
    assert_eq!((head.status, head.header("content-length"), head.body.len()), (200, Some("10"), 0));
}

#[tokio::test]
async fn a_download_that_is_resumed_gets_the_rest_of_its_object_or_the_whole_of_another() {
    let fixture = Fixture::open().await;
    let etag = fixture.put("k", b"old bytes").await.header("etag").unwrap().to_owned();
    let modified = fixture.get("k").await.header("last-modified").unwrap().to_owned();
    let resume = |method: &str, version: &str| {
        Request::new(method, "/bucket/k").header("range", "bytes=4-").header("if-range", version)
    };
    for version in [&etag, &modified] {
        let rest = fixture.send(resume("GET", version)).await;
        assert_eq!(
            (rest.status, rest.text(), rest.header("content-range")),
            (206, "bytes", Some("bytes 4-8/9"))
        );
        let head = fixture.send(resume("HEAD", version)).await;
        assert_eq!((head.status, head.header("content-range")), (206, Some("bytes 4-8/9")));
    }
    fixture.put("k", b"new bytes").await;
    for version in [etag.as_str(), "Tue, 25 Nov 2025 10:00:00 GMT", &format!("W/{etag}")] {
        let whole = fixture.send(resume("GET", version)).await;
        assert_eq!((whole.status, whole.text(), whole.header("content-range")), (200, "new bytes", None));
        assert_eq!(fixture.send(resume("HEAD", version)).await.header("content-length"), Some("9"));
    }
}

#[tokio::test]
async fn attributes_come_back_as_they_were_sent() {
    let fixture = Fixture::open().await;
    let put = Request::new("PUT", "/bucket/k")
        .body(b"x")
        .header("cache-control", "no-store")
        .header("content-disposition", "attachment")
        .header("content-encoding", "gzip")
        .header("content-language", "de")
        .header("content-type", "text/x-odd; a=b")
        .header("expires", "never")
        .header("x-amz-meta-colour", "green blue")
        .header("x-amz-storage-class", "STANDARD_IA")
        .header("x-amz-tagging", "a=1&b=2");
    assert_eq!(fixture.send(put.clone()).await.status, 200);
    let answer = fixture.get("k").await;
    for (name, value) in put.headers.iter().filter(|(name, _)| name != "host" && name != "x-amz-tagging") {
        assert_eq!(answer.header(name), Some(value.as_str()), "{name}");
    }
    assert_eq!(answer.header("x-amz-tagging-count"), Some("2"));
}

#[tokio::test]
async fn what_is_not_set_or_not_there_has_its_code() {
    let fixture = Fixture::open().await;
    let code = async |method: &str, target: &str| {
        let answer = fixture.send(Request::new(method, target)).await;
        (answer.status, answer.element("Code").to_owned())
    };
    for (query, name) in [
        ("policy", "NoSuchBucketPolicy"),
        ("lifecycle", "NoSuchLifecycleConfiguration"),
        ("encryption", "ServerSideEncryptionConfigurationNotFoundError"),
        ("replication", "ReplicationConfigurationNotFoundError"),
        ("website", "NoSuchWebsiteConfiguration"),
        ("cors", "NoSuchCORSConfiguration"),
        ("tagging", "NoSuchTagSet"),
        ("object-lock", "ObjectLockConfigurationNotFoundError"),
        ("publicAccessBlock", "NoSuchPublicAccessBlockConfiguration"),
        ("ownershipControls", "OwnershipControlsNotFoundError"),
    ] {
        assert_eq!(code("GET", &format!("/bucket?{query}")).await, (404, name.to_owned()));
    }
    for query in ["versioning", "logging", "notification", "accelerate", "requestPayment", "acl", "location"]
    {
        assert_eq!(code("GET", &format!("/bucket?{query}")).await.0, 200, "{query}");
    }
    assert_eq!(code("GET", "/nowhere").await, (404, "NoSuchBucket".to_owned()));
    assert_eq!(code("GET", "/nowhere?policy").await, (404, "NoSuchBucket".to_owned()));
    assert_eq!(code("PUT", "/Bad_Name").await, (400, "InvalidBucketName".to_owned()));
    let versioning = Request::new("PUT", "/bucket?versioning")
        .body(b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>");
    assert_eq!(fixture.send(versioning).await.status, 501);
    let public = Request::new("PUT", "/bucket/k").body(b"x").header("x-amz-acl", "public-read");
    assert_eq!(fixture.send(public).await.error(), (400, "AccessControlListNotSupported"));
}
