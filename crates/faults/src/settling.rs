//! The end of a run: the faults have stopped, and the services must make everything whole and clean on their own.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use striate_client::ReadRange;
use striate_control::{HealReport, heal, verify};
use striate_core::{ChunkId, SiteId};
use striate_history::{Outcome, Violation};
use striate_meta::keys;

use super::cluster::Cluster;
use super::gateway::{self, Gateway};
use super::invariants::{self, Condition, Invariant, SurveyedStripe};
use super::ledger::MESSAGES_ARRIVE;
use super::operation::Operation;
use super::orphans;
use super::services::WAIT;
use super::site::{Crash, flip_chunk};
use super::worker::{Shared, key};

/// One seed in this many ends with losses of exactly r chunks of every stripe, and then of more.
const LOSSES_EVERY: u64 = 4;
/// Time after the last fault within which everything must be whole (I13).
const WHOLE_WITHIN: Duration = Duration::from_secs(600);
/// Time after which a gateway knows that a site answers again.
const BACK_WITHIN: Duration = Duration::from_secs(15);
/// Interval between checks whether everything is whole.
const LOOK: Duration = Duration::from_secs(2);
/// With wide stripes, one rack in this many is lost for good at the end, and its sites are retired once repair has
/// rebuilt what they had.
const LOST_FOR_GOOD: u64 = 2;
/// Time that the services run where they cannot repair everything: two scrub cycles.
const SERVICES_TRY: Duration = Duration::from_secs(60);

/// Second phase: the faults have stopped.
pub async fn settle(shared: &Arc<Shared>, seed: u64) {
    let cluster = &shared.cluster;
    for gateway in &cluster.gateways {
        gateway.kill();
    }
    cluster.end_moves();
    cluster.runtime.sleep(MESSAGES_ARRIVE).await;
    let gateway = gateway::start_another(cluster).await;
    take_back_drains(cluster).await;
    if !become_whole(cluster, &gateway).await {
        return;
    }
    read_all(shared, &gateway, "after everything was made whole").await;
    check_history(shared);
    orphans::collect_all(cluster, &gateway).await;
    if cluster.wide_profile().is_some() && !lose_rack(shared, &gateway).await {
        return;
    }
    if (seed / LOSSES_EVERY + seed).is_multiple_of(LOSSES_EVERY) {
        lose_chunks(shared, &gateway).await;
    }
}

/// Stops draining sites that cannot be emptied, because stripes have no place without them.
async fn take_back_drains(cluster: &Cluster) {
    if cluster.can_empty() {
        return;
    }
    for site in cluster.draining().unwrap_or_default() {
        while cluster.set_draining(site, false).await.is_err() {
            cluster.runtime.sleep(LOOK).await;
        }
    }
}

/// I13: without help, the services restore full redundancy within a bound and empty the draining sites. I7 then holds
/// without exceptions.
async fn become_whole(cluster: &Cluster, gateway: &Gateway) -> bool {
    let deadline = cluster.runtime.now() + WHOLE_WITHIN;
    loop {
        let left = left_to_do(cluster);
        if left.as_ref().is_some_and(Vec::is_empty) {
            return true;
        }
        if cluster.runtime.now() > deadline {
            let client = gateway.client().expect("it was started");
            let healed = heal(client.stripes(), |_| ControlFlow::Continue(())).await;
            let what = format!("left {WHOLE_WITHIN:?} after the last fault: {left:?}; {healed:?}");
            cluster.broken.report(Invariant::I13, what);
            return false;
        }
        cluster.runtime.sleep(LOOK).await;
    }
}

/// Describes what the services have yet to repair and to empty; `None` if the metadata cannot be read now.
fn left_to_do(cluster: &Cluster) -> Option<Vec<String>> {
    let stripes = invariants::survey(cluster)?;
    let lacking = stripes.iter().filter(|stripe| !stripe.is_whole());
    let mut left: Vec<_> =
        lacking.map(|stripe| format!("stripe {}: {:?}", stripe.id, stripe.chunks)).collect();
    let spread = stripes.iter().filter(|stripe| stripe.is_spread(cluster));
    left.extend(spread.map(|stripe| format!("stripe {} or a group of it is in too many racks", stripe.id)));
    let debts = cluster.engine.peek_all(keys::DEBTS)?;
    left.extend(debts.iter().map(|row| format!("debt {}", row.key.escape_ascii())));
    let draining = cluster.draining()?.into_iter().filter(|&site| !invariants::is_empty(cluster, site));
    left.extend(draining.map(|site| format!("site {site} drains and is not empty")));
    Some(left)
}

/// I1: every object reads back.
async fn read_all(shared: &Shared, gateway: &Gateway, when: &str) {
    let client = gateway.client().expect("it was started");
    let number = shared.new_client();
    for prefix in ["a/", "c/", "w/"] {
        let mut after = String::new();
        loop {
            let list = Operation::List { prefix: prefix.to_owned(), after: after.clone() };
            let answer = list.clone().run(&client).await;
            let [Outcome::Listed { through, .. }] = answer.outcomes.as_slice() else {
                let why = answer.error.unwrap_or_default();
                return shared.cluster.broken.report(Invariant::I1, format!("no listing {when}: {why}"));
            };
            shared.operate(number, gateway, list).await;
            match through {
                Some(last) => after = last.clone(),
                None => break,
            }
        }
    }
    for number_of_key in shared.keys() {
        let get = Operation::Get { key: key(number_of_key), range: ReadRange::Whole };
        let answer = get.clone().run(&client).await;
        if let Some(error) = answer.error.filter(|_| answer.outcomes == [Outcome::NotApplied]) {
            shared
                .cluster
                .broken
                .report(Invariant::I1, format!("{:?} cannot be read {when}: {error}", key(number_of_key)));
        }
        shared.operate(number, gateway, get).await;
    }
}

/// I2, I3, I4, I5 and I9.
fn check_history(shared: &Shared) {
    if let Err(violation) = shared.history.lock().check() {
        let Violation { invariant, .. } = &violation;
        let named = [Invariant::I2, Invariant::I3, Invariant::I4, Invariant::I5, Invariant::I9];
        let invariant =
            named.into_iter().find(|named| named.to_string() == *invariant).unwrap_or(Invariant::I3);
        shared.cluster.broken.report(invariant, violation.to_string());
    }
}

/// Loses a rack, briefly, until repair has rebuilt its chunks elsewhere, or for good. Everything still reads, and
/// becomes whole again.
async fn lose_rack(shared: &Shared, gateway: &Gateway) -> bool {
    let cluster = &shared.cluster;
    let sites = cluster.sites();
    let Some(rack) = cluster.choose(&sites).map(|site| site.machine.rack) else { return true };
    let lost: Vec<_> = sites.into_iter().filter(|site| site.machine.rack == rack).collect();
    for site in &lost {
        site.crash(Crash::Kill);
    }
    let away = [Duration::ZERO, WAIT / 2, 2 * WAIT, 5 * WAIT];
    cluster.runtime.sleep(cluster.choose(&away).expect("there are some")).await;
    read_all(shared, gateway, "with a rack away").await;
    if cluster.draw(LOST_FOR_GOOD) == 0 {
        if !become_whole(cluster, gateway).await {
            return false;
        }
        for site in &lost {
            cluster.remove_site(site).await;
        }
    } else {
        for site in lost {
            while site.start().is_err() {
                cluster.runtime.sleep(LOOK).await;
            }
        }
        // It takes a while until the gateway notices that the sites are back.
        cluster.runtime.sleep(BACK_WITHIN).await;
    }
    let is_whole = become_whole(cluster, gateway).await;
    if is_whole {
        orphans::collect_all(cluster, gateway).await;
    }
    is_whole
}

/// Third phase: damages exactly r chunks of every stripe, which all data survives. Then damages more of some, which
/// must cause errors but no deletions.
async fn lose_chunks(shared: &Shared, gateway: &Gateway) {
    let cluster = &shared.cluster;
    damage(cluster, |_, stripe| stripe.code.tolerance());
    read_all(shared, gateway, "with as many chunks of each stripe damaged as may be").await;
    if !become_whole(cluster, gateway).await {
        return;
    }
    let client = gateway.client().expect("it was started");
    let get = |number| Operation::Get { key: key(number), range: ReadRange::Whole };
    let mut present = Vec::new();
    for number in shared.keys() {
        present.push(get(number).run(&client).await.outcomes != [Outcome::Read(None)]);
    }
    damage(cluster, |number, stripe| stripe.code.tolerance() + usize::from(number.is_multiple_of(2)));
    let Some(damaged) = invariants::survey(cluster) else { return };
    for (number, present) in present.into_iter().enumerate() {
        let answer = get(number).run(&client).await;
        if let Some(broken) = answer.broken {
            cluster.broken.report(Invariant::I2, format!("with too many chunks damaged: {broken}"));
        }
        if present && answer.outcomes == [Outcome::Read(None)] {
            cluster.broken.report(Invariant::I2, format!("{:?} is gone for want of chunks", key(number)));
        }
    }
    // The services find the damage and repair what they can; then an operator heals the rest.
    cluster.runtime.sleep(SERVICES_TRY).await;
    cluster.controls.iter().for_each(|control| control.kill());
    cluster.runtime.sleep(MESSAGES_ARRIVE).await;
    let _ = verify(client.stripes(), |_| ControlFlow::Continue(())).await;
    let healed = heal(client.stripes(), |_| ControlFlow::Continue(())).await;
    check_refused(cluster, &damaged, healed.ok());
}

/// Checks that a heal reports every stripe that cannot be repaired and keeps all remaining chunks of these stripes.
fn check_refused(cluster: &Cluster, damaged: &[SurveyedStripe], healed: Option<HealReport>) {
    let Some(after) = invariants::survey(cluster) else { return };
    let is_hopeless =
        |stripe: &&SurveyedStripe| stripe.protects() && !stripe.code.is_sufficient_set(&stripe.good());
    let hopeless = after.iter().filter(is_hopeless).count();
    let named = healed.as_ref().map_or(0, |report| report.unrepairable as usize);
    // A member that its wide stripe cannot restore is reported with its own stripe, and either stripe may later be
    // repaired from the other.
    let is_right = match cluster.wide_profile() {
        Some(_) => named > 0 || hopeless == 0,
        None => named == hopeless,
    };
    if !is_right {
        let what = format!("{hopeless} stripes cannot be repaired, heal names {named}: {healed:?}");
        cluster.broken.report(Invariant::I1, what);
    }
    for stripe in damaged.iter().filter(is_hopeless) {
        let now = after.iter().find(|now| now.id == stripe.id);
        if now.is_none_or(|now| now.good().len() < stripe.good().len()) {
            let what = format!("stripe {} has lost more for being damaged: {now:?}", stripe.id);
            cluster.broken.report(Invariant::I8, what);
        }
    }
}

/// Flips a bit in `count` chunks of every stripe, chosen by the stripe's number. A member of a wide stripe counts for
/// both of its stripes if both protect it.
fn damage(cluster: &Cluster, count: impl Fn(usize, &SurveyedStripe) -> usize) {
    let Some(stripes) = invariants::survey(cluster) else { return };
    let mut protecting: BTreeMap<ChunkId, Vec<usize>> = BTreeMap::new();
    for (number, stripe) in stripes.iter().enumerate().filter(|(_, stripe)| stripe.protects()) {
        let places = (0..stripe.chunks.len()).filter(|&index| has_place(stripe, index));
        places.for_each(|index| protecting.entry(stripe.chunk(index)).or_default().push(number));
    }
    let mut budget: Vec<usize> =
        stripes.iter().enumerate().map(|(number, stripe)| count(number, stripe)).collect();
    let mut damaged = BTreeSet::new();
    for (number, stripe) in stripes.iter().enumerate().filter(|(_, stripe)| stripe.protects()) {
        let n = stripe.chunks.len();
        let first = cluster.draw(n as u64) as usize;
        for index in (0..n).map(|step| (first + step) % n).filter(|&index| has_place(stripe, index)) {
            let chunk = stripe.chunk(index);
            let protectors = &protecting[&chunk];
            if budget[number] == 0
                || protectors.iter().any(|&number| budget[number] == 0)
                || !damaged.insert(chunk)
            {
                continue;
            }
            protectors.iter().for_each(|&number| budget[number] -= 1);
            let location = &stripe.record.locations[index];
            let Some(site) = cluster.site(SiteId(location.site)) else { continue };
            flip_chunk(&site, chunk, stripe.record.chunk_len, cluster.draw(1 << 40));
        }
    }
}

fn has_place(stripe: &SurveyedStripe, index: usize) -> bool {
    stripe.chunks[index] != Condition::NoPlace
}
