//! The gateway over real sockets, in front of a client service on stores in memory. Requests are handmade, and signed
//! by these tests' own signer, which shares no code with the gateway's.

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
