//! Runs one command, from its arguments to its end.

use futures::future::LocalBoxFuture;
use striate_commands::args::Command;
use striate_commands::failure::{Failure, Outcome};
use striate_runtime::Runtime;

use crate::{administer, control_process, gateway_process, server, site_process};

/// Runs `command` to its end.
// Boxed, so that all commands are compiled once here, and not again in the binary that awaits them.
pub fn run(runtime: Runtime, command: Command) -> LocalBoxFuture<'static, Outcome> {
    Box::pin(dispatch(runtime, command))
}

/// Returns whether an argument is a URL with a password, as those of metadata engines may be.
fn has_password(argument: &str) -> bool {
    let Some((scheme, rest)) = argument.split_once("://") else { return false };
    let authority = rest.split(['/', '?']).next().unwrap_or("");
    let login = authority.rsplit_once('@').map(|(login, _)| login);
    let in_query = rest.split(['?', '&']).skip(1).any(|parameter| parameter.starts_with("password="));
    !scheme.is_empty() && (in_query || login.is_some_and(|login| login.contains(':')))
}

async fn dispatch(runtime: Runtime, command: Command) -> Outcome {
    if std::env::args().any(|argument| has_password(&argument)) {
        tracing::warn!(
            "the arguments hold a password, which every user of this machine sees in the list of processes: give the URL by \
             STRIATE_METADATA or in the file of --config (of a migration, by STRIATE_MIGRATE_FROM and STRIATE_MIGRATE_TO)"
        );
    }
    match command {
        Command::Server(args) => server::run(runtime, args).await,
        Command::Site(args) => site_process::run(runtime, args).await,
        Command::Gateway(args) => gateway_process::run(runtime, args).await,
        Command::Control(args) => control_process::run(runtime, args).await,
        Command::Client(command) => striate_commands::run(runtime, command).await,
        Command::Admin(command) => administer::run(runtime, command).await,
        Command::Lab { arguments } => Err(Failure::refused(format!(
            "the laboratory is a program of its own since 0.2.0: run `{}`",
            ["striate-lab".to_owned()].into_iter().chain(arguments).collect::<Vec<_>>().join(" ")
        ))),
        Command::Version => {
            println!("striate {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_in_arguments_are_noticed() {
        for argument in [
            "etcd://me:secret@e1,e2/p",
            "--metadata=postgres://me:secret@db/meta?schema=a",
            "postgres://db/meta?user=me&password=secret",
        ] {
            assert!(has_password(argument), "{argument}");
        }
        for argument in
            ["etcd://e1:2379,e2/p", "postgres://me@db/meta", "s3://b/a:b@c", "/a:b@c", "http://[::1]:9000"]
        {
            assert!(!has_password(argument), "{argument}");
        }
    }
}
