//! Random pieces for tests and benchmarks, the same for the same seed everywhere.
//!
//! Bytes are in transfers of 50 KB.

use super::{PieceOptions, Slot, UNGROUPED};
use crate::solver::random_sequence::RandomSequence;

/// Kinds of pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// One data chunk of `rs(6,3)`: itself, or six of the others.
    Rs,
    /// One data chunk of `lrc(6,2,2)`: itself, the rest of its local group, or six others, at most three of a group.
    Lrc,
    /// As [`Pieces::Lrc`], but three in ten have one or two copies.
    LrcWithCopies,
    /// Every second piece is a whole block of `rs(4,2)`, the others are as [`Pieces::Rs`].
    HalfSplit,
    /// Neighbours: as [`Pieces::Lrc`], but the next piece is in the same chunk in three of four cases, and in half of
    /// the other cases in the same stripe.
    Local,
}

/// Cost of decoding for each chunk read instead of the wanted one, as a share of its transfer.
const DECODING: f64 = 0.05;
/// Bytes of the unit of transfers.
const UNIT: f64 = 50_000.0;

impl Pieces {
    /// Draws `count` pieces over `sites` sites; each reads 1 to 64 KiB of a chunk, log-uniformly distributed.
    pub(crate) fn draw(self, count: usize, sites: usize, random: &mut RandomSequence, to: &mut PieceOptions) {
        let mut stripe = Stripe { sites: (0..sites).collect(), index: 0 };
        for number in 0..count {
            let is_local = self == Self::Local && number > 0;
            if !(is_local && random.unit() < 0.75) {
                stripe.index = random.below(6);
                if !(is_local && random.unit() < 0.5) {
                    random.shuffle(&mut stripe.sites);
                }
            }
            let size = 1024.0 * 64.0f64.powf(random.unit()) / UNIT;
            to.push_piece();
            self.push_options(number, &stripe, size, random, to);
        }
    }

    fn push_options(
        self,
        number: usize,
        stripe: &Stripe,
        size: f64,
        random: &mut RandomSequence,
        to: &mut PieceOptions,
    ) {
        match self {
            Self::HalfSplit if number.is_multiple_of(2) => {
                let slot = |chunk: usize| stripe.slot(chunk, size, f64::from(chunk >= 4), UNGROUPED);
                to.push_option(4, 0, (0..6).map(slot));
            }
            Self::Rs | Self::HalfSplit => {
                to.push_option(1, 0, [stripe.slot(stripe.index, size, 0.0, UNGROUPED)]);
                let others = (0..9).filter(|&chunk| chunk != stripe.index);
                to.push_option(6, 0, others.map(|chunk| stripe.slot(chunk, size, 1.0, UNGROUPED)));
            }
            Self::Lrc | Self::Local => push_lrc(0, stripe, size, to),
            Self::LrcWithCopies => {
                let copies = if random.unit() < 0.3 { 1 + random.below(2) } else { 0 };
                push_lrc(copies, stripe, size, to);
            }
        }
    }
}

/// Adds the options of one data chunk of `lrc(6,2,2)`.
fn push_lrc(copies: usize, stripe: &Stripe, size: f64, to: &mut PieceOptions) {
    let own = std::iter::once(stripe.index).chain(10..10 + copies);
    to.push_option(1, 0, own.map(|chunk| stripe.slot(chunk, size, 0.0, UNGROUPED)));
    let group_of = |chunk: usize| match chunk {
        0..6 => chunk / 3,
        6..8 => chunk - 6,
        _ => UNGROUPED,
    };
    let others = || (0..10).filter(|&chunk| chunk != stripe.index);
    let local = others().filter(|&chunk| group_of(chunk) == group_of(stripe.index));
    to.push_option(3, 0, local.map(|chunk| stripe.slot(chunk, size, 1.0, UNGROUPED)));
    to.push_option(6, 3, others().map(|chunk| stripe.slot(chunk, size, 1.0, group_of(chunk))));
}

/// The sites of a stripe's chunks, followed by those of copies of the wanted one, and the index of the wanted chunk.
struct Stripe {
    sites: Vec<usize>,
    index: usize,
}

impl Stripe {
    fn slot(&self, chunk: usize, size: f64, decoded: f64, group: usize) -> Slot {
        Slot { site: self.sites[chunk], transfer: size, extra: DECODING * size * decoded, group }
    }
}
