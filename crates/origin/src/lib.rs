//! Buckets whose objects are in another S3 store, the *origin*: Striate is a coded cache in front of it.
//!
//! Blocks are cached in the memory tier under names that contain the object's ETag, so a response never mixes versions.
//! What a gateway knows of an object is used without a request to the origin until the bucket's ttl ends. All gateways
//! see a write through any of them at once: a *fence* in the metadata store invalidates what was known before. Writes
//! that bypass Striate are seen within the ttl.
//!
//! - [`service`]: the gateway's requests for such buckets.
//! - [`buckets`]: which buckets these are; [`origin_bucket`]: one of them.
//! - [`upstream`]: requests to origins; [`failures`]: whether these answer.
//! - [`head`]: what an origin reports of an object; [`known_objects`]: known objects; [`evicted`]: names of objects that
//!   were evicted from these; [`fences`]: what invalidates them.
//! - [`read_request`]: what a read requests; [`finding`]: finds it; [`get`]: GET and HEAD; [`batch`], [`batch_put`]:
//!   many objects; [`reading`]: an object's bytes, from memory and from the origin; [`run`]: the part that the origin
//!   sends.
//! - [`explain`]: what a read would do.
//! - [`forward`]: forwards everything else; [`write_through`]: caches what is written.
//!
//! This crate does not know sites, or how blocks lie in memory.

mod batch;
mod batch_put;
mod buckets;
mod counts;
mod evicted;
mod explain;
mod failures;
mod fences;
mod finding;
mod forward;
mod get;
mod head;
mod known_objects;
mod origin_bucket;
mod read_request;
mod reading;
mod run;
mod service;
mod upstream;
mod write_through;

pub use counts::OriginCounts;
pub use explain::ObjectExplanation;
pub use failures::FailingOrigin;
pub use service::Origins;
pub use upstream::check_authorities;
