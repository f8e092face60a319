//! Codes as users and records write them: `rs(4,2)`, `lrc(6,2,2)`, `wide(128,27,4)`, `replica(3)`, `none`.
//!
//! This is the only place that reads and writes these names. A wide code may also be requested by its goals,
//! `wide(k=128,f=4,redundancy=1.063)`; it is written by its numbers. A [`CodeSpec`] is a name and numbers;
//! [`CodeSpec::check`] checks that the numbers describe a code, and [`CodeSpec::build`] builds its matrix.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::chunk_set::MAX_CHUNKS;
use crate::code::Code;
use crate::error::CodecError;
use crate::lrc;

/// The name and parameters of a code. For texts and statistics; decisions use the matrix of [`Code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CodeSpec {
    /// `replica(n)`: n full copies. `none` is `replica(1)`.
    Replica {
        /// Number of copies, the first included.
        copies: usize,
    },
    /// `rs(k,r)`: Reed–Solomon, any k of k+r chunks suffice.
    Rs {
        /// Data chunks k.
        data: usize,
        /// Parity chunks r.
        parity: usize,
    },
    /// `lrc(k,l,g)`: Azure's local reconstruction code.
    Lrc {
        /// Data chunks k.
        data: usize,
        /// Local groups l, one local parity each.
        local: usize,
        /// Global parities g.
        global: usize,
    },
    /// `wide(k,r,f)`: ECWide's code, an LRC given by its locality: ⌈k/r⌉ local groups of at most r data chunks, and
    /// f − 1 global parities. n = k + ⌈k/r⌉ + f − 1.
    Wide {
        /// Data chunks k.
        data: usize,
        /// Locality r: number of chunks that are read to repair a lost one.
        locality: usize,
        /// Number of losses f that the code tolerates, and of chunks that one rack may hold.
        tolerance: usize,
    },
}

impl CodeSpec {
    /// Checks that these numbers describe a code.
    ///
    /// # Errors
    /// [`CodecError::Parameters`] with the condition that is violated.
    pub fn check(self) -> Result<(), CodecError> {
        let reason = match self {
            Self::Replica { copies: 0 } => Some("at least one copy is needed".to_owned()),
            Self::Replica { copies } => size_fault(1, copies - 1),
            Self::Rs { data, parity } => size_fault(data, parity),
            Self::Lrc { data, local, global } => size_fault(data, local.saturating_add(global))
                .or_else(|| lrc::check_parameters(data, local, global).err()),
            Self::Wide { data, locality, tolerance } => wide_fault(data, locality, tolerance),
        };
        match reason {
            None => Ok(()),
            Some(reason) => Err(CodecError::Parameters { code: self.to_string(), reason }),
        }
    }

    /// Builds the code with its generator matrix. Costs O(n·k), and more for an LRC: keep the result.
    ///
    /// # Errors
    /// As [`CodeSpec::check`].
    pub fn build(self) -> Result<Code, CodecError> {
        match self {
            Self::Replica { copies } => Code::replica(copies),
            Self::Rs { data, parity } => Code::rs(data, parity),
            Self::Lrc { data, local, global } => Code::lrc(data, local, global),
            Self::Wide { data, locality, tolerance } => Code::wide(data, locality, tolerance),
        }
    }

    /// The data chunks of each local group, in ascending order. The last group of a wide code may be shorter than the
    /// others. Empty for a code without groups, and for numbers that [`CodeSpec::check`] refuses.
    pub(crate) fn local_groups(self) -> Vec<Range<usize>> {
        let (data, size) = match self {
            Self::Replica { .. } | Self::Rs { .. } => return Vec::new(),
            Self::Lrc { data, local, .. } => (data, data.checked_div(local).unwrap_or(0)),
            Self::Wide { data, locality, .. } => (data, locality),
        };
        if size == 0 {
            return Vec::new();
        }
        (0..data).step_by(size).map(|first| first..data.min(first + size)).collect()
    }

    /// Number of chunks per stripe, n.
    pub fn chunk_count(self) -> usize {
        match self {
            Self::Replica { copies } => copies,
            Self::Rs { data, parity } => data + parity,
            Self::Lrc { data, local, global } => data + local + global,
            Self::Wide { data, locality, tolerance } => data + data.div_ceil(locality) + tolerance - 1,
        }
    }

    /// Number of data chunks per stripe, k.
    pub fn data_count(self) -> usize {
        match self {
            Self::Replica { .. } => 1,
            Self::Rs { data, .. } | Self::Lrc { data, .. } | Self::Wide { data, .. } => data,
        }
    }

    /// Number of arbitrary chunks that may be lost: n−1 copies, r parities, g+1 for an LRC, or f.
    pub fn tolerance(self) -> usize {
        match self {
            Self::Replica { copies } => copies.saturating_sub(1),
            Self::Rs { parity, .. } => parity,
            Self::Lrc { global, .. } => global + 1,
            Self::Wide { tolerance, .. } => tolerance,
        }
    }
}

/// The reason why no code has k = `data` data chunks and this many parities.
fn size_fault(data: usize, parities: usize) -> Option<String> {
    let chunks = data.saturating_add(parities);
    if data == 0 {
        Some("at least one data chunk is needed".to_owned())
    } else if chunks > MAX_CHUNKS {
        Some(format!("GF(2^8) has code words of at most {MAX_CHUNKS} chunks, these are {chunks}"))
    } else {
        None
    }
}

/// The reason why `wide(data,locality,tolerance)` is not a code. The limits are those of LRCs, but local groups may
/// differ in size.
fn wide_fault(data: usize, locality: usize, tolerance: usize) -> Option<String> {
    if locality < 2 {
        return Some("the locality is at least 2: groups of one data chunk would only copy it".to_owned());
    }
    if tolerance < 2 {
        return Some("it tolerates at least 2 losses: use rs(k,1) for one".to_owned());
    }
    let parities = data.div_ceil(locality).saturating_add(tolerance - 1);
    size_fault(data, parities).or_else(|| lrc::check_globals(data, tolerance - 1).err())
}

impl fmt::Display for CodeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replica { copies: 1 } => f.write_str("none"),
            Self::Replica { copies } => write!(f, "replica({copies})"),
            Self::Rs { data, parity } => write!(f, "rs({data},{parity})"),
            Self::Lrc { data, local, global } => write!(f, "lrc({data},{local},{global})"),
            Self::Wide { data, locality, tolerance } => write!(f, "wide({data},{locality},{tolerance})"),
        }
    }
}

impl FromStr for CodeSpec {
    type Err = CodecError;

    /// Reads a name, in any case and with blanks around its parts, and checks its numbers.
    fn from_str(text: &str) -> Result<Self, CodecError> {
        if let Some(list) = wide_within(text.trim()) {
            return parse_wide_within(list);
        }
        let spec =
            parse(text.trim()).map_err(|reason| CodecError::Syntax { text: text.to_owned(), reason })?;
        spec.check()?;
        Ok(spec)
    }
}

/// Returns the list between the brackets of a wide code with named numbers.
fn wide_within(text: &str) -> Option<&str> {
    let (name, rest) = text.split_once('(')?;
    let list = rest.strip_suffix(')')?;
    (name.trim().eq_ignore_ascii_case("wide") && list.contains('=')).then_some(list)
}

fn parse(text: &str) -> Result<CodeSpec, String> {
    if text.eq_ignore_ascii_case("none") {
        return Ok(CodeSpec::Replica { copies: 1 });
    }
    let (name, rest) = text.split_once('(').ok_or("it has no parameters")?;
    let list = rest.strip_suffix(')').ok_or("the closing bracket is missing")?;
    let numbers = list
        .split(',')
        .map(|number| number.trim().parse::<usize>().map_err(|_| format!("{number:?} is not a number")))
        .collect::<Result<Vec<_>, _>>()?;
    match (name.trim().to_ascii_lowercase().as_str(), numbers.as_slice()) {
        ("replica", &[copies]) => Ok(CodeSpec::Replica { copies }),
        ("rs", &[data, parity]) => Ok(CodeSpec::Rs { data, parity }),
        ("lrc", &[data, local, global]) => Ok(CodeSpec::Lrc { data, local, global }),
        ("wide", &[data, locality, tolerance]) => Ok(CodeSpec::Wide { data, locality, tolerance }),
        ("lrc-r", &[data, locality, global]) => Ok(CodeSpec::Wide { data, locality, tolerance: global + 1 }),
        ("replica" | "rs" | "lrc" | "wide" | "lrc-r", _) => {
            Err("the number of parameters is wrong".to_owned())
        }
        (other, _) => Err(format!("there is no code named {other:?}")),
    }
}

/// Reads `k=128,f=4,redundancy=1.063`, in any order.
fn parse_wide_within(list: &str) -> Result<CodeSpec, CodecError> {
    let syntax = |reason: String| CodecError::Syntax { text: format!("wide({list})"), reason };
    let (mut data, mut tolerance, mut redundancy) = (None, None, None);
    for part in list.split(',') {
        let (name, value) = part.split_once('=').ok_or_else(|| syntax(format!("{part:?} has no name")))?;
        let value = value.trim();
        let wrong = || syntax(format!("{value:?} is not a number"));
        match name.trim().to_ascii_lowercase().as_str() {
            "k" => data = Some(value.parse().map_err(|_| wrong())?),
            "f" => tolerance = Some(value.parse().map_err(|_| wrong())?),
            "redundancy" => redundancy = Some(value.parse().map_err(|_| wrong())?),
            other => return Err(syntax(format!("{other:?} is none of k, f and redundancy"))),
        }
    }
    match (data, tolerance, redundancy) {
        (Some(data), Some(tolerance), Some(redundancy)) => CodeSpec::wide_within(data, tolerance, redundancy),
        _ => Err(syntax("it needs k, f and redundancy".to_owned())),
    }
}
