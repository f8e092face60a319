//! Tracks what a read of many objects has handed out, so that the rest can be begun again.

use bytes::Bytes;

use super::{ObjectHead, ObjectPart};
use crate::{ClientError, GetRequest, ReadCondition, ReadRange};

/// Unanswered requests.
pub(super) struct Delivery {
    /// Requests by position; `None` once answered.
    open: Vec<Option<PendingRequest>>,
}

/// An unanswered request.
struct PendingRequest {
    /// Request for the rest.
    request: GetRequest,
    /// Version whose first parts were handed out.
    begun: Option<[u8; 16]>,
}

impl Delivery {
    pub(super) fn new(requests: Vec<GetRequest>) -> Self {
        let open = |request| Some(PendingRequest { request, begun: None });
        Self { open: requests.into_iter().map(open).collect() }
    }

    /// Returns the positions of the unanswered requests.
    pub(super) fn unanswered(&self) -> Vec<usize> {
        (0..self.open.len()).filter(|&position| self.open[position].is_some()).collect()
    }

    /// Returns the rest of a request, with its position.
    pub(super) fn request(&self, position: usize) -> Option<(usize, GetRequest)> {
        Some((position, self.open[position].as_ref()?.request.clone()))
    }

    /// Returns a part as it is handed out; `None` if its request already ended in an error.
    pub(super) fn hand_out(
        &mut self,
        position: usize,
        part: Result<ObjectPart, ClientError>,
    ) -> Option<Result<ObjectPart, ClientError>> {
        let open = self.open[position].as_mut()?;
        let part = part.and_then(|part| open.continued(part));
        match &part {
            Ok(part) if !part.is_last => {}
            _ => self.open[position] = None,
        }
        Some(part)
    }
}

impl PendingRequest {
    /// Records a part. The first part of a continuation loses its head, and must be of the same version.
    fn continued(&mut self, mut part: ObjectPart) -> Result<ObjectPart, ClientError> {
        match (self.begun, &part.head) {
            (Some(version), Some(head)) if head.info.version != version => return Err(ClientError::Conflict),
            (Some(_), _) => part.head = None,
            (None, Some(head)) => self.begin(head),
            (None, None) => {}
        }
        let len: usize = part.pieces.iter().map(Bytes::len).sum();
        if let ReadRange::Bytes { first, .. } = &mut self.request.range {
            *first += len as u64;
        }
        Ok(part)
    }

    fn begin(&mut self, head: &ObjectHead) {
        self.begun = Some(head.info.version);
        // The conditions held, and hold for this version.
        self.request.condition = ReadCondition::default();
        let last = Some(head.range.end.saturating_sub(1));
        self.request.range = ReadRange::Bytes { first: head.range.start, last };
    }
}
