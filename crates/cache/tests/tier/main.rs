//! The tier under a real client: what is read again comes from memory, and nothing that happens to memory fails a read.

mod explaining;
mod fixture;
mod losing;
mod reading;
mod volatile;
