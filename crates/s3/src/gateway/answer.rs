//! Completes answers: error documents name the resource and the request, every parser reads the XML, and HeadBucket
//! names the region.

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};
use s3s::Body;

use crate::address::Address;
use crate::trace::Trace;
use crate::xml::{escape_into, legible};

/// Marks a response whose XML has ETags without quotes, as that of GetObjectAttributes; s3s writes quotes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnquotedEtag;

/// What an answer has instead of what s3s writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Instead {
    pub status: Option<StatusCode>,
    /// `Expires` as the request wrote it; s3s writes it as a date of its own.
    pub expires: Option<HeaderValue>,
}

impl Instead {
    fn apply(self, response: &mut Response<Body>) {
        if let Some(status) = self.status {
            *response.status_mut() = status;
        }
        if let Some(expires) = self.expires {
            response.headers_mut().insert(header::EXPIRES, expires);
        }
    }
}

/// What a request asked, as far as its answer repeats it.
pub(super) struct Asked {
    pub method: Method,
    pub path: String,
    pub address: Address,
}

impl Asked {
    /// Completes the answer of a gateway in `region`.
    pub fn complete(&self, response: &mut Response<Body>, trace: &Trace, region: &str) {
        let is_head_bucket =
            self.method == Method::HEAD && !self.address.bucket.is_empty() && self.address.key.is_empty();
        // SDKs and tools learn the region from it before they can sign, also from a refusal.
        if is_head_bucket && let Ok(region) = HeaderValue::try_from(region) {
            response.headers_mut().entry("x-amz-bucket-region").or_insert(region);
        }
        if let Some(instead) = response.extensions_mut().remove::<Instead>() {
            instead.apply(response);
        }
        // Objects are streams and have no bytes here, whatever their type.
        let Some(body) = response.body().bytes().filter(|body| is_xml(body)) else { return };
        let mut document = match response.extensions().get::<UnquotedEtag>() {
            Some(UnquotedEtag) => unquoted(&body),
            None => body,
        };
        if is_error(response.status())
            && let Some(completed) = self.completed(&document, trace)
        {
            // s3s drops the type when an error has headers of its own.
            let xml = HeaderValue::from_static("application/xml");
            response.headers_mut().insert(header::CONTENT_TYPE, xml);
            document = completed.into();
        }
        response.headers_mut().remove(header::CONTENT_LENGTH);
        *response.body_mut() = Body::from(legible(document));
    }

    /// Returns an error document with the fields that it lacks; `None` if it is none.
    fn completed(&self, document: &[u8], trace: &Trace) -> Option<String> {
        let document = std::str::from_utf8(document).ok()?;
        let fields = document.strip_suffix("</Error>")?;
        let (_, code) = fields.split_once("<Code>")?;
        let (code, _) = code.split_once("</Code>")?;
        trace.set_error(code);
        let mut xml = match fields.contains("<Message>") {
            true => fields.to_owned(),
            false => {
                let message = format!("</Code><Message>{}</Message>", message_of(code));
                fields.replacen("</Code>", &message, 1)
            }
        };
        let id = trace.request_id();
        // s3s keeps nothing but the code and the message of why a body was refused.
        let refusal = trace.body_refusal().filter(|refusal| refusal.code == code);
        let details = refusal.map(|refusal| refusal.details).unwrap_or_default();
        let details = details.iter().map(|(name, text)| (*name, text));
        for (name, text) in details.chain([
            ("BucketName", &self.address.bucket),
            ("Key", &self.address.key),
            ("Resource", &self.path),
            ("RequestId", &id),
            ("HostId", &id),
        ]) {
            let start = format!("<{name}>");
            if text.is_empty() || xml.contains(&start) {
                continue;
            }
            xml.push_str(&start);
            escape_into(&mut xml, text);
            xml.extend(["</", name, ">"]);
        }
        xml.push_str("</Error>");
        Some(xml)
    }
}

fn is_error(status: StatusCode) -> bool {
    status.is_client_error() || status.is_server_error()
}

fn is_xml(body: &[u8]) -> bool {
    body.starts_with(b"<?xml ")
}

/// Returns the text for a code of s3s that comes without one.
fn message_of(code: &str) -> &'static str {
    match code {
        "IncompleteBody" => {
            "You did not provide the number of bytes specified by the Content-Length HTTP header"
        }
        "InternalError" => "We encountered an internal error. Please try again.",
        "InvalidBucketName" => "The specified bucket is not valid.",
        "InvalidURI" => "Couldn't parse the specified URI.",
        "KeyTooLongError" => "Your key is too long.",
        "MalformedXML" => {
            "The XML you provided was not well-formed or did not validate against our published schema"
        }
        "MethodNotAllowed" => "The specified method is not allowed against this resource.",
        "MissingContentLength" => "You must provide the Content-Length HTTP header.",
        "MissingRequestBodyError" => "Request body is empty.",
        "NotImplemented" => "A header or query you provided implies functionality that is not implemented.",
        _ => "The request was refused; its code says why.",
    }
}

/// Returns a document with `<ETag>` elements without quotes.
fn unquoted(document: &Bytes) -> Bytes {
    let text = String::from_utf8_lossy(document);
    let opened = text.replace("<ETag>&quot;", "<ETag>").replace("<ETag>\"", "<ETag>");
    opened.replace("&quot;</ETag>", "</ETag>").replace("\"</ETag>", "</ETag>").into()
}
