//! What happens.

use striate_core::SiteId;
use striate_plan::Probe;

/// What happens.
pub(super) enum Event {
    /// A request comes to its front end.
    Arrives(usize),
    /// A front end takes its next request.
    Takes(usize),
    /// The queues are as the front end is told; tasks are sent at this time.
    Directs { request: usize, probed: Vec<SiteId>, sends_at: f64 },
    /// A task comes to its node.
    Begins { request: usize, chunk: usize, node: usize },
    /// A task ends.
    Ends { request: usize, chunk: usize, node: usize, entered: f64 },
    /// A node looks whether it has ended what should have ended.
    Looks(usize),
    /// A node pushes its queue, and will again.
    Pushes { node: usize, every_s: f64 },
    /// Front ends are told what waited at a node at some time.
    Told { node: usize, waits_s: f64, at: f64 },
    /// A request's time-out.
    TimesOut(usize),
    /// The probes for a table are half done.
    Probes { since_last: f64 },
    /// The table is in force.
    InForce(Probe),
}
