//! The configuration of a process: a file, environment variables, and options; later ones take precedence.
//!
//! ```toml
//! [site]                      # read by `striate site --config FILE`; the other tables by the other commands
//! data = ["/mnt/disk1"]
//! rack = "a"
//! ```
//!
//! A key is the name of an option without its dashes. The file's values become the defaults of the options, so one
//! piece of code parses and checks all three sources, and the manual's tables of options are generated from it
//! ([`options_table`]).

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, Command, CommandFactory, FromArgMatches};
use toml::{Table, Value};

use crate::args::Cli;
use crate::usage;

/// The commands that a file configures.
pub const SERVICES: [&str; 4] = ["server", "site", "gateway", "control"];
/// The option that names the file.
const OPTION: &str = "config";
/// Environment variable that names the file.
const VARIABLE: &str = "STRIATE_CONFIG";
/// Minimum similarity of names for a suggestion.
const ALIKE: f64 = 0.75;

/// Why the arguments are rejected.
#[derive(Debug)]
pub enum ConfigError {
    /// An error in the command line or a value; also how clap returns `--help`.
    Arguments(clap::Error),
    /// An error in the file, which the message names.
    File(String),
}

/// Parses the command line, completed by environment variables and by the file that one of them names.
///
/// # Errors
/// [`ConfigError`].
pub fn command_line(arguments: Vec<OsString>) -> Result<Cli, ConfigError> {
    let mut command = Cli::command();
    let file = file_of(&arguments);
    if let Some((service, path)) = &file {
        let fail = |reason: String| {
            let reason = usage::without_users(&reason).unwrap_or(reason);
            ConfigError::File(format!("--config {}: {reason}", path.display()))
        };
        let table = read(path).map_err(fail)?;
        check(&command, &table).map_err(fail)?;
        if let Some(Value::Table(values)) = table.get(*service) {
            let values = values.clone();
            command = command.mut_subcommand(*service, |sub| with_defaults(sub, &values));
        }
    }
    let mentioned = |error: clap::Error| match (&file, usage::presentable(error)) {
        (Some((service, path)), error) if error.use_stderr() => ConfigError::File(format!(
            "{}\n(values may come from [{service}] of {})",
            error.render().to_string().trim_end().trim_start_matches("error: "),
            path.display()
        )),
        (_, error) => ConfigError::Arguments(error),
    };
    let matches = command.try_get_matches_from(arguments).map_err(mentioned)?;
    Cli::from_arg_matches(&matches).map_err(|error| ConfigError::Arguments(usage::presentable(error)))
}

/// Returns the service that the command line starts, and its file.
fn file_of(arguments: &[OsString]) -> Option<(&'static str, PathBuf)> {
    let matches = Cli::command().ignore_errors(true).try_get_matches_from(arguments).ok()?;
    let (name, of_service) = matches.subcommand()?;
    let service = SERVICES.into_iter().find(|service| *service == name)?;
    let named = of_service.get_one::<PathBuf>(OPTION).cloned();
    let named =
        named.or_else(|| std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from));
    named.map(|path| (service, path))
}

fn read(path: &Path) -> Result<Table, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    text.parse::<Table>().map_err(|error| describe(&text, &error))
}

/// Returns where and what an error in a file is, without the line itself, which may hold a password.
fn describe(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("TOML parse error at line {line}, column {column}: {}", error.message())
}

/// Returns the options of a service that a file may set.
fn options(service: &Command) -> impl Iterator<Item = (&str, &Arg)> {
    let named = service.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg)));
    named
        .filter(|(long, arg)| *long != OPTION && !arg.is_global_set() && !matches!(*long, "help" | "version"))
}

fn service<'a>(command: &'a Command, name: &str) -> Option<&'a Command> {
    SERVICES.contains(&name).then(|| command.find_subcommand(name)).flatten()
}

/// Checks that every key of every table is known, even those of other services: an error should not wait until its
/// process starts.
fn check(command: &Command, table: &Table) -> Result<(), String> {
    for (name, values) in table {
        let Some(service) = service(command, name) else {
            let hint = near(name, SERVICES.into_iter());
            return Err(format!("there is no table [{name}]{hint}; there are {}", SERVICES.join(", ")));
        };
        let Value::Table(values) = values else {
            return Err(format!("{name} must be a table: write [{name}]"));
        };
        for (key, value) in values {
            let Some((_, arg)) = options(service).find(|(long, _)| long == key) else {
                let hint = near(key, options(service).map(|(long, _)| long));
                return Err(format!(
                    "[{name}] knows no {key:?}{hint}; `striate {name} --help` explains all options"
                ));
            };
            texts(arg, value).map_err(|reason| format!("[{name}] {key}: {reason}"))?;
        }
    }
    Ok(())
}

/// Returns `; did you mean "x"?` if a known name is similar.
fn near<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> String {
    let scored = names.map(|candidate| (strsim::jaro_winkler(name, candidate), candidate));
    match scored.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((score, candidate)) if score >= ALIKE => format!("; did you mean {candidate:?}?"),
        _ => String::new(),
    }
}

/// Converts a value to its form on the command line.
fn texts(arg: &Arg, value: &Value) -> Result<Vec<String>, String> {
    let text = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Boolean(truth) => Ok(truth.to_string()),
        _ => Err("a text, a number, true or false is expected".to_owned()),
    };
    let takes_many = matches!(arg.get_action(), ArgAction::Append)
        || arg.get_num_args().is_some_and(|count| count.max_values() > 1);
    match (value, arg.get_action()) {
        (Value::Array(values), _) if takes_many => values.iter().map(text).collect(),
        (Value::Array(_), _) => Err("one value is expected, not a list".to_owned()),
        (value, ArgAction::SetTrue) if !value.is_bool() => Err("true or false is expected".to_owned()),
        (value, _) => text(value).map(|text| vec![text]),
    }
}

/// Makes a table's values the defaults of the service's options.
fn with_defaults(mut service: Command, values: &Table) -> Command {
    let mut defaults = Vec::new();
    for (long, arg) in options(&service) {
        if let Some(texts) = values.get(long).and_then(|value| texts(arg, value).ok()) {
            defaults.push((arg.get_id().clone(), texts));
        }
    }
    for (id, texts) in defaults {
        // clap keeps defaults as long as the program runs; this happens once.
        let texts: Vec<&'static str> =
            texts.into_iter().map(|text| &*Box::leak(text.into_boxed_str())).collect();
        service = service.mut_arg(id, |arg| arg.required(false).default_values(texts));
    }
    service
}

/// Returns the manual's table of a service's options, in Markdown.
///
/// # Panics
/// If there is no such service.
pub fn options_table(name: &str) -> String {
    let command = Cli::command();
    let service = service(&command, name).expect("it is one of SERVICES");
    let mut table = "| option and key | variable | default | meaning |\n|--|--|--|--|\n".to_owned();
    for (long, arg) in options(service).filter(|(_, arg)| !arg.is_hide_short_help_set()) {
        let variable = arg.get_env().map(|name| format!("`{}`", name.to_string_lossy())).unwrap_or_default();
        let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default = match (defaults.is_empty(), arg.is_required_set(), arg.get_action()) {
            (_, _, ArgAction::SetTrue) => "off".to_owned(),
            (true, true, _) => "must be given".to_owned(),
            (true, false, _) => String::new(),
            (false, ..) => format!("`{}`", defaults.join(",")),
        };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default().replace('|', "\\|");
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        writeln!(table, "| `{long}` | {variable} | {default} | {help} |").expect("a string takes everything");
    }
    table
}
