//! The server's side of the admin socket.
//!
//! Long operations reply with lines as they progress. One heal, one verification and one packing run at a time, each in
//! its own task. If its command goes away or the server stops, the task finishes the step in progress and starts no
//! other; everything done so far remains valid.

mod buckets;
mod disks;
mod explain;
mod keys;
mod metadata;
mod packing;
mod profile;
mod unreadable;

use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::Either;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use striate_commands::admin::find::{SOCKET_NAME, STATE_FOLDER};
use striate_commands::admin::messages::{Line, Refusal};
use striate_commands::failure::Failure;
use striate_listen::next_connection;
use striate_runtime::Runtime;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, MutexGuard, Notify, mpsc, watch};

use crate::audit_log::{AuditLog, CommandEntry};
use crate::start::cluster::Cluster;

/// Maximum size of a request body in bytes; an import of metadata is the largest.
const MAX_REQUEST_BYTES: usize = 8 << 20;
/// Maximum length of a Unix socket's path that every system accepts, in bytes.
const MAX_SOCKET_PATH: usize = 100;
/// Maximum number of lines that wait for a slow command; beyond it, progress is dropped, but never the report.
const WAITING_LINES: usize = 64;
/// Minimum interval between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// Time for which an operation waits for one whose command was just interrupted, before it reports that one is running.
const INTERRUPTED_ENDS_WITHIN: Duration = Duration::from_secs(2);
/// Time for which a request waits for disks that hang.
const PATIENCE: Duration = Duration::from_millis(1_700);
/// Timeout for operations to finish the step in progress when the server stops.
const FINISH_WITHIN: Duration = Duration::from_secs(30);
/// Last line of an operation that ended because the server stops.
const STOPPING: &str =
    "the server is stopping; what was done until now stays good. Run the command again when it is back";

/// The body of a response.
pub(crate) type Body = BoxBody<Bytes, std::io::Error>;

/// The admin service of a running store. Cheap to clone.
#[derive(Clone)]
pub struct AdminService {
    shared: Arc<Shared>,
}

struct Shared {
    cluster: Cluster,
    endpoint: String,
    /// Name of this process in its cluster; empty if it is the only one.
    process: String,
    audit: Option<Arc<AuditLog>>,
    healing: Mutex<()>,
    verifying: Mutex<()>,
    packing: Mutex<()>,
    /// Notified when the server must stop.
    stop: Arc<Notify>,
    /// True once the server is stopping.
    stopping: watch::Receiver<bool>,
}

impl AdminService {
    /// Creates the service of a store whose S3 endpoint is `endpoint`, in the process of this name. The service
    /// notifies `stop` when the server must stop; `stopping` becomes true once the server does. Commands that may change
    /// something are recorded in `audit`.
    pub fn new(
        cluster: Cluster,
        endpoint: String,
        process: String,
        audit: Option<Arc<AuditLog>>,
        stop: Arc<Notify>,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let (healing, verifying, packing) = Default::default();
        let shared =
            Shared { cluster, endpoint, process, audit, healing, verifying, packing, stop, stopping };
        Self { shared: Arc::new(shared) }
    }

    /// Waits, when the server is stopping, until no operation is running.
    pub async fn finish(&self) {
        let Shared { healing, verifying, packing, .. } = self.shared.as_ref();
        let idle = async { (healing.lock().await, verifying.lock().await, packing.lock().await) };
        if self.runtime().timeout(FINISH_WITHIN, idle).await.is_err() {
            tracing::warn!("a long operation is cut off; run it again after the next start");
        }
    }

    /// Binds the socket in a directory's `.striate/` and serves it in the background. Skips a path that is too long for
    /// a socket: the run directory has one too.
    pub fn serve_directory(&self, directory: &Path) {
        let path = directory.join(STATE_FOLDER).join(SOCKET_NAME);
        if path.as_os_str().len() <= MAX_SOCKET_PATH {
            self.serve_socket(&path);
        }
    }

    /// Binds a socket (mode 0600) and serves it in the background; logs a failure.
    pub fn serve_socket(&self, path: &Path) {
        match bind(path) {
            Ok(listener) => drop(self.runtime().spawn(self.clone().accept(listener))),
            Err(error) => tracing::warn!(socket = %path.display(), %error, "no admin socket here"),
        }
    }

    fn runtime(&self) -> &Runtime {
        self.shared.cluster.runtime()
    }

    async fn accept(self, listener: UnixListener) {
        loop {
            // Only the server's own user reaches the socket, so connections need no limit.
            let (stream, _) = next_connection(self.runtime(), "admin", || listener.accept()).await;
            self.runtime().spawn(self.clone().converse(stream));
        }
    }

    async fn converse(self, stream: UnixStream) {
        let handler = service_fn(move |request| {
            let service = self.clone();
            async move { Ok::<_, std::convert::Infallible>(service.answer(request).await) }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new());
        // A command may go away at any time.
        let _ = builder.serve_connection(TokioIo::new(stream), handler).await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        // Runs in its own task: a command that goes away must not leave a change of members half made.
        let answering = self.runtime().spawn({
            let (service, method, path) = (self.clone(), method.clone(), path.clone());
            async move { service.route(method, &path, request.into_body()).await }
        });
        let defect = |error| Err(Failure::failed(format!("the server met a defect, see its log: {error}")));
        let answered = match futures::future::select(answering, pin!(self.disks_hang())).await {
            Either::Left((answered, _)) => answered.unwrap_or_else(defect),
            Either::Right((refusal, _)) => Err(refusal),
        };
        self.record(&method, &path, answered.as_ref());
        answered.unwrap_or_else(|failure| {
            tracing::info!(%method, path, reason = %failure, "an admin request was refused");
            json(StatusCode::BAD_REQUEST, &Refusal { error: failure.to_string() })
        })
    }

    /// Records a command in the audit log, if it may change something or exports all metadata.
    fn record(&self, method: &Method, path: &str, answered: Result<&Response<Body>, &Failure>) {
        let (Some(audit), true) = (&self.shared.audit, is_recorded(method, path)) else { return };
        let subject = answered.ok().and_then(|answer| answer.extensions().get::<Subject>());
        let status = answered.map_or(StatusCode::BAD_REQUEST, Response::status);
        audit.record_command(&CommandEntry {
            time_unix_ms: self.runtime().wall_time().as_millis() as u64,
            operation: "AdminCommand",
            command: format!("{method} {path}"),
            subject: subject.map(|Subject(subject)| subject.clone()).unwrap_or_default(),
            status: status.as_u16(),
            error: answered.err().map(ToString::to_string),
            ..CommandEntry::default()
        });
    }

    /// Completes with a refusal when a request has waited for long while a disk hangs: the command need not wait for that.
    async fn disks_hang(&self) -> Failure {
        loop {
            self.runtime().sleep(PATIENCE).await;
            let silent = self.shared.cluster.silent_directories();
            if !silent.is_empty() {
                let list: Vec<_> = silent.iter().map(|path| path.display().to_string()).collect();
                return Failure::failed(format!(
                    "the disk of {} answers nothing, and this waits for it; what was begun goes on as soon as the disk \
                     answers",
                    list.join(", ")
                ));
            }
        }
    }

    async fn route(&self, method: Method, path: &str, body: Incoming) -> Result<Response<Body>, Failure> {
        let steps: Vec<&str> = path.trim_matches('/').split('/').collect();
        match (method.clone(), steps.as_slice()) {
            (Method::GET, ["v1", "status"]) => {
                Ok(ok(&self.shared.cluster.status(&self.shared.endpoint).await))
            }
            (Method::POST, ["v1", "disks", change]) => self.disks(change, body).await,
            (Method::POST, ["v1", "explain"]) => self.explain(read(body).await?).await,
            (Method::GET, ["v1", "upgrade"]) => Ok(ok(&self.shared.cluster.formats().await?)),
            (Method::POST, ["v1", "upgrade", "finalize"]) => {
                self.shared.cluster.finalize_upgrade().await?;
                Ok(ok(&self.shared.cluster.formats().await?))
            }
            (Method::GET | Method::POST, ["v1", "profile"]) => self.profile(method, body).await,
            (Method::POST, ["v1", "heal"]) => Ok(self.clone().heal()),
            (Method::GET, ["v1", "unreadable"]) => Ok(self.unreadable().await),
            (Method::POST, ["v1", "verify"]) => Ok(self.clone().verify(false)),
            (Method::POST, ["v1", "verify", "remove-orphans"]) => Ok(self.clone().verify(true)),
            (Method::POST, ["v1", "packing", "run"]) => Ok(self.clone().pack(read(body).await?)),
            (Method::POST, ["v1", "packing", "undo", bucket]) => {
                Ok(self.clone().unpack((*bucket).to_owned()))
            }
            (Method::GET, ["v1", "packing", rest @ ..]) => self.packing(rest.first().copied()).await,
            (method, ["v1", "buckets", rest @ ..]) => self.buckets(method, rest, body).await,
            (method, ["v1", "keys", rest @ ..]) => self.keys(method, rest, body).await,
            (Method::GET, ["v1", "meta"]) => self.export().await,
            (Method::POST, ["v1", "meta"]) => self.import(body).await,
            (method, _) => Err(Failure::failed(format!(
                "this server knows no {method} {path}; do the command and the server have the same version?"
            ))),
        }
    }

    /// Waits for exclusive use of an operation that runs once at a time; returns `None` if another one is running.
    async fn alone<'a>(&self, running: &'a Mutex<()>) -> Option<MutexGuard<'a, ()>> {
        self.runtime().timeout(INTERRUPTED_ENDS_WITHIN, running.lock()).await.ok()
    }

    fn heal(self) -> Response<Body> {
        self.long_operation(|service, mut pace| async move {
            let Some(_alone) = service.alone(&service.shared.healing).await else {
                return Line::Failed(
                    "a heal is running already; wait for it, or stop that command".to_owned(),
                );
            };
            let stripes = service.shared.cluster.client().stripes();
            let _hold = service.shared.cluster.upkeep().repair().hold();
            match striate_control::heal(stripes, |progress| pace.progress(progress)).await {
                Ok(report) if report.stopped => Line::Failed(STOPPING.to_owned()),
                Ok(report) => {
                    Line::Report(serde_json::json!({ "whole": report.is_whole(), "report": report }))
                }
                Err(error) => Line::Failed(error.to_string()),
            }
        })
    }

    fn verify(self, remove_orphans: bool) -> Response<Body> {
        self.long_operation(move |service, pace| async move {
            let Some(_alone) = service.alone(&service.shared.verifying).await else {
                return Line::Failed("a verification is running already; wait for it".to_owned());
            };
            match service.verified(remove_orphans, pace).await {
                Ok(Some(report)) => Line::Report(report),
                Ok(None) => Line::Failed(STOPPING.to_owned()),
                Err(reason) => Line::Failed(reason),
            }
        })
    }

    /// Returns the report of a verification; `None` if it was stopped.
    async fn verified(
        &self,
        remove_orphans: bool,
        mut pace: ProgressPacer,
    ) -> Result<Option<serde_json::Value>, String> {
        let cluster = &self.shared.cluster;
        let report = striate_control::verify(cluster.client().stripes(), |progress| pace.progress(progress));
        let report = report.await.map_err(|error| error.to_string())?;
        if report.stopped {
            return Ok(None);
        }
        let removed = match remove_orphans {
            true => striate_control::collect_orphans(cluster.client().stripes()).await,
            false => Ok(striate_control::OrphanReport::default()),
        };
        let removed = removed.map_err(|error| error.to_string())?.orphans;
        let rows = cluster.scrub_metadata_now().await.map_err(|error| error.to_string())?;
        let clean = report.is_clean();
        Ok(Some(serde_json::json!({
            "clean": clean, "report": report, "orphans_removed": removed, "metadata_rows": rows
        })))
    }

    /// Replies with lines of progress and the last line that `work` returns. If the command goes away, the work
    /// continues until its pace tells it to stop.
    fn long_operation<F, W>(self, work: W) -> Response<Body>
    where
        W: FnOnce(Self, ProgressPacer) -> F,
        F: Future<Output = Line> + Send + 'static,
    {
        let (sender, receiver) = mpsc::channel(WAITING_LINES);
        let (runtime, stopping) = (self.runtime().clone(), self.shared.stopping.clone());
        let pace =
            ProgressPacer { next: runtime.now(), runtime: runtime.clone(), lines: sender.clone(), stopping };
        let work = work(self, pace);
        runtime.spawn(async move {
            let last = work.await;
            // The command may have gone.
            let _ = sender.send(last).await;
        });
        let lines = futures::stream::unfold(receiver, |mut receiver| async move {
            let line = receiver.recv().await?;
            Some((line, receiver))
        });
        lines_body(lines.boxed())
    }
}

/// Limits the rate of progress lines, and tells the operation when to stop.
struct ProgressPacer {
    runtime: Runtime,
    lines: mpsc::Sender<Line>,
    next: striate_runtime::Instant,
    stopping: watch::Receiver<bool>,
}

impl ProgressPacer {
    fn progress(&mut self, progress: &impl Serialize) -> ControlFlow<()> {
        if self.lines.is_closed() || *self.stopping.borrow() {
            return ControlFlow::Break(());
        }
        let now = self.runtime.now();
        if now >= self.next {
            self.next = now + PROGRESS_EVERY;
            let value = serde_json::to_value(progress).unwrap_or_default();
            // A slow command misses some progress, nothing else.
            let _ = self.lines.try_send(Line::Progress(value));
        }
        ControlFlow::Continue(())
    }
}

fn lines_body(lines: futures::stream::BoxStream<'static, Line>) -> Response<Body> {
    let frame = |line: Line| {
        let mut text = serde_json::to_vec(&line).unwrap_or_default();
        text.push(b'\n');
        Ok(Frame::data(Bytes::from(text)))
    };
    // `BoxBody` must be `Sync`, which a stream of futures need not be. A channel is.
    Response::new(BodyExt::boxed(StreamBody::new(SyncStream::new(lines.map(frame).boxed()))))
}

/// A stream that is `Sync` because it cannot be accessed through a shared reference.
struct SyncStream<T>(parking_lot::Mutex<futures::stream::BoxStream<'static, T>>);

impl<T> SyncStream<T> {
    fn new(stream: futures::stream::BoxStream<'static, T>) -> Self {
        Self(parking_lot::Mutex::new(stream))
    }
}

impl<T> futures::Stream for SyncStream<T> {
    type Item = T;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<T>> {
        self.0.get_mut().poll_next_unpin(cx)
    }
}

/// Creates a body of lines that were made elsewhere.
pub(crate) fn text_lines(
    lines: futures::stream::BoxStream<'static, std::io::Result<Bytes>>,
) -> Response<Body> {
    Response::new(BodyExt::boxed(StreamBody::new(SyncStream::new(
        lines.map(|line| line.map(Frame::data)).boxed(),
    ))))
}

/// Creates a response with status 200.
pub(crate) fn ok(message: &impl Serialize) -> Response<Body> {
    json(StatusCode::OK, message)
}

/// What a command made or changed, for the audit log. Carried in the extensions of its answer.
#[derive(Clone)]
pub(super) struct Subject(String);

/// As [`ok`], for a command that made or changed `subject`, which its path does not name.
pub(super) fn changed(subject: &str, message: &impl Serialize) -> Response<Body> {
    about(subject, ok(message))
}

/// Notes for the audit log what an answer is about.
fn about(subject: &str, mut answer: Response<Body>) -> Response<Body> {
    answer.extensions_mut().insert(Subject(subject.to_owned()));
    answer
}

/// Returns whether a command is recorded in the audit log.
fn is_recorded(method: &Method, path: &str) -> bool {
    match *method {
        Method::GET => path == "/v1/meta",
        _ => path != "/v1/explain",
    }
}

fn json(status: StatusCode, message: &impl Serialize) -> Response<Body> {
    let text = serde_json::to_vec(message).unwrap_or_default();
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

/// Reads a request's message.
pub(crate) async fn read<T: DeserializeOwned>(body: Incoming) -> Result<T, Failure> {
    let bytes = Limited::new(body, MAX_REQUEST_BYTES).collect().await;
    let bytes = bytes.map_err(|error| Failure::failed(format!("the request broke: {error}")))?.to_bytes();
    serde_json::from_slice(&bytes)
        .map_err(|error| Failure::failed(format!("the request is not understood: {error}")))
}

/// Binds a socket that only this user can open. A dead socket of an earlier run is replaced.
fn bind(path: &Path) -> std::io::Result<UnixListener> {
    let fresh = path.with_extension("new");
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&fresh)?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&fresh, path)?;
    Ok(listener)
}
