//! Compiles the protocol of control processes. protox parses it, so that no protoc need be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/control.proto");
    let descriptors = protox::compile(["control.proto"], ["proto"])?;
    // No transport: the requests go over connections of our own, on which both ends are known.
    tonic_prost_build::configure().build_transport(false).compile_fds(descriptors)?;
    Ok(())
}
