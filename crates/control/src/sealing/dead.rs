//! Dead stripes leave the wide stripes that they are members of, and go.

use std::collections::BTreeSet;
use std::future::ready;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::stream::{self, StreamExt};
use striate_core::StripeId;
use striate_meta::{Row, keys};
use striate_stripe::{Exchange, OpenedStripe, StripeError, Stripes, wide_of};

use crate::rows::Rows;

/// Dead members leave so many wide stripes at the same time.
const LEFT_AT_ONCE: usize = 4;
/// So many dead stripes are known at the same time, of about a kilobyte each, when others are to be sealed. What there is besides leaves
/// later.
const MOST_KNOWN: usize = 20_000;

/// Stripes that are dead and still there, some of them where there are very many.
///
/// # Errors
/// When the metadata store fails.
pub(super) async fn dead_stripes(stripes: &Stripes) -> Result<Vec<OpenedStripe>, StripeError> {
    let (mut dead, mut rows) = (Vec::new(), Rows::with_prefix(keys::CHANGES));
    while dead.len() < MOST_KNOWN
        && let Some(page) = rows.next(stripes).await?
    {
        dead.extend(dead_among(stripes, &page).await?);
    }
    Ok(dead)
}

/// The dead ones of the stripes that rows of stripes in work tell of.
async fn dead_among(stripes: &Stripes, rows: &[Row]) -> Result<Vec<OpenedStripe>, StripeError> {
    let mut dead = Vec::new();
    for id in rows.iter().filter_map(|row| keys::stripe_of(&row.key)) {
        let found = done(stripes.find(id).await)?.flatten();
        dead.extend(found.filter(|stripe| stripe.record.dead));
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

/// Has dead stripes leave the wide stripes that they are members of; their space comes back then. `tell` is asked after each wide stripe
/// whether to go on. Answers how many stripes have left all of theirs.
///
/// # Errors
/// When the metadata store fails.
pub async fn leave_dead(
    stripes: &Stripes,
    tell: &mut (dyn FnMut() -> ControlFlow<()> + Send),
) -> Result<u64, StripeError> {
    let (mut left, mut seen, mut rows) = (0, BTreeSet::new(), Rows::with_prefix(keys::CHANGES));
    while let Some(page) = rows.next(stripes).await? {
        let dead = dead_among(stripes, &page).await?;
        // All dead members leave a wide stripe together, also those of later pages.
        let wide = wide_of_dead(&dead).into_iter().filter(|&id| seen.insert(id)).collect();
        let flow = leave_each(stripes, wide, tell).await?;
        for OpenedStripe { id, .. } in dead {
            left += u64::from(done(stripes.release_dead(id).await)? == Some(true));
        }
        if flow.is_break() {
            break;
        }
    }
    Ok(left)
}

/// Has dead members leave these wide stripes. `Break`: those that are left are for another time.
async fn leave_each(
    stripes: &Stripes,
    wide: Vec<StripeId>,
    tell: &mut (dyn FnMut() -> ControlFlow<()> + Send),
) -> Result<ControlFlow<()>, StripeError> {
    let leave = |wide: StripeId| async move {
        if done(stripes.leave_wide(wide).await)? != Some(Exchange::Done) {
            tracing::debug!(%wide, "dead members cannot leave now");
        }
        Ok::<_, StripeError>(())
    };
    let ends = AtomicBool::new(tell().is_break());
    let taken = stream::iter(wide).take_while(|_| ready(!ends.load(Ordering::Relaxed)));
    let mut leaving = taken.map(leave).buffer_unordered(LEFT_AT_ONCE);
    while let Some(outcome) = leaving.next().await {
        outcome?;
        ends.fetch_or(tell().is_break(), Ordering::Relaxed);
    }
    drop(leaving);
    Ok(if ends.into_inner() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
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
