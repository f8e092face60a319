//! The S3 gateway: signatures, HTTP limits, and the translation between S3 and the client service.
//!
//! The path of a request: [`serve`](serve()) accepts its connection and bounds what an unknown peer may send. The
//! [`Gateway`] verifies its signature before anything is looked up, authorises it, lets the `s3s` crate parse it,
//! translates it for the client service, and streams the response back.
//!
//! S3's semantics (conditions, multipart uploads, listings) live in the client service; this crate only translates. It
//! keeps no state but decrypted access keys.
//!
//! Striate's extensions: the header `x-striate-profile` ([`PROFILE_HEADER`]) names a profile such as `rs(4,2)` on
//! CreateBucket (for the bucket), and on PutObject, CopyObject and CreateMultipartUpload (for one object). `POST
//! /{bucket}?batch` reads many objects in one request, `?batch=put` creates them, `?batch=exists` says which exist
//! (`batch`). `GET /minio/health/live`, `ready` and `cluster` respond without a signature.
//!
//! Not supported, and refused rather than ignored: versioning, object lock, server-side encryption, access lists other
//! than the owner's, bucket policies, anonymous requests. HTTP/1.1 is the only protocol; SDKs ask for no other.
//!
//! s3s logs every refused request as an error; a server filters its target (`s3s=off`) and relies on the audit log.

mod address;
pub mod audit;
mod auth;
mod authorize;
mod batch;
mod body;
mod checksum;
mod documents;
mod etags;
mod failure;
mod form;
mod gateway;
pub mod keys;
mod operations;
mod options;
mod peers;
mod refusal;
mod remote_buckets;
mod serve;
mod tls;
mod trace;
mod translate;
mod wire;
mod xml;

pub use audit::{AuditEntry, AuditSink, RequestMetrics};
pub use auth::{MAX_EXPIRES_SECONDS, MAX_SKEW_SECONDS};
pub use gateway::{Gateway, GatewayError, Hooks, Readiness};
pub use keys::{Credentials, KeyError, KeyInfo, KeyStore, SealingKey, check as check_credentials};
pub use operations::RESPONSE_PARAMETERS;
pub use options::{GatewayOptions, Limits};
pub use remote_buckets::{NamedKeys, RemoteBody, RemoteBuckets, RemoteRequest};
pub use serve::serve;
pub use tls::{CertificateError, Certificates};
pub use translate::{PROFILE_HEADER, object_body, range_version};
