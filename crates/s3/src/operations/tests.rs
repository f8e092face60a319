//! The table against itself, against s3s, and against what must never run as the plain operation.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use parking_lot::Mutex;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, S3, S3Error, S3ErrorCode, S3Result};

use super::*;
use crate::address::Address;

const VERBS: [Verb; 6] = [Verb::Get, Verb::Head, Verb::Put, Verb::Post, Verb::Delete, Verb::Options];
const TARGETS: [Target; 3] = [Target::Service, Target::Bucket, Target::Object];

fn method_of(verb: Verb) -> Method {
    match verb {
        Verb::Get => Method::GET,
        Verb::Head => Method::HEAD,
        Verb::Put => Method::PUT,
        Verb::Post => Method::POST,
        Verb::Delete => Method::DELETE,
        Verb::Options => Method::OPTIONS,
    }
}

fn path_of(target: Target) -> &'static str {
    match target {
        Target::Service => "/",
        Target::Bucket => "/b",
        Target::Object => "/b/k",
    }
}

fn headers_of(names: &[&'static str]) -> HeaderMap {
    names.iter().map(|name| (HeaderName::from_static(name), HeaderValue::from_static("b/k"))).collect()
}

fn resolved(
    verb: Verb,
    target: Target,
    query: &str,
    headers: &[&'static str],
) -> Result<&'static Operation, Refusal> {
    let address = match target {
        Target::Service => Address::default(),
        Target::Bucket => Address { bucket: "b".to_owned(), key: String::new() },
        Target::Object => Address { bucket: "b".to_owned(), key: "k".to_owned() },
    };
    let (method, headers) = (method_of(verb), headers_of(headers));
    resolve(&Asked { method: &method, address: &address, query, headers: &headers, is_form: false })
}

/// Resolves `METHOD path?query`, and refuses what nobody serves.
fn served(request: &str, headers: &[&'static str]) -> Result<&'static str, u16> {
    let (method, rest) = request.split_once(' ').unwrap();
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let verb = VERBS.into_iter().find(|verb| method_of(*verb).as_str() == method).unwrap();
    let target = TARGETS.into_iter().find(|target| path_of(*target) == path).unwrap();
    let served =
        resolved(verb, target, query, headers).and_then(|row| row.check_served(false).map(|()| row.name));
    served.map_err(|refusal| refusal.status.as_u16())
}

/// Returns the query that selects a row.
fn query_of(row: &Operation) -> String {
    let pairs = row.selectors.iter().map(|selector| match selector.values.last() {
        Some(value) => format!("{}={value}", selector.name),
        None => format!("{}=1", selector.name),
    });
    pairs.collect::<Vec<_>>().join("&")
}

fn is_by_request(row: &&Operation) -> bool {
    !matches!(row.server, Server::Gateway | Server::Form)
}

#[test]
fn every_row_is_found_by_its_own_request_and_by_no_other() {
    let mut names = BTreeSet::new();
    for row in OPERATIONS {
        assert!(
            row.aliases.iter().chain([&row.name]).all(|name| names.insert(*name)),
            "{} is there twice",
            row.name
        );
    }
    for row in OPERATIONS.iter().filter(is_by_request) {
        let header: Vec<&'static str> = row.header.into_iter().collect();
        let query = query_of(row);
        let found = resolved(row.verb, row.target, &query, &header).unwrap();
        assert_eq!(found.name, row.name, "{query}");
        for parameter in row.parameters {
            let more = format!("{query}&{parameter}=1");
            let found = resolved(row.verb, row.target, more.trim_start_matches('&'), &header).unwrap();
            assert_eq!(found.name, row.name, "{more}");
        }
        assert!(row.action.contains(':'), "{} names its right", row.name);
        assert!(row.conditions.iter().all(|name| is_condition(name)), "{}", row.name);
    }
}

#[test]
fn what_nobody_serves_never_runs_as_the_plain_operation() {
    for request in [
        "DELETE /b/k?annotation&annotationName=a",
        "DELETE /b/k?annotation",
        "PUT /b/k?annotation&annotationName=a",
        "PUT /b/k?encryption",
        "PUT /b/k?renameObject",
        "PUT /b/k?append&position=8",
        "PUT /b/k?position=8",
        "GET /b/k?annotation",
        "GET /b?abac",
        "PUT /b?abac",
        "GET /b?metadataConfiguration",
        "PUT /b?metadataJournalTable",
        "DELETE /b?metadataConfiguration",
        "PUT /b/k?t%61gging&acl",
        "DELETE /b/k?%61cl",
        "DELETE /b/k?newer",
        "PUT /b/k?newer=",
        "DELETE /b/k?something=1&x-id=DeleteObjectSomething",
        "DELETE /b/k?x-amz-if-match-size=5",
        "PUT /b/k?X-Amz-Copy-Source=b%2Fk",
    ] {
        assert_eq!(served(request, &[]), Err(501), "{request}");
    }
    for name in
        ["acl", "retention", "legal-hold", "torrent", "attributes", "cors", "lifecycle", "policy", "uploads"]
    {
        assert_eq!(served(&format!("DELETE /b/k?{name}"), &[]), Err(501), "{name}");
        assert_eq!(served(&format!("HEAD /b/k?{name}"), &[]), Err(501), "{name}");
    }
    for name in [
        "uploads",
        "versioning",
        "acl",
        "notification",
        "logging",
        "object-lock",
        "location",
        "versions",
        "accelerate",
        "requestPayment",
        "delete",
        "batch2",
    ] {
        assert_eq!(served(&format!("DELETE /b?{name}"), &[]), Err(501), "{name}");
        assert_eq!(served(&format!("HEAD /b?{name}=1"), &[]).is_err(), name != "batch2", "{name}");
    }
    for request in [
        "PUT /b/k?partNumber=1",
        "GET /b/k?uploads",
        "GET /b/k?versions",
        "PUT /b/k?tagging&uploadId=u",
        "DELETE /b/k?partNumber=1",
        "POST /b/k?uploadId=u&partNumber=1",
        "PUT /b/k?versionId=v",
        "POST /b/k?uploads&versionId=v",
        "PUT /b/k?partNumber=1&uploadId=u&versionId=v",
        "PUT /b/k?partNumber=1&uploadId=u&uploadId=v",
        "PUT /b/k?tagging&t%61gging",
        "POST /b?batch=delete",
        "PUT /b?batch",
    ] {
        assert_eq!(served(request, &[]), Err(400), "{request}");
    }
    assert_eq!(served("PUT /b/k?renameObject", &["x-amz-rename-source"]), Err(501));
    assert_eq!(served("PUT /b/k", &["x-amz-rename-source"]), Err(501));
    for request in ["DELETE /b/k", "GET /b", "PUT /b", "PUT /b/k?tagging", "POST /b/k?uploadId=u"] {
        assert_eq!(served(request, &["x-amz-copy-source"]), Err(400), "{request}");
    }
    for request in
        ["POST /b/k", "PUT /", "DELETE /", "OPTIONS /b/k", "PUT /b/k?uploadId=u", "GET /b/k?torrent"]
    {
        assert_eq!(served(request, &[]), Err(405), "{request}");
    }
    assert_eq!(served("POST /b", &[]), Err(412), "it is no form");
}

#[test]
fn parameters_without_a_meaning_are_ignored() {
    for (request, expected) in [
        ("PUT /b/k?x-id=PutObject", "PutObject"),
        ("PUT /b/k?foo=bar", "PutObject"),
        ("PUT /b/k?x-id=anything&prefix=&response-content-type=a", "PutObject"),
        ("PUT /b/k?x-amz-acl=private&X-Amz-Content-Sha256=UNSIGNED-PAYLOAD&x-amz-meta-a=", "PutObject"),
        ("DELETE /b?x-id=DeleteBucket&foo=bar", "DeleteBucket"),
        ("DELETE /b/k?versionId=null", "DeleteObject"),
        ("GET /b/k?versionId=null&response-expires=x&newer", "GetObject"),
        ("GET /b/k?x-id=HeadObject", "GetObject"),
        ("GET /b?list-type=2&metadata=true", "ListObjectsV2"),
        ("GET /b?list-type=1", "ListObjects"),
        ("GET /b?t%61gging=", "GetBucketTagging"),
        ("PUT /b/k?partNumber=1&uploadId=u&x-id=UploadPart", "UploadPart"),
        ("POST /b?batch", "BatchRead"),
        ("POST /b?batch=put", "BatchPut"),
        ("DELETE /b?policy", "DeleteBucketPolicy"),
        ("GET /?x-id=ListBuckets", "ListBuckets"),
    ] {
        assert_eq!(served(request, &[]), Ok(expected), "{request}");
    }
    assert_eq!(served("PUT /b/k?x-id=CopyObject", &["x-amz-copy-source"]), Ok("CopyObject"));
}

#[test]
fn what_concerns_objects_goes_elsewhere_and_what_concerns_the_bucket_stays() {
    for (request, is_forwarded) in [
        ("GET /b", true),
        ("GET /b?list-type=2&metadata=true", true),
        ("GET /b?uploads", true),
        ("GET /b?versioning", true),
        ("PUT /b?versioning", false),
        ("GET /b?cors", false),
        ("GET /b?tagging=", false),
        ("PUT /b", false),
        ("DELETE /b", false),
        ("HEAD /b", false),
        ("POST /b?delete", true),
        ("POST /b?batch=put", false),
        ("GET /b/k?tagging", true),
        ("PUT /b/k?retention", true),
        ("POST /b/k?uploadId=x", true),
        ("DELETE /b/k", true),
    ] {
        let (verb, rest) = request.split_once(' ').unwrap();
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let verb = VERBS.into_iter().find(|other| method_of(*other).as_str() == verb).unwrap();
        let target = TARGETS.into_iter().find(|other| path_of(*other) == path).unwrap();
        let row = resolved(verb, target, query, &[]).unwrap();
        assert_eq!(row.forwarded, is_forwarded, "{request}");
        assert_eq!(row.check_served(true).is_ok(), is_forwarded || row.server != Server::Nobody, "{request}");
    }
}

/// Notes the operation to which s3s routes a request, and refuses it.
struct Routed(Arc<Mutex<Option<String>>>);

#[async_trait::async_trait]
impl S3Access for Routed {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        *self.0.lock() = Some(cx.s3_op().name().to_owned());
        Err(S3Error::new(S3ErrorCode::AccessDenied))
    }
}

struct NoOperations;

impl S3 for NoOperations {}

fn s3s() -> (S3Service, Arc<Mutex<Option<String>>>) {
    let routed = Arc::new(Mutex::new(None));
    let mut builder = S3ServiceBuilder::new(NoOperations);
    builder.set_auth(SimpleAuth::new());
    builder.set_access(Routed(Arc::clone(&routed)));
    (builder.build(), routed)
}

/// s3s decides again which operation a request asks for, and falls back to the plain one.
#[tokio::test]
async fn s3s_routes_to_the_resolved_operation() {
    let (service, routed) = s3s();
    let mut names: Vec<String> = resolve::meaningful().map(|name| format!("{name}=1")).collect();
    names.extend(
        ["list-type=2", "select-type=2", "id=1", "x-id=1", "foo=bar", "%61cl", "upload%49d=1"]
            .map(str::to_owned),
    );
    let mut queries: Vec<String> = names.clone();
    queries.push(String::new());
    for (at, first) in names.iter().enumerate() {
        queries.extend(names[at + 1..].iter().map(|second| format!("{first}&{second}")));
        queries.push(format!("partNumber=1&uploadId=1&{first}"));
    }
    let mut compared = BTreeSet::new();
    for (verb, target) in VERBS.into_iter().flat_map(|verb| TARGETS.map(|target| (verb, target))) {
        for query in &queries {
            for headers in [&[][..], &["x-amz-copy-source"], &["x-amz-rename-source"]] {
                let Ok(row) = resolved(verb, target, query, headers) else { continue };
                if row.check_served(false).is_err() || row.batch().is_some() {
                    continue;
                }
                let uri = format!("http://localhost{}?{query}", path_of(target).replace("/b", "/bucket"));
                let mut request =
                    Request::builder().method(method_of(verb)).uri(uri).body(Body::empty()).unwrap();
                *request.headers_mut() = headers_of(headers);
                request.headers_mut().insert("host", HeaderValue::from_static("localhost"));
                drop(service.call(request).await);
                let found = routed.lock().take();
                assert_eq!(found.as_deref(), Some(row.name), "{verb:?} {target:?} {query} {headers:?}");
                compared.insert(row.name);
            }
        }
    }
    let to_s3s = OPERATIONS
        .iter()
        .filter(is_by_request)
        .filter(|row| row.check_served(false).is_ok() && row.batch().is_none());
    assert_eq!(compared, to_s3s.map(|row| row.name).collect());
}

/// Returns an operation's name as a method's.
fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for character in name.chars() {
        if character.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(character.to_ascii_lowercase());
    }
    snake
}

#[test]
fn the_translator_implements_what_the_table_says_that_it_serves() {
    let source = include_str!("../translate/operations.rs");
    let methods = source.split("async fn ").skip(1).filter_map(|rest| rest.split('(').next());
    let implemented: BTreeSet<String> = methods.map(str::to_owned).collect();
    let is_translated = |row: &&Operation| {
        matches!(row.server, Server::Translator | Server::NotSet(_) | Server::Empty | Server::Cleared)
    };
    let expected = OPERATIONS.iter().filter(is_translated).map(|row| snake_case(row.name));
    assert_eq!(implemented, expected.collect());
}

/// Every header that is a condition somewhere.
fn all_conditions() -> BTreeSet<&'static str> {
    let ours = OPERATIONS.iter().flat_map(|row| row.conditions).copied();
    let others = [
        "if",
        "if-schedule-tag-match",
        "content-range",
        "x-amz-write-offset-bytes",
        "x-amz-rename-source-if-match",
        "x-goog-if-generation-match",
        "x-oss-forbid-overwrite",
    ];
    ours.chain(others).collect()
}

#[test]
fn a_condition_is_in_the_row_of_its_operation_or_refused() {
    let mut walked = 0;
    for row in OPERATIONS {
        for condition in all_conditions() {
            let checked = check_conditions(row, &headers_of(&[condition]));
            let is_validator = matches!(condition, "if-none-match" | "if-modified-since" | "content-range");
            let is_fine = row.conditions.contains(&condition) || row.is_read() && is_validator;
            assert_eq!(checked.is_ok(), is_fine, "{} {condition}", row.name);
            if let Err(refusal) = checked {
                let expected = if condition == "content-range" { 400 } else { 501 };
                assert_eq!(refusal.status.as_u16(), expected, "{} {condition}", row.name);
            }
            walked += 1;
        }
    }
    assert!(walked > 1_500, "{walked}");
    for name in ["range", "x-amz-meta-a-if-b", "x-amz-mp-object-size", "content-type", "x-request-if-any"] {
        assert!(!is_condition(name), "{name}");
    }
}

/// Returns a row as the book shows it.
fn line_of(row: &Operation) -> String {
    let names: Vec<&str> = [row.name].into_iter().chain(row.aliases.iter().copied()).collect();
    let selectors = row.selectors.iter().map(|selector| match selector.values.last() {
        Some(value) => format!("{}={value}", selector.name),
        None => selector.name.to_owned(),
    });
    let query = selectors.collect::<Vec<_>>().join("&");
    let mark = if query.is_empty() { "" } else { "?" };
    let path = match (row.name, row.target) {
        ("Health", _) => "/minio/health/…",
        ("Preflight", _) => "/{bucket}/{key}",
        (_, Target::Service) => "/",
        (_, Target::Bucket) => "/{bucket}",
        (_, Target::Object) => "/{bucket}/{key}",
    };
    let header = row.header.map(|header| format!(" with `{header}`")).unwrap_or_default();
    let form = if row.server == Server::Form { " with a form" } else { "" };
    let state = match row.server {
        Server::Translator | Server::Batch(_) | Server::Form | Server::Gateway => "yes".to_owned(),
        Server::NotSet(code) => format!("not set: 404 {code}"),
        Server::Empty => "not set: an empty answer".to_owned(),
        Server::Cleared => "not set: 204".to_owned(),
        Server::Nobody => "no: 501".to_owned(),
        Server::Withdrawn => "no: 405".to_owned(),
    };
    let conditions: Vec<String> = row.conditions.iter().map(|name| format!("`{name}`")).collect();
    let origin = if row.forwarded { "passed on" } else { "" };
    format!(
        "| {} | `{} {path}{mark}{query}`{header}{form} | {state} | {} | {origin} |",
        names.join(", "),
        method_of(row.verb),
        conditions.join(", "),
    )
}

/// Writes the table into the book's page with `UPDATE_BOOK=1`.
#[test]
fn the_books_page_on_s3_shows_the_table() {
    const BEGIN: &str = "<!-- The table of operations, written by `UPDATE_BOOK=1 cargo test -p striate-s3 the_books_page`. -->\n";
    const END: &str = "<!-- The end of the table. -->\n";
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/s3.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has the table's begin");
    let (shown, after) = rest.split_once(END).expect("the page has the table's end");
    let mut table = String::from(
        "\n| operation | request | state | conditions that are evaluated | in a bucket with an origin |\n|--|--|--|--|--|\n",
    );
    for row in OPERATIONS {
        table.extend([&line_of(row), "\n"]);
    }
    table.push('\n');
    if std::env::var_os("UPDATE_BOOK").is_some() {
        std::fs::write(&path, [before, BEGIN, &table, END, after].concat()).unwrap();
    } else {
        assert_eq!(shown, table, "run it with UPDATE_BOOK=1");
    }
}

/// The description of our own requests names the operations that the table has beside S3's.
#[test]
fn the_openapi_description_has_the_batches_of_the_table() {
    let description = include_str!("../../../../docs/src/openapi.yaml");
    let batches: Vec<&Operation> = OPERATIONS.iter().filter(|row| row.batch().is_some()).collect();
    let values = batches.iter().flat_map(|row| row.selectors).flat_map(|selector| selector.values);
    let values: Vec<&str> = values.map(|value| if value.is_empty() { "''" } else { value }).collect();
    assert!(description.contains(&format!("enum: [{}]}}", values.join(", "))), "{values:?}");
    let paths: Vec<&str> = description.lines().filter(|line| line.starts_with("  /")).collect();
    assert_eq!(paths, ["  /{bucket}:"]);
    for row in batches {
        assert!(description.contains(&format!("`{}`", row.action)), "{} needs {}", row.name, row.action);
    }
}
