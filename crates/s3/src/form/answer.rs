//! The response to a form after its file was stored, as the form requested it.

use http::{HeaderValue, Response, StatusCode, header};
use s3s::Body;

use super::parts::Fields;
use crate::address::percent_encode;
use crate::xml::escape_into;

/// The response that a form requested.
#[derive(Debug)]
pub(crate) struct FormAnswer {
    bucket: String,
    key: String,
    /// Address of the object.
    location: String,
    /// Address to redirect the browser to.
    redirect: Option<String>,
    /// Status 200, 201 or 204.
    status: StatusCode,
}

impl FormAnswer {
    pub(super) fn new(fields: &Fields, bucket: &str, key: &str, location: String) -> Self {
        let redirect = fields.get("success_action_redirect").or_else(|| fields.get("redirect"));
        // As in S3, anything but an http or https address is ignored.
        let redirect = redirect.filter(|url| url.starts_with("http://") || url.starts_with("https://"));
        let status = match fields.get("success_action_status").map(str::trim) {
            Some("200") => StatusCode::OK,
            Some("201") => StatusCode::CREATED,
            _ => StatusCode::NO_CONTENT,
        };
        let redirect = redirect.map(str::to_owned);
        Self { bucket: bucket.to_owned(), key: key.to_owned(), location, redirect, status }
    }

    /// Turns the response to a put into the response to the form. Errors stay as they are.
    pub fn instead_of(self, mut response: Response<Body>) -> Response<Body> {
        if !response.status().is_success() {
            return response;
        }
        let etag = response.headers().get(header::ETAG).and_then(|etag| etag.to_str().ok());
        let etag = etag.unwrap_or_default().to_owned();
        let redirect = self.redirect.as_deref().map(|url| self.redirect_to(url, &etag));
        if let Some(Ok(target)) = redirect.map(HeaderValue::try_from) {
            *response.status_mut() = StatusCode::SEE_OTHER;
            response.headers_mut().insert(header::LOCATION, target);
            return response;
        }
        if self.status == StatusCode::CREATED {
            *response.body_mut() = Body::from(self.document(&etag));
            let xml = HeaderValue::from_static("application/xml");
            response.headers_mut().insert(header::CONTENT_TYPE, xml);
        }
        *response.status_mut() = self.status;
        if let Ok(location) = HeaderValue::try_from(self.location) {
            response.headers_mut().insert(header::LOCATION, location);
        }
        response
    }

    /// Returns the redirect address, with bucket, key and ETag in its query.
    fn redirect_to(&self, url: &str, etag: &str) -> String {
        let (url, fragment) = url.split_at(url.find('#').unwrap_or(url.len()));
        let separator = if url.contains('?') { '&' } else { '?' };
        let [bucket, key, etag] = [&self.bucket, &self.key, etag].map(percent_encode);
        format!("{url}{separator}bucket={bucket}&key={key}&etag={etag}{fragment}")
    }

    fn document(&self, etag: &str) -> String {
        let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<PostResponse>");
        let fields = [
            ("Location", self.location.as_str()),
            ("Bucket", &self.bucket),
            ("Key", &self.key),
            ("ETag", etag),
        ];
        for (name, text) in fields {
            xml.extend(["<", name, ">"]);
            escape_into(&mut xml, text);
            xml.extend(["</", name, ">"]);
        }
        xml.push_str("</PostResponse>");
        xml
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(fields: &[(&str, &str)], status: StatusCode) -> Response<Body> {
        let form = FormAnswer::new(&Fields::from(fields), "b", "a&b/ü", "http://h/b/a".to_owned());
        let mut stored = Response::new(Body::empty());
        *stored.status_mut() = status;
        stored.headers_mut().insert(header::ETAG, HeaderValue::from_static("\"e\""));
        form.instead_of(stored)
    }

    #[test]
    fn a_form_chooses_its_answer() {
        for (wish, status) in [("200", 200), ("201", 201), ("204", 204), ("500", 204), ("", 204)] {
            let answered = answer(&[("success_action_status", wish)], StatusCode::OK);
            assert_eq!(answered.status(), status);
            assert_eq!(answered.headers()[header::LOCATION], "http://h/b/a");
        }
        let document =
            answer(&[("success_action_status", "201")], StatusCode::OK).into_body().bytes().unwrap();
        assert!(document.ends_with(
            "<Location>http://h/b/a</Location><Bucket>b</Bucket><Key>a&amp;b/ü</Key><ETag>&quot;e&quot;</ETag>\
             </PostResponse>"
                .as_bytes()
        ));
        let failed = answer(&[("success_action_status", "201")], StatusCode::NOT_FOUND);
        assert_eq!(failed.status(), 404);
    }

    #[test]
    fn a_redirect_carries_what_was_stored_and_nonsense_is_ignored() {
        let to = |url: &str| answer(&[("success_action_redirect", url)], StatusCode::OK);
        let query = "bucket=b&key=a%26b/%C3%BC&etag=%22e%22";
        let answered = to("https://example.com/done?x=1#top");
        assert_eq!(answered.status(), 303);
        assert_eq!(answered.headers()[header::LOCATION], format!("https://example.com/done?x=1&{query}#top"));
        for nonsense in ["javascript:alert(1)", "", "http://a\r\nset-cookie: b"] {
            assert_eq!(to(nonsense).status(), 204, "{nonsense}");
        }
    }
}
