//! Which operation a request asks for.

use std::collections::HashSet;
use std::sync::LazyLock;

use http::{HeaderMap, Method, StatusCode};

use super::table::DIALECTS;
use super::{OPERATIONS, Operation, Server, Target, Verb};
use crate::address::{Address, percent_decode};
use crate::refusal::Refusal;

/// Parameters that select an operation somewhere and mean nothing elsewhere: SDKs name the operation in `x-id`, and `id`
/// names one of several configurations.
const HARMLESS: [&str; 2] = ["id", "x-id"];
/// Parameters that say which part or version a request is about: they select nothing, and are no less dangerous to ignore.
const SCOPES: [&str; 3] = ["partNumber", "uploadId", "versionId"];
/// Headers that presigned URLs may carry as parameters, and that make another operation of the request.
const HEADERS_IN_QUERY: [&str; 3] = ["x-amz-copy-source", "x-amz-rename-source", "x-amz-request-route"];

/// Parameters that must not be ignored.
static MEANINGFUL: LazyLock<HashSet<&'static str>> = LazyLock::new(|| {
    let selectors = OPERATIONS.iter().flat_map(|row| row.selectors).map(|selector| selector.name);
    let named = selectors.chain(SCOPES).chain(DIALECTS);
    named.filter(|name| !HARMLESS.contains(name)).collect()
});

/// Parameters that some operation has.
static KNOWN: LazyLock<HashSet<&'static str>> = LazyLock::new(|| {
    let optional = OPERATIONS.iter().flat_map(|row| row.parameters).copied();
    optional.chain(MEANINGFUL.iter().copied()).chain(HARMLESS).collect()
});

/// Headers that select an operation.
static SELECTING_HEADERS: LazyLock<HashSet<&'static str>> =
    LazyLock::new(|| OPERATIONS.iter().filter_map(|row| row.header).collect());

/// What of a request decides its operation. The query is without the parameters of a signature.
pub(crate) struct Asked<'a> {
    pub method: &'a Method,
    pub address: &'a Address,
    pub query: &'a str,
    pub headers: &'a HeaderMap,
    /// Whether the request is a form.
    pub is_form: bool,
}

impl Asked<'_> {
    fn target(&self) -> Target {
        match (self.address.bucket.is_empty(), self.address.key.is_empty()) {
            (true, true) => Target::Service,
            (false, true) => Target::Bucket,
            (_, false) => Target::Object,
        }
    }

    fn verb(&self) -> Option<Verb> {
        Some(match *self.method {
            Method::GET => Verb::Get,
            Method::HEAD => Verb::Head,
            Method::PUT => Verb::Put,
            Method::POST => Verb::Post,
            Method::DELETE => Verb::Delete,
            _ => return None,
        })
    }
}

/// The decoded parameters of a query.
struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Decodes a query as s3s does. What is not UTF-8 when decoded names nothing that is known.
    fn decode(query: &str) -> Self {
        let decode = |text: &str| percent_decode(&text.replace('+', " ")).unwrap_or_else(|| text.to_owned());
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        Self(pairs.map(|(name, value)| (decode(name), decode(value))).collect())
    }

    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// Whether the parameters and headers select `row`.
    fn select(&self, row: &Operation, headers: &HeaderMap) -> bool {
        let is_selected = row.selectors.iter().all(|selector| {
            let mut values = self.values(selector.name);
            values.any(|value| selector.values.is_empty() || selector.values.contains(&value))
        });
        is_selected && row.header.is_none_or(|header| headers.contains_key(header))
    }
}

/// Returns the operation that a request asks for.
///
/// # Errors
/// 501 if the request has something that could select another operation. 400 for a part or a version of an operation that
/// is of neither, for a copy source where nothing is copied, and for a parameter that is there twice. 405 for a method that
/// the resource does not have, 412 for a POST to a bucket that is no form.
pub(crate) fn resolve(asked: &Asked<'_>) -> Result<&'static Operation, Refusal> {
    let parameters = Parameters::decode(asked.query);
    let (verb, target) = (asked.verb(), asked.target());
    let candidates = OPERATIONS.iter().filter(|row| {
        let is_form = row.server == Server::Form;
        let is_ours = row.server == Server::Gateway;
        Some(row.verb) == verb && row.target == target && is_form == asked.is_form && !is_ours
    });
    let selected = candidates.filter(|row| parameters.select(row, asked.headers));
    let found = selected.max_by_key(|row| row.selectors.len() + usize::from(row.header.is_some()));
    for (name, value) in &parameters.0 {
        check_parameter(asked, found, (name, value), &parameters)?;
    }
    for header in asked.headers.keys().map(http::HeaderName::as_str) {
        if SELECTING_HEADERS.contains(header) && found.is_none_or(|row| row.header != Some(header)) {
            return Err(unfit_header(found, header));
        }
    }
    found.ok_or_else(|| no_operation(asked))
}

/// Returns the refusal of a request that nothing but its method and its resource speak against.
fn no_operation(asked: &Asked<'_>) -> Refusal {
    let (resource, allow) = match asked.target() {
        Target::Service => ("SERVICE", "GET"),
        Target::Bucket if asked.method == Method::POST && !asked.is_form => {
            let message = "At least one of the pre-conditions you specified did not hold";
            return Refusal::new(StatusCode::PRECONDITION_FAILED, "PreconditionFailed", message)
                .with("Condition", "Bucket POST must be of the enclosure-type multipart/form-data");
        }
        Target::Bucket => ("BUCKET", "GET, HEAD, PUT, DELETE, POST"),
        Target::Object => ("OBJECT", "GET, HEAD, PUT, DELETE"),
    };
    Refusal::method_not_allowed(asked.method, resource, allow)
}

/// Refuses a parameter that could mean something to `row`'s request and does not belong to `row`.
fn check_parameter(
    asked: &Asked<'_>,
    row: Option<&Operation>,
    (name, value): (&str, &str),
    parameters: &Parameters,
) -> Result<(), Refusal> {
    let changes = !matches!(asked.verb(), Some(Verb::Get | Verb::Head));
    if MEANINGFUL.contains(name) {
        if parameters.values(name).count() > 1 {
            let message = format!("The parameter {name} is there more than once.");
            return Err(Refusal::bad("InvalidArgument", message));
        }
        let is_of_row = row.is_some_and(|row| {
            row.selectors.iter().any(|selector| selector.name == name) || row.parameters.contains(&name)
        });
        return if is_of_row { Ok(()) } else { Err(unfit(asked, row, name)) };
    }
    let lower = name.to_ascii_lowercase();
    if HEADERS_IN_QUERY.contains(&lower.as_str()) || super::is_condition(&lower) {
        return Err(Refusal::not_implemented(format!(
            "{name} is not taken from the query; send it as a header."
        )));
    }
    if !changes {
        return Ok(());
    }
    // An operation that is newer than this table: SDKs name it in `x-id`.
    if name == "x-id" && is_operation_name(value) && row.is_none_or(|row| !row.is_named(value)) {
        return Err(Refusal::not_implemented(format!("{value} is not available.")));
    }
    // A parameter without a value selects an operation, wherever it has a meaning.
    if value.is_empty() && !KNOWN.contains(name) && !lower.starts_with("x-amz-") {
        return Err(refused(row, name));
    }
    Ok(())
}

/// Whether a text is written as S3 writes the names of operations.
fn is_operation_name(text: &str) -> bool {
    text.len() > 3
        && text.starts_with(|first: char| first.is_ascii_uppercase())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Returns the refusal of a parameter that does not belong to `row`.
fn unfit(asked: &Asked<'_>, row: Option<&Operation>, name: &str) -> Refusal {
    let is_get_of_object = asked.method == Method::GET && asked.target() == Target::Object;
    match name {
        "uploads" if is_get_of_object => {
            Refusal::bad("InvalidRequest", "Key is not expected for the GET method ?uploads subresource")
        }
        "versions" if is_get_of_object => {
            Refusal::bad("InvalidRequest", "There is no such thing as the ?versions sub-resource for a key")
        }
        // A PUT of a part without its number: the upload itself has no PUT.
        "uploadId" if asked.method == Method::PUT && row.is_some_and(|row| row.selectors.is_empty()) => {
            Refusal::method_not_allowed(asked.method, "UPLOAD", "DELETE, POST, GET")
        }
        "batch" => {
            Refusal::bad("InvalidArgument", "batch must be read, put or exists, in a POST to a bucket.")
        }
        "versionId" => Refusal::bad("InvalidArgument", "This operation does not accept a version-id."),
        "partNumber" => {
            let message = "This operation does not accept partNumber without uploadId";
            Refusal::bad("InvalidArgument", message).with("ArgumentName", name).with("ArgumentValue", name)
        }
        "uploadId" => Refusal::bad(
            "InvalidArgument",
            "This operation does not accept uploadId, or needs partNumber with it.",
        ),
        name => refused(row, name),
    }
}

/// Returns the refusal of a header that selects another operation than `row`.
fn unfit_header(row: Option<&Operation>, header: &str) -> Refusal {
    match header {
        "x-amz-copy-source" => {
            let message = "You can only specify a copy source header for copy requests.";
            Refusal::bad("InvalidArgument", message)
        }
        header => refused(row, header),
    }
}

fn refused(row: Option<&Operation>, name: &str) -> Refusal {
    let row = row.map_or("an operation that is available", |row| row.name);
    Refusal::not_implemented(format!("The request has {name}, which is no part of {row}."))
}

/// Returns the parameters that must not be ignored.
#[cfg(test)]
pub(super) fn meaningful() -> impl Iterator<Item = &'static str> {
    MEANINGFUL.iter().copied()
}
