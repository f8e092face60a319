//! Ratios with their spread, and claims.

use std::collections::HashMap;
use std::io::{self, Write};

use serde_json::json;

use super::cases::{Case, Operation, Place};
use super::library::{CACHED, STREAMING};

/// Time of each library on each case: nanoseconds per byte of data, one figure per round.
#[derive(Default)]
pub struct Measurements {
    rounds: HashMap<(String, &'static str), Vec<f64>>,
}

/// Median and quartiles of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub low: f64,
    pub median: f64,
    pub high: f64,
}

impl Spread {
    /// Computes the spread of a sample, which must not be empty.
    pub fn of(mut sample: Vec<f64>) -> Spread {
        sample.sort_by(f64::total_cmp);
        let at = |quantile: f64| {
            let position = quantile * (sample.len() - 1) as f64;
            let (below, part) = (position.floor() as usize, position.fract());
            let above = (below + 1).min(sample.len() - 1);
            sample[below] * (1.0 - part) + sample[above] * part
        };
        Spread { low: at(0.25), median: at(0.5), high: at(0.75) }
    }
}

impl Measurements {
    pub fn add(&mut self, case: &Case, library: &'static str, nanoseconds_per_byte: f64) {
        self.rounds.entry((case.to_string(), library)).or_default().push(nanoseconds_per_byte);
    }

    fn has(&self, case: &Case, library: &'static str) -> bool {
        !self.of(case, library).is_empty()
    }

    fn of(&self, case: &Case, library: &'static str) -> &[f64] {
        self.rounds.get(&(case.to_string(), library)).map_or(&[], Vec::as_slice)
    }

    /// Returns GB of data per second.
    pub fn speed(&self, case: &Case, library: &'static str) -> Spread {
        Spread::of(self.of(case, library).iter().map(|nanoseconds| 1.0 / nanoseconds).collect())
    }

    /// Returns how many times as fast `a` is as `b`, compared round by round.
    pub fn ratio(&self, a: (&Case, &'static str), b: (&Case, &'static str)) -> Spread {
        let pairs = self.of(a.0, a.1).iter().zip(self.of(b.0, b.1));
        Spread::of(pairs.map(|(a, b)| b / a).collect())
    }
}

/// A claim about a ratio of speeds.
pub struct Claim {
    text: String,
    subject: (Case, &'static str),
    against: (Case, &'static str),
    bar: f64,
}

/// Chunk length of the claim on hot data: a (10,4) stripe then fits in a 2 MiB L2 cache. With 1 MiB chunks it lies in
/// L3, and the claim would measure the speed of L3; the table shows that case.
const HOT_CHUNK_BYTES: usize = 128 << 10;

/// The claims about encoding and repair, for each chunk length.
pub fn claims() -> Vec<Claim> {
    let mut claims = Vec::new();
    for chunk_bytes in [128 << 10, 1 << 20] {
        let encode = |k, r, place| Case { k, r, chunk_bytes, operation: Operation::Encode, place };
        // From DRAM, Striate uses streaming stores, since the parities go to DRAM too.
        let mut claim = |case: Case, against: (Case, &'static str), bar: f64, versus: &str| {
            let striate = if case.place == Place::Hot { CACHED } else { STREAMING };
            let text = format!("{case}: {striate} / {versus}");
            claims.push(Claim { text, subject: (case, striate), against, bar });
        };
        let hot = encode(10, 4, Place::Hot);
        let dram = |k, r| encode(k, r, Place::Dram);
        if chunk_bytes == HOT_CHUNK_BYTES {
            claim(hot, (hot, "isa-l"), 1.2, "isa-l");
        }
        claim(dram(10, 4), (dram(10, 4), "isa-l"), 1.15, "isa-l");
        claim(dram(64, 4), (dram(16, 4), STREAMING), 0.9, "own (16,4)");
        claim(dram(128, 4), (dram(16, 4), STREAMING), 0.9, "own (16,4)");
        for operation in [Operation::DecodeOne, Operation::DecodeAll] {
            let decode = |k| Case { operation, ..dram(k, 4) };
            claim(decode(128), (decode(16), STREAMING), 0.9, "own (16,4)");
        }
        claim(dram(128, 8), (dram(128, 8), "isa-l"), 4.0, "isa-l");
        claim(dram(128, 8), (dram(128, 8), "klauspost"), 1.8, "klauspost");
    }
    claims
}

/// Prints one line for each claim and writes it as JSON. Returns true if all claims hold. The bars apply to
/// processors with GFNI: with any other kernel the ratios are only reported.
pub fn print_claims(measurements: &Measurements, kernel: &str, json: &mut dyn Write) -> io::Result<bool> {
    let is_judged = kernel.starts_with("gfni");
    let mut all_hold = true;
    println!("claim | bar | measured | spread | verdict");
    for claim in claims() {
        let (subject, against) = (&claim.subject, &claim.against);
        let ratio = measurements.ratio((&subject.0, subject.1), (&against.0, against.1));
        let holds = ratio.median >= claim.bar;
        all_hold &= holds || !is_judged;
        let verdict = match (is_judged, holds) {
            (false, _) => "stated",
            (true, true) => "holds",
            (true, false) => "DOES NOT HOLD",
        };
        println!(
            "{} | ≥ {:.2} | {:.2} | {:.2}–{:.2} | {verdict}",
            claim.text, claim.bar, ratio.median, ratio.low, ratio.high
        );
        let line = json!({
            "claim": claim.text, "bar": claim.bar, "measured": ratio.median,
            "low": ratio.low, "high": ratio.high, "verdict": verdict,
        });
        writeln!(json, "{line}")?;
    }
    Ok(all_hold)
}

/// Prints the speeds of every library on every case, and writes them as JSON.
pub fn print_speeds(
    measurements: &Measurements,
    cases: &[Case],
    libraries: &[&'static str],
    json: &mut dyn Write,
) -> io::Result<()> {
    println!("GB of data in per second, median (quartiles); ratios of Striate to the others, round by round");
    for case in cases {
        let mut line = format!("{:<28}", case.to_string());
        for library in libraries.iter().filter(|library| measurements.has(case, library)) {
            let speed = measurements.speed(case, library);
            line += &format!(" | {library} {:6.2} ({:.2}–{:.2})", speed.median, speed.low, speed.high);
            if *library != CACHED {
                let ratio = measurements.ratio((case, CACHED), (case, library));
                line += &format!(" ×{:.2}", ratio.median);
            }
            let record = json!({
                "case": case.to_string(), "library": library,
                "gb_per_s": speed.median, "low": speed.low, "high": speed.high,
            });
            writeln!(json, "{record}")?;
        }
        println!("{line}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_of_five_figures_are_the_second_and_the_fourth() {
        let spread = Spread::of(vec![5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!(spread, Spread { low: 2.0, median: 3.0, high: 4.0 });
    }

    #[test]
    fn every_claim_is_about_cases_that_the_quick_run_measures() {
        let quick = super::super::cases::cases(true);
        for claim in claims() {
            assert!(quick.contains(&claim.subject.0) && quick.contains(&claim.against.0), "{}", claim.text);
        }
    }
}
