//! Takes dead stripes out of the wide stripes that they are members of, and releases them.

use std::collections::BTreeSet;
use std::future::ready;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::stream::{self, StreamExt};
use striate_core::StripeId;
use striate_meta::{Row, keys};
use striate_stripe::{ExchangeOutcome, OpenedStripe, StripeError, Stripes, wide_of};

use crate::rows::Rows;

/// Number of wide stripes that dead members leave concurrently.
const LEFT_AT_ONCE: usize = 4;
/// Maximum number of dead stripes held at the same time, of about a kilobyte each, before others are sealed. The rest
/// leaves later.
const MOST_KNOWN: usize = 20_000;

/// Returns the dead stripes that still have records; only some of them if there are very many.
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

/// Returns the dead stripes among those that the rows of stripes with unfinished work name.
async fn dead_among(stripes: &Stripes, rows: &[Row]) -> Result<Vec<OpenedStripe>, StripeError> {
    let mut dead = Vec::new();
    for id in rows.iter().filter_map(|row| keys::stripe_of(&row.key)) {
        let found = done(stripes.find(id).await)?.flatten();
        dead.extend(found.filter(|stripe| stripe.record.dead));
    }
    Ok(dead)
}

/// Returns the wide stripes that have dead members.
pub(super) fn wide_of_dead(dead: &[OpenedStripe]) -> BTreeSet<StripeId> {
    let claims = dead.iter().flat_map(|stripe| &stripe.record.locations).filter_map(wide_of);
    claims.map(|(wide, _)| wide).collect()
}

/// Gives up the wide stripes in which nothing lives: their places need not be filled. Returns the remaining dead
/// stripes.
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

/// Takes dead stripes out of the wide stripes that they are members of, which reclaims their space. Calls `tell`
/// after each wide stripe; `Break` ends the run. Returns how many stripes have left all their wide stripes.
///
/// # Errors
/// When the metadata store fails.
pub async fn leave_dead(
    stripes: &Stripes,
    tell: &mut (dyn FnMut() -> ControlFlow<()> + Send),
) -> Result<u64, StripeError> {
    let (mut released, mut visited, mut rows) = (0, BTreeSet::new(), Rows::with_prefix(keys::CHANGES));
    while let Some(page) = rows.next(stripes).await? {
        let dead = dead_among(stripes, &page).await?;
        // All dead members leave a wide stripe together, including those of later pages.
        let wide = wide_of_dead(&dead).into_iter().filter(|&id| visited.insert(id)).collect();
        let flow = leave_each(stripes, wide, tell).await?;
        for OpenedStripe { id, .. } in dead {
            released += u64::from(done(stripes.release_dead(id).await)? == Some(true));
        }
        if flow.is_break() {
            break;
        }
    }
    Ok(released)
}

/// Takes dead members out of these wide stripes. Returns `Break` if `tell` ended the run; the rest is left for later.
async fn leave_each(
    stripes: &Stripes,
    wide: Vec<StripeId>,
    tell: &mut (dyn FnMut() -> ControlFlow<()> + Send),
) -> Result<ControlFlow<()>, StripeError> {
    let leave = |wide: StripeId| async move {
        if done(stripes.leave_wide(wide).await)? != Some(ExchangeOutcome::Done) {
            tracing::debug!(%wide, "dead members cannot leave now");
        }
        Ok::<_, StripeError>(())
    };
    let ends = AtomicBool::new(tell().is_break());
    let begun = stream::iter(wide).take_while(|_| ready(!ends.load(Ordering::Relaxed)));
    let mut leaving = begun.map(leave).buffer_unordered(LEFT_AT_ONCE);
    while let Some(outcome) = leaving.next().await {
        outcome?;
        ends.fetch_or(tell().is_break(), Ordering::Relaxed);
    }
    drop(leaving);
    Ok(if ends.into_inner() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
}

/// Logs an error that concerns only one stripe and returns `None`, so that it does not hold up others.
pub(super) fn done<T>(outcome: Result<T, StripeError>) -> Result<Option<T>, StripeError> {
    match outcome {
        Ok(done) => Ok(Some(done)),
        Err(StripeError::Meta(error)) => Err(error.into()),
        Err(error) => {
            tracing::warn!(%error, "a stripe cannot be seen or changed now; the next look retries");
            Ok(None)
        }
    }
}
