//! Popular blocks get more parities.
//!
//! A gateway tells the home of a block now and then how often the block was read, and the home answers how many parities it should have.
//! A gateway that has read the whole block and knows of fewer writes those that are missing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use striate_codec::ChunkSet;
use striate_plan::cache::splits::places;
use striate_site::{Priority, Standing, TendMatter};
use striate_stripe::Stored;

use crate::cache::Inner;
use crate::fates::Fate;
use crate::homes::Question;
use crate::known::{Due, Sites, code};
use crate::refill::Refill;
use crate::splits::{cut, encode};

impl Inner {
    /// Tells a block's home of reads, and makes it as many parities as the home says.
    pub(crate) async fn follow(
        self: &Arc<Self>,
        question: Question,
        of: Stored,
        due: Due,
        whole: Option<Vec<Bytes>>,
        live: &Sites,
    ) {
        if let Some(reads) = due.tell {
            let tended = self.tell(question.home, vec![question.tend(reads, TendMatter::Look)]).await;
            match tended.first() {
                Some(tended) if tended.standing == Standing::Granted => {
                    return self.refill_first_split(question, tended.grant, of, whole, live).await;
                }
                Some(tended) => {
                    let wanted = question.parities_within(tended.wanted_parities.into(), live);
                    self.known.asked(question.name, wanted);
                }
                None => {}
            }
        }
        if let Some(parities) = due.parities {
            self.change_parities(&question, whole, parities, live).await;
        }
    }

    /// The home of a block does not have the first split. The others may be there; if not, the next read fills the block again.
    async fn refill_first_split(
        self: &Arc<Self>,
        question: Question,
        grant: u64,
        of: Stored,
        whole: Option<Vec<Bytes>>,
        live: &Sites,
    ) {
        self.tell(question.home, vec![question.ending(grant, TendMatter::GaveUp)]).await;
        if self.refill(question, of, whole, ChunkSet::first(1), live).await == Refill::NoRoom {
            self.known.forget(question.name);
            self.fates.note(question.name, Fate::Gone);
        }
    }

    /// Gives a block so many parities, if that is fewer than it has, or its bytes are at hand.
    async fn change_parities(
        &self,
        question: &Question,
        whole: Option<Vec<Bytes>>,
        parities: usize,
        live: &Sites,
    ) {
        let name = question.name;
        let has = self.known.parities(name).unwrap_or(parities);
        let written = match whole {
            Some(pieces) if parities > has => {
                self.add_parities(question, &pieces, (has, parities), live).await
            }
            // Readers ignore the surplus parities; their sites evict them in time.
            _ if parities < has => parities,
            _ => return,
        };
        let now = self.runtime.now();
        if self.known.add(name, question.split_len(), (written, written), live, now).is_ok() {
            let parities = written as u8;
            self.tell(question.home, vec![question.tend(0, TendMatter::Filled { parities })]).await;
        }
    }

    /// Writes the parities `from` to `to` of a block. Answers how many it has then.
    async fn add_parities(
        &self,
        question: &Question,
        pieces: &[Bytes],
        (from, to): (usize, usize),
        live: &Sites,
    ) -> usize {
        let (name, splits) = (question.name, question.splits());
        let Ok(of) = self.known.code(code(splits, to)) else { return from };
        let data = cut(pieces, question.len, splits);
        let Ok(parities) = encode(&of, &data, from, self.runtime.buffers()) else { return from };
        let places = places(name, &live.sites, splits + to);
        let written = self.write_splits(name, splits + from, parities, &places, Priority::Background).await;
        let more = written.iter().take_while(|written| written.is_ok()).count();
        self.counts.parities.fetch_add(more as u64, Ordering::Relaxed);
        from + more
    }
}
