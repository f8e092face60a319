//! `striate admin site …`: the sites of a cluster, through a control process.

use bytesize::ByteSize;
use striate_commands::args::{ControlTarget, SiteCommand};
use striate_commands::failure::{Failure, Outcome};
use striate_commands::output::printable;
use striate_runtime::Runtime;
use striate_trust::Role;

use crate::identity::identify;
use crate::membership::client::{Channel, ControlClient};
use crate::membership::messages::cluster_control_client::ClusterControlClient;
use crate::membership::messages::{ListSitesReply, ListSitesRequest, RetireSiteRequest, SetDrainingRequest};

/// Runs the command.
pub(super) async fn run(runtime: Runtime, command: SiteCommand) -> Outcome {
    match command {
        SiteCommand::List { target } => {
            let ask = |mut control: ClusterControlClient<Channel>| async move {
                control.list_sites(ListSitesRequest {}).await
            };
            print(&connect(&runtime, &target)?.ask(ask).await.map_err(Failure::failed)?);
            Ok(())
        }
        SiteCommand::Drain { site, target } => set_draining(&runtime, &target, site, true).await,
        SiteCommand::Resume { site, target } => set_draining(&runtime, &target, site, false).await,
        SiteCommand::Retire { site, target } => retire(&runtime, &target, site).await,
    }
}

/// Connects to the control processes as an operator.
pub(super) fn connect(runtime: &Runtime, target: &ControlTarget) -> Outcome<ControlClient> {
    let trust = identify(runtime, &target.identity, Role::Admin)?;
    Ok(ControlClient::new(runtime.clone(), trust, target.control.clone()))
}

async fn set_draining(runtime: &Runtime, target: &ControlTarget, site: u32, draining: bool) -> Outcome {
    let ask = |mut control: ClusterControlClient<Channel>| async move {
        control.set_draining(SetDrainingRequest { site, draining }).await
    };
    let reply = connect(runtime, target)?.ask(ask).await.map_err(Failure::failed)?;
    match draining {
        true => println!("Site {site} drains: it takes no new chunks, and is read as before"),
        false => println!("Site {site} takes new chunks again"),
    }
    if !reply.warning.is_empty() {
        println!("warning: {}", printable(&reply.warning));
    }
    Ok(())
}

async fn retire(runtime: &Runtime, target: &ControlTarget, site: u32) -> Outcome {
    let ask = |mut control: ClusterControlClient<Channel>| async move {
        control.retire_site(RetireSiteRequest { site }).await
    };
    connect(runtime, target)?.patient().ask(ask).await.map_err(Failure::failed)?;
    println!(
        "Site {site} is retired: its number is never given out again, and its disk is refused. Stop its process if it still runs"
    );
    Ok(())
}

fn print(reply: &ListSitesReply) {
    println!("{:>5}  {:8}  {:12}  {:24}  {:16}  size", "site", "state", "rack", "address", "process");
    for site in &reply.sites {
        println!(
            "{:>5}  {:8}  {:12}  {:24}  {:16}  {}",
            site.site,
            site.state,
            site.rack,
            site.address,
            site.peer,
            ByteSize(site.capacity_bytes)
        );
    }
    println!("The default profile is {}", reply.profile);
}
