//! Runs many seeds, several at a time. The results so far are kept in a file, from which the next call resumes.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};

use serde::{Deserialize, Serialize};

use super::coverage::Table;
use super::mutation::Mutation;
use super::run::{Report, RunOptions, run};
use super::shape::{Shape, ShapeFilter};
use super::wide::Sealing;

/// The seeds of a campaign, and the parameters of each run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Campaign {
    /// First seed.
    pub from: u64,
    /// Number of seeds.
    pub seeds: u64,
    /// The seeds that are run; the others are skipped.
    pub filter: ShapeFilter,
    /// Minimum number of operations per seed.
    pub operations: u64,
    /// Number of faults per seed.
    pub faults: u64,
    /// Planted defect. A campaign with a mutation ends with the first seed that finds it.
    pub mutation: Mutation,
    /// Number of seeds that run in parallel, each on its own core. Results do not depend on it.
    pub jobs: usize,
    /// Directory of the state file; `None` keeps no state.
    pub out: Option<PathBuf>,
    /// Hash of the program. Results of other programs are discarded.
    pub program: String,
}

/// A seed and its report, or the text of its panic. `None`: the filter skips the seed.
type SeedRun = (u64, Option<Result<Report, String>>);

/// A seed that broke an invariant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedSeed {
    /// The seed.
    pub seed: u64,
    /// Name of the invariant, or `panic`.
    pub invariant: String,
    /// How the invariant was broken.
    pub what: String,
}

/// Results of a campaign so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CampaignProgress {
    /// The program and the campaign's parameters. Only results with the same code are resumed.
    code: String,
    /// Next seed to run.
    pub next: u64,
    /// Number of seeds that broke no invariant.
    pub clean: u64,
    /// Seeds that broke an invariant.
    pub failed: Vec<FailedSeed>,
    /// Operations of all seeds.
    pub operations: u64,
    /// Faults injected in all seeds.
    pub faults: u64,
    /// Counts of what happened to wide stripes.
    pub sealing: Sealing,
    table: String,
}

impl CampaignProgress {
    /// Returns the table of operations and faults that met.
    pub fn table(&self) -> Table {
        Table::from_text(&self.table)
    }

    fn add(&mut self, seed: u64, result: Option<Result<Report, String>>) {
        self.next = seed + 1;
        let Some(result) = result else { return };
        let broken = match result {
            Ok(report) => {
                let mut table = self.table();
                table.add(&report.table);
                self.table = table.to_text();
                self.operations += report.operations;
                self.faults += report.faults;
                self.sealing.add(&report.sealing);
                report.broken.map(|(invariant, what)| (invariant.to_string(), what))
            }
            Err(panic) => Some(("panic".to_owned(), panic)),
        };
        match broken {
            Some((invariant, what)) => self.failed.push(FailedSeed { seed, invariant, what }),
            None => self.clean += 1,
        }
    }
}

impl Campaign {
    fn code(&self) -> String {
        let Self { from, filter, operations, faults, mutation, program, .. } = self;
        format!(
            "program {program}, from seed {from}, {filter}, {operations} operations, {faults} faults, mutation {mutation}"
        )
    }

    fn file(&self) -> Option<PathBuf> {
        Some(self.out.as_ref()?.join(format!("faults-{}.json", self.mutation)))
    }

    /// Loads the results of an earlier call with the same code.
    fn resume(&self) -> io::Result<CampaignProgress> {
        let new = CampaignProgress { code: self.code(), next: self.from, ..CampaignProgress::default() };
        let Some(path) = self.file() else { return Ok(new) };
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(new),
            Err(error) => return Err(error),
        };
        let shown: CampaignProgress = serde_json::from_str(&text).unwrap_or_default();
        Ok(if shown.code == new.code { shown } else { new })
    }

    fn keep(&self, shown: &CampaignProgress) -> io::Result<()> {
        let Some(path) = self.file() else { return Ok(()) };
        let unfinished = path.with_extension("tmp");
        fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        fs::write(&unfinished, serde_json::to_string_pretty(shown)?)?;
        fs::rename(unfinished, path)
    }

    /// Runs the remaining seeds. Calls `tell` after each one, in seed order.
    ///
    /// # Errors
    /// If the state file cannot be read or written.
    pub fn run(&self, mut tell: impl FnMut(&CampaignProgress)) -> io::Result<CampaignProgress> {
        let mut shown = self.resume()?;
        let (next, is_over) = (AtomicU64::new(shown.next), AtomicBool::new(self.is_over(&shown)));
        std::thread::scope(|scope| {
            let (sender, ran) = channel();
            for _ in 0..self.jobs.max(1) {
                let sender = sender.clone();
                scope.spawn(|| self.work(&next, &is_over, sender));
            }
            drop(sender);
            let mut early = BTreeMap::new();
            for (seed, result) in ran {
                early.insert(seed, result);
                while let Some(result) = early.remove(&shown.next).filter(|_| !self.is_over(&shown)) {
                    shown.add(shown.next, result);
                    is_over.store(self.is_over(&shown), Ordering::Relaxed);
                    self.keep(&shown).inspect_err(|_| is_over.store(true, Ordering::Relaxed))?;
                    tell(&shown);
                }
            }
            Ok(shown)
        })
    }

    /// Returns true if no seed is left or the planted defect was found.
    fn is_over(&self, shown: &CampaignProgress) -> bool {
        let is_found = self.mutation != Mutation::None && !shown.failed.is_empty();
        is_found || shown.next >= self.from + self.seeds
    }

    /// Runs seeds until none is left.
    fn work(&self, next: &AtomicU64, is_over: &AtomicBool, sender: Sender<SeedRun>) {
        while !is_over.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.from + self.seeds {
                return;
            }
            let is_wanted = self.filter.admits(&Shape::of(seed));
            let ran = is_wanted.then(|| run_caught(self.options(seed)));
            if sender.send((seed, ran)).is_err() {
                return;
            }
        }
    }

    fn options(&self, seed: u64) -> RunOptions {
        RunOptions {
            seed,
            operations: self.operations,
            faults: self.faults,
            mutation: self.mutation,
            verbose: false,
        }
    }
}

/// Runs a seed and catches its panic, which counts as a broken invariant.
fn run_caught(options: RunOptions) -> Result<Report, String> {
    catch_unwind(AssertUnwindSafe(|| run(options))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_campaign_goes_on_where_it_was_ended_and_begins_anew_for_other_code() {
        let directory = std::env::temp_dir().join(format!("striate-faults-{}", std::process::id()));
        let campaign = Campaign {
            from: 5,
            seeds: 10,
            filter: ShapeFilter::default(),
            operations: 500,
            faults: 20,
            mutation: Mutation::None,
            jobs: 1,
            out: Some(directory.clone()),
            program: "this".to_owned(),
        };
        let mut shown = campaign.resume().unwrap();
        assert_eq!(shown.next, 5);
        shown.add(5, Some(Err("as intended".to_owned())));
        campaign.keep(&shown).unwrap();
        assert_eq!(campaign.resume().unwrap(), shown);
        assert_eq!((shown.next, shown.failed.len(), shown.clean), (6, 1, 0));
        let other = Campaign { operations: 600, ..campaign.clone() };
        assert_eq!(other.resume().unwrap().next, 5);
        let newer = Campaign { program: "newer".to_owned(), ..campaign };
        assert_eq!(newer.resume().unwrap().next, 5);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn what_is_found_does_not_depend_on_how_many_run_at_the_same_time() {
        let campaign = |jobs| Campaign {
            from: 1,
            seeds: 5,
            filter: ShapeFilter::default(),
            operations: 60,
            faults: 4,
            mutation: Mutation::None,
            jobs,
            out: None,
            program: String::new(),
        };
        let mut order = Vec::new();
        let together = campaign(3).run(|shown| order.push(shown.next)).unwrap();
        assert_eq!(together, campaign(1).run(|_| {}).unwrap());
        assert_eq!(order, [2, 3, 4, 5, 6]);
    }
}
