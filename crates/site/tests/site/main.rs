//! Sites and their stores from outside.

mod kill;
mod sites;
mod store_model;
mod watching;
