//! The listening end: a control process admits sites, receives reports of gateways, and lets operators list, drain and
//! retire sites.
//!
//! The handshake refuses every peer that is not a site, a gateway or an operator; each request then checks the peer's
//! role. Handshakes, connections, requests and their sizes are bounded, and idle connections end. Peers that have not
//! authenticated have places of their own, and make room for each other (`striate_listen::admission`): they never keep
//! a site, a gateway or an operator out.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use striate_control::{
    AccessReport, GatheredAccess, Members, MembersError, MemoryAnnouncement, SiteAnnouncement,
};
use striate_core::{ClusterId, Formats, RackId, SiteId};
use striate_listen::admission::AdmissionLimits;
use striate_listen::{Admission, Guest, StallGuard, next_connection};
use striate_meta::{MetaStore, records};
use striate_runtime::{Instant, Runtime};
use striate_site::{RuntimeExecutor, Site as _};
use striate_trust::{PeerName, Role, TlsStream, Trust};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tonic::{Response, Status};
use tower_service::Service as _;

use super::MAX_MESSAGE_LEN;
use super::messages::cluster_control_server::{ClusterControl, ClusterControlServer};
use super::messages::show_access_reply::{Gateway, HotBlock};
use super::messages::{
    ListSitesReply, ListSitesRequest, RegisterMemoryReply, RegisterMemoryRequest, RegisterReply,
    RegisterRequest, ReportAccessReply, ReportAccessRequest, RetireSiteReply, RetireSiteRequest,
    SetDrainingReply, SetDrainingRequest, ShowAccessReply, ShowAccessRequest, Site,
};
use crate::remote_sites::SiteAddress;

/// Roles that may connect to a control process.
const CALLERS: &[Role] = &[Role::Site, Role::Gateway, Role::Admin];
/// Timeout for the peer to take bytes of a reply.
const STALL: Duration = Duration::from_secs(10);
/// Timeout for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Lifetime of a connection, whatever it does: requests are short, and clients open new ones.
const CONNECTION_LIFE: Duration = Duration::from_secs(60);
/// Maximum number of concurrent requests on one connection.
const MAX_STREAMS: u32 = 8;
/// Maximum size of a list of header fields in bytes.
const MAX_HEADER_LIST_LEN: u32 = 16 << 10;
/// Maximum number of hottest blocks shown.
const MOST_HOTTEST: usize = 1_000;
/// Timeout for a site to answer a check that it is up.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Maximum length of a rack label or address in bytes.
const MAX_TEXT_LEN: usize = 256;

/// The service of one control process. Cheap to clone.
#[derive(Clone)]
pub struct ControlService {
    runtime: Runtime,
    meta: Arc<dyn MetaStore>,
    trust: Trust,
    access: GatheredAccess,
    limits: ControlLimits,
}

/// What the peers of a control process may occupy.
#[derive(Clone, Debug)]
pub struct ControlLimits {
    /// Number of connections of sites, gateways and operators.
    pub connections: usize,
    /// Peers that have not authenticated.
    pub handshakes: AdmissionLimits,
}

/// Returns the name of a site's state.
pub fn state_name(state: records::site::State) -> &'static str {
    match state {
        records::site::State::Active => "active",
        records::site::State::Draining => "draining",
        records::site::State::Retired => "retired",
    }
}

fn refusal(error: MembersError) -> Status {
    match error {
        MembersError::Meta(error) => Status::unavailable(error.to_string()),
        MembersError::Conflict | MembersError::NoCluster => Status::unavailable(error.to_string()),
        error => Status::failed_precondition(error.to_string()),
    }
}

/// Returns the peer of a request if its role may make the request.
fn peer<T>(request: &tonic::Request<T>, role: Role) -> Result<PeerName, Status> {
    let peer = request.extensions().get::<PeerName>().cloned();
    let peer = peer.ok_or_else(|| Status::internal("the connection has no peer"))?;
    match peer.role == role {
        true => Ok(peer),
        false => {
            Err(Status::permission_denied(format!("only the role {role} may ask this, not {}", peer.role)))
        }
    }
}

fn malformed(what: &str) -> Status {
    Status::invalid_argument(format!("the site's {what} is malformed"))
}

/// Returns a text of a site if it is neither empty nor too long.
fn label(text: String, what: &str) -> Result<String, Status> {
    if (1..=MAX_TEXT_LEN).contains(&text.len()) { Ok(text) } else { Err(malformed(what)) }
}

fn announcement(peer: PeerName, request: RegisterRequest) -> Result<SiteAnnouncement, Status> {
    Ok(SiteAnnouncement {
        peer: peer.name,
        disk: request.disk.try_into().map_err(|_| malformed("disk"))?,
        site: (request.site != 0).then_some(SiteId(request.site)),
        address: label(request.address, "address")?,
        rack: label(request.rack, "rack")?,
        capacity_bytes: request.capacity_bytes,
    })
}

fn message(site: records::Site) -> Site {
    Site {
        site: site.id,
        state: state_name(site.state()).to_owned(),
        address: site.address,
        rack: site.rack,
        peer: site.peer,
        capacity_bytes: site.capacity_bytes,
    }
}

/// Returns the most requested blocks, each with the block that is most often requested together with it.
fn hottest(access: &GatheredAccess, now: Instant, most: usize) -> Vec<HotBlock> {
    let together = access.together(now);
    let hot = access.hottest(now, most).into_iter().map(|hot| {
        let partner = together.partners(hot.block, 1).pop();
        HotBlock {
            stripe: hot.block.to_string(),
            popularity: hot.popularity,
            object: hot.object.as_deref().unwrap_or_default().to_owned(),
            partner: partner.map(|partner| partner.block.to_string()).unwrap_or_default(),
            likelihood: partner.map_or(0.0, |partner| partner.likelihood),
        }
    });
    hot.collect()
}

impl ControlService {
    /// Creates the service over the metadata of the cluster that `trust` belongs to; reports of gateways go into
    /// `access`.
    pub fn new(
        runtime: Runtime,
        meta: Arc<dyn MetaStore>,
        trust: Trust,
        access: GatheredAccess,
        limits: ControlLimits,
    ) -> Self {
        Self { runtime, meta, trust, access, limits }
    }

    fn id(&self) -> ClusterId {
        self.trust.own_name().cluster
    }

    fn members(&self) -> Members<'_> {
        Members::new(&self.runtime, self.meta.as_ref())
    }

    async fn sites(&self) -> Result<Vec<records::Site>, Status> {
        self.members().sites().await.map_err(|error| refusal(error.into()))
    }

    /// Returns true if a site answers.
    async fn is_here(&self, site: &records::Site) -> bool {
        let client = SiteAddress::from(site).connect(&self.runtime, &self.trust);
        matches!(self.runtime.timeout(ANSWER_WITHIN, client.status()).await, Ok(Ok(_)))
    }

    /// Serves until `shutdown` completes. Requests in flight are then cut off; their clients ask another process.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()> + Send) {
        let handshakes = Admission::new(self.limits.handshakes.clone());
        let places = Arc::new(Semaphore::new(self.limits.connections));
        let mut shutdown = pin!(shutdown);
        loop {
            let next = pin!(next_connection(&self.runtime, "control", || listener.accept()));
            let (stream, address) = match select(next, shutdown.as_mut()).await {
                Either::Left((accepted, _)) => accepted,
                Either::Right(_) => return,
            };
            // Each of them waits for its peer, so there is always one that makes room.
            let Ok(handshake) = handshakes.admit(Some(address.ip())) else { continue };
            let (service, places) = (self.clone(), Arc::clone(&places));
            self.runtime.spawn(async move {
                let Some((stream, peer)) = service.authenticate(stream, handshake).await else { return };
                match places.try_acquire() {
                    Ok(_place) => {
                        // It ends with its life, whatever it does.
                        let _ =
                            service.runtime.timeout(CONNECTION_LIFE, service.converse(stream, peer)).await;
                    }
                    Err(_) => tracing::warn!(%peer, "too many connections to control: one was closed"),
                }
            });
        }
    }

    /// Returns the connection and its peer, unless the peer is not admitted, does not authenticate in time, or has to
    /// make room for others.
    async fn authenticate(
        &self,
        stream: TcpStream,
        handshake: Guest,
    ) -> Option<(TlsStream<TcpStream>, PeerName)> {
        let admission = self.runtime.timeout(HANDSHAKE, self.trust.accept(stream, CALLERS));
        match select(pin!(admission), pin!(handshake.evicted())).await {
            Either::Left((Ok(Ok(admitted)), _)) => Some(admitted),
            Either::Left((Ok(Err(error)), _)) => {
                tracing::warn!(%error, "a peer was not admitted");
                None
            }
            Either::Left((Err(_), _)) | Either::Right(_) => None,
        }
    }

    async fn converse(&self, stream: TlsStream<TcpStream>, peer: PeerName) {
        let server = ClusterControlServer::new(self.clone())
            .max_decoding_message_size(MAX_MESSAGE_LEN)
            .max_encoding_message_size(MAX_MESSAGE_LEN);
        let service = service_fn(move |mut request: Request<Incoming>| {
            let (mut server, peer) = (server.clone(), peer.clone());
            request.extensions_mut().insert(peer);
            async move { Ok::<_, Infallible>(server.call(request).await.unwrap_or_else(|never| match never {})) }
        });
        let mut builder = hyper::server::conn::http2::Builder::new(RuntimeExecutor(self.runtime.clone()));
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEADER_LIST_LEN);
        // A peer may disconnect at any time.
        let stream = StallGuard::new(stream, self.runtime.clone(), STALL);
        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
    }
}

#[tonic::async_trait]
impl ClusterControl for ControlService {
    async fn register(
        &self,
        request: tonic::Request<RegisterRequest>,
    ) -> Result<Response<RegisterReply>, Status> {
        let peer = peer(&request, Role::Site)?;
        let request = request.into_inner();
        let cluster = self.members().cluster(self.id()).await.map_err(refusal)?;
        let reads = Formats::from_numbers(request.record_format, request.chunk_format);
        if !reads.covers(cluster.formats()) {
            return Err(Status::failed_precondition(format!(
                "the program of this site reads up to {reads}, the store has {} in force: start striate {} or newer",
                cluster.formats(),
                cluster.needs_release
            )));
        }
        let site = announcement(peer, request)?;
        let number = self.members().register(&site).await.map_err(refusal)?;
        if site.site.is_none() {
            tracing::info!(site = %number, address = site.address, rack = site.rack, peer = site.peer, "a site has joined");
        }
        let sites = self.sites().await?;
        let belongs = |site: &records::Site| site.state() != records::site::State::Retired;
        let sites = sites.into_iter().filter(belongs).map(message).collect();
        Ok(Response::new(RegisterReply {
            site: number.0,
            sites,
            record_format: cluster.formats().records,
            chunk_format: cluster.formats().chunks,
            needs_release: cluster.needs_release,
        }))
    }

    async fn register_memory(
        &self,
        request: tonic::Request<RegisterMemoryRequest>,
    ) -> Result<Response<RegisterMemoryReply>, Status> {
        let peer = peer(&request, Role::Site)?;
        let RegisterMemoryRequest { address, rack, bytes, site } = request.into_inner();
        let (address, rack) = (label(address, "address")?, label(rack, "rack")?);
        let site = (site != 0).then_some(SiteId(site));
        let site = MemoryAnnouncement { peer: peer.name, address, rack, bytes, site };
        let number = self.members().register_memory(&site).await.map_err(refusal)?;
        Ok(Response::new(RegisterMemoryReply { site: number.0 }))
    }

    async fn list_sites(
        &self,
        request: tonic::Request<ListSitesRequest>,
    ) -> Result<Response<ListSitesReply>, Status> {
        peer(&request, Role::Admin)?;
        let cluster = self.members().cluster(self.id()).await.map_err(refusal)?;
        let sites = self.sites().await?.into_iter().map(message).collect();
        Ok(Response::new(ListSitesReply { sites, profile: cluster.profile }))
    }

    async fn set_draining(
        &self,
        request: tonic::Request<SetDrainingRequest>,
    ) -> Result<Response<SetDrainingReply>, Status> {
        let admin = peer(&request, Role::Admin)?;
        let SetDrainingRequest { site, draining } = request.into_inner();
        self.members().set_draining(SiteId(site), draining).await.map_err(refusal)?;
        tracing::info!(site, draining, admin = admin.name, "an operator has changed a site's state");
        let mut warnings = self.members().drain_warnings().await.unwrap_or_default();
        let own = self.sites().await.unwrap_or_default().into_iter().find(|record| record.id == site);
        let warning = own.and_then(|record| warnings.remove(&RackId(record.rack))).unwrap_or_default();
        Ok(Response::new(SetDrainingReply { warning }))
    }

    async fn retire_site(
        &self,
        request: tonic::Request<RetireSiteRequest>,
    ) -> Result<Response<RetireSiteReply>, Status> {
        let admin = peer(&request, Role::Admin)?;
        let site = SiteId(request.into_inner().site);
        let site_record = self.sites().await?.into_iter().find(|record| record.id == site.0);
        let answers = match &site_record {
            Some(record) => self.is_here(record).await,
            None => false,
        };
        self.members().retire(site, answers).await.map_err(refusal)?;
        tracing::info!(%site, admin = admin.name, "an operator has retired a site");
        Ok(Response::new(RetireSiteReply {}))
    }

    async fn report_access(
        &self,
        request: tonic::Request<ReportAccessRequest>,
    ) -> Result<Response<ReportAccessReply>, Status> {
        let gateway = peer(&request, Role::Gateway)?;
        let report = AccessReport::try_from(request.into_inner()).map_err(Status::invalid_argument)?;
        let reported = self.access.report(&gateway.name, report, self.runtime.now());
        reported.map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(Response::new(ReportAccessReply {}))
    }

    async fn show_access(
        &self,
        request: tonic::Request<ShowAccessRequest>,
    ) -> Result<Response<ShowAccessReply>, Status> {
        peer(&request, Role::Admin)?;
        let most = (request.into_inner().hottest as usize).min(MOST_HOTTEST);
        let (access, now) = (self.access.clone(), self.runtime.now());
        let gateways = access.view(now).into_iter().map(|view| Gateway {
            name: view.gateway,
            requests: view.requests as u64,
            age_ms: view.age.as_millis() as u64,
        });
        let look = move || (access.together(now).totals(), hottest(&access, now, most));
        let (totals, hottest) = self.runtime.run_blocking(look).await;
        Ok(Response::new(ShowAccessReply {
            gateways: gateways.collect(),
            requests: totals.requests as u64,
            accesses: totals.accesses as u64,
            blocks: totals.blocks as u64,
            hottest,
        }))
    }
}
