//! Reads of one object or range, and of many in one request, whose items are judged one by one.

use std::ops::Range;

use futures::StreamExt;
use striate_client::{Client, ClientError, GetRequest, ObjectHead, ObjectInfo, ReadOrder, ReadRange};
use striate_history::{ObservedObject, Outcome, Value};

use super::operation::{Answer, BUCKET};

fn request(key: String, range: ReadRange) -> GetRequest {
    GetRequest { bucket: BUCKET.to_owned(), key, range, ..GetRequest::default() }
}

/// Reads an object or a range of it.
pub async fn get(client: &Client, key: String, range: ReadRange) -> Answer {
    let result = async {
        let object = client.get(request(key, range)).await?;
        let mut body = object.body;
        let mut bytes = Vec::new();
        while let Some(piece) = body.next().await {
            bytes.extend_from_slice(&piece?);
        }
        Ok((object.info, object.range, bytes))
    };
    Answer::of_items(vec![judge(result.await)])
}

/// Reads many objects and ranges in one request.
pub async fn read_many(client: &Client, items: Vec<(String, ReadRange)>, order: ReadOrder) -> Answer {
    let mut answers: Vec<Item> = items.iter().map(|_| Item::default()).collect();
    let requests = items.into_iter().map(|(key, range)| request(key, range)).collect();
    let mut parts = client.read_many(requests, order);
    let (mut latest, mut broken) = (0, None);
    while let Some((position, part)) = parts.next().await {
        let item = &mut answers[position];
        if item.ended {
            broken = Some(format!("item {position} of a batch goes on after its end"));
        }
        if order == ReadOrder::Requests && position < latest {
            broken = Some(format!("item {position} of an ordered batch comes after item {latest}"));
        }
        latest = position;
        match part {
            Ok(part) => {
                item.head = item.head.take().or(part.head);
                part.pieces.iter().for_each(|piece| item.bytes.extend_from_slice(piece));
                item.ended = part.is_last;
            }
            Err(error) => {
                item.error = Some(error);
                item.ended = true;
            }
        }
    }
    let mut answer = Answer::of_items(answers.into_iter().map(Item::judge).collect());
    answer.broken = broken.or(answer.broken);
    answer
}

/// Result of one item of a batch.
#[derive(Default)]
struct Item {
    head: Option<Box<ObjectHead>>,
    bytes: Vec<u8>,
    error: Option<ClientError>,
    ended: bool,
}

impl Item {
    fn judge(self) -> JudgedRead {
        match (self.error, self.head) {
            (Some(error), _) => judge(Err(error)),
            (None, Some(head)) if self.ended => judge(Ok((head.info, head.range, self.bytes))),
            (None, head) => JudgedRead {
                outcome: Outcome::NotApplied,
                error: None,
                broken: Some(format!("an item of a batch has no end: {head:?}, {} bytes", self.bytes.len())),
            },
        }
    }
}

/// A judged read of one object.
#[derive(Debug)]
pub struct JudgedRead {
    /// Outcome for the history.
    pub outcome: Outcome,
    /// Error of a failed read.
    pub error: Option<String>,
    /// How the read breaks I2, if it does.
    pub broken: Option<String>,
}

/// I2: the served bytes are those of some value at the requested range, or the read fails.
fn judge(result: Result<(ObjectInfo, Range<u64>, Vec<u8>), ClientError>) -> JudgedRead {
    let error = result.as_ref().err().map(ToString::to_string);
    let (outcome, broken) = match result {
        Ok((info, range, bytes)) => recognise(&info, range, &bytes),
        Err(ClientError::NoSuchKey(_)) => (Outcome::Read(None), None),
        Err(ClientError::InvalidRange { size }) => {
            (Outcome::Read(Some(ObservedObject { len: Some(size), ..ObservedObject::default() })), None)
        }
        Err(_) => (Outcome::NotApplied, None),
    };
    JudgedRead { outcome, error, broken }
}

fn recognise(info: &ObjectInfo, range: Range<u64>, bytes: &[u8]) -> (Outcome, Option<String>) {
    let mut observed = ObservedObject::etag(info.etag.clone(), info.size);
    let mut broken = None;
    if bytes.len() as u64 != range.end - range.start {
        broken = Some(format!("{} bytes for the range {range:?} of {:?}", bytes.len(), info.key));
    } else if bytes.len() as u64 >= 2 * Value::MIN_LEN {
        observed.value = Value::recognise_range(range.start, bytes).map(|id| Value { id, len: info.size });
        if observed.value.is_none() {
            broken = Some(format!("bytes that nobody wrote in the range {range:?} of {:?}", info.key));
        }
    }
    (Outcome::Read(Some(observed)), broken)
}
