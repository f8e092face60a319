//! Submits transactions until their outcome is known.

use std::time::Duration;

use striate_meta::{Commit, MetaError, MetaStore, Transaction};
use striate_runtime::Runtime;

/// Maximum number of submissions of a transaction.
const MAX_SUBMISSIONS: usize = 8;

/// See [`crate::Stripes::submit`].
pub(crate) async fn submit(
    runtime: &Runtime,
    meta: &dyn MetaStore,
    tx: &Transaction,
) -> Result<Commit, MetaError> {
    let (mut last, mut is_unknown) = (MetaError::Unavailable("it did not answer".to_owned()), false);
    for attempt in 0..MAX_SUBMISSIONS {
        match meta.commit(tx.clone()).await {
            Ok(commit) => return Ok(commit),
            Err(error @ (MetaError::UnknownOutcome(_) | MetaError::Unavailable(_))) => {
                is_unknown |= matches!(error, MetaError::UnknownOutcome(_));
                last = error;
            }
            Err(error) if is_unknown => return Err(MetaError::UnknownOutcome(error.to_string())),
            Err(error) => return Err(error),
        }
        runtime.sleep(Duration::from_millis(1 << attempt.min(6))).await;
    }
    match is_unknown {
        true => Err(MetaError::UnknownOutcome(last.to_string())),
        false => Err(last),
    }
}
