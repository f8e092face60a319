//! The modelled network: machines in racks, links with delays and bandwidths, and their faults.
//!
//! A message takes half a round trip after its bytes have passed the sender's network card, the uplinks of both racks
//! if these differ, and the receiver's card. Each of them passes one message after the other, in the order in which
//! they were sent. A lost message is sent again after [`RETRANSMIT`], as in TCP. Over a cut link nothing arrives, in
//! one direction only, until it is mended: senders need a deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::SmallRng;
use striate_runtime::{Instant, Runtime};
use tokio::sync::oneshot;

use crate::trace::{Event, Trace};

/// Delay before a lost message is sent again: TCP's minimum retransmission time-out on Linux.
pub const RETRANSMIT: Duration = Duration::from_millis(200);

/// Constants of a network. Bandwidths are in bytes per second; `None` for links that are never the bottleneck.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkModel {
    /// Round-trip time between any two machines.
    pub round_trip: Duration,
    /// Bandwidth of each machine's card in each direction.
    pub card_bytes_per_s: Option<f64>,
    /// Bandwidth of each rack's uplink in each direction.
    pub uplink_bytes_per_s: Option<f64>,
    /// Probability that a sent message is lost.
    pub loss: f64,
    /// Time without an answer after which a request fails at its sender.
    pub reply_timeout: Duration,
}

/// A machine and its rack, both numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Number of the machine, from 0.
    pub number: u32,
    /// Number of its rack.
    pub rack: u32,
}

/// The network. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Network {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    runtime: Runtime,
    trace: Trace,
    model: NetworkModel,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rng: SmallRng,
    loss: f64,
    /// Time at which each link is free again.
    free_at: BTreeMap<Link, Instant>,
    /// Cut links as (from, to).
    cut: BTreeSet<(u32, u32)>,
    /// Bytes of partial sums sent by each machine.
    summed: BTreeMap<u32, u64>,
}

/// A link that passes one message after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Link {
    CardOut(u32),
    CardIn(u32),
    RackOut(u32),
    RackIn(u32),
}

impl Network {
    /// Creates a network without faults.
    pub fn new(runtime: Runtime, trace: Trace, model: NetworkModel) -> Self {
        let (rng, loss) = (runtime.rng(), model.loss);
        let (free_at, cut, summed) = Default::default();
        let state = State { rng, loss, free_at, cut, summed };
        Self { shared: Arc::new(Shared { runtime, trace, model, state: Mutex::new(state) }) }
    }

    /// Fault: drops everything that `from` sends to `to` from now on. The other direction is not affected.
    pub fn cut(&self, from: Machine, to: Machine) {
        self.shared.trace.record(Event::Fault, u64::from(from.number), 1 << 32 | u64::from(to.number));
        self.shared.state.lock().cut.insert((from.number, to.number));
    }

    /// Fault: separates the machines of `one` from those of `other`, in both directions.
    pub fn partition(&self, one: &[Machine], other: &[Machine]) {
        for a in one {
            for b in other {
                self.cut(*a, *b);
                self.cut(*b, *a);
            }
        }
    }

    /// Mends all cuts.
    pub fn mend(&self) {
        self.shared.trace.record(Event::Fault, 0, 2 << 32);
        self.shared.state.lock().cut.clear();
    }

    /// Mends the cut from one machine to another.
    pub fn mend_link(&self, from: Machine, to: Machine) {
        self.shared.trace.record(Event::Fault, u64::from(from.number), 7 << 32 | u64::from(to.number));
        self.shared.state.lock().cut.remove(&(from.number, to.number));
    }

    /// Fault: changes the probability that a sent message is lost.
    pub fn set_loss(&self, loss: f64) {
        self.shared.trace.record(Event::Fault, (loss * 1e6) as u64, 3 << 32);
        self.shared.state.lock().loss = loss;
    }

    /// Returns the arrival time of a message of `bytes` bytes that is sent now; `None` if the link is cut. Within a
    /// machine it arrives at once.
    pub fn send(&self, from: Machine, to: Machine, bytes: u64) -> Option<Instant> {
        let Shared { runtime, trace, model, state } = &*self.shared;
        let mut at = runtime.now();
        if from.number == to.number {
            return Some(at);
        }
        let mut state = state.lock();
        if state.cut.contains(&(from.number, to.number)) {
            trace.record(Event::Lost, u64::from(to.number), 1);
            return None;
        }
        // A retransmission delays the message only: the links are not held for it meanwhile.
        let mut retransmissions = 0;
        while state.loss > 0.0 && state.rng.random::<f64>() < state.loss {
            trace.record(Event::Lost, u64::from(to.number), 0);
            retransmissions += 1;
        }
        let mut pass = |link, bandwidth: Option<f64>| {
            let Some(bandwidth) = bandwidth else { return };
            let free_at = state.free_at.entry(link).or_insert(at);
            at = at.max(*free_at) + Duration::from_secs_f64(bytes as f64 / bandwidth);
            *free_at = at;
        };
        pass(Link::CardOut(from.number), model.card_bytes_per_s);
        if from.rack != to.rack {
            pass(Link::RackOut(from.rack), model.uplink_bytes_per_s);
            pass(Link::RackIn(to.rack), model.uplink_bytes_per_s);
        }
        pass(Link::CardIn(to.number), model.card_bytes_per_s);
        Some(at + model.round_trip / 2 + RETRANSMIT * retransmissions)
    }

    /// Bytes of partial sums that a machine has sent to others: the traffic of repairs and moves between sites.
    pub fn summed_bytes(&self, from: Machine) -> u64 {
        self.shared.state.lock().summed.get(&from.number).copied().unwrap_or(0)
    }

    /// Counts `bytes` of a partial sum that were sent.
    pub(crate) fn count_summed(&self, from: Machine, bytes: u64) {
        *self.shared.state.lock().summed.entry(from.number).or_default() += bytes;
    }

    /// The runtime of the network.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.shared.runtime
    }

    /// The event log of the network.
    pub(crate) fn trace(&self) -> &Trace {
        &self.shared.trace
    }

    /// Waits until `at`, the arrival time of a message.
    pub async fn wait_until(&self, at: Instant) {
        self.shared.runtime.sleep_until(at).await;
    }

    /// Waits for the reply timeout.
    pub async fn wait_in_vain(&self) {
        self.shared.runtime.sleep(self.shared.model.reply_timeout).await;
    }

    /// Carries out `operation` on another machine and returns its output after the round trip. `bytes` are the sizes of
    /// the request and the reply. Returns `None` if no answer arrives in time. A request that was sent is carried out
    /// even if its sender is gone.
    pub async fn carry<T: Send + 'static>(
        &self,
        from: Machine,
        to: Machine,
        bytes: (u64, u64),
        operation: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let runtime = &self.shared.runtime;
        let (reply, answer) = oneshot::channel();
        if let Some(arrives) = self.send(from, to, bytes.0) {
            let network = self.clone();
            runtime.spawn(async move {
                let runtime = &network.shared.runtime;
                runtime.sleep_until(arrives).await;
                let output = operation.await;
                if let Some(arrives) = network.send(to, from, bytes.1) {
                    runtime.sleep_until(arrives).await;
                    // The caller may be gone.
                    let _ = reply.send(output);
                } else {
                    network.wait_in_vain().await;
                }
            });
            return runtime.timeout(self.shared.model.reply_timeout, answer).await.ok()?.ok();
        }
        self.wait_in_vain().await;
        None
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use striate_runtime::run_in_virtual_time;

    use super::*;

    pub(crate) const MODEL: NetworkModel = NetworkModel {
        round_trip: Duration::from_micros(200),
        card_bytes_per_s: None,
        uplink_bytes_per_s: None,
        loss: 0.0,
        reply_timeout: Duration::from_secs(15),
    };

    pub(crate) fn network(runtime: &Runtime, model: NetworkModel) -> Network {
        Network::new(runtime.clone(), Trace::new(runtime.clone()), model)
    }

    pub(crate) fn machine(number: u32, rack: u32) -> Machine {
        Machine { number, rack }
    }

    #[test]
    fn messages_pass_each_link_one_after_the_other() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let model = NetworkModel { card_bytes_per_s: Some(1e9), uplink_bytes_per_s: Some(5e8), ..MODEL };
            let network = network(&runtime, model);
            let (now, us) = (runtime.now(), Duration::from_micros);
            let arrives = |from, to| network.send(from, to, 100_000).unwrap() - now;
            // 100 µs over each card, 200 µs over each uplink, half the round trip is 100 µs.
            assert_eq!(arrives(machine(0, 0), machine(1, 0)), us(300));
            assert_eq!(arrives(machine(0, 0), machine(2, 0)), us(400), "the sender's card was busy");
            assert_eq!(arrives(machine(3, 0), machine(4, 1)), us(700), "over two uplinks");
            assert_eq!(arrives(machine(5, 0), machine(6, 1)), us(900), "the uplink was busy");
            assert_eq!(arrives(machine(7, 0), machine(7, 0)), us(0), "within the machine");
        });
    }

    #[test]
    fn a_cut_holds_in_one_direction_until_it_is_mended() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let network = network(&runtime, MODEL);
            let (a, b) = (machine(0, 0), machine(1, 0));
            network.cut(a, b);
            assert!(network.send(a, b, 0).is_none() && network.send(b, a, 0).is_some());
            network.mend();
            network.partition(&[a], &[b]);
            assert!(network.send(a, b, 0).is_none() && network.send(b, a, 0).is_none());
            network.mend();
            assert!(network.send(a, b, 0).is_some());
        });
    }
}
