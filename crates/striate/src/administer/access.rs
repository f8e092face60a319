//! `striate admin access`: the access statistics of a cluster's gateways together, from a control process.

use striate_commands::args::AccessArgs;
use striate_commands::failure::{Failure, Outcome};
use striate_commands::output::printable;
use striate_runtime::Runtime;

use super::site::connect;
use crate::membership::client::Channel;
use crate::membership::messages::cluster_control_client::ClusterControlClient;
use crate::membership::messages::{ShowAccessReply, ShowAccessRequest};

/// Runs the command.
pub(super) async fn run(runtime: Runtime, args: AccessArgs) -> Outcome {
    let hottest = args.hottest;
    let ask = |mut control: ClusterControlClient<Channel>| async move {
        control.show_access(ShowAccessRequest { hottest }).await
    };
    print(&connect(&runtime, &args.target)?.ask(ask).await.map_err(Failure::failed)?);
    Ok(())
}

fn print(reply: &ShowAccessReply) {
    if reply.gateways.is_empty() {
        println!("No gateway has reported; start gateways with --control, and let somebody read");
        return;
    }
    println!("{:16}  {:>8}  reported", "gateway", "requests");
    for gateway in &reply.gateways {
        println!("{:16}  {:>8}  {} s ago", gateway.name, gateway.requests, gateway.age_ms / 1_000);
    }
    println!(
        "Together {} requests for {} blocks, {} of them different",
        reply.requests, reply.accesses, reply.blocks
    );
    if !reply.hottest.is_empty() {
        println!(
            "{:34}  {:>10}  {:34}  {:>10}  object",
            "block", "popularity", "asked for with", "likelihood"
        );
    }
    for block in &reply.hottest {
        let popularity = block.popularity * 100.0;
        let likelihood = match block.partner.as_str() {
            "" => String::new(),
            _ => format!("{:.1}%", block.likelihood * 100.0),
        };
        let (partner, object) = (&block.partner, printable(&block.object));
        println!("{:34}  {popularity:>9.1}%  {partner:34}  {likelihood:>10}  {object}", block.stripe);
    }
}
