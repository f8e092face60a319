//! The measured cases: codes, chunk lengths, operations, and where the data lies.

use std::fmt;

/// The timed operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Computes all parities from the data.
    Encode,
    /// Rebuilds one lost data chunk.
    DecodeOne,
    /// Rebuilds as many lost data chunks as there are parities.
    DecodeAll,
}

/// Where the data lies before a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Every call uses the same stripe.
    Hot,
    /// Calls rotate over stripes that together are several times the size of the last-level cache.
    Dram,
}

/// One case to measure with every library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    pub k: usize,
    pub r: usize,
    pub chunk_bytes: usize,
    pub operation: Operation,
    pub place: Place,
}

impl Case {
    /// Bytes of data that one call reads. All speeds are based on it, regardless of what is written.
    pub fn data_bytes(&self) -> usize {
        self.k * self.chunk_bytes
    }

    /// Bytes of a stripe, parities included.
    pub fn stripe_bytes(&self) -> usize {
        (self.k + self.r) * self.chunk_bytes
    }

    /// Number of stripes that the calls rotate over.
    pub fn stripes(&self, arena_bytes: usize) -> usize {
        match self.place {
            Place::Hot => 1,
            Place::Dram => arena_bytes / self.stripe_bytes(),
        }
    }

    /// The data chunks that a decode computes, spread over the stripe.
    pub fn lost(&self) -> Vec<usize> {
        let count = match self.operation {
            Operation::Encode => 0,
            Operation::DecodeOne => 1,
            Operation::DecodeAll => self.r,
        };
        (0..count).map(|i| i * self.k / count).collect()
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operation = match self.operation {
            Operation::Encode => "encode".to_string(),
            Operation::DecodeOne => "decode 1".to_string(),
            Operation::DecodeAll => format!("decode {}", self.r),
        };
        let place = match self.place {
            Place::Hot => "hot",
            Place::Dram => "DRAM",
        };
        write!(f, "{operation} ({},{}) {} KiB {place}", self.k, self.r, self.chunk_bytes >> 10)
    }
}

const CODES: [(usize, usize); 11] =
    [(2, 2), (6, 3), (4, 4), (8, 4), (10, 4), (12, 4), (16, 4), (32, 4), (64, 4), (128, 4), (128, 8)];
const CHUNK_BYTES: [usize; 2] = [128 << 10, 1 << 20];

/// Every combination of code, chunk length, operation and place. With `quick`, only the cases of claims, the decodes
/// of (10,4), and encoding with the numbers of data chunks of ECWide's Fig. 1.
pub fn cases(quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for place in [Place::Hot, Place::Dram] {
        for chunk_bytes in CHUNK_BYTES {
            for (k, r) in CODES {
                for operation in [Operation::Encode, Operation::DecodeOne, Operation::DecodeAll] {
                    let case = Case { k, r, chunk_bytes, operation, place };
                    if !quick || is_quick(&case) {
                        cases.push(case);
                    }
                }
            }
        }
    }
    cases
}

fn is_quick(case: &Case) -> bool {
    match (case.operation, case.place) {
        (Operation::Encode, Place::Hot) => case.k == 10,
        (Operation::Encode, Place::Dram) => {
            let is_only_figure = matches!(case.k, 4 | 8 | 32) && case.chunk_bytes == CHUNK_BYTES[1];
            is_only_figure || matches!(case.k, 10 | 16 | 64 | 128)
        }
        (Operation::DecodeOne | Operation::DecodeAll, place) => {
            let is_wide_claim = place == Place::Dram && case.r == 4 && matches!(case.k, 16 | 128);
            is_wide_claim || (case.k == 10 && case.chunk_bytes == CHUNK_BYTES[0])
        }
    }
}
