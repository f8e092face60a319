//! Tests of sites and their stores through the public interface.

mod kill;
mod sites;
mod store_model;
mod watching;
