//! The gateway: one request in, one response out.
//!
//! The order matters. Health paths and CORS preflights need no signature. Then the signature is verified, before
//! anything is looked up. Then small bodies (XML) are collected and their digests verified, and large ones wrapped.
//! POST forms become the puts that they describe ([`crate::form`]). Then s3s parses the request and calls the
//! translation. Afterwards the response gets its CORS headers, its id, and a body that notifies the audit log when it
//! has ended; the rest of the request's body is discarded, or the connection closed.

mod answer;
mod cors;
mod head;
mod prepare;

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use s3s::Body;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::{S3Service, S3ServiceBuilder};
use striate_client::Client;
use striate_runtime::Runtime;
use tracing::Instrument;

use crate::address::{Address, Domains, Endpoint, host_of};
use crate::audit::{AuditSink, NullSink, RequestMetrics};
use crate::body::{AnswerBody, ArrivingBody, RequestPermits};
use crate::documents::FairPool;
use crate::failure;
use crate::form::FormAnswer;
use crate::keys::KeyStore;
use crate::options::GatewayOptions;
use crate::peers::{KeyLimits, Peer, Peers};
use crate::refusal::Refusal;
use crate::remote_buckets::{self, ForwardedAddress, NamedKeys, NoRemoteBuckets, RemoteBuckets};
use crate::trace::Trace;
use crate::translate::{RequestContext, Translator};

use answer::Asked;
pub(crate) use answer::{Instead, UnquotedEtag};
use prepare::PreparedRequest;

/// Reports for the health paths whether the store can serve.
#[async_trait]
pub trait Readiness: Send + Sync {
    /// Returns whether reads and writes are expected to work, as of the last two seconds. Takes no longer itself.
    async fn is_ready(&self) -> bool;

    /// Returns whether, in addition, every member is there; `false` calls for an operator.
    async fn is_cluster_healthy(&self) -> bool {
        self.is_ready().await
    }
}

/// Hooks of the binary into a gateway.
#[derive(Clone)]
pub struct Hooks {
    /// Receives audit entries.
    pub audit: Arc<dyn AuditSink>,
    /// Receives counts and durations.
    pub metrics: Arc<dyn RequestMetrics>,
    /// Reports for the health paths.
    pub readiness: Arc<dyn Readiness>,
    /// Serves buckets whose objects are in other stores.
    pub remote_buckets: Arc<dyn RemoteBuckets>,
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
    documents: Arc<FairPool>,
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

impl Gateway {
    /// Creates a gateway over `client` that verifies signatures with `keys`.
    ///
    /// # Errors
    /// When an option is invalid.
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
            remote_buckets: Arc::clone(&hooks.remote_buckets),
            region: options.region.clone(),
        };
        let mut builder = S3ServiceBuilder::new(translator.clone());
        builder.set_route(translator);
        let mut config = S3Config::default();
        config.xml_max_body_size = options.limits.xml_bytes;
        builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
        builder.set_validation(AnyBucketName);
        if !options.domains.is_empty() {
            builder.set_host(domains.clone());
        }
        let peers = Peers::new(options.limits.clone(), Arc::clone(&hooks.metrics));
        let held = options.limits.buffered_bytes;
        let shared = Shared {
            service: builder.build(),
            documents: FairPool::new(held, "documents", Arc::clone(&hooks.metrics)),
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

    /// Handles one request of `peer`.
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
        let (mut parts, incoming) = request.into_parts();
        let incoming = ArrivingBody::new(incoming, &parts.headers);
        let rest = incoming.rest();
        let asked = self.asked(&parts);
        parts.extensions.insert(Endpoint::of(&shared.domains, &parts));
        let origin = parts.headers.get(header::ORIGIN).cloned();
        let mut bucket = None;
        let mut held = RequestPermits::default();
        let answered = match self.unsigned(&parts, &trace).await {
            Some(response) => {
                drop(incoming);
                Ok(response)
            }
            None => match self.prepare(parts, incoming, &trace, peer, &mut bucket).await {
                Ok(PreparedRequest { request, held: holds, form }) => {
                    held = holds;
                    self.pass_on(request, form, &trace).await
                }
                Err(refusal) => Err(refusal),
            },
        };
        let mut response = answered.unwrap_or_else(|refusal| {
            trace.set_error(refusal.code);
            refusal.into_response(&trace.request_id(), &asked.path)
        });
        asked.complete(&mut response, &trace, &shared.options.region);
        if let (Some(origin), Some(bucket)) = (origin, bucket) {
            self.add_cors(&mut response, &origin, &asked.method, &bucket).await;
        }
        finish(&mut response, &trace);
        if !rest.read_out(&shared.runtime).await {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            peer.linger();
        }
        trace.answered(response.status());
        response.map(|body| AnswerBody::new(body, trace, Arc::clone(peer), held))
    }

    fn asked(&self, parts: &Parts) -> Asked {
        let path = parts.uri.path();
        let address = Address::of(&self.shared.domains, host_of(parts), path).unwrap_or_default();
        Asked { method: parts.method.clone(), path: path.to_owned(), address }
    }

    /// Handles health paths and preflights.
    async fn unsigned(&self, parts: &Parts, trace: &Arc<Trace>) -> Option<Response<Body>> {
        if let Some(path) = parts.uri.path().strip_prefix("/minio/health/")
            && matches!(parts.method, Method::GET | Method::HEAD)
        {
            trace.set_operation("Health");
            let readiness = &self.shared.hooks.readiness;
            let healthy = match path {
                "live" => true,
                "ready" => readiness.is_ready().await,
                "cluster" | "cluster/read" => readiness.is_cluster_healthy().await,
                _ => return None,
            };
            let status = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            return Some(empty(status));
        }
        if parts.method == Method::OPTIONS {
            trace.set_operation("Preflight");
            return Some(self.preflight(parts, trace).await);
        }
        None
    }

    /// Passes a prepared request on to s3s or to another store.
    async fn pass_on(
        &self,
        request: Request<Body>,
        form: Option<FormAnswer>,
        trace: &Trace,
    ) -> Result<Response<Body>, Refusal> {
        let stored = match request.extensions().get::<ForwardedAddress>().is_some() {
            true => self.send_elsewhere(request, trace).await,
            false => self.call(request, trace).await,
        };
        stored.map(|response| match form {
            Some(form) => form.instead_of(response),
            None => response,
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

    /// Passes on a request for a bucket that is in another store.
    async fn send_elsewhere(&self, request: Request<Body>, trace: &Trace) -> Result<Response<Body>, Refusal> {
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let carried = parts.extensions.remove::<RequestContext>();
        let Some(outbound) = parts.extensions.remove::<ForwardedAddress>() else {
            return Err(Refusal::anonymous());
        };
        let answer = match remote_buckets::request(outbound, parts, carried, body).await {
            Ok(request) => self.shared.hooks.remote_buckets.answer(request).await,
            Err(error) => Err(error),
        };
        let mut answer = answer.unwrap_or_else(|error| failure::response(error, trace, &path));
        if let Some(NamedKeys(keys)) = answer.extensions_mut().remove() {
            trace.add_keys(keys.iter().map(String::as_str));
        }
        Ok(answer)
    }
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// Adds what every response carries.
fn finish(response: &mut Response<Body>, trace: &Trace) {
    let id = trace.request_id();
    if response.status() == StatusCode::NOT_MODIFIED || response.status() == StatusCode::NO_CONTENT {
        *response.body_mut() = Body::empty();
        response.headers_mut().remove(header::CONTENT_TYPE);
    }
    // s3s gives the answer to HEAD no status of its own.
    if response.status() == StatusCode::OK && response.headers().contains_key(header::CONTENT_RANGE) {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    let headers = response.headers_mut();
    headers.insert(header::SERVER, HeaderValue::from_static("Striate"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    if let Ok(id) = HeaderValue::try_from(id) {
        headers.insert("x-amz-request-id", id.clone());
        headers.insert("x-amz-id-2", id);
    }
}

/// Accepts every bucket name: the client service checks them, with better error messages.
struct AnyBucketName;

impl s3s::validation::NameValidation for AnyBucketName {
    fn validate_bucket_name(&self, _name: &str) -> bool {
        true
    }
}

impl Default for Hooks {
    fn default() -> Self {
        Self {
            audit: Arc::new(NullSink),
            metrics: Arc::new(NullSink),
            readiness: Arc::new(NullSink),
            remote_buckets: Arc::new(NoRemoteBuckets),
        }
    }
}

#[async_trait]
impl Readiness for NullSink {
    async fn is_ready(&self) -> bool {
        true
    }
}
