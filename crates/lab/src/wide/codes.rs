//! Results of ECWide (FAST'21, §3) that are computed from codes and need no cluster: Tables 3 to 6, Figs. 2 and 3.

use serde::Serialize;
use striate_baselines::locality_codes::LocalityCode;
use striate_codec::CodeSpec;
use striate_plan::WideError;
use striate_plan::WideGeometry;
use striate_plan::wide::reliability::{Hardware, StripeModel};
use striate_plan::wide::trade_off::{Scheme, trade_off};

/// Tolerance for redundancy, which the paper rounds to three decimals.
const ROUNDED: f64 = 0.0005;
/// Relative tolerance for MTTDLs, which the paper gives with three digits.
const WITHIN: f64 = 0.005;

/// One value beside the paper's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Table or figure of the paper.
    pub name: &'static str,
    /// The code, in the paper's notation.
    pub code: String,
    /// Description of the value.
    pub what: String,
    /// Our value.
    pub value: f64,
    /// The paper's value.
    pub paper: f64,
    /// Maximum difference from the paper's value.
    pub tolerated: f64,
}

impl Figure {
    /// Returns true if the value is within the tolerance.
    pub fn holds(&self) -> bool {
        (self.value - self.paper).abs() <= self.tolerated
    }
}

/// Computes all values.
///
/// # Errors
/// None with the codes used here.
pub fn figures() -> Result<Vec<Figure>, WideError> {
    let mut figures = table_3();
    figures.extend(table_4_and_figure_2()?);
    for tolerance in [2, 3, 4] {
        figures.extend(figure_3(tolerance)?);
    }
    figures.extend(tables_5_and_6()?);
    Ok(figures)
}

/// f of (16,10,5), by trying every erasure.
fn table_3() -> Vec<Figure> {
    let papers = [("Azure-LRC", 5), ("Xorbas", 4), ("Optimal-LRC", 4), ("Azure-LRC+1", 4)];
    let figure = |(code, (name, paper)): (LocalityCode, (&str, u32))| Figure {
        name: "Table 3",
        code: format!("(16,10,5) {name}"),
        what: "losses that it tolerates".to_owned(),
        value: code.build(16, 10, 5).map_or(0, |code| code.tolerated()) as f64,
        paper: f64::from(paper),
        tolerated: 0.0,
    };
    LocalityCode::ALL.into_iter().zip(papers).map(figure).collect()
}

fn combined(data: usize, locality: usize, tolerance: usize) -> Result<Scheme, WideError> {
    Ok(Scheme::Combined(WideGeometry::new(CodeSpec::Wide { data, locality, tolerance })?))
}

/// Returns the code in the paper's notation.
fn code_of(scheme: &Scheme) -> String {
    let (n, k) = (scheme.chunks(), scheme.data());
    match scheme {
        Scheme::Rs { .. } => format!("({n},{k}) RS"),
        Scheme::Lrc { locality, .. } => format!("({n},{k},{locality}) Azure-LRC"),
        Scheme::Topology { .. } => format!("({n},{k},{}) TL", scheme.racks()),
        Scheme::Combined(geometry) => format!("({n},{k},{},{}) CL", geometry.r(), geometry.z()),
    }
}

/// Redundancy and chunks across racks of the codes that the text names.
fn table_4_and_figure_2() -> Result<Vec<Figure>, WideError> {
    let (small, large) = ("Fig. 2", "Table 4");
    let named = [
        (small, Scheme::Lrc { data: 20, locality: 2, tolerance: 3 }, "(32,20,2) Azure-LRC", 1.6, 2.0),
        (small, Scheme::Topology { data: 20, tolerance: 3 }, "(23,20,8) TL", 1.15, 7.0),
        (small, combined(20, 5, 3)?, "(26,20,5,9) CL", 1.3, 1.0),
        (large, Scheme::Lrc { data: 128, locality: 15, tolerance: 4 }, "(140,128,15) Azure-LRC", 1.094, 15.0),
        (large, Scheme::Topology { data: 128, tolerance: 4 }, "(132,128,33) TL", 1.031, 32.0),
        (large, combined(128, 27, 4)?, "(136,128,27,34) CL", 1.063, 6.0),
    ];
    let mut figures = Vec::new();
    for (name, scheme, code, redundancy, across) in named {
        let figure = |what: &str, value: f64, paper: f64, tolerated: f64| {
            // A code other than the paper's is not a match, whatever its values.
            let value = if code_of(&scheme) == code { value } else { f64::NAN };
            Figure { name, code: code_of(&scheme), what: what.to_owned(), value, paper, tolerated }
        };
        figures.push(figure("redundancy", scheme.redundancy(), redundancy, ROUNDED));
        figures.push(figure("chunks across racks for a repair", scheme.repair_chunks() as f64, across, 0.0));
    }
    Ok(figures)
}

/// The points of Fig. 3 for k = 128 and this f. The paper's text gives no further numbers, so two counts are
/// compared: points that match Table 4's formulas, and codes with combined locality that send less than every
/// Azure-LRC with no more redundancy.
fn figure_3(tolerance: usize) -> Result<Vec<Figure>, WideError> {
    let points = trade_off(128, tolerance, 1.1)?;
    let (mut as_formulas, mut below, mut of_combined) = (0, 0, 0);
    for point in &points {
        let (redundancy, across) = formulas(point);
        let has_both = (point.redundancy() - redundancy).abs() < 1e-12 && point.repair_chunks() == across;
        as_formulas += usize::from(has_both);
        if matches!(point, Scheme::Combined(_)) {
            let rivals = points.iter().filter(|other| matches!(other, Scheme::Lrc { .. }));
            let mut cheaper = rivals.filter(|other| other.redundancy() <= point.redundancy());
            of_combined += 1;
            below += usize::from(cheaper.all(|other| other.repair_chunks() > point.repair_chunks()));
        }
    }
    let count = |what: &str, value: usize, paper: usize| Figure {
        name: "Fig. 3",
        code: format!("k = 128, f = {tolerance}"),
        what: what.to_owned(),
        value: value as f64,
        paper: paper as f64,
        tolerated: 0.0,
    };
    Ok(vec![
        count("points as Table 4's formulas", as_formulas, points.len()),
        count("points of CL below every Azure-LRC of no more redundancy", below, of_combined),
    ])
}

/// Table 4's formulas: redundancy, and chunks across racks. A local group that does not fill its racks needs one more
/// rack.
fn formulas(scheme: &Scheme) -> (f64, usize) {
    let (k, f) = (scheme.data(), scheme.tolerance());
    let local = |r: usize| (k + k.div_ceil(r) + f - 1) as f64 / k as f64;
    match scheme {
        Scheme::Rs { .. } => ((k + f) as f64 / k as f64, k),
        Scheme::Topology { .. } => ((k + f) as f64 / k as f64, (k + f).div_ceil(f) - 1),
        Scheme::Lrc { locality, .. } => (local(*locality), *locality),
        Scheme::Combined(geometry) => (local(geometry.r()), (geometry.r() + 1).div_ceil(f) - 1),
    }
}

/// MTTDLs in years, for 1/λ of 2, 4 and 10 years at 1 Gb/s (Table 5), and for 0.5, 1 and 10 Gb/s at 4 years (Table
/// 6). The paper assumes that data loss begins with five failures for all six codes, although its Table 3 says that
/// the (16,12,6) Azure-LRC tolerates three.
fn tables_5_and_6() -> Result<Vec<Figure>, WideError> {
    let papers = [
        (Scheme::Rs { data: 12, tolerance: 4 }, [2.47e11, 7.87e12, 7.66e14], [3.96e12, 7.87e12, 7.83e13]),
        (
            Scheme::Lrc { data: 12, locality: 6, tolerance: 3 },
            [4.38e11, 1.40e13, 1.36e15],
            [7.00e12, 1.40e13, 1.39e14],
        ),
        (Scheme::Rs { data: 128, tolerance: 4 }, [6.33e5, 1.53e7, 1.20e9], [1.01e7, 1.53e7, 1.09e8]),
        (Scheme::Topology { data: 128, tolerance: 4 }, [1.61e6, 4.64e7, 4.24e9], [2.57e7, 4.64e7, 4.20e8]),
        (
            Scheme::Lrc { data: 128, locality: 15, tolerance: 4 },
            [2.06e6, 6.20e7, 5.82e9],
            [3.29e7, 6.20e7, 5.85e8],
        ),
        (combined(128, 27, 4)?, [5.82e6, 1.82e8, 1.75e10], [9.30e7, 1.82e8, 1.78e9]),
    ];
    let table_5 = [2.0, 4.0, 10.0].map(|years| ("Table 5", years, 1.0));
    let table_6 = [0.5, 1.0, 10.0].map(|gbit_per_s| ("Table 6", 4.0, gbit_per_s));
    let mut figures = Vec::new();
    for (scheme, of_5, of_6) in papers {
        let model = StripeModel { tolerance: 4, ..StripeModel::from(&scheme) };
        let cells = table_5.into_iter().zip(of_5).chain(table_6.into_iter().zip(of_6));
        figures.extend(cells.map(|((name, years, gbit_per_s), paper)| {
            let hardware = Hardware {
                node_mttf_years: years,
                bandwidth_bytes_per_s: gbit_per_s * 1e9 / 8.0,
                ..Hardware::default()
            };
            Figure {
                name,
                code: code_of(&scheme),
                what: format!("MTTDL in years at 1/λ = {years} years, {gbit_per_s} Gb/s"),
                value: model.mttdl_years(&hardware),
                paper,
                tolerated: WITHIN * paper,
            }
        }));
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_the_paper_computes_of_codes_comes_out() {
        let figures = figures().unwrap();
        let missed: Vec<_> = figures.iter().filter(|figure| !figure.holds()).collect();
        assert!(missed.is_empty(), "{missed:#?}");
        let count = |name| figures.iter().filter(|figure| figure.name == name).count();
        let counts = ["Table 3", "Table 4", "Table 5", "Table 6", "Fig. 2", "Fig. 3"].map(count);
        assert_eq!(counts, [4, 6, 18, 18, 6, 6]);
    }

    #[test]
    fn a_value_that_is_none_or_too_far_away_does_not_hold() {
        let of = |value| Figure {
            name: "Table 5",
            code: String::new(),
            what: String::new(),
            value,
            paper: 200.0,
            tolerated: 1.0,
        };
        assert!(of(201.0).holds() && !of(201.1).holds() && !of(f64::NAN).holds());
    }
}
