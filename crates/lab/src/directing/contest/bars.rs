//! Bars of the contest. They predate this code: they come from a simulation of the experiment that shares nothing
//! with it.

use serde::Serialize;

use super::super::Table;
use super::{Case, Entrant};

/// Load factor at which the mean equals that of LMLF-PW2 at the table's load, reached with more sessions at the same
/// gaps.
pub(super) const SESSIONS: &str = "load at LMLF PW2's mean, more sessions";
/// Load factor at which the mean equals that of LMLF-PW2 at the table's load, reached by sending requests faster.
pub(super) const SPEED: &str = "load at LMLF PW2's mean, sped up";
/// Mean at the bar's load over that of LMLF-PW2, with more sessions.
pub(super) const SESSIONS_AT_THE_BAR: &str = "mean over LMLF PW2's at the bar's load, more sessions";
/// Mean at the bar's load over that of LMLF-PW2, sped up.
pub(super) const SPEED_AT_THE_BAR: &str = "mean over LMLF PW2's at the bar's load, sped up";
/// Control messages per second that the default may send, to 8 front ends.
const MESSAGES_PER_S: f64 = 8_000.0;

/// A bar for a median.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Requirement {
    /// Value of the bar.
    pub value: f64,
    /// True if the median must not be below the value; false if not above.
    pub is_least: bool,
}

impl Requirement {
    fn at_most(value: f64) -> Self {
        Self { value, is_least: false }
    }

    fn at_least(value: f64) -> Self {
        Self { value, is_least: true }
    }

    /// Returns true if the measured value meets the bar.
    pub fn holds(self, measured: f64) -> bool {
        if self.is_least { measured >= self.value } else { measured <= self.value }
    }
}

/// Returns the bar of a figure of a default in a case, if there is one.
pub(super) fn bar(table: Table, case: Case, policy: &str, what: &str) -> Option<Requirement> {
    let has_copies = policy == Entrant::WITH_COPIES;
    if !has_copies && policy != Entrant::DEFAULT {
        return None;
    }
    let of_table = |one: f64, two: f64| if table == Table::One { one } else { two };
    let most = match what {
        "messages a second" if case == Case::Charged => Some(MESSAGES_PER_S),
        "mean over the best of seven" => most_mean(case, has_copies, of_table),
        "mean over the best of the paper's five" if case == Case::Free => {
            most_mean(case, has_copies, of_table)
        }
        "p99 over the best of seven" => most_p99(case, has_copies, of_table),
        SESSIONS_AT_THE_BAR | SPEED_AT_THE_BAR => Some(1.0),
        SESSIONS => return Some(Requirement::at_least(if has_copies { 4.0 } else { of_table(1.4, 1.9) })),
        SPEED => return Some(Requirement::at_least(if has_copies { 3.0 } else { of_table(1.4, 1.7) })),
        _ => None,
    };
    most.map(Requirement::at_most)
}

fn most_mean(case: Case, has_copies: bool, of_table: impl Fn(f64, f64) -> f64) -> Option<f64> {
    match (case, has_copies) {
        (Case::Charged, false) => Some(of_table(0.78, 0.77)),
        (Case::Charged, true) => Some(0.52),
        (Case::Free, false) => Some(of_table(0.96, 1.0)),
        (Case::Free, true) => Some(0.65),
        (Case::Slow, false) => Some(0.76),
        (Case::Skews, false) => Some(0.90),
        (Case::Skews, true) => Some(0.85),
        _ => None,
    }
}

fn most_p99(case: Case, has_copies: bool, of_table: impl Fn(f64, f64) -> f64) -> Option<f64> {
    match (case, has_copies) {
        (Case::Charged, false) => Some(of_table(0.96, 0.94)),
        (Case::Charged, true) => Some(0.62),
        (Case::Slow, false) => Some(0.75),
        (Case::Slow, true) => Some(0.45),
        (Case::Skews, false) => Some(1.0),
        _ => None,
    }
}
