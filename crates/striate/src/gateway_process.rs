//! `striate gateway`: S3 and metadata in this process, chunks on sites in other processes.
//!
//! The metadata engine is embedded and mirrored over the gateway's own directories, so a cluster has one gateway.

use std::sync::Arc;

use striate_runtime::Runtime;
use striate_site::Site;

use crate::args::GatewayArgs;
use crate::ellipsis::expand_all;
use crate::failure::{Failure, Outcome};
use crate::server::{Listeners, announce, introduce, serve};
use crate::site_list::{Listed, SiteList};
use crate::site_process::{cluster_of, read_secret};
use crate::start::cluster::{Cluster, RemoteMember, Settings};
use crate::start::credentials;
use crate::start::directories::inspect_all;
use crate::start::plan::plan_start;

/// Runs a gateway until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot start, with the cause and the way out.
pub async fn run(runtime: Runtime, args: GatewayArgs) -> Outcome {
    let directories = expand_all(&args.directories).map_err(Failure::refused)?;
    let given_key = credentials::given(args.listen.dev).map_err(Failure::refused)?;
    let sites = SiteList::read(&args.sites)?;
    let secret = read_secret(&args.secret)?;
    let inspected = inspect_all(&directories).map_err(Failure::refused)?;
    let plan = plan_start(&inspected).map_err(Failure::refused)?;
    let listeners = Listeners::open(&args.listen).await?;
    announce(&plan, &args.listen);
    let cluster = cluster_of(&secret);
    let member = |listed: &Listed| {
        let site: Arc<dyn Site> = Arc::new(listed.connect(&runtime, &secret, cluster));
        RemoteMember { site, address: listed.address.to_string() }
    };
    let remote = sites.sites().iter().map(member).collect();
    let settings = Settings {
        profile: args.profile,
        region: args.listen.region.clone(),
        body_memory: (args.listen.body_memory_mib as usize) << 20,
        given_key,
        write_surplus: args.listen.write_surplus.into(),
        read_policy: args.listen.read_policy,
        remote: Some(remote),
        cluster: Some(cluster),
    };
    let opened = Cluster::open(runtime.clone(), plan, settings).await?;
    let first = introduce(&opened, &listeners.endpoint, args.listen.dev)?;
    serve(runtime, opened.cluster, listeners, &args.listen, first).await
}
