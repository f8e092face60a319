//! Vacant places in sealed wide stripes: those of dead members, and holes. A cold partition in the right rack that is
//! due for the same profile takes one: the parities change once, and the wide stripe stays as full as before.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use striate_core::StripeId;
use striate_plan::OpenPartition;
use striate_stripe::{ExchangeOutcome, OpenedStripe, StripeError, Stripes, is_hole};

use super::cold::{ColdData, LengthClass, PoolKey};
use super::dead::wide_of_dead;
use super::{CountCallback, advance};

/// Gives vacant places, including those of `dead` stripes, to cold partitions, which leave their pools. Calls `tell`
/// after each wide stripe with the number of places taken so far.
///
/// # Errors
/// When the metadata store fails.
pub(super) async fn fill_vacancies(
    stripes: &Stripes,
    cold: &mut ColdData,
    dead: &[OpenedStripe],
    tell: CountCallback<'_>,
) -> Result<ControlFlow<()>, StripeError> {
    let mut wide = std::mem::take(&mut cold.wide);
    wide.extend(wide_of_dead(dead));
    let dead: BTreeSet<StripeId> = dead.iter().map(|of| of.id).collect();
    let mut taken = 0;
    for id in wide {
        if tell(taken).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        let Some(of) = stripes.find(id).await? else { continue };
        let alike =
            PoolKey { profile: of.record.profile.clone(), lens: LengthClass::of(of.record.chunk_len) };
        let Some(pool) = cold.pools.get_mut(&alike) else { continue };
        if of.record.is_sealed() {
            let filled = fill(stripes, of, pool, &dead).await?;
            if filled > 0 {
                // The new members may drop their parities.
                advance(stripes, id).await?;
            }
            taken += filled;
        }
    }
    Ok(tell(taken))
}

/// Fills the vacant places of one wide stripe.
async fn fill(
    stripes: &Stripes,
    mut wide: OpenedStripe,
    pool: &mut Vec<OpenPartition>,
    dead: &BTreeSet<StripeId>,
) -> Result<u64, StripeError> {
    let is_vacant = |position: &usize| {
        let of = wide.record.members[*position].stripe_id();
        is_hole(&wide.record, *position) || of.is_some_and(|id| dead.contains(&id))
    };
    let vacant: Vec<usize> = (0..wide.code.k()).filter(is_vacant).collect();
    let mut taken = 0;
    for position in vacant {
        while let Some(at) = candidate(stripes, &wide, position, pool) {
            let (stripe, index) = pool.swap_remove(at).partition;
            match stripes.place_in_wide(wide.id, position, (stripe, index.into())).await? {
                ExchangeOutcome::Done => {
                    taken += 1;
                    tracing::info!(wide = %wide.id, position, %stripe, "a partition has taken a vacant place");
                    break;
                }
                ExchangeOutcome::NotNow => return Ok(taken),
                ExchangeOutcome::Unfit => {}
            }
        }
        match stripes.find(wide.id).await? {
            Some(now) => wide = now,
            None => break,
        }
    }
    Ok(taken)
}

/// Returns a partition for a place: the one whose stripe has the fewest waiting partitions, so that the stripe is
/// sealed soon.
fn candidate(
    stripes: &Stripes,
    wide: &OpenedStripe,
    position: usize,
    pool: &[OpenPartition],
) -> Option<usize> {
    let may_come = |(_, of): &(usize, &OpenPartition)| stripes.admits_in_wide(wide, position, of.site);
    let fit = pool.iter().enumerate().filter(may_come);
    fit.min_by_key(|(_, of)| of.open_siblings).map(|(at, _)| at)
}
