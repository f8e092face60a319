//! Claims: one line each, `claim | bar | measured | spread | verdict`, and the same fields as JSON.

use std::io::{self, Write};

use serde_json::json;

/// Judges claims, prints them and writes them as JSON.
pub struct Claims {
    json: Box<dyn Write>,
    all_hold: bool,
}

/// Required value of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Requirement {
    #[cfg_attr(
        not(feature = "plan-bench"),
        allow(dead_code, reason = "only the planner's bars are like this")
    )]
    AtMost(f64),
    AtLeast(f64),
    /// No requirement: the figure is only reported.
    Stated,
}

impl Claims {
    pub fn new(json: Box<dyn Write>) -> Claims {
        println!("claim | bar | measured | spread | verdict");
        Claims { json, all_hold: true }
    }

    /// Judges one figure. `is_sound` says whether the measurement itself was valid; without it no bar holds.
    pub fn judge(
        &mut self,
        claim: &str,
        bar: Requirement,
        measured: f64,
        spread: &str,
        is_sound: bool,
    ) -> io::Result<()> {
        let (text, holds) = match bar {
            Requirement::AtMost(most) => (format!("≤ {most}"), Some(is_sound && measured <= most)),
            Requirement::AtLeast(least) => (format!("≥ {least}"), Some(is_sound && measured >= least)),
            Requirement::Stated => ("–".to_owned(), None),
        };
        let verdict = match holds {
            None => "stated",
            Some(true) => "holds",
            Some(false) => "DOES NOT HOLD",
        };
        self.all_hold &= holds != Some(false);
        println!("{claim} | {text} | {measured:.2} | {spread} | {verdict}");
        let line = json!({
            "claim": claim, "bar": text, "measured": measured, "spread": spread, "verdict": verdict,
        });
        writeln!(self.json, "{line}")?;
        self.json.flush()
    }

    /// Returns true if no claim failed.
    pub fn all_hold(&self) -> bool {
        self.all_hold
    }
}

/// Returns the quantile `part` (0 to 1) of a sorted sample, interpolated linearly.
pub fn quantile(sorted: &[f64], part: f64) -> f64 {
    let position = part * (sorted.len() - 1) as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * position.fract()
}

/// Sorts a sample in ascending order.
pub fn sorted(mut sample: Vec<f64>) -> Vec<f64> {
    sample.sort_by(f64::total_cmp);
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_99th_percentile_lies_between_its_neighbours() {
        let sample = sorted((0..=100).rev().map(f64::from).collect());
        assert_eq!(
            (quantile(&sample, 0.99), quantile(&sample, 0.5), quantile(&sample, 0.995)),
            (99.0, 50.0, 99.5)
        );
    }
}
