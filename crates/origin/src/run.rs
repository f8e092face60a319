//! A *run*: the bytes of an object that an origin sends in one response.
//!
//! A block that is to be put into memory is gathered by a task of its own, at the pace of the origin. Its receiver
//! takes the bytes at its own pace: other readers wait for the block, and must not wait for a slow receiver. The memory
//! of the block is acquired first, and held until the block is written and the receiver has taken it. A receiver that
//! is idle lets a whole block go and reads the rest of it from memory. A run gathers one block at a time. To request
//! several blocks together, a run holds the grants to fill a few of the next ones. It renews all of them while bytes
//! arrive, and returns grants that it does not use soon.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use striate_cache::{BlockFill, BlockLookup};
use striate_client::ClientError;
use striate_stripe::{MemoryBlock, Share};
use tokio::sync::{mpsc, oneshot};

use crate::counts::add;
use crate::reading::{Object, ReadError};
use crate::service::Shared;
use crate::upstream::{SILENT_FOR, failed};

/// Maximum number of blocks whose fills are requested together.
const CLAIMED_AHEAD: u64 = 4;
/// Time after a block's last byte from which its receiver counts as slow if it has not taken the block. Other readers
/// may then fill the next blocks.
const LET_GO_AFTER: Duration = Duration::from_millis(200);
/// Maximum number of times that a run is resumed without a byte of progress.
const MOST_BREAKS: u32 = 3;
/// Timeout for fetching the rest of a block whose receiver has left. The block is then given up.
const FINISH_WITHIN: Duration = Duration::from_secs(30);

/// A response of an origin that carries bytes of an object, and the fills that it serves.
pub(crate) struct Run {
    body: Incoming,
    /// Bytes that came after the end of a gathered block.
    came: Bytes,
    /// Offset in the object of the next byte, and of the end.
    pub(crate) at: u64,
    pub(crate) until: u64,
    /// Granted fills by block number, ascending. Blocks before `looked_to` were looked up.
    claims: VecDeque<(u64, BlockFill)>,
    looked_to: u64,
    filling: Option<PendingFill>,
    /// Number of times that the run broke off since bytes last arrived.
    breaks: u32,
}

/// A block that is being gathered to be put into memory.
struct PendingFill {
    fill: BlockFill,
    pieces: Vec<Bytes>,
    end: u64,
    share: Arc<Share>,
}

/// The receiver's end of a block that is being gathered.
pub(crate) struct BlockReceiver {
    /// Offset in the object of the next piece.
    pub(crate) at: u64,
    /// At most one block, whose memory `share` accounts for. Nothing, if the receiver will read the block from memory.
    pieces: mpsc::UnboundedReceiver<Bytes>,
    run: oneshot::Receiver<Result<Run, ReadError>>,
    /// Dropped when the receiver wants the run.
    wants: Option<oneshot::Sender<()>>,
    share: Option<Arc<Share>>,
    /// Whether the receiver was found idle. Other readers may then fill the next blocks.
    is_let_go: bool,
}

/// The gathering task's end of a block that is being gathered.
struct BlockSender {
    pieces: Option<mpsc::UnboundedSender<Bytes>>,
    run: oneshot::Sender<Result<Run, ReadError>>,
    run_wanted: oneshot::Receiver<()>,
}

impl PendingFill {
    fn new(mut fill: BlockFill, end: u64, share: Share) -> Self {
        fill.begin_read();
        Self { fill, pieces: Vec::new(), end, share: Arc::new(share) }
    }
}

impl Run {
    pub(crate) fn new(body: Incoming, range: Range<u64>) -> Self {
        Self {
            body,
            came: Bytes::new(),
            at: range.start,
            until: range.end,
            claims: VecDeque::new(),
            looked_to: 0,
            filling: None,
            breaks: 0,
        }
    }

    /// Returns the run if it is of use. A first block that is in memory, or that another process fills, is read from
    /// memory instead.
    pub(crate) async fn settle(mut self, shared: &Shared, object: &Object) -> Option<Self> {
        let number = self.at / object.blocks.len;
        let looked = shared.cache.look_up(&claimed(object, number, self.until), false).await;
        match looked.first() {
            Some(BlockLookup::There | BlockLookup::OnItsWay) => None,
            Some(BlockLookup::Granted(_) | BlockLookup::Absent) | None => {
                self.claim(number, looked);
                Some(self)
            }
        }
    }

    /// Records the results of looking up the blocks from `number` on, some of which are to be filled.
    pub(crate) fn claim(&mut self, number: u64, looked: Vec<BlockLookup>) {
        self.looked_to = number + looked.len() as u64;
        for (number, looked) in (number..).zip(looked) {
            if let BlockLookup::Granted(fill) = looked {
                self.claims.push_back((number, fill));
            }
        }
    }

    /// Returns the grants of the next blocks. The run asks again for those that it reaches.
    pub(crate) fn let_go(&mut self) {
        self.claims.clear();
        self.looked_to = 0;
    }

    /// Requests the fills of the next blocks, before the first of them is reached.
    pub(crate) async fn claim_ahead(&mut self, shared: &Shared, object: &Object) {
        let len = object.blocks.len;
        let next = self.at.div_ceil(len);
        if self.at == next * len && next >= self.looked_to {
            let looked = shared.cache.look_up(&claimed(object, next, self.until), false).await;
            self.claim(next, looked);
        }
    }

    /// Begins a block. Has it gathered if its fill is granted and memory is free.
    pub(crate) fn begin_block(&mut self, shared: &Shared, number: u64, block: Range<u64>) {
        while self.claims.front().is_some_and(|(claimed, _)| *claimed < number) {
            self.claims.pop_front();
        }
        let is_claimed = |(claimed, _): &mut (u64, BlockFill)| *claimed == number && block.end <= self.until;
        if let Some((_, fill)) = self.claims.pop_front_if(is_claimed) {
            match shared.client.stripes().budget().try_acquire((block.end - block.start) as usize) {
                Some(share) => self.filling = Some(PendingFill::new(fill, block.end, share)),
                None => fill.give_up_for_room(),
            }
        }
        if self.filling.is_none() {
            // Here the receiver sets the pace.
            self.let_go();
        }
    }

    /// Returns the next bytes that the origin sends, up to `end`, or why there are none.
    pub(crate) async fn next_bytes(&mut self, shared: &Shared, end: u64) -> Result<Bytes, String> {
        while self.came.is_empty() {
            let Ok(frame) = shared.client.runtime().timeout(SILENT_FOR, self.body.frame()).await else {
                return Err(format!("it has sent nothing for {} s", SILENT_FOR.as_secs()));
            };
            match frame {
                Some(Ok(frame)) => self.came = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Err(format!("its answer broke off: {error}")),
                None => return Err("its answer ended early".to_owned()),
            }
            add(&shared.upstream.counts.bytes, self.came.len() as u64);
        }
        self.breaks = 0;
        let len = usize::try_from(end - self.at).unwrap_or(usize::MAX);
        let bytes = self.came.split_to(self.came.len().min(len));
        self.at += bytes.len() as u64;
        Ok(bytes)
    }

    /// Requests the rest of a run that has broken off.
    ///
    /// # Errors
    /// If the run breaks off too often, or the object was replaced.
    pub(crate) async fn take_up_again(
        &mut self,
        shared: &Shared,
        object: &Object,
        reason: String,
    ) -> Result<(), ReadError> {
        self.breaks += 1;
        if self.breaks > MOST_BREAKS {
            return Err(failed(&object.origin, reason).into());
        }
        tracing::debug!(
            key = &*object.key,
            at = self.at,
            reason,
            "an answer of an origin broke off; asking for the rest"
        );
        self.body = object.ask(shared, self.at..self.until).await?;
        Ok(())
    }

    /// Gathers the block that has begun in a task of its own. Returns the run if no block has. The receiver gets the
    /// bytes only if it takes them as they come.
    pub(crate) fn gather(
        self,
        shared: &Arc<Shared>,
        object: &Object,
        is_taken: bool,
    ) -> Result<BlockReceiver, Box<Self>> {
        let Some(filling) = &self.filling else { return Err(Box::new(self)) };
        let (at, share) = (self.at, is_taken.then(|| filling.share.clone()));
        let (to_receiver, pieces) = mpsc::unbounded_channel();
        let (back, run) = oneshot::channel();
        let (wants, run_wanted) = oneshot::channel();
        let gathering = BlockSender { pieces: is_taken.then_some(to_receiver), run: back, run_wanted };
        let (task_shared, object) = (shared.clone(), object.clone());
        shared.client.runtime().spawn(async move { gathering.gather(self, &task_shared, &object).await });
        Ok(BlockReceiver { at, pieces, run, wants: Some(wants), share, is_let_go: false })
    }

    /// Fetches the rest of the block that is being gathered.
    async fn finish_block(
        &mut self,
        shared: &Shared,
        object: &Object,
        pieces: Option<&mpsc::UnboundedSender<Bytes>>,
    ) -> Result<(), ReadError> {
        while let Some(filling) = &mut self.filling {
            let end = filling.end;
            match self.next_bytes(shared, end).await {
                Ok(bytes) => {
                    if pieces.is_some_and(|pieces| pieces.send(bytes.clone()).is_err()) {
                        self.let_go();
                    }
                    self.keep(bytes);
                    self.renew();
                }
                Err(reason) => self.take_up_again(shared, object, reason).await?,
            }
        }
        Ok(())
    }

    /// Renews the grants of the block that is being gathered and of the next ones.
    fn renew(&mut self) {
        let filling = self.filling.iter_mut().map(|filling| &mut filling.fill);
        filling.chain(self.claims.iter_mut().map(|(_, fill)| fill)).for_each(BlockFill::renew);
    }

    /// Adds a piece to the block that is being gathered, and puts a whole block into memory.
    fn keep(&mut self, piece: Bytes) {
        let Some(filling) = &mut self.filling else { return };
        filling.pieces.push(piece);
        if self.at == filling.end
            && let Some(PendingFill { fill, pieces, share, .. }) = self.filling.take()
        {
            fill.fill(pieces, share);
        }
    }
}

impl BlockSender {
    /// Fetches a block to its end, even if the receiver has left: the next reader will want it.
    async fn gather(self, mut run: Run, shared: &Shared, object: &Object) {
        let Self { pieces, run: mut back, run_wanted } = self;
        let runtime = shared.client.runtime();
        let ended = {
            let finishing = run.finish_block(shared, object, pieces.as_ref());
            let receiver_gone = async {
                back.closed().await;
                runtime.sleep(FINISH_WITHIN).await;
            };
            tokio::select! {
                ended = finishing => ended,
                () = receiver_gone => return,
            }
        };
        drop(pieces);
        let answer = match ended {
            Ok(()) => {
                if runtime.timeout(LET_GO_AFTER, run_wanted).await.is_err() {
                    run.let_go();
                }
                Ok(run)
            }
            Err(error) => Err(error),
        };
        // This fails if the receiver has left.
        let _ = back.send(answer);
    }
}

impl BlockReceiver {
    /// Returns the next piece of the block and its offset in the object; `None` after the last one.
    pub(crate) async fn next(&mut self) -> Option<(u64, Bytes)> {
        let piece = self.pieces.recv().await?;
        let at = self.at;
        self.at += piece.len() as u64;
        Some((at, piece))
    }

    /// Drops what is left of a whole block, which the tier has or is about to have. What is left of another is needed
    /// for the tier as well, so dropping it would free nothing.
    pub(crate) fn let_go(&mut self) {
        if self.pieces.is_closed() {
            while self.pieces.try_recv().is_ok() {}
            drop(self.share.take());
            self.is_let_go = true;
        }
    }

    /// Returns the run, at the end of the block. If the block was let go, so are the next ones.
    ///
    /// # Errors
    /// If the rest of the block is not available.
    pub(crate) async fn run(&mut self) -> Result<Run, ReadError> {
        drop(self.wants.take());
        let run = (&mut self.run).await;
        let mut run = run.unwrap_or(Err(ReadError::Failed(ClientError::Busy)))?;
        if self.is_let_go {
            run.let_go();
        }
        Ok(run)
    }
}

/// Blocks from `number` on whose fills are requested: those that a run up to `until` contains whole.
pub(crate) fn claimed(object: &Object, number: u64, until: u64) -> Vec<MemoryBlock> {
    let numbers = (number..number + CLAIMED_AHEAD)
        .take_while(|number| number * object.blocks.len < until && object.blocks.end(*number) <= until);
    numbers.map(|number| object.blocks.block(number)).collect()
}
