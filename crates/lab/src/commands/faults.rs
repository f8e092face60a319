//! `striate-lab faults`: the store under random faults.

use striate_faults::campaign::{Campaign, CampaignProgress};
use striate_faults::coverage::{FaultKind, Row, Table};
use striate_faults::mutation::Mutation;
use striate_faults::run::{self, RunOptions};
use striate_faults::shape::{Family, ShapeFilter};
use striate_faults::wide::Sealing;
use striate_runtime::Runtime;

use crate::args::FaultsArgs;
use crate::failure::{Failure, Outcome};
use crate::program::{self, commit};

/// Number of seeds after which every cell of the table must have been hit. The rarest, a drain while messages are
/// lost, occurs about once in two hundred seeds.
const SEEDS_FOR_ALL_CELLS: u64 = 320;
/// Lines of progress that a campaign prints.
const LINES: u64 = 20;

pub(super) fn run(clock: &Runtime, args: &FaultsArgs) -> Outcome {
    let mutations: Vec<Mutation> = match args.mutation.as_deref() {
        Some("all") => Mutation::ALL.to_vec(),
        Some(name) => vec![name.parse().map_err(Failure::refused)?],
        None => vec![Mutation::None],
    };
    let no_family = |name: &str| Failure::refused(format!("{name:?} is no family of profiles"));
    let family = args.family.as_deref().map(|name| Family::of_name(name).ok_or_else(|| no_family(name)));
    let family = family.transpose()?;
    if let Some(seed) = args.seed {
        return show(args, seed, mutations[0]);
    }
    for mutation in mutations {
        let campaign = Campaign {
            from: args.from,
            seeds: args.seeds,
            filter: ShapeFilter { family, has_memory: args.memory },
            operations: args.operations,
            faults: args.faults,
            mutation,
            jobs: args.jobs.unwrap_or_else(processors),
            out: args.out.clone(),
            program: program::hash().map_err(Failure::failed)?,
        };
        let shown = run_campaign(clock, &campaign)?;
        match mutation {
            Mutation::None => judge(&campaign, &shown)?,
            _ => judge_mutation(&campaign, &shown)?,
        }
    }
    Ok(())
}

/// Returns how many runs this machine can execute in parallel.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs one seed and prints everything that happens.
fn show(args: &FaultsArgs, seed: u64, mutation: Mutation) -> Outcome {
    let (operations, faults) = (args.operations, args.faults);
    let report = run::run(RunOptions { seed, operations, faults, mutation, verbose: true });
    println!("{}", report.table);
    println!(
        "seed {seed}, commit {}: {}; {} operations, {:?}, {} faults, {:.1} s of virtual time, trace {}",
        commit(),
        report.shape,
        report.operations,
        report.answered,
        report.faults,
        report.virtual_time.as_secs_f64(),
        report.digest
    );
    match report.broken {
        Some((invariant, what)) => Err(Failure::failed(format!("{invariant} is broken: {what}"))),
        None => Ok(()),
    }
}

fn run_campaign(clock: &Runtime, campaign: &Campaign) -> Result<CampaignProgress, Failure> {
    let (started, every) = (clock.uptime(), (campaign.seeds / LINES).max(1));
    let mut done = 0;
    let shown = campaign.run(|shown| {
        done += 1;
        let failed = shown.failed.last().filter(|failed| failed.seed + 1 == shown.next);
        if let Some(failed) = failed.filter(|_| campaign.mutation == Mutation::None) {
            println!("{}", describe(campaign, failed.seed, &failed.invariant, &failed.what));
        }
        if done % every == 0 && campaign.mutation == Mutation::None {
            eprintln!(
                "seed {}: {} clean, {} broken; {:.2} s of real time each",
                shown.next - 1,
                shown.clean,
                shown.failed.len(),
                (clock.uptime() - started).as_secs_f64() / f64::from(done as u32)
            );
        }
    });
    shown.map_err(|error| Failure::failed(format!("the state of the fault runs cannot be kept: {error}")))
}

fn describe(campaign: &Campaign, seed: u64, invariant: &str, what: &str) -> String {
    let again = match campaign.mutation {
        Mutation::None => format!("striate-lab faults --seed {seed}"),
        mutation => format!("striate-lab faults --seed {seed} --mutation {mutation}"),
    };
    format!(
        "seed {seed}, commit {}: {invariant} is broken: {what}\n  again: {again} --operations {} --faults {}",
        commit(),
        campaign.operations,
        campaign.faults
    )
}

/// Returns true if some seeds have wide stripes.
fn may_seal(campaign: &Campaign) -> bool {
    campaign.filter.family.is_none_or(|family| family == Family::Wide)
}

fn judge(campaign: &Campaign, shown: &CampaignProgress) -> Outcome {
    let table = shown.table();
    println!("{table}");
    println!(
        "commit {}: {} seeds clean, {} broken; {} operations, {} faults",
        commit(),
        shown.clean,
        shown.failed.len(),
        shown.operations,
        shown.faults
    );
    print_sealing(shown, &table);
    let unhit = table.unhit();
    if !unhit.is_empty() && campaign.seeds >= SEEDS_FOR_ALL_CELLS && campaign.filter.admits_all() {
        let names: Vec<_> =
            unhit.iter().map(|(row, fault)| format!("{} during {}", row.name(), fault.name())).collect();
        return Err(Failure::failed(format!("never tried: {}", names.join(", "))));
    }
    let Sealing {
        sealed, given_up, dropped, placed_anew, left, taken, swapped, updated, narrow_again, ..
    } = shown.sealing;
    let happened = [sealed, given_up, dropped, placed_anew, left, taken, swapped, updated, narrow_again];
    if happened.contains(&0) && campaign.seeds >= SEEDS_FOR_ALL_CELLS && may_seal(campaign) {
        return Err(Failure::failed("something of the above has never happened to a wide stripe".to_owned()));
    }
    match shown.failed.as_slice() {
        [] => Ok(()),
        failed => Err(Failure::failed(format!("{} seeds broke an invariant", failed.len()))),
    }
}

fn print_sealing(shown: &CampaignProgress, table: &Table) {
    let Sealing {
        begun,
        sealed,
        given_up,
        dropped,
        placed_anew,
        left,
        taken,
        swapped,
        emptied,
        updated,
        narrow_again,
    } = shown.sealing;
    let racks = table.count(Row::Family(Family::Wide), FaultKind::RackLoss);
    println!(
        "wide stripes: {begun} begun, {sealed} sealed, {given_up} given up; {dropped} stripes have dropped their parities, {narrow_again} \
         have them again; {placed_anew} members moved or repaired, {left} places left, {taken} taken, \
         {swapped} changed for a local parity's, {emptied} wide stripes emptied into others, {updated} changed in place; {racks} racks lost"
    );
}

fn judge_mutation(campaign: &Campaign, shown: &CampaignProgress) -> Outcome {
    let mutation = campaign.mutation;
    let Some(found) = shown.failed.first() else {
        return Err(Failure::failed(format!("{mutation} was not found in {} seeds", campaign.seeds)));
    };
    let seeds = found.seed + 1 - campaign.from;
    let first_line = found.what.lines().next().unwrap_or_default();
    println!("{mutation}: found after {seeds} seeds, {} is broken: {first_line}", found.invariant);
    Ok(())
}
