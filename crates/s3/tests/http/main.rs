//! The gateway over real sockets, in front of a client service on stores in memory. Requests are written by
//! hand and signed by the signer of these tests, which shares no code with the gateway's.

mod allocation;
mod batch;
mod bodies;
mod conditions;
mod connections;
mod cors;
mod fixture;
mod forms;
mod keys;
mod limits;
mod peers;
mod signatures;
mod tls;
mod wire;
