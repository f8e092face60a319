//! Makes errors of the command line safe to show, and helpful.
//!
//! clap repeats the value that it rejects. The URL of an engine or of another store may hold a password, and an error
//! ends up in logs, in tickets and on shared screens, so such values are left out. Names of commands that other clients
//! have are answered with ours.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What stands in place of a secret.
const HIDDEN: &str = "…";

/// Commands of other clients, and ours for the same.
const ELSEWHERE: [(&str, &str); 10] = [
    ("mb", "bucket create"),
    ("rb", "bucket delete"),
    ("get", "cp"),
    ("put", "cp"),
    ("sync", "cp --recursive"),
    ("mirror", "cp --recursive"),
    ("info", "status"),
    ("key", "admin keys"),
    ("keys", "admin keys"),
    ("start", "server"),
];

/// Returns `error` without secrets, and with a suggestion if another client knows the command.
pub fn presentable(mut error: clap::Error) -> clap::Error {
    let texts: Vec<_> = error.context().filter_map(|(kind, value)| Some((kind, hide(value)?))).collect();
    for (kind, value) in texts {
        error.insert(kind, value);
    }
    if is_url(&error) && error.get(ContextKind::InvalidValue).is_some() {
        error.insert(ContextKind::InvalidValue, ContextValue::String(HIDDEN.to_owned()));
    }
    if let Some(ours) = ours(&error) {
        let suggested = ContextValue::Strings(vec![ours.to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, suggested);
    }
    error
}

/// Returns whether a URL was rejected. One that is wrong need not have its password where a URL has it.
fn is_url(error: &clap::Error) -> bool {
    matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(arg)) if arg.contains("URL"))
}

fn ours(error: &clap::Error) -> Option<&'static str> {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let known = ELSEWHERE.iter().find(|(theirs, _)| theirs == name);
    known.filter(|_| error.kind() == ErrorKind::InvalidSubcommand).map(|(_, ours)| *ours)
}

/// Returns a context value without users and passwords of URLs; `None` if it has none.
fn hide(value: &ContextValue) -> Option<ContextValue> {
    match value {
        ContextValue::String(text) => without_users(text).map(ContextValue::String),
        ContextValue::Strings(texts) => {
            let hidden = texts.iter().map(|text| without_users(text).unwrap_or_else(|| text.clone()));
            Some(ContextValue::Strings(hidden.collect())).filter(|hidden| hidden != value)
        }
        _ => None,
    }
}

/// Returns a text in which no URL has a user or a password; `None` if it has none.
pub(crate) fn without_users(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let (_, host) = rest.rsplit_once('@')?;
    Some(format!("{scheme}://{HIDDEN}@{host}"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    fn error(arguments: &str) -> String {
        let arguments = std::iter::once("striate").chain(arguments.split(' '));
        presentable(Cli::command().try_get_matches_from(arguments).unwrap_err()).to_string()
    }

    #[test]
    fn no_error_repeats_a_password() {
        let service = "gateway --identity /i --address :0";
        let wrong = [
            format!("{service} --metadata postgres:/me:secret@db/meta"),
            format!("{service} --metadata postgres://me:secret@db:port/meta"),
            format!("{service} --metadata etcd://me:secret@db?colour=red"),
            format!("{service} postgres://me:secret@db/meta"),
            format!("{service} --metdata=postgres://me:secret@db/meta"),
            format!("{service} --metadata etcd://a --otlp-endpoint ftp://me:secret@collector"),
            "admin migrate --from me:secret@db --to etcd://a".to_owned(),
            "admin migrate --from embedded --to https://me:secret@a".to_owned(),
            "ls --endpoint ftp://me:secret@a --colour".to_owned(),
        ];
        for arguments in wrong {
            let shown = error(&arguments);
            assert!(shown.starts_with("error: ") && !shown.contains("secret"), "{arguments}: {shown}");
        }
        let shown = error(&format!("{service} --metadata redis://a"));
        assert!(
            shown.contains("'…' for '--metadata <URL>'") && shown.contains("no engine 'redis'"),
            "{shown}"
        );
    }

    #[test]
    fn commands_of_other_clients_lead_to_ours() {
        assert!(error("mb photos").contains("'bucket create'"), "{}", error("mb photos"));
        assert!(error("rb photos").contains("'bucket delete'"));
        assert!(error("statu").contains("'status'"), "clap's own suggestions stay");
        for (theirs, ours) in ELSEWHERE {
            assert!(error(theirs).contains(&format!("'{ours}'")), "{theirs}");
            let mut ours = ours.split(' ').take_while(|word| !word.starts_with('-'));
            let found = ours.try_fold(Cli::command(), |command, name| command.find_subcommand(name).cloned());
            assert!(found.is_some(), "{theirs}");
        }
    }
}
