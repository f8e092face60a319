//! Sealing, in the process that leads: partitions that have stood for some seconds become members of wide stripes, or take the places
//! of dead ones. What was left half made is gone on with until the run ends, and what is dead leaves its wide stripes. An operator looks at
//! wide stripes that are being built, goes on with some beside the service, and gives some up; and has some that are sealed get
//! parities of their own again, or members change places with their local parities, whether that saves anything or not.

use std::ops::ControlFlow;
use std::time::Duration;

use striate_client::Client;
use striate_control::{SealOptions, leave_dead, resume_wide, seal_bucket};
use striate_meta::records::WideState;
use striate_stripe::{Packer, StripeError, Stripes};

use super::cluster::Cluster;
use super::invariants;
use super::operation::{BUCKET, Kind};
use super::steps::as_service;
use super::wide::has_members;

/// What has stood for a time between these is cold.
const COLD_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// Longest pause between two looks of the operator.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Dead members leave in one of so many rounds.
const LEFT: u64 = 4;
/// In one of so many looks the operator has a sealed stripe get parities of its own again.
const NARROW_AGAIN: u64 = 6;
/// In one of so many looks a member of a sealed wide stripe changes places with its group's local parity.
const SWAPPED: u64 = 3;
/// Of so many wide stripes that the operator finds unfinished one is given up.
const GIVEN_UP: u64 = 10;

/// Goes on with wide stripes that were left half made.
///
/// # Errors
/// When the metadata store fails.
pub async fn resume(cluster: &Cluster, stripes: &Stripes) -> Result<(), StripeError> {
    match cluster.wide_profile() {
        Some(_) => as_service(Kind::Seal, resume_all(cluster, stripes)).await,
        None => Ok(()),
    }
}

async fn resume_all(cluster: &Cluster, stripes: &Stripes) -> Result<(), StripeError> {
    resume_wide(stripes).await?;
    // Meanwhile others may take the places of what is dead.
    if !cluster.moves_chunks() || cluster.draw(LEFT) == 0 {
        leave_dead(stripes, &mut || ControlFlow::Continue(())).await?;
    }
    Ok(())
}

/// Seals what is cold.
///
/// # Errors
/// When the metadata store fails.
pub async fn seal(cluster: &Cluster, stripes: &Stripes, packer: &Packer) -> Result<(), StripeError> {
    let Some(profile) = cluster.wide_profile() else { return Ok(()) };
    let options = SealOptions {
        patience: Duration::ZERO,
        // A bucket is sealed in several pieces.
        together: 2,
        ..SealOptions::new(profile, cluster.draw_time(COLD_AFTER.0, COLD_AFTER.1))
    };
    let goes_on = &mut |_: &_| match cluster.moves_chunks() {
        true => std::ops::ControlFlow::Continue(()),
        false => std::ops::ControlFlow::Break(()),
    };
    as_service(Kind::Seal, seal_bucket(stripes, packer, BUCKET, &options, goes_on)).await.map(drop)
}

/// The operator, until the faults end.
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
        found.retain(|(_, record)| matches!(record.wide_state(), WideState::Building | WideState::Aborting));
        let Some((id, _)) = cluster.choose(&found).filter(|_| cluster.moves_chunks()) else { continue };
        // It fails as often as everything else.
        let _ = match cluster.draw(GIVEN_UP) {
            0 => client.stripes().abort_wide(id).await.map(drop),
            _ => client.stripes().advance_wide(id).await.map(drop),
        };
    }
}
