//! The tier under a real client: repeated reads come from memory, and no event in memory fails a read.

mod distance;
mod explaining;
mod fetching;
mod fixture;
mod losing;
mod reading;
mod volatile;
