//! The JSON responses to a batch put and to a query of which keys exist.

use serde::Serialize;
use striate_client::{ClientError, ObjectInfo};

use super::Failure;
use crate::refusal::Refusal;

/// The response to a batch put: an outcome for each item, in the order of the items.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Outcomes {
    created: usize,
    existing: usize,
    failed: usize,
    items: Vec<Outcome>,
}

/// Outcome of one item.
#[derive(Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum Outcome {
    /// 200: durable and visible. 412: the object exists and stays as it was.
    Settled {
        status: u16,
        #[serde(skip_serializing_if = "Option::is_none")]
        etag: Option<String>,
    },
    Failed {
        status: u16,
        code: &'static str,
        message: String,
    },
}

impl Outcomes {
    pub fn add(&mut self, outcome: Result<ObjectInfo, ClientError>) {
        match outcome {
            Ok(info) => {
                self.created += 1;
                self.items.push(Outcome::Settled { status: 200, etag: Some(format!("\"{}\"", info.etag)) });
            }
            Err(ClientError::PreconditionFailed(_)) => {
                self.existing += 1;
                self.items.push(Outcome::Settled { status: 412, etag: None });
            }
            Err(error) => self.fail(Failure::from(&error)),
        }
    }

    pub fn refuse(&mut self, refusal: &Refusal) {
        self.fail(Failure::from(refusal));
    }

    fn fail(&mut self, Failure { status, code, message }: Failure) {
        self.failed += 1;
        self.items.push(Outcome::Failed { status, code, message });
    }
}

/// The response to a query of which keys exist.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct ExistingKeys {
    /// Number of keys with objects before the first one without.
    prefix: usize,
    /// Size of each object, in the order of the keys; `null` if there is none.
    sizes: Vec<Option<u64>>,
}

impl From<Vec<Option<u64>>> for ExistingKeys {
    fn from(sizes: Vec<Option<u64>>) -> Self {
        let prefix = sizes.iter().take_while(|size| size.is_some()).count();
        Self { prefix, sizes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_created_existing_or_failed_by_itself() {
        let mut outcomes = Outcomes::default();
        outcomes.add(Err(ClientError::PreconditionFailed("If-None-Match")));
        outcomes.refuse(&Refusal::denied("AccessDenied", "no"));
        outcomes.add(Err(ClientError::Busy));
        let json = serde_json::to_value(&outcomes).unwrap();
        assert_eq!((&json["created"], &json["existing"], &json["failed"]), (&0.into(), &1.into(), &2.into()));
        assert_eq!(json["items"][0], serde_json::json!({"status": 412}));
        assert_eq!(
            json["items"][1],
            serde_json::json!({"status": 403, "code": "AccessDenied", "message": "no"})
        );
        assert_eq!(json["items"][2]["code"], "SlowDown");
    }

    #[test]
    fn a_prefix_ends_at_the_first_gap() {
        let existing = ExistingKeys::from(vec![Some(3), Some(0), None, Some(1)]);
        let json = serde_json::to_string(&existing).unwrap();
        assert_eq!(json, r#"{"prefix":2,"sizes":[3,0,null,1]}"#);
    }
}
