//! What front ends know of the nodes' queues where nodes push them: what each node told last, and the front end's own reads
//! on their way that were not there yet.
//!
//! A push says how long what waits at the node takes, and when that was so. A front end counts those of its own reads to the
//! node that arrive after that: in a real system a site says how many of the front end's requests it had taken in.

use std::collections::VecDeque;

use super::super::NODES;

#[derive(Clone, Debug, Default)]
struct View {
    /// What was told last, in seconds,
    told_s: f64,
    /// and when it was so.
    told_at: f64,
    /// Own reads that it does not contain: when they arrive, and how long they take.
    own: VecDeque<(f64, f64)>,
}

/// The views of all front ends.
pub(super) struct Views {
    of: Vec<Vec<View>>,
}

impl Views {
    /// Of so many front ends, all nodes idle.
    pub(super) fn new(front_ends: usize) -> Self {
        Self { of: vec![vec![View::default(); NODES]; front_ends] }
    }

    /// How long what waits at a node takes, as a front end believes: what was told, less the time since, and its own reads.
    pub(super) fn waits_s(&self, front_end: usize, node: usize, at: f64) -> f64 {
        let view = &self.of[front_end][node];
        (view.told_s - (at - view.told_at)).max(0.0)
            + view.own.iter().map(|(_, takes_s)| takes_s).sum::<f64>()
    }

    /// A front end sends a read that arrives then. It sends in order.
    pub(super) fn sends(&mut self, front_end: usize, node: usize, arrives: f64, takes_s: f64) {
        self.of[front_end][node].own.push_back((arrives, takes_s));
    }

    /// All front ends are told what waited at a node at that time.
    pub(super) fn tell(&mut self, node: usize, told_s: f64, at: f64) {
        for views in &mut self.of {
            let view = &mut views[node];
            (view.told_s, view.told_at) = (told_s, at);
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
