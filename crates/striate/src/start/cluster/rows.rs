//! The rows of sites follow the roster.

use striate_core::SiteId;
use striate_meta::{Commit, MetaError, Transaction, keys, records};

use super::Cluster;

impl Cluster {
    /// Makes the rows of sites follow the roster: members are active, all others are retired.
    pub(crate) async fn follow_roster(&self) -> Result<(), MetaError> {
        let (expected_rows, next_site) = {
            let state = self.inner.state.lock();
            (state.site_rows(), state.roster.next_site)
        };
        let meta = &self.inner.services.meta;
        for record in &expected_rows {
            let key = keys::site(SiteId(record.id));
            let row = meta.get(&key).await?;
            let stored = row.as_ref().map(|row| row.record::<records::Site>()).transpose()?;
            let state = stored.as_ref().map_or(records::site::State::Active as i32, |record| record.state);
            let record = records::Site { state, ..record.clone() };
            if stored.as_ref() != Some(&record) {
                self.put_row(key, row.as_ref(), records::encode(&record)).await?;
            }
        }
        for row in meta.scan(striate_meta::ScanRange::prefix(keys::SITES), 4_096).await? {
            let mut record: records::Site = row.record()?;
            let is_member = expected_rows.iter().any(|row| row.id == record.id);
            if !is_member && record.state() != records::site::State::Retired {
                record.set_state(records::site::State::Retired);
                self.put_row(row.key.clone(), Some(&row), records::encode(&record)).await?;
            }
        }
        let Some(row) = meta.get(&keys::cluster()).await? else { return Ok(()) };
        let mut record: records::Cluster = row.record()?;
        if record.next_site < next_site {
            record.next_site = next_site;
            self.put_row(keys::cluster(), Some(&row), records::encode(&record)).await?;
        }
        Ok(())
    }

    async fn put_row(
        &self,
        key: bytes::Bytes,
        row: Option<&striate_meta::Row>,
        value: bytes::Bytes,
    ) -> Result<(), MetaError> {
        let mut tx = Transaction::with_random_id(&self.inner.runtime);
        tx.require_unchanged(key.clone(), row).put(key, value);
        match self.inner.services.meta.commit(tx).await? {
            Commit::Done(_) => Ok(()),
            Commit::Conflict { .. } => {
                Err(MetaError::Unavailable("another change came in between; try again".to_owned()))
            }
        }
    }
}
