//! Local parities change places with members in the racks that are expected to change most
//! ([`striate_plan::swap_due`]): the dead part of a member will be rewritten, or leaves, and the change is then sent
//! to its local parity.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use striate_core::{RackId, SiteId, StripeId};
use striate_meta::records::Stripe;
use striate_plan::{ChangingMember, swap_due};
use striate_stripe::{ExchangeOutcome, OpenedStripe, StripeError, Stripes, is_hole, wide_of};

use super::CountCallback;

/// The share 1.
const WHOLE: f64 = 255.0;

/// Shares of members that are expected to change, in 255ths, by wide stripe and position; members not listed stay as
/// they are. With scattered deletions nearly all members of a bucket have one, so a share takes a byte.
#[derive(Debug, Default)]
pub(super) struct ChangeShares(BTreeMap<StripeId, Vec<u8>>);

impl ChangeShares {
    /// Records that this share (0 to 1) of a stripe's chunks is expected to change.
    pub(super) fn expect(&mut self, stripe: &Stripe, share: f64) {
        let share = (share * WHOLE).ceil() as u8;
        if share > 0 {
            for (wide, position) in stripe.locations.iter().filter_map(wide_of) {
                let shares = self.0.entry(wide).or_default();
                if shares.len() <= position {
                    shares.reserve_exact(position + 1 - shares.len());
                    shares.resize(position + 1, 0);
                }
                shares[position] = share;
            }
        }
    }
}

/// Moves local parities to where they should be. Calls `tell` after each wide stripe with the number moved so far.
///
/// # Errors
/// When the metadata store fails.
pub(super) async fn swap_local_parities(
    stripes: &Stripes,
    changing: &ChangeShares,
    tell: CountCallback<'_>,
) -> Result<ControlFlow<()>, StripeError> {
    let mut swapped = 0;
    for (&id, shares) in &changing.0 {
        if tell(swapped).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        let Some(wide) = stripes.find(id).await? else { continue };
        if !wide.record.is_sealed() {
            continue;
        }
        for group in 0..wide.code.local_groups().len() {
            let Some(position) = due(stripes, &wide, group, shares) else { continue };
            match stripes.swap_local_parity(id, position).await? {
                ExchangeOutcome::Done => {
                    swapped += 1;
                    tracing::info!(wide = %id, group, position, "a local parity went to the rack that changes most");
                }
                not_done => tracing::debug!(wide = %id, group, ?not_done, "a local parity stays where it is"),
            }
        }
    }
    Ok(tell(swapped))
}

/// Returns the position of the member that the local parity of a group should change places with.
fn due(stripes: &Stripes, wide: &OpenedStripe, group: usize, shares: &[u8]) -> Option<usize> {
    let (k, groups) = (wide.code.k(), wide.code.local_groups().len());
    let rack = |chunk: usize| -> Option<RackId> {
        Some(stripes.site(SiteId(wide.record.locations[chunk].site))?.rack())
    };
    let globals: Vec<RackId> = (k + groups..wide.code.n()).filter_map(rack).collect();
    let is_member = |&position: &usize| {
        wide.code.local_group_of(position) == Some(group) && !is_hole(&wide.record, position)
    };
    let member = |position: usize| {
        let share = f64::from(shares.get(position).copied().unwrap_or_default()) / WHOLE;
        Some(ChangingMember { position, rack: rack(position)?, share })
    };
    let members: Vec<ChangingMember> = (0..k).filter(is_member).filter_map(member).collect();
    swap_due(&rack(k + group)?, &globals, &members)
}

#[cfg(test)]
mod tests {
    use striate_meta::records::Location;

    use super::*;

    #[test]
    fn a_share_takes_a_byte() {
        let (wide, mut changing) = (StripeId::new(1, 1), ChangeShares::default());
        let member_at = |position: u32| {
            let wide = wide.to_bytes().to_vec().into();
            let locations = vec![Location { wide, position, ..Location::default() }];
            Stripe { locations, ..Stripe::default() }
        };
        for position in 0..42 {
            changing.expect(&member_at(position), f64::from(position) / 41.0);
        }
        changing.expect(&member_at(20), 0.001);
        let shares = &changing.0[&wide];
        assert!(shares.len() == 42 && shares.capacity() < 64, "{shares:?}");
        assert_eq!([shares[0], shares[20], shares[41]], [0, 1, 255]);
    }
}
