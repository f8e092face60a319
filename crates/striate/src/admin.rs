//! The server's side of the admin socket.
//!
//! Long operations answer with lines as they go. One heal, one verification and one packing run at a time, each in a task of
//! its own: when its command goes away, or the server is to stop, it finishes what it has begun and begins nothing
//! more, and everything that it did stays good.

mod buckets;
mod explain;
mod keys;
mod metadata;
mod packing;

use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use striate_commands::admin::find::{SOCKET_NAME, STATE_FOLDER};
use striate_commands::admin::messages::{Line, Refusal, ReplaceDisk, Replaced};
use striate_commands::failure::Failure;
use striate_runtime::Runtime;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, MutexGuard, Notify, mpsc, watch};

use crate::start::cluster::Cluster;

/// The longest request body; an import of metadata is the largest.
const MAX_REQUEST_BYTES: usize = 8 << 20;
/// The longest path of a Unix socket that every system takes.
const MAX_SOCKET_PATH: usize = 100;
/// Lines that may wait for a slow command; when it is slower, progress is dropped, never the report.
const WAITING_LINES: usize = 64;
/// At most one line of progress in this time.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// An operation waits so long for one whose command was interrupted just now, before it says that one is running.
const INTERRUPTED_ENDS_WITHIN: Duration = Duration::from_secs(2);
/// How long a stop waits for operations that finish what they have begun.
const FINISH_WITHIN: Duration = Duration::from_secs(30);
/// The last line of an operation that a stop of the server has ended.
const STOPPING: &str =
    "the server is stopping; what was done until now stays good. Run the command again when it is back";

/// An answer's body.
pub(crate) type Body = BoxBody<Bytes, std::io::Error>;

/// The admin service of a running store. Cheap to clone.
#[derive(Clone)]
pub struct AdminService {
    shared: Arc<Shared>,
}

struct Shared {
    cluster: Cluster,
    endpoint: String,
    /// The name of this process in its cluster; empty where there is one only.
    process: String,
    healing: Mutex<()>,
    verifying: Mutex<()>,
    packing: Mutex<()>,
    /// Told when the server must stop.
    stop: Arc<Notify>,
    /// True from when the server stops.
    stopping: watch::Receiver<bool>,
}

impl AdminService {
    /// The service of a store whose S3 endpoint is `endpoint`, in the process of this name. It tells `stop` when the server must stop, and is
    /// told by `stopping` that it does.
    pub fn new(
        cluster: Cluster,
        endpoint: String,
        process: String,
        stop: Arc<Notify>,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let (healing, verifying, packing) = Default::default();
        let shared = Shared { cluster, endpoint, process, healing, verifying, packing, stop, stopping };
        Self { shared: Arc::new(shared) }
    }

    /// Waits, when the server is stopping, until no operation is in work.
    pub async fn finish(&self) {
        let Shared { healing, verifying, packing, .. } = self.shared.as_ref();
        let idle = async { (healing.lock().await, verifying.lock().await, packing.lock().await) };
        if self.runtime().timeout(FINISH_WITHIN, idle).await.is_err() {
            tracing::warn!("a long operation is cut off; run it again after the next start");
        }
    }

    /// Binds the socket in a directory's `.striate/` and serves it in the background. A path that is too long
    /// for a socket is left out: the run directory has one too.
    pub fn serve_directory(&self, directory: &Path) {
        let path = directory.join(STATE_FOLDER).join(SOCKET_NAME);
        if path.as_os_str().len() <= MAX_SOCKET_PATH {
            self.serve_socket(&path);
        }
    }

    /// Binds a socket (mode 0600) and serves it in the background; says so when that fails.
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
            match listener.accept().await {
                Ok((stream, _)) => drop(self.runtime().spawn(self.clone().converse(stream))),
                Err(error) => {
                    tracing::warn!(%error, "the admin socket does not accept");
                    self.runtime().sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    async fn converse(self, stream: UnixStream) {
        let service = service_fn(move |request| {
            let this = self.clone();
            async move { Ok::<_, std::convert::Infallible>(this.answer(request).await) }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new());
        // A command that goes away is no event for the server.
        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        // In a task of its own: a command that goes away must not leave a change of members half made.
        let answering = self.runtime().spawn({
            let (this, method, path) = (self.clone(), method.clone(), path.clone());
            async move { this.route(method, &path, request.into_body()).await }
        });
        let defect = |error| Err(Failure::failed(format!("the server met a defect, see its log: {error}")));
        answering.await.unwrap_or_else(defect).unwrap_or_else(|failure| {
            tracing::info!(%method, path, reason = %failure, "an admin request was refused");
            json(StatusCode::BAD_REQUEST, &Refusal { error: failure.to_string() })
        })
    }

    async fn route(&self, method: Method, path: &str, body: Incoming) -> Result<Response<Body>, Failure> {
        let steps: Vec<&str> = path.trim_matches('/').split('/').collect();
        match (method, steps.as_slice()) {
            (Method::GET, ["v1", "status"]) => {
                Ok(ok(&self.shared.cluster.status(&self.shared.endpoint).await))
            }
            (Method::POST, ["v1", "disks", "replace"]) => self.replace(read(body).await?).await,
            (Method::POST, ["v1", "explain"]) => self.explain(read(body).await?).await,
            (Method::GET, ["v1", "upgrade"]) => Ok(ok(&self.shared.cluster.formats().await?)),
            (Method::POST, ["v1", "upgrade", "finalize"]) => {
                self.shared.cluster.finalize_upgrade().await?;
                Ok(ok(&self.shared.cluster.formats().await?))
            }
            (Method::POST, ["v1", "heal"]) => Ok(self.clone().heal()),
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

    async fn replace(&self, wish: ReplaceDisk) -> Result<Response<Body>, Failure> {
        let replaced = self.shared.cluster.replace(&wish.path).await?;
        tracing::info!(path = %wish.path.display(), old = %replaced.old, new = %replaced.new, "disk replaced");
        for directory in self.shared.cluster.directories() {
            let is_there = directory.join(STATE_FOLDER).is_dir();
            if is_there
                && !striate_commands::admin::find::is_alive(&directory.join(STATE_FOLDER).join(SOCKET_NAME))
            {
                self.serve_directory(&directory);
            }
        }
        let mut notes = Vec::new();
        if let Some(aside) = &replaced.aside {
            notes.push(format!(
                "files of this store that were left in the directory, without the identity of a disk, were moved to {}; \
                 remove that folder once the store is whole again",
                aside.display()
            ));
        }
        notes
            .push("the lost chunks are rebuilt in the background; `striate heal` does it at once".to_owned());
        Ok(ok(&Replaced { old_site: replaced.old.0, new_site: replaced.new.0, notes }))
    }

    /// The right to run an operation of which there is one at a time; `None` when another one runs.
    async fn alone<'a>(&self, running: &'a Mutex<()>) -> Option<MutexGuard<'a, ()>> {
        self.runtime().timeout(INTERRUPTED_ENDS_WITHIN, running.lock()).await.ok()
    }

    fn heal(self) -> Response<Body> {
        self.long_operation(|this, mut pace| async move {
            let Some(_alone) = this.alone(&this.shared.healing).await else {
                return Line::Failed(
                    "a heal is running already; wait for it, or stop that command".to_owned(),
                );
            };
            let stripes = this.shared.cluster.client().stripes();
            let _hold = this.shared.cluster.upkeep().repair().hold();
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
        self.long_operation(move |this, pace| async move {
            let Some(_alone) = this.alone(&this.shared.verifying).await else {
                return Line::Failed("a verification is running already; wait for it".to_owned());
            };
            match this.verified(remove_orphans, pace).await {
                Ok(Some(report)) => Line::Report(report),
                Ok(None) => Line::Failed(STOPPING.to_owned()),
                Err(reason) => Line::Failed(reason),
            }
        })
    }

    /// The report of a verification; `None` when it was stopped.
    async fn verified(
        &self,
        remove_orphans: bool,
        mut pace: Pace,
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

    /// Answers with lines of progress and the last line that `work` ends with. The work goes on when the command
    /// goes away, until its pace tells it to stop.
    fn long_operation<F, W>(self, work: W) -> Response<Body>
    where
        W: FnOnce(Self, Pace) -> F,
        F: Future<Output = Line> + Send + 'static,
    {
        let (sender, receiver) = mpsc::channel(WAITING_LINES);
        let (runtime, stopping) = (self.runtime().clone(), self.shared.stopping.clone());
        let pace = Pace { next: runtime.now(), runtime: runtime.clone(), lines: sender.clone(), stopping };
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

/// Thins out progress so that a fast operation does not drown its command, and tells the operation when to stop.
struct Pace {
    runtime: Runtime,
    lines: mpsc::Sender<Line>,
    next: striate_runtime::Instant,
    stopping: watch::Receiver<bool>,
}

impl Pace {
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
    // `BoxBody` must be `Sync`, which a stream of futures need not be: a channel is.
    Response::new(BodyExt::boxed(StreamBody::new(SyncStream::new(lines.map(frame).boxed()))))
}

/// A stream that may be shared because nobody can reach it through a shared reference.
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

/// A body of lines that were made elsewhere.
pub(crate) fn text_lines(
    lines: futures::stream::BoxStream<'static, std::io::Result<Bytes>>,
) -> Response<Body> {
    Response::new(BodyExt::boxed(StreamBody::new(SyncStream::new(
        lines.map(|line| line.map(Frame::data)).boxed(),
    ))))
}

/// An answer with status 200.
pub(crate) fn ok(message: &impl Serialize) -> Response<Body> {
    json(StatusCode::OK, message)
}

fn json(status: StatusCode, message: &impl Serialize) -> Response<Body> {
    let text = serde_json::to_vec(message).unwrap_or_default();
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

/// A request's message.
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
