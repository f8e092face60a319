//! Cancels the entries of dead owners' changes. This makes what they wrote garbage and fences owners that were only
//! slow ([`striate_stripe::StripeChange`]).
//!
//! An owner is dead when its writer's lease has expired, as with intents. A living process cancels its own entries.

use striate_meta::keys;
use striate_stripe::{StripeError, Stripes};

use crate::rows::Rows;

/// Cancels the entries whose owners' leases have expired; returns their number.
///
/// # Errors
/// When the metadata store fails; completed cancellations remain.
pub(crate) async fn cancel_dead_changes(stripes: &Stripes) -> Result<u64, StripeError> {
    let mut cancelled = 0;
    let mut rows = Rows::with_prefix(keys::CHANGES);
    while let Some(page) = rows.next(stripes).await? {
        for stripe in page.iter().filter_map(|row| keys::stripe_of(&row.key)) {
            cancelled += stripes.cancel_dead_changes(stripe).await?;
        }
    }
    Ok(cancelled)
}
