//! Which operations ran during which faults, and which profiles met them.

use std::collections::BTreeMap;
use std::fmt;

use parking_lot::Mutex;

use super::operation::Kind;
use super::shape::Family;

/// Kinds of faults, as columns of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// A site's process is killed and started again later.
    SiteKill,
    /// A site loses its power, and what it had not synced.
    PowerCut,
    /// The metadata's machine loses its power.
    EngineCrash,
    /// A gateway is killed at some await and started again later.
    GatewayKill,
    /// A disk does not answer for a while.
    HungDisk,
    /// A disk takes a hundred times as long.
    SlowDisk,
    /// A disk is full.
    FullDisk,
    /// Reads of a disk fail with EIO.
    ReadError,
    /// Writes to a disk fail with EIO after a part of the data.
    WriteError,
    /// Syncs of a disk fail with EIO and lose the data that they had to write.
    SyncError,
    /// Bits of a segment flip.
    BitFlip,
    /// A disk writes data to a wrong place of its segments, in addition to the right one.
    Misdirected,
    /// A disk is replaced by a blank one.
    BlankDisk,
    /// Messages are lost and sent again.
    Loss,
    /// Some machines cannot reach some others, in either direction.
    Partition,
    /// Messages from one machine do not reach another.
    OneWayCut,
    /// Writes and deletes reach a site a second time, seconds later and in another order.
    Replay,
    /// A gateway's wall clock jumps forwards or backwards.
    ClockJump,
    /// A disk with a metadata mirror fails.
    MirrorFault,
    /// A disk with a metadata mirror is replaced by a blank one.
    MirrorBlank,
    /// A process is paused, sometimes for longer than its lease.
    Pause,
    /// The leading process is killed at some step of its services.
    LeaderKill,
    /// The leading process cannot reach the sites, the metadata or any machine, for longer than its lease.
    LeaderCut,
    /// A site is away for longer than repair waits, and comes back with its data.
    Absence,
    /// While the chunks of a lost site are rebuilt, another site dies that repair copies from or to.
    SecondFailure,
    /// A site is drained.
    Drain,
    /// A new site joins.
    Join,
    /// All sites of a rack die at once and come back.
    RackLoss,
    /// A memory site dies and comes back empty.
    MemoryKill,
}

impl FaultKind {
    /// All kinds, in the order of the table.
    pub const ALL: [Self; 29] = [
        Self::SiteKill,
        Self::PowerCut,
        Self::EngineCrash,
        Self::GatewayKill,
        Self::HungDisk,
        Self::SlowDisk,
        Self::FullDisk,
        Self::ReadError,
        Self::WriteError,
        Self::SyncError,
        Self::BitFlip,
        Self::Misdirected,
        Self::BlankDisk,
        Self::Loss,
        Self::Partition,
        Self::OneWayCut,
        Self::Replay,
        Self::ClockJump,
        Self::MirrorFault,
        Self::MirrorBlank,
        Self::Pause,
        Self::LeaderKill,
        Self::LeaderCut,
        Self::Absence,
        Self::SecondFailure,
        Self::Drain,
        Self::Join,
        Self::RackLoss,
        Self::MemoryKill,
    ];

    /// Returns the kind's name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::SiteKill => "kill",
            Self::PowerCut => "power",
            Self::EngineCrash => "engine",
            Self::GatewayKill => "gateway",
            Self::HungDisk => "hang",
            Self::SlowDisk => "slow",
            Self::FullDisk => "full",
            Self::ReadError => "EIO r",
            Self::WriteError => "EIO w",
            Self::SyncError => "EIO s",
            Self::BitFlip => "flip",
            Self::Misdirected => "misdir.",
            Self::BlankDisk => "blank",
            Self::Loss => "loss",
            Self::Partition => "part.",
            Self::OneWayCut => "1-way",
            Self::Replay => "replay",
            Self::ClockJump => "clock",
            Self::MirrorFault => "mirror",
            Self::MirrorBlank => "m. blank",
            Self::Pause => "pause",
            Self::LeaderKill => "leader",
            Self::LeaderCut => "l. cut",
            Self::Absence => "absent",
            Self::SecondFailure => "second",
            Self::Drain => "drain",
            Self::Join => "join",
            Self::RackLoss => "rack",
            Self::MemoryKill => "memory",
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Row {
    /// Operations that ran during a fault.
    Operation(Kind),
    /// Faults of clusters with a profile of this family.
    Family(Family),
}

impl Row {
    /// Iterates over all rows, in the order of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        Kind::ALL.map(Self::Operation).into_iter().chain(Family::ALL.map(Self::Family))
    }

    /// Returns the row's name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Operation(kind) => kind.name(),
            Self::Family(family) => family.name(),
        }
    }
}

/// Number of times that each operation, and each family of profiles, met each fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    cells: BTreeMap<(Row, FaultKind), u64>,
}

impl Table {
    fn hit(&mut self, row: Row, fault: FaultKind) {
        *self.cells.entry((row, fault)).or_default() += 1;
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        other.cells.iter().for_each(|(cell, count)| *self.cells.entry(*cell).or_default() += count);
    }

    /// Returns the count of a cell.
    pub fn count(&self, row: Row, fault: FaultKind) -> u64 {
        self.cells.get(&(row, fault)).copied().unwrap_or(0)
    }

    /// Returns the cells that were never hit, except those that cannot be.
    pub fn unhit(&self) -> Vec<(Row, FaultKind)> {
        let all = Row::all().flat_map(|row| FaultKind::ALL.map(|fault| (row, fault)));
        all.filter(|cell| !is_forbidden(cell) && !self.cells.contains_key(cell)).collect()
    }

    /// Returns the cells with their counts as text, for a file.
    pub fn to_text(&self) -> String {
        let cells = self.cells.iter();
        let texts: Vec<_> =
            cells.map(|((row, fault), count)| format!("{}/{}={count}", row.name(), fault.name())).collect();
        texts.join(";")
    }

    /// Parses the text of [`Table::to_text`]; unknown cells are left out.
    pub fn from_text(text: &str) -> Self {
        let mut table = Self::default();
        for cell in text.split(';') {
            let Some((names, count)) = cell.split_once('=') else { continue };
            let Some((row, fault)) = names.split_once('/') else { continue };
            let row = Row::all().find(|known| known.name() == row);
            let fault = FaultKind::ALL.into_iter().find(|known| known.name() == fault);
            if let (Some(row), Some(fault), Ok(count)) = (row, fault, count.parse()) {
                table.cells.insert((row, fault), count);
            }
        }
        table
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<12}", "")?;
        FaultKind::ALL.iter().try_for_each(|fault| write!(f, "{:>9}", fault.name()))?;
        for row in Row::all() {
            write!(f, "\n{:<12}", row.name())?;
            for fault in FaultKind::ALL {
                write!(f, "{:>9}", self.count(row, fault))?;
            }
        }
        Ok(())
    }
}

/// The injector destroys nothing where no loss can be tolerated.
fn is_forbidden((row, fault): &(Row, FaultKind)) -> bool {
    const DESTROY: [FaultKind; 3] = [FaultKind::BitFlip, FaultKind::Misdirected, FaultKind::BlankDisk];
    *row == Row::Family(Family::None) && DESTROY.contains(fault)
}

/// The running operations and faults, and the resulting table.
#[derive(Debug)]
pub struct Coverage {
    family: Family,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    operations: BTreeMap<Kind, u32>,
    faults: BTreeMap<FaultKind, u32>,
    table: Table,
}

impl Coverage {
    /// Creates the coverage of a cluster with a profile of this family.
    pub fn new(family: Family) -> Self {
        Self { family, state: Mutex::default() }
    }

    /// Records the start of an operation.
    pub fn begin(&self, kind: Kind) {
        let mut state = self.state.lock();
        *state.operations.entry(kind).or_default() += 1;
        let State { faults, table, .. } = &mut *state;
        faults
            .iter()
            .filter(|(_, count)| **count > 0)
            .for_each(|(fault, _)| table.hit(Row::Operation(kind), *fault));
    }

    /// Records the end of an operation.
    pub fn end(&self, kind: Kind) {
        if let Some(count) = self.state.lock().operations.get_mut(&kind) {
            *count -= 1;
        }
    }

    /// Records the start of a fault.
    pub fn begin_fault(&self, fault: FaultKind) {
        let mut state = self.state.lock();
        *state.faults.entry(fault).or_default() += 1;
        let State { operations, table, .. } = &mut *state;
        let under_way = operations.iter().filter(|(_, count)| **count > 0);
        under_way.for_each(|(kind, _)| table.hit(Row::Operation(*kind), fault));
        table.hit(Row::Family(self.family), fault);
    }

    /// Records the end of a fault.
    pub fn end_fault(&self, fault: FaultKind) {
        if let Some(count) = self.state.lock().faults.get_mut(&fault) {
            *count -= 1;
        }
    }

    /// Returns the table so far.
    pub fn table(&self) -> Table {
        self.state.lock().table.clone()
    }
}
