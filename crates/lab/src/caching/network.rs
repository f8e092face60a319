//! Flows from servers to clients, at max–min fair rates.
//!
//! [`crate::wide::network`] with a link of stream speed for each flow could do the same. It takes more than twice the
//! time, and some rates differ in their last bits, which makes runs diverge.

/// A flow's number.
pub type FlowId = usize;

/// Running flows over the cards of servers and clients.
#[derive(Clone, Debug)]
pub struct Network {
    servers: Vec<f64>,
    clients: Vec<f64>,
    flows: Vec<Flow>,
    is_stale: bool,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    id: FlowId,
    server: usize,
    client: usize,
    /// Bytes that have not arrived.
    remaining: f64,
    rate: f64,
    max_rate: f64,
}

/// A flow that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EndedFlow {
    /// Id of the flow.
    pub id: FlowId,
    /// Server of the flow.
    pub server: usize,
}

/// Bytes below which a flow counts as complete.
const NOTHING: f64 = 1e-3;

impl Network {
    /// Creates a network of cards, in bytes per second.
    pub fn new(servers: Vec<f64>, clients: Vec<f64>) -> Self {
        Self { servers, clients, flows: Vec::new(), is_stale: false }
    }

    /// Sets the bandwidth of a server's card.
    pub fn set_server(&mut self, server: usize, card: f64) {
        self.servers[server] = card;
        self.is_stale = true;
    }

    /// Begins a flow, which is never faster than `max_rate`.
    pub fn begin(&mut self, id: FlowId, server: usize, client: usize, bytes: f64, max_rate: f64) {
        self.flows.push(Flow { id, server, client, remaining: bytes, rate: 0.0, max_rate });
        self.is_stale = true;
    }

    /// Cancels a flow; returns the bytes that had not arrived.
    pub fn cancel(&mut self, id: FlowId) -> Option<f64> {
        let place = self.flows.iter().position(|flow| flow.id == id)?;
        self.is_stale = true;
        Some(self.flows.swap_remove(place).remaining)
    }

    /// Returns the seconds until the next flow ends, if nothing else changes.
    pub fn next_end_s(&mut self) -> Option<f64> {
        if std::mem::take(&mut self.is_stale) {
            self.share();
        }
        let ends = self.flows.iter().map(|flow| flow.remaining.max(0.0) / flow.rate);
        ends.min_by(f64::total_cmp)
    }

    /// Advances time, at most to the next end; returns the flows that ended.
    pub fn pass(&mut self, seconds: f64) -> Vec<EndedFlow> {
        let mut ended = Vec::new();
        for flow in &mut self.flows {
            flow.remaining -= flow.rate * seconds;
        }
        self.flows.retain(|flow| {
            let is_under_way = flow.remaining > NOTHING;
            if !is_under_way {
                ended.push(EndedFlow { id: flow.id, server: flow.server });
            }
            is_under_way
        });
        self.is_stale |= !ended.is_empty();
        ended
    }

    /// Progressive filling: all rates rise together; those at a full card or their maximum stay fixed.
    fn share(&mut self) {
        let (mut servers, mut clients) = (self.servers.clone(), self.clients.clone());
        let (mut at_server, mut at_client) = (vec![0usize; servers.len()], vec![0usize; clients.len()]);
        for flow in &self.flows {
            at_server[flow.server] += 1;
            at_client[flow.client] += 1;
        }
        let mut open: Vec<usize> = (0..self.flows.len()).collect();
        while !open.is_empty() {
            let level = least_share(&servers, &at_server).min(least_share(&clients, &at_client)).max(1.0);
            let full_servers = full_cards(&servers, &at_server, level);
            let full_clients = full_cards(&clients, &at_client, level);
            let slowest =
                open.iter().map(|&number| self.flows[number].max_rate).fold(f64::INFINITY, f64::min);
            let (level, is_maximum) = if level >= slowest { (slowest, true) } else { (level, false) };
            open.retain(|&number| {
                let flow = &mut self.flows[number];
                let is_fixed = match is_maximum {
                    true => flow.max_rate <= level,
                    false => full_servers[flow.server] || full_clients[flow.client],
                };
                if is_fixed {
                    flow.rate = level;
                    servers[flow.server] -= level;
                    clients[flow.client] -= level;
                    at_server[flow.server] -= 1;
                    at_client[flow.client] -= 1;
                }
                !is_fixed
            });
        }
    }
}

/// Returns the smallest equal share of the flows at a card.
fn least_share(remaining: &[f64], counts: &[usize]) -> f64 {
    let shares = remaining.iter().zip(counts).filter(|(_, count)| **count > 0);
    shares.map(|(remaining, &count)| remaining / count as f64).fold(f64::INFINITY, f64::min)
}

/// Whether each card is full once its flows have this rate.
fn full_cards(remaining: &[f64], counts: &[usize], level: f64) -> Vec<bool> {
    let is_full =
        |(remaining, &count): (&f64, &usize)| count > 0 && remaining / count as f64 <= level * (1.0 + 1e-9);
    remaining.iter().zip(counts).map(is_full).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(network: &mut Network) -> Vec<f64> {
        network.next_end_s();
        network.flows.iter().map(|flow| flow.rate.round()).collect()
    }

    #[test]
    fn a_flow_alone_is_as_fast_as_a_stream_and_many_share_the_narrowest_card() {
        let mut network = Network::new(vec![600.0, 100.0], vec![700.0, 700.0]);
        network.begin(0, 0, 0, 1e6, 175.0);
        assert_eq!(rates(&mut network), [175.0]);
        (1..4).for_each(|id| network.begin(id, 0, 0, 1e6, 175.0));
        assert_eq!(rates(&mut network), [150.0; 4], "the server's card");
        network.begin(4, 1, 0, 1e6, 175.0);
        network.begin(5, 1, 1, 1e6, 175.0);
        // The second server's flows get 50 each; the first client shares 700 between 4 × 150 and 50.
        assert_eq!(rates(&mut network), [150.0, 150.0, 150.0, 150.0, 50.0, 50.0]);
        network.cancel(0);
        assert_eq!(rates(&mut network).iter().filter(|rate| **rate == 175.0).count(), 3);
    }

    #[test]
    fn a_slow_flow_leaves_the_rest_of_a_card_to_the_others() {
        let mut network = Network::new(vec![300.0, 0.0], vec![700.0]);
        network.begin(0, 0, 0, 1e6, 50.0);
        (1..3).for_each(|id| network.begin(id, 0, 0, 1e6, 175.0));
        assert_eq!(rates(&mut network), [50.0, 125.0, 125.0]);
        network.begin(3, 1, 0, 1e6, 175.0);
        assert_eq!(rates(&mut network), [50.0, 125.0, 125.0, 1.0], "at a card that stands still");
    }

    #[test]
    fn flows_end_when_their_bytes_have_come() {
        let mut network = Network::new(vec![100.0], vec![100.0]);
        network.begin(7, 0, 0, 100.0, 100.0);
        network.begin(8, 0, 0, 50.0, 100.0);
        assert_eq!(network.next_end_s(), Some(1.0));
        assert_eq!(network.pass(1.0), [EndedFlow { id: 8, server: 0 }]);
        assert_eq!(network.next_end_s(), Some(0.5));
        assert_eq!(network.pass(0.5), [EndedFlow { id: 7, server: 0 }]);
        assert_eq!(network.next_end_s(), None);
    }
}
