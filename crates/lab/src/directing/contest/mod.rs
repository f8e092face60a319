//! The store's default against the seven policies of Hu et al., in their own experiment.
//!
//! Every case runs all of them on the same requests, placements and nodes. For each load it reports the default's
//! mean and 99th percentile relative to the best of the seven, which may differ from load to load. Verdicts use the
//! median over loads and placements. The default was tuned on none of these: its one number, w, comes from batch
//! reads on other placements.
//!
//! - [`loads`]: the requests.
//! - [`bars`]: the required results.

pub mod bars;
pub mod loads;

use serde::Serialize;
use striate_codec::Code;

use self::bars::{Requirement, bar};
use self::loads::Load;
use super::Table;
use super::copies::{HotCopies, ONE_PERCENT};
use super::outcome::median;
use super::placement::place;
use super::prediction::WARM_UP_S;
use super::requests::{Request, Sessions};
use super::simulation::{self, Director, PROBE_S, Run, RunSummary, SlowEpisodes};
use super::store_default::{Degraded, Pushes, StoreDefault};

/// The seven policies, by their texts. Those that the paper ran with an LRC come first: "probing all the degraded
/// read combinations will incur an overly high cost" (§4). All seven are run here.
const SEVEN: [&str; 7] = ["normal(2s)", "lmlf-lazy", "opt-lazy", "lmlf-pw2", "llf-pw2", "lmlf", "llf"];

/// Number of policies that the paper ran with an LRC.
const FIVE: usize = 5;

/// Cases of the contest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Case {
    /// Loads that give Normal's row; the seven pay 1.25 ms for each probe.
    Charged,
    /// As `Charged`, but probes take no time.
    Free,
    /// As `Charged`, and every node is five times slower for one second in every thirty.
    Slow,
    /// Other skews that give Normal's mean, without bursts; probes are charged.
    Skews,
    /// More load, until the default's mean equals that of LMLF-PW2 at the table's load.
    Load,
    /// A CDN's sizes and popularity; probes are charged.
    Cdn,
    /// A trace's reads; probes are charged.
    Trace,
}

impl Case {
    /// The cases that need no files.
    pub const OF_THE_PAPER: [Self; 5] = [Self::Charged, Self::Free, Self::Slow, Self::Skews, Self::Load];

    /// Returns the case's name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Charged => "charged",
            Self::Free => "free",
            Self::Slow => "slow",
            Self::Skews => "skews",
            Self::Load => "load",
            Self::Cdn => "cdn",
            Self::Trace => "trace",
        }
    }

    fn probe_s(self) -> f64 {
        if self == Self::Free { 0.0 } else { PROBE_S }
    }

    fn slow(self) -> Option<SlowEpisodes> {
        (self == Self::Slow).then_some(SlowEpisodes::USUAL)
    }
}

/// A default in the contest: its rule, and whether 1% of the partitions have copies.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Entrant {
    rule: StoreDefault,
    has_copies: bool,
}

impl Entrant {
    const DEFAULT: &'static str = "default";
    const WITH_COPIES: &'static str = "default, 1% copies";

    fn new(rule: StoreDefault, has_copies: bool) -> Self {
        Self { rule, has_copies }
    }

    fn name(&self) -> String {
        let copies = if self.has_copies { ", 1% copies" } else { "" };
        format!("{}{copies}", self.rule)
    }
}

/// Result of one policy on one load.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyOutcome {
    /// Name of the case.
    pub case: &'static str,
    /// Name of the load.
    pub load: String,
    /// Name of the policy.
    pub policy: String,
    /// Result of the run.
    pub seen: RunSummary,
}

/// Verdict over all loads of a case.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Table number, 1 or 2.
    pub table: u32,
    /// Name of the case.
    pub case: &'static str,
    /// Name of the default.
    pub policy: String,
    /// Name of the figure.
    pub what: &'static str,
    /// Median over the loads.
    pub median: f64,
    /// Minimum over the loads.
    pub least: f64,
    /// Maximum over the loads.
    pub greatest: f64,
    /// Number of loads.
    pub loads: usize,
    /// Required value of the median, if any.
    pub bar: Option<Requirement>,
}

/// The outcome of a case.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// Results of all runs.
    pub shown: Vec<PolicyOutcome>,
    /// Verdicts on the results.
    pub verdicts: Vec<Verdict>,
}

/// A contest over the cases of one table.
#[derive(Clone, Copy, Debug)]
pub struct Contest {
    /// The table.
    pub table: Table,
    /// Seconds of each run.
    pub length_s: f64,
    /// Runs only what has a bar.
    pub is_brief: bool,
}

impl Contest {
    /// Runs a case on its loads.
    pub fn run(&self, case: Case, loads: &[Load]) -> Outcome {
        if case == Case::Load {
            return self.run_loads(loads);
        }
        let entrants = self.entrants(case);
        let mut outcome = Outcome::default();
        let mut ratios: Vec<Vec<[f64; 3]>> = vec![Vec::new(); entrants.len()];
        for load in loads {
            let seven = SEVEN.map(|text| self.show_published(case, text, load));
            let least =
                |figure: fn(&RunSummary) -> f64| seven.iter().map(figure).fold(f64::INFINITY, f64::min);
            let best = [least(|summary| summary.requests.mean), least(|summary| summary.p99)];
            let of_five =
                seven[..FIVE].iter().map(|summary| summary.requests.mean).fold(f64::INFINITY, f64::min);
            outcome
                .shown
                .extend(SEVEN.iter().zip(seven).map(|(text, summary)| shown(case, load, text, summary)));
            for (entrant, ratios) in entrants.iter().zip(&mut ratios) {
                let summary = self.show(case, entrant, load, &load.requests);
                ratios.push([
                    summary.requests.mean / best[0],
                    summary.p99 / best[1],
                    summary.requests.mean / of_five,
                ]);
                outcome.shown.push(shown(case, load, &entrant.name(), summary));
            }
        }
        for (entrant, ratios) in entrants.iter().zip(ratios) {
            let figure_names = [
                "mean over the best of seven",
                "p99 over the best of seven",
                "mean over the best of the paper's five",
            ];
            let count = if self.table == Table::One { 3 } else { 2 };
            for (place, what) in figure_names.into_iter().enumerate().take(count) {
                let values = ratios.iter().map(|ratio| ratio[place]).collect();
                outcome.verdicts.push(self.verdict(case, &entrant.name(), what, values));
            }
            let of_entrant = |shown: &&PolicyOutcome| shown.policy == entrant.name();
            let pushes =
                outcome.shown.iter().filter(of_entrant).map(|shown| shown.seen.pushes_per_s).collect();
            outcome.verdicts.push(self.verdict(case, &entrant.name(), "messages a second", pushes));
        }
        outcome
    }

    /// Returns the defaults that run in a case.
    fn entrants(&self, case: Case) -> Vec<Entrant> {
        let usual = StoreDefault::default();
        let mut entrants = vec![Entrant::new(usual, false), Entrant::new(usual, true)];
        if !self.is_brief && matches!(case, Case::Charged | Case::Free) {
            if self.table == Table::One {
                entrants.push(Entrant::new(StoreDefault { degraded: Degraded::Local, ..usual }, false));
            }
            let pushed = |every_s| StoreDefault { pushes: Pushes::Every(every_s), ..usual };
            entrants.extend([0.005, 0.05].map(|every_s| Entrant::new(pushed(every_s), false)));
        }
        entrants
    }

    fn show_published(&self, case: Case, text: &str, load: &Load) -> RunSummary {
        let policy = striate_baselines::read_policy(text).expect("the seven are known");
        self.show_by(case, Director::Published(policy), None, load, &load.requests)
    }

    fn show(&self, case: Case, entrant: &Entrant, load: &Load, requests: &[Request]) -> RunSummary {
        let copies = entrant.has_copies.then(|| {
            let code: Code = self.table.code();
            HotCopies::place(&code, &place(&code, load.seed), &load.before, ONE_PERCENT)
        });
        self.show_by(case, Director::Store(entrant.rule), copies.as_ref(), load, requests)
    }

    fn show_by(
        &self,
        case: Case,
        director: Director,
        copies: Option<&HotCopies>,
        load: &Load,
        requests: &[Request],
    ) -> RunSummary {
        let run = Run {
            fit: &load.fit,
            table: self.table,
            director,
            probe_s: case.probe_s(),
            warm_up_s: WARM_UP_S,
            seed: load.seed,
            slow: case.slow(),
            copies,
        };
        simulation::run(&run, requests)
    }

    /// Runs the default under more load, against LMLF-PW2 at the table's load.
    fn run_loads(&self, loads: &[Load]) -> Outcome {
        let usual = StoreDefault::default();
        let mut outcome = Outcome::default();
        let means: Vec<f64> = loads
            .iter()
            .map(|load| {
                let summary = self.show_published(Case::Load, "lmlf-pw2", load);
                outcome.shown.push(shown(Case::Load, load, "lmlf-pw2", summary));
                summary.requests.mean
            })
            .collect();
        for (entrant, growth) in [false, true].into_iter().flat_map(|has_copies| {
            [Growth::Sessions, Growth::Speed].map(|growth| (Entrant::new(usual, has_copies), growth))
        }) {
            let mean = |load: &Load, factor: f64| {
                let requests = growth.grow(load, self.table, self.length_s, factor);
                self.show(Case::Load, &entrant, load, &requests).requests.mean
            };
            let least =
                bar(self.table, Case::Load, &entrant.name(), growth.what()).map_or(1.0, |bar| bar.value);
            let pairs = || loads.iter().zip(&means);
            let at_bar: Vec<f64> = pairs().map(|(load, of_pw2)| mean(load, least) / of_pw2).collect();
            outcome.verdicts.push(self.verdict(
                Case::Load,
                &entrant.name(),
                growth.what_at_the_bar(),
                at_bar,
            ));
            if !self.is_brief {
                let reached = pairs().map(|(load, of_pw2)| greatest(|factor| mean(load, factor) <= *of_pw2));
                outcome.verdicts.push(self.verdict(
                    Case::Load,
                    &entrant.name(),
                    growth.what(),
                    reached.collect(),
                ));
            }
        }
        outcome
    }

    fn verdict(&self, case: Case, policy: &str, what: &'static str, values: Vec<f64>) -> Verdict {
        Verdict {
            table: if self.table == Table::One { 1 } else { 2 },
            case: case.name(),
            policy: policy.to_owned(),
            what,
            least: values.iter().copied().fold(f64::INFINITY, f64::min),
            greatest: values.iter().copied().fold(0.0, f64::max),
            loads: values.len(),
            median: median(values),
            bar: bar(self.table, case, policy, what),
        }
    }
}

/// How load is increased.
#[derive(Clone, Copy)]
enum Growth {
    /// More sessions at the same gaps.
    Sessions,
    /// The same requests, sent faster.
    Speed,
}

impl Growth {
    fn what(self) -> &'static str {
        match self {
            Self::Sessions => bars::SESSIONS,
            Self::Speed => bars::SPEED,
        }
    }

    fn what_at_the_bar(self) -> &'static str {
        match self {
            Self::Sessions => bars::SESSIONS_AT_THE_BAR,
            Self::Speed => bars::SPEED_AT_THE_BAR,
        }
    }

    /// Returns `factor` times the load. Runs under more load are shorter, but last at least a hundred seconds.
    fn grow(self, load: &Load, table: Table, length_s: f64, factor: f64) -> Vec<Request> {
        match self {
            Self::Sessions => Sessions { fit: &load.fit, table, load: factor, day: 0 }
                .draw((length_s / factor).max(length_s.min(100.0)), load.seed),
            Self::Speed => {
                let faster = |request: &Request| Request { at: request.at / factor, ..*request };
                load.requests.iter().map(faster).collect()
            }
        }
    }
}

/// Returns the greatest factor from 1 to 16 at which `holds` is true, to within 3%; 1 if it holds nowhere above 1.
fn greatest(holds: impl Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = (0.0f64, 16f64.ln());
    for _ in 0..7 {
        let middle = f64::midpoint(low, high);
        if holds(middle.exp()) { low = middle } else { high = middle }
    }
    low.exp()
}

fn shown(case: Case, load: &Load, policy: &str, seen: RunSummary) -> PolicyOutcome {
    PolicyOutcome { case: case.name(), load: load.name.clone(), policy: policy.to_owned(), seen }
}

#[cfg(test)]
mod tests;
