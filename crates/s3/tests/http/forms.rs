//! POST forms over HTTP.

use std::time::Duration;

use hmac::{Hmac, Mac};

use crate::allocation::largest_allocation;
use crate::fixture::{ACCESS, Fixture, SECRET};
use crate::wire::{Request, Signer};

fn form(signer: &Signer, expiration: &str, alter: impl Fn(&mut Vec<(String, String)>)) -> Request {
    let credential = signer.credential();
    let policy = format!(
        r#"{{"expiration":"{expiration}","conditions":[{{"bucket":"bucket"}},["starts-with","$key","form/"],
        ["content-length-range",1,10],{{"x-amz-algorithm":"AWS4-HMAC-SHA256"}},
        {{"x-amz-credential":"{credential}"}},{{"x-amz-date":"{}"}}]}}"#,
        signer.date
    );
    let policy = base64_simd::STANDARD.encode_to_string(policy);
    let signature = signer.signature(&policy);
    let mut fields: Vec<(String, String)> = [
        ("key", "form/k"),
        ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
        ("x-amz-credential", &credential),
        ("x-amz-date", &signer.date),
        ("policy", &policy),
        ("x-amz-signature", &signature),
        ("file", "bytes"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    alter(&mut fields);
    let mut body = String::new();
    for (name, value) in fields {
        let file = if name == "file" { "; filename=\"f\"\r\nContent-Type: text/plain" } else { "" };
        body.push_str(&format!(
            "--xyz\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n{value}\r\n"
        ));
    }
    body.push_str("--xyz--\r\n");
    Request::new("POST", "/bucket")
        .header("content-type", "multipart/form-data; boundary=xyz")
        .body(body.as_bytes())
}

const TOO_MUCH: &str = "MaxPostPreDataLengthExceededError";
const LATER: &str = "2100-01-01T00:00:00.000Z";

fn set(fields: &mut [(String, String)], name: &str, value: &str) {
    fields.iter_mut().find(|(known, _)| known == name).unwrap().1 = value.to_owned();
}

#[tokio::test]
async fn a_signed_form_stores_its_file() {
    let fixture = Fixture::open().await;
    let answer = fixture.raw(form(&fixture.signer(), LATER, |_| {})).await;
    assert_eq!(answer.status, 204, "{}", answer.text());
    assert_eq!(fixture.get("form/k").await.text(), "bytes");
}

#[tokio::test]
async fn forms_that_are_forged_expired_or_outside_their_policy_store_nothing() {
    let fixture = Fixture::open().await;
    let now = fixture.runtime.wall_time().as_secs();
    let good = fixture.signer();
    let cases = [
        (form(&Signer::new(ACCESS, "another", now), LATER, |_| {}), "SignatureDoesNotMatch"),
        (form(&Signer::new("NOBODY", SECRET, now), LATER, |_| {}), "InvalidAccessKeyId"),
        (form(&good, "2020-01-01T00:00:00.000Z", |_| {}), "AccessDenied"),
        (form(&good, LATER, |fields| set(fields, "key", "elsewhere")), "AccessDenied"),
        (form(&good, LATER, |fields| set(fields, "file", "more than ten bytes")), "EntityTooLarge"),
        (form(&good, LATER, |fields| set(fields, "file", "")), "EntityTooSmall"),
        (
            form(&good, LATER, |fields| fields.retain(|(name, _)| name != "x-amz-signature")),
            "InvalidArgument",
        ),
        (form(&good, LATER, |fields| fields.insert(1, ("x-amz-meta-a".into(), "1".into()))), "AccessDenied"),
        (form(&good, LATER, |fields| fields.insert(1, ("key".into(), "form/k".into()))), "InvalidArgument"),
        (form(&good, LATER, |fields| fields.retain(|(name, _)| name != "file")), "InvalidArgument"),
        (form(&good, LATER, |fields| fields.retain(|(name, _)| name != "key")), "InvalidArgument"),
        (form(&good, LATER, |fields| set(fields, "x-amz-algorithm", &"a".repeat(65 << 10))), TOO_MUCH),
    ];
    for (request, code) in cases {
        let answer = fixture.raw(request).await;
        assert_eq!(answer.element("Code"), code, "{}", answer.text());
        for key in ["form/k", "elsewhere"] {
            assert_eq!(fixture.get(key).await.status, 404);
        }
    }
}

/// A form under a policy that allows anything, from its fields and its file.
struct Anything {
    /// The bucket that the policy names.
    bucket: &'static str,
    fields: Vec<(String, String)>,
    file_name: String,
    file: Vec<u8>,
}

impl Anything {
    fn new(fields: &[(&str, &str)]) -> Self {
        let fields = fields.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Self { bucket: "bucket", fields, file_name: "a.txt".into(), file: b"bytes".to_vec() }
    }

    fn policy(&self, signed: &[&str]) -> String {
        let names = self.fields.iter().map(|(name, _)| name.as_str()).chain(signed.iter().copied());
        let of_fields = names.map(|name| format!(r#"["starts-with","${name}",""]"#));
        let conditions: Vec<String> =
            std::iter::once(format!(r#"{{"bucket":"{}"}}"#, self.bucket)).chain(of_fields).collect();
        let policy = format!(r#"{{"expiration":"{LATER}","conditions":[{}]}}"#, conditions.join(","));
        base64_simd::STANDARD.encode_to_string(policy)
    }

    fn version_4(mut self, signer: &Signer) -> Request {
        let policy = self.policy(&["x-amz-algorithm", "x-amz-credential", "x-amz-date"]);
        let signature = signer.signature(&policy);
        let signed = [
            ("x-amz-algorithm", "AWS4-HMAC-SHA256".to_owned()),
            ("x-amz-credential", signer.credential()),
            ("x-amz-date", signer.date.clone()),
            ("policy", policy),
            ("x-amz-signature", signature),
        ];
        self.fields.extend(signed.map(|(name, value)| (name.to_owned(), value)));
        self.request()
    }

    fn version_2(mut self, access: &str, secret: &str) -> Request {
        let policy = self.policy(&[]);
        let mut mac = <Hmac<sha1::Sha1> as Mac>::new_from_slice(secret.as_bytes()).unwrap();
        mac.update(policy.as_bytes());
        let signature = base64_simd::STANDARD.encode_to_string(mac.finalize().into_bytes());
        let signed = [("AWSAccessKeyId", access.to_owned()), ("policy", policy), ("signature", signature)];
        self.fields.extend(signed.map(|(name, value)| (name.to_owned(), value)));
        self.request()
    }

    fn request(self) -> Request {
        let mut body = Vec::new();
        for (name, value) in &self.fields {
            let head = format!("--xyz\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
            body.extend_from_slice(head.as_bytes());
        }
        let name = &self.file_name;
        let head = format!(
            "--xyz\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\nContent-Type: a/b\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(&self.file);
        body.extend_from_slice(
            b"\r\n--xyz\r\nContent-Disposition: form-data; name=\"submit\"\r\n\r\nSend\r\n--xyz--\r\n",
        );
        Request::new("POST", &format!("/{}", self.bucket))
            .header("content-type", "multipart/form-data; boundary=\"xyz\"")
            .body(&body)
    }
}

#[tokio::test]
async fn the_files_name_goes_into_the_key_and_the_policy_holds_for_what_it_makes() {
    let fixture = Fixture::open().await;
    let named = |name: &str, key: &str| Anything { file_name: name.into(), ..Anything::new(&[("key", key)]) };
    for (name, key, stored) in [
        ("plain.txt", "form/${filename}", "form/plain.txt"),
        ("C:\\dir\\ü.txt", "form/${filename}.bak", "form/%C3%BC.txt.bak"),
        ("", "form/${filename}x", "form/x"),
    ] {
        let answer = fixture.raw(named(name, key).version_4(&fixture.signer())).await;
        assert_eq!(answer.status, 204, "{}", answer.text());
        assert_eq!(fixture.get(stored).await.text(), "bytes", "{stored}");
    }
    let outside = form(&fixture.signer(), LATER, |fields| set(fields, "key", "${filename}form/"));
    assert_eq!(fixture.raw(outside).await.error(), (403, "AccessDenied"));
}

/// A form of 64 KiB could make a key of 90 MB.
#[tokio::test]
async fn a_key_is_not_made_before_its_length_and_the_policys_expiration_are_checked() {
    let fixture = Fixture::open().await;
    let amplified = |expiration| {
        let mut request = form(&fixture.signer(), expiration, |fields| {
            set(fields, "key", &format!("form/{}", "${filename}".repeat(2_800)));
        });
        let body = String::from_utf8(request.body).unwrap();
        let name = "n".repeat(32_000);
        request.body = body.replace("filename=\"f\"", &format!("filename=\"{name}\"")).into();
        request
    };
    for (expiration, error) in
        [(LATER, (400, "KeyTooLongError")), ("2020-01-01T00:00:00.000Z", (403, "AccessDenied"))]
    {
        let request = amplified(expiration);
        largest_allocation();
        assert_eq!(fixture.raw(request).await.error(), error);
        let largest = largest_allocation();
        assert!(largest < 1 << 20, "{largest} bytes at once");
    }
    let repeated = "${filename}".repeat(100);
    let short = form(&fixture.signer(), LATER, |fields| set(fields, "key", &format!("form/{repeated}")));
    assert_eq!(fixture.raw(short).await.status, 204, "only the key that results counts");
    assert_eq!(fixture.get(&format!("form/{}", "f".repeat(100))).await.text(), "bytes");
}

#[tokio::test]
async fn a_forged_policy_is_refused_for_its_signature_before_it_is_read() {
    let fixture = Fixture::open_with_version_2().await;
    let before = fixture.metadata_calls();
    for policy in ["e30=", "not base64", ""] {
        let forged = form(&fixture.signer(), LATER, |fields| set(fields, "policy", policy));
        assert_eq!(fixture.raw(forged).await.error(), (403, "SignatureDoesNotMatch"), "{policy}");
    }
    let forged = Anything::new(&[("key", "k")]).version_2(ACCESS, "another");
    assert_eq!(fixture.raw(forged).await.error(), (403, "SignatureDoesNotMatch"));
    assert_eq!(fixture.metadata_calls(), before);
}

#[tokio::test]
async fn forms_are_verified_with_every_secret_that_is_valid_and_in_both_versions() {
    let fixture = Fixture::open_with_version_2().await;
    let old = fixture.keys.create("test").await.unwrap();
    let new = fixture.keys.rotate(&old.access_key, Duration::from_secs(600)).await.unwrap();
    let now = fixture.runtime.wall_time().as_secs();
    for (number, credentials) in [&old, &new].into_iter().enumerate() {
        let (four, two) = (format!("four-{number}"), format!("two-{number}"));
        let signer = Signer::new(&credentials.access_key, &credentials.secret, now);
        assert_eq!(fixture.raw(Anything::new(&[("key", &four)]).version_4(&signer)).await.status, 204);
        let request = Anything::new(&[("key", &two)]).version_2(&credentials.access_key, &credentials.secret);
        assert_eq!(fixture.raw(request).await.status, 204);
        assert_eq!(fixture.get(&four).await.text(), "bytes");
        assert_eq!(fixture.get(&two).await.text(), "bytes");
    }
}

/// The file is larger than what a form may hold in memory, and full of beginnings of the boundary.
#[tokio::test]
async fn a_file_streams_whatever_it_holds_and_however_it_is_cut() {
    let fixture = Fixture::open().await;
    let traps: [&[u8]; 6] = [b"\r", b"\r\n", b"\r\n--x", b"\r\n--xy", b"--xyz", b"\r\r\n-"];
    let file: Vec<u8> = (0..200_000).flat_map(|n: usize| [traps[n * 7 % 6], b"."].concat()).collect();
    let request =
        Anything { file: file.clone(), ..Anything::new(&[("key", "k")]) }.version_4(&fixture.signer());
    let mut connection = fixture.connect().await;
    connection.write(request.head().as_bytes()).await;
    let (head, tail) = request.body.split_at(request.body.len() - 3_000);
    connection.write(head).await;
    for piece in tail.chunks(1) {
        connection.write(piece).await;
    }
    assert_eq!(connection.answer(false).await.status, 204);
    assert!(fixture.get("k").await.body == file);
}

#[tokio::test]
async fn a_form_that_breaks_off_in_its_file_stores_nothing() {
    let fixture = Fixture::open().await;
    let whole = Anything::new(&[("key", "k")]).version_4(&fixture.signer());
    for cut in [67, 72, 75] {
        let mut request = whole.clone();
        request.body.truncate(whole.body.len() - cut);
        assert_eq!(fixture.raw(request).await.error(), (400, "IncompleteBody"));
        assert_eq!(fixture.get("k").await.status, 404);
    }
    for content_type in ["multipart/form-data; boundary=other", "multipart/form-data"] {
        let foreign = whole.clone().header("content-type", content_type);
        assert_eq!(fixture.raw(foreign).await.error(), (400, "MalformedPOSTRequest"));
    }
}

#[tokio::test]
async fn a_forms_fields_describe_the_object_and_make_no_other_request_of_it() {
    let fixture = Fixture::open().await;
    fixture.put("source", b"not this").await;
    let fields = [
        ("key", "k"),
        ("Content-Type", "text/x"),
        ("Content-Disposition", "inline; filename=\"ü\""),
        ("x-amz-meta-Name", "värde"),
        ("tagging", "<Tagging><TagSet><Tag><Key>a b</Key><Value>1&#43;2</Value></Tag></TagSet></Tagging>"),
        ("x-amz-copy-source", "/bucket/source"),
        ("acl", "private"),
        ("success_action_status", "201"),
    ];
    let answer = fixture.raw(Anything::new(&fields).version_4(&fixture.signer())).await;
    assert_eq!((answer.status, answer.element("Key")), (201, "k"), "{}", answer.text());
    let stored = fixture.get("k").await;
    assert_eq!((stored.text(), stored.header("content-type")), ("bytes", Some("text/x")));
    assert_eq!(stored.header("content-disposition"), Some("inline; filename=\"ü\""));
    assert!(stored.header("x-amz-meta-name").is_some());
    let tags = fixture.send(Request::new("GET", "/bucket/k?tagging")).await;
    assert_eq!((tags.element("Key"), tags.element("Value")), ("a b", "1+2"));
    let public = Anything::new(&[("key", "k"), ("acl", "public-read")]).version_4(&fixture.signer());
    assert_eq!(fixture.raw(public).await.error(), (400, "AccessControlListNotSupported"));
    let mut elsewhere = Anything::new(&[("key", "k")]).version_4(&fixture.signer());
    elsewhere.path = "/bucket/k".into();
    assert_eq!(fixture.raw(elsewhere).await.error(), (405, "MethodNotAllowed"));
    let mut outside = Anything::new(&[("key", "k")]).version_4(&fixture.signer());
    outside.path = "/missing".into();
    assert_eq!(fixture.raw(outside).await.error(), (403, "AccessDenied"), "the policy names another bucket");
    let nowhere = Anything { bucket: "missing", ..Anything::new(&[("key", "k")]) };
    let nowhere = nowhere.version_4(&fixture.signer());
    assert_eq!(fixture.raw(nowhere).await.error(), (404, "NoSuchBucket"));
    assert!(fixture.audit.0.lock().iter().any(|entry| entry.operation == "PostObject" && entry.key == "k"));
}

/// An upload's content type says nothing about the request that begins it.
#[tokio::test]
async fn an_object_may_be_of_a_forms_type() {
    let fixture = Fixture::open().await;
    let create =
        Request::new("POST", "/bucket/k?uploads").header("content-type", "multipart/form-data; boundary=x");
    let answer = fixture.send(create).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let id = answer.element("UploadId").to_owned();
    let part = Request::new("PUT", &format!("/bucket/k?partNumber=1&uploadId={id}")).body(b"bytes");
    let etag = fixture.send(part).await.header("etag").unwrap().to_owned();
    let body = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
    );
    let complete = Request::new("POST", &format!("/bucket/k?uploadId={id}")).body(body.as_bytes());
    assert_eq!(fixture.send(complete).await.status, 200);
    assert_eq!(fixture.get("k").await.header("content-type"), Some("multipart/form-data; boundary=x"));
}

#[tokio::test]
async fn a_policy_that_names_no_bucket_and_version_2_are_refused() {
    let fixture = Fixture::open().await;
    let signer = fixture.signer();
    let mut elsewhere = form(&signer, LATER, |_| {});
    let body = String::from_utf8(elsewhere.body.to_vec()).unwrap();
    let without = format!(
        r#"{{"expiration":"{LATER}","conditions":[["starts-with","$key","form/"],["starts-with","$x-amz-algorithm",""],["starts-with","$x-amz-credential",""],["starts-with","$x-amz-date",""]]}}"#
    );
    let without = base64_simd::STANDARD.encode_to_string(without);
    let replaced = |body: &str, name: &str, value: &str| {
        let (before, rest) = body.split_once(&format!("name=\"{name}\"\r\n\r\n")).unwrap();
        let (_, after) = rest.split_once("\r\n").unwrap();
        format!("{before}name=\"{name}\"\r\n\r\n{value}\r\n{after}")
    };
    let body = replaced(&body, "policy", &without);
    elsewhere.body = replaced(&body, "x-amz-signature", &signer.signature(&without)).into();
    let answer = fixture.raw(elsewhere).await;
    assert_eq!(answer.error(), (403, "AccessDenied"), "{}", answer.text());
    assert!(answer.text().contains("bucket"), "{}", answer.text());
    let two = fixture.raw(Anything::new(&[("key", "k")]).version_2(ACCESS, SECRET)).await;
    assert_eq!(two.error(), (400, "InvalidRequest"));
    assert!(two.text().contains("--allow-signature-v2"), "{}", two.text());
    assert_eq!(fixture.get("k").await.status, 404);
}
