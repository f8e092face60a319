//! The gateway: one request in, one answer out.
//!
//! The order matters. Health paths and CORS preflights need no signature. Then the signature is verified,
//! before anything is looked up; then small bodies (XML) are collected and their digests verified, large
//! ones wrapped; POST forms become the puts that they describe ([`crate::form`]); then s3s parses the request
//! and calls the translation. Afterwards the answer gets its CORS headers, its id, and a body that tells the
//! audit log when it has ended; and what is left of the request's body is read, or the connection closed.

use std::net::SocketAddr;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use s3s::Body;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::{S3Service, S3ServiceBuilder};
use striate_client::Client;
use striate_runtime::Runtime;
use tracing::Instrument;

use crate::address::{Address, Domains, percent_decode};
use crate::audit::{AuditSink, RequestMetrics, Silent};
use crate::auth::{self, Payload};
use crate::authorize::Identity;
use crate::batch::Kind;
use crate::body::{AnswerBody, Arriving, Held, RequestBody, collect};
use crate::checksum;
use crate::documents::{Documents, batch_footprint};
use crate::elsewhere::{self, AllHere, Elsewhere, Outbound};
use crate::failure;
use crate::form::{self, Accepted, FormAnswer, Front};
use crate::keys::KeyStore;
use crate::options::GatewayOptions;
use crate::peers::{InFlight, KeyLimits, Peer, Peers};
use crate::refusal::Refusal;
use crate::trace::Trace;
use crate::translate::{BatchOf, Carried, CorsQuestion, CorsRules, Translator, parse_rules};

/// Says whether the store can serve, for the health paths. Called on the event loop: it must not block.
pub trait Readiness: Send + Sync {
    /// True when reads and writes are expected to work.
    fn is_ready(&self) -> bool;

    /// True when in addition no further loss would stop writes; `false` asks an operator to look.
    fn is_cluster_healthy(&self) -> bool {
        self.is_ready()
    }
}

/// What the binary hangs on a gateway.
#[derive(Clone)]
pub struct Hooks {
    /// Takes audit entries.
    pub audit: Arc<dyn AuditSink>,
    /// Takes counts and durations.
    pub metrics: Arc<dyn RequestMetrics>,
    /// Answers the health paths.
    pub readiness: Arc<dyn Readiness>,
    /// Knows buckets whose objects are in other stores.
    pub elsewhere: Arc<dyn Elsewhere>,
}

/// The S3 gateway over a client service. Cheap to clone.
#[derive(Clone)]
pub struct Gateway {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) runtime: Runtime,
    pub(crate) options: GatewayOptions,
    pub(crate) hooks: Hooks,
    pub(crate) client: Client,
    keys: Arc<KeyStore>,
    domains: Domains,
    service: S3Service,
    documents: Documents,
    pub(crate) peers: Arc<Peers>,
    requests_of_keys: Arc<KeyLimits>,
}

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// A `--domain` is not a domain name.
    #[error("--domain {0:?} is not a domain name; write it like s3.example.com")]
    Domain(String),
}

/// A request that is ready for s3s.
struct Prepared {
    request: Request<Body>,
    held: Held,
    /// What a form is answered instead.
    form: Option<FormAnswer>,
}

impl Gateway {
    /// A gateway over `client` that verifies signatures with `keys`.
    ///
    /// # Errors
    /// When an option is out of its domain.
    pub fn new(
        runtime: Runtime,
        client: Client,
        keys: Arc<KeyStore>,
        options: GatewayOptions,
        hooks: Hooks,
    ) -> Result<Self, GatewayError> {
        let domains = Domains::new(&options.domains).map_err(GatewayError::Domain)?;
        let translator = Translator {
            client: client.clone(),
            elsewhere: Arc::clone(&hooks.elsewhere),
            region: options.region.clone(),
        };
        let mut builder = S3ServiceBuilder::new(translator.clone());
        builder.set_route(translator);
        let mut config = S3Config::default();
        config.xml_max_body_size = options.limits.xml_bytes;
        builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
        builder.set_validation(AnyName);
        if !options.domains.is_empty() {
            builder.set_host(domains.clone());
        }
        let peers = Peers::new(options.limits.clone(), Arc::clone(&hooks.metrics));
        let held = options.limits.buffered_bytes;
        let shared = Shared {
            service: builder.build(),
            documents: Documents::new(held, Arc::clone(&hooks.metrics), Arc::clone(&peers)),
            peers,
            requests_of_keys: KeyLimits::new(options.limits.requests_per_key),
            runtime,
            options,
            hooks,
            client,
            keys,
            domains,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Answers one request of `peer`.
    pub(crate) async fn handle(
        &self,
        request: Request<Incoming>,
        remote: SocketAddr,
        peer: &Arc<Peer>,
    ) -> Response<AnswerBody> {
        let shared = &self.shared;
        peer.begin_request();
        let trace = Trace::begin(&shared.runtime, &shared.hooks, remote, request.method());
        let span = trace.span.clone();
        self.answer(request, trace, peer).instrument(span).await
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        trace: Arc<Trace>,
        peer: &Arc<Peer>,
    ) -> Response<AnswerBody> {
        let shared = &self.shared;
        let (parts, incoming) = request.into_parts();
        let incoming = Arriving::new(incoming, &parts.headers);
        let rest = incoming.rest();
        let path = parts.uri.path().to_owned();
        let origin = parts.headers.get(header::ORIGIN).cloned();
        let method = parts.method.clone();
        let mut bucket = None;
        let mut held = Held::default();
        let answered = match self.unsigned(&parts, &trace).await {
            Some(response) => {
                drop(incoming);
                Ok(response)
            }
            None => match self.prepare(parts, incoming, &trace, peer, &mut bucket).await {
                Ok(Prepared { request, held: holds, form }) => {
                    held = holds;
                    let stored = match request.extensions().get::<Outbound>().is_some() {
                        true => self.send_elsewhere(request, &trace).await,
                        false => self.call(request, &trace).await,
                    };
                    stored.map(|response| match form {
                        Some(form) => form.instead_of(response),
                        None => response,
                    })
                }
                Err(refusal) => Err(refusal),
            },
        };
        let mut response = answered.unwrap_or_else(|refusal| {
            trace.set_error(refusal.code);
            refusal.into_response(&trace.request_id(), &path)
        });
        if let (Some(origin), Some(bucket)) = (origin, bucket) {
            self.add_cors(&mut response, &origin, &method, &bucket).await;
        }
        finish(&mut response, &trace);
        if !rest.read_out(&shared.runtime).await {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            peer.linger();
        }
        trace.answered(response.status());
        response.map(|body| AnswerBody::new(body, trace, Arc::clone(peer), held))
    }

    /// Health paths and preflights.
    async fn unsigned(&self, parts: &Parts, trace: &Arc<Trace>) -> Option<Response<Body>> {
        if let Some(path) = parts.uri.path().strip_prefix("/minio/health/")
            && matches!(parts.method, Method::GET | Method::HEAD)
        {
            trace.set_operation("Health");
            let readiness = &self.shared.hooks.readiness;
            let healthy = match path {
                "live" => true,
                "ready" => readiness.is_ready(),
                "cluster" | "cluster/read" => readiness.is_cluster_healthy(),
                _ => return None,
            };
            let status = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            return Some(empty(status));
        }
        if parts.method == Method::OPTIONS && parts.headers.contains_key(header::ORIGIN) {
            trace.set_operation("Preflight");
            return Some(self.preflight(parts, trace).await);
        }
        None
    }

    /// Verifies the request's signature and makes it ready for s3s.
    async fn prepare(
        &self,
        parts: Parts,
        incoming: Arriving,
        trace: &Arc<Trace>,
        peer: &Arc<Peer>,
        bucket: &mut Option<String>,
    ) -> Result<Prepared, Refusal> {
        let shared = &self.shared;
        let limits = &shared.options.limits;
        if parts.headers.len() > limits.header_count {
            let message = format!("A request has at most {} headers.", limits.header_count);
            return Err(Refusal::bad("RequestHeaderSectionTooLarge", message));
        }
        let address = Address::of(&shared.domains, host_of(&parts), parts.uri.path());
        let address = address
            .ok_or_else(|| Refusal::bad("InvalidURI", "The request's path is not UTF-8 when decoded."))?;
        trace.set_address(&address, text(&parts.headers, header::USER_AGENT).unwrap_or_default());
        *bucket = (!address.bucket.is_empty()).then(|| address.bucket.clone());
        match form::is_form(&parts) {
            true => self.prepare_form(&parts, incoming, trace, peer, address).await,
            false => self.prepare_signed(parts, incoming, trace, peer, address).await,
        }
    }

    /// A request that is signed in a header or in its query.
    async fn prepare_signed(
        &self,
        mut parts: Parts,
        incoming: Arriving,
        trace: &Arc<Trace>,
        peer: &Arc<Peer>,
        address: Address,
    ) -> Result<Prepared, Refusal> {
        let shared = &self.shared;
        let limits = &shared.options.limits;
        let now = shared.runtime.wall_time().as_secs();
        let by_host = shared.domains.bucket_of(host_of(&parts));
        let region = &shared.options.region;
        let verified = auth::verify(&parts, &shared.keys, region, by_host.as_deref(), now).await?;
        trace.set_access_key(&verified.access_key);
        let in_flight = Some(self.begin_of_key(&verified.access_key)?);
        strip_signature(&mut parts, verified.presigned);
        let (identity, payload) = (Identity { access_key: verified.access_key }, verified.payload);
        let headers = set_apart(&mut parts);
        if shared.hooks.elsewhere.has(&address.bucket)
            && let Some((operation, action)) = elsewhere::operation(&parts, &address)
        {
            trace.set_operation(operation);
            elsewhere::allow(action, &parts, &address, &identity)?;
            parts.extensions.insert(Outbound { address: address.clone() });
        }
        let batch = batch_kind(&parts, &address)?;
        if let Some(kind) = batch {
            let (bucket, documents) = (address.bucket.clone(), shared.documents.clone());
            parts.extensions.insert(BatchOf { bucket, kind, documents });
        }
        let is_document = batch != Some(Kind::Put) && is_held(&parts, &address);
        if batch == Some(Kind::Put) && matches!(payload, Payload::Sha256(_)) {
            return Err(Refusal::bad("InvalidRequest", HASHED_BATCH));
        }
        if is_document {
            check_held_len(&parts, limits)?;
        }
        let decoded_len = unframe(&mut parts, &payload)?;
        let trailers = match &payload {
            Payload::Chunked { trailer: true, .. } => checksum::trailer_names(&parts.headers),
            _ => Vec::new(),
        };
        let trace = Arc::clone(trace);
        let body =
            RequestBody::new(incoming, payload, decoded_len, trailers, Arc::clone(peer), trace.clone());
        let trailers = body.trailers();
        let mut carried =
            Carried { trace, identity, trailers: None, headers, by_form: false, taken: peer.taken() };
        let (body, document) = match is_document {
            true => {
                let mut permit = None;
                let held =
                    collect(body, limits.xml_bytes, |len| shared.documents.reserve(&mut permit, len)).await?;
                if batch.is_some() {
                    shared.documents.reserve(&mut permit, batch_footprint(held.len()))?;
                }
                let trailers = trailers.lock().take().unwrap_or_default();
                checksum::check_headers(&parts.headers)?;
                checksum::verify_held(&parts.headers, &trailers, &held)?;
                parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(held.len()));
                (Body::from(held), permit)
            }
            false => {
                carried.trailers = Some(trailers);
                (Body::from(Box::pin(body) as s3s::stream::DynByteStream), None)
            }
        };
        parts.extensions.insert(carried);
        let request = Request::from_parts(parts, body);
        Ok(Prepared { request, held: (document, in_flight), form: None })
    }

    /// A POST form: the put that it describes.
    async fn prepare_form(
        &self,
        parts: &Parts,
        incoming: Arriving,
        trace: &Arc<Trace>,
        peer: &Arc<Peer>,
        mut address: Address,
    ) -> Result<Prepared, Refusal> {
        let shared = &self.shared;
        trace.set_operation("PostObject");
        let mut document = None;
        shared.documents.reserve(&mut document, form::HELD_BYTES)?;
        let (no_trailers, peer) = (Vec::new(), Arc::clone(peer));
        let body = RequestBody::new(incoming, Payload::Unsigned, 0, no_trailers, peer, Arc::clone(trace));
        let by_host = shared.domains.bucket_of(host_of(parts));
        let front = Front {
            keys: &shared.keys,
            region: &shared.options.region,
            bucket_host: by_host.as_deref(),
            now: shared.runtime.wall_time().as_secs(),
            trace,
        };
        let Accepted { access_key, put, answer } = form::accept(parts, body, &mut address, front).await?;
        trace.set_address(&address, text(&parts.headers, header::USER_AGENT).unwrap_or_default());
        if shared.hooks.elsewhere.has(&address.bucket) {
            let reason = "Forms are not forwarded to another store; use PutObject.";
            return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", reason));
        }
        let held = (document, Some(self.begin_of_key(&access_key)?));
        let (mut parts, body) = put.into_parts();
        let headers = set_apart(&mut parts);
        let (trace, identity) = (Arc::clone(trace), Identity { access_key });
        parts.extensions.insert(Carried {
            trace,
            identity,
            trailers: None,
            headers,
            by_form: true,
            taken: 0,
        });
        Ok(Prepared { request: Request::from_parts(parts, body), held, form: Some(answer) })
    }

    /// Counts a request whose signature was verified.
    fn begin_of_key(&self, access_key: &str) -> Result<InFlight, Refusal> {
        self.shared.requests_of_keys.begin(access_key).ok_or_else(|| {
            self.shared.hooks.metrics.refused("requests_of_key");
            Refusal::slow_down()
        })
    }

    async fn call(&self, request: Request<Body>, trace: &Trace) -> Result<Response<Body>, Refusal> {
        match self.shared.service.call(request).await {
            Ok(response) => Ok(response),
            Err(error) => {
                tracing::error!(
                    ?error,
                    request = trace.request_id(),
                    "a request failed inside the S3 service"
                );
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                Err(Refusal::new(
                    status,
                    "InternalError",
                    "We encountered an internal error. Please try again.",
                ))
            }
        }
    }

    /// Hands a request on for a bucket that is in another store.
    async fn send_elsewhere(&self, request: Request<Body>, trace: &Trace) -> Result<Response<Body>, Refusal> {
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let carried = parts.extensions.remove::<Carried>();
        let Some(outbound) = parts.extensions.remove::<Outbound>() else { return Err(Refusal::anonymous()) };
        let answer = match elsewhere::request(outbound, parts, carried, body).await {
            Ok(request) => self.shared.hooks.elsewhere.answer(request).await,
            Err(error) => Err(error),
        };
        Ok(answer.unwrap_or_else(|error| failure::response(error, trace, &path)))
    }

    async fn rules(&self, bucket: &str) -> Option<CorsRules> {
        let record = self.shared.client.bucket(bucket).await.ok()?;
        parse_rules(&record.cors_xml)
    }

    async fn preflight(&self, parts: &Parts, trace: &Trace) -> Response<Body> {
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
        let wanted = text(&parts.headers, header::ACCESS_CONTROL_REQUEST_HEADERS).unwrap_or_default();
        let question = CorsQuestion {
            origin: text(&parts.headers, header::ORIGIN).unwrap_or_default(),
            method: text(&parts.headers, header::ACCESS_CONTROL_REQUEST_METHOD).unwrap_or_default(),
            headers: wanted.split(',').map(str::trim).filter(|name| !name.is_empty()).collect(),
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

    /// Adds to a plain answer what its bucket's rules allow its origin.
    async fn add_cors(
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

fn allow(headers: &mut HeaderMap, answer: &crate::translate::CorsAnswer) {
    insert(headers, header::ACCESS_CONTROL_ALLOW_ORIGIN, &answer.origin);
    insert(headers, header::ACCESS_CONTROL_ALLOW_METHODS, &answer.methods);
    insert(headers, header::ACCESS_CONTROL_EXPOSE_HEADERS, &answer.exposed);
    if answer.origin != "*" {
        insert(headers, header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true");
    }
    insert(headers, header::VARY, "Origin, Access-Control-Request-Headers, Access-Control-Request-Method");
}

fn insert(headers: &mut HeaderMap, name: header::HeaderName, value: &str) {
    if let (false, Ok(value)) = (value.is_empty(), HeaderValue::try_from(value)) {
        headers.insert(name, value);
    }
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// What every answer carries.
fn finish(response: &mut Response<Body>, trace: &Trace) {
    let id = trace.request_id();
    if response.status() == StatusCode::NOT_MODIFIED || response.status() == StatusCode::NO_CONTENT {
        *response.body_mut() = Body::empty();
        response.headers_mut().remove(header::CONTENT_TYPE);
    }
    let headers = response.headers_mut();
    headers.insert(header::SERVER, HeaderValue::from_static("Striate"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    if let Ok(id) = HeaderValue::try_from(id) {
        headers.insert("x-amz-request-id", id.clone());
        headers.insert("x-amz-id-2", id);
    }
}

fn host_of(parts: &Parts) -> &str {
    let authority = parts.uri.authority().map(http::uri::Authority::as_str);
    text(&parts.headers, header::HOST).or(authority).unwrap_or_default()
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// The names of a query's parameters.
pub(crate) fn query_names(parts: &Parts) -> impl Iterator<Item = &str> {
    parts.uri.query().unwrap_or("").split('&').map(|it| it.split('=').next().unwrap_or(""))
}

/// Why a batch put does not come with one hash of its whole body.
const HASHED_BATCH: &str = "The items of a batch put are stored one by one as they arrive, before a hash of the whole body \
                            could be verified: send x-amz-content-sha256: UNSIGNED-PAYLOAD (each frame has a checksum), or \
                            sign the chunks.";

/// What this does with many objects of a bucket, if it does.
///
/// # Errors
/// 400 for something else than it can.
fn batch_kind(parts: &Parts, address: &Address) -> Result<Option<Kind>, Refusal> {
    let of_bucket = !address.bucket.is_empty() && address.key.is_empty();
    if parts.method != Method::POST || !of_bucket {
        return Ok(None);
    }
    let parameters = parts.uri.query().unwrap_or("").split('&');
    let named =
        parameters.map(|it| it.split_once('=').unwrap_or((it, ""))).find(|(name, _)| *name == "batch");
    let Some((_, value)) = named else { return Ok(None) };
    let unknown = || Refusal::bad("InvalidArgument", "batch must be read, put or exists.");
    Kind::named(value).map(Some).ok_or_else(unknown)
}

/// Whether the body is a document for s3s to parse, not an object's bytes.
fn is_held(parts: &Parts, address: &Address) -> bool {
    const OBJECT_DOCUMENTS: [&str; 7] =
        ["acl", "tagging", "retention", "legal-hold", "restore", "select", "uploads"];
    match parts.method {
        Method::POST => true,
        Method::PUT => {
            address.key.is_empty() || query_names(parts).any(|name| OBJECT_DOCUMENTS.contains(&name))
        }
        _ => false,
    }
}

/// Checks what a body that is to be held in memory says of its length.
fn check_held_len(parts: &Parts, limits: &crate::options::Limits) -> Result<(), Refusal> {
    let most = limits.xml_bytes as u64;
    let announced = text(&parts.headers, header::CONTENT_LENGTH).and_then(|len| len.parse::<u64>().ok());
    match announced {
        Some(len) if len > most => {
            let message = format!("Your request was too big: {most} bytes are allowed here.");
            Err(Refusal::bad("MaxMessageLengthExceeded", message))
        }
        _ => Ok(()),
    }
}

fn http_body_is_absent(parts: &Parts) -> bool {
    !parts.headers.contains_key(header::TRANSFER_ENCODING)
}

/// Takes the aws-chunked framing out of the headers. Answers the length of the decoded body.
fn unframe(parts: &mut Parts, payload: &Payload) -> Result<u64, Refusal> {
    let is_put = parts.method == Method::PUT;
    let missing = || {
        let message = "You must provide the Content-Length HTTP header.";
        Refusal::new(StatusCode::LENGTH_REQUIRED, "MissingContentLength", message)
    };
    if !matches!(payload, Payload::Chunked { .. }) {
        let has_length = parts.headers.contains_key(header::CONTENT_LENGTH);
        return match has_length || !is_put || http_body_is_absent(parts) {
            true => Ok(0),
            false => Err(missing()),
        };
    }
    let decoded = parts.headers.get("x-amz-decoded-content-length").ok_or_else(missing)?;
    let decoded: u64 =
        decoded.to_str().ok().and_then(|len| len.parse().ok()).ok_or_else(|| {
            Refusal::bad("InvalidArgument", "x-amz-decoded-content-length is not a number.")
        })?;
    parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(decoded));
    let encodings = text(&parts.headers, header::CONTENT_ENCODING).unwrap_or_default();
    let kept: Vec<&str> = encodings.split(',').map(str::trim).filter(|it| *it != "aws-chunked").collect();
    let kept = kept.join(",");
    match kept.is_empty() {
        true => drop(parts.headers.remove(header::CONTENT_ENCODING)),
        false => insert(&mut parts.headers, header::CONTENT_ENCODING, &kept),
    }
    Ok(decoded)
}

/// The signature is verified; s3s must not look for it again.
fn strip_signature(parts: &mut Parts, presigned: bool) {
    parts.headers.remove(header::AUTHORIZATION);
    if !presigned {
        return;
    }
    const AUTH: [&str; 10] = [
        "AWSAccessKeyId",
        "Expires",
        "Signature",
        "X-Amz-Algorithm",
        "X-Amz-Credential",
        "X-Amz-Date",
        "X-Amz-Expires",
        "X-Amz-SignedHeaders",
        "X-Amz-Signature",
        "X-Amz-Security-Token",
    ];
    let query = parts.uri.query().unwrap_or("");
    take_from_query(&mut parts.headers, query);
    let is_kept = |it: &&str| !it.is_empty() && !AUTH.contains(&it.split('=').next().unwrap_or(""));
    let kept: Vec<&str> = query.split('&').filter(is_kept).collect();
    let path = parts.uri.path();
    let rebuilt = if kept.is_empty() { path.to_owned() } else { format!("{path}?{}", kept.join("&")) };
    if let Ok(uri) = rebuilt.parse() {
        parts.uri = uri;
    }
}

/// A presigned URL may say in its query, which is signed, what is otherwise said of an object in headers.
fn take_from_query(headers: &mut HeaderMap, query: &str) {
    for (name, value) in query.split('&').filter_map(|parameter| parameter.split_once('=')) {
        if !form::describes_object(name) || headers.contains_key(name) {
            continue;
        }
        let value = percent_decode(&value.replace('+', " "));
        let value = value.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok());
        if let (Ok(name), Some(value)) = (header::HeaderName::try_from(name), value) {
            headers.insert(name, value);
        }
    }
}

/// Takes out of the headers what s3s would refuse or misread: dates that are none, ranges that it cannot
/// read, which S3 ignores; and what the translation reads by itself, which is answered.
fn set_apart(parts: &mut Parts) -> HeaderMap {
    const TEXTS: [&str; 5] = [
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "x-amz-website-redirect-location",
    ];
    let headers = &mut parts.headers;
    if let Some(range) = text(headers, header::RANGE)
        && s3s::dto::Range::parse(range).is_err()
    {
        headers.remove(header::RANGE);
    }
    for name in [header::IF_MODIFIED_SINCE, header::IF_UNMODIFIED_SINCE] {
        let is_date = |date| s3s::dto::Timestamp::parse(s3s::dto::TimestampFormat::HttpDate, date).is_ok();
        if headers.contains_key(&name) && !text(headers, name.clone()).is_some_and(is_date) {
            headers.remove(name);
        }
    }
    let mut apart = HeaderMap::new();
    let mut take = |headers: &mut HeaderMap, name: header::HeaderName| {
        if let Some(value) = headers.remove(&name) {
            apart.insert(name, value);
        }
    };
    take(headers, header::EXPIRES);
    // s3s would take a body of this type for a form, also the empty one of CreateMultipartUpload.
    if parts.method == Method::POST {
        take(headers, header::CONTENT_TYPE);
    }
    for name in TEXTS.map(header::HeaderName::from_static) {
        if headers.get(&name).is_some_and(|value| value.to_str().is_err()) {
            take(headers, name);
        }
    }
    apart
}

/// The client service checks bucket names, with better words.
struct AnyName;

impl s3s::validation::NameValidation for AnyName {
    fn validate_bucket_name(&self, _name: &str) -> bool {
        true
    }
}

impl Default for Hooks {
    fn default() -> Self {
        Self {
            audit: Arc::new(Silent),
            metrics: Arc::new(Silent),
            readiness: Arc::new(Silent),
            elsewhere: Arc::new(AllHere),
        }
    }
}

impl Readiness for Silent {
    fn is_ready(&self) -> bool {
        true
    }
}
