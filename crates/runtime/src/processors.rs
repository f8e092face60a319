//! Utilisation of the machine's processors.

use std::fs;
use std::time::Duration;

use parking_lot::Mutex;

use crate::{Instant, Runtime};

/// Minimum interval between samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// Utilisation of this machine's processors by everything that runs at normal priority (not nice), from `/proc/stat`.
/// Zero if that cannot be read, and in a deterministic runtime, because the machine's processors are not the modelled
/// ones.
#[derive(Debug)]
pub struct Processors {
    runtime: Runtime,
    sample: Mutex<Sample>,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    ticks: Ticks,
    busy: f64,
}

/// Time of all processors together since the machine started, in kernel ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ticks {
    busy: u64,
    all: u64,
}

impl Processors {
    /// Takes the first sample.
    pub fn new(runtime: Runtime) -> Self {
        let ticks = read(&runtime);
        let sample = Mutex::new(Sample { at: runtime.now(), ticks, busy: 0.0 });
        Self { runtime, sample }
    }

    /// Current utilisation: the busy share of the processors' time, 0 to 1.
    pub fn busy(&self) -> f64 {
        let now = self.runtime.now();
        let mut sample = self.sample.lock();
        if now - sample.at >= SAMPLE_INTERVAL {
            let ticks = read(&self.runtime);
            *sample = Sample { at: now, ticks, busy: ticks.busy_since(sample.ticks) };
        }
        sample.busy
    }
}

impl Ticks {
    /// Parses the format of proc_stat(5). Returns `None` for anything else.
    fn parse(stat: &str) -> Option<Self> {
        let fields = stat.lines().next()?.strip_prefix("cpu ")?;
        let fields: Vec<u64> = fields.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = fields[..] else { return None };
        let busy = user + system + irq + softirq + steal;
        Some(Self { busy, all: busy + nice + idle + iowait })
    }

    fn busy_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        (self.busy.saturating_sub(before.busy) as f64 / all as f64).min(1.0)
    }
}

fn read(runtime: &Runtime) -> Ticks {
    if runtime.is_deterministic() {
        return Ticks::default();
    }
    fs::read_to_string("/proc/stat").ok().and_then(|stat| Ticks::parse(&stat)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_as_the_kernel_writes_them() {
        let before = Ticks::parse("cpu  10 5 20 100 30 1 2 3 0 0\ncpu0 1 2 3\n").expect("a line");
        assert_eq!(before, Ticks { busy: 36, all: 171 });
        let after = Ticks::parse("cpu  40 5 50 130 40 1 2 3 0 0\n").expect("a line");
        assert_eq!(after.busy_since(before), 0.6);
        assert_eq!(before.busy_since(after), 0.0);
    }

    #[test]
    fn other_lines_are_refused() {
        for stat in ["", "intr 1 2", "cpu  1 2 3", "cpu  1 2 3 x 5 6 7 8"] {
            assert_eq!(Ticks::parse(stat), None, "{stat:?}");
        }
    }
}
