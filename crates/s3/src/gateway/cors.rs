//! Applies the CORS rules of buckets: preflights, and headers of plain responses.

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use s3s::Body;
use striate_client::ClientError;

use super::head::{host_of, insert, text};
use super::{Gateway, empty};
use crate::address::Address;
use crate::failure;
use crate::refusal::Refusal;
use crate::trace::Trace;
use crate::translate::{CorsAnswer, CorsQuestion, CorsRules, METHODS, is_header_name, parse_rules};

impl Gateway {
    async fn rules(&self, bucket: &str) -> Option<CorsRules> {
        let record = self.shared.client.bucket(bucket).await.ok()?;
        parse_rules(&record.cors_xml)
    }

    pub(super) async fn preflight(&self, parts: &Parts, trace: &Trace) -> Response<Body> {
        let path = parts.uri.path();
        let refused = |refusal: Refusal| {
            trace.set_error(refusal.code);
            refusal.into_response(&trace.request_id(), path)
        };
        let denied = |message: &str| refused(Refusal::denied("AccessForbidden", message));
        let address = Address::of(&self.shared.domains, host_of(parts), path).unwrap_or_default();
        trace.set_address(&address, text(&parts.headers, header::USER_AGENT).unwrap_or_default());
        let question = match question(&parts.headers) {
            Ok(question) => question,
            Err(refusal) => return refused(refusal),
        };
        if let Err(error @ ClientError::NoSuchBucket(_)) = self.shared.client.bucket(&address.bucket).await {
            return failure::response(error, trace, path);
        }
        let Some(rules) = self.rules(&address.bucket).await else {
            return denied("CORSResponse: CORS is not enabled for this bucket.");
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

/// Returns what a preflight asks.
///
/// # Errors
/// BadRequest if it names no origin, no method that a rule could allow, or something that is no header.
fn question(headers: &HeaderMap) -> Result<CorsQuestion<'_>, Refusal> {
    let bad = |message: String| Refusal::bad("BadRequest", message);
    let origin = text(headers, header::ORIGIN).filter(|origin| !origin.is_empty());
    let origin =
        origin.ok_or_else(|| bad("Insufficient information. Origin request header needed.".to_owned()))?;
    let method = text(headers, header::ACCESS_CONTROL_REQUEST_METHOD).unwrap_or_default();
    if !METHODS.contains(&method) {
        return Err(bad(format!("Invalid Access-Control-Request-Method: {method}")));
    }
    let name = header::ACCESS_CONTROL_REQUEST_HEADERS;
    let names = match headers.get(&name) {
        None => "",
        Some(names) => names.to_str().map_err(|_| bad(format!("{name} contains invalid character.")))?,
    };
    let headers: Vec<&str> = names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    if let Some(invalid) = headers.iter().find(|name| !is_header_name(name)) {
        return Err(bad(format!("Access-Control-Request-Headers \"{invalid}\" contains invalid character.")));
    }
    Ok(CorsQuestion { origin, method, headers })
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
