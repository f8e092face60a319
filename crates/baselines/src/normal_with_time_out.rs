//! Normal (Hu et al., SoCC'17, §3.1), the common solution that the paper compares with. It reads the wanted chunk
//! itself. Only when the chunk's site has been silent for the time-out does it add a degraded read: a random one of a
//! Reed–Solomon code, or an LRC's local group. Whichever arrives first is used, and nothing is cancelled.
//!
//! The paper does not state its time-out. No read of its Normal took longer than 1.244 s (LRC) and 1.951 s (RS), so 2 s
//! ([`NormalWithTimeOut::default`]) is the least round time-out of which its tables show no trace. Little depends on
//! it: among the lab's loads near Normal's row (`striate-lab directing --time-outs`), time-outs of 0.3 to 2 s change
//! its mean by about a tenth at most. Yet with 0.3 s a tenth (LRC) to a quarter (RS) of the requests time out, with 1 s
//! 0.6% and 4%, and with 2 s none to 0.3%.

use std::fmt;
use std::time::Duration;

use rand::RngCore;
use striate_codec::{ChunkSet, CodecError};
use striate_plan::read::options::one_degraded_option;
use striate_plan::{
    ChosenChunk, ChunkChoice, Policy, QueryPlan, ReadPlanner, ReadPurpose, ReadQuery, plan_normally,
};

use crate::directing::{plan_pieces, wanted_chunk};

/// Reads the wanted chunks, and other chunks after a time-out.
#[derive(Clone, Copy, Debug)]
pub struct NormalWithTimeOut {
    /// Time that a site may be silent.
    pub time_out: Duration,
}

impl Default for NormalWithTimeOut {
    /// 2 s.
    fn default() -> Self {
        Self { time_out: Duration::from_secs(2) }
    }
}

impl NormalWithTimeOut {
    /// Parses `normal(TIMEOUT)`: a whole number of seconds or milliseconds above 0, as in `normal(2s)` and
    /// `normal(300ms)`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let time_out = text.strip_prefix("normal(")?.strip_suffix(')')?;
        let time_out = match time_out.strip_suffix("ms") {
            Some(number) => Duration::from_millis(number.parse().ok()?),
            None => Duration::from_secs(time_out.strip_suffix('s')?.parse().ok()?),
        };
        (!time_out.is_zero()).then_some(Self { time_out })
    }
}

impl Policy for NormalWithTimeOut {
    fn planner(&self) -> Box<dyn ReadPlanner> {
        Box::new(*self)
    }

    fn cancels(&self) -> bool {
        false
    }

    fn time_out(&self) -> Option<Duration> {
        Some(self.time_out)
    }

    fn why(&self, chunk: ChosenChunk) -> ChunkChoice {
        if chunk.is_wanted { ChunkChoice::Systematic } else { ChunkChoice::Substitute }
    }
}

impl fmt::Display for NormalWithTimeOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.time_out.subsec_nanos() {
            0 => write!(f, "normal({}s)", self.time_out.as_secs()),
            _ => write!(f, "normal({}ms)", self.time_out.as_millis()),
        }
    }
}

impl ReadPlanner for NormalWithTimeOut {
    fn plan(&mut self, query: &ReadQuery<'_>, rng: &mut dyn RngCore) -> Result<QueryPlan, CodecError> {
        if query.purpose != ReadPurpose::Rest {
            return plan_normally(query);
        }
        plan_pieces(query, &|_| None, |piece, _| {
            let obtained: ChunkSet =
                piece.available(query.can_be_asked).chain(piece.awaited.iter()).collect();
            let index = wanted_chunk(piece);
            let set = match obtained.contains(index) {
                true => Some(piece.wanted),
                false => one_degraded_option(piece.code, index, &obtained, rng),
            };
            let insufficient = || {
                piece.code.decode_plan(&obtained.iter().collect::<Vec<_>>(), &[index]).map(|_| piece.wanted)
            };
            set.map_or_else(insufficient, Ok).map(|set| set.difference(&piece.requested))
        })
    }
}
