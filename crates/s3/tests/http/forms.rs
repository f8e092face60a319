//! POST forms.

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
        (form(&good, LATER, |fields| fields.retain(|(name, _)| name != "x-amz-signature")), "AccessDenied"),
    ];
    for (request, code) in cases {
        let answer = fixture.raw(request).await;
        assert_eq!(answer.element("Code"), code, "{}", answer.text());
        for key in ["form/k", "elsewhere"] {
            assert_eq!(fixture.get(key).await.status, 404);
        }
    }
}
