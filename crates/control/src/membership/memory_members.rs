//! The rows of memory sites.
//!
//! Memory sites keep nothing that must survive, so the services of this crate ignore them, and their rows have a
//! prefix of their own: a program that knows no memory tier must not mistake one for a place for durable chunks. A
//! memory site is identified by its certificate and its address. It registers again and again; the row of one that
//! has not registered for some time is removed.

use std::time::Duration;

use striate_core::SiteId;
use striate_meta::records::{self, Cluster, Site};
use striate_meta::{MetaError, Row, keys};

use crate::membership::members::{MAX_ATTEMPTS, Members, MembersError};

/// Resolution of the time of the last registration in a row.
const SEEN_WITHIN: Duration = Duration::from_secs(60);
/// Age of the last registration after which a row is removed.
const GONE_AFTER: Duration = Duration::from_secs(10 * 60);

/// Registration request of a memory site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryAnnouncement {
    /// The name in the certificate of its process.
    pub peer: String,
    /// Address at which others reach the site.
    pub address: String,
    /// Failure domain of the site.
    pub rack: String,
    /// Memory of the site, in bytes.
    pub bytes: u64,
    /// Number of the site, if it has one.
    pub site: Option<SiteId>,
}

impl Members<'_> {
    /// Returns the memory sites, in the order of their numbers.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn memory_sites(&self) -> Result<Vec<Site>, MetaError> {
        let rows = self.rows(keys::MEMORY_SITES).await?;
        rows.iter().map(Row::record::<Site>).collect()
    }

    /// Admits a memory site, or records that a known one is still alive. Returns its number. Also removes the rows of
    /// sites that are gone.
    ///
    /// # Errors
    /// When other processes keep changing the same rows, or the metadata store fails.
    pub async fn register_memory(&self, site: &MemoryAnnouncement) -> Result<SiteId, MembersError> {
        for _ in 0..MAX_ATTEMPTS {
            let now_ms = self.runtime.wall_time().as_millis() as u64;
            let mut existing = None;
            for row in self.rows(keys::MEMORY_SITES).await? {
                let record: Site = row.record()?;
                if (&record.peer, &record.address) == (&site.peer, &site.address) {
                    existing = Some((row, record));
                } else if record.seen_unix_ms + (GONE_AFTER.as_millis() as u64) < now_ms {
                    self.take_down(&row).await?;
                }
            }
            let registered = match existing {
                Some((row, record)) => self.see_again(&row, record, site, now_ms).await?,
                None => self.admit_memory(site, now_ms).await?,
            };
            if let Some(number) = registered {
                return Ok(number);
            }
        }
        Err(MembersError::Conflict)
    }

    /// Returns `None` if another process has changed the row.
    async fn see_again(
        &self,
        row: &Row,
        mut record: Site,
        site: &MemoryAnnouncement,
        now_ms: u64,
    ) -> Result<Option<SiteId>, MembersError> {
        let before = record.clone();
        record.rack.clone_from(&site.rack);
        record.capacity_bytes = site.bytes;
        if record.seen_unix_ms + (SEEN_WITHIN.as_millis() as u64) < now_ms {
            record.seen_unix_ms = now_ms;
        }
        let is_written = before == record || self.put(&row.key, Some(row), records::encode(&record)).await?;
        Ok(is_written.then_some(SiteId(record.id)))
    }

    /// Returns `None` if another process has taken the number.
    async fn admit_memory(
        &self,
        site: &MemoryAnnouncement,
        now_ms: u64,
    ) -> Result<Option<SiteId>, MembersError> {
        let row = self.meta.get(&keys::cluster()).await?.ok_or(MembersError::NoCluster)?;
        let mut cluster: Cluster = row.record()?;
        // A site whose row was removed while control could not be reached keeps its number.
        let own = site.site.map(|own| own.0).filter(|own| *own < cluster.next_site);
        let number = own.unwrap_or(cluster.next_site.max(1));
        cluster.next_site = cluster.next_site.max(number + 1);
        let record = Site {
            id: number,
            rack: site.rack.clone(),
            address: site.address.clone(),
            capacity_bytes: site.bytes,
            peer: site.peer.clone(),
            seen_unix_ms: now_ms,
            ..Site::default()
        };
        let key = keys::memory_site(SiteId(number));
        let mut tx = self.transaction();
        tx.require_unchanged(keys::cluster(), Some(&row)).put(keys::cluster(), records::encode(&cluster));
        tx.require_unchanged(key.clone(), None).put(key, records::encode(&record));
        Ok(self.commit(tx).await?.then_some(SiteId(number)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use striate_core::ClusterId;
    use striate_meta::MemoryStore;
    use striate_runtime::Runtime;

    use super::*;

    fn site(name: &str) -> MemoryAnnouncement {
        let address = format!("{name}:9100");
        MemoryAnnouncement {
            peer: name.to_owned(),
            address,
            rack: "a".to_owned(),
            bytes: 1 << 30,
            site: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_memory_site_keeps_its_number_and_no_service_takes_it_for_a_disk() {
        let runtime = Runtime::deterministic(1, Duration::from_secs(1_700_000_000));
        let meta = Arc::new(MemoryStore::new(runtime.clone()));
        let members = Members::new(&runtime, meta.as_ref());
        assert!(matches!(members.register_memory(&site("one")).await, Err(MembersError::NoCluster)));
        members.found(ClusterId(1), None, "region").await.unwrap();
        let one = members.register_memory(&site("one")).await.unwrap();
        let other = members.register_memory(&site("other")).await.unwrap();
        assert_ne!(one, other);
        assert_eq!(members.register_memory(&site("one")).await.unwrap(), one);
        assert_eq!(members.sites().await.unwrap(), []);
        assert_eq!(members.memory_sites().await.unwrap().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_row_of_a_site_that_has_gone_goes() {
        let runtime = Runtime::deterministic(1, Duration::from_secs(1_700_000_000));
        let meta = Arc::new(MemoryStore::new(runtime.clone()));
        let members = Members::new(&runtime, meta.as_ref());
        members.found(ClusterId(1), None, "region").await.unwrap();
        let gone = members.register_memory(&site("gone")).await.unwrap();
        for _ in 0..20 {
            members.register_memory(&site("stays")).await.unwrap();
            runtime.sleep(SEEN_WITHIN).await;
        }
        let left = members.memory_sites().await.unwrap();
        assert_eq!(left.iter().map(|site| site.peer.as_str()).collect::<Vec<_>>(), ["stays"]);
        assert_ne!(
            members.register_memory(&site("gone")).await.unwrap(),
            gone,
            "a number is never used again"
        );
        let back = MemoryAnnouncement { site: Some(gone), ..site("back") };
        assert_eq!(members.register_memory(&back).await.unwrap(), gone, "but by who has it");
    }
}
