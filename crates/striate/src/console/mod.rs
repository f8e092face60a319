//! The console port: a status page, metrics, health checks.
//!
//! | path | access | content |
//! |--|--|--|
//! | `/` | everyone | the page, which holds no data |
//! | `/health/live`, `/health/ready`, `/minio/health/{live,ready,cluster}` | everyone | 200 or 503 |
//! | `/api/sign-in` | everyone | access key and secret for a token |
//! | `/api/status`, `/metrics`, `/minio/v2/metrics/cluster` | see [`access`] | numbers, paths, warnings; object names after a sign-in |
//!
//! Orchestrators kill what does not answer a health check, so nobody may keep one from being answered. A connection has
//! a place while it waits for its peer only until another needs it (`striate_listen::admission`), and a peer that takes
//! no bytes is cut off. Answers that cost work wait for one of a few places; health checks need none.

mod access;
mod sign_ins;

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::select;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Deserialize;
use striate_listen::admission::AdmissionLimits;
use striate_listen::{Admission, Guest, Networks, StallGuard, next_connection};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, SemaphorePermit};
use zeroize::Zeroizing;

pub use access::Access;

use sign_ins::{Verdict, WrongSignIns, client_of};

use crate::audit_log::{AuditLog, CommandEntry};
use crate::metrics::{Figures, Metrics};
use crate::start::cluster::Cluster;

/// Number of answers that cost work at once: status, metrics, sign-ins. Fewer than there are connections, so that there
/// is always a connection that only waits for its peer, and makes room for the next.
const WORKING: usize = 4;
/// Timeout for the peer to take bytes of a response.
const STALL: Duration = Duration::from_secs(5);
/// Bytes of responses that the kernel takes for a peer that does not read them.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// Maximum size of a request body in bytes: a sign-in.
const MAX_REQUEST_BYTES: usize = 4 << 10;
/// Maximum size of a request head in bytes.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Maximum length of a claimed access key in logs, in characters.
const MAX_SHOWN_KEY: usize = 128;
/// Timeout for a complete request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout for the head of a request; also how long an idle connection is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

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
    wrong_sign_ins: WrongSignIns,
    /// Trusted proxies.
    proxies: Networks,
    audit: Option<Arc<AuditLog>>,
    endpoint: String,
    admission: Admission,
    working: Semaphore,
}

/// An answer that costs work, in the making.
struct Work<'a> {
    guest: &'a Guest,
    _place: Option<SemaphorePermit<'a>>,
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.guest.waits();
    }
}

#[derive(Deserialize)]
struct SignIn {
    access_key: String,
    secret: String,
}

impl Console {
    /// Creates the console of `cluster`, whose S3 endpoint is `endpoint`, and which admits connections within `limits`.
    /// Sign-ins are recorded in `audit`.
    pub fn new(
        cluster: Cluster,
        metrics: Arc<Metrics>,
        access: Access,
        audit: Option<Arc<AuditLog>>,
        endpoint: String,
        limits: AdmissionLimits,
    ) -> Self {
        let (proxies, wrong_sign_ins) = (limits.trusted.clone(), WrongSignIns::default());
        let (admission, working) = (Admission::new(limits), Semaphore::new(WORKING));
        let shared =
            Shared { cluster, metrics, access, wrong_sign_ins, proxies, audit, endpoint, admission, working };
        Self { shared: Arc::new(shared) }
    }

    /// Serves until the task is dropped.
    pub async fn serve(self, listener: TcpListener) {
        let runtime = self.shared.cluster.runtime().clone();
        loop {
            let (stream, peer) = next_connection(&runtime, "console", || listener.accept()).await;
            match self.shared.admission.admit(Some(peer.ip())) {
                Ok(guest) => {
                    let console = self.clone();
                    runtime.spawn(async move { console.converse(stream, peer, guest).await });
                }
                Err(error) => tracing::warn!(%error, "the console sent a connection away"),
            }
        }
    }

    async fn converse(self, stream: TcpStream, peer: SocketAddr, guest: Guest) {
        if let Err(error) = socket2::SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER_BYTES) {
            tracing::debug!(%error, %peer, "SO_SNDBUF cannot be set");
        }
        let runtime = self.shared.cluster.runtime().clone();
        let guest = &guest;
        let service = service_fn(|request| {
            let console = self.clone();
            async move {
                let runtime = console.shared.cluster.runtime().clone();
                let answered = runtime.timeout(REQUEST_TIMEOUT, console.answer(request, peer, guest)).await;
                guest.waits();
                let late = |_| plain(StatusCode::REQUEST_TIMEOUT, "too slow");
                Ok::<_, std::convert::Infallible>(secured(answered.unwrap_or_else(late)))
            }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD_BYTES);
        let stream = StallGuard::new(stream, runtime, STALL);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        // Clients may disconnect at any time.
        let _ = select(pin!(connection), pin!(guest.evicted())).await;
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        peer: SocketAddr,
        guest: &Guest,
    ) -> Response<Full<Bytes>> {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        match request.uri().path() {
            "/" | "/index.html" if is_read => with_type(StatusCode::OK, "text/html; charset=utf-8", PAGE),
            "/health/live" | "/minio/health/live" if is_read => plain(StatusCode::OK, ""),
            "/health/ready" | "/minio/health/ready" | "/health/cluster" | "/minio/health/cluster"
                if is_read =>
            {
                self.health().await
            }
            "/api/sign-in" if request.method() == Method::POST => {
                let client = client_of(request.headers(), peer.ip(), &self.shared.proxies);
                // Until it has arrived it costs no work, and a sender that stops holds no place.
                let wish = match read_sign_in(request).await {
                    Ok(wish) => wish,
                    Err(wrong) => return plain(StatusCode::BAD_REQUEST, wrong),
                };
                let work = self.begin_work(guest).await;
                let answer = self.sign_in(wish, client, peer).await;
                drop(work);
                if answer.status() == StatusCode::FORBIDDEN {
                    self.shared.cluster.runtime().sleep(sign_ins::DELAY).await;
                }
                answer
            }
            "/api/status" if is_read => match self.allows(&request, peer).await {
                true => {
                    let _work = self.begin_work(guest).await;
                    let mut status = self.shared.cluster.status(&self.shared.endpoint).await;
                    if !self.shared.access.is_signed_in(&request) {
                        status.hide_names();
                    }
                    let text = serde_json::to_vec(&status).unwrap_or_default();
                    with_type(StatusCode::OK, "application/json", text)
                }
                false => refused(),
            },
            "/metrics" | "/minio/v2/metrics/cluster" if is_read => match self.allows(&request, peer).await {
                true => {
                    let _work = self.begin_work(guest).await;
                    self.metrics().await
                }
                false => refused(),
            },
            _ => plain(StatusCode::NOT_FOUND, "there is nothing here\n"),
        }
    }

    /// Waits for a place for an answer that costs work. From then on, and not before, the connection need not make room.
    async fn begin_work<'a>(&'a self, guest: &'a Guest) -> Work<'a> {
        // It is never closed.
        let place = self.shared.working.acquire().await.ok();
        guest.works();
        Work { guest, _place: place }
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

    async fn health(&self) -> Response<Full<Bytes>> {
        match self.shared.cluster.health().await.refusal {
            None => plain(StatusCode::OK, ""),
            Some(reason) => {
                let kind = "text/plain; charset=utf-8";
                with_type(StatusCode::SERVICE_UNAVAILABLE, kind, reason.to_string() + "\n")
            }
        }
    }

    /// Returns true if the request may read numbers. A sign-in counts no longer than its key is accepted.
    async fn allows(&self, request: &Request<Incoming>, peer: SocketAddr) -> bool {
        let access = &self.shared.access;
        if let Some(access_key) = access.key_of_session(request)
            && let Ok(None) = self.shared.cluster.keys().secrets(&access_key).await
        {
            access.end_sessions(&access_key);
        }
        access.allows(request, peer)
    }

    /// Records a sign-in: the audit log, and for a refused one the log.
    fn record_sign_in(&self, peer: SocketAddr, access_key: &str, status: StatusCode) {
        let key: String = access_key.chars().take(MAX_SHOWN_KEY).collect();
        let is_right = status == StatusCode::OK;
        if !is_right {
            tracing::warn!(%peer, access_key = key, status = status.as_u16(), "a sign-in on the console was refused");
        }
        if let Some(audit) = &self.shared.audit {
            let (access_key, claimed_key) = if is_right { (Some(key), None) } else { (None, Some(key)) };
            audit.record_command(&CommandEntry {
                time_unix_ms: self.shared.cluster.runtime().wall_time().as_millis() as u64,
                operation: "SignIn",
                remote: Some(peer),
                access_key,
                claimed_key,
                status: status.as_u16(),
                ..CommandEntry::default()
            });
        }
    }

    /// Answers a sign-in of `client`, which may be behind `peer`.
    async fn sign_in(&self, wish: SignIn, client: IpAddr, peer: SocketAddr) -> Response<Full<Bytes>> {
        let secret = Zeroizing::new(wish.secret);
        let runtime = self.shared.cluster.runtime();
        if let Verdict::Refused { first } = self.shared.wrong_sign_ins.admit(client, runtime.now()) {
            if first {
                self.record_sign_in(peer, &wish.access_key, StatusCode::TOO_MANY_REQUESTS);
            }
            return plain(StatusCode::TOO_MANY_REQUESTS, "too many wrong sign-ins; try again in a minute\n");
        }
        let stored_secrets = self.shared.cluster.keys().secrets(&wish.access_key).await;
        let is_right =
            matches!(&stored_secrets, Ok(Some(secrets)) if access::equal(&secrets.current, &secret));
        if !is_right {
            self.shared.wrong_sign_ins.add(client, runtime.now());
            self.record_sign_in(peer, &wish.access_key, StatusCode::FORBIDDEN);
            return plain(StatusCode::FORBIDDEN, "access key or secret is wrong\n");
        }
        self.record_sign_in(peer, &wish.access_key, StatusCode::OK);
        let token = self.shared.access.new_session(runtime, &wish.access_key);
        let text = serde_json::json!({ "token": token.as_str() }).to_string();
        with_type(StatusCode::OK, "application/json", text)
    }
}

/// Reads the body of a sign-in.
///
/// # Errors
/// What is wrong with it.
async fn read_sign_in(request: Request<Incoming>) -> Result<SignIn, &'static str> {
    let body = Limited::new(request.into_body(), MAX_REQUEST_BYTES).collect().await;
    let body = body.map_err(|_| "the request is too long or incomplete\n")?.to_bytes();
    serde_json::from_slice(&body).map_err(|_| "write {\"access_key\": …, \"secret\": …}\n")
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
