//! Tests of the engines in other processes, against real servers that they start and stop.

mod certificates;
mod etcd;
mod etcd_server;
mod load;
mod migration;
mod postgres;
mod postgres_server;
mod program;
mod proxy;
#[path = "../suite/strategy.rs"]
mod strategy;
