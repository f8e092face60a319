//! `striate server`: everything wired together, until a signal.

use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use striate_codec::Code;
use striate_commands::admin::find::{RunRecord, STATE_FOLDER, run_directory};
use striate_commands::args::{HostPort, ListenArgs, PeerArgs, ServerArgs};
use striate_commands::credentials::{self, SecretOutput};
use striate_commands::failure::{Failure, Outcome};
use striate_control::REQUESTS_TOGETHER;
use striate_core::Profile;
use striate_listen::admission::AdmissionLimits;
use striate_listen::descriptors::{DescriptorNeeds, DescriptorPlan, divide};
use striate_plan::{CoAccessLimits, fewest_sites, is_durable};
use striate_runtime::Runtime;
use striate_s3::{Certificates, Gateway, GatewayOptions, Hooks, Limits, Readiness};
use striate_stripe::{StripeOptions, Stripes};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};
use zeroize::Zeroizing;

use crate::admin::AdminService;
use crate::audit_log::AuditLog;
use crate::console::{Access, Console};
use crate::ellipsis::expand_all;
use crate::first_key;
use crate::metrics::Metrics;
use crate::start::cluster::{Caching, Cluster, OpenedCluster, Settings};
use crate::start::plan::{MissingMember, OpenPlan, StartPlan};
use crate::start::prepare::PreparedStart;

/// Connections that a server opens, to other stores.
const OWN_CONNECTIONS: usize = 16;

/// The ports of a front end and the files that its options name, opened before anything is written, so that a busy port or
/// a missing file changes nothing.
pub struct Listeners {
    s3: TcpListener,
    console: TcpListener,
    certificates: Option<Certificates>,
    audit: Option<Arc<AuditLog>>,
    /// Token that lets other machines read the metrics.
    metrics_token: Option<Zeroizing<String>>,
    /// What is left of the process's descriptors for connections.
    descriptors: DescriptorPlan,
    /// URL of the S3 endpoint for programs on this machine.
    pub endpoint: String,
}

#[async_trait]
impl Readiness for Cluster {
    async fn is_ready(&self) -> bool {
        self.health().await.refusal.is_none()
    }

    async fn is_cluster_healthy(&self) -> bool {
        self.health().await.is_whole
    }
}

/// Runs a server until SIGTERM or SIGINT.
///
/// # Errors
/// If it cannot start. The message names the cause and the remedy.
pub async fn run(runtime: Runtime, args: ServerArgs) -> Outcome {
    let directories = expand_all(&args.directories).map_err(Failure::refused)?;
    let given_key = credentials::given(args.listen.dev).map_err(Failure::refused)?;
    let start = PreparedStart::new(&runtime, &directories).await?;
    let listeners = Listeners::open(&runtime, &args.listen, directories.len(), OWN_CONNECTIONS).await?;
    let needs_key = start.is_first() && given_key.is_none();
    let place = needs_key.then(first_key::find_place).transpose()?;
    announce(&start.plan, &args.listen);
    let mut stripes = args.listen.stripe_options();
    if args.optimise_placement {
        stripes.co_access = CoAccessLimits::of_requests(REQUESTS_TOGETHER);
    }
    let is_key_given = given_key.is_some();
    let settings = Settings {
        profile: args.profile,
        region: args.listen.region.clone(),
        given_key,
        stripes,
        upkeep: (&args.upkeep).into(),
        caching: Caching {
            memory: args.cache(),
            fills_writes: args.listen.cache_writes,
            split_kib: Some(args.listen.cache_split_kib),
            refill_mib: Some(args.listen.cache_refill_mib),
            origin_ca: args.listen.origin_ca.clone(),
        },
    };
    let opened = Cluster::open(runtime.clone(), start, settings).await?;
    opened.cluster.optimiser().set_paused(!args.optimise_placement);
    if args.finalize {
        opened.cluster.finalize_upgrade().await?;
    }
    let first = match is_key_given {
        true => None,
        false => first_key::provide(opened.cluster.keys(), place, "made at the first start").await?,
    };
    let first = introduce(&opened, &listeners.endpoint, first.as_ref(), args.listen.dev);
    let paths = ServerPaths { directories: opened.cluster.directories(), name: None };
    serve(runtime, opened.cluster, listeners, &args.listen, paths, first).await
}

/// The paths by which commands on this machine find a running server.
#[derive(Clone, Debug)]
pub struct ServerPaths {
    /// Directories of the server. Those that hold a store get an admin socket; the others only lead to it.
    pub directories: Vec<PathBuf>,
    /// Name that distinguishes the process from others of its cluster.
    pub name: Option<String>,
}

impl Listeners {
    /// Opens the ports, loads the certificates, opens the files that the options name, and divides the descriptors of a
    /// process with so many disks and connections of its own.
    ///
    /// # Errors
    /// If a port is in use, a file or another option cannot be used, or the process may open too few files.
    pub async fn open(runtime: &Runtime, args: &ListenArgs, disks: usize, own: usize) -> Outcome<Self> {
        let needs = DescriptorNeeds {
            disks,
            own,
            main: args.peers.max_connections as usize,
            console: args.peers.console_max_connections as usize,
        };
        let descriptors = divide(needs).map_err(Failure::refused)?;
        let certificates =
            args.certs.as_deref().map(Certificates::load).transpose().map_err(Failure::refused)?;
        gateway_options(args).check().map_err(Failure::refused)?;
        let metrics_token = metrics_token(args)?;
        let s3 = listen(&args.address, "--address").await?;
        let console = listen(&args.console_address, "--console-address").await?;
        let scheme = if certificates.is_some() { "https" } else { "http" };
        let port = s3.local_addr().map_err(Failure::failed)?.port();
        let host = match args.address.host.as_str() {
            "" | "0.0.0.0" | "::" => "127.0.0.1".to_owned(),
            host if host.contains(':') => format!("[{host}]"),
            host => host.to_owned(),
        };
        let endpoint = format!("{scheme}://{host}:{port}");
        // Last, because it makes the file.
        let audit = open_audit_log(runtime, args)?;
        Ok(Self { s3, console, certificates, audit, metrics_token, endpoint, descriptors })
    }

    /// Returns what clients may occupy.
    fn s3_limits(&self, args: &PeerArgs) -> Limits {
        let limits = Limits::from(args);
        let connections = limits.connections.min(self.descriptors.main);
        Limits { connections, ..limits }
    }

    /// Returns what peers of the console may occupy.
    fn console_limits(&self, args: &PeerArgs) -> AdmissionLimits {
        AdmissionLimits {
            connections: self.descriptors.console,
            per_address: args.max_connections_per_address as usize,
            trusted: args.trusted(),
        }
    }
}

/// Opens a port.
///
/// # Errors
/// If it is in use or not allowed. The message names the option that chooses another.
pub async fn listen(address: &HostPort, option: &str) -> Outcome<TcpListener> {
    // An empty host means all interfaces; if IPv6 is off, IPv4 alone.
    let hosts: &[&str] = if address.host.is_empty() { &["::", "0.0.0.0"] } else { &[&address.host] };
    let mut last = None;
    for host in hosts {
        match TcpListener::bind((*host, address.port)).await {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                last = Some(error);
                break;
            }
            Err(error) => last = Some(error),
        }
    }
    let error = last.expect("at least one host was tried");
    let way_out = match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "another program has the port (`ss -ltnp 'sport = :{}'` names it); choose another with {option} :{}",
            address.port,
            address.port.saturating_add(10)
        ),
        io::ErrorKind::PermissionDenied => {
            format!("ports below 1024 need privileges; choose one with {option}")
        }
        _ => format!("is {:?} an address of this machine? choose another with {option}", address.host),
    };
    Err(Failure::refused(format!("cannot listen on {address}: {error}; {way_out}")))
}

/// Warns of an S3 port that other machines reach without TLS.
fn warn_of_plain_http(args: &ListenArgs) {
    let host = args.address.host.as_str();
    let is_own = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    if args.certs.is_none() && !is_own {
        tracing::warn!(
            address = %args.address,
            "plain HTTP: whoever is on the way to this port reads and changes what is sent. Serve TLS (--certs), put a proxy \
             with TLS in front, or listen on 127.0.0.1"
        );
    }
}

/// Warns of `--dev`.
pub fn warn_of_dev(args: &ListenArgs) {
    if args.dev {
        tracing::warn!(
            "--dev: the access key {} with the secret {} is accepted; whoever reaches the port can read and delete \
             everything",
            credentials::DEV_ACCESS_KEY,
            credentials::DEV_SECRET
        );
    }
}

/// Logs what the start is about to do, if that is notable.
fn announce(plan: &StartPlan, args: &ListenArgs) {
    warn_of_dev(args);
    let StartPlan::Open(OpenPlan { missing, ignored, admit, .. }) = plan else { return };
    for MissingMember { member, found, excluded } in missing {
        let path = member.path.display();
        match excluded {
            Some(way_out) => tracing::error!(
                directory = %path,
                reason = found,
                "a disk cannot be used; starting without it. It is left as it is, and its chunks count as lost until it is \
                 back: {way_out}"
            ),
            None => tracing::warn!(
                directory = %path,
                found,
                "a disk is missing; starting without it. When an empty disk is there: striate disk replace {path}"
            ),
        }
    }
    for path in ignored {
        tracing::warn!(
            directory = %path.display(),
            "blank, and not admitted while a disk is missing; replace that one first, then restart to add this one"
        );
    }
    for path in admit {
        tracing::info!(directory = %path.display(), "blank: it joins the cluster");
    }
}

/// Warns of the limitations of these directories. Returns a message to print last, which says where the first access key
/// was shown.
fn introduce(
    opened: &OpenedCluster,
    endpoint: &str,
    first: Option<&SecretOutput>,
    dev: bool,
) -> Option<String> {
    let cluster = &opened.cluster;
    if cluster.profile().code.tolerance() == 0 {
        tracing::warn!(
            "NO REDUNDANCY: the profile is {}; losing the disk loses everything. Give several directories on \
             different disks",
            cluster.profile()
        );
    }
    if let Some(warning) = surplus_warning(cluster.profile(), cluster.client().stripes()) {
        tracing::warn!("{warning}");
    }
    for shared in cluster.shared_file_systems() {
        tracing::warn!(
            directories = shared.join(" "),
            "these directories are on one file system: its space is counted once, and losing that disk loses all of them"
        );
    }
    let Some(first) = first else {
        return opened.is_new.then(|| {
            let env = if dev {
                "export STRIATE_ACCESS_KEY=striate STRIATE_SECRET_KEY=striate-dev-secret\n"
            } else {
                ""
            };
            format!("{env}{}", credentials::next_steps(endpoint, None))
        });
    };
    Some(format!("{}\n{}", first_key::describe(first), credentials::next_steps(endpoint, Some(first))))
}

/// Describes the consequence of an unusual write surplus, if there is one.
fn surplus_warning(profile: Profile, stripes: &Stripes) -> Option<String> {
    let code = stripes.code(&profile).ok()?;
    describe_surplus(&code, stripes.options().write_surplus)
}

/// Describes the consequence of a write surplus for a code, if it differs from the default's.
fn describe_surplus(code: &Code, surplus: usize) -> Option<String> {
    let sites = |surplus| fewest_sites(code, surplus, is_durable);
    let (needed, usual) = (sites(surplus), sites(StripeOptions::default().write_surplus));
    if needed < usual {
        Some(format!(
            "--write-surplus {surplus}: with only {needed} sites left writes of {code} go on, and the next loss before \
             `striate heal` can lose what was written then"
        ))
    } else if needed == code.n() && usual < code.n() {
        Some(format!(
            "--write-surplus {surplus}: {code} bears so many further losses only with all of its {needed} chunks, so writes \
             fail as soon as one site is lost"
        ))
    } else {
        None
    }
}

/// Serves S3, console and admin socket until a signal, then drains.
///
/// # Errors
/// If a hook or the listener fails.
pub async fn serve(
    runtime: Runtime,
    cluster: Cluster,
    listeners: Listeners,
    args: &ListenArgs,
    paths: ServerPaths,
    first: Option<String>,
) -> Outcome {
    let metrics = Arc::new(Metrics::default());
    let audit = listeners.audit.clone();
    let limits = listeners.s3_limits(&args.peers);
    let gateway = open_gateway(&runtime, &cluster, args, limits, &metrics, audit.clone())?;
    let recorded = audit.clone();
    if let Some(audit) = &audit {
        cluster.set_audit_log(Arc::clone(audit));
    }
    let access = Access::new(runtime.clone(), listeners.metrics_token.clone());
    let limits = listeners.console_limits(&args.peers);
    let endpoint = listeners.endpoint.clone();
    let console = Console::new(cluster.clone(), metrics, access, audit.clone(), endpoint, limits);
    let scheme = if listeners.certificates.is_some() { "https" } else { "http" };
    let s3_url = listening_url(scheme, listeners.s3.local_addr().map_err(Failure::failed)?);
    let console_url = listening_url("http", listeners.console.local_addr().map_err(Failure::failed)?);
    let certificates = listeners.certificates.as_ref();
    certificates.and_then(Certificates::exposed_key).into_iter().for_each(|warning| cluster.warn(warning));
    let console_task = runtime.spawn(console.serve(listeners.console));
    cluster.start_background();

    let stop = Arc::new(Notify::new());
    let (draining, drain) = watch::channel(false);
    let (endpoint, process) = (listeners.endpoint.clone(), paths.name.clone().unwrap_or_default());
    let stopping = drain.clone();
    let service = AdminService::new(cluster.clone(), endpoint, process, audit, stop.clone(), drain.clone());
    let run = publish(&cluster, paths, &service, &listeners.endpoint);
    warn_of_plain_http(args);
    tell_start(&cluster, &s3_url, &console_url, first);

    runtime.spawn(watch_hangups(stop.clone(), listeners.certificates.clone()));
    runtime.spawn(watch_signals(stop, draining));
    let shutdown = Box::pin(wait_for_drain(drain));
    let serving = striate_s3::serve(gateway, listeners.s3, listeners.certificates, shutdown);
    // Operations of the admin socket are told to stop with the first signal, too.
    let finishing = async {
        wait_for_drain(stopping).await;
        service.finish().await;
    };
    let (served, ()) = futures::future::join(serving, finishing).await;
    console_task.abort();
    if let Some((record, directory)) = run {
        record.withdraw(&directory);
    }
    cluster.close().await;
    if let Some(audit) = recorded {
        audit.flush(&runtime).await;
    }
    tracing::info!("stopped");
    served.map_err(Failure::failed)
}

/// Opens the audit log, if there is one.
///
/// # Errors
/// If its file cannot be opened.
fn open_audit_log(runtime: &Runtime, args: &ListenArgs) -> Outcome<Option<Arc<AuditLog>>> {
    let Some(path) = &args.audit_log else { return Ok(None) };
    let log = AuditLog::open(runtime, path, args.audit_overflow);
    let log = log.map_err(|error| Failure::refused(format!("--audit-log {}: {error}", path.display())))?;
    Ok(Some(Arc::new(log)))
}

/// Returns the options of the gateway.
fn gateway_options(args: &ListenArgs) -> GatewayOptions {
    GatewayOptions {
        region: args.region.clone(),
        domains: args.domains.clone(),
        allow_signature_v2: args.allow_signature_v2,
        limits: Limits::from(&args.peers),
    }
}

/// Opens the S3 gateway with the hooks of this process.
fn open_gateway(
    runtime: &Runtime,
    cluster: &Cluster,
    args: &ListenArgs,
    limits: Limits,
    metrics: &Arc<Metrics>,
    audit: Option<Arc<AuditLog>>,
) -> Outcome<Gateway> {
    let mut hooks = Hooks {
        metrics: metrics.clone(),
        readiness: Arc::new(cluster.clone()),
        remote_buckets: Arc::new(cluster.origins().clone()),
        ..Hooks::default()
    };
    if let Some(audit) = audit {
        hooks.audit = audit;
    }
    let options = GatewayOptions { limits, ..gateway_options(args) };
    let gateway =
        Gateway::new(runtime.clone(), cluster.client().clone(), cluster.keys().clone(), options, hooks);
    gateway.map_err(Failure::refused)
}

/// Returns the URL of a port, with `*` for all addresses of this machine.
fn listening_url(scheme: &str, address: SocketAddr) -> String {
    match address.ip() {
        ip if ip.is_unspecified() => format!("{scheme}://*:{}", address.port()),
        _ => format!("{scheme}://{address}"),
    }
}

/// Logs that the store serves, and prints the message of a first start.
fn tell_start(cluster: &Cluster, s3: &str, console: &str, first: Option<String>) {
    tracing::info!(
        s3,
        console,
        cluster = %cluster.id(),
        profile = %cluster.profile(),
        directories = cluster.directories().len(),
        "striate {} serves",
        env!("CARGO_PKG_VERSION")
    );
    if let Some(first) = first {
        // The store serves even if nothing reads this.
        let _ = writeln!(io::stdout(), "{first}");
    }
}

async fn wait_for_drain(mut drain: watch::Receiver<bool>) {
    // A closed channel means that the signal watcher is gone: stop as well.
    let _ = drain.wait_for(|&draining| draining).await;
}

/// Binds the admin sockets and writes the run record.
fn publish(
    cluster: &Cluster,
    paths: ServerPaths,
    service: &AdminService,
    endpoint: &str,
) -> Option<(RunRecord, PathBuf)> {
    let stores = paths.directories.iter().filter(|directory| directory.join(STATE_FOLDER).is_dir());
    stores.for_each(|directory| service.serve_directory(directory));
    let record = RunRecord {
        cluster: cluster.id(),
        pid: std::process::id(),
        endpoint: endpoint.to_owned(),
        directories: paths.directories,
        name: paths.name,
    };
    let published = run_directory().and_then(|directory| {
        let socket =
            record.publish(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        Ok((directory, socket))
    });
    match published {
        Ok((directory, socket)) => {
            service.serve_socket(&socket);
            Some((record, directory))
        }
        Err(error) => {
            tracing::warn!(error, "commands must name this server with --dir");
            None
        }
    }
}

/// Drains at the first signal, or when `stop` is notified; exits at once at the second signal.
pub async fn watch_signals(stop: Arc<Notify>, draining: watch::Sender<bool>) {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::error!("signals cannot be watched; stop the server by killing it");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = stop.notified() => {}
    }
    tracing::info!("finishing the requests in flight; a second signal stops at once");
    // No receiver is left if serving has already ended.
    let _ = draining.send(true);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::warn!("stopped at once; the next start recovers");
    std::process::exit(130);
}

/// Handles SIGHUP, which would end the process. A service checks its certificates at once; the log of requests follows
/// its file by itself. A process that a terminal started stops, as the terminal is gone.
pub async fn watch_hangups(stop: Arc<Notify>, certificates: Option<Certificates>) {
    let is_service = !io::stdin().is_terminal();
    let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
    while hangup.recv().await.is_some() {
        if !is_service {
            tracing::info!("the terminal is gone");
            stop.notify_one();
            continue;
        }
        match certificates.as_ref().map(Certificates::reload) {
            None => tracing::info!("SIGHUP: there is nothing to reload"),
            Some(Ok(true)) => tracing::info!("SIGHUP: certificates reloaded"),
            Some(Ok(false)) => tracing::info!("SIGHUP: the certificates have not changed"),
            Some(Err(error)) => {
                tracing::warn!(%error, "SIGHUP: certificates not reloaded; the old ones stay in use")
            }
        }
    }
}

fn metrics_token(args: &ListenArgs) -> Outcome<Option<Zeroizing<String>>> {
    let Some(path) = &args.metrics_token_file else { return Ok(None) };
    let fail =
        |reason: String| Failure::refused(format!("--metrics-token-file {}: {reason}", path.display()));
    let text = Zeroizing::new(std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?);
    let token = Zeroizing::new(text.trim().to_owned());
    match token.len() >= 16 {
        true => Ok(Some(token)),
        false => Err(fail(
            "the token is shorter than 16 characters; make one with `openssl rand -hex 32`".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_named_as_it_listens() {
        let url = |address: &str| listening_url("http", address.parse().unwrap());
        assert_eq!(url("0.0.0.0:9000"), "http://*:9000");
        assert_eq!(url("[::]:9000"), "http://*:9000");
        assert_eq!(url("[::1]:9000"), "http://[::1]:9000");
        assert_eq!(url("10.0.0.5:80"), "http://10.0.0.5:80");
    }

    #[test]
    fn a_write_surplus_that_gives_something_up_is_named() {
        let warning = |code: &str, surplus| describe_surplus(&code.parse().unwrap(), surplus);
        assert!(warning("rs(4,2)", 0).unwrap().contains("only 4 sites"));
        assert_eq!(warning("rs(4,2)", 1), None);
        assert!(warning("rs(4,2)", 2).unwrap().contains("as soon as one site is lost"));
        assert_eq!(warning("rs(2,1)", 1), None, "the default is no choice");
        assert_eq!(warning("none", 0), None);
        assert_eq!(warning("none", 1), None);
        assert!(warning("lrc(12,3,2)", 0).unwrap().contains("only 12 sites"));
        assert_eq!(warning("lrc(12,3,2)", 2), None, "14 of 17 sites are enough");
        assert!(warning("lrc(12,3,2)", 3).unwrap().contains("as soon as one site is lost"));
    }
}
