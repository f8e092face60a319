//! Calibrations: the constants of the modelled cluster, in one place.
//!
//! There are three, as in the models on which the read policies were first tried. In [`Calibration::A`] and
//! [`Calibration::D`], 100 closed-loop clients saturate the sites: the mean is roughly clients divided by throughput,
//! and only less work or better balance lowers it. [`Calibration::P`] stands for the cluster of the EC-Store paper.
//!
//! Service times are those of one *request* to a site (o_j of EC-Store Eq. 1) plus its bytes over the worker's
//! bandwidth (m_j). A request's later chunks cost only their bytes.

use std::time::Duration;

use striate_plan::ReadPolicy;
use striate_plan::movement::Objective;

/// Service model of one site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SiteModel {
    /// Number of chunks served in parallel.
    pub workers: u32,
    /// Mean cost of a request, in milliseconds, excluding its bytes.
    pub request_ms: f64,
    /// σ of the request cost's lognormal distribution; 0 for a constant cost.
    pub request_sigma: f64,
    /// Bandwidth of one worker, in bytes per second.
    pub bandwidth_bytes_per_s: f64,
    /// Slow episodes of the whole site.
    pub episodes: Episodes,
    /// Share of requests that are slow on their own.
    pub slow_share: f64,
    /// Slowdown factor of these requests.
    pub slow_factor: f64,
}

/// Slow episodes of a site: everything that begins in one takes `factor` times as long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Episodes {
    /// Slowdown factor.
    pub factor: f64,
    /// Duration of an episode, in seconds.
    pub length_s: f64,
    /// Mean time from the end of one episode to the start of the next, in seconds; exponentially distributed.
    pub gap_s: f64,
}

/// Constants of a cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Name of the calibration: P, A or D.
    pub name: &'static str,
    /// Service model of every site.
    pub site: SiteModel,
    /// Round trip between any two machines, in milliseconds, excluding bytes.
    pub round_trip_ms: f64,
    /// A client's own work per request, in milliseconds; part of its response time.
    pub client_work_ms: f64,
}

/// Slow episodes and slow requests of A and D.
const MILD: (Episodes, f64, f64) = (Episodes { factor: 4.0, length_s: 0.5, gap_s: 60.0 }, 0.002, 10.0);

impl Calibration {
    /// The paper's cluster: 12 workers of 125 MB/s per site; 2 ms per request, lognormal with σ = 1; 3 ms of client
    /// work; 6 times slower for 0.3 s about every 10 s; 0.5% of requests 10 times slower.
    ///
    /// The constants were tuned so that the ratio of the means of replication and erasure coding is about that of the
    /// paper (0.75). That ratio is fitted and proves nothing; no other result was tuned.
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

    /// Saturated sites that serve first come, first served: one server, 0.75 ms per request with σ = 0.5, 125 MB/s; 4
    /// times slower for 0.5 s about every 60 s; 0.2% of requests 10 times slower.
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

    /// Disks that seek: one server, 4 ms per request, 150 MB/s; slow episodes and requests as in A.
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

    /// All calibrations.
    pub const ALL: [Self; 3] = [Self::P, Self::A, Self::D];

    /// Returns the calibration with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|calibration| calibration.name == name)
    }
}

/// Processor time that virtual time does not measure, charged to the client after each query. It is a fraction of a
/// percent of any response time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessorCost {
    /// Encoding rate, in bytes of data per second, including the checksums of all chunks.
    pub encode_bytes_per_s: f64,
    /// Decoding rate, in bytes per second, including the block's checksum.
    pub decode_bytes_per_s: f64,
    /// Planning time per requested chunk, in nanoseconds.
    pub plan_ns_per_chunk: f64,
    /// Planning time per requested chunk with the cost model, in nanoseconds.
    pub optimise_ns_per_chunk: f64,
    /// Time to evaluate a candidate move by the published objective, in nanoseconds.
    pub published_move_ns: f64,
    /// Time to evaluate a candidate move by the improved objective, in nanoseconds.
    pub improved_move_ns: f64,
}

impl ProcessorCost {
    /// Results of `striate-lab costs`: release build, one core of an AMD EPYC virtual machine, best of four runs
    /// while other programs kept the machine busy. RS(2,2), blocks of 100 KB, over 25 MB of chunks, which is more
    /// than the inner caches hold: 4.7 GB/s encoded with all checksums, 9.0 GB/s decoded with the block's. Planning
    /// takes 54 ns per requested chunk with the random policy, 546 ns with the cost model. Candidate moves: the
    /// slowest result of `make movement-bench` for the published objective, with 24 partners for each block. The
    /// improved objective is charged the same; it took less than half of that in every run beside it, and the rest
    /// covers planning the requests of a plan again.
    pub const MEASURED: Self = Self {
        encode_bytes_per_s: 4.7e9,
        decode_bytes_per_s: 9.0e9,
        plan_ns_per_chunk: 54.0,
        optimise_ns_per_chunk: 546.0,
        published_move_ns: 1_500.0,
        improved_move_ns: 1_500.0,
    };

    /// Returns the time to encode `bytes` of data.
    pub fn encode(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.encode_bytes_per_s)
    }

    /// Returns the time to decode `bytes`.
    pub fn decode(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.decode_bytes_per_s)
    }

    /// Returns the time to evaluate `moves` candidate moves.
    pub fn evaluate_moves(&self, objective: Objective, moves: u64) -> Duration {
        let ns = match objective {
            Objective::Published { .. } => self.published_move_ns,
            Objective::Improved { .. } => self.improved_move_ns,
        };
        Duration::from_nanos((moves as f64 * ns) as u64)
    }

    /// Returns the time to plan a query of `chunks` chunks.
    pub fn plan(&self, policy: &ReadPolicy, chunks: usize) -> Duration {
        let ns_per_chunk =
            if policy.optimises() { self.optimise_ns_per_chunk } else { self.plan_ns_per_chunk };
        Duration::from_nanos((chunks as f64 * ns_per_chunk) as u64)
    }
}
