//! More parities for popular blocks.
//!
//! From time to time a gateway reports to the home of a block how often the block was read, and the home replies with
//! the number of parities that it should have. A gateway that has read the whole block and knows of fewer parities
//! writes the missing ones.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use striate_codec::ChunkSet;
use striate_plan::cache::splits::places;
use striate_site::{CachedBlockState, Priority, TendEvent};
use striate_stripe::StoredBytes;

use crate::cache::Inner;
use crate::homes::HomeQuery;
use crate::known_blocks::{FollowUp, Sites, code};
use crate::miss_reasons::MissReason;
use crate::refill::RefillOutcome;
use crate::splits::{cut, encode};

impl Inner {
    /// Reports reads to a block's home, and gives the block as many parities as the home asks for.
    pub(crate) async fn follow(
        self: &Arc<Self>,
        question: HomeQuery,
        stored: StoredBytes,
        due: FollowUp,
        whole: Option<Vec<Bytes>>,
        live: &Sites,
    ) {
        if let Some(reads) = due.tell {
            let tended = self.tell(question.home, vec![question.tend(reads, TendEvent::Look)]).await;
            match tended.first() {
                Some(tended) if tended.standing == CachedBlockState::Granted => {
                    return self.refill_first_split(question, tended.grant, stored, whole, live).await;
                }
                Some(tended) => {
                    let wanted_parities = question.parities_within(tended.wanted_parities.into(), live);
                    self.known_blocks.set_wanted_parities(question.name, wanted_parities);
                }
                None => {}
            }
        }
        if let Some(parities) = due.parities {
            self.change_parities(&question, whole, parities, live).await;
        }
    }

    /// Refills the first split, which the home has lost. The others may be there; if not, the next read fills the block
    /// again.
    async fn refill_first_split(
        self: &Arc<Self>,
        question: HomeQuery,
        grant: u64,
        stored: StoredBytes,
        whole: Option<Vec<Bytes>>,
        live: &Sites,
    ) {
        self.tell(question.home, vec![question.ending(grant, TendEvent::GaveUp)]).await;
        if self.refill(question, stored, whole, ChunkSet::first(1), live).await == RefillOutcome::NoRoom {
            self.known_blocks.forget(question.name);
            self.miss_reasons.note(question.name, MissReason::Gone);
        }
    }

    /// Sets the number of parities of a block. Adding parities needs the bytes of the block.
    async fn change_parities(
        &self,
        question: &HomeQuery,
        whole: Option<Vec<Bytes>>,
        parities: usize,
        live: &Sites,
    ) {
        let name = question.name;
        let has = self.known_blocks.parities(name).unwrap_or(parities);
        let written = match whole {
            Some(pieces) if parities > has => {
                self.add_parities(question, &pieces, (has, parities), live).await
            }
            // Readers ignore the surplus parities, and sites evict them in time.
            _ if parities < has => parities,
            _ => return,
        };
        let now = self.runtime.now();
        if self.known_blocks.add(name, question.split_len(), (written, written), live, now).is_ok() {
            let parities = written as u8;
            self.tell(question.home, vec![question.tend(0, TendEvent::Filled { parities })]).await;
        }
    }

    /// Writes the parities `from` to `to` of a block. Returns how many the block then has.
    async fn add_parities(
        &self,
        question: &HomeQuery,
        pieces: &[Bytes],
        (from, to): (usize, usize),
        live: &Sites,
    ) -> usize {
        let (name, splits) = (question.name, question.splits());
        let Ok(target_code) = self.known_blocks.code(code(splits, to)) else { return from };
        let data = cut(pieces, question.len, splits);
        let Ok(parities) = encode(&target_code, &data, from, self.runtime.buffers()) else { return from };
        let places = places(name, &live.sites, splits + to);
        let written = self.write_splits(name, splits + from, parities, &places, Priority::Background).await;
        let written_count = written.iter().take_while(|written| written.is_ok()).count();
        self.counts.parities.fetch_add(written_count as u64, Ordering::Relaxed);
        from + written_count
    }
}
