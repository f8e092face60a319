//! Members of a cluster: its row, and the rows of its sites.
//!
//! Sites have no access to metadata. They register with a control process, which writes their rows here; gateways
//! read them. Every change is one transaction on the rows it depends on, so any number of control processes may make
//! changes. A site is identified by its disk: a site that registers again, because the reply was lost or its address
//! has changed, is the same site.
//!
//! The default profile follows the sites until the first object is there or an operator chooses one; then it stays. It
//! applies to new objects only, so an operator may change it at any time. It must not change unasked: a profile that
//! uses one more site may not survive the loss of a rack that the one before it did.

use std::collections::BTreeMap;

use bytes::Bytes;
use striate_core::{ClusterId, Formats, NeedsNewerProgram, Profile, SiteId};
use striate_meta::records::{self, Cluster, Site, site::State};
use striate_meta::{Commit, MetaError, MetaStore, Row, ScanRange, Transaction, keys};
use striate_plan::{RackSizes, default_profile};
use striate_runtime::Runtime;

use crate::rows::Rows;

/// Attempts to commit an optimistic change.
pub(crate) const MAX_ATTEMPTS: u32 = 64;

/// Why a change of the members was refused.
#[derive(Debug, thiserror::Error)]
pub enum MembersError {
    /// The metadata belongs to another cluster.
    #[error(
        "the metadata belong to cluster {found}, this process's certificate to {own}; use another prefix or schema in \
         the engine's URL, or that cluster's certificate"
    )]
    OtherCluster {
        /// The cluster that the metadata belongs to.
        found: String,
        /// The cluster of this process.
        own: ClusterId,
    },
    /// No control process has made the cluster's row yet.
    #[error("the metadata has no cluster yet; start `striate control` on the same engine")]
    NoCluster,
    /// The site does not exist.
    #[error("no such site: {0}; `striate admin site list` lists all sites")]
    NoSuchSite(SiteId),
    /// The announcement or change contradicts what the metadata knows.
    #[error("{0}")]
    Refused(String),
    /// The store has formats in force that this program does not read.
    #[error(transparent)]
    NeedsNewer(#[from] NeedsNewerProgram),
    /// Other processes keep changing the same rows.
    #[error("others change the cluster's members at the same time; try again")]
    Conflict,
    /// The metadata store failed.
    #[error(transparent)]
    Meta(#[from] MetaError),
}

/// Registration request of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteAnnouncement {
    /// The name in the certificate of its process.
    pub peer: String,
    /// Identity of the site's disk.
    pub disk: [u8; 16],
    /// Number of the site, if it has one.
    pub site: Option<SiteId>,
    /// Address at which others reach the site.
    pub address: String,
    /// Failure domain of the site.
    pub rack: String,
    /// Size of the disk, in bytes.
    pub capacity_bytes: u64,
}

/// The members' rows.
#[derive(Clone, Copy, Debug)]
pub struct Members<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) meta: &'a dyn MetaStore,
}

impl<'a> Members<'a> {
    /// Opens the members' rows in `meta`.
    pub fn new(runtime: &'a Runtime, meta: &'a dyn MetaStore) -> Self {
        Self { runtime, meta }
    }

    /// Makes the cluster's row, or returns the existing one. A given `profile` becomes the default profile for good.
    ///
    /// # Errors
    /// When the metadata belongs to another cluster, and for a profile that this program does not store.
    pub async fn found(
        &self,
        cluster: ClusterId,
        profile: Option<Profile>,
        region: &str,
    ) -> Result<Cluster, MembersError> {
        for _ in 0..MAX_ATTEMPTS {
            let row = self.meta.get(&keys::cluster()).await?;
            let stored = row.as_ref().map(Row::record::<Cluster>).transpose()?;
            if let Some(stored) = stored.as_ref().filter(|stored| stored.id != cluster.to_string()) {
                return Err(MembersError::OtherCluster { found: stored.id.clone(), own: cluster });
            }
            if let Some(stored) = &stored {
                stored.formats().check_readable(&stored.needs_release)?;
            }
            let mut record = stored.clone().unwrap_or_else(|| self.new_cluster(cluster, region));
            if let Some(profile) = profile {
                choose(&mut record, &profile)?;
            }
            if stored.as_ref() == Some(&record)
                || self.put(&keys::cluster(), row.as_ref(), records::encode(&record)).await?
            {
                return Ok(record);
            }
        }
        Err(MembersError::Conflict)
    }

    /// Returns the row of a new cluster. No older program takes part in it, so it starts with the newest formats.
    fn new_cluster(&self, cluster: ClusterId, region: &str) -> Cluster {
        let mut record = Cluster {
            id: cluster.to_string(),
            created_unix_ms: self.runtime.wall_time().as_millis() as u64,
            profile: Profile::for_directories(1).to_string(),
            next_site: 1,
            region: region.to_owned(),
            ..Cluster::default()
        };
        record.set_formats(Formats::NEWEST);
        record
    }

    /// Returns the cluster's row.
    ///
    /// # Errors
    /// [`MembersError::NoCluster`]; [`MembersError::NeedsNewer`]; or when the row is another cluster's.
    pub async fn cluster(&self, own: ClusterId) -> Result<Cluster, MembersError> {
        let row = self.meta.get(&keys::cluster()).await?.ok_or(MembersError::NoCluster)?;
        let record: Cluster = row.record()?;
        if record.id != own.to_string() {
            return Err(MembersError::OtherCluster { found: record.id, own });
        }
        record.formats().check_readable(&record.needs_release)?;
        Ok(record)
    }

    /// Returns the sites, including retired ones, in the order of their numbers.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn sites(&self) -> Result<Vec<Site>, MetaError> {
        let rows = self.rows(keys::SITES).await?;
        rows.iter().map(Row::record::<Site>).collect()
    }

    /// Returns all rows with a prefix.
    pub(crate) async fn rows(&self, prefix: &[u8]) -> Result<Vec<Row>, MetaError> {
        let (mut rows, mut all) = (Rows::with_prefix(prefix), Vec::new());
        while let Some(page) = rows.next_in(self.meta).await? {
            all.extend(page);
        }
        Ok(all)
    }

    /// Admits a site, or records the changes of a known one. Returns its number.
    ///
    /// # Errors
    /// [`MembersError::Refused`] when its disk belongs to another process, was retired, or has a number that this
    /// metadata does not know.
    pub async fn register(&self, site: &SiteAnnouncement) -> Result<SiteId, MembersError> {
        for _ in 0..MAX_ATTEMPTS {
            let rows = self.rows(keys::SITES).await?;
            let mut existing = None;
            for row in &rows {
                let record: Site = row.record()?;
                if record.disk[..] == site.disk {
                    existing = Some((row, record));
                }
            }
            let registered = match existing {
                Some((row, record)) => self.update(row, record, site).await?,
                None => self.admit(site).await?,
            };
            if let Some(number) = registered {
                self.follow_sites().await?;
                return Ok(number);
            }
        }
        Err(MembersError::Conflict)
    }

    /// Updates the row of a known site. Returns `None` if another process has changed the row.
    async fn update(
        &self,
        row: &Row,
        mut record: Site,
        site: &SiteAnnouncement,
    ) -> Result<Option<SiteId>, MembersError> {
        let number = SiteId(record.id);
        let refuse = |reason: String| Err(MembersError::Refused(reason));
        if record.peer != site.peer {
            return refuse(format!(
                "site {number} belongs to the process {}, not to {}: start it with that certificate",
                record.peer, site.peer
            ));
        }
        if record.state() == State::Retired {
            return refuse(format!(
                "site {number} was given up for good: empty its directory to let it join as a new one"
            ));
        }
        if site.site.is_some_and(|own| own != number) {
            return refuse(format!(
                "its disk is that of site {number}, not of site {}",
                site.site.unwrap_or_default()
            ));
        }
        let before = record.clone();
        record.address.clone_from(&site.address);
        record.rack.clone_from(&site.rack);
        record.capacity_bytes = site.capacity_bytes;
        match before == record || self.put(&row.key, Some(row), records::encode(&record)).await? {
            true => Ok(Some(number)),
            false => Ok(None),
        }
    }

    /// Admits a new site. Returns `None` if another process has taken the number.
    async fn admit(&self, site: &SiteAnnouncement) -> Result<Option<SiteId>, MembersError> {
        if let Some(number) = site.site {
            return Err(MembersError::Refused(format!(
                "the metadata know no site {number} with its disk: is it a site of another cluster, or were the metadata \
                 restored from an older copy?"
            )));
        }
        let row = self.meta.get(&keys::cluster()).await?.ok_or(MembersError::NoCluster)?;
        let mut cluster: Cluster = row.record()?;
        let number = cluster.next_site.max(1);
        cluster.next_site = number + 1;
        let record = Site {
            id: number,
            rack: site.rack.clone(),
            address: site.address.clone(),
            capacity_bytes: site.capacity_bytes,
            disk: site.disk.to_vec().into(),
            peer: site.peer.clone(),
            ..Site::default()
        };
        let key = keys::site(SiteId(number));
        let mut tx = self.transaction();
        tx.require_unchanged(keys::cluster(), Some(&row)).put(keys::cluster(), records::encode(&cluster));
        tx.require_unchanged(key.clone(), None).put(key, records::encode(&record));
        Ok(self.commit(tx).await?.then_some(SiteId(number)))
    }

    /// Stops new chunks from going to a site, or allows them again. Its chunks stay, and are read.
    ///
    /// # Errors
    /// [`MembersError::NoSuchSite`]; [`MembersError::Refused`] for a site that is retired.
    pub async fn set_draining(&self, site: SiteId, draining: bool) -> Result<(), MembersError> {
        let key = keys::site(site);
        for _ in 0..MAX_ATTEMPTS {
            let row = self.meta.get(&key).await?.ok_or(MembersError::NoSuchSite(site))?;
            let mut record: Site = row.record()?;
            if record.state() == State::Retired {
                return Err(MembersError::Refused(format!("site {site} was given up for good")));
            }
            record.set_state(if draining { State::Draining } else { State::Active });
            if self.put(&key, Some(&row), records::encode(&record)).await? {
                return self.follow_sites().await;
            }
        }
        Err(MembersError::Conflict)
    }

    /// Changes the default profile, which applies to new objects of buckets without a profile of their own. Returns the
    /// cluster's row.
    ///
    /// # Errors
    /// [`MembersError::Refused`] for a profile that this program does not store. Whether the sites have places for it is
    /// for the caller to check.
    pub async fn set_default_profile(&self, profile: &Profile) -> Result<Cluster, MembersError> {
        for _ in 0..MAX_ATTEMPTS {
            let row = self.meta.get(&keys::cluster()).await?.ok_or(MembersError::NoCluster)?;
            let mut record: Cluster = row.record()?;
            choose(&mut record, profile)?;
            if self.put(&keys::cluster(), Some(&row), records::encode(&record)).await? {
                return Ok(record);
            }
        }
        Err(MembersError::Conflict)
    }

    /// Returns the number of active sites in each rack.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn racks(&self) -> Result<RackSizes, MetaError> {
        let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
        for site in self.sites().await?.into_iter().filter(|site| site.state() == State::Active) {
            *sizes.entry(site.rack).or_default() += 1;
        }
        Ok(sizes.into_values().collect())
    }

    /// Sets the default profile to that for the active sites and their racks, unless an operator chose one. If there are
    /// objects, the present one is chosen for good.
    pub(crate) async fn follow_sites(&self) -> Result<(), MembersError> {
        for _ in 0..MAX_ATTEMPTS {
            let row = self.meta.get(&keys::cluster()).await?.ok_or(MembersError::NoCluster)?;
            let mut record: Cluster = row.record()?;
            if record.profile_is_chosen {
                return Ok(());
            }
            let was = record.profile.clone();
            if self.has_objects().await? {
                record.profile_is_chosen = true;
                tracing::info!(profile = was, "the default profile stays: there are objects");
            } else {
                let current: Profile =
                    was.parse().map_err(|error| MembersError::Refused(format!("{error}")))?;
                record.profile = default_profile(&current, &self.racks().await?).to_string();
                if record.profile == was {
                    return Ok(());
                }
                tracing::info!(was, now = record.profile, "the default profile follows the sites");
            }
            if self.put(&keys::cluster(), Some(&row), records::encode(&record)).await? {
                return Ok(());
            }
        }
        Err(MembersError::Conflict)
    }

    /// Returns whether anything was stored under a default profile: an object, or a part of an upload.
    async fn has_objects(&self) -> Result<bool, MetaError> {
        for prefix in [keys::OBJECTS, keys::STRIPES] {
            if !self.meta.scan(ScanRange::prefix(prefix), 1).await?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) async fn put(&self, key: &Bytes, row: Option<&Row>, value: Bytes) -> Result<bool, MetaError> {
        let mut tx = self.transaction();
        tx.require_unchanged(key.clone(), row).put(key.clone(), value);
        self.commit(tx).await
    }

    /// Removes a row, unless its member has written it again since it was read.
    pub(super) async fn take_down(&self, row: &Row) -> Result<(), MetaError> {
        let mut tx = self.transaction();
        tx.require_unchanged(row.key.clone(), Some(row)).delete(row.key.clone());
        self.commit(tx).await.map(drop)
    }

    /// Commits a transaction; returns `false` if a precondition does not hold. An unknown outcome is retried with the
    /// same id.
    pub(crate) async fn commit(&self, tx: Transaction) -> Result<bool, MetaError> {
        let commit = match self.meta.commit(tx.clone()).await {
            Err(MetaError::UnknownOutcome(_)) => self.meta.commit(tx).await?,
            answered => answered?,
        };
        Ok(matches!(commit, Commit::Done(_)))
    }

    pub(crate) fn transaction(&self) -> Transaction {
        Transaction::with_random_id(self.runtime)
    }
}

/// Makes a profile the default for good.
fn choose(cluster: &mut Cluster, profile: &Profile) -> Result<(), MembersError> {
    profile.check_default(cluster.formats()).map_err(|error| MembersError::Refused(error.to_string()))?;
    cluster.profile = profile.to_string();
    cluster.profile_is_chosen = true;
    Ok(())
}
