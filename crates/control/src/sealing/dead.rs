//! Dead stripes leave the wide stripes that they are members of, and go.

use std::collections::BTreeSet;

use futures::stream::{self, StreamExt, TryStreamExt};
use striate_core::StripeId;
use striate_meta::keys;
use striate_stripe::{Exchange, OpenedStripe, StripeError, Stripes, wide_of};

use crate::rows::Rows;

/// Dead members leave so many wide stripes at the same time.
const LEFT_AT_ONCE: usize = 4;

/// The stripes that are dead and still there.
///
/// # Errors
/// When the metadata store fails.
pub(super) async fn dead_stripes(stripes: &Stripes) -> Result<Vec<OpenedStripe>, StripeError> {
    let (mut dead, mut rows) = (Vec::new(), Rows::with_prefix(keys::CHANGES));
    while let Some(page) = rows.next(stripes).await? {
        for id in page.iter().filter_map(|row| keys::stripe_of(&row.key)) {
            dead.extend(stripes.find(id).await?.filter(|stripe| stripe.record.dead));
        }
    }
    Ok(dead)
}

/// The wide stripes that dead ones are members of.
pub(super) fn wide_of_dead(dead: &[OpenedStripe]) -> BTreeSet<StripeId> {
    let claims = dead.iter().flat_map(|of| &of.record.locations).filter_map(wide_of);
    claims.map(|(wide, _)| wide).collect()
}

/// Gives up the wide stripes of which nothing lives: their places are not to be filled. Answers what is dead besides.
///
/// # Errors
/// When the metadata store fails.
pub(super) async fn dissolve_dead(stripes: &Stripes) -> Result<Vec<OpenedStripe>, StripeError> {
    let dead = dead_stripes(stripes).await?;
    let mut is_any_gone = false;
    for wide in wide_of_dead(&dead) {
        is_any_gone |= done(stripes.dissolve_wide(wide).await)?.unwrap_or_default();
    }
    if is_any_gone { dead_stripes(stripes).await } else { Ok(dead) }
}

/// Has dead stripes leave the wide stripes that they are members of; their space comes back then. Answers how many have left them all.
///
/// # Errors
/// When the metadata store fails.
pub async fn leave_dead(stripes: &Stripes) -> Result<u64, StripeError> {
    let dead = dead_stripes(stripes).await?;
    let leave = |wide: StripeId| async move {
        if done(stripes.leave_wide(wide).await)? != Some(Exchange::Done) {
            tracing::debug!(%wide, "dead members cannot leave now");
        }
        Ok::<_, StripeError>(())
    };
    stream::iter(wide_of_dead(&dead)).map(leave).buffer_unordered(LEFT_AT_ONCE).try_collect::<()>().await?;
    let mut left = 0;
    for OpenedStripe { id, .. } in dead {
        left += u64::from(done(stripes.release_dead(id).await)? == Some(true));
    }
    Ok(left)
}

/// What is amiss with one stripe does not hold up others. `None`: it is, and was told.
fn done<T>(outcome: Result<T, StripeError>) -> Result<Option<T>, StripeError> {
    match outcome {
        Ok(done) => Ok(Some(done)),
        Err(StripeError::Meta(error)) => Err(error.into()),
        Err(error) => {
            tracing::warn!(%error, "dead members could not be released; the next look retries");
            Ok(None)
        }
    }
}
