//! Events of the simulation.

use striate_core::SiteId;
use striate_plan::Probe;

/// An event of the simulation.
pub(super) enum Event {
    /// A request arrives at its front end.
    Arrives(usize),
    /// A front end takes its next request.
    Takes(usize),
    /// A front end plans with the queues at this moment; the tasks are sent at `sends_at`.
    Directs { request: usize, probed: Vec<SiteId>, sends_at: f64 },
    /// A task arrives at its node.
    Begins { request: usize, chunk: usize, node: usize },
    /// A task ends.
    Ends { request: usize, chunk: usize, node: usize, entered: f64 },
    /// A node checks whether tasks that should have ended have.
    Looks(usize),
    /// A node pushes its queue, and does so again after `every_s`.
    Pushes { node: usize, every_s: f64 },
    /// Front ends receive what waited at a node at time `at`.
    Told { node: usize, waits_s: f64, at: f64 },
    /// A request's time-out.
    TimesOut(usize),
    /// Half of the probes for a table are done.
    Probes { since_last: f64 },
    /// The table takes effect.
    InForce(Probe),
}
