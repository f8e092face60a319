//! Odd keys, hosts, listings.

use crate::fixture::{Fixture, limits};
use crate::wire::Request;

fn encode(key: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let encode = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    key.bytes().map(encode).collect()
}

const ODD: [&str; 16] = [
    "a",
    "a/b",
    "a/",
    "a//b",
    "/a",
    "..",
    "../../etc/passwd",
    "a/../b",
    "%2e%2e",
    "a b",
    "a+b",
    "ü/日本/😀",
    "a%20b",
    "?x=y&z",
    "quote\"'<&>",
    "a/./b",
];

#[tokio::test]
async fn odd_keys_are_stored_read_and_listed_as_they_are() {
    let fixture = Fixture::open().await;
    for key in ODD {
        let answer = fixture.put(&encode(key), key.as_bytes()).await;
        assert_eq!(answer.status, 200, "{key:?}: {}", answer.text());
    }
    for key in ODD {
        assert_eq!(fixture.get(&encode(key)).await.body, key.as_bytes(), "{key:?}");
    }
    let listed = fixture.send(Request::new("GET", "/bucket?encoding-type=url&list-type=2")).await;
    let mut expected: Vec<&str> = ODD.to_vec();
    expected.sort_unstable();
    let listed: Vec<&str> =
        listed.text().split("<Key>").skip(1).map(|rest| rest.split_once("</Key>").unwrap().0).collect();
    assert_eq!(listed, expected.into_iter().map(encode).collect::<Vec<_>>());
}

#[tokio::test]
async fn impossible_keys_and_too_much_metadata_are_refused() {
    let fixture = Fixture::open().await;
    let nul = fixture.put("a%00b", b"x").await;
    assert_eq!(nul.error(), (400, "InvalidArgument"));
    assert_eq!(fixture.put(&"k".repeat(1_024), b"x").await.status, 200);
    assert_eq!(fixture.put(&"k".repeat(1_025), b"x").await.error(), (400, "KeyTooLongError"));
    let not_utf8 = fixture.put("a%FFb", b"x").await;
    assert_eq!(not_utf8.error(), (400, "InvalidURI"));
    let put =
        |len: usize| Request::new("PUT", "/bucket/m").body(b"x").header("x-amz-meta-a", &"v".repeat(len));
    assert_eq!(fixture.send(put(2_047)).await.status, 200);
    assert_eq!(fixture.send(put(2_048)).await.error(), (400, "MetadataTooLarge"));
}

#[tokio::test]
async fn a_host_below_the_domain_names_the_bucket() {
    let fixture = Fixture::open_with(limits(), &["s3.example.com"]).await;
    let put = Request::new("PUT", "/some/key").body(b"x").header("host", "bucket.s3.example.com:9000");
    assert_eq!(fixture.send(put).await.status, 200);
    assert_eq!(fixture.get("some/key").await.body, b"x");
    let list = Request::new("GET", "/").header("host", "bucket.s3.example.com");
    assert_eq!(fixture.send(list).await.element("Key"), "some/key");
    let buckets = Request::new("GET", "/").header("host", "s3.example.com");
    assert_eq!(fixture.send(buckets).await.element("Name"), "bucket");
}

#[tokio::test]
async fn pages_continue_where_they_ended() {
    let fixture = Fixture::open().await;
    for key in ["a/1", "a/2", "b", "c", "d"] {
        fixture.put(key, b"x").await;
    }
    let mut token = String::new();
    let mut names = Vec::new();
    loop {
        let next = if token.is_empty() { String::new() } else { format!("continuation-token={token}&") };
        let target = format!("/bucket?{next}delimiter=%2F&list-type=2&max-keys=2");
        let page = fixture.send(Request::new("GET", &target)).await;
        assert_eq!(page.status, 200, "{}", page.text());
        for part in page.text().split("<Key>").skip(1) {
            names.push(part.split_once("</Key>").unwrap().0.to_owned());
        }
        for part in page.text().split("<CommonPrefixes><Prefix>").skip(1) {
            names.push(part.split_once("</Prefix>").unwrap().0.to_owned());
        }
        token = page.element("NextContinuationToken").to_owned();
        if page.element("IsTruncated") != "true" {
            break;
        }
    }
    names.sort();
    assert_eq!(names, ["a/", "b", "c", "d"]);
    let none = fixture.send(Request::new("GET", "/bucket?list-type=2&max-keys=0")).await;
    assert_eq!((none.element("KeyCount"), none.element("IsTruncated")), ("0", "false"));
    let foreign = fixture.send(Request::new("GET", "/bucket?continuation-token=x&list-type=2")).await;
    assert_eq!(foreign.error(), (400, "InvalidArgument"));
}

#[tokio::test]
async fn a_profile_may_be_named_and_must_be_one() {
    let fixture = Fixture::open().await;
    let put =
        |profile: &str| Request::new("PUT", "/bucket/k").body(b"x").header("x-striate-profile", profile);
    assert_eq!(fixture.send(put("replica(3)")).await.status, 200);
    assert_eq!(fixture.send(put("raid(5)")).await.error(), (400, "InvalidArgument"));
}
