//! Sealing in the leading process. Partitions that are some seconds old become members of wide stripes, or replace
//! dead members. Unfinished wide stripes are resumed until the run ends, and dead members leave their wide stripes.
//! Alongside the service an operator resumes some unfinished wide stripes and aborts others. The operator also gives
//! some sealed stripes their own parities again, swaps members with their local parities, and empties wide stripes into
//! others, whether or not that saves anything.

use std::ops::ControlFlow;
use std::time::Duration;

use striate_client::Client;
use striate_control::{SealOptions, empty_wide, leave_dead, resume_wide, seal_bucket};
use striate_core::StripeId;
use striate_meta::records::{Stripe, WideState};
use striate_stripe::{Packer, StripeError, Stripes};

use super::cluster::Cluster;
use super::invariants;
use super::operation::{BUCKET, Kind};
use super::steps::as_service;
use super::wide::has_members;

/// Range from which the minimum age of cold data is drawn.
const COLD_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// Maximum pause between two passes of the operator.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// In one round of this many, dead members leave.
const LEFT: u64 = 4;
/// In one pass of this many, the operator gives a sealed stripe its own parities again.
const NARROW_AGAIN: u64 = 6;
/// In one pass of this many, a member of a sealed wide stripe swaps places with its group's local parity.
const SWAPPED: u64 = 3;
/// In one pass of this many, a sealed wide stripe is emptied into others, if they have holes enough.
const EMPTIED: u64 = 2;
/// The operator aborts one unfinished wide stripe in this many.
const GIVEN_UP: u64 = 10;

/// Resumes unfinished wide stripes.
///
/// # Errors
/// If the metadata store fails.
pub async fn resume(cluster: &Cluster, stripes: &Stripes) -> Result<(), StripeError> {
    match cluster.wide_profile() {
        Some(_) => as_service(Kind::Seal, resume_all(cluster, stripes)).await,
        None => Ok(()),
    }
}

async fn resume_all(cluster: &Cluster, stripes: &Stripes) -> Result<(), StripeError> {
    resume_wide(stripes).await?;
    // Between these rounds, others may take the places of dead members.
    if !cluster.moves_chunks() || cluster.draw(LEFT) == 0 {
        leave_dead(stripes, &mut || ControlFlow::Continue(())).await?;
    }
    Ok(())
}

/// Seals cold data.
///
/// # Errors
/// If the metadata store fails.
pub async fn seal(cluster: &Cluster, stripes: &Stripes, packer: &Packer) -> Result<(), StripeError> {
    let Some(profile) = cluster.wide_profile() else { return Ok(()) };
    let options = SealOptions {
        patience: Duration::ZERO,
        // So a bucket is sealed in several pieces.
        together: 2,
        ..SealOptions::new(profile, cluster.draw_time(COLD_AFTER.0, COLD_AFTER.1))
    };
    let goes_on = &mut |_: &_| match cluster.moves_chunks() {
        true => std::ops::ControlFlow::Continue(()),
        false => std::ops::ControlFlow::Break(()),
    };
    as_service(Kind::Seal, seal_bucket(stripes, packer, BUCKET, &options, goes_on)).await.map(drop)
}

/// Runs the operator until the faults end.
pub async fn keep_interfering(cluster: &Cluster, client: &Client) {
    if cluster.wide_profile().is_none() {
        return;
    }
    while cluster.moves_chunks() {
        cluster.runtime.sleep(cluster.draw_time(Duration::ZERO, LONGEST_PAUSE)).await;
        let mut found = invariants::committed(cluster).unwrap_or_default();
        let dropped: Vec<_> = found.iter().filter(|(_, record)| record.dropped).map(|(id, _)| *id).collect();
        if cluster.draw(NARROW_AGAIN) == 0
            && let Some(id) = cluster.choose(&dropped)
        {
            let _ = client.stripes().narrow_again(id).await;
        }
        let sealed: Vec<_> = found.iter().filter(|(_, record)| has_members(record)).collect();
        if cluster.draw(SWAPPED) == 0
            && let Some((id, record)) = cluster.choose(&sealed)
        {
            let position = cluster.draw(record.members.len() as u64) as usize;
            let _ = client.stripes().swap_local_parity(*id, position).await;
        }
        if cluster.draw(EMPTIED) == 0 {
            empty_one(cluster, client, &sealed).await;
        }
        found.retain(|(_, record)| matches!(record.wide_state(), WideState::Building | WideState::Aborting));
        let Some((id, _)) = cluster.choose(&found).filter(|_| cluster.moves_chunks()) else { continue };
        // It fails as often as everything else.
        let _ = match cluster.draw(GIVEN_UP) {
            0 => client.stripes().abort_wide(id).await.map(drop),
            _ => client.stripes().advance_wide(id).await.map(drop),
        };
    }
}

/// Empties the wide stripe with the fewest members of those drawn into the others.
async fn empty_one(cluster: &Cluster, client: &Client, sealed: &[&(StripeId, Stripe)]) {
    let members = |(_, record): &(StripeId, Stripe)| record.member_chunks().count();
    let drawn = [cluster.choose(sealed), cluster.choose(sealed)];
    let Some((from, _)) = drawn.into_iter().flatten().min_by_key(|of| members(of)) else { return };
    let others: Vec<_> = sealed.iter().map(|(id, _)| *id).filter(|id| id != from).collect();
    let _ = empty_wide(client.stripes(), *from, &others).await;
}
