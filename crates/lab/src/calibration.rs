//! Calibrations: the constants of the modelled cluster, in one place.
//!
//! Three, as in the models that the read policies were first tried on. In [`Calibration::A`] and
//! [`Calibration::D`] the sites are saturated by 100 closed-loop clients: the mean is roughly clients divided by
//! throughput, and only less work or better balance lowers it. [`Calibration::P`] stands for the cluster of the
//! EC-Store paper.
//!
//! All service times are those of one *request* to a site (o_j of EC-Store Eq. 1) plus its bytes over the
//! worker's bandwidth (m_j); a request's later chunks cost only their bytes.

use std::time::Duration;

use striate_plan::ReadPolicy;
use striate_plan::movement::Objective;

/// Service of one site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SiteModel {
    /// Chunks served at the same time.
    pub workers: u32,
    /// Mean cost of a request, in milliseconds, before its bytes.
    pub request_ms: f64,
    /// σ of the request cost's lognormal distribution; 0 for a constant cost.
    pub request_sigma: f64,
    /// Bytes per second of one worker.
    pub bandwidth_bytes_per_s: f64,
    /// Slow episodes of the whole site.
    pub episodes: Episodes,
    /// Share of requests that are slow by themselves.
    pub slow_share: f64,
    /// How many times slower those are.
    pub slow_factor: f64,
}

/// Slow episodes of a site: everything it begins in one takes `factor` times as long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Episodes {
    /// How many times slower.
    pub factor: f64,
    /// How long each lasts, in seconds.
    pub length_s: f64,
    /// Mean time between the end of one and the start of the next, in seconds; exponentially distributed.
    pub gap_s: f64,
}

/// A cluster's constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Its name: P, A or D.
    pub name: &'static str,
    /// Its sites.
    pub site: SiteModel,
    /// Round trip between any two machines, in milliseconds, without bytes.
    pub round_trip_ms: f64,
    /// A client's own work for each request, in milliseconds: part of its response time.
    pub client_work_ms: f64,
}

/// Slow episodes and slow requests of A and D.
const MILD: (Episodes, f64, f64) = (Episodes { factor: 4.0, length_s: 0.5, gap_s: 60.0 }, 0.002, 10.0);

impl Calibration {
    /// The paper's cluster: 12 workers of 125 MB/s on each site; 2 ms a request, lognormal with σ = 1; 3 ms of
    /// client work; 6 times slower for 0.3 s about every 10 s; 0.5% of requests 10 times slower.
    ///
    /// The constants were tuned so that the mean of replication over that of erasure coding is about that of
    /// the paper (0.75). That ratio is a fit and no evidence; nothing else was tuned.
    pub const P: Self = Self {
        name: "P",
        site: SiteModel {
            workers: 12,
            request_ms: 2.0,
            request_sigma: 1.0,
            bandwidth_bytes_per_s: 125e6,
            episodes: Episodes { factor: 6.0, length_s: 0.3, gap_s: 10.0 },
            slow_share: 0.005,
            slow_factor: 10.0,
        },
        round_trip_ms: 0.2,
        client_work_ms: 3.0,
    };

    /// Saturated sites that serve first come, first served: one server, 0.75 ms a request with σ = 0.5, 125 MB/s;
    /// 4 times slower for 0.5 s about every 60 s; 0.2% of requests 10 times slower.
    pub const A: Self = Self {
        name: "A",
        site: SiteModel {
            workers: 1,
            request_ms: 0.75,
            request_sigma: 0.5,
            bandwidth_bytes_per_s: 125e6,
            episodes: MILD.0,
            slow_share: MILD.1,
            slow_factor: MILD.2,
        },
        round_trip_ms: 0.2,
        client_work_ms: 0.0,
    };

    /// Disks that seek: one server, 4 ms a request, 150 MB/s; slow episodes and requests as in A.
    pub const D: Self = Self {
        name: "D",
        site: SiteModel {
            workers: 1,
            request_ms: 4.0,
            request_sigma: 0.0,
            bandwidth_bytes_per_s: 150e6,
            episodes: MILD.0,
            slow_share: MILD.1,
            slow_factor: MILD.2,
        },
        round_trip_ms: 0.2,
        client_work_ms: 0.0,
    };

    /// All three.
    pub const ALL: [Self; 3] = [Self::P, Self::A, Self::D];

    /// The calibration of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|calibration| calibration.name == name)
    }
}

/// What the processor costs that virtual time does not see, charged to the client after each query. A fraction of
/// a percent of any response time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessorCost {
    /// Encoded bytes of data per second, all chunks' checksums included.
    pub encode_bytes_per_s: f64,
    /// Decoded bytes per second, the block's checksum included.
    pub decode_bytes_per_s: f64,
    /// Planning, for each chunk asked for, in nanoseconds.
    pub plan_ns_per_chunk: f64,
    /// The same by the cost model.
    pub optimise_ns_per_chunk: f64,
    /// Evaluating a candidate move by the published objective, in nanoseconds.
    pub published_move_ns: f64,
    /// The same by the improved objective.
    pub improved_move_ns: f64,
}

impl ProcessorCost {
    /// What `striate-lab costs` measured: release build, one core of an AMD EPYC virtual machine, best of four runs
    /// while other programs kept the machine busy. RS(2,2), blocks of 100 KB, over 25 MB of chunks, more than the
    /// inner caches hold: 4.7 GB/s encoded with all checksums, 9.0 GB/s decoded with the block's, and 54 ns of
    /// planning by the random policy for each chunk asked for, 546 ns by the cost model. Candidate moves: the slower of what
    /// `make movement-bench` found as published for 24 partners of each block, and as much for the improved objective, which took
    /// less than half of it in every run beside it: the rest is for planning a plan's requests again.
    pub const MEASURED: Self = Self {
        encode_bytes_per_s: 4.7e9,
        decode_bytes_per_s: 9.0e9,
        plan_ns_per_chunk: 54.0,
        optimise_ns_per_chunk: 546.0,
        published_move_ns: 1_500.0,
        improved_move_ns: 1_500.0,
    };

    /// Time to encode `bytes` of data.
    pub fn encode(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.encode_bytes_per_s)
    }

    /// Time to decode `bytes`.
    pub fn decode(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.decode_bytes_per_s)
    }

    /// Time to evaluate so many candidate moves.
    pub fn evaluate_moves(&self, objective: Objective, moves: u64) -> Duration {
        let ns = match objective {
            Objective::Published { .. } => self.published_move_ns,
            Objective::Improved { .. } => self.improved_move_ns,
        };
        Duration::from_nanos((moves as f64 * ns) as u64)
    }

    /// Time to plan a query of `chunks`.
    pub fn plan(&self, policy: &ReadPolicy, chunks: usize) -> Duration {
        let ns_per_chunk =
            if policy.optimises() { self.optimise_ns_per_chunk } else { self.plan_ns_per_chunk };
        Duration::from_nanos((chunks as f64 * ns_per_chunk) as u64)
    }
}
