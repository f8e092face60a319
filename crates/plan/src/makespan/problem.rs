//! The problem: sites with queues, and pieces with options.

/// w: see the module.
pub const USUAL_WEIGHT: f64 = 0.06;
/// The group of slots of which an option may take any number.
pub const UNGROUPED: usize = usize::MAX;

/// Columns of one chunk at one site, as a part of an option.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MakespanSlot {
    /// Position of its site in the problem's sites.
    pub site: usize,
    /// z m_j: the time that the site takes for the bytes. Finite and not negative.
    pub transfer: f64,
    /// What else it adds to X: for computing with it, and for waiting where that counts. Finite and not negative.
    pub decoding: f64,
    /// Its local group, or [`UNGROUPED`].
    pub group: usize,
}

/// One way to read a piece: any `need` of its slots, at most `cap` of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MakespanOption<'a> {
    /// How many slots are taken.
    pub need: usize,
    /// How many of one group are at most.
    pub cap: usize,
    /// The slots.
    pub slots: &'a [MakespanSlot],
}

/// Why a problem has no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MakespanError {
    /// No option of the piece has enough slots.
    #[error("piece {piece} of the query cannot be read: no option of it has enough slots")]
    NoOption {
        /// Position of the piece in the problem.
        piece: usize,
    },
}

/// An option, as positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ranges {
    pub(super) need: usize,
    pub(super) cap: usize,
    /// Its slots, in `slots`.
    pub(super) first: usize,
    pub(super) end: usize,
    /// `need` times the least load of a slot, c not counted.
    pub(super) least_load: f64,
}

/// Minimise T + w X over the options of all pieces.
///
/// Times are in any one unit. Memory is kept by [`MakespanProblem::reset`], so that a problem that is used again allocates
/// nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MakespanProblem {
    pub(super) weight: f64,
    pub(super) request: f64,
    pub(super) queues: Vec<f64>,
    pub(super) slots: Vec<MakespanSlot>,
    pub(super) options: Vec<Ranges>,
    /// Where each piece's options end.
    ends: Vec<usize>,
    /// Groups are below this.
    pub(super) groups: usize,
}

impl MakespanProblem {
    /// Forgets everything, and takes w, c and q_j of every site, all finite and not negative.
    pub fn reset(&mut self, weight: f64, request: f64, queues: impl IntoIterator<Item = f64>) {
        (self.weight, self.request, self.groups) = (weight, request, 0);
        self.queues.clear();
        self.queues.extend(queues);
        self.slots.clear();
        self.options.clear();
        self.ends.clear();
    }

    /// Adds a piece, without options as yet.
    pub fn push_piece(&mut self) {
        self.ends.push(self.options.len());
    }

    /// Adds an option to the last piece. Answers whether it is one: there are enough slots.
    ///
    /// # Panics
    /// Without a piece.
    pub fn push_option(
        &mut self,
        need: usize,
        cap: usize,
        slots: impl IntoIterator<Item = MakespanSlot>,
    ) -> bool {
        let first = self.slots.len();
        self.slots.extend(slots);
        let of_option = &self.slots[first..];
        if most_taken(of_option, cap) < need {
            self.slots.truncate(first);
            return false;
        }
        let groups = of_option.iter().map(|slot| slot.group).filter(|&group| group != UNGROUPED);
        self.groups = groups.map(|group| group + 1).fold(self.groups, usize::max);
        let least = of_option.iter().map(|slot| slot.transfer + slot.decoding).fold(f64::INFINITY, f64::min);
        let least_load = if need == 0 { 0.0 } else { need as f64 * least };
        self.options.push(Ranges { need, cap, first, end: self.slots.len(), least_load });
        *self.ends.last_mut().expect("a piece was added") = self.options.len();
        true
    }

    /// w.
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// c.
    pub fn request(&self) -> f64 {
        self.request
    }

    /// q_j of every site.
    pub fn queues(&self) -> &[f64] {
        &self.queues
    }

    /// How many pieces there are.
    pub fn piece_count(&self) -> usize {
        self.ends.len()
    }

    /// The slots of all options, in the order in which they were added: what plans name.
    pub fn slots(&self) -> &[MakespanSlot] {
        &self.slots
    }

    /// The options of a piece, which must exist.
    pub fn options(&self, piece: usize) -> impl Iterator<Item = MakespanOption<'_>> {
        self.options[self.options_of(piece)].iter().map(|of| MakespanOption {
            need: of.need,
            cap: of.cap,
            slots: &self.slots[of.first..of.end],
        })
    }

    pub(super) fn options_of(&self, piece: usize) -> std::ops::Range<usize> {
        let start = if piece == 0 { 0 } else { self.ends[piece - 1] };
        start..self.ends[piece]
    }
}

/// How many slots an option can take at most.
fn most_taken(slots: &[MakespanSlot], cap: usize) -> usize {
    let fits = |(at, slot): (usize, &MakespanSlot)| {
        slot.group == UNGROUPED || slots[..at].iter().filter(|other| other.group == slot.group).count() < cap
    };
    slots.iter().enumerate().filter(|&of| fits(of)).count()
}
