//! `striate server --otlp-endpoint`: the spans of a read arrive at a collector, each below the span that contains it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use prost::Message;
use striate_runtime::Runtime;
use tokio::net::TcpListener;

const SECRET: &str = "a-secret-for-this-test";

/// A minimal collector, which keeps everything that it receives.
#[derive(Default)]
struct Collector {
    spans: Mutex<Vec<Span>>,
}

impl Collector {
    /// Serves on a free port; also returns its URL.
    async fn start(runtime: &Runtime) -> (Arc<Self>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (collector, clock) = (Arc::new(Self::default()), runtime.clone());
        let served = Arc::clone(&collector);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let collector = Arc::clone(&served);
                let service = service_fn(move |request| {
                    let collector = Arc::clone(&collector);
                    async move { Ok::<_, Infallible>(collector.take(request).await) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                clock.spawn(async move { drop(connection.await) });
            }
        });
        (collector, url)
    }

    async fn take(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        assert_eq!((request.method(), request.uri().path()), (&Method::POST, "/v1/traces"));
        assert_eq!(request.headers()["content-type"], "application/x-protobuf");
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let sent = ExportTraceServiceRequest::decode(body).unwrap();
        for resource in sent.resource_spans {
            let attributes = &resource.resource.as_ref().unwrap().attributes;
            assert!(attributes.iter().any(|attribute| attribute.key == "service.name"));
            self.spans.lock().extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
        Response::new(Full::default())
    }
}

/// Returns a command of the program with its environment.
fn striate(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_striate"));
    command
        .args(arguments)
        .env("STRIATE_RUN_DIR", root.join("run"))
        .env("STRIATE_ACCESS_KEY", "tester")
        .env("STRIATE_SECRET_KEY", SECRET)
        .stdin(Stdio::null());
    command
}

/// Runs a command of the program until it ends.
async fn run(runtime: &Runtime, mut command: Command) -> Vec<u8> {
    let output = runtime.run_blocking(move || command.output()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Waits until the server has written its run record.
async fn is_up(runtime: &Runtime, server: &mut Child, root: &Path) {
    let is_record = |entry: std::fs::DirEntry| entry.path().extension().is_some_and(|it| it == "json");
    let record = || std::fs::read_dir(root.join("run")).into_iter().flatten().flatten().any(is_record);
    while !record() {
        assert!(server.try_wait().unwrap().is_none(), "the server stopped");
        runtime.sleep(Duration::from_millis(20)).await;
    }
}

fn attribute<'a>(span: &'a Span, name: &str) -> Option<&'a Value> {
    let found = span.attributes.iter().find(|attribute| attribute.key == name);
    found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref())
}

fn number(span: &Span, name: &str) -> Option<i64> {
    match attribute(span, name)? {
        Value::IntValue(number) => Some(*number),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_spans_of_a_read_arrive_below_those_that_they_are_parts_of() {
    let (runtime, root) = (Runtime::real(), tempfile::tempdir().unwrap());
    let root = root.path();
    let (collector, url) = Collector::start(&runtime).await;
    std::fs::create_dir(root.join("run")).unwrap();
    let disks = root.join("disk{1...6}").display().to_string();
    let arguments =
        ["server", &disks, "--address", "127.0.0.1:0", "--console-address", "127.0.0.1:0", "--otlp-endpoint"];
    let mut server = striate(root, &arguments).arg(&url).spawn().unwrap();
    is_up(&runtime, &mut server, root).await;

    let file = root.join("file");
    let body: Vec<u8> = (0..9_u32 << 20).map(|at| (at / 1_000) as u8).collect();
    std::fs::write(&file, &body).unwrap();
    run(&runtime, striate(root, &["bucket", "create", "photos"])).await;
    run(&runtime, striate(root, &["cp", "--quiet", file.to_str().unwrap(), "s3://photos/key"])).await;
    let read = run(&runtime, striate(root, &["cat", "s3://photos/key"])).await;
    assert!(read == body, "{} bytes are not those that were written", read.len());
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(runtime.run_blocking(move || server.wait()).await.unwrap().success());

    // The stop has sent the remaining spans, so all of them are here now.
    let spans = collector.spans.lock().clone();
    let by_id: BTreeMap<&[u8], &Span> = spans.iter().map(|span| (&span.span_id[..], span)).collect();
    let parent = |span: &Span| by_id.get(&span.parent_span_id[..]).copied();
    let named = |name: &'static str| spans.iter().filter(move |span| span.name == name);
    let blocks: i64 = named("read_blocks").filter_map(|span| number(span, "blocks")).sum::<i64>()
        + named("read_block").count() as i64;
    assert!(blocks >= 3, "{blocks} blocks of 4 MiB in 9 MiB");
    for (name, above) in [
        ("retrieve", "read_block"),
        ("metadata", "read_block"),
        ("plan", "read_block"),
        ("read_blocks", "get"),
        ("object", "get"),
    ] {
        assert!(named(name).count() > 0, "no span {name}");
        for span in named(name) {
            let parent = parent(span).unwrap_or_else(|| panic!("{name} has no parent"));
            // `read_block` or `read_blocks`.
            assert!(parent.name.starts_with(above), "{name} below {}", parent.name);
            assert_eq!(parent.trace_id, span.trace_id);
            assert!(parent.start_time_unix_nano <= span.start_time_unix_nano);
            assert!(parent.end_time_unix_nano >= span.end_time_unix_nano, "{name} outlives {above}");
        }
    }
    for get in named("get") {
        assert_eq!(attribute(get, "key"), Some(&Value::StringValue("key".to_owned())));
        let request = parent(get).expect("a request");
        assert!(request.parent_span_id.is_empty() && request.name == "request");
        assert_eq!(attribute(request, "operation"), Some(&Value::StringValue("GetObject".to_owned())));
        assert!(matches!(attribute(request, "status"), Some(Value::IntValue(200 | 206))));
    }
}
