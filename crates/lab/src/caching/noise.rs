//! Other kinds of noise than the fitted one, by which the figures of selective replication come out as well.
//!
//! Selective replication has one flow a read, so its figures do not tell whether delays strike requests, flows or
//! servers. Splits have many: what is claimed of them should hold in each family. Constants were chosen by the figures
//! of selective replication alone.

use super::{MB, Part, Setting, SlowPhases};

/// Flows differ in their rates, and nothing else delays reads.
const UNEQUAL: Setting = Setting { rate_sigma: 0.1, delay_sigma: 0.0, stalls: 0.0, ..Setting::PAPER };

/// The families, by name.
pub const FAMILIES: [(&str, Setting); 5] = [
    ("requests stall", Setting { stalled: Part::Request, ..Setting::PAPER }),
    ("flows are delayed and stall", Setting { delayed: Part::Flow, ..Setting::PAPER }),
    (
        "servers stop",
        Setting { slow_phases: Some(SlowPhases { every_s: 64.0, for_s: 0.5, share: 0.0 }), ..UNEQUAL },
    ),
    ("flows are slow", Setting { slow_flows: 0.009, ..UNEQUAL }),
    // As many reads as the closed loop makes under selective replication.
    ("Poisson arrivals", Setting { is_open: true, think_s: 0.53, client_card: 625.0 * MB, ..Setting::PAPER }),
];
