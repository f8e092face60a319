//! The libraries under comparison: the same stripes, the same order, one core.

use std::collections::HashMap;
use std::io;

use super::cases::{Case, Operation};
use super::isal;
use super::klauspost::Klauspost;
use super::memory::Arena;
use crate::stopwatch::Stopwatch;
use striate_codec::{Code, DecodePlan, Kernel, MultipleChecksums, Stores};

/// Striate with ordinary stores.
pub const CACHED: &str = "striate";
/// Striate with streaming stores.
pub const STREAMING: &str = "striate-streaming";

/// A library that can be timed on a case.
pub trait Library {
    /// Returns the column's title.
    fn name(&self) -> &'static str;

    /// Returns true if the library supports the case's operation.
    fn has(&self, _case: &Case) -> bool {
        true
    }

    /// Runs `calls` operations on the next stripes of the case's rotation; returns nanoseconds.
    fn time(&mut self, arena: &mut Arena, case: &Case, calls: usize) -> io::Result<u64>;
}

/// This repository's codec.
pub struct Striate {
    name: &'static str,
    stores: Stores,
    prepared: HashMap<String, (Code, Option<DecodePlan>)>,
}

impl Striate {
    /// With ordinary stores, as `encode` and `apply` use them.
    pub fn cached() -> Striate {
        Striate { name: CACHED, stores: Stores::Cached, prepared: HashMap::new() }
    }

    /// With stores that bypass the caches.
    pub fn streaming() -> Striate {
        Striate { name: STREAMING, stores: Stores::Streaming, prepared: HashMap::new() }
    }
}

impl Library for Striate {
    fn name(&self) -> &'static str {
        self.name
    }

    fn time(&mut self, arena: &mut Arena, case: &Case, calls: usize) -> io::Result<u64> {
        let (code, plan) = self.prepared.entry(case.to_string()).or_insert_with(|| {
            let code = Code::rs(case.k, case.r).expect("the cases' codes exist");
            let lost = case.lost();
            let available: Vec<usize> = (0..code.n()).filter(|chunk| !lost.contains(chunk)).collect();
            let plan = code.decode_plan(&available, &lost).expect("at most r chunks are lost");
            (code, (!lost.is_empty()).then_some(plan))
        });
        let sources: Vec<usize> = match plan {
            Some(plan) => plan.sources().to_vec(),
            None => (0..case.k).collect(),
        };
        let targets: Vec<usize> =
            if plan.is_some() { case.lost() } else { (case.k..case.k + case.r).collect() };
        let watch = Stopwatch::start();
        for _ in 0..calls {
            let (inputs, mut outputs) = arena.next_stripe(case, &sources, &targets);
            match plan {
                Some(plan) => plan.apply_with(Kernel::best(), self.stores, &inputs, &mut outputs),
                None => code.encode_with(Kernel::best(), self.stores, &inputs, &mut outputs),
            }
            .expect("all chunks have one length");
        }
        Ok(watch.nanoseconds())
    }
}

/// This repository's codec, encoding and checksumming every chunk in one pass.
#[derive(Default)]
pub struct Checksummed {
    prepared: HashMap<String, Code>,
}

/// Granule size of the checksums, in bytes.
const GRANULE_BYTES: usize = 64 << 10;

impl Library for Checksummed {
    fn name(&self) -> &'static str {
        "striate-with-checksums"
    }

    fn has(&self, case: &Case) -> bool {
        case.operation == Operation::Encode
    }

    fn time(&mut self, arena: &mut Arena, case: &Case, calls: usize) -> io::Result<u64> {
        let code = self
            .prepared
            .entry(case.to_string())
            .or_insert_with(|| Code::rs(case.k, case.r).expect("the cases' codes exist"));
        let sources: Vec<usize> = (0..case.k).collect();
        let targets: Vec<usize> = (case.k..case.k + case.r).collect();
        let watch = Stopwatch::start();
        for _ in 0..calls {
            let (inputs, mut outputs) = arena.next_stripe(case, &sources, &targets);
            let checksums = code.encode_and_checksum(&inputs, &mut outputs, GRANULE_BYTES);
            std::hint::black_box(checksums.expect("all chunks have one length"));
        }
        Ok(watch.nanoseconds())
    }
}

/// This repository's eight checksums of each data chunk, from which the parities' checksums are predicted.
pub struct EightChecksums;

impl Library for EightChecksums {
    fn name(&self) -> &'static str {
        "striate-eight-checksums"
    }

    fn has(&self, case: &Case) -> bool {
        case.operation == Operation::Encode
    }

    fn time(&mut self, arena: &mut Arena, case: &Case, calls: usize) -> io::Result<u64> {
        let sources: Vec<usize> = (0..case.k).collect();
        let watch = Stopwatch::start();
        for _ in 0..calls {
            let (inputs, _) = arena.next_stripe(case, &sources, &[]);
            for chunk in inputs {
                std::hint::black_box(MultipleChecksums::of(chunk));
            }
        }
        Ok(watch.nanoseconds())
    }
}

/// Intel's library with the same generator matrix.
#[derive(Default)]
pub struct IsaL {
    prepared: HashMap<String, isal::DotProduct>,
}

impl Library for IsaL {
    fn name(&self) -> &'static str {
        "isa-l"
    }

    fn time(&mut self, arena: &mut Arena, case: &Case, calls: usize) -> io::Result<u64> {
        let product = self.prepared.entry(case.to_string()).or_insert_with(|| isal::DotProduct::of(case));
        let (sources, targets) = (product.sources.clone(), product.targets.clone());
        let watch = Stopwatch::start();
        for _ in 0..calls {
            let (inputs, mut outputs) = arena.next_stripe(case, &sources, &targets);
            product.apply(&inputs, &mut outputs);
        }
        Ok(watch.nanoseconds())
    }
}

impl Library for Klauspost {
    fn name(&self) -> &'static str {
        "klauspost"
    }

    fn time(&mut self, arena: &mut Arena, case: &Case, calls: usize) -> io::Result<u64> {
        let stripes = case.stripes(arena.bytes());
        let (k, r, chunk, lost) = (case.k, case.r, case.chunk_bytes, case.lost().len());
        self.request(&format!("case {k} {r} {chunk} {stripes} {lost}"))?;
        let answer = self.request(&format!("time {calls}"))?;
        answer.parse().map_err(|_| io::Error::other(format!("klauspost answered {answer:?}")))
    }
}
