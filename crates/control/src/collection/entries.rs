//! Changes of stripes whose owners are gone: their entries are cancelled, which makes what they wrote garbage and fences
//! owners that were only slow ([`striate_stripe::StripeChange`]).
//!
//! An owner is gone when its writer's lease has ended, as with intents. A living process cancels its own entries.

use striate_meta::keys;
use striate_stripe::{StripeError, Stripes};

use crate::rows::Rows;

/// Cancels the entries whose owners' leases have ended; answers how many.
///
/// # Errors
/// When the metadata store fails; what was done stays done.
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
