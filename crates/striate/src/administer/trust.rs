//! `striate admin init` and `striate admin certificate`: membership of a cluster.

use std::time::Duration;

use striate_commands::args::{CertificateArgs, InitArgs};
use striate_commands::failure::{Failure, Outcome};
use striate_core::ClusterId;
use striate_runtime::Runtime;
use striate_trust::{AUTHORITY_KEY_FILE, Authority, Role};

use crate::start::sealing;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Creates the authority of a new cluster, and the key with which its gateways seal secrets.
pub(super) fn init(runtime: &Runtime, args: &InitArgs) -> Outcome {
    let directory = &args.directory;
    if directory.join(AUTHORITY_KEY_FILE).exists() {
        return Err(Failure::refused(format!(
            "{} holds the authority of a cluster already; give a new cluster's another directory",
            directory.display()
        )));
    }
    let mut random = [0; 16];
    runtime.fill_secret(&mut random);
    let cluster = ClusterId(u128::from_be_bytes(random));
    Authority::create(runtime, directory, cluster).map_err(Failure::refused)?;
    let written = sealing::write_to(directory, &sealing::make(runtime));
    written.map_err(|error| Failure::failed(format!("{}: {error}", directory.display())))?;
    let directory = directory.display();
    println!(
        "The authority of the new cluster {cluster} is in {directory}. Keep it away from the cluster's machines."
    );
    println!("Next: striate admin certificate control c1 --authority {directory} --to c1");
    Ok(())
}

/// Issues a certificate.
pub(super) fn certificate(runtime: &Runtime, args: &CertificateArgs) -> Outcome {
    let CertificateArgs { role, name, authority: directory, to, days } = args;
    if !directory.exists() {
        return Err(Failure::refused(format!(
            "--authority {0}: there is no such directory; `striate admin init {0}` makes an authority there",
            directory.display()
        )));
    }
    let authority = Authority::read(directory).map_err(Failure::refused)?;
    let issued = authority.issue(runtime, *role, name, DAY * *days).map_err(Failure::refused)?;
    issued.write(to).map_err(Failure::failed)?;
    // Processes that open the secrets of access keys need the sealing key.
    if matches!(role, Role::Gateway | Role::Control) {
        let key = sealing::read_from(directory).ok_or_else(|| {
            Failure::refused(format!(
                "{}: there is no sealing key ({}), without which a {role} cannot open access keys; restore it from a copy",
                directory.display(),
                sealing::SEALING_FILE
            ))
        })?;
        let written = sealing::write_to(to, &key);
        written.map_err(|error| Failure::failed(format!("{}: {error}", to.display())))?;
    }
    println!("The certificate of the {role} {name} is in {}, valid for {days} days", to.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateways_share_one_sealing_key_and_sites_have_none() {
        let (folder, runtime) = (tempfile::tempdir().unwrap(), Runtime::deterministic(1, DAY));
        let authority = folder.path().join("ca");
        init(&runtime, &InitArgs { directory: authority.clone() }).unwrap();
        assert!(init(&runtime, &InitArgs { directory: authority.clone() }).is_err(), "there is one already");
        let issue = |role, name: &str| {
            let to = folder.path().join(name);
            let args =
                CertificateArgs { role, name: name.to_owned(), authority: authority.clone(), to, days: 1 };
            certificate(&runtime, &args).unwrap();
            sealing::read_from(&args.to)
        };
        let (first, second) = (issue(Role::Gateway, "g1"), issue(Role::Control, "c1"));
        assert!(first.is_some() && first == second);
        assert_eq!(issue(Role::Site, "s1"), None);
    }
}
