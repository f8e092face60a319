//! Linearizable reads: the first call reads the newest revision, and further calls read the rest at the same revision.

use bytes::Bytes;
use tonic::Code;

use super::EtcdStore;
use super::members::Failure;
use super::wire::{
    Answer, KvClient, RangeRequest, RangeResponse, Request, RequestOp, SortOrder, TxnRequest, TxnResponse,
    found, get,
};
use crate::store::{MetaError, Row, ScanRange};

/// Maximum number of rows per call; at 256 KiB each they still fit into an answer.
const PAGE_ROWS: usize = 2_000;

/// Maximum number of keys read in one transaction; etcd allows 128 operations.
const KEYS_OF_A_TXN: usize = 100;

/// Maximum number of times that a read restarts because its revision was compacted away meanwhile.
const RESTARTS: usize = 5;

/// Why a read at one revision ended early.
enum ReadInterruption {
    Compacted,
    Failed(MetaError),
}

impl From<Failure> for ReadInterruption {
    fn from(failure: Failure) -> Self {
        match failure.is_refused_with(Code::OutOfRange) {
            true => Self::Compacted,
            false => Self::Failed(failure.into_error()),
        }
    }
}

impl From<MetaError> for ReadInterruption {
    fn from(error: MetaError) -> Self {
        Self::Failed(error)
    }
}

impl ReadInterruption {
    fn begin_again(self) -> Result<(), MetaError> {
        match self {
            Self::Compacted => Ok(()),
            Self::Failed(error) => Err(error),
        }
    }
}

fn compacted() -> MetaError {
    MetaError::Unavailable("etcd compacts faster than a read of several pages proceeds".to_owned())
}

impl EtcdStore {
    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Failure> {
        let call = |channel, request| async move {
            KvClient::new(channel).max_decoding_message_size(usize::MAX).range(request).await
        };
        self.members.call(request, call).await
    }

    pub(super) async fn read_row(&self, key: &[u8]) -> Result<Option<Row>, MetaError> {
        let answer = self.range(get(self.keys.row(key))).await.map_err(Failure::into_error)?;
        answer.kvs.first().map(|row| self.keys.row_of(row)).transpose()
    }

    pub(super) async fn read_rows(&self, keys: &[Bytes]) -> Result<Vec<Option<Row>>, MetaError> {
        for _ in 0..RESTARTS {
            match self.try_read_rows(keys).await {
                Ok(rows) => return Ok(rows),
                Err(interrupted) => interrupted.begin_again()?,
            }
        }
        Err(compacted())
    }

    async fn try_read_rows(&self, keys: &[Bytes]) -> Result<Vec<Option<Row>>, ReadInterruption> {
        let (mut rows, mut revision) = (Vec::with_capacity(keys.len()), 0);
        for keys in keys.chunks(KEYS_OF_A_TXN) {
            let read = |key: &Bytes| {
                let range = RangeRequest { revision, ..get(self.keys.row(key)) };
                RequestOp { request: Some(Request::RequestRange(range)) }
            };
            let request = TxnRequest { success: keys.iter().map(read).collect(), ..TxnRequest::default() };
            let call = |channel, request| async move {
                KvClient::new(channel).max_decoding_message_size(usize::MAX).txn(request).await
            };
            let answer: TxnResponse = self.members.call(request, call).await?;
            revision = answer.revision();
            for op in &answer.responses {
                rows.push(found(op).map(|row| self.keys.row_of(row)).transpose()?);
            }
        }
        Ok(rows)
    }

    pub(super) async fn scan_rows(
        &self,
        range: &ScanRange,
        limit: usize,
        back: bool,
    ) -> Result<Vec<Row>, MetaError> {
        let Some((start, end)) = self.keys.rows(range) else { return Ok(Vec::new()) };
        for _ in 0..RESTARTS {
            match self.try_scan(start.clone(), end.clone(), limit, back).await {
                Ok(rows) => return Ok(rows),
                Err(interrupted) => interrupted.begin_again()?,
            }
        }
        Err(compacted())
    }

    async fn try_scan(
        &self,
        mut start: Bytes,
        mut end: Bytes,
        limit: usize,
        back: bool,
    ) -> Result<Vec<Row>, ReadInterruption> {
        let (mut rows, mut revision) = (Vec::new(), 0);
        while rows.len() < limit {
            let page = (limit - rows.len()).min(PAGE_ROWS);
            let order = if back { SortOrder::Descend } else { SortOrder::None };
            let request = RangeRequest {
                key: start.clone(),
                range_end: end.clone(),
                limit: page as i64,
                revision,
                sort_order: order.into(),
            };
            let answer = self.range(request).await?;
            if revision == 0 {
                revision = answer.revision();
            }
            for row in &answer.kvs {
                rows.push(self.keys.row_of(row)?);
            }
            match answer.kvs.last() {
                Some(last) if answer.kvs.len() == page && back => end = last.key.clone(),
                // The next key is the last one followed by a zero byte.
                Some(last) if answer.kvs.len() == page => start = [&last.key[..], &[0]].concat().into(),
                _ => break,
            }
        }
        Ok(rows)
    }
}
