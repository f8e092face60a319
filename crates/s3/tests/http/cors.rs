//! CORS: preflights and the headers of plain answers.

use crate::fixture::Fixture;
use crate::wire::Request;

const RULES: &[u8] = b"<CORSConfiguration><CORSRule><AllowedOrigin>https://*.example.com</AllowedOrigin>\
<AllowedMethod>GET</AllowedMethod><AllowedMethod>PUT</AllowedMethod><AllowedHeader>x-amz-*</AllowedHeader>\
<ExposeHeader>ETag</ExposeHeader><MaxAgeSeconds>60</MaxAgeSeconds></CORSRule></CORSConfiguration>";

#[tokio::test]
async fn rules_answer_preflights_without_a_signature_and_mark_plain_answers() {
    let fixture = Fixture::open().await;
    assert_eq!(fixture.send(Request::new("PUT", "/bucket?cors").body(RULES)).await.status, 200);
    let read_back = fixture.send(Request::new("GET", "/bucket?cors")).await;
    assert_eq!(read_back.element("AllowedOrigin"), "https://*.example.com");

    let preflight = |origin: &str, method: &str, headers: &str| {
        Request::new("OPTIONS", "/bucket/k")
            .header("origin", origin)
            .header("access-control-request-method", method)
            .header("access-control-request-headers", headers)
    };
    let origin = "https://app.example.com";
    let allowed = fixture.raw(preflight(origin, "PUT", "x-amz-date, x-amz-acl")).await;
    assert_eq!((allowed.status, allowed.header("access-control-allow-origin")), (200, Some(origin)));
    assert_eq!(allowed.header("access-control-allow-methods"), Some("GET, PUT"));
    assert_eq!(allowed.header("access-control-max-age"), Some("60"));
    for (origin, method, headers) in
        [("https://example.org", "PUT", ""), (origin, "DELETE", ""), (origin, "PUT", "content-type")]
    {
        assert_eq!(fixture.raw(preflight(origin, method, headers)).await.error(), (403, "AccessForbidden"));
    }

    fixture.put("k", b"x").await;
    let get = fixture.send(Request::new("GET", "/bucket/k").header("origin", origin)).await;
    assert_eq!(get.header("access-control-allow-origin"), Some(origin));
    assert_eq!(get.header("access-control-expose-headers"), Some("ETag"));
    assert_eq!(fixture.get("k").await.header("access-control-allow-origin"), None);

    assert_eq!(fixture.send(Request::new("DELETE", "/bucket?cors")).await.status, 204);
    assert_eq!(fixture.raw(preflight(origin, "PUT", "")).await.status, 403);
}
