//! Compiles the control protocol. protox parses it, so that no protoc need be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/site.proto");
    let descriptors = protox::compile(["site.proto"], ["proto"])?;
    // No transport: the requests go over connections of our own, which authenticate them.
    tonic_prost_build::configure().bytes(".").build_transport(false).compile_fds(descriptors)?;
    Ok(())
}
