//! What a start is told besides its directories.

use std::path::PathBuf;
use std::sync::Arc;

use striate_cache::{Cache, CacheSettings};
use striate_client::Client;
use striate_commands::failure::{Failure, Outcome};
use striate_control::UpkeepOptions;
use striate_core::Profile;
use striate_origin::Origins;
use striate_s3::{Credentials, KeyStore};
use striate_site::CacheOptions;
use striate_stripe::StripeOptions;

/// What a start is told besides its directories.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The default profile of a new cluster; none chooses by the number of directories.
    pub profile: Option<Profile>,
    /// The region.
    pub region: String,
    /// A key that is accepted besides those in the metadata.
    pub given_key: Option<Credentials>,
    /// Memory, acknowledgement, read policy, and what is kept of sampled requests.
    pub stripes: StripeOptions,
    /// What it does by itself to stay whole, where it is the process that does.
    pub upkeep: UpkeepOptions,
    /// What it caches in memory.
    pub caching: Caching,
}

/// What a process caches in memory, and where.
#[derive(Clone, Debug, Default)]
pub struct Caching {
    /// A memory site in this process.
    pub memory: Option<CacheOptions>,
    /// What is written is cached too.
    pub fills_writes: bool,
    /// KiB of a split; 0: blocks are not cut.
    pub split_kib: Option<u32>,
    /// MiB a second of blocks of which lost splits are written again.
    pub refill_mib: Option<u32>,
    /// Who else may vouch for origins: a PEM file.
    pub origin_ca: Option<PathBuf>,
}

impl Caching {
    /// How the gateway of the process uses the tier.
    pub(super) fn settings(&self) -> CacheSettings {
        let usual = CacheSettings::default();
        let fill_bytes = self.memory.map_or(usual.fill_bytes, |memory| memory.on_the_way_bytes as usize / 2);
        let split_bytes = match self.split_kib {
            None => usual.split_bytes,
            Some(0) => u64::MAX,
            Some(kib) => u64::from(kib) << 10,
        };
        let refill_bytes_per_s = self.refill_mib.map_or(usual.refill_bytes_per_s, |mib| u64::from(mib) << 20);
        CacheSettings { fill_bytes, fills_writes: self.fills_writes, split_bytes, refill_bytes_per_s }
    }

    pub(super) fn origins(&self, client: &Client, cache: &Cache, keys: &Arc<KeyStore>) -> Outcome<Origins> {
        Origins::new(client.clone(), cache.clone(), keys.clone(), self.origin_ca.as_deref())
            .map_err(|error| Failure::refused(format!("--origin-ca: {error}")))
    }
}
