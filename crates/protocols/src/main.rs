//! Compiles the `.proto` files of all crates into the Rust code that is checked in beside them.
//!
//! `make protocols` runs it after a change of a `.proto` file; its test fails where somebody forgot. The code is checked in
//! because the compilers, protox and prost-build with all that they use, took longer to compile than what they make:
//! builders of the store need none of them. protox parses, so that no protoc need be installed.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// One `.proto` file: `crates/CRATE/proto/NAME.proto`, of which `NAME.rs` is made beside it.
struct Protocol {
    of_crate: &'static str,
    name: &'static str,
    package: &'static str,
    services: Services,
}

/// What is made of a file's services. Never a transport: requests go over connections of our own, on which both ends are known.
#[derive(Clone, Copy)]
enum Services {
    /// The file has none: messages for records, whose maps are ordered.
    None,
    /// The calling end.
    Clients,
    /// Both ends. Messages own what `bytes` there is, or share the buffer that it came in.
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

    /// Where its code is checked in.
    fn target(&self) -> PathBuf {
        self.folder().join(self.name).with_extension("rs")
    }

    /// The Rust code.
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
