//! Flows over links, at max–min fair rates.
//!
//! A flow uses each of its links with a weight. Data that is cut into slices and flows through a whole tree at once
//! is one flow, which uses a link as often as the tree does. Rates rise together; flows over a full link keep their
//! rate.

/// Index of a link.
pub type LinkId = usize;

/// One direction of a card, a rack's uplink or downlink, a disk, or a coder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bandwidth, in bytes per second.
    pub rate: f64,
    /// Number of permanent background flows that share the link.
    pub background: f64,
}

/// The running flows.
#[derive(Clone, Debug)]
pub struct Network {
    links: Vec<Link>,
    flows: Vec<Flow>,
    is_stale: bool,
    /// Empty except while rates are being assigned.
    shares: Vec<Share>,
}

#[derive(Clone, Debug)]
struct Flow {
    id: usize,
    uses: Vec<(LinkId, f64)>,
    /// Bytes still to transfer.
    left: f64,
    rate: f64,
}

/// Rest of a link while rates are being assigned.
#[derive(Clone, Debug, Default)]
struct Share {
    rate: f64,
    /// Total weight of the flows without a rate, and of the background.
    weight: f64,
    flows: Vec<usize>,
    /// Number of flows without a rate.
    open: usize,
}

/// Bytes below which a flow counts as complete.
const NOTHING: f64 = 1e-6;

impl Network {
    /// Creates a network without flows.
    pub fn new(links: Vec<Link>) -> Self {
        let shares = links.iter().map(Share::of).collect();
        Self { links, flows: Vec::new(), is_stale: false, shares }
    }

    /// Begins a flow of `bytes` bytes.
    pub fn begin(&mut self, id: usize, uses: Vec<(LinkId, f64)>, bytes: f64) {
        self.flows.push(Flow { id, uses, left: bytes, rate: 0.0 });
        self.is_stale = true;
    }

    /// Advances time until the next flows end. Returns the seconds that passed and the flows that ended; `None` if
    /// there are no flows.
    pub fn pass(&mut self) -> Option<(f64, Vec<usize>)> {
        if std::mem::take(&mut self.is_stale) {
            self.share();
        }
        let seconds = self.flows.iter().map(|flow| flow.left / flow.rate).min_by(f64::total_cmp)?;
        let mut ended = Vec::new();
        self.flows.retain_mut(|flow| {
            // Flows that end at the same time, apart from rounding, end in one step.
            let is_over = flow.left <= flow.rate * seconds * (1.0 + 1e-9) + NOTHING;
            flow.left -= flow.rate * seconds;
            if is_over {
                ended.push(flow.id);
            }
            !is_over
        });
        self.is_stale = true;
        Some((seconds, ended))
    }

    fn share(&mut self) {
        let Self { links, flows, shares, .. } = self;
        let mut used: Vec<LinkId> = Vec::new();
        for (index, flow) in flows.iter_mut().enumerate() {
            flow.rate = 0.0;
            for &(link, weight) in &flow.uses {
                let share = &mut shares[link];
                if share.flows.is_empty() {
                    used.push(link);
                }
                share.weight += weight;
                share.open += 1;
                share.flows.push(index);
            }
        }
        let all = used.clone();
        while let Some((level, link)) = fullest(shares, &used) {
            for index in std::mem::take(&mut shares[link].flows) {
                let flow = &mut flows[index];
                if flow.rate > 0.0 {
                    continue;
                }
                flow.rate = level;
                for &(link, weight) in &flow.uses {
                    shares[link].rate -= weight * level;
                    shares[link].weight -= weight;
                    shares[link].open -= 1;
                }
            }
            used.retain(|&link| shares[link].open > 0);
        }
        all.into_iter().for_each(|link| shares[link] = Share::of(&links[link]));
    }
}

impl Share {
    fn of(link: &Link) -> Self {
        Self { rate: link.rate, weight: link.background, flows: Vec::new(), open: 0 }
    }
}

/// Returns the link that fills up first, and the rate of its flows then.
fn fullest(shares: &[Share], used: &[LinkId]) -> Option<(f64, LinkId)> {
    let level = |link: LinkId| (shares[link].rate / shares[link].weight).max(1e-3);
    used.iter().map(|&link| (level(link), link)).min_by(|a, b| a.0.total_cmp(&b.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(rates: &[f64]) -> Vec<Link> {
        rates.iter().map(|&rate| Link { rate, background: 0.0 }).collect()
    }

    #[test]
    fn flows_share_the_narrowest_link_and_take_what_others_leave() {
        let mut network = Network::new(links(&[90.0, 100.0]));
        network.begin(0, vec![(0, 1.0)], 300.0);
        network.begin(1, vec![(0, 1.0)], 300.0);
        network.begin(2, vec![(0, 1.0), (1, 1.0)], 60.0);
        network.begin(3, vec![(1, 1.0)], 700.0);
        // Three flows at 30; the fourth has the other 70.
        assert_eq!(network.pass(), Some((2.0, vec![2])));
        assert_eq!(network.pass().unwrap().1, [0, 1]);
        assert_eq!(network.pass().unwrap().1, [3]);
        assert_eq!(network.pass(), None);
    }

    #[test]
    fn a_flow_that_uses_a_link_twice_is_half_as_fast_and_background_takes_its_share() {
        let mut network = Network::new(links(&[100.0]));
        network.begin(0, vec![(0, 2.0)], 100.0);
        assert_eq!(network.pass(), Some((2.0, vec![0])));
        let mut network = Network::new(vec![Link { rate: 100.0, background: 3.0 }]);
        network.begin(0, vec![(0, 1.0)], 100.0);
        assert_eq!(network.pass(), Some((4.0, vec![0])));
    }
}
