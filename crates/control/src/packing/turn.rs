//! The turn for manual packing and unpacking, which one process of a cluster has at a time. The leader's packing
//! service pauses meanwhile; otherwise both would pack and seal the same objects.

use std::time::Duration;

use striate_meta::{Commit, LeaseId, Precondition, keys, records};
use striate_stripe::{StripeError, Stripes};

use crate::rows::find_record;

/// Time within which the service notices a manual run.
pub(crate) const SEEN_WITHIN: Duration = Duration::from_secs(2);
/// Pause between attempts to give the turn back.
const PAUSE: Duration = Duration::from_secs(1);

/// This process's turn. It ends when this is dropped, or with the process.
pub struct PackingTurn {
    stripes: Stripes,
    lease: LeaseId,
}

impl PackingTurn {
    /// Takes the turn for the process of this name, unless another process has it. A holder of the same name is a
    /// dead predecessor. The service of another process may continue what it has started until
    /// [`PackingTurn::settle`] returns.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn take(stripes: &Stripes, process: &str) -> Result<Option<Self>, StripeError> {
        let (lease, row) = (stripes.writer_lease(), stripes.meta().get(&keys::packing_turn()).await?);
        if let Some(row) = &row {
            let holder: records::Leader = row.record()?;
            // An earlier turn of this process was not given back yet.
            let is_own = holder.lease == lease.0 || (!process.is_empty() && holder.name == process);
            if !is_own && stripes.meta().is_alive(LeaseId(holder.lease)).await? {
                return Ok(None);
            }
        }
        let mut tx = stripes.transaction();
        tx.require_unchanged(keys::packing_turn(), row.as_ref()).require(Precondition::LeaseAlive(lease));
        let record = records::Leader { lease: lease.0, name: process.to_owned() };
        tx.put(keys::packing_turn(), records::encode(&record));
        let taken = matches!(stripes.meta().commit(tx).await?, Commit::Done(_));
        Ok(taken.then(|| Self { stripes: stripes.clone(), lease }))
    }

    /// Waits until the service of another process has noticed the turn.
    pub async fn settle(&self) {
        self.stripes.runtime().sleep(2 * SEEN_WITHIN).await;
    }
}

impl Drop for PackingTurn {
    fn drop(&mut self) {
        let (stripes, lease) = (self.stripes.clone(), self.lease);
        self.stripes.runtime().spawn(async move {
            while let Err(error) = give_back(&stripes, lease).await {
                tracing::debug!(%error, "the turn of packing is given back later");
                stripes.runtime().sleep(PAUSE).await;
            }
        });
    }
}

async fn give_back(stripes: &Stripes, lease: LeaseId) -> Result<(), StripeError> {
    if let Some(row) = stripes.meta().get(&keys::packing_turn()).await?
        && row.record::<records::Leader>()?.lease == lease.0
    {
        let mut tx = stripes.transaction();
        tx.require_unchanged(keys::packing_turn(), Some(&row)).delete(keys::packing_turn());
        stripes.meta().commit(tx).await?;
    }
    Ok(())
}

/// Returns whether a process has the turn.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn is_taken(stripes: &Stripes) -> Result<bool, StripeError> {
    let holder: Option<records::Leader> = find_record(stripes, &keys::packing_turn()).await?;
    let Some(holder) = holder else { return Ok(false) };
    Ok(stripes.meta().is_alive(LeaseId(holder.lease)).await?)
}
