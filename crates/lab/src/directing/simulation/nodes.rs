//! Nodes: one task at a time, first come, first served, and seconds in which some are slow.

use striate_splitmix::hash;

use super::TASK_S;

/// Times in which a node takes a multiple of its time for everything. Each node has them at a phase of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowEpisodes {
    /// How many times as long everything takes.
    pub factor: f64,
    /// Seconds of an episode.
    pub for_s: f64,
    /// Seconds from one to the next.
    pub every_s: f64,
}

impl SlowEpisodes {
    /// Nodes are five times as slow for a second in every thirty.
    pub const USUAL: Self = Self { factor: 5.0, for_s: 1.0, every_s: 30.0 };

    /// When a node whose episodes begin at `phase_s` ends `work_s` that it begins at `at`.
    fn end_of(self, phase_s: f64, at: f64, mut work_s: f64) -> f64 {
        let mut at = at;
        loop {
            let since = (at - phase_s).rem_euclid(self.every_s);
            let (factor, left_s) = match since < self.for_s {
                true => (self.factor, self.for_s - since),
                false => (1.0, self.every_s - since),
            };
            if work_s * factor <= left_s {
                return at + work_s * factor;
            }
            work_s -= left_s / factor;
            // Never in place, whatever is lost to rounding.
            at += left_s.max(1e-9);
        }
    }
}

/// A node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Node {
    /// When it has ended all tasks.
    free_at: f64,
    /// Bytes of the tasks that it has not ended,
    pub(super) queue_bytes: f64,
    /// and their number.
    pub(super) tasks: f64,
    /// Bytes of all tasks that count.
    pub(super) served_bytes: f64,
    phase_s: f64,
}

impl Node {
    /// The node of this number.
    pub(super) fn new(number: usize, seed: u64, slow: Option<SlowEpisodes>) -> Self {
        let draw = hash(seed ^ hash(number as u64 + 0x510)) as f64 / u64::MAX as f64;
        Self { phase_s: slow.map_or(0.0, |slow| draw * slow.every_s), ..Self::default() }
    }

    /// Takes a task: when it begins to serve it, and when it ends.
    pub(super) fn take(
        &mut self,
        at: f64,
        bytes: f64,
        work_s: f64,
        slow: Option<SlowEpisodes>,
    ) -> (f64, f64) {
        self.queue_bytes += bytes;
        self.tasks += 1.0;
        let begins = self.free_at.max(at);
        self.free_at = slow.map_or(begins + work_s, |slow| slow.end_of(self.phase_s, begins, work_s));
        (begins, self.free_at)
    }

    /// Ends a task.
    pub(super) fn end(&mut self, bytes: f64) {
        self.queue_bytes -= bytes;
        self.tasks -= 1.0;
    }

    /// How long what it has not ended takes, as its queue tells: the cost of each task, and its bytes.
    pub(super) fn work_s(&self, bytes_per_s: f64) -> f64 {
        self.tasks * TASK_S + self.queue_bytes / bytes_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_second_does_a_fifth_of_the_work() {
        let slow = SlowEpisodes::USUAL;
        for (at, work, end) in [
            (5.0, 1.0, 6.0),
            (10.0, 0.1, 10.5),
            (10.0, 0.2, 11.0),
            (10.0, 0.3, 11.1),
            (9.5, 1.0, 11.3),
            (10.5, 29.1, 40.0),
            (10.5, 29.3, 41.0),
        ] {
            let got = slow.end_of(10.0, at, work);
            assert!((got - end).abs() < 1e-6, "{at}, {work}: {got}, not {end}");
        }
    }

    #[test]
    fn a_node_serves_in_turn() {
        let mut node = Node::new(3, 1, None);
        assert_eq!(node.take(1.0, 10.0, 2.0, None), (1.0, 3.0));
        assert_eq!(node.take(2.0, 20.0, 1.0, None), (3.0, 4.0));
        assert!((node.work_s(10.0) - (2.0 * TASK_S + 3.0)).abs() < 1e-12);
        node.end(10.0);
        assert!((node.work_s(10.0) - (TASK_S + 2.0)).abs() < 1e-12);
        assert_eq!(node.take(9.0, 0.0, 1.0, None), (9.0, 10.0));
    }
}
