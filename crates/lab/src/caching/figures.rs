//! The paper's figures, with the store's own scheme beside them.

use serde::Serialize;

use super::simulation::{self, ReadResults};
use super::{MB, OWN_DECODE_S, PUBLISHED_DECODE_S, Scheme, Setting, SlowPhases, noise};

/// Maximum number of placements under each other kind of noise. Selective replication, whose tail depends on luck, and
/// whose runs are short, gets five times as many.
const PLACEMENTS_OF_NOISE: u64 = 3;

/// EC-Cache as published.
pub const PUBLISHED: Scheme = Scheme::EcCache { extra: 1 };

/// One point of a figure: its parameters, and the result of each placement.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The figure, or the section if there is no figure.
    pub figure: &'static str,
    /// The varied parameter and its value.
    pub set: String,
    /// Scheme by which blocks were kept and read.
    pub scheme: &'static str,
    /// Result of each placement.
    pub seen: Vec<ReadResults>,
}

/// Extent of the runs.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// First placement.
    pub seed: u64,
    /// Placements per point.
    pub placements: u64,
    /// Placements per point that shows λ, which depends largely on luck.
    pub placements_of_balance: u64,
    /// Reads per run.
    pub reads: u64,
}

/// Parameters of a point.
struct Case {
    figure: &'static str,
    set: String,
    name: &'static str,
    scheme: Scheme,
    setting: Setting,
    placements: u64,
}

/// Runs all points; calls `done` after each.
pub fn run(extent: Extent, mut done: impl FnMut(&Point)) -> Vec<Point> {
    let point = |case: Case| {
        let seeds = extent.seed..extent.seed + case.placements;
        let seen =
            seeds.map(|seed| simulation::run(&case.setting, case.scheme, extent.reads, seed)).collect();
        let point = Point { figure: case.figure, set: case.set, scheme: case.name, seen };
        done(&point);
        point
    };
    cases(extent).into_iter().chain(cases_of_noise(extent.placements)).map(point).collect()
}

fn cases(extent: Extent) -> Vec<Case> {
    let mut cases = Vec::new();
    let paper = Setting::PAPER;
    let own = Setting { decode_s: OWN_DECODE_S, ..paper };
    let mut add = |figure, set: &str, settings: &[(&'static str, Scheme, Setting)], placements| {
        cases.extend(settings.iter().map(|&(name, scheme, setting)| Case {
            figure,
            set: set.to_owned(),
            name,
            scheme,
            setting,
            placements,
        }));
    };
    let rivals =
        |setting: Setting| [("SR", Scheme::SelectiveReplication, setting), ("EC-Cache", PUBLISHED, setting)];
    let ours = [("ours", Scheme::Ours, own), ("EC-Cache, our decoder", PUBLISHED, own)];
    let placements = extent.placements;
    add("8", "", &rivals(paper), placements);
    add("8", "", &ours, placements);
    let slower_card = |setting: Setting| Setting { client_card: 625.0 * MB, ..setting };
    add("8", "client cards of 5 Gb/s", &rivals(slower_card(paper)), placements);
    add("8", "client cards of 5 Gb/s", &[("ours", Scheme::Ours, slower_card(own))], placements);
    add("9", "", &rivals(paper), extent.placements_of_balance);
    add("9", "", &ours[..1], extent.placements_of_balance);
    let slow_phases = Some(SlowPhases::BACKGROUND);
    add("10", "", &rivals(Setting { slow_phases, ..paper }), placements);
    add("10", "", &[("ours", Scheme::Ours, Setting { slow_phases, ..own })], placements);
    add("11", "", &rivals(Setting { lost: Some(0.55), ..paper }), placements);
    add("11", "", &[("ours", Scheme::Ours, Setting { lost: Some(0.55), ..own })], placements);
    for mb in [1.0, 10.0, 40.0, 100.0] {
        let block_bytes = mb * MB;
        add("12", &format!("{mb} MB"), &rivals(Setting { block_bytes, ..paper }), placements);
        add("12", &format!("{mb} MB"), &[("ours", Scheme::Ours, Setting { block_bytes, ..own })], placements);
    }
    let small = Setting { block_bytes: 10.0 * MB, ..paper };
    for splits in [8, 10, 12, 15, 20] {
        let setting = Setting { splits, ..small };
        let schemes = [("EC-Cache", PUBLISHED, setting)];
        add("13, 14", &format!("k = {splits}"), &schemes, extent.placements_of_balance);
    }
    let without = ("EC-Cache, Δ = 0", Scheme::EcCache { extra: 0 }, small);
    let split = ("SR of splits", Scheme::SplitReplication, small);
    add("15", "", &[rivals(small)[0], split, without, rivals(small)[1]], placements);
    let wide = Setting { splits: 12, block_bytes: 20.0 * MB, exponent: 0.0, overhead: 4.0 / 12.0, ..paper };
    for extra in 0..=4 {
        add("16", &format!("Δ = {extra}"), &[("EC-Cache", Scheme::EcCache { extra }, wide)], placements);
    }
    for percent in [15u32, 25, 40] {
        let overhead = f64::from(percent) / 100.0;
        let schemes = rivals(Setting { overhead, ..small });
        add("§6.6.3", &format!("{percent}% of memory"), &schemes, extent.placements_of_balance);
    }
    cases
}

/// The schemes under other kinds of noise.
fn cases_of_noise(placements: u64) -> Vec<Case> {
    let few = placements.min(PLACEMENTS_OF_NOISE);
    let cases_of = |(family, setting): (&str, Setting)| {
        let own = Setting { decode_s: OWN_DECODE_S, ..setting };
        let case = |name, scheme, setting, placements| Case {
            figure: "noise",
            set: family.to_owned(),
            name,
            scheme,
            setting,
            placements,
        };
        [
            case("SR", Scheme::SelectiveReplication, setting, 5 * few),
            case("EC-Cache", PUBLISHED, setting, few),
            case("ours", Scheme::Ours, own, few),
        ]
    };
    noise::FAMILIES.into_iter().flat_map(cases_of).collect()
}

/// Write of one block (Fig. 17). Connections are opened one after the other; encoding takes as long as decoding.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Write {
    /// Whose speed of encoding is taken: `ours` or `published`.
    pub encoder: &'static str,
    /// Block size in bytes.
    pub bytes: f64,
    /// Seconds to write one copy.
    pub copy_s: f64,
    /// Seconds to write k splits and a parity.
    pub coded_s: f64,
    /// Seconds of encoding, included in `coded_s`.
    pub encode_s: f64,
}

/// The writes of Figure 17, on an idle network, with each encoder.
pub fn writes() -> Vec<Write> {
    let write = |encoder: &'static str, decode_s: f64, mb: f64| {
        let setting = Setting { block_bytes: mb * MB, decode_s, ..Setting::PAPER };
        let coded_bytes = setting.block_bytes + setting.split_bytes();
        let flows = (setting.splits + 1) as f64;
        let encode_s = setting.decode_of_block_s();
        let sending = (coded_bytes / setting.client_card).max(setting.split_bytes() / setting.stream);
        Write {
            encoder,
            bytes: setting.block_bytes,
            copy_s: setting.delay_s + setting.connection_s + setting.block_bytes / setting.stream,
            coded_s: setting.delay_s + flows * setting.connection_s + encode_s + sending,
            encode_s,
        }
    };
    let encoders = [("ours", OWN_DECODE_S), ("published", PUBLISHED_DECODE_S)];
    let sizes = [1.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0];
    encoders.iter().flat_map(|&(name, decode_s)| sizes.map(|mb| write(name, decode_s, mb))).collect()
}
