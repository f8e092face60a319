//! Authentication: signatures in the header and in the query.

use std::time::Duration;

use hmac::{Hmac, Mac};
use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::fixture::{ACCESS, Fixture, SECRET};
use crate::wire::{Request, Signer};

/// Sends a request that must be refused before any metadata is touched.
async fn refused(fixture: &Fixture, request: Request, expected: (u16, &str)) {
    let before = fixture.metadata_calls();
    let answer = fixture.raw(request).await;
    assert_eq!(answer.error(), expected, "{}", answer.text());
    assert_eq!(fixture.metadata_calls(), before, "storage was touched for {expected:?}");
}

#[tokio::test]
async fn a_signed_request_is_served_and_told_to_the_audit_log() {
    let fixture = Fixture::open().await;
    assert_eq!(fixture.put("k", b"bytes").await.status, 200);
    let answer = fixture.get("k").await;
    assert_eq!((answer.status, &answer.body[..]), (200, &b"bytes"[..]));
    assert!(answer.header("x-amz-request-id").is_some());
    let entries = fixture.audit.0.lock();
    let put = entries.iter().find(|entry| entry.operation == "PutObject").unwrap();
    assert_eq!((put.bucket.as_str(), put.key.as_str(), put.status), ("bucket", "k", 200));
    assert_eq!((put.access_key.as_deref(), put.bytes_in), (Some(ACCESS), 5));
}

#[tokio::test]
async fn forged_altered_and_skewed_requests_are_refused_with_their_codes() {
    let fixture = Fixture::open().await;
    let signed = |request: Request| {
        let mut request = request;
        fixture.signer().sign(&mut request);
        request
    };
    let now = fixture.runtime.wall_time().as_secs();
    let get = || Request::new("GET", "/bucket/k?versionId=null");

    let mut forged = get();
    Signer::new(ACCESS, "another secret", now).sign(&mut forged);
    refused(&fixture, forged, (403, "SignatureDoesNotMatch")).await;

    let mut unknown = get();
    Signer::new("NOBODY", SECRET, now).sign(&mut unknown);
    refused(&fixture, unknown, (403, "InvalidAccessKeyId")).await;

    for skew in [901i64, -901] {
        let mut skewed = get();
        Signer::new(ACCESS, SECRET, now.saturating_add_signed(skew + skew.signum() * 30)).sign(&mut skewed);
        refused(&fixture, skewed, (403, "RequestTimeTooSkewed")).await;
    }

    let mut path = signed(get());
    path.path = "/bucket/l".into();
    refused(&fixture, path, (403, "SignatureDoesNotMatch")).await;
    let mut query = signed(get());
    query.query = "versionId=other".into();
    refused(&fixture, query, (403, "SignatureDoesNotMatch")).await;
    let mut method = signed(get());
    method.method = "DELETE".into();
    refused(&fixture, method, (403, "SignatureDoesNotMatch")).await;
    let mut host = signed(get());
    host.set("host", "elsewhere");
    refused(&fixture, host, (403, "SignatureDoesNotMatch")).await;
    let mut added = signed(get());
    added.set("x-amz-tagging", "a=b");
    refused(&fixture, added, (403, "AccessDenied")).await;
}

#[tokio::test]
async fn requests_without_a_usable_signature_are_refused() {
    let fixture = Fixture::open_with_version_2().await;
    let get = || Request::new("GET", "/bucket/k");
    refused(&fixture, get(), (403, "AccessDenied")).await;
    refused(&fixture, Request::new("GET", "/"), (403, "AccessDenied")).await;
    let version_2 = get().header("authorization", "AWS ACCESSKEY:c2lnbmF0dXJl");
    refused(&fixture, version_2, (400, "InvalidRequest")).await;
    let now = fixture.runtime.wall_time().as_secs();
    for (key, expires, expected) in [
        (ACCESS, now + 60, (403, "SignatureDoesNotMatch")),
        ("NOBODY", now + 60, (403, "InvalidAccessKeyId")),
        (ACCESS, now - 60, (403, "AccessDenied")),
        (ACCESS, now + 604_900, (400, "AuthorizationQueryParametersError")),
    ] {
        let target = format!("/bucket/k?AWSAccessKeyId={key}&Expires={expires}&Signature=c2ln");
        refused(&fixture, Request::new("GET", &target), expected).await;
    }
    let mut elsewhere = get();
    fixture.signer().sign(&mut elsewhere);
    let authorization = elsewhere.headers.iter_mut().find(|(name, _)| name == "authorization").unwrap();
    authorization.1 = authorization.1.replace("/us-east-1/", "/eu-north-1/");
    refused(&fixture, elsewhere, (400, "AuthorizationHeaderMalformed")).await;
    let broken = get().header("authorization", "AWS4-HMAC-SHA256 Credential=x");
    refused(&fixture, broken, (400, "AuthorizationHeaderMalformed")).await;
    let mut other_service = get();
    fixture.signer().sign(&mut other_service);
    let authorization = other_service.headers.iter_mut().find(|(name, _)| name == "authorization").unwrap();
    authorization.1 = authorization.1.replace("/s3/", "/sts/");
    refused(&fixture, other_service, (400, "AuthorizationHeaderMalformed")).await;
    let mut no_hash = get();
    fixture.signer().sign(&mut no_hash);
    no_hash.headers.retain(|(name, _)| name != "x-amz-content-sha256");
    refused(&fixture, no_hash, (400, "InvalidRequest")).await;
}

#[tokio::test]
async fn presigned_urls_work_until_they_expire_and_only_as_they_were_signed() {
    let fixture = Fixture::open().await;
    fixture.put("k", b"bytes").await;
    let now = fixture.runtime.wall_time().as_secs();
    let presigned = |age: i64, expires: i64| {
        let mut request = Request::new("GET", "/bucket/k?response-content-type=text%2Fplain");
        Signer::new(ACCESS, SECRET, now.saturating_add_signed(-age)).presign(&mut request, expires);
        request
    };
    let answer = fixture.raw(presigned(0, 60)).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/plain")));
    assert_eq!(fixture.raw(presigned(6 * 86_400, 604_800)).await.status, 200);

    refused(&fixture, presigned(100, 10), (403, "AccessDenied")).await;
    refused(&fixture, presigned(-1_000, 60), (403, "AccessDenied")).await;
    refused(&fixture, presigned(0, 604_801), (400, "AuthorizationQueryParametersError")).await;
    refused(&fixture, presigned(0, -1), (400, "AuthorizationQueryParametersError")).await;
    let mut altered = presigned(0, 60);
    altered.query = altered.query.replace("text%2Fplain", "text%2Fhtml");
    refused(&fixture, altered, (403, "SignatureDoesNotMatch")).await;
    let mut longer = presigned(0, 60);
    longer.query = longer.query.replace("Expires=60", "Expires=6000");
    refused(&fixture, longer, (403, "SignatureDoesNotMatch")).await;
    let added = presigned(0, 60).header("x-amz-meta-more", "1");
    refused(&fixture, added, (403, "AccessDenied")).await;

    let mut put = Request::new("PUT", "/bucket/by-url").body(b"sent");
    fixture.signer().presign(&mut put, 60);
    assert_eq!(fixture.raw(put).await.status, 200);
    assert_eq!(fixture.get("by-url").await.body, b"sent");
}

/// Anybody may send any access key, and never the same one twice.
#[tokio::test]
async fn invented_access_keys_rarely_reach_the_metadata() {
    let fixture = Fixture::open().await;
    let (before, began) = (fixture.key_calls(), fixture.runtime.now());
    for number in 0..300 {
        let mut request = Request::new("GET", "/bucket/k");
        Signer::new(&format!("INVENTED{number}"), SECRET, fixture.runtime.wall_time().as_secs())
            .sign(&mut request);
        assert_eq!(fixture.raw(request).await.error(), (403, "InvalidAccessKeyId"));
    }
    let seconds = (fixture.runtime.now() - began).as_secs();
    let calls = fixture.key_calls() - before;
    assert!(calls <= 2 * (seconds + 2), "{calls} calls for 300 invented keys in {seconds} s");
    let made = fixture.keys.create("new").await.unwrap();
    let mut request = Request::new("GET", "/");
    Signer::new(&made.access_key, &made.secret, fixture.runtime.wall_time().as_secs()).sign(&mut request);
    assert_eq!(fixture.raw(request).await.status, 200, "a new key works at once");
}

#[tokio::test]
async fn version_2_is_off_unless_it_is_allowed_and_signs_what_it_serves() {
    let off = Fixture::open().await;
    let url = |fixture: &Fixture, more: &str| {
        let expires = fixture.runtime.wall_time().as_secs() + 60;
        let text = format!("GET\n\n\n{expires}\n/bucket/k");
        let mut mac = <Hmac<Sha1> as Mac>::new_from_slice(SECRET.as_bytes()).unwrap();
        mac.update(text.as_bytes());
        let signature = base64_simd::STANDARD.encode_to_string(mac.finalize().into_bytes());
        let signature = signature.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
        Request::new(
            "GET",
            &format!("/bucket/k?AWSAccessKeyId={ACCESS}&Expires={expires}&Signature={signature}{more}"),
        )
    };
    off.put("k", b"bytes").await;
    refused(&off, url(&off, ""), (400, "InvalidRequest")).await;
    let on = Fixture::open_with_version_2().await;
    on.put("k", b"bytes").await;
    assert_eq!(on.raw(url(&on, "")).await.text(), "bytes");
    for more in ["&attributes", "&batch=exists", "&partSize=1"] {
        refused(&on, url(&on, more), (403, "AccessDenied")).await;
    }
    for more in ["&response%2Dcontent%2Dtype=text%2Fhtml", "&t%61gging"] {
        refused(&on, url(&on, more), (400, "AuthorizationQueryParametersError")).await;
    }
    refused(&on, url(&on, "").header("x-striate-profile", "none"), (403, "AccessDenied")).await;
}

#[tokio::test]
async fn a_payload_hash_in_a_presigned_url_is_that_of_the_body() {
    let fixture = Fixture::open().await;
    let presigned = |hash: &str| {
        let mut request = Request::new("PUT", &format!("/bucket/k?X-Amz-Content-Sha256={hash}"));
        fixture.signer().presign_with_hash(&mut request, 60, hash);
        request
    };
    let hash = hex::encode(Sha256::digest(b"signed"));
    let other = fixture.raw(presigned(&hash).body(b"another")).await;
    assert_eq!(other.error(), (400, "XAmzContentSHA256Mismatch"), "{}", other.text());
    let looser = presigned(&hash).header("x-amz-content-sha256", "UNSIGNED-PAYLOAD").body(b"another");
    refused(&fixture, looser, (400, "AuthorizationQueryParametersError")).await;
    assert_eq!(fixture.get("k").await.status, 404);
    assert_eq!(fixture.raw(presigned(&hash).body(b"signed")).await.status, 200);
    let unsigned = presigned("UNSIGNED-PAYLOAD").body(b"anything");
    assert_eq!(fixture.raw(unsigned).await.status, 200);
}

/// A signature covers decoded names, and names are compared as written: whoever holds a URL must not be able to take a
/// parameter away by writing its name differently.
#[tokio::test]
async fn names_in_a_presigned_url_cannot_be_rewritten() {
    let fixture = Fixture::open().await;
    let mut request = Request::new("PUT", "/bucket/k?x-amz-storage-class=STANDARD_IA").body(b"bytes");
    fixture.signer().presign(&mut request, 60);
    request.query = request.query.replace("x-amz-storage", "x%2Damz-storage");
    refused(&fixture, request, (400, "AuthorizationQueryParametersError")).await;
}

#[tokio::test]
async fn a_profile_is_obeyed_only_if_it_is_signed_and_fits_the_sites() {
    let fixture = Fixture::open().await;
    let mut added = Request::new("PUT", "/bucket/k").body(b"bytes");
    fixture.signer().sign(&mut added);
    added.set("x-striate-profile", "none");
    refused(&fixture, added, (403, "AccessDenied")).await;
    let with = |path: &str, profile: &str| Request::new("PUT", path).header("x-striate-profile", profile);
    for path in ["/bucket/k", "/another"] {
        let answer = fixture.send(with(path, "replica(255)")).await;
        assert_eq!(answer.error(), (400, "InvalidArgument"), "{}", answer.text());
        assert!(answer.text().contains("255 sites, there are 6"), "{}", answer.text());
        assert_eq!(fixture.send(with(path, "replica(3)")).await.status, 200);
    }
}

#[tokio::test]
async fn the_audit_log_names_claimed_keys_deleted_keys_and_copy_sources() {
    let fixture = Fixture::open().await;
    let now = fixture.runtime.wall_time().as_secs();
    let mut forged = Request::new("GET", "/bucket/k");
    Signer::new(ACCESS, "another secret", now).sign(&mut forged);
    fixture.raw(forged).await;
    let expires = now + 60;
    let target = format!("/bucket/k?AWSAccessKeyId=SOMEBODY&Expires={expires}&Signature=c2ln");
    fixture.raw(Request::new("GET", &target)).await;
    fixture.put("one", b"1").await;
    let copy = Request::new("PUT", "/bucket/two").header("x-amz-copy-source", "/bucket/o%6Ee");
    assert_eq!(fixture.send(copy).await.status, 200);
    let document = b"<Delete><Object><Key>one</Key></Object><Object><Key>gone</Key></Object></Delete>";
    assert_eq!(fixture.send(Request::new("POST", "/bucket?delete").body(document)).await.status, 200);
    let batch = br#"{"keys": ["a", "b"]}"#;
    assert_eq!(fixture.send(Request::new("POST", "/bucket?batch=exists").body(batch)).await.status, 200);
    let entries = fixture.audit.0.lock();
    let claims: Vec<_> = entries.iter().filter_map(|entry| entry.claimed_key.as_deref()).collect();
    assert_eq!(claims, [ACCESS, "SOMEBODY"]);
    assert!(entries.iter().all(|entry| entry.claimed_key.is_none() || entry.access_key.is_none()));
    let of = |operation: &str| entries.iter().find(|entry| entry.operation == operation).unwrap();
    assert_eq!(of("CopyObject").copy_source.as_deref(), Some("bucket/one"));
    assert_eq!(of("DeleteObjects").keys, ["one", "gone"]);
    assert_eq!(of("BatchExists").keys, ["a", "b"]);
}

/// Some SDKs put into the query what they would otherwise send in headers.
#[tokio::test]
async fn a_presigned_query_says_of_the_object_what_headers_would() {
    let fixture = Fixture::open().await;
    let presigned = |query: &str| {
        let mut request = Request::new("PUT", &format!("/bucket/k?{query}")).body(b"bytes");
        fixture.signer().presign(&mut request, 60);
        request
    };
    let query = "x-amz-meta-a=1%202%2B&x-amz-storage-class=STANDARD_IA&x-amz-tagging=t%3D1";
    let answer = fixture.raw(presigned(query)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let stored = fixture.get("k").await;
    assert_eq!((stored.text(), stored.header("x-amz-meta-a")), ("bytes", Some("1 2+")));
    assert_eq!(stored.header("x-amz-storage-class"), Some("STANDARD_IA"));
    assert_eq!(stored.header("x-amz-tagging-count"), Some("1"));
    let encrypted = fixture.raw(presigned("x-amz-server-side-encryption=AES256")).await;
    assert_eq!(encrypted.error(), (501, "NotImplemented"), "a promise that cannot be kept");
    let mut altered = presigned(query);
    altered.query = altered.query.replace("STANDARD_IA", "ONEZONE_IA");
    refused(&fixture, altered, (403, "SignatureDoesNotMatch")).await;
}

#[tokio::test]
async fn a_rotated_secret_is_accepted_beside_the_new_one_and_a_revoked_key_is_not() {
    let fixture = Fixture::open().await;
    let old = fixture.keys.create("test").await.unwrap();
    let new = fixture.keys.rotate(&old.access_key, Duration::from_secs(600)).await.unwrap();
    let now = fixture.runtime.wall_time().as_secs();
    let ask = |secret: String| {
        let mut request = Request::new("GET", "/");
        Signer::new(&old.access_key, &secret, now).sign(&mut request);
        request
    };
    for credentials in [&old, &new] {
        assert_eq!(fixture.raw(ask(credentials.secret.to_string())).await.status, 200);
    }
    fixture.keys.rotate(&old.access_key, Duration::ZERO).await.unwrap();
    assert_eq!(fixture.raw(ask(new.secret.to_string())).await.error(), (403, "SignatureDoesNotMatch"));
    fixture.keys.revoke(&old.access_key).await.unwrap();
    assert_eq!(fixture.raw(ask(new.secret.to_string())).await.error(), (403, "InvalidAccessKeyId"));
}

#[tokio::test]
async fn health_needs_no_signature_and_says_nothing_else() {
    let fixture = Fixture::open().await;
    for path in ["live", "ready", "cluster"] {
        let answer = fixture.raw(Request::new("GET", &format!("/minio/health/{path}"))).await;
        assert_eq!((answer.status, answer.body.len()), (200, 0), "{path}");
    }
    assert_eq!(fixture.raw(Request::new("GET", "/minio/health/other")).await.status, 403);
}
