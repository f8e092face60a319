//! Compiles the record schema and etcd's API. protox parses them, so that no protoc need be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let records = protox::compile(["records.proto"], ["proto"])?;
    let mut config = prost_build::Config::new();
    config.bytes(["."]).btree_map(["."]).compile_fds(records)?;
    let etcd = protox::compile(["etcd.proto"], ["proto"])?;
    tonic_prost_build::configure().bytes(".").build_server(false).build_transport(false).compile_fds(etcd)?;
    Ok(())
}
