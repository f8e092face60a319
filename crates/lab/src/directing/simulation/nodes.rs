//! Nodes: one task at a time, first come, first served, and episodes in which a node is slow.

use std::collections::VecDeque;

use striate_splitmix::hash;

/// Episodes in which a node is slower by a factor. Each node has its own phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowEpisodes {
    /// Slowdown factor.
    pub factor: f64,
    /// Duration of an episode, in seconds.
    pub for_s: f64,
    /// Seconds from the start of one episode to the next.
    pub every_s: f64,
}

impl SlowEpisodes {
    /// Nodes are five times slower for one second in every thirty.
    pub const USUAL: Self = Self { factor: 5.0, for_s: 1.0, every_s: 30.0 };

    /// Returns when a node whose episodes begin at `phase_s` finishes `work_s` of work that it begins at `at`.
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
            // Always advance, even if rounding leaves nothing.
            at += left_s.max(1e-9);
        }
    }
}

/// Maximum error of the front ends' belief, in seconds, before a node pushes.
pub(super) const BELIEF_S: f64 = 0.001;

/// A node.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Time at which all tasks will have ended.
    free_at: f64,
    /// Bytes of the tasks that have not ended.
    pub(super) queue_bytes: f64,
    /// Start of each of these tasks, and its duration according to its bytes.
    tasks: VecDeque<(f64, f64)>,
    /// Slowdown of the last ended task, if other tasks wait; otherwise 1.
    pace: f64,
    /// The last push: duration of the waiting work, and the time of the push.
    last_push: (f64, f64),
    /// Bytes of all tasks that count.
    pub(super) served_bytes: f64,
    phase_s: f64,
}

impl Node {
    /// Creates the node with this number.
    pub(super) fn new(number: usize, seed: u64, slow: Option<SlowEpisodes>) -> Self {
        let draw = hash(seed ^ hash(number as u64 + 0x510)) as f64 / u64::MAX as f64;
        Self {
            free_at: 0.0,
            queue_bytes: 0.0,
            tasks: VecDeque::new(),
            pace: 1.0,
            last_push: (0.0, 0.0),
            served_bytes: 0.0,
            phase_s: slow.map_or(0.0, |slow| draw * slow.every_s),
        }
    }

    /// Takes a task; returns when its service begins and ends. The node itself does not know these times in advance.
    pub(super) fn take(
        &mut self,
        at: f64,
        bytes: f64,
        work_s: f64,
        slow: Option<SlowEpisodes>,
    ) -> (f64, f64) {
        self.queue_bytes += bytes;
        let begins = self.free_at.max(at);
        self.tasks.push_back((begins, work_s));
        self.free_at = slow.map_or(begins + work_s, |slow| slow.end_of(self.phase_s, begins, work_s));
        (begins, self.free_at)
    }

    /// Ends a task.
    pub(super) fn end(&mut self, at: f64, bytes: f64) {
        self.queue_bytes -= bytes;
        let ended = self.tasks.pop_front();
        let pace = ended.map_or(1.0, |(begins, takes_s)| (at - begins) / takes_s);
        self.pace = if self.tasks.is_empty() { 1.0 } else { pace.max(1.0) };
    }

    /// Returns the node's estimate of the time for its remaining tasks: at its current pace. A task that exceeds its
    /// expected time is assumed to need as long again as it has already taken.
    pub(super) fn work_s(&self, at: f64) -> f64 {
        let Some(&(begins, takes_s)) = self.tasks.front() else { return 0.0 };
        let (since, expected) = ((at - begins).max(0.0), takes_s * self.pace);
        let (remaining, pace) = match since < expected {
            true => (expected - since, self.pace),
            false => (since, 2.0 * since / takes_s),
        };
        remaining + pace * self.tasks.iter().skip(1).map(|(_, takes_s)| takes_s).sum::<f64>()
    }

    /// Returns true if front ends believe wrongly: what was pushed, less the time since, differs from what still
    /// waits.
    pub(super) fn is_believed_wrongly(&self, at: f64) -> bool {
        let believed = (self.last_push.0 - (at - self.last_push.1)).max(0.0);
        (believed - self.work_s(at)).abs() > BELIEF_S
    }

    /// Records a push and returns its content: the duration of the waiting work.
    pub(super) fn tell(&mut self, at: f64) -> f64 {
        self.last_push = (self.work_s(at), at);
        self.last_push.0
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
        assert_eq!((node.work_s(1.0), node.work_s(2.5)), (3.0, 1.5));
        node.end(3.0, 10.0);
        assert_eq!((node.work_s(3.0), node.work_s(3.25)), (1.0, 0.75));
        node.end(4.0, 20.0);
        assert_eq!((node.work_s(4.0), node.queue_bytes), (0.0, 0.0));
        assert_eq!(node.take(9.0, 0.0, 1.0, None), (9.0, 10.0));
    }

    #[test]
    fn what_goes_as_it_was_told_is_not_told_again() {
        let mut node = Node::new(3, 1, None);
        node.take(1.0, 10.0, 2.0, None);
        assert!(node.is_believed_wrongly(1.0));
        assert_eq!(node.tell(1.0), 2.0);
        assert!(!node.is_believed_wrongly(2.5));
        node.end(3.0, 10.0);
        assert!(!node.is_believed_wrongly(3.0));
    }

    #[test]
    fn a_slow_node_says_how_slow_it_is() {
        let mut node = Node::new(3, 1, None);
        node.take(0.0, 1.0, 1.0, None);
        node.take(0.0, 1.0, 1.0, None);
        node.take(0.0, 1.0, 1.0, None);
        // Its first task has already taken twice its expected time.
        assert_eq!(node.work_s(2.0), 2.0 + 4.0 + 4.0);
        node.end(3.0, 1.0);
        node.tasks[0].0 = 3.0;
        assert_eq!(node.work_s(3.0), 6.0);
        node.end(6.0, 1.0);
        node.end(9.0, 1.0);
        node.take(9.0, 1.0, 1.0, None);
        assert_eq!(node.work_s(9.0), 1.0, "an idle node may be as fast as any");
    }
}
