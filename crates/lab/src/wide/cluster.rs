//! Sites in racks, and the links between them.

use striate_core::{RackId, SiteId};

use super::network::{Link, LinkId};

/// Rates of a cluster, in bytes per second, and its other parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Bytes per chunk.
    pub chunk: f64,
    /// Bandwidth of a site's card, in each direction.
    pub card: f64,
    /// Bandwidth of a rack's uplink, and of its downlink.
    pub gateway: f64,
    /// Bandwidth of a site's disk.
    pub disk: f64,
    /// Rate of a site's coder, in bytes of sources added up.
    pub coder: f64,
    /// Number of clients that read from each site all the time.
    pub clients: f64,
    /// Slices of a chunk that flow through a tree at once. With one slice, each site that adds up waits for whole
    /// chunks.
    pub slices: usize,
    /// True if a rebuilt chunk is written to the disk.
    pub writes: bool,
}

/// Bytes per second of one Gb/s.
pub const GBIT: f64 = 1e9 / 8.0;

/// Fitted rate of the disk, including all other costs (starting processes, Java): TL at 10 Gb/s takes 1.11 s (Fig.
/// 10a), of which 0.16 s are three chunks within racks and 0.86 s sixteen sums between them.
const FITTED_DISK: f64 = 746e6;
/// Fitted share of a gateway that 80 clients per server leave: TL takes 108.4 ms (Fig. 12c) for 32 sums.
const FITTED_GATEWAY: f64 = 1.2126e6;
/// Bytes per second that this project's coder adds up, on one core, of 16 sources into three parities (measured; see
/// docs/src/ecwide.md).
pub const CODER: f64 = 9.0e9;

impl Setting {
    /// ECWide-C (§6.1) with gateways of `gateway_gbit` Gb/s: chunks of 64 MiB, cards of 10 Gb/s, and no repair
    /// pipelining.
    pub fn cold(gateway_gbit: f64) -> Self {
        Self {
            chunk: 64.0 * 1_048_576.0,
            card: 10.0 * GBIT,
            gateway: gateway_gbit * GBIT,
            disk: FITTED_DISK,
            coder: CODER,
            clients: 0.0,
            slices: 1,
            writes: false,
        }
    }

    /// ECWide-H (§6.2) with `clients` background clients per server: chunks of 4 KiB in memory. The share of the
    /// gateways that is left is inversely proportional to the number of clients.
    pub fn hot(clients: f64) -> Self {
        Self {
            chunk: 4096.0,
            gateway: FITTED_GATEWAY * 80.0 / clients,
            // Memory.
            disk: 10e9,
            clients,
            ..Self::cold(1.0)
        }
    }
}

/// Racks with equal numbers of sites. Sites are numbered from 1.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Names of the racks.
    pub racks: Vec<RackId>,
    /// Number of sites in each rack.
    pub sites_per_rack: usize,
    /// All links: four of each site, then two of each rack.
    pub links: Vec<Link>,
}

/// Links per site.
const OF_SITE: usize = 4;

impl Cluster {
    /// Creates a cluster with the rates of the setting.
    pub fn new(racks: usize, sites_per_rack: usize, setting: &Setting) -> Self {
        let link = |rate| Link { rate, background: 0.0 };
        let out = Link { rate: setting.card, background: setting.clients };
        let of_site = [link(setting.disk), out, link(setting.card), link(setting.coder)];
        let mut links = of_site.repeat(racks * sites_per_rack);
        links.extend([link(setting.gateway)].repeat(2 * racks));
        let racks = (0..racks).map(|rack| RackId(format!("rack{rack:03}"))).collect();
        Self { racks, sites_per_rack, links }
    }

    /// Returns a site by its rack and its index there.
    pub fn site(&self, rack: usize, place: usize) -> SiteId {
        SiteId((rack * self.sites_per_rack + place + 1) as u32)
    }

    /// Iterates over all sites of a rack.
    pub fn sites_of(&self, rack: usize) -> impl Iterator<Item = SiteId> + '_ {
        (0..self.sites_per_rack).map(move |place| self.site(rack, place))
    }

    /// Returns the index of a site's rack.
    pub fn rack_of(&self, site: SiteId) -> usize {
        (site.0 as usize - 1) / self.sites_per_rack
    }

    /// Returns the name of a site's rack.
    pub fn rack_id(&self, site: SiteId) -> &RackId {
        &self.racks[self.rack_of(site)]
    }

    fn link(site: SiteId, which: usize) -> LinkId {
        (site.0 as usize - 1) * OF_SITE + which
    }

    /// Returns the link of a site's disk, for reads and writes.
    pub fn disk(&self, site: SiteId) -> LinkId {
        Self::link(site, 0)
    }

    /// Returns a rack's uplink.
    pub fn uplink(&self, rack: usize) -> LinkId {
        self.racks.len() * self.sites_per_rack * OF_SITE + rack
    }

    /// Returns a rack's downlink.
    pub fn downlink(&self, rack: usize) -> LinkId {
        self.uplink(rack) + self.racks.len()
    }

    /// Returns the links used to send from one site to another and add up there; none if both are the same.
    pub fn send(&self, from: SiteId, to: SiteId) -> Vec<(LinkId, f64)> {
        if from == to {
            return Vec::new();
        }
        let mut links = vec![Self::link(from, 1), Self::link(to, 2), Self::link(to, 3)];
        let (sender, receiver) = (self.rack_of(from), self.rack_of(to));
        if sender != receiver {
            links.extend([self.uplink(sender), self.downlink(receiver)]);
        }
        links.into_iter().map(|link| (link, 1.0)).collect()
    }
}
