//! CORS: a bucket's rules, and what they grant to a browser.
//!
//! The rules are stored in the bucket's record as the XML that S3 defines. The front calls [`CorsRules::answer`] for
//! preflights and for the headers of plain responses.

use s3s::dto::*;
use s3s::xml::{Deserializer, Serializer};
use s3s::{S3Request, S3Response, S3Result};
use striate_client::ClientError;

use super::Translator;
use crate::authorize::Resource;
use crate::refusal::Refusal;

const ROOT: &str = "CORSConfiguration";
const MAX_RULES: usize = 100;
/// Methods that a rule may allow.
pub(crate) const METHODS: [&str; 5] = ["GET", "PUT", "HEAD", "POST", "DELETE"];

/// A bucket's rules.
#[derive(Clone, Debug)]
pub(crate) struct CorsRules(Vec<CORSRule>);

/// A browser's CORS request.
pub(crate) struct CorsQuestion<'a> {
    pub origin: &'a str,
    pub method: &'a str,
    /// Names of the headers that a preflight asks for.
    pub headers: Vec<&'a str>,
}

/// What a rule grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CorsAnswer {
    pub origin: String,
    pub methods: String,
    pub exposed: String,
    pub max_age_seconds: Option<i32>,
}

/// Parses the rules in a bucket's record; `None` if there are none.
pub(crate) fn parse_rules(xml: &str) -> Option<CorsRules> {
    if xml.is_empty() {
        return None;
    }
    let mut deserializer = Deserializer::new(xml.as_bytes());
    let configuration: CORSConfiguration = deserializer.named_element(ROOT, |inner| inner.content()).ok()?;
    Some(CorsRules(configuration.cors_rules))
}

fn format_rules(configuration: &CORSConfiguration) -> S3Result<String> {
    let mut xml = Vec::new();
    let written = Serializer::new(&mut xml).content(ROOT, configuration);
    written.map_err(s3s::S3Error::internal_error)?;
    String::from_utf8(xml).map_err(s3s::S3Error::internal_error)
}

impl CorsRules {
    /// Returns what the first rule grants that allows the whole request.
    pub fn answer(&self, question: &CorsQuestion<'_>) -> Option<CorsAnswer> {
        self.0.iter().find_map(|rule| {
            let origin =
                rule.allowed_origins.iter().find(|pattern| matches(pattern, question.origin, false))?;
            rule.allowed_methods.iter().find(|method| method.as_str() == question.method)?;
            let no_headers = Vec::new();
            let allowed = rule.allowed_headers.as_ref().unwrap_or(&no_headers);
            let is_allowed = |name: &&str| allowed.iter().any(|pattern| matches(pattern, name, true));
            if !question.headers.iter().all(is_allowed) {
                return None;
            }
            let origin = if origin == "*" { "*" } else { question.origin };
            Some(CorsAnswer {
                origin: origin.to_owned(),
                methods: rule.allowed_methods.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
                exposed: rule.expose_headers.as_ref().map(|names| names.join(", ")).unwrap_or_default(),
                max_age_seconds: rule.max_age_seconds,
            })
        })
    }
}

/// Returns whether `text` matches `pattern`, which has at most one `*`.
fn matches(pattern: &str, text: &str, ignore_case: bool) -> bool {
    let (pattern, text) = match ignore_case {
        true => (pattern.to_ascii_lowercase(), text.to_ascii_lowercase()),
        false => (pattern.to_owned(), text.to_owned()),
    };
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, tail)) => {
            text.len() >= head.len() + tail.len() && text.starts_with(head) && text.ends_with(tail)
        }
    }
}

/// Returns whether `name` could name a header.
pub(crate) fn is_header_name(name: &str) -> bool {
    http::HeaderName::try_from(name).is_ok()
}

/// Checks that a rule's headers could be sent; browsers know no wildcard for those that they may read.
fn check_header_names(rule: &CORSRule) -> Result<(), Refusal> {
    let invalid = |kind: &str, name: &String| {
        Refusal::bad("InvalidRequest", format!("{kind} \"{name}\" contains invalid character."))
    };
    if let Some(name) = rule.allowed_headers.iter().flatten().find(|name| !is_header_name(name)) {
        return Err(invalid("AllowedHeader", name));
    }
    match rule.expose_headers.iter().flatten().find(|name| !is_header_name(name) || name.contains('*')) {
        Some(name) => Err(invalid("ExposeHeader", name)),
        None => Ok(()),
    }
}

fn check_rules(rules: &[CORSRule]) -> Result<(), Refusal> {
    if rules.is_empty() || rules.len() > MAX_RULES {
        return Err(Refusal::bad(
            "MalformedXML",
            format!("A CORS configuration has 1 to {MAX_RULES} rules."),
        ));
    }
    for rule in rules {
        if rule.allowed_methods.is_empty() || rule.allowed_origins.is_empty() {
            return Err(Refusal::bad("MalformedXML", "A CORS rule names methods and origins."));
        }
        if let Some(method) = rule.allowed_methods.iter().find(|method| !METHODS.contains(&method.as_str())) {
            let message =
                format!("Found unsupported HTTP method in CORS config. Unsupported method is {method}");
            return Err(Refusal::bad("InvalidRequest", message));
        }
        check_header_names(rule)?;
        let headers = rule.allowed_headers.iter().flatten();
        let patterns = rule.allowed_origins.iter().chain(headers);
        if let Some(pattern) = patterns.into_iter().find(|pattern| pattern.matches('*').count() > 1) {
            let message = format!("{pattern:?} can not have more than one wildcard.");
            return Err(Refusal::bad("InvalidRequest", message));
        }
    }
    Ok(())
}

impl Translator {
    pub(super) async fn cors_get(
        &self,
        request: S3Request<GetBucketCorsInput>,
    ) -> S3Result<S3Response<GetBucketCorsOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "GetBucketCors", resource)?;
        let bucket = self.client.bucket(&request.input.bucket).await.map_err(|error| entered.fail(error))?;
        let rules = parse_rules(&bucket.cors_xml);
        let rules = rules.ok_or_else(|| entered.fail(ClientError::NotSet("NoSuchCORSConfiguration")))?;
        Ok(S3Response::new(GetBucketCorsOutput { cors_rules: Some(rules.0) }))
    }

    pub(super) async fn cors_put(
        &self,
        request: S3Request<PutBucketCorsInput>,
    ) -> S3Result<S3Response<PutBucketCorsOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "PutBucketCors", resource)?;
        check_rules(&request.input.cors_configuration.cors_rules)?;
        let xml = format_rules(&request.input.cors_configuration)?;
        let set = |bucket: &mut striate_meta::records::Bucket| bucket.cors_xml.clone_from(&xml);
        self.client.update_bucket(&request.input.bucket, set).await.map_err(|error| entered.fail(error))?;
        Ok(S3Response::new(PutBucketCorsOutput::default()))
    }

    pub(super) async fn cors_delete(
        &self,
        request: S3Request<DeleteBucketCorsInput>,
    ) -> S3Result<S3Response<DeleteBucketCorsOutput>> {
        let resource = Resource::Bucket(&request.input.bucket);
        let entered = self.enter(&request, "DeleteBucketCors", resource)?;
        let clear = |bucket: &mut striate_meta::records::Bucket| bucket.cors_xml.clear();
        self.client.update_bucket(&request.input.bucket, clear).await.map_err(|error| entered.fail(error))?;
        Ok(S3Response::with_status(DeleteBucketCorsOutput::default(), http::StatusCode::NO_CONTENT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(origin: &str, methods: &[&str], headers: &[&str]) -> CORSRule {
        let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        CORSRule {
            allowed_headers: Some(list(headers)),
            allowed_methods: list(methods),
            allowed_origins: vec![origin.to_owned()],
            expose_headers: Some(vec!["ETag".to_owned()]),
            id: None,
            max_age_seconds: Some(60),
        }
    }

    #[test]
    fn rules_survive_the_record_and_answer_the_first_that_fits() {
        let cors_rules =
            vec![rule("https://*.example.com", &["PUT"], &["x-amz-*"]), rule("*", &["GET"], &[])];
        let xml = format_rules(&CORSConfiguration { cors_rules }).unwrap();
        let rules = parse_rules(&xml).unwrap();
        let ask = |origin, method, headers: &[&'static str]| {
            rules.answer(&CorsQuestion { origin, method, headers: headers.to_vec() })
        };
        let put = ask("https://a.example.com", "PUT", &["X-Amz-Date"]).unwrap();
        assert_eq!((put.origin.as_str(), put.exposed.as_str()), ("https://a.example.com", "ETag"));
        assert_eq!(ask("https://a.example.com", "PUT", &["content-type"]), None);
        assert_eq!(ask("https://example.org", "GET", &[]).unwrap().origin, "*");
        assert_eq!(ask("https://example.org", "DELETE", &[]), None);
        assert!(parse_rules("").is_none() && parse_rules("<broken").is_none());
    }

    #[test]
    fn senseless_rules_are_refused() {
        assert_eq!(check_rules(&[]).unwrap_err().code, "MalformedXML");
        assert_eq!(check_rules(&[rule("*", &["PATCH"], &[])]).unwrap_err().code, "InvalidRequest");
        assert_eq!(check_rules(&[rule("*.*", &["GET"], &[])]).unwrap_err().code, "InvalidRequest");
        assert!(check_rules(&[rule("http://*", &["GET"], &["*", "x-amz-*"])]).is_ok());
        for name in ["a header", "x:y", "x(y)", "x/y", "", "é"] {
            assert_eq!(
                check_rules(&[rule("*", &["GET"], &[name])]).unwrap_err().code,
                "InvalidRequest",
                "{name}"
            );
        }
        let exposing =
            |name: &str| CORSRule { expose_headers: Some(vec![name.to_owned()]), ..rule("*", &["GET"], &[]) };
        assert!(check_rules(&[exposing("x-amz-version-id")]).is_ok());
        assert_eq!(check_rules(&[exposing("x-amz-*")]).unwrap_err().code, "InvalidRequest");
    }

    #[test]
    fn a_star_stands_for_any_text_but_ends_do_not_overlap() {
        assert!(matches("a*a", "aba", false) && matches("a*a", "aa", false));
        assert!(!matches("a*a", "a", false) && !matches("A", "a", false) && matches("A", "a", true));
    }
}
