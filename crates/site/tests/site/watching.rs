//! Watchers of a remote site. Which reports they receive and how often is tested beside [`striate_site::pushes`].

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use striate_core::{ChunkRange, LoadReport};
use striate_runtime::Runtime;
use striate_site::protocol::HELLO_PATH;
use striate_site::protocol::hello::HelloReply;
use striate_site::protocol::limits::ServiceLimits;
use striate_site::transport_conformance::{GatedStore, chunk};
use striate_site::{
    LoadStream, LocalSite, Priority, QueueLimits, ReadRequest, ReadStream, RuntimeExecutor, Site, SiteError,
};
use striate_trust::Role;
use tokio::net::TcpListener;

use super::fixture::{Open, identity, local, remote, serve, serve_on};

/// Creates a site whose only worker is stuck in a read, so that other reads wait until they are dropped.
async fn stuck(runtime: &Runtime) -> (LocalSite, ReadStream) {
    let store = Arc::new(GatedStore::default());
    store.hold(chunk(1));
    let limits = QueueLimits { workers: 1, ..QueueLimits::default() };
    let site = local(runtime, 1, Arc::clone(&store) as _, limits);
    let read = read(&site);
    store.wait_begun(chunk(1)).await;
    (site, read)
}

fn read(site: &LocalSite) -> ReadStream {
    let ranges = vec![ChunkRange { chunk: chunk(1), offset: 0, len: 10 }];
    site.read(ReadRequest { ranges, priority: Priority::Foreground, deadline: None })
}

async fn next(reports: &mut LoadStream) -> LoadReport {
    reports.next().await.expect("the site pushes").expect("without an error")
}

async fn wait_for(reports: &mut LoadStream, requests: u32) {
    while next(reports).await.queue_requests != requests {}
}

#[tokio::test]
async fn a_watcher_that_stalls_finds_the_newest_state_and_no_backlog() {
    let runtime = Runtime::real();
    let (site, _stuck) = stuck(&runtime).await;
    let served = serve(&runtime, site.clone(), ServiceLimits::default()).await;
    let mut stalled = remote(&runtime, 1, &served.address).watch();
    let mut other = remote(&runtime, 1, &served.address).watch();
    assert_eq!(next(&mut stalled).await.queue_requests, 1);
    assert_eq!(next(&mut other).await.queue_requests, 1);
    for _ in 0..30 {
        let _others = read(&site);
        wait_for(&mut other, 2).await;
        drop(_others);
        wait_for(&mut other, 1).await;
    }
    let _last = [read(&site), read(&site)];
    wait_for(&mut other, 3).await;
    let mut late = 1;
    while next(&mut stalled).await.queue_requests != 3 {
        late += 1;
    }
    assert!(late < 20, "{late} of 61 reports came late");
}

#[tokio::test]
async fn a_stopping_site_does_not_wait_for_its_watchers_and_the_next_one_takes_them() {
    let runtime = Runtime::real();
    let (site, stuck) = stuck(&runtime).await;
    let mut served = serve(&runtime, site, ServiceLimits::default()).await;
    let watching = remote(&runtime, 1, &served.address);
    let mut reports = watching.watch();
    assert_eq!(next(&mut reports).await.queue_requests, 1);
    drop((served.stop.take(), stuck));
    (&mut served.task).await.unwrap();
    assert!(reports.next().await.is_none_or(|report| report.is_err()), "its queue is not known any more");
    assert!(watching.watch().next().await.unwrap().is_err(), "nobody is there");

    // Its successor numbers its reports from 1.
    let listener = TcpListener::bind(&served.address).await.unwrap();
    let successor = local(&runtime, 1, Arc::new(GatedStore::default()), QueueLimits::default());
    let gate = Open(Role::Gateway);
    let _served = serve_on(&runtime, listener, gate, successor, ServiceLimits::default());
    let report = next(&mut watching.watch()).await;
    assert_eq!((report.queue_requests, watching.last_load()), (0, report));
}

/// Serves like a site of 0.1.0, which does not know the newer calls.
async fn serve_old(runtime: &Runtime) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let executor = RuntimeExecutor(runtime.clone());
    let answer = |request: Request<Incoming>| async move {
        let welcome = HelloReply { identity: identity(1), load: LoadReport::default() };
        let response = Response::builder();
        Ok::<_, Infallible>(match request.uri().path() {
            HELLO_PATH => response.body(Full::new(welcome.encode())).unwrap(),
            _ => {
                let response =
                    response.header("content-type", "application/grpc").header("grpc-status", "12");
                response.body(Full::new(Bytes::new())).unwrap()
            }
        })
    };
    runtime.spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let builder = auto::Builder::new(executor);
        let _ = builder.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
    });
    address
}

#[tokio::test]
async fn a_site_that_does_not_know_the_call_refuses_it() {
    let runtime = Runtime::real();
    let address = serve_old(&runtime).await;
    let reports: Vec<_> = remote(&runtime, 1, &address).watch().collect().await;
    assert!(matches!(&reports[..], [Err(SiteError::Unavailable(_))]), "{reports:?}");
}
