//! Refusals: the gateway's responses before or instead of an S3 operation, with S3's own codes.

use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use s3s::{Body, S3Error, S3ErrorCode};

use crate::xml::escape_into;

/// S3's code for “too many requests at once”.
pub(crate) const SLOW_DOWN: &str = "SlowDown";
/// Seconds after which a client that got SlowDown may retry.
pub(crate) const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// A refused request: an S3 error code and a human-readable message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub code: &'static str,
    pub status: StatusCode,
    pub message: String,
    /// Region that the signature should name; SDKs read it and sign again.
    pub region: Option<String>,
    /// Further elements of the error document, by name, as S3 has them for the code.
    pub details: Vec<(&'static str, String)>,
    /// Methods that the resource has, for the header `Allow`; none if empty.
    pub allow: &'static str,
}

impl Refusal {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { code, status, message: message.into(), region: None, details: Vec::new(), allow: "" }
    }

    /// Adds an element to the error document.
    pub fn with(mut self, name: &'static str, text: impl Into<String>) -> Self {
        self.details.push((name, text.into()));
        self
    }

    /// Creates a refusal with status 400.
    pub fn bad(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// Creates a refusal with status 403.
    pub fn denied(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, code, message)
    }

    /// Creates the refusal of an anonymous request.
    pub fn anonymous() -> Self {
        Self::denied("AccessDenied", "Anonymous requests are not allowed. Sign the request.")
    }

    /// Creates a refusal with status 503.
    pub fn slow_down() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, SLOW_DOWN, "Please reduce your request rate.")
    }

    /// Creates the refusal of a method that a resource (SERVICE, BUCKET, OBJECT or UPLOAD) does not have. `allow` lists
    /// those that it has.
    pub fn method_not_allowed(method: &Method, resource: &'static str, allow: &'static str) -> Self {
        let message = "The specified method is not allowed against this resource.";
        let refusal = Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message);
        Self { allow, ..refusal.with("Method", method.as_str()).with("ResourceType", resource) }
    }

    /// Creates a refusal with status 501.
    pub fn not_implemented(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
    }

    /// Converts the refusal to an error of s3s.
    pub fn into_s3_error(self) -> S3Error {
        let code = S3ErrorCode::from_bytes(self.code.as_bytes()).unwrap_or(S3ErrorCode::InternalError);
        let headers = self.headers();
        let mut error = S3Error::with_message(code, self.message);
        error.set_status_code(self.status);
        if !headers.is_empty() {
            error.set_headers(headers);
        }
        error
    }

    /// Returns the headers of the response.
    fn headers(&self) -> HeaderMap {
        let retry = (self.code == SLOW_DOWN).then_some((header::RETRY_AFTER, RETRY_AFTER));
        let allow = (!self.allow.is_empty()).then_some((header::ALLOW, HeaderValue::from_static(self.allow)));
        retry.into_iter().chain(allow).collect()
    }

    /// Converts the refusal to a response, with S3's XML. `resource` is the request's path.
    pub fn into_response(self, request_id: &str, resource: &str) -> Response<Body> {
        let mut xml = String::with_capacity(256);
        xml.push_str("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>");
        let region = self.region.as_deref().map(|region| ("Region", region));
        let fields = [("Code", self.code), ("Message", &self.message), ("Resource", resource)];
        let details = self.details.iter().map(|(name, text)| (*name, text.as_str()));
        for (name, text) in fields.into_iter().chain(details).chain([("RequestId", request_id)]).chain(region)
        {
            xml.extend(["<", name, ">"]);
            escape_into(&mut xml, text);
            xml.extend(["</", name, ">"]);
        }
        xml.push_str("</Error>");
        let mut response = Response::new(Body::from(xml));
        *response.status_mut() = self.status;
        response.headers_mut().extend(self.headers());
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        if let Some(Ok(region)) = self.region.map(HeaderValue::try_from) {
            response.headers_mut().insert("x-amz-bucket-region", region);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_answer_is_escaped_xml_with_code_resource_and_id() {
        let refusal = Refusal::denied("AccessDenied", "a < b & \u{1}");
        let response = refusal.into_response("7", "/b/<k>");
        assert_eq!(response.status(), 403);
        let body = response.into_body().bytes().unwrap();
        let text = std::str::from_utf8(&body).unwrap();
        assert!(text.ends_with(
            "<Error><Code>AccessDenied</Code><Message>a &lt; b &amp; \u{fffd}</Message>\
             <Resource>/b/&lt;k&gt;</Resource><RequestId>7</RequestId></Error>"
        ));
    }

    #[test]
    fn a_method_that_is_not_allowed_comes_with_those_that_are() {
        let refusal = Refusal::method_not_allowed(&Method::PUT, "UPLOAD", "DELETE, POST, GET");
        let response = refusal.into_response("7", "/b/k");
        assert_eq!(response.status(), 405);
        assert_eq!(response.headers()["allow"], "DELETE, POST, GET");
        let body = response.into_body().bytes().unwrap();
        let text = std::str::from_utf8(&body).unwrap();
        assert!(text.contains("<Method>PUT</Method><ResourceType>UPLOAD</ResourceType>"), "{text}");
    }
}
