//! Compiles the record schema. protox parses it, so that no protoc need be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/records.proto");
    let descriptors = protox::compile(["records.proto"], ["proto"])?;
    let mut config = prost_build::Config::new();
    config.bytes(["."]).btree_map(["."]).compile_fds(descriptors)?;
    Ok(())
}
