//! What front ends know about the nodes' queues when nodes push them: each node's last push, and the front end's own
//! reads that had not arrived at that time.
//!
//! A push contains the duration of the work that waits at the node, and the time of that measurement. A front end
//! adds those of its own reads to the node that arrive later. In a real system, a site reports how many of the front
//! end's requests it has received.

use std::collections::VecDeque;

use super::super::NODES;

#[derive(Clone, Debug, Default)]
struct View {
    /// Duration of the waiting work at the last push, in seconds.
    pushed_s: f64,
    /// Time of that push.
    pushed_at: f64,
    /// Own reads that the push does not contain: arrival times and durations.
    own: VecDeque<(f64, f64)>,
}

/// The views of all front ends.
pub(super) struct Views {
    by_front_end: Vec<Vec<View>>,
}

impl Views {
    /// Creates the views of `front_ends` front ends, with all nodes idle.
    pub(super) fn new(front_ends: usize) -> Self {
        Self { by_front_end: vec![vec![View::default(); NODES]; front_ends] }
    }

    /// Returns a front end's estimate of the work that waits at a node: the last push, less the time since, plus its
    /// own reads.
    pub(super) fn waits_s(&self, front_end: usize, node: usize, at: f64) -> f64 {
        let view = &self.by_front_end[front_end][node];
        (view.pushed_s - (at - view.pushed_at)).max(0.0)
            + view.own.iter().map(|(_, takes_s)| takes_s).sum::<f64>()
    }

    /// Records that a front end sends a read that arrives at `arrives`. Reads are sent in order.
    pub(super) fn sends(&mut self, front_end: usize, node: usize, arrives: f64, takes_s: f64) {
        self.by_front_end[front_end][node].own.push_back((arrives, takes_s));
    }

    /// Records at all front ends what waited at a node at time `at`.
    pub(super) fn tell(&mut self, node: usize, pushed_s: f64, at: f64) {
        for views in &mut self.by_front_end {
            let view = &mut views[node];
            (view.pushed_s, view.pushed_at) = (pushed_s, at);
            while view.own.front().is_some_and(|(arrives, _)| *arrives <= at) {
                view.own.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_reads_count_until_a_push_contains_them() {
        let mut views = Views::new(2);
        views.sends(0, 7, 1.0, 0.25);
        views.sends(0, 7, 2.0, 0.5);
        assert_eq!(
            (views.waits_s(0, 7, 0.9), views.waits_s(1, 7, 0.9), views.waits_s(0, 6, 0.9)),
            (0.75, 0.0, 0.0)
        );
        views.tell(7, 3.0, 1.0);
        assert_eq!((views.waits_s(0, 7, 1.0), views.waits_s(1, 7, 2.5)), (3.5, 1.5));
        views.tell(7, 0.0, 2.0);
        assert_eq!(views.waits_s(0, 7, 2.0), 0.0);
    }
}
