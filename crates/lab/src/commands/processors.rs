//! Processor time by process, as Linux counts it under `/proc`.

use std::fs;
use std::ops::{Add, Sub};

use crate::failure::{Failure, Outcome};

/// Processor seconds between two moments, or since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Number of processors.
    pub processors: usize,
    /// Processor seconds of this process and the given children.
    pub own_s: f64,
    /// Processor seconds of the processes that only keep the processors awake.
    pub awake_s: f64,
    /// Busy processor seconds of the whole machine.
    pub busy_s: f64,
    /// Processor seconds of the whole machine, including idle time.
    pub total_s: f64,
}

impl Usage {
    /// Reads the usage since the start of the machine and of the processes: this one, `children`, and `awake`, which
    /// keep the processors awake.
    ///
    /// # Errors
    /// If there is no Linux-like `/proc`, or a process has ended.
    pub fn read(children: &[u32], awake: &[u32]) -> Outcome<Self> {
        let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
        let own_ticks = ticks_of(children)? + ticks_of(&[std::process::id()])?;
        let awake_ticks = ticks_of(awake)?;
        let text = read("/proc/stat")?;
        let (busy, total) = machine_ticks(&text).ok_or_else(|| unknown("/proc/stat"))?;
        let seconds = |ticks: u64| ticks as f64 / ticks_per_s;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            processors,
            own_s: seconds(own_ticks),
            awake_s: seconds(awake_ticks),
            busy_s: seconds(busy),
            total_s: seconds(total),
        })
    }

    /// Returns this program's share of all processors' time.
    pub fn own_share(&self) -> f64 {
        self.own_s / self.total_s.max(f64::MIN_POSITIVE)
    }

    /// Returns the share of all processors' time that other programs took.
    pub fn other_share(&self) -> f64 {
        (self.busy_s - self.own_s - self.awake_s).max(0.0) / self.total_s.max(f64::MIN_POSITIVE)
    }
}

impl Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            processors: self.processors.max(other.processors),
            own_s: self.own_s + other.own_s,
            awake_s: self.awake_s + other.awake_s,
            busy_s: self.busy_s + other.busy_s,
            total_s: self.total_s + other.total_s,
        }
    }
}

impl Sub for Usage {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            processors: self.processors,
            own_s: self.own_s - before.own_s,
            awake_s: self.awake_s - before.awake_s,
            busy_s: self.busy_s - before.busy_s,
            total_s: self.total_s - before.total_s,
        }
    }
}

fn ticks_of(pids: &[u32]) -> Outcome<u64> {
    let mut ticks = 0;
    for pid in pids {
        let text = read(&format!("/proc/{pid}/stat"))?;
        ticks += process_ticks(&text).ok_or_else(|| unknown("/proc/PID/stat"))?;
    }
    Ok(ticks)
}

/// Returns the processor seconds of a process's current threads, to the nanosecond.
pub(super) fn seconds_of(pid: u32) -> Outcome<f64> {
    let path = format!("/proc/{pid}/task");
    let threads = fs::read_dir(&path).map_err(|error| Failure::failed(format!("{path}: {error}")))?;
    let mut seconds = 0.0;
    for thread in threads.flatten() {
        // A thread may have ended meanwhile.
        let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        let run_ns = text.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok());
        seconds += run_ns.unwrap_or(0) as f64 / 1e9;
    }
    Ok(seconds)
}

fn read(path: &str) -> Outcome<String> {
    fs::read_to_string(path).map_err(|error| Failure::failed(format!("{path}: {error}")))
}

fn unknown(path: &str) -> Failure {
    Failure::failed(format!("{path} is not as on Linux; processor times cannot be read"))
}

/// utime + stime: the 14th and 15th field of `/proc/PID/stat`. The second field is a name in parentheses that may
/// contain spaces.
fn process_ticks(text: &str) -> Option<u64> {
    let after_name = text.rsplit_once(')')?.1;
    let mut fields = after_name.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// (busy, all) from the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal. Later
/// fields are already included in user and nice.
fn machine_ticks(text: &str) -> Option<(u64, u64)> {
    let fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let ticks = fields.map(|field| field.parse().ok()).collect::<Option<Vec<u64>>>()?;
    let idle = ticks.get(3)? + ticks.get(4)?;
    let all = ticks.iter().sum::<u64>();
    Some((all - idle, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_around_names_with_blanks_and_guests_are_not_counted_twice() {
        let stat = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 40 2 0 0 20 0";
        assert_eq!(process_ticks(stat), Some(42));
        assert_eq!(machine_ticks("cpu  1 2 3 100 10 4 5 6 900 900\ncpu0 …"), Some((21, 131)));
        assert_eq!((process_ticks("7 (a"), machine_ticks("intr 1")), (None, None));
        // Reading takes time too: at some point the first tick of this process is counted.
        let used = std::iter::repeat_with(|| Usage::read(&[], &[]).unwrap()).find(|usage| usage.own_s > 0.0);
        let usage = used.unwrap();
        assert!(usage.own_share() > 0.0 && usage.own_share() + usage.other_share() <= 1.0);
    }
}
