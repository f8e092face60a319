//! Turns a body into blocks on sites, streaming and in bounded memory.
//!
//! One block is gathered ([`crate::gathering`]) while up to [`crate::ClientOptions::blocks_in_flight`] are encoded
//! and written. The bytes are digested as they arrive. When [`Client::ingest`] returns, nothing is named yet: the
//! caller's commit does that, after the body's end was confirmed and its digests were verified.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use striate_core::{Profile, Tier};
use striate_meta::records::{BlockList, Manifest, ManifestSegment, object, upload_part};
use striate_meta::{MetaError, Transaction};
use striate_runtime::JoinHandle;
use striate_stripe::{Neighbours, PutSession, SegmentWriter, Share, StoredBlock, StripeError};

use crate::commit::{CommitFailure, fenced};
use crate::digest::{BodyDigests, Digests};
use crate::gathering::{BlockGatherer, Frames};
use crate::object::{ExpectedDigests, MAX_PUT_LEN, PutBody};
use crate::task::joined;
use crate::uncommitted_memory::UncommittedMemory;
use crate::{Client, ClientError};

/// Objects of at most this many blocks carry their block list in their own record; the transaction that
/// replaces one such object by another then stays under the limits of design.md §10.8.
const MAX_LISTED_BLOCKS: usize = 6;

/// Parameters of storing a body.
pub(crate) struct Ingest {
    pub(crate) profile: Profile,
    pub(crate) block_len: u32,
    /// Identifies the neighbours of the blocks.
    pub(crate) neighbours: Neighbours,
    /// Maximum length in bytes of a body that is returned inline instead of striped.
    pub(crate) inline_limit: usize,
    pub(crate) content_len: Option<u64>,
    pub(crate) digests: ExpectedDigests,
    /// Shares of the byte budget for each block: 2 if the body itself is read from the store.
    pub(crate) shares: usize,
}

/// A complete and stored body.
pub(crate) struct IngestedBody {
    pub(crate) size: u64,
    pub(crate) digests: BodyDigests,
    pub(crate) stored: BodyLocation,
}

/// Location of a body's bytes.
pub(crate) enum BodyLocation {
    /// In this value.
    Inline(Bytes),
    /// On sites; nothing names them yet.
    Striped(UncommittedBlocks),
    /// In memory only; nothing names them yet.
    InMemory(UncommittedMemory),
}

/// Durable blocks that wait for the commit that names them.
pub(crate) struct UncommittedBlocks {
    session: PutSession,
    blocks: Blocks,
}

enum Blocks {
    Listed(Vec<StoredBlock>),
    Segment(SegmentWriter, ManifestSegment),
}

impl Client {
    /// Receives a body and stores its blocks.
    ///
    /// # Errors
    /// Errors of the body, of its digests and of the sites. Written chunks are removed.
    pub(crate) async fn ingest(
        &self,
        mut body: Box<dyn PutBody>,
        how: Ingest,
    ) -> Result<IngestedBody, ClientError> {
        if how.content_len.is_some_and(|len| len > MAX_PUT_LEN) {
            return Err(ClientError::EntityTooLarge { limit: MAX_PUT_LEN });
        }
        let mut writer = BlockWriter::new(self.clone(), how.profile, how.block_len, how.neighbours.clone());
        match self.receive(body.as_mut(), &mut writer, how).await {
            Ok((size, digests, Some(bytes))) => {
                Ok(IngestedBody { size, digests, stored: BodyLocation::Inline(bytes) })
            }
            Ok((size, digests, None)) => match writer.finish().await {
                Ok(stored) => Ok(IngestedBody { size, digests, stored }),
                Err((writer, error)) => {
                    writer.abandon(&error).await;
                    Err(error)
                }
            },
            Err(error) => {
                writer.abandon(&error).await;
                Err(error)
            }
        }
    }

    /// Receives the whole body. Returns its bytes if they are few enough to be kept inline.
    async fn receive(
        &self,
        body: &mut dyn PutBody,
        writer: &mut BlockWriter,
        how: Ingest,
    ) -> Result<(u64, BodyDigests, Option<Bytes>), ClientError> {
        let mut digests = Digests::new(how.digests)?;
        let mut frames = Frames::new(body, how.content_len);
        let mut gathering = BlockGatherer::new(self, how.shares);
        let mut only = None;
        while !frames.has_ended() {
            let room = frames.announced().map_or(how.block_len as usize, |len| {
                usize::try_from(len).unwrap_or(usize::MAX).min(how.block_len as usize)
            });
            let Some((block, share)) = gathering.next_block(&mut frames, room, &mut digests).await? else {
                break;
            };
            match frames.has_ended() && writer.is_untouched() {
                true => only = Some((block, share)),
                false => writer.start(block, share).await?,
            }
        }
        let size = frames.received();
        let digests = digests.finish(&body.trailing_checksums().await?)?;
        match only {
            None if size == 0 => Ok((size, digests, Some(Bytes::new()))),
            None => Ok((size, digests, None)),
            Some((block, _)) if block.len() <= how.inline_limit => Ok((size, digests, Some(block))),
            Some((block, share)) => {
                writer.write_only(block).await?;
                drop(share);
                Ok((size, digests, None))
            }
        }
    }
}

/// Writes the blocks of one body, several at a time, and keeps them in order.
struct BlockWriter {
    client: Client,
    profile: Profile,
    block_len: u32,
    neighbours: Neighbours,
    session: Option<Arc<PutSession>>,
    in_flight: VecDeque<JoinHandle<Result<WrittenBlock, ClientError>>>,
    listed: Vec<StoredBlock>,
    segment: Option<SegmentWriter>,
    in_memory: Option<UncommittedMemory>,
}

/// A written block.
enum WrittenBlock {
    OnSites(Box<StoredBlock>),
    InMemory(UncommittedMemory),
}

impl BlockWriter {
    fn new(client: Client, profile: Profile, block_len: u32, neighbours: Neighbours) -> Self {
        Self {
            client,
            profile,
            block_len,
            neighbours,
            session: None,
            in_flight: VecDeque::new(),
            listed: Vec::new(),
            segment: None,
            in_memory: None,
        }
    }

    /// Whether no block was given to it yet.
    fn is_untouched(&self) -> bool {
        self.session.is_none()
    }

    /// Writes one block.
    fn write(
        &mut self,
        data: Bytes,
    ) -> impl Future<Output = Result<WrittenBlock, ClientError>> + Send + use<> {
        let (session, profile, neighbours) = (self.session(), self.profile, self.neighbours.clone());
        let stripes = self.client.inner.stripes.clone();
        async move {
            let code = profile.code;
            if profile.tier == Tier::Memory {
                let (splits, parities) = (code.data_count(), code.chunk_count() - code.data_count());
                let block = stripes.keep_in_memory(data, splits, parities).await?;
                return Ok(WrittenBlock::InMemory(UncommittedMemory::new(stripes, block)));
            }
            let stored = session.write_block(data.clone(), &profile, &neighbours).await;
            drop(session);
            let stored = stored?;
            stripes.written(&stored.block, &data);
            Ok(WrittenBlock::OnSites(Box::new(stored)))
        }
    }

    fn session(&mut self) -> Arc<PutSession> {
        let stripes = &self.client.inner.stripes;
        self.session.get_or_insert_with(|| Arc::new(stripes.begin_put())).clone()
    }

    /// Writes the body's only block.
    async fn write_only(&mut self, data: Bytes) -> Result<(), ClientError> {
        match self.write(data).await? {
            WrittenBlock::OnSites(stored) => self.listed.push(*stored),
            WrittenBlock::InMemory(block) => self.add_in_memory(block),
        }
        Ok(())
    }

    fn add_in_memory(&mut self, block: UncommittedMemory) {
        match &mut self.in_memory {
            Some(blocks) => blocks.append(block),
            None => self.in_memory = Some(block),
        }
    }

    /// Starts to write the next block, after waiting while too many are being written.
    async fn start(&mut self, data: Bytes, share: Share) -> Result<(), ClientError> {
        while self.in_flight.len() >= self.client.inner.options.blocks_in_flight.max(1) {
            self.settle_oldest().await?;
        }
        let writing = self.write(data);
        self.in_flight.push_back(self.client.inner.runtime.spawn(async move {
            let written = writing.await;
            drop(share);
            written
        }));
        Ok(())
    }

    /// Waits for the oldest block being written.
    async fn settle_oldest(&mut self) -> Result<(), ClientError> {
        let Some(oldest) = self.in_flight.pop_front() else { return Ok(()) };
        let stored = match joined(oldest.await)? {
            WrittenBlock::OnSites(stored) => *stored,
            WrittenBlock::InMemory(block) => {
                self.add_in_memory(block);
                return Ok(());
            }
        };
        let session = self.session();
        if let Some(segment) = &mut self.segment {
            return Ok(segment.append(&session, stored).await?);
        }
        self.listed.push(stored);
        if self.listed.len() > MAX_LISTED_BLOCKS {
            let segment = self.segment.insert(SegmentWriter::open(&session, self.block_len).await?);
            for stored in self.listed.drain(..) {
                segment.append(&session, stored).await?;
            }
        }
        Ok(())
    }

    /// Waits for all blocks. On an error returns the writer with it, to be abandoned.
    async fn finish(mut self) -> Result<BodyLocation, (Self, ClientError)> {
        while !self.in_flight.is_empty() {
            if let Err(error) = self.settle_oldest().await {
                return Err((self, error));
            }
        }
        if let Some(blocks) = self.in_memory.take() {
            return Ok(BodyLocation::InMemory(blocks));
        }
        let session = self.session.take().and_then(Arc::into_inner).expect("its tasks have ended");
        let blocks = match self.segment.take() {
            None => Blocks::Listed(std::mem::take(&mut self.listed)),
            Some(mut segment) => match segment.finish(&session).await {
                Ok(manifest) => Blocks::Segment(segment, manifest),
                Err(error) => {
                    (self.segment, self.session) = (Some(segment), Some(Arc::new(session)));
                    return Err((self, error.into()));
                }
            },
        };
        Ok(BodyLocation::Striped(UncommittedBlocks { session, blocks }))
    }

    /// Gives up the written blocks, because of `cause`.
    async fn abandon(mut self, cause: &ClientError) {
        let unknown = is_unknown(cause);
        let (session, segment) = (self.session.take(), self.segment.take());
        give_up_when_idle(std::mem::take(&mut self.in_flight), session, segment, unknown).await;
    }
}

impl Drop for BlockWriter {
    /// Gives the blocks up in the background: the put's caller went away. Those in memory free themselves.
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        let (in_flight, segment) = (std::mem::take(&mut self.in_flight), self.segment.take());
        self.client.inner.runtime.spawn(give_up_when_idle(in_flight, Some(session), segment, false));
    }
}

/// Gives blocks up once the writes in flight have ended.
async fn give_up_when_idle(
    in_flight: VecDeque<JoinHandle<Result<WrittenBlock, ClientError>>>,
    session: Option<Arc<PutSession>>,
    segment: Option<SegmentWriter>,
    unknown: bool,
) {
    for writing in in_flight {
        drop(writing.await);
    }
    if let Some(session) = session.and_then(Arc::into_inner) {
        give_up(session, segment, unknown).await;
    }
}

/// Whether, after this error, chunks must not be deleted (design.md §10.2).
fn is_unknown(error: &ClientError) -> bool {
    matches!(error, ClientError::Meta(MetaError::UnknownOutcome(_)))
}

/// Ends a session without a commit, or without knowing its outcome. A segment is given up in any case, unless the
/// commit named it after all.
async fn give_up(mut session: PutSession, segment: Option<SegmentWriter>, unknown: bool) {
    if unknown {
        session.committing();
        return;
    }
    if let Some(segment) = segment
        && let Err(error) = segment.abandon().await
    {
        tracing::debug!(%error, "a segment is given up later");
    }
    session.discard().await;
}

impl UncommittedBlocks {
    /// Adds to `tx` the rows and preconditions that make the blocks part of what `tx` writes.
    pub(crate) fn name(&self, tx: &mut Transaction) {
        match &self.blocks {
            Blocks::Listed(blocks) => self.session.name_blocks(tx, blocks),
            Blocks::Segment(segment, _) => segment.name(tx),
        }
    }

    fn list(blocks: &[StoredBlock]) -> BlockList {
        BlockList { blocks: blocks.iter().map(|stored| stored.block.clone()).collect() }
    }

    /// Prepares for the commit; call it before submitting.
    ///
    /// # Errors
    /// When the metadata store fails; nothing may be committed then.
    pub(crate) async fn committing(&mut self) -> Result<(), StripeError> {
        if let Blocks::Listed(blocks) = &self.blocks {
            self.session.ensure_placed(blocks).await?;
        }
        self.session.committing();
        Ok(())
    }

    /// Records that a precondition of [`UncommittedBlocks::name`] does not hold.
    fn note_fenced(&self) {
        if let Blocks::Listed(blocks) = &self.blocks {
            self.session.forget_placed(blocks);
        }
    }

    /// Ends the session after the commit: keeps the blocks, gives them up, or leaves them to the collector.
    ///
    /// # Errors
    /// The error of the commit.
    pub(crate) async fn settle<T>(self, outcome: Result<T, CommitFailure>) -> Result<T, ClientError> {
        match outcome {
            Ok(value) => {
                if let Blocks::Segment(segment, _) = self.blocks {
                    segment.named();
                }
                self.session.committed();
                Ok(value)
            }
            Err(failure) => {
                let segment = match self.blocks {
                    Blocks::Segment(segment, _) => Some(segment),
                    Blocks::Listed(_) => None,
                };
                give_up(self.session, segment, failure.unknown).await;
                Err(failure.error)
            }
        }
    }
}

impl BodyLocation {
    /// Returns the body of an object's record.
    pub(crate) fn object_body(&self) -> object::Body {
        match self {
            Self::Inline(bytes) => object::Body::Inline(bytes.clone()),
            Self::InMemory(blocks) => object::Body::Memory(blocks.list()),
            Self::Striped(UncommittedBlocks { blocks: Blocks::Listed(blocks), .. }) => {
                object::Body::Blocks(UncommittedBlocks::list(blocks))
            }
            Self::Striped(UncommittedBlocks { blocks: Blocks::Segment(_, segment), .. }) => {
                object::Body::Manifest(Manifest { segments: vec![segment.clone()] })
            }
        }
    }

    /// Returns the body of a part's record. Parts are never inline; an empty one has no blocks.
    pub(crate) fn part_body(&self) -> upload_part::Body {
        match self {
            Self::Inline(_) => upload_part::Body::Blocks(BlockList::default()),
            Self::InMemory(blocks) => upload_part::Body::Memory(blocks.list()),
            Self::Striped(UncommittedBlocks { blocks: Blocks::Listed(blocks), .. }) => {
                upload_part::Body::Blocks(UncommittedBlocks::list(blocks))
            }
            Self::Striped(UncommittedBlocks { blocks: Blocks::Segment(_, segment), .. }) => {
                upload_part::Body::Segment(segment.clone())
            }
        }
    }

    /// See [`UncommittedBlocks::name`].
    pub(crate) fn name(&self, tx: &mut Transaction) {
        if let Self::Striped(striped) = self {
            striped.name(tx);
        }
    }

    /// Returns the error of a commit that failed on a precondition of [`BodyLocation::name`].
    pub(crate) fn fenced(&self) -> CommitFailure {
        if let Self::Striped(striped) = self {
            striped.note_fenced();
        }
        fenced()
    }

    /// See [`UncommittedBlocks::committing`].
    ///
    /// # Errors
    /// As [`UncommittedBlocks::committing`].
    pub(crate) async fn committing(&mut self) -> Result<(), StripeError> {
        match self {
            Self::Inline(_) => Ok(()),
            Self::Striped(striped) => striped.committing().await,
            Self::InMemory(blocks) => {
                blocks.committing();
                Ok(())
            }
        }
    }

    /// See [`UncommittedBlocks::settle`].
    ///
    /// # Errors
    /// The error of the commit.
    pub(crate) async fn settle<T>(self, outcome: Result<T, CommitFailure>) -> Result<T, ClientError> {
        match self {
            Self::Inline(_) => outcome.map_err(CommitFailure::into_error),
            Self::Striped(striped) => striped.settle(outcome).await,
            Self::InMemory(blocks) => blocks.settle(outcome),
        }
    }
}
