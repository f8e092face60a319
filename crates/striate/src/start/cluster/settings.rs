//! Settings of a start, besides its directories.

use std::path::PathBuf;
use std::sync::Arc;

use striate_cache::{Cache, CacheSettings};
use striate_client::Client;
use striate_commands::failure::{Failure, Outcome};
use striate_control::UpkeepOptions;
use striate_core::Profile;
use striate_origin::{Origins, check_authorities};
use striate_runtime::Runtime;
use striate_s3::{Credentials, KeyStore, check_credentials};
use striate_site::{CacheOptions, CacheStore};
use striate_stripe::StripeOptions;

use crate::resident::ResidentMemory;

/// Settings of a start, besides its directories.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Default profile of a new cluster; `None` chooses by the number of directories.
    pub profile: Option<Profile>,
    /// Region of the store.
    pub region: String,
    /// Access key that is accepted besides those in the metadata.
    pub given_key: Option<Credentials>,
    /// Memory, acknowledgement, read policy, and statistics of sampled requests.
    pub stripes: StripeOptions,
    /// Upkeep that this process does, if it is the one that does it.
    pub upkeep: UpkeepOptions,
    /// Caching in memory.
    pub caching: Caching,
}

/// Caching of a process in memory.
#[derive(Clone, Debug, Default)]
pub struct Caching {
    /// Options of a memory site in this process; `None` for no memory site.
    pub memory: Option<CacheOptions>,
    /// Whether written data is cached too.
    pub fills_writes: bool,
    /// Size of a split in KiB; 0 caches whole blocks.
    pub split_kib: Option<u32>,
    /// Rate in MiB/s at which lost splits of blocks are rewritten.
    pub refill_mib: Option<u32>,
    /// PEM file of further authorities that may sign origins' certificates.
    pub origin_ca: Option<PathBuf>,
}

impl Settings {
    /// Checks everything that can be wrong with the settings themselves. A start does it before it writes anything.
    ///
    /// # Errors
    /// If one of them cannot be used. The message names its option.
    pub fn check(&self, runtime: &Runtime) -> Outcome {
        if let Some(key) = &self.given_key {
            check_credentials(key).map_err(Failure::refused)?;
        }
        if let Some(path) = &self.caching.origin_ca {
            check_authorities(path).map_err(refuse_authorities)?;
        }
        if let Some(memory) = self.caching.memory {
            let process = Arc::new(ResidentMemory::new(runtime.clone()));
            CacheStore::within_process(memory, process).map_err(refuse_memory)?;
        }
        Ok(())
    }
}

/// Says why `--cache-mib` cannot be used.
pub(super) fn refuse_memory(error: std::io::Error) -> Failure {
    Failure::refused(format!("--cache-mib: {error}"))
}

fn refuse_authorities(error: String) -> Failure {
    Failure::refused(format!("--origin-ca: {error}"))
}

impl Caching {
    /// Returns the settings with which the process's gateway uses the tier.
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
            .map_err(refuse_authorities)
    }
}
