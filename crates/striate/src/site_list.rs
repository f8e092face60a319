//! The static list of sites that gateways and sites are given: number, address and rack of each.
//!
//! ```text
//! # number  address         rack
//! 1         10.0.0.1:9100   a
//! 2         10.0.0.2:9100   b
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use striate_core::{ClusterId, RackId, SiteId};
use striate_runtime::Runtime;
use striate_site::protocol::session::ClusterSecret;
use striate_site::remote::{RemoteOptions, RemoteSite, TcpConnector};
use striate_site::{Site, SiteDirectory, SiteIdentity};

use crate::args::HostPort;
use crate::failure::{Failure, Outcome};

/// A line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The site's number.
    pub site: SiteId,
    /// Where it listens.
    pub address: HostPort,
    /// Its failure domain.
    pub rack: RackId,
}

/// The sites of a cluster, each listed once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteList {
    sites: Vec<Listed>,
}

impl Listed {
    /// A client of the site, which need not be up yet.
    pub fn connect(&self, runtime: &Runtime, secret: &ClusterSecret, cluster: ClusterId) -> RemoteSite {
        let identity = SiteIdentity { cluster, site: self.site, rack: self.rack.clone() };
        let (connector, address) = (Arc::new(TcpConnector), self.address.to_string());
        let options = RemoteOptions::default();
        RemoteSite::new(runtime.clone(), connector, &address, identity, secret.clone(), options)
    }
}

impl SiteList {
    /// Reads the file of `--sites`.
    ///
    /// # Errors
    /// When it cannot be read, or a line is wrong, naming it.
    pub fn read(path: &Path) -> Outcome<Self> {
        let fail = |reason: String| Failure::refused(format!("--sites {}: {reason}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
        Self::parse(&text).map_err(fail)
    }

    /// The sites, in the list's order.
    pub fn sites(&self) -> &[Listed] {
        &self.sites
    }

    /// The sites in a list: number, address and optionally rack on each line; `#` begins a comment.
    fn parse(text: &str) -> Result<Self, String> {
        let (mut sites, mut seen) = (Vec::new(), BTreeSet::new());
        for (index, line) in text.lines().enumerate() {
            let fail =
                |reason: String| format!("line {}: {reason}; write NUMBER HOST:PORT [RACK]", index + 1);
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
            false => Ok(Self { sites }),
        }
    }
}

/// Where a site finds the others, and itself.
#[derive(Debug)]
pub struct ListedSites {
    sites: BTreeMap<SiteId, Arc<dyn Site>>,
}

impl ListedSites {
    /// The listed sites as `own` sees them: the others over the network, itself in this process.
    ///
    /// # Errors
    /// When `own` is not listed: the list is another cluster's, or an old one.
    pub fn around(
        own: Arc<dyn Site>,
        list: &SiteList,
        runtime: &Runtime,
        secret: &ClusterSecret,
        cluster: ClusterId,
    ) -> Result<Self, String> {
        let site = |listed: &Listed| -> (SiteId, Arc<dyn Site>) {
            match listed.site == own.id() {
                true => (listed.site, own.clone()),
                false => (listed.site, Arc::new(listed.connect(runtime, secret, cluster))),
            }
        };
        let sites: BTreeMap<_, _> = list.sites.iter().map(site).collect();
        match sites.contains_key(&own.id()) {
            true => Ok(Self { sites }),
            false => Err(format!("site {} itself is not in the list; add it, or correct --id", own.id())),
        }
    }
}

impl SiteDirectory for ListedSites {
    fn site(&self, site: SiteId) -> Option<Arc<dyn Site>> {
        self.sites.get(&site).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_mistakes_named_with_their_line() {
        let list =
            SiteList::parse("# number address rack\n1 10.0.0.1:9100 a\n\n 2 [::1]:9100 # no rack\n").unwrap();
        let racks: Vec<&str> = list.sites().iter().map(|listed| listed.rack.0.as_str()).collect();
        assert_eq!(racks, ["a", "site-2"]);
        for (text, reason) in [
            ("", "no site"),
            ("1 h:1\n1 h:2", "line 2: site 1 is listed twice"),
            ("0 h:1", "not a site's number"),
            ("1 h", "no port"),
            ("1 :9100", "no host"),
            ("1 h:1 a b", "too much"),
        ] {
            let error = SiteList::parse(text).unwrap_err();
            assert!(error.contains(reason) && error.contains("NUMBER HOST:PORT"), "{error}");
        }
    }
}
