//! Buckets whose objects are in another S3 store, the *origin*: Striate is a coded cache in front of it.
//!
//! Blocks are cached in the memory tier and named by the object's ETag, so an answer never mixes versions. What a gateway knows of an
//! object is used within the bucket's ttl without asking. Writes through any gateway are seen at once by all of them: a *fence* in the
//! metadata store says that what was known before is not to be used. What others write at the origin is seen within the ttl.
//!
//! - [`service`]: requests of the gateway for such buckets.
//! - [`buckets`]: which buckets these are; [`opened`]: one of them.
//! - [`upstream`]: requests to origins.
//! - [`head`]: what an origin says of an object; [`known`]: what is known of objects; [`evicted`]: what had to make room; [`fences`]: what makes it void.
//! - [`asked`]: what a read asks for; [`finding`]: what answers it; [`get`]: GET and HEAD; [`batch`], [`batch_put`]: many objects; [`reading`]: an object's bytes, from memory and from the origin; [`run`]: what the origin sends of them.
//! - [`explain`]: what a read would do.
//! - [`forward`]: everything else is passed on; [`write_through`]: and what is written is cached.
//!
//! What this crate does not know: sites, and how blocks lie in memory.

mod asked;
mod batch;
mod batch_put;
mod buckets;
mod counts;
mod evicted;
mod explain;
mod fences;
mod finding;
mod forward;
mod get;
mod head;
mod known;
mod opened;
mod reading;
mod run;
mod service;
mod upstream;
mod write_through;

pub use counts::OriginCounts;
pub use explain::ObjectExplained;
pub use service::Origins;
