//! Predictions of a table from its first row.
//!
//! Loads and placements are tried until enough of them reproduce the mean, median and 95th percentile of the paper's
//! Normal. The prediction is the result of the other policies on these loads, relative to Normal in the same run: its
//! median and its spread. No row but Normal's influences the choice.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use striate_plan::ReadPolicy;
use striate_splitmix::hash;

use super::outcome::{Row, median, paper};
use super::requests::{self, Request};
use super::simulation::{self, Director, Run, RunSummary};
use super::{FITS, FittedLoad, Table};

/// The loads to try, each with its own placement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loads {
    /// One fit.
    Fitted(FittedLoad),
    /// Any load of the family of short bursts on a few hot objects; the nodes' speed is chosen to give Normal's mean.
    Family,
}

/// Parameters of a prediction.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The predicted table.
    pub table: Table,
    /// The loads to try.
    pub loads: Loads,
    /// Number of loads that must give Normal's row.
    pub load_count: usize,
    /// True if a load must also give Normal's row of the other table, on the same placement.
    pub jointly: bool,
    /// Tolerance for Normal's three cells, as a share of the paper's values.
    pub within: f64,
    /// Seconds of each run.
    pub length_s: f64,
    /// Seconds of a probe.
    pub probe_s: f64,
}

/// A load and placement that give Normal's row.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenLoad {
    /// Seed of the placement and the requests.
    pub seed: u64,
    /// The load.
    pub fit: FittedLoad,
    /// Result of each policy, in the order of [`paper`], Normal first.
    pub results: Vec<RunSummary>,
}

/// A prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Loads from which the prediction is made.
    pub chosen: Vec<ChosenLoad>,
    /// Number of loads that were tried.
    pub tried: u64,
}

/// A cell of a table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The paper's value relative to its Normal.
    pub paper: f64,
    /// Median of the predictions.
    pub median: f64,
    /// Minimum of the predictions.
    pub least: f64,
    /// Maximum of the predictions.
    pub greatest: f64,
}

impl Cell {
    /// Returns the relative error of the median.
    pub fn error(&self) -> f64 {
        self.median / self.paper - 1.0
    }
}

/// Warm-up before measurements count, in seconds: three tables of the slowest policy.
pub const WARM_UP_S: f64 = 12.0;
/// Halvings of the range of service times in the search for Normal's mean.
const HALVINGS: usize = 9;
/// Range of service times, in seconds. The paper's nodes are "not based on SSD" (§4): a read takes a seek.
const SERVICE_S: (f64, f64) = (0.007_5, 0.040);

impl Plan {
    /// Tries the loads of these seeds until enough give Normal's row, and runs all policies on those.
    pub fn predict(&self, seeds: impl IntoIterator<Item = u64>) -> Prediction {
        let mut prediction = Prediction { chosen: Vec::new(), tried: 0 };
        for seed in seeds {
            if prediction.chosen.len() == self.load_count {
                break;
            }
            prediction.chosen.extend(self.try_load(seed));
            prediction.tried += 1;
        }
        prediction
    }

    /// Runs all policies on the load of a seed, if it gives Normal's row.
    fn try_load(&self, seed: u64) -> Option<ChosenLoad> {
        let other = Self { table: self.table.other(), ..*self };
        if self.jointly {
            other.with_normal(seed)?;
        }
        let (fit, requests, first) = self.with_normal(seed)?;
        let policies = paper(self.table);
        let others = policies[1..].iter().map(|(text, ..)| self.run(&fit, text, seed, &requests));
        let results = std::iter::once(first).chain(others).collect();
        Some(ChosenLoad { seed, fit, results })
    }

    /// Returns the load of a seed and Normal's result on it, if that matches the paper's row.
    pub fn with_normal(&self, seed: u64) -> Option<(FittedLoad, Vec<Request>, RunSummary)> {
        let (text, _, normal) = paper(self.table)[0];
        let fit = match self.loads {
            Loads::Fitted(fit) => fit,
            Loads::Family => draw_fit(seed),
        };
        let requests = requests::draw(&fit, self.table, self.length_s, seed);
        let fit = match self.loads {
            Loads::Fitted(_) => fit,
            Loads::Family => self.with_normals_mean(fit, SERVICE_S, HALVINGS, seed, &requests),
        };
        let result = self.run(&fit, text, seed, &requests);
        self.is_met(&result.requests, &normal).then_some((fit, requests, result))
    }

    /// Returns true if a row of Normal matches the paper's.
    fn is_met(&self, row: &Row, paper: &Row) -> bool {
        row.relative_to(paper).iter().all(|ratio| (ratio - 1.0).abs() <= self.within)
    }

    /// Searches this range of service times, by halving, for the node speed that gives Normal's mean; returns the
    /// load with it.
    pub fn with_normals_mean(
        &self,
        fit: FittedLoad,
        service_s: (f64, f64),
        halvings: usize,
        seed: u64,
        requests: &[Request],
    ) -> FittedLoad {
        let (text, _, normal) = paper(self.table)[0];
        let (mut low, mut high) = service_s;
        let at = |service_s: f64| FittedLoad { service_s: [service_s; 2], ..fit };
        for _ in 0..halvings {
            let middle = f64::midpoint(low, high);
            let mean = self.run(&at(middle), text, seed, requests).requests.mean;
            if mean < normal.mean { low = middle } else { high = middle }
        }
        at(f64::midpoint(low, high))
    }

    fn run(&self, fit: &FittedLoad, policy: &str, seed: u64, requests: &[Request]) -> RunSummary {
        let policy: ReadPolicy =
            striate_baselines::read_policy(policy).expect("the table's policies are known");
        let (director, probe_s) = (Director::Published(policy), self.probe_s);
        let run = Run {
            fit,
            table: self.table,
            director,
            probe_s,
            warm_up_s: WARM_UP_S,
            seed,
            slow: None,
            copies: None,
        };
        simulation::run(&run, requests)
    }
}

impl Prediction {
    /// Returns mean, median and 95th percentile of a policy relative to Normal, by its index in the table.
    pub fn cells(&self, table: Table, policy: usize) -> [Cell; 3] {
        let rows = paper(table);
        let measured = rows[policy].2.relative_to(&rows[0].2);
        [0, 1, 2].map(|cell| {
            let ratios = self
                .chosen
                .iter()
                .map(|chosen| chosen.results[policy].requests.relative_to(&chosen.results[0].requests)[cell]);
            let ratios: Vec<f64> = ratios.collect();
            Cell {
                paper: measured[cell],
                least: ratios.iter().copied().fold(f64::INFINITY, f64::min),
                greatest: ratios.iter().copied().fold(0.0, f64::max),
                median: median(ratios),
            }
        })
    }

    /// Returns the median over the runs of a figure of a policy.
    pub fn median_of(&self, policy: usize, figure: impl Fn(&RunSummary) -> f64) -> f64 {
        median(self.chosen.iter().map(|chosen| figure(&chosen.results[policy])).collect())
    }
}

/// Results of Normal with a time-out on one load: medians over placements.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeoutResult {
    /// The load.
    pub fit: FittedLoad,
    /// Normal with its time-out, as [`striate_baselines::read_policy`] parses it.
    pub policy: String,
    /// Mean, median and 95th percentile in seconds.
    pub cells: [f64; 3],
    /// Share of requests that timed out.
    pub share: f64,
}

/// The compared time-outs.
const TIME_OUTS: [&str; 4] = ["normal(300ms)", "normal(500ms)", "normal(1s)", "normal(2s)"];

impl Plan {
    /// Runs Normal with several time-outs on each of the fits, on `load_count` placements each.
    pub fn sweep_time_outs(&self, seeds: impl Iterator<Item = u64> + Clone) -> Vec<TimeoutResult> {
        let mut swept = Vec::new();
        for (fit, policy) in FITS.into_iter().flat_map(|fit| TIME_OUTS.map(|policy| (fit, policy))) {
            let on_placement = |seed: u64| {
                let requests = requests::draw(&fit, self.table, self.length_s, seed);
                self.run(&fit, policy, seed, &requests)
            };
            let results: Vec<RunSummary> = seeds.clone().take(self.load_count).map(on_placement).collect();
            let median_of =
                |figure: &dyn Fn(&RunSummary) -> f64| median(results.iter().map(figure).collect());
            let cells = [0, 1, 2].map(|cell| median_of(&|result| result.requests.cells()[cell]));
            let share = median_of(&|result| result.timed_out);
            swept.push(TimeoutResult { fit, policy: policy.to_owned(), cells, share });
        }
        swept
    }
}

/// Draws a load of the family: skews, sizes and bursts in the ranges from which Normal's row can result.
fn draw_fit(seed: u64) -> FittedLoad {
    let mut rng = SmallRng::seed_from_u64(hash(seed ^ 0xf17));
    FittedLoad {
        name: "family",
        exponent: rng.random_range(1.5..2.5),
        shift: rng.random_range(0.0..4.0),
        sigma: rng.random_range(0.0..1.0),
        burst: rng.random_range(5.0..12.0),
        gap_s: rng.random_range(0.005..0.006),
        service_s: [0.0; 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_of_the_family_give_normals_mean_and_are_chosen_by_its_row_only() {
        let plan = Plan {
            table: Table::One,
            loads: Loads::Family,
            load_count: 2,
            jointly: false,
            within: 0.25,
            length_s: 60.0,
            probe_s: simulation::PROBE_S,
        };
        let prediction = plan.predict(1..200);
        assert_eq!(prediction.chosen.len(), 2);
        assert_eq!(prediction.tried, prediction.chosen[1].seed, "none is tried in vain");
        let normal = paper(Table::One)[0].2;
        for chosen in &prediction.chosen {
            assert_eq!(chosen.results.len(), 5);
            assert!(plan.is_met(&chosen.results[0].requests, &normal), "{chosen:?}");
        }
        let jointly = Plan { jointly: true, ..plan };
        for chosen in jointly.predict(1..25).chosen {
            let other = Plan { table: Table::Two, ..plan };
            assert!(other.with_normal(chosen.seed).is_some() && plan.with_normal(chosen.seed).is_some());
        }
        let swept = Plan { load_count: 1, ..plan }.sweep_time_outs(1..);
        assert_eq!(swept.len(), 16);
        let fewer =
            swept.chunks(4).all(|of_fit| of_fit.is_sorted_by(|short, long| short.share >= long.share));
        assert!(fewer, "the longer the time-out, the fewer time out: {swept:?}");
        let cells = prediction.cells(Table::One, 0);
        assert!(
            cells.iter().all(|cell| (cell.least, cell.median, cell.error()) == (1.0, 1.0, 0.0)),
            "{cells:?}"
        );
        let of_probing = prediction.cells(Table::One, 3)[0];
        assert!(of_probing.least <= of_probing.median && of_probing.median <= of_probing.greatest);
        assert!((0.1..0.9).contains(&of_probing.median), "{of_probing:?}");
    }
}
