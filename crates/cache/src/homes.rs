//! Requests to the homes of blocks.
//!
//! A home answers that the block is in memory, that this process is to fill it because no gateway has it, or that
//! another gateway is filling it; in the last case the reader waits a little. A home that does not answer costs a read
//! the timeout, once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use striate_core::{SiteId, StripeId, cached};
use striate_plan::cache::splits::{data_splits, home};
use striate_site::{CachedBlockState, Tend, TendEvent, Tended};
use striate_stripe::{OpenedStripe, StoredBytes};

use crate::answer::Answer;
use crate::cache::Inner;
use crate::filling::FillGrant;
use crate::known_blocks::Sites;
use crate::names::name;
use crate::splits::split_len;

/// Timeout for a home's reply about a block of this store, which is read from disks otherwise.
const ASK_WITHIN: Duration = Duration::from_millis(50);
/// The same for a block that is far away otherwise. While a site is busy, its blocks are not fetched by all readers.
const ASK_WITHIN_IF_FAR: Duration = Duration::from_secs(2);
/// Maximum time that a reader waits for a block that another process is filling.
const WAIT_FOR_FILL: Duration = Duration::from_millis(500);
/// Initial poll interval for a block that is being filled. Each interval is twice as long as the one before.
const ASK_AGAIN: Duration = Duration::from_millis(1);
/// Maximum poll interval.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// A block of a query whose home is asked.
#[derive(Clone, Copy)]
pub(crate) struct HomeQuery {
    pub(crate) name: StripeId,
    pub(crate) len: u32,
    pub(crate) home: SiteId,
    /// Timeout for the home's reply.
    patience: Duration,
}

impl HomeQuery {
    /// Number of data splits of the block.
    pub(crate) fn splits(&self) -> usize {
        cached::splits(self.name)
    }

    /// Bytes per split.
    pub(crate) fn split_len(&self) -> u32 {
        split_len(self.len, self.splits())
    }

    /// Limits `parities` to the number of sites that hold no data split, since more would not spread the load further,
    /// but to no less than one if there are two sites: each lost split then has a replacement.
    pub(crate) fn parities_within(&self, parities: usize, live: &Sites) -> usize {
        let sites = live.sites.len();
        parities.min(sites.saturating_sub(self.splits()).max(usize::from(sites > 1)))
    }

    /// The message to the block's home.
    pub(crate) fn tend(&self, reads: u32, matter: TendEvent) -> Tend {
        Tend { name: self.name, split_len: self.split_len(), reads, matter, grant: 0 }
    }

    /// The message that renews or ends a grant at the block's home.
    pub(crate) fn of_grant(&self, grant: u64, matter: TendEvent) -> Tend {
        Tend { grant, ..self.tend(0, matter) }
    }
}

/// What a home's answer means for a block.
pub(crate) enum HomeAnswer {
    /// The block is in memory and is read in this form.
    There(Arc<OpenedStripe>),
    /// This process is to fill the block. Dropped before the fill begins, the value returns the grant.
    Granted(FillGrant),
    /// The block is not in memory, and is read from where it is stored.
    Absent,
}

impl HomeAnswer {
    /// Its form, if it is in memory.
    pub(crate) fn form(&self) -> Option<Arc<OpenedStripe>> {
        match self {
            Self::There(form) => Some(form.clone()),
            Self::Granted(_) | Self::Absent => None,
        }
    }
}

impl Inner {
    /// Returns the cached name of a block or extent, cut for the tier's sites, and its home.
    pub(crate) fn question(&self, stored: &StoredBytes, live: &Sites) -> Option<HomeQuery> {
        let splits = data_splits(stored.len().into(), self.split_bytes, live.sites.len());
        let name = name(stored, splits).ok()?;
        let home = home(name, &live.sites)?;
        let patience = match stored {
            StoredBytes::Memory(_) => ASK_WITHIN_IF_FAR,
            StoredBytes::Block(_) | StoredBytes::Extent(_) => ASK_WITHIN,
        };
        Some(HomeQuery { name, len: stored.len(), home, patience })
    }

    /// Asks the homes of blocks that this process does not know to be cached, and waits for blocks that are being
    /// filled.
    pub(crate) async fn ask(self: &Arc<Self>, questions: &[HomeQuery], live: &Sites) -> Vec<HomeAnswer> {
        let answers = self.ask_once(questions, live).await;
        let wait = |(question, answer): (HomeQuery, Option<HomeAnswer>)| async move {
            match answer {
                Some(answer) => answer,
                None => self.wait_for_fill(&question, live, WAIT_FOR_FILL).await,
            }
        };
        join_all(questions.iter().copied().zip(answers).map(wait)).await
    }

    /// Asks the homes of blocks, and records those that this process is to fill. Returns `None` for a block that this
    /// or another process is filling.
    pub(crate) async fn ask_once(
        self: &Arc<Self>,
        questions: &[HomeQuery],
        live: &Sites,
    ) -> Vec<Option<HomeAnswer>> {
        let is_other = |question: &&HomeQuery| self.ended(question.name).is_none();
        let others: Vec<HomeQuery> = questions.iter().filter(is_other).copied().collect();
        let tended = self.tend(&others, 1, TendEvent::Look).await;
        let tended: HashMap<StripeId, Option<Tended>> =
            others.iter().map(|question| question.name).zip(tended).collect();
        let answer = |question: &HomeQuery| match tended.get(&question.name)? {
            Some(Tended { standing: CachedBlockState::Filling, .. }) => None,
            Some(tended) => Some(self.learn(question, *tended, live)),
            None => Some(HomeAnswer::Absent),
        };
        questions.iter().map(answer).collect()
    }

    /// Reports `reads` reads of each block to its home, and returns the homes' answers: `None` where one did not arrive
    /// in time.
    pub(crate) async fn tend(
        &self,
        questions: &[HomeQuery],
        reads: u32,
        matter: TendEvent,
    ) -> Vec<Option<Tended>> {
        let mut homes: Vec<(SiteId, Vec<usize>)> = Vec::new();
        for (position, question) in questions.iter().enumerate() {
            match homes.iter_mut().find(|(home, _)| *home == question.home) {
                Some((_, positions)) => positions.push(position),
                None => homes.push((question.home, vec![position])),
            }
        }
        let ask = |(home, positions): (SiteId, Vec<usize>)| async move {
            let asked = || positions.iter().map(|&position| &questions[position]);
            let tends = asked().map(|question| question.tend(reads, matter)).collect();
            let patience = asked().map(|question| question.patience).max().unwrap_or_default();
            let answer = self.ask_home(home, tends, patience).await;
            (positions, answer)
        };
        let mut answers = vec![None; questions.len()];
        for (positions, answer) in join_all(homes.into_iter().map(ask)).await {
            let tended = answer.map(Answer::take).unwrap_or_default();
            for (position, tended) in positions.into_iter().zip(tended) {
                answers[position] = Some(tended);
            }
        }
        answers
    }

    /// Sends a message about a block to its home and returns the answer, or none if it does not arrive in time.
    pub(crate) async fn tell(&self, question: &HomeQuery, tend: Tend) -> Option<Tended> {
        let answer = self.ask_home(question.home, vec![tend], question.patience).await?;
        answer.take().into_iter().next()
    }

    /// Returns a home's answer if it arrives in time. An answer that arrives later returns what it grants.
    async fn ask_home(&self, home: SiteId, tends: Vec<Tend>, patience: Duration) -> Option<Answer> {
        let site = self.site(home)?;
        let response = Answer::wait_for(self.runtime.clone(), site, tends);
        match self.runtime.timeout(patience, response).await {
            Ok(Ok(Ok(answer))) => Some(answer),
            failed => {
                let error = failed.map(|response| response.map(|answer| answer.err()));
                tracing::debug!(site = %home, ?error, "the home of cached blocks did not answer");
                self.counts.unanswered.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Records a home's answer about a block.
    pub(crate) fn learn(self: &Arc<Self>, question: &HomeQuery, tended: Tended, live: &Sites) -> HomeAnswer {
        let name = question.name;
        let wanted_parities = question.parities_within(tended.wanted_parities.into(), live);
        match tended.standing {
            CachedBlockState::Filled { parities } => {
                let parities = question.parities_within(parities.into(), live);
                let now = self.runtime.now();
                let form =
                    self.known_blocks.add(name, question.split_len(), (parities, wanted_parities), live, now);
                form.map_or(HomeAnswer::Absent, HomeAnswer::There)
            }
            CachedBlockState::Granted => {
                HomeAnswer::Granted(self.expect_fill(question, wanted_parities, tended.grant))
            }
            CachedBlockState::Filling => HomeAnswer::Absent,
        }
    }

    /// Waits until a block that is being filled is in memory, or its fill is granted to this process, or `patience` has
    /// passed.
    pub(crate) async fn wait_for_fill(
        self: &Arc<Self>,
        question: &HomeQuery,
        live: &Sites,
        patience: Duration,
    ) -> HomeAnswer {
        let waiting = async {
            if let Some(mut ended) = self.ended(question.name) {
                // The sender never sends. This returns when it is dropped.
                let _ = ended.changed().await;
                return self
                    .known_blocks
                    .form(question.name, live)
                    .map_or(HomeAnswer::Absent, HomeAnswer::There);
            }
            let mut pause = ASK_AGAIN;
            loop {
                self.runtime.sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                let tended = self.tell(question, question.tend(0, TendEvent::Look)).await;
                match tended {
                    Some(Tended { standing: CachedBlockState::Filling, .. }) => {}
                    Some(tended) => return self.learn(question, tended, live),
                    None => return HomeAnswer::Absent,
                }
            }
        };
        self.runtime.timeout(patience, waiting).await.unwrap_or(HomeAnswer::Absent)
    }
}
