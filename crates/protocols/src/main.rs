//! Compiles the `.proto` files of all crates into the Rust code that is checked in beside them.
//!
//! Run by `make protocols` after a change of a `.proto` file; a test fails if this was forgotten. The code is checked
//! in because the compilers (protox, prost-build and their dependencies) took longer to build than the code they
//! generate. Building the store needs none of them. protox parses the files, so protoc is not needed either.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// One `.proto` file: `crates/CRATE/proto/NAME.proto`. The generated `NAME.rs` lies beside it.
struct Protocol {
    of_crate: &'static str,
    name: &'static str,
    package: &'static str,
    services: Services,
}

/// Code to generate for a file's services. Never a transport: requests use our own connections, on which both ends
/// are authenticated.
#[derive(Clone, Copy)]
enum Services {
    /// The file has no services, only messages for records. Their maps are ordered.
    None,
    /// The client side only.
    Clients,
    /// Client and server. Messages own their `bytes` fields, or share the buffer that they arrived in.
    Both { shares_bytes: bool },
}

const PROTOCOLS: [Protocol; 4] = [
    Protocol { of_crate: "meta", name: "records", package: "striate.meta.v1", services: Services::None },
    Protocol { of_crate: "meta", name: "etcd", package: "etcdserverpb", services: Services::Clients },
    Protocol {
        of_crate: "site",
        name: "site",
        package: "striate.site.v1",
        services: Services::Both { shares_bytes: true },
    },
    Protocol {
        of_crate: "striate",
        name: "control",
        package: "striate.control.v1",
        services: Services::Both { shares_bytes: false },
    },
];

impl Protocol {
    fn folder(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(self.of_crate).join("proto")
    }

    /// Returns the path of the checked-in code.
    fn target(&self) -> PathBuf {
        self.folder().join(self.name).with_extension("rs")
    }

    /// Generates the Rust code.
    fn compile(&self) -> Result<String, Box<dyn Error>> {
        let out = tempfile::tempdir()?;
        let descriptors = protox::compile([format!("{}.proto", self.name)], [self.folder()])?;
        let tonic = tonic_prost_build::configure().build_transport(false).out_dir(out.path());
        match self.services {
            Services::None => {
                let mut messages = prost_build::Config::new();
                messages.bytes(["."]).btree_map(["."]).out_dir(out.path()).compile_fds(descriptors)?;
            }
            Services::Clients => tonic.bytes(".").build_server(false).compile_fds(descriptors)?,
            Services::Both { shares_bytes: true } => tonic.bytes(".").compile_fds(descriptors)?,
            Services::Both { shares_bytes: false } => tonic.compile_fds(descriptors)?,
        }
        let code = fs::read_to_string(out.path().join(format!("{}.rs", self.package)))?;
        Ok(format!("// Made from {}.proto by `make protocols`.\n{code}", self.name))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    for protocol in &PROTOCOLS {
        fs::write(protocol.target(), protocol.compile()?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_that_is_checked_in_is_that_of_the_protocols() {
        for protocol in &PROTOCOLS {
            let target = protocol.target();
            let is_current =
                fs::read_to_string(&target).is_ok_and(|code| code == protocol.compile().unwrap());
            assert!(is_current, "{} is out of date: run `make protocols`", target.display());
        }
    }

    #[test]
    fn every_proto_file_is_compiled() {
        let crates = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
        let folders = crates.filter_map(|folder| fs::read_dir(folder.ok()?.path().join("proto")).ok());
        let files = folders.flatten().filter_map(|file| Some(file.ok()?.path()));
        let count = files.filter(|file| file.extension().is_some_and(|end| end == "proto")).count();
        assert_eq!(count, PROTOCOLS.len());
    }
}
