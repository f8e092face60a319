//! `striate plan wide`: compares codes for a cluster.

use std::fmt::Write;

use serde::Serialize;
use striate_core::CodeSpec;
use striate_plan::wide::reliability::{Hardware, NeglectedEffects, StripeModel};
use striate_plan::wide::trade_off::{Scheme, trade_off};
use striate_plan::{WideGeometry, fitting_codes};

use super::plot::{Point, plot};
use crate::args::WideArgs;
use crate::failure::{Failure, Outcome};
use crate::operate::report::{cells, table};

/// The comparison to show.
#[derive(Debug, Serialize)]
struct Comparison {
    racks: usize,
    sites_per_rack: usize,
    /// Four codes to compare, the wide code last.
    codes: Vec<Row>,
    /// Wide codes that fit, if the requested one does not.
    fitting: Vec<Row>,
    /// Trade-off of redundancy and repair traffic for this k and f (Fig. 3).
    trade_off: Vec<Row>,
    /// Number of partial sums that cross racks to seal a stripe of the wide code.
    sealing_chunks: usize,
}

/// One code of the comparison.
#[derive(Debug, Serialize)]
struct Row {
    /// `rs`, `lrc`, `topology` or `combined`.
    scheme: &'static str,
    /// Notation of the literature: (n,k), (n,k,r), (n,k,z) or (n,k,r,z).
    code: String,
    /// Text of the bucket profile, or of the cold profile.
    profile: String,
    redundancy: f64,
    /// Maximum number of chunks that cross racks to repair a data chunk; `mean_repair_chunks` is the average over all
    /// chunks.
    repair_chunks: usize,
    mean_repair_chunks: f64,
    mttdl_years: f64,
    /// Mean time to data loss if racks also fail, and more than f losses decode where local groups allow it.
    #[serde(skip_serializing_if = "Option::is_none")]
    mttdl_years_with_racks: Option<f64>,
    racks_needed: usize,
    sites_per_rack_needed: usize,
    /// Reason why it does not fit; `None` if it does.
    lacking: Option<String>,
}

pub(super) fn run(args: &WideArgs) -> Outcome {
    let comparison = compare(args)?;
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&comparison).map_err(Failure::failed)?),
        false => print!("{}", text(&comparison)),
    }
    match comparison.codes.iter().all(|row| row.scheme != "combined" || row.lacking.is_none()) {
        true => Ok(()),
        false => Err(Failure::attention()),
    }
}

fn compare(args: &WideArgs) -> Outcome<Comparison> {
    let (data, tolerance) = (args.k, args.f);
    let spec = CodeSpec::wide_within(data, tolerance, args.redundancy).map_err(Failure::refused)?;
    let geometry = WideGeometry::new(spec).map_err(Failure::refused)?;
    // A repair in an LRC sends r chunks, which is the fewest that the same number of groups allows.
    let locality = data.div_ceil(geometry.groups());
    let sealing_chunks = geometry.sealing_chunks();
    let fitting = match geometry.check_fits(args.racks, args.sites_per_rack) {
        Ok(()) => Vec::new(),
        Err(_) => fitting_codes(tolerance, args.racks, args.sites_per_rack),
    };
    let schemes = [
        Scheme::Rs { data, tolerance },
        Scheme::Lrc { data, locality, tolerance },
        Scheme::Topology { data, tolerance },
        Scheme::Combined(geometry),
    ];
    let points = trade_off(data, tolerance, args.redundancy.max(1.1)).map_err(Failure::refused)?;
    Ok(Comparison {
        racks: args.racks,
        sites_per_rack: args.sites_per_rack,
        codes: schemes.iter().map(|scheme| Row::new(scheme, args)).collect(),
        fitting: fitting.into_iter().map(|geometry| Row::new(&Scheme::Combined(geometry), args)).collect(),
        trade_off: points.iter().map(|scheme| Row::new(scheme, args)).collect(),
        sealing_chunks,
    })
}

impl Row {
    fn new(scheme: &Scheme, args: &WideArgs) -> Self {
        let (n, k) = (scheme.chunks(), scheme.data());
        let (name, code, profile) = match scheme {
            Scheme::Rs { .. } => ("rs", format!("({n},{k})"), format!("{} spread racks(1)", scheme.code())),
            Scheme::Lrc { locality, .. } => {
                let globals = n - k - k.div_ceil(*locality);
                let profile = format!("lrc-r({k},{locality},{globals}) spread racks(1)");
                ("lrc", format!("({n},{k},{locality})"), profile)
            }
            Scheme::Topology { .. } => {
                ("topology", format!("({n},{k},{})", scheme.racks()), scheme.code().to_string())
            }
            Scheme::Combined(geometry) => {
                ("combined", format!("({n},{k},{},{})", geometry.r(), geometry.z()), geometry.profile())
            }
        };
        let model = StripeModel::from(scheme);
        let hardware = hardware(args);
        let with_racks = args.rack_mttf.map(|years| {
            let relaxed = NeglectedEffects::at_most(scheme, 1.0 / years);
            model.relaxed_mttdl_years(&hardware, &relaxed)
        });
        Self {
            scheme: name,
            code,
            profile,
            redundancy: scheme.redundancy(),
            repair_chunks: scheme.repair_chunks(),
            mean_repair_chunks: scheme.mean_repair_chunks(),
            mttdl_years: model.mttdl_years(&hardware),
            mttdl_years_with_racks: with_racks,
            racks_needed: scheme.racks_needed(),
            sites_per_rack_needed: scheme.sites_per_rack_needed(),
            lacking: scheme.lacking(args.racks, args.sites_per_rack),
        }
    }

    fn cells(&self) -> Vec<String> {
        let mut row = vec![
            self.scheme.to_owned(),
            self.code.clone(),
            self.profile.clone(),
            format!("{:.4}", self.redundancy),
            self.repair_chunks.to_string(),
            format!("{:.2}", self.mean_repair_chunks),
            format!("{:.2e}", self.mttdl_years),
        ];
        row.extend(self.mttdl_years_with_racks.map(|years| format!("{years:.2e}")));
        row.push(format!("{} × {}", self.racks_needed, self.sites_per_rack_needed));
        row.push(if self.lacking.is_none() { "yes" } else { "no" }.to_owned());
        row
    }
}

fn hardware(args: &WideArgs) -> Hardware {
    Hardware {
        nodes: args.racks.saturating_mul(args.sites_per_rack),
        capacity_bytes: args.capacity * (1u64 << 40) as f64,
        bandwidth_bytes_per_s: args.bandwidth * 1e9 / 8.0,
        node_mttf_years: args.mttf,
        ..Hardware::default()
    }
}

fn text(comparison: &Comparison) -> String {
    let mut text = format!(
        "codes for {} racks of {} sites; ACROSS are the chunks that cross racks to repair a data chunk, MEAN those for any\n\n",
        comparison.racks, comparison.sites_per_rack
    );
    text.push_str(&rows(&comparison.codes));
    for row in comparison.codes.iter().filter(|row| row.scheme == "combined") {
        let profile = &row.profile;
        match &row.lacking {
            Some(lacking) => write!(text, "\n{profile} does not fit: {lacking}.\n"),
            None => write!(
                text,
                "\n{profile} fits. Sealing a stripe sends {} partial sums across racks; no data chunk moves.\n",
                comparison.sealing_chunks
            ),
        }
        .expect("writing to a string");
        if row.lacking.is_some() && comparison.fitting.is_empty() {
            text.push_str("No wide code fits this cluster: use rs(k,r) or lrc(k,l,g).\n");
        }
    }
    if !comparison.fitting.is_empty() {
        write!(text, "\nWide codes that fit:\n\n{}", rows(&comparison.fitting)).expect("writing to a string");
    }
    let point = |row: &Row| {
        let letter = match row.scheme {
            "topology" => 'T',
            "lrc" => 'L',
            _ => 'C',
        };
        Point { x: row.redundancy, y: row.repair_chunks as f64, letter }
    };
    // TL is drawn last: a wide code of one local group lies at the same point.
    let points: Vec<Point> = comparison.trade_off.iter().rev().map(point).collect();
    text.push('\n');
    text.push_str(&plot(
        &points,
        "bytes stored for a byte",
        "chunks across racks: T topology, L Azure-LRC, C combined locality",
    ));
    text
}

fn rows(rows: &[Row]) -> String {
    let mut heading = cells(["SCHEME", "CODE", "PROFILE", "STORED", "ACROSS", "MEAN", "MTTDL YEARS"]);
    if rows.iter().any(|row| row.mttdl_years_with_racks.is_some()) {
        heading.push("WITH RACKS".to_owned());
    }
    heading.extend(cells(["RACKS × SITES", "FITS"]));
    table(&std::iter::once(heading).chain(rows.iter().map(Row::cells)).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(k: usize, f: usize, redundancy: f64, racks: usize, sites_per_rack: usize) -> WideArgs {
        WideArgs {
            k,
            f,
            redundancy,
            racks,
            sites_per_rack,
            bandwidth: 1.0,
            capacity: 16.0,
            mttf: 4.0,
            rack_mttf: None,
            json: false,
        }
    }

    #[test]
    fn the_papers_cluster_shows_the_papers_figures() {
        let comparison = compare(&args(128, 4, 1.063, 50, 8)).unwrap();
        let figures: Vec<(&str, &str, usize)> =
            comparison.codes.iter().map(|row| (row.scheme, &*row.code, row.repair_chunks)).collect();
        let expected = [
            ("rs", "(132,128)", 128),
            ("lrc", "(136,128,26)", 26),
            ("topology", "(132,128,33)", 32),
            ("combined", "(136,128,27,34)", 6),
        ];
        assert_eq!(figures, expected);
        // 50 × 8 are the 400 nodes of the paper.
        assert!((comparison.codes[3].mttdl_years / 1.82e8 - 1.0).abs() < 0.005);
        let text = text(&comparison);
        for part in ["wide(128,27,4) fits", "128 partial sums", "35 × 5         yes", "133 × 2", "1.82e8"] {
            assert!(text.contains(part), "{part:?} of\n{text}");
        }
        assert!(comparison.fitting.is_empty() && !text.contains("WITH RACKS"));
    }

    #[test]
    fn a_code_that_does_not_fit_is_refused_with_the_arithmetic_and_those_that_do() {
        let few = args(128, 4, 1.063, 13, 5);
        let comparison = compare(&few).unwrap();
        let text = text(&comparison);
        for part in
            ["does not fit: its 136 chunks fill 34 racks", "there are 13", "wide(42,15,4)", "wide(39,7,4)"]
        {
            assert!(text.contains(part), "{part:?} of\n{text}");
        }
        assert_eq!(run(&few), Err(Failure::attention()));
        let none = super::text(&compare(&args(128, 4, 1.063, 1, 1)).unwrap());
        assert!(none.contains("No wide code fits"), "{none}");
    }

    #[test]
    fn numbers_that_are_no_code_are_refused_with_what_would_be_one() {
        let refusal = |k, f, redundancy| compare(&args(k, f, redundancy, 40, 8)).unwrap_err().to_string();
        assert!(refusal(128, 4, 1.01).contains("allow 1.03125 or more"));
        assert!(refusal(256, 4, 1.1).contains("at most 256") || refusal(256, 4, 1.1).contains("at most 252"));
        assert!(refusal(128, 1, 1.1).contains("f ≥ 2"));
    }

    #[test]
    fn racks_that_fail_cost_reliability() {
        let with = |years| compare(&WideArgs { rack_mttf: Some(years), ..args(128, 4, 1.1, 50, 8) }).unwrap();
        let (comparison, worse) = (with(20.0), with(2.0));
        for (row, worse) in comparison.codes.iter().zip(&worse.codes) {
            assert!(worse.mttdl_years_with_racks < row.mttdl_years_with_racks, "{row:?}");
            // Codes with local groups decode more than f losses, which the other column counts as data loss.
            if ["rs", "topology"].contains(&row.scheme) {
                assert!(row.mttdl_years_with_racks.unwrap() < row.mttdl_years, "{row:?}");
            }
        }
        assert!(text(&comparison).contains("WITH RACKS"));
    }
}
