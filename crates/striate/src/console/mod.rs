//! The console port: a status page, metrics, health checks.
//!
//! | path | access | content |
//! |--|--|--|
//! | `/` | everyone | the page, which holds no data |
//! | `/health/live`, `/health/ready`, `/minio/health/{live,ready,cluster}` | everyone | 200 or 503 |
//! | `/api/sign-in` | everyone | access key and secret for a token |
//! | `/api/status`, `/metrics`, `/minio/v2/metrics/cluster` | see [`access`] | numbers, paths, warnings; object names after a sign-in |

mod access;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

pub use access::Access;

use crate::metrics::{Figures, Metrics};
use crate::start::cluster::Cluster;

/// Maximum number of connections; further ones wait.
const CONNECTIONS: usize = 64;
/// Maximum size of a request body in bytes: a sign-in.
const MAX_REQUEST_BYTES: usize = 4 << 10;
/// Maximum size of a request head in bytes.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Timeout for a complete request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

const PAGE: &str = include_str!("page.html");

/// The console of a running store. Cheap to clone.
#[derive(Clone)]
pub struct Console {
    shared: Arc<Shared>,
}

struct Shared {
    cluster: Cluster,
    metrics: Arc<Metrics>,
    access: Access,
    endpoint: String,
}

#[derive(Deserialize)]
struct SignIn {
    access_key: String,
    secret: String,
}

impl Console {
    /// Creates the console of `cluster`, whose S3 endpoint is `endpoint`.
    pub fn new(cluster: Cluster, metrics: Arc<Metrics>, access: Access, endpoint: String) -> Self {
        Self { shared: Arc::new(Shared { cluster, metrics, access, endpoint }) }
    }

    /// Serves until the task is dropped.
    pub async fn serve(self, listener: TcpListener) {
        let runtime = self.shared.cluster.runtime().clone();
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let console = self.clone();
                    runtime.spawn(async move {
                        console.converse(stream, peer).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "the console does not accept");
                    runtime.sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    async fn converse(self, stream: tokio::net::TcpStream, peer: SocketAddr) {
        let service = service_fn(|request| {
            let console = self.clone();
            async move {
                let runtime = console.shared.cluster.runtime().clone();
                let answered = runtime.timeout(REQUEST_TIMEOUT, console.answer(request, peer)).await;
                let late = |_| plain(StatusCode::REQUEST_TIMEOUT, "too slow");
                Ok::<_, std::convert::Infallible>(secured(answered.unwrap_or_else(late)))
            }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT).max_buf_size(MAX_HEAD_BYTES);
        // Clients may disconnect at any time.
        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
    }

    async fn answer(&self, request: Request<Incoming>, peer: SocketAddr) -> Response<Full<Bytes>> {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        match request.uri().path() {
            "/" | "/index.html" if is_read => with_type(StatusCode::OK, "text/html; charset=utf-8", PAGE),
            "/health/live" | "/minio/health/live" if is_read => plain(StatusCode::OK, ""),
            "/health/ready" | "/minio/health/ready" if is_read => {
                self.health(self.shared.cluster.is_serving())
            }
            "/health/cluster" | "/minio/health/cluster" if is_read => {
                self.health(self.shared.cluster.is_serving())
            }
            "/api/sign-in" if request.method() == Method::POST => self.sign_in(request).await,
            "/api/status" if is_read => match self.shared.access.allows(&request, peer) {
                true => {
                    let mut status = self.shared.cluster.status(&self.shared.endpoint).await;
                    if !self.shared.access.is_signed_in(&request) {
                        status.hide_names();
                    }
                    let text = serde_json::to_vec(&status).unwrap_or_default();
                    with_type(StatusCode::OK, "application/json", text)
                }
                false => refused(),
            },
            "/metrics" | "/minio/v2/metrics/cluster" if is_read => {
                match self.shared.access.allows(&request, peer) {
                    true => self.metrics().await,
                    false => refused(),
                }
            }
            _ => plain(StatusCode::NOT_FOUND, "there is nothing here\n"),
        }
    }

    /// Answers with the metrics.
    async fn metrics(&self) -> Response<Full<Bytes>> {
        let status = self.shared.cluster.status(&self.shared.endpoint).await;
        let stripes = self.shared.cluster.client().stripes();
        let figures = Figures {
            reads: stripes.read_measures(),
            pushes: stripes.pushes(),
            memory: stripes.budget().view(),
            co_access: stripes.sampler().totals(),
            loads: self.shared.cluster.statistics().view(),
            rebalance: self.shared.cluster.rebalancer().progress(),
            optimiser: self.shared.cluster.optimiser().progress(),
        };
        let text = self.shared.metrics.render(&status, figures);
        with_type(StatusCode::OK, "text/plain; version=0.0.4", text)
    }

    fn health(&self, is_well: bool) -> Response<Full<Bytes>> {
        match is_well {
            true => plain(StatusCode::OK, ""),
            false => plain(StatusCode::SERVICE_UNAVAILABLE, "too few disks take writes\n"),
        }
    }

    async fn sign_in(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let body = Limited::new(request.into_body(), MAX_REQUEST_BYTES).collect().await;
        let Ok(body) = body.map(|body| body.to_bytes()) else {
            return plain(StatusCode::BAD_REQUEST, "the request is too long or incomplete\n");
        };
        let Ok(wish) = serde_json::from_slice::<SignIn>(&body) else {
            return plain(StatusCode::BAD_REQUEST, "write {\"access_key\": …, \"secret\": …}\n");
        };
        let secret = Zeroizing::new(wish.secret);
        let stored_secrets = self.shared.cluster.keys().secrets(&wish.access_key).await;
        let is_right =
            matches!(&stored_secrets, Ok(Some(secrets)) if access::equal(&secrets.current, &secret));
        if !is_right {
            return plain(StatusCode::FORBIDDEN, "access key or secret is wrong\n");
        }
        let token = self.shared.access.new_session(self.shared.cluster.runtime());
        let text = serde_json::json!({ "token": token.as_str() }).to_string();
        with_type(StatusCode::OK, "application/json", text)
    }
}

fn refused() -> Response<Full<Bytes>> {
    let text = "sign in, or send `Authorization: Bearer TOKEN` with the token of --metrics-token-file; programs on the \
                server's own machine may ask http://localhost without\n";
    let mut response = plain(StatusCode::UNAUTHORIZED, text);
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    with_type(status, "text/plain; charset=utf-8", text)
}

fn with_type(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Adds headers that restrict what a browser may do with a response.
fn secured(mut response: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                  img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
