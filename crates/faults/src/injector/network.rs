//! Faults of the network.

use super::Injector;
use crate::coverage::FaultKind;
use striate_virtual_network::Machine;

impl Injector {
    pub(super) async fn lose_messages(&self, kind: FaultKind) {
        if !self.take(kind) {
            return;
        }
        self.begin(kind, 0);
        self.cluster.network.set_loss(0.02 + self.cluster.draw(200) as f64 / 1e3);
        self.pause(500, 4_000).await;
        self.cluster.network.set_loss(0.0);
        self.end(kind);
        self.leave(kind);
    }

    pub(super) async fn partition(&self, kind: FaultKind) {
        if !self.take(kind) {
            return;
        }
        let (one, other): (Vec<Machine>, Vec<Machine>) =
            self.cluster.machines().into_iter().partition(|_| self.cluster.draw(3) == 0);
        self.begin(kind, one.len() as u64);
        let between = |one: &Machine| other.iter().map(|other| (*one, *other)).collect::<Vec<_>>();
        let links: Vec<_> = one.iter().flat_map(between).flat_map(|(a, b)| [(a, b), (b, a)]).collect();
        self.cut_for(&links, 300, 3_000).await;
        self.end(kind);
        self.leave(kind);
    }

    pub(super) async fn cut_one_way(&self, kind: FaultKind) {
        if !self.take(kind) {
            return;
        }
        self.begin(kind, 0);
        let machines = self.cluster.machines();
        let draw = |_| self.cluster.choose(&machines).zip(self.cluster.choose(&machines));
        let links: Vec<_> = (0..2 + self.cluster.draw(12)).filter_map(draw).collect();
        self.cut_for(&links, 300, 4_000).await;
        self.end(kind);
        self.leave(kind);
    }

    /// Cuts the leading process off for longer than its lease: from the metadata, from the sites or from everything,
    /// in one or both directions. Another process takes over, while the old leader continues with whatever it
    /// reaches.
    pub(super) async fn cut_leader(&self, kind: FaultKind) {
        let Some(leader) = self.cluster.leader() else { return };
        if !self.take(kind) {
            return;
        }
        let here = leader.machine;
        self.begin(kind, u64::from(here.number));
        let others: Vec<Machine> = match self.cluster.draw(3) {
            0 => vec![self.cluster.engine_machine()],
            1 => self.cluster.sites().iter().map(|site| site.machine).collect(),
            _ => self.cluster.machines(),
        };
        let directions = 1 + self.cluster.draw(3);
        let out = others.iter().filter(|_| directions & 1 != 0).map(|other| (here, *other));
        let back = others.iter().filter(|_| directions & 2 != 0).map(|other| (*other, here));
        let links: Vec<_> = out.chain(back).collect();
        self.cut_for(&links, 12_500, 17_000).await;
        self.end(kind);
        self.leave(kind);
    }

    /// Cuts one-directional links for a while.
    async fn cut_for(&self, links: &[(Machine, Machine)], from_ms: u64, to_ms: u64) {
        links.iter().for_each(|&(from, to)| self.cluster.network.cut(from, to));
        self.pause(from_ms, to_ms).await;
        links.iter().for_each(|&(from, to)| self.cluster.network.mend_link(from, to));
    }
}
