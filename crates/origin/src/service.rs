//! The gateway's requests for buckets with an origin.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode};
use s3s::Body;
use striate_cache::Cache;
use striate_client::{Client, ClientError, GetRequest, ObjectInfo, PartStream, PutRequest, ReadOrder};
use striate_meta::records::Origin;
use striate_s3::{KeyStore, RemoteBody, RemoteBuckets, RemoteRequest};

use crate::buckets::Buckets;
use crate::counts::OriginCounts;
use crate::failures::FailingOrigin;
use crate::fences::Fences;
use crate::known_objects::KnownObjects;
use crate::origin_bucket::{OriginBucket, sealed_as};
use crate::upstream::{OriginRequest, Upstream, explanation, failed};
use crate::write_through::WriteThrough;

/// Timeout for a new origin's first response. An operator is waiting for it.
const FIRST_ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Maximum ttl. The fence of each written object stays for the ttl.
const LONGEST_TTL: Duration = Duration::from_secs(24 * 3_600);

/// Buckets whose objects are in other stores. Cheap to clone.
#[derive(Clone)]
pub struct Origins {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) cache: Cache,
    pub(crate) buckets: Arc<Buckets>,
    pub(crate) fences: Fences,
    pub(crate) known_objects: KnownObjects,
    pub(crate) upstream: Upstream,
    pub(crate) write_through: Arc<WriteThrough>,
    keys: Arc<KeyStore>,
}

impl Origins {
    /// Serves such buckets with a gateway's client service, the memory tier, and the keys that seal secrets. `ca_file`
    /// is a PEM file of certificate authorities that are trusted besides the system's.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub fn new(
        client: Client,
        cache: Cache,
        keys: Arc<KeyStore>,
        ca_file: Option<&Path>,
    ) -> Result<Self, String> {
        let upstream = Upstream::new(client.runtime().clone(), ca_file)?;
        let (runtime, bodies) = (client.runtime().clone(), client.stripes().budget().clone());
        let shared = Shared {
            buckets: Arc::new(Buckets::new(client.clone(), keys.clone())),
            fences: Fences::new(client.stripes().clone()),
            known_objects: KnownObjects::new(),
            write_through: WriteThrough::new(runtime, bodies, upstream.counts.clone()),
            upstream,
            client,
            cache,
            keys,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Counters of requests to origins.
    pub fn counts(&self) -> &OriginCounts {
        &self.shared.upstream.counts
    }

    /// Returns the buckets whose origins do not answer now, as this gateway's last requests found.
    pub fn failing(&self) -> Vec<FailingOrigin> {
        self.shared.buckets.failing()
    }

    /// Returns the length in bytes of the longest blocks that a bucket has in memory; 0 if there are no buckets.
    pub fn longest_block(&self) -> u64 {
        self.shared.buckets.longest_block()
    }

    /// Follows the rows of buckets and removes fences that are no longer needed, until the task is dropped.
    pub async fn run(self) {
        let sweep = self.shared.fences.clone().sweep();
        futures::future::join(self.shared.buckets.clone().follow(), sweep).await;
    }

    /// Prepares the origin of a new bucket: draws its id, seals its secret, and lists the bucket as a check.
    ///
    /// # Errors
    /// [`ClientError::InvalidArgument`], with the origin's response or the invalid setting.
    pub async fn introduce(&self, mut origin: Origin, secret: &str) -> Result<Origin, ClientError> {
        if Duration::from_millis(origin.ttl_ms) > LONGEST_TTL {
            let hours = LONGEST_TTL.as_secs() / 3_600;
            return Err(ClientError::InvalidArgument(format!("the ttl of an origin is at most {hours}h")));
        }
        let runtime = self.shared.client.runtime();
        origin.id = Bytes::copy_from_slice(&runtime.random_u128().to_be_bytes());
        let sealed = self.shared.keys.seal(&sealed_as(&origin.id), secret);
        origin.secret = sealed.map_err(|error| ClientError::InvalidArgument(error.to_string()))?;
        let opened = OriginBucket::new(&origin, &self.shared.keys)?;
        let ask = OriginRequest {
            method: Method::GET,
            key: "",
            query: "list-type=2&max-keys=1",
            headers: HeaderMap::new(),
        };
        let asking = self.shared.upstream.read(&opened, ask);
        let silent = |_| {
            let seconds = FIRST_ANSWER_WITHIN.as_secs();
            Err(failed(&opened, format!("it has not answered within {seconds} s")))
        };
        let answer = runtime.timeout(FIRST_ANSWER_WITHIN, asking).await.unwrap_or_else(silent);
        let (error, settings) = match answer {
            Ok(answer) if answer.status().is_success() => return Ok(origin),
            Ok(answer) => {
                let settings = settings_behind(Some(answer.status()));
                (failed(&opened, explanation(answer).await), settings)
            }
            Err(error) => (error, settings_behind(None)),
        };
        Err(ClientError::InvalidArgument(format!("{error}; look at {settings}")))
    }
}

#[async_trait]
impl RemoteBuckets for Origins {
    fn has(&self, bucket: &str) -> bool {
        self.shared.buckets.has(bucket)
    }

    async fn answer(&self, mut request: RemoteRequest) -> Result<Response<Body>, ClientError> {
        let shared = &self.shared;
        let (origin, fence_state) = shared.fences.state_of(&request.bucket, &request.key).await?;
        let Some(origin) = shared.buckets.note(&request.bucket, origin.as_ref())? else {
            // The bucket was recreated, here. The next request finds it.
            return Err(ClientError::Busy);
        };
        let is_read = matches!(request.method, Method::GET | Method::HEAD) && !request.key.is_empty();
        if is_read && !is_about(&request.query) {
            request.body = RemoteBody::Held(Bytes::new());
            return shared.get(&origin, request, fence_state).await;
        }
        shared.forward(origin, request).await
    }

    fn read_many(&self, bucket: &str, requests: Vec<GetRequest>, order: ReadOrder) -> PartStream {
        self.shared.clone().read_many(bucket, requests, order)
    }

    async fn sizes_of(
        &self,
        bucket: &str,
        keys: Vec<String>,
        until_gap: bool,
    ) -> Result<Vec<Option<u64>>, ClientError> {
        self.shared.clone().sizes_of(bucket, keys, until_gap).await
    }

    async fn create_many(
        &self,
        bucket: &str,
        requests: Vec<PutRequest>,
    ) -> Vec<Result<ObjectInfo, ClientError>> {
        self.shared.clone().create_many(bucket, requests).await
    }
}

/// Returns the settings to look at after a response with this status, or after none.
fn settings_behind(status: Option<StatusCode>) -> &'static str {
    match status {
        None => {
            "--origin-endpoint: host, port, http or https (`striate server --origin-ca` trusts further certificates)"
        }
        Some(StatusCode::NOT_FOUND) => "--origin and --origin-endpoint",
        Some(_) => {
            "--origin, --origin-region and the key (STRIATE_ORIGIN_ACCESS_KEY, STRIATE_ORIGIN_SECRET_KEY)"
        }
    }
}

/// Whether a read is of something other than the object's bytes.
fn is_about(query: &str) -> bool {
    const NAMES: [&str; 7] =
        ["acl", "attributes", "legal-hold", "retention", "tagging", "torrent", "uploadId"];
    query.split('&').any(|parameter| NAMES.contains(&parameter.split('=').next().unwrap_or("")))
}

impl std::fmt::Debug for Origins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Origins").finish_non_exhaustive()
    }
}
