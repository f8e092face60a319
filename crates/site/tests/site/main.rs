//! Tests of sites and their stores through the public interface.

mod combining;
mod conformance;
mod connections;
mod fixture;
mod kill;
mod load;
mod peers;
mod raw_requests;
mod refusals;
mod store_model;
mod watching;
