//! `striate control`: admits sites, and does the work that must happen in one place of a cluster.
//!
//! Every control process admits sites. One of them leads ([`Candidacy`]): it creates the first access key of a new
//! cluster, keeps the store complete and clean ([`striate_control::Upkeep`]), empties drained sites and balances the
//! others. If configured to, it also moves chunks to where reads of them cost less, by the reports of gateways. When it
//! fails, another one takes over.

use std::io::{self, Write};
use std::sync::Arc;

use striate_commands::args::{ControlArgs, HandshakeArgs};
use striate_commands::failure::{Failure, Outcome};
use striate_control::movement::AccessSource;
use striate_control::{Candidacy, GatheredAccess, LEADER_ROLE, Members, ProcessReport, UpkeepOptions};
use striate_listen::admission::AdmissionLimits;
use striate_listen::descriptors::{DescriptorNeeds, divide};
use striate_meta::MetaStore;
use striate_runtime::Runtime;
use striate_s3::{KeyStore, SealingKey};
use striate_stripe::StripeOptions;
use striate_trust::{Role, Trust};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};

use crate::first_key;
use crate::gateway_process::withdraw;
use crate::identity::{identify, sealing_key};
use crate::membership::service::{ControlLimits, ControlService};
use crate::server::{listen, watch_hangups, watch_signals};
use crate::start::cluster::{Caching, Cluster, Settings};
use crate::start::sealing::SealingBytes;

/// Number of connections of sites, gateways and operators.
const CONNECTIONS: usize = 1_024;
/// Number of connections whose peer has not authenticated.
const HANDSHAKES: usize = 1_024;
/// Connections that the leader opens to sites and the metadata engine.
const OWN_CONNECTIONS: usize = 512;

/// Runs a control process until SIGTERM or SIGINT.
///
/// # Errors
/// If it cannot start. The message names the cause and the remedy.
pub async fn run(runtime: Runtime, args: ControlArgs) -> Outcome {
    let listener = listen(&args.address, "--address").await?;
    let meta = striate_meta::open(&runtime, &args.metadata).await.map_err(Failure::failed)?;
    let (draining, mut drain) = watch::channel(false);
    let stop = Arc::new(Notify::new());
    runtime.spawn(watch_hangups(stop.clone(), None));
    runtime.spawn(watch_signals(stop, draining));
    let shutdown = async move {
        // A closed channel means that the signal watcher is gone: stop as well.
        let _ = drain.wait_for(|&draining| draining).await;
    };
    serve(runtime, &args, meta, listener, shutdown).await
}

/// Runs a control process on an open port and an open engine until `shutdown`.
///
/// # Errors
/// If it cannot start. The message names the cause and the remedy.
pub async fn serve(
    runtime: Runtime,
    args: &ControlArgs,
    meta: Arc<dyn MetaStore>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send,
) -> Outcome {
    let trust = identify(&runtime, &args.identity, Role::Control)?;
    let sealing = sealing_key(&args.identity)?;
    let own = trust.own_name();
    let members = Members::new(&runtime, meta.as_ref());
    let row = members.found(own.cluster, args.profile, &args.region).await.map_err(Failure::refused)?;
    let address = listener.local_addr().map_err(Failure::failed)?;
    tracing::info!(name = own.name, %address, cluster = %own.cluster, profile = row.profile, "control serves");
    let reporting = runtime.spawn(report(&runtime, &meta, "control", &trust).keep(|| None));
    let access = GatheredAccess::default();
    let candidacy = Candidacy::new(runtime.clone(), meta.clone(), &own.name);
    let leading = runtime.spawn(candidacy.run({
        let (runtime, meta, trust) = (runtime.clone(), meta.clone(), trust.clone());
        let term = LeaderConfig {
            upkeep: (&args.upkeep).into(),
            memory_bytes: (args.body_memory_mib as usize) << 20,
            access: access.clone(),
            optimises: args.optimise_placement,
        };
        move || lead(runtime.clone(), meta.clone(), trust.clone(), sealing.clone(), term.clone())
    }));
    ControlService::new(runtime.clone(), meta.clone(), trust, access, limits(&args.handshakes)?)
        .serve(listener, shutdown)
        .await;
    leading.abort();
    reporting.abort();
    withdraw(&runtime, meta.as_ref(), "control", &own.name).await;
    tracing::info!("stopped");
    Ok(())
}

/// Divides the descriptors of the process, and returns what peers may occupy.
fn limits(args: &HandshakeArgs) -> Outcome<ControlLimits> {
    let main = CONNECTIONS + HANDSHAKES;
    let needs = DescriptorNeeds { own: OWN_CONNECTIONS, main, ..DescriptorNeeds::default() };
    let connections = divide(needs).map_err(Failure::refused)?.main;
    let handshakes = connections * HANDSHAKES / main;
    Ok(ControlLimits {
        connections: connections - handshakes,
        handshakes: AdmissionLimits {
            connections: handshakes,
            per_address: args.max_handshakes_per_address as usize,
            trusted: args.trusted(),
        },
    })
}

/// Configuration of the leader.
#[derive(Clone)]
struct LeaderConfig {
    upkeep: UpkeepOptions,
    /// Memory budget in bytes of packing, repairs and moves.
    memory_bytes: usize,
    /// Access statistics reported by gateways.
    access: GatheredAccess,
    /// Whether it moves chunks to speed up reads.
    optimises: bool,
}

/// Creates the report of the formats that this program reads, under a separate name for each role of the process.
fn report(runtime: &Runtime, meta: &Arc<dyn MetaStore>, role: &str, trust: &Trust) -> ProcessReport {
    let name = trust.own_name().name;
    ProcessReport::new(runtime.clone(), meta.clone(), role, &name, env!("CARGO_PKG_VERSION"))
}

/// Does the leader's work. Its client belongs to this term alone, and so does the epoch of its deletes.
async fn lead(
    runtime: Runtime,
    meta: Arc<dyn MetaStore>,
    trust: Trust,
    sealing: SealingBytes,
    term: LeaderConfig,
) {
    if let Err(error) = provide_first_key(&runtime, &meta, &sealing).await {
        tracing::error!(
            %error,
            "the first access key could not be made or shown; make one with `striate admin keys create` on a gateway"
        );
    }
    let settings = Settings {
        profile: None,
        region: String::new(),
        given_key: None,
        stripes: StripeOptions { in_flight_bytes: term.memory_bytes, ..StripeOptions::default() },
        upkeep: term.upkeep,
        caching: Caching::default(),
    };
    match Cluster::join(runtime, meta, &trust, sealing, settings).await {
        Ok(cluster) => {
            cluster.optimiser().set_paused(!term.optimises);
            let (stripes, statistics) =
                (cluster.client().stripes().past_cache(), cluster.statistics().clone());
            let source = AccessSource::Gathered(term.access);
            let moving = futures::future::join3(
                cluster.rebalancer().clone().run(stripes.clone()),
                cluster.optimiser().clone().run(stripes.clone(), source.clone(), statistics.clone()),
                cluster.journal(source.clone()).run(stripes.clone()),
            );
            let upkeep = cluster.upkeep().clone().run(stripes.clone(), source);
            let writer = stripes.clone();
            let reporting = report(stripes.runtime(), stripes.meta(), LEADER_ROLE, &trust)
                .keep(move || Some(writer.writer_lease()));
            let following = futures::future::join(cluster.follow_sites(), reporting);
            futures::future::join4(following, upkeep, moving, statistics.run(stripes)).await;
        }
        Err(error) => tracing::warn!(%error, "cannot start the services of the leader; will retry"),
    }
}

/// Creates an access key if there is none, and shows it.
async fn provide_first_key(runtime: &Runtime, meta: &Arc<dyn MetaStore>, sealing: &SealingBytes) -> Outcome {
    let keys = KeyStore::new(runtime.clone(), meta.clone(), SealingKey::new(sealing), None);
    let keys = keys.map_err(Failure::refused)?;
    if let Some(shown) = first_key::provide(&keys, None, "made with the cluster").await? {
        // Control serves even if nothing reads this.
        let _ = writeln!(io::stdout(), "{}", first_key::describe(&shown));
    }
    Ok(())
}
