//! Serves a site over the network: the listening end of the [`protocol`](crate::protocol).
//!
//! Each connection has one task. The peer must authenticate within [`ServiceLimits::handshake`] ([`Gate`]); while too
//! many try, those that have waited for longest make room for others (`striate_listen::admission`). The
//! connection is closed when it is idle for [`ServiceLimits::idle`], or when the peer stops taking or sending bytes for
//! [`ServiceLimits::stall`]. A peer may send only what [`crate::protocol::limits`] allows.
//!
//! When the peer cancels a read or closes its connection, the body of the reply is dropped, and with it whatever still
//! waits in the site's queue.

mod control;
mod reads;
mod replies;
mod requests;

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;

use futures::future::{BoxFuture, Either, select};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use striate_listen::admission::AdmissionLimits;
use striate_listen::{Admission, Guest, StallGuard, next_connection};
use striate_runtime::Runtime;
use striate_trust::PeerName;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::local::LocalSite;
use crate::protocol::limits::{MAX_CONTROL_STREAMS, MAX_HEADER_LIST_LEN, MAX_HEADERS, ServiceLimits};
use crate::secure::Gate;
use crate::transport::{Accepted, ByteStream, Listener, RuntimeExecutor};
use requests::{Peer, Service};

/// Serves `site` to peers that `gate` admits until `shutdown` completes, and then lets running requests finish for at
/// most [`ServiceLimits::drain`].
pub async fn serve_site(
    runtime: Runtime,
    listener: impl Listener,
    gate: Arc<dyn Gate>,
    site: Arc<LocalSite>,
    limits: ServiceLimits,
    shutdown: impl Future<Output = ()> + Send,
) {
    let (stop, stopping) = watch::channel(false);
    let service = Arc::new(Service::new(runtime.clone(), site, limits.clone(), stopping.clone()));
    let (alive, mut all_ended) = mpsc::channel::<()>(1);
    let places = Arc::new(Semaphore::new(limits.connections));
    let door = Door { service: Arc::clone(&service), gate, places, stopping, alive };
    let handshakes = Admission::new(AdmissionLimits {
        connections: limits.handshakes,
        per_address: limits.handshakes_per_address,
        trusted: limits.trusted_proxies.clone(),
    });
    let mut shutdown = pin!(shutdown);
    loop {
        let next = pin!(next_connection(&runtime, "site", || listener.accept()));
        let Accepted { stream, address } = match select(next, shutdown.as_mut()).await {
            Either::Left((accepted, _)) => accepted,
            Either::Right(_) => break,
        };
        // Each of them waits for its peer, so there is always one that makes room.
        if let Ok(handshake) = handshakes.admit(address) {
            runtime.spawn(door.clone().serve(stream, handshake));
        }
    }
    drop((listener, door));
    let _ = stop.send(true);
    if runtime.timeout(limits.drain, all_ended.recv()).await.is_err() {
        tracing::warn!("requests that were still under way when the site stopped have been cut off");
        service.cut_off();
    }
}

/// What every accepted connection needs.
#[derive(Clone)]
struct Door {
    service: Arc<Service>,
    gate: Arc<dyn Gate>,
    /// Places of admitted peers.
    places: Arc<Semaphore>,
    stopping: watch::Receiver<bool>,
    /// Each connection holds a sender; when the last one is gone, all connections have ended.
    alive: mpsc::Sender<()>,
}

impl Door {
    /// Serves a connection if the gate admits its peer. Gives the place of the handshake back once that is decided.
    async fn serve(self, stream: Box<dyn ByteStream>, handshake: Guest) {
        let Self { service, gate, places, stopping, alive } = self;
        let admission = service.runtime().timeout(service.limits().handshake, gate.admit(stream));
        let admitted = match select(pin!(admission), pin!(handshake.evicted())).await {
            Either::Left((admitted, _)) => admitted,
            Either::Right(_) => return,
        };
        drop(handshake);
        match admitted.unwrap_or_else(|late| Err(io::Error::other(late))) {
            Ok((stream, peer)) => match places.try_acquire_owned() {
                Ok(_place) => serve_connection(service, stream, peer, stopping).await,
                Err(_) => tracing::warn!(%peer, "too many connections to the site: one was closed"),
            },
            Err(error) => service.note_stranger(&error),
        }
        drop(alive);
    }
}

fn serve_connection(
    service: Arc<Service>,
    stream: Box<dyn ByteStream>,
    peer: PeerName,
    mut stopping: watch::Receiver<bool>,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let (runtime, limits) = (service.runtime().clone(), service.limits().clone());
        let peer = Arc::new(Peer::new(peer));
        let handler = {
            let (service, peer) = (Arc::clone(&service), Arc::clone(&peer));
            hyper::service::service_fn(move |request| {
                requests::handle(Arc::clone(&service), Arc::clone(&peer), request)
            })
        };
        let builder = connection_builder(&runtime, &limits);
        let io = TokioIo::new(StallGuard::new(stream, runtime.clone(), limits.stall));
        let mut connection = pin!(builder.serve_connection(io, handler));
        let mut ended = pin!(async {
            let stranger = async {
                runtime.sleep(limits.handshake).await;
                if peer.has_greeted() {
                    std::future::pending::<()>().await;
                }
            };
            select(pin!(stranger), pin!(service.wait_cut_off())).await;
        });
        let stop = pin!(async {
            // An error means that the sender is gone, which also means stop.
            let _ = stopping.wait_for(|stop| *stop).await;
        });
        match select(select(connection.as_mut(), ended.as_mut()), stop).await {
            Either::Left(_) => {}
            Either::Right(_) => {
                connection.as_mut().graceful_shutdown();
                select(connection, ended).await;
            }
        }
    })
}

fn connection_builder(runtime: &Runtime, limits: &ServiceLimits) -> auto::Builder<RuntimeExecutor> {
    let mut builder = auto::Builder::new(RuntimeExecutor(runtime.clone()));
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle)
        .max_headers(MAX_HEADERS)
        .auto_date_header(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_CONTROL_STREAMS)
        .max_header_list_size(MAX_HEADER_LIST_LEN)
        .keep_alive_interval(limits.idle)
        .keep_alive_timeout(limits.stall)
        .auto_date_header(false);
    builder
}
