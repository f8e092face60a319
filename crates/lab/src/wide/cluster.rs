//! Sites in racks, and the links between them.

use striate_core::{RackId, SiteId};

use super::network::{Link, LinkId};

/// How fast everything is. All rates are in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Bytes of a chunk.
    pub chunk: f64,
    /// A site's card, in each direction.
    pub card: f64,
    /// A rack's uplink, and its downlink.
    pub gateway: f64,
    /// A site's disk.
    pub disk: f64,
    /// A site's coder: bytes of sources that it adds up.
    pub coder: f64,
    /// Clients that read from each site all the time.
    pub clients: f64,
    /// Slices of a chunk that flow through a tree at once. With one, who adds up waits for whole chunks.
    pub slices: usize,
    /// Whether a chunk that is made is written to the disk.
    pub writes: bool,
}

/// Bits of a gigabit in bytes.
pub const GBIT: f64 = 1e9 / 8.0;

/// The disk and all that comes with it (starting processes, Java), fitted: TL at 10 Gb/s takes 1.11 s (Fig. 10a), of which
/// 0.16 s are three chunks within racks and 0.86 s sixteen sums between them.
const FITTED_DISK: f64 = 746e6;
/// What 80 clients a server leave of a gateway, fitted: TL takes 108.4 ms (Fig. 12c) for 32 sums.
const FITTED_GATEWAY: f64 = 1.2126e6;
/// Bytes that this project's coder adds up in a second, on one core, of 16 sources into three parities (measured; see
/// docs/src/ecwide.md).
pub const CODER: f64 = 9.0e9;

impl Setting {
    /// ECWide-C (§6.1) with gateways of so many Gb/s: chunks of 64 MiB, cards of 10 Gb/s, and no repair pipelining.
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

    /// ECWide-H (§6.2) with so many background clients a server: chunks of 4 KiB in memory. The fewer clients, the more they
    /// leave of the gateways, in proportion.
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

/// Racks of equally many sites. Sites count from 1.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The names of racks.
    pub racks: Vec<RackId>,
    /// Sites in each.
    pub sites_per_rack: usize,
    /// All links: four of each site, then two of each rack.
    pub links: Vec<Link>,
}

/// Links of a site.
const OF_SITE: usize = 4;

impl Cluster {
    /// A cluster that is as fast as the setting says.
    pub fn new(racks: usize, sites_per_rack: usize, setting: &Setting) -> Self {
        let link = |rate| Link { rate, background: 0.0 };
        let out = Link { rate: setting.card, background: setting.clients };
        let of_site = [link(setting.disk), out, link(setting.card), link(setting.coder)];
        let mut links = of_site.repeat(racks * sites_per_rack);
        links.extend([link(setting.gateway)].repeat(2 * racks));
        let racks = (0..racks).map(|rack| RackId(format!("rack{rack:03}"))).collect();
        Self { racks, sites_per_rack, links }
    }

    /// A site by its rack and its place there.
    pub fn site(&self, rack: usize, place: usize) -> SiteId {
        SiteId((rack * self.sites_per_rack + place + 1) as u32)
    }

    /// All sites of a rack.
    pub fn sites_of(&self, rack: usize) -> impl Iterator<Item = SiteId> + '_ {
        (0..self.sites_per_rack).map(move |place| self.site(rack, place))
    }

    /// The number of a site's rack.
    pub fn rack_of(&self, site: SiteId) -> usize {
        (site.0 as usize - 1) / self.sites_per_rack
    }

    /// The name of it.
    pub fn rack_id(&self, site: SiteId) -> &RackId {
        &self.racks[self.rack_of(site)]
    }

    fn link(site: SiteId, which: usize) -> LinkId {
        (site.0 as usize - 1) * OF_SITE + which
    }

    /// Reading from a site's disk, or writing to it.
    pub fn disk(&self, site: SiteId) -> LinkId {
        Self::link(site, 0)
    }

    /// A rack's uplink.
    pub fn uplink(&self, rack: usize) -> LinkId {
        self.racks.len() * self.sites_per_rack * OF_SITE + rack
    }

    /// A rack's downlink.
    pub fn downlink(&self, rack: usize) -> LinkId {
        self.uplink(rack) + self.racks.len()
    }

    /// What is sent from one site to another and added up there. Nothing if they are the same.
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
