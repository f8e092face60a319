//! Applies the CORS rules of buckets: preflights, and headers of plain responses.

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use s3s::Body;

use super::head::{host_of, insert, text};
use super::{Gateway, empty};
use crate::address::Address;
use crate::refusal::Refusal;
use crate::trace::Trace;
use crate::translate::{CorsAnswer, CorsQuestion, CorsRules, parse_rules};

impl Gateway {
    async fn rules(&self, bucket: &str) -> Option<CorsRules> {
        let record = self.shared.client.bucket(bucket).await.ok()?;
        parse_rules(&record.cors_xml)
    }

    pub(super) async fn preflight(&self, parts: &Parts, trace: &Trace) -> Response<Body> {
        let denied = |message: &str| {
            let path = parts.uri.path();
            trace.set_error("AccessForbidden");
            Refusal::denied("AccessForbidden", message).into_response(&trace.request_id(), path)
        };
        let address = Address::of(&self.shared.domains, host_of(parts), parts.uri.path()).unwrap_or_default();
        trace.set_address(&address, text(&parts.headers, header::USER_AGENT).unwrap_or_default());
        let Some(rules) = self.rules(&address.bucket).await else {
            return denied("CORSResponse: CORS is not enabled for this bucket.");
        };
        let requested_headers =
            text(&parts.headers, header::ACCESS_CONTROL_REQUEST_HEADERS).unwrap_or_default();
        let question = CorsQuestion {
            origin: text(&parts.headers, header::ORIGIN).unwrap_or_default(),
            method: text(&parts.headers, header::ACCESS_CONTROL_REQUEST_METHOD).unwrap_or_default(),
            headers: requested_headers.split(',').map(str::trim).filter(|name| !name.is_empty()).collect(),
        };
        let Some(answer) = rules.answer(&question) else {
            return denied("CORSResponse: This CORS request is not allowed.");
        };
        let mut response = empty(StatusCode::OK);
        let headers = response.headers_mut();
        insert(headers, header::ACCESS_CONTROL_ALLOW_HEADERS, &question.headers.join(", "));
        if let Some(seconds) = answer.max_age_seconds {
            insert(headers, header::ACCESS_CONTROL_MAX_AGE, &seconds.to_string());
        }
        allow(headers, &answer);
        response
    }

    /// Adds the headers that a bucket's rules grant the origin to a plain response.
    pub(super) async fn add_cors(
        &self,
        response: &mut Response<Body>,
        origin: &HeaderValue,
        method: &Method,
        bucket: &str,
    ) {
        let Some(rules) = self.rules(bucket).await else { return };
        let origin = origin.to_str().unwrap_or_default();
        let question = CorsQuestion { origin, method: method.as_str(), headers: Vec::new() };
        if let Some(answer) = rules.answer(&question) {
            allow(response.headers_mut(), &answer);
        }
    }
}

fn allow(headers: &mut HeaderMap, answer: &CorsAnswer) {
    insert(headers, header::ACCESS_CONTROL_ALLOW_ORIGIN, &answer.origin);
    insert(headers, header::ACCESS_CONTROL_ALLOW_METHODS, &answer.methods);
    insert(headers, header::ACCESS_CONTROL_EXPOSE_HEADERS, &answer.exposed);
    if answer.origin != "*" {
        insert(headers, header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true");
    }
    insert(headers, header::VARY, "Origin, Access-Control-Request-Headers, Access-Control-Request-Method");
}
