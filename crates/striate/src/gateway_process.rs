//! `striate gateway`: S3 in this process, metadata on a shared engine, chunks on sites in other processes.

use std::time::Duration;

use striate_commands::args::GatewayArgs;
use striate_commands::credentials;
use striate_commands::failure::{Failure, Outcome};
use striate_control::{ProcessReport, UpkeepOptions};
use striate_meta::MetaStore;
use striate_runtime::Runtime;
use striate_trust::Role;

use crate::identity::{identify, sealing_key};
use crate::membership::access::keep_reporting;
use crate::membership::client::ControlClient;
use crate::server::{Listeners, ServerPaths, serve, warn_of_dev};
use crate::start::cluster::{Caching, Cluster, Settings};

/// Connections that a gateway opens to sites, the metadata engine and other stores.
const OWN_CONNECTIONS: usize = 1_024;
/// Timeout for the metadata engine to forget a process that stops.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs a gateway until SIGTERM or SIGINT.
///
/// # Errors
/// If it cannot start. The message names the cause and the remedy.
pub async fn run(runtime: Runtime, args: GatewayArgs) -> Outcome {
    let given_key = credentials::given(args.listen.dev).map_err(Failure::refused)?;
    let trust = identify(&runtime, &args.identity, Role::Gateway)?;
    let sealing = sealing_key(&args.identity)?;
    let listeners = Listeners::open(&runtime, &args.listen, 0, OWN_CONNECTIONS).await?;
    warn_of_dev(&args.listen);
    let meta = striate_meta::open(&runtime, &args.metadata).await.map_err(Failure::failed)?;
    let settings = Settings {
        profile: None,
        region: args.listen.region.clone(),
        given_key,
        stripes: args.listen.stripe_options(),
        // The leading control process does the upkeep.
        upkeep: UpkeepOptions::by_hand(),
        caching: Caching {
            memory: None,
            fills_writes: args.listen.cache_writes,
            split_kib: Some(args.listen.cache_split_kib),
            refill_mib: Some(args.listen.cache_refill_mib),
            origin_ca: args.listen.origin_ca.clone(),
        },
    };
    let cluster = Cluster::join(runtime.clone(), meta, &trust, sealing, settings).await?;
    let identity = std::fs::canonicalize(&args.identity).unwrap_or(args.identity);
    if !args.control.is_empty() {
        let control = ControlClient::new(runtime.clone(), trust.clone(), args.control);
        runtime.spawn(keep_reporting(cluster.client().stripes().clone(), control));
    }
    let report = ProcessReport::new(
        runtime.clone(),
        cluster.meta().clone(),
        "gateway",
        &trust.own_name().name,
        env!("CARGO_PKG_VERSION"),
    );
    let stripes = cluster.client().stripes().clone();
    let reporting = runtime.spawn(report.keep(move || Some(stripes.writer_lease())));
    let (name, meta) = (trust.own_name().name, cluster.meta().clone());
    let paths = ServerPaths { directories: vec![identity], name: Some(name.clone()) };
    let served = serve(runtime.clone(), cluster, listeners, &args.listen, paths, None).await;
    reporting.abort();
    withdraw(&runtime, meta.as_ref(), "gateway", &name).await;
    served
}

/// Removes the report of a process that stops, so that nobody misses it. Without an engine it stays, and ends with its
/// lease.
pub(crate) async fn withdraw(runtime: &Runtime, meta: &dyn MetaStore, role: &str, name: &str) {
    let withdrawn =
        runtime.timeout(WITHDRAW_TIMEOUT, ProcessReport::withdraw(runtime, meta, role, name)).await;
    if !matches!(withdrawn, Ok(Ok(()))) {
        tracing::debug!(role, name, "the report of this process stays until its lease ends");
    }
}
