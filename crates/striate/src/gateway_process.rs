//! `striate gateway`: S3 and metadata in this process, chunks on sites in other processes.
//!
//! The metadata engine is embedded and mirrored over the gateway's own directories, so a cluster has one gateway.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use striate_core::{ClusterId, RackId, SiteId};
use striate_runtime::Runtime;
use striate_site::SiteIdentity;
use striate_site::protocol::session::ClusterSecret;
use striate_site::remote::{RemoteOptions, RemoteSite, TcpConnector};

use crate::args::{GatewayArgs, HostPort};
use crate::ellipsis::expand_all;
use crate::failure::{Failure, Outcome};
use crate::server::{Listeners, announce, introduce, serve};
use crate::site_process::{cluster_of, read_secret};
use crate::start::cluster::{Cluster, RemoteMember, Settings};
use crate::start::credentials;
use crate::start::directories::inspect_all;
use crate::start::plan::plan_start;

/// A line of the list of sites.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed {
    site: SiteId,
    address: HostPort,
    rack: RackId,
}

/// Runs a gateway until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot start, with the cause and the way out.
pub async fn run(runtime: Runtime, args: GatewayArgs) -> Outcome {
    let directories = expand_all(&args.directories).map_err(Failure::refused)?;
    let given_key = credentials::given(args.listen.dev).map_err(Failure::refused)?;
    let sites = read_list(&args.sites)?;
    let secret = read_secret(&args.secret)?;
    let inspected = inspect_all(&directories).map_err(Failure::refused)?;
    let plan = plan_start(&inspected).map_err(Failure::refused)?;
    let listeners = Listeners::open(&args.listen).await?;
    announce(&plan, &args.listen);
    let cluster = cluster_of(&secret);
    let remote = sites.into_iter().map(|listed| connect(&runtime, &secret, cluster, listed)).collect();
    let settings = Settings {
        profile: args.profile,
        region: args.listen.region.clone(),
        body_memory: (args.listen.body_memory_mib as usize) << 20,
        given_key,
        remote: Some(remote),
        cluster: Some(cluster),
    };
    let opened = Cluster::open(runtime.clone(), plan, settings).await?;
    let first = introduce(&opened, &listeners.endpoint, args.listen.dev)?;
    serve(runtime, opened.cluster, listeners, &args.listen, first).await
}

/// A client of the listed site, which need not be up yet.
fn connect(runtime: &Runtime, secret: &ClusterSecret, cluster: ClusterId, listed: Listed) -> RemoteMember {
    let address = listed.address.to_string();
    let identity = SiteIdentity { cluster, site: listed.site, rack: listed.rack };
    let connector = Arc::new(TcpConnector);
    let options = RemoteOptions::default();
    let site = RemoteSite::new(runtime.clone(), connector, &address, identity, secret.clone(), options);
    RemoteMember { site: Arc::new(site), address }
}

fn read_list(path: &Path) -> Outcome<Vec<Listed>> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| Failure::refused(format!("--sites {}: {error}", path.display())))?;
    parse_list(&text).map_err(|reason| Failure::refused(format!("--sites {}: {reason}", path.display())))
}

/// The sites in a list: number, address and optionally rack on each line; `#` begins a comment.
fn parse_list(text: &str) -> Result<Vec<Listed>, String> {
    let (mut sites, mut seen) = (Vec::new(), BTreeSet::new());
    for (index, line) in text.lines().enumerate() {
        let fail = |reason: String| format!("line {}: {reason}; write NUMBER HOST:PORT [RACK]", index + 1);
        let words: Vec<&str> = line.split('#').next().unwrap_or("").split_whitespace().collect();
        let (number, address, rack) = match words.as_slice() {
            [] => continue,
            [number, address] => (number, address, None),
            [number, address, rack] => (number, address, Some(*rack)),
            _ => return Err(fail("there is too much or too little on it".to_owned())),
        };
        let site = number.parse::<u32>().ok().filter(|&number| number > 0);
        let site = SiteId(site.ok_or_else(|| fail(format!("{number:?} is not a site's number")))?);
        if !seen.insert(site) {
            return Err(fail(format!("site {site} is listed twice")));
        }
        let address: HostPort = address.parse().map_err(fail)?;
        if address.host.is_empty() {
            return Err(fail("the address has no host".to_owned()));
        }
        let rack = RackId(rack.map_or_else(|| format!("site-{site}"), str::to_owned));
        sites.push(Listed { site, address, rack });
    }
    match sites.is_empty() {
        true => Err("no site is listed; write NUMBER HOST:PORT [RACK] on each line".to_owned()),
        false => Ok(sites),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_mistakes_named_with_their_line() {
        let sites =
            parse_list("# number address rack\n1 10.0.0.1:9100 a\n\n 2 [::1]:9100 # no rack\n").unwrap();
        assert_eq!(sites.len(), 2);
        assert_eq!((sites[0].rack.0.as_str(), sites[1].rack.0.as_str()), ("a", "site-2"));
        for (text, reason) in [
            ("", "no site"),
            ("1 h:1\n1 h:2", "line 2: site 1 is listed twice"),
            ("0 h:1", "not a site's number"),
            ("1 h", "no port"),
            ("1 :9100", "no host"),
            ("1 h:1 a b", "too much"),
        ] {
            let error = parse_list(text).unwrap_err();
            assert!(error.contains(reason) && error.contains("NUMBER HOST:PORT"), "{error}");
        }
    }
}
