//! `striate admin upgrade …`: the formats in force, and the processes that block newer ones.

use std::fmt::Write;

use striate_runtime::Runtime;

use super::report::{cells, table};
use crate::admin::client::AdminClient;
use crate::admin::messages::FormatsState;
use crate::args::UpgradeCommand;
use crate::failure::{Failure, Outcome};

/// Runs the command.
///
/// # Errors
/// If no server answers. For `status`, status 1 while newer formats are not in force. For `finalize`, the error lists
/// the processes that do not read the newer formats.
pub async fn run(runtime: Runtime, command: UpgradeCommand) -> Outcome {
    match command {
        UpgradeCommand::Status { json, admin } => {
            let formats: FormatsState = AdminClient::find(runtime, &admin)?.get("/v1/upgrade").await?;
            match json {
                true => println!("{}", serde_json::to_string_pretty(&formats).map_err(Failure::failed)?),
                false => print!("{}", text(&formats)),
            }
            if formats.is_finalized() { Ok(()) } else { Err(Failure::attention()) }
        }
        UpgradeCommand::Finalize { admin } => {
            let server = AdminClient::find(runtime, &admin)?;
            let formats: FormatsState = server.post("/v1/upgrade/finalize", &()).await?;
            println!(
                "in force: {}. Programs before {} refuse this store now",
                formats.in_force, formats.needs_release
            );
            Ok(())
        }
    }
}

/// Formats one line for `striate status`.
pub(super) fn summary(formats: &FormatsState) -> String {
    let in_force = formats.in_force;
    match (formats.is_finalized(), formats.holding.len()) {
        (true, _) => format!("{in_force}"),
        (false, 0) => {
            format!("{in_force}; {} can be put in force: `striate admin upgrade finalize`", formats.target)
        }
        (false, _) => format!("{in_force}; {} held by {}", formats.target, formats.holding.join("; ")),
    }
}

fn text(formats: &FormatsState) -> String {
    let mut text = format!("in force: {}\n", formats.in_force);
    if !formats.is_finalized() {
        let brings = formats.brings.join("; ");
        writeln!(text, "newer: {}, of release {} ({brings})", formats.target, formats.needs_release)
            .expect("writing to a string");
    }
    let mut rows = vec![cells(["PROCESS", "PROGRAM", "READS UP TO"])];
    for reader in &formats.readers {
        let reads = reader.reads.map_or("does not answer".to_owned(), |reads| reads.to_string());
        let program = if reader.program.is_empty() { "before 0.2.0" } else { &reader.program };
        rows.push(cells([&reader.who, program, &reads]));
    }
    text.push('\n');
    text.push_str(&table(&rows));
    if !formats.is_finalized() {
        text.push('\n');
        match formats.holding.as_slice() {
            [] => text.push_str("every process reads the newer formats: `striate admin upgrade finalize`\n"),
            holding => holding.iter().for_each(|reason| {
                writeln!(text, "! {reason}").expect("writing to a string");
            }),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use striate_core::Formats;

    use super::*;
    use crate::admin::messages::ReaderState;

    fn formats(holding: &[&str]) -> FormatsState {
        let reads = Some(Formats::OLDEST);
        FormatsState {
            in_force: Formats::OLDEST,
            target: Formats::NEWEST,
            needs_release: "0.2.0".to_owned(),
            brings: vec!["stripes of more than 4 GiB".to_owned()],
            holding: holding.iter().map(|reason| (*reason).to_owned()).collect(),
            readers: vec![ReaderState { who: "site 3".to_owned(), program: String::new(), reads }],
        }
    }

    #[test]
    fn what_holds_the_gate_is_named_and_an_open_one_says_how_to_go_through() {
        let held = formats(&["site 3 runs an older program, which reads up to records 1, chunks 1"]);
        assert!(summary(&held).contains("held by site 3 runs an older program"), "{}", summary(&held));
        assert!(text(&held).contains("! site 3") && text(&held).contains("before 0.2.0"), "{}", text(&held));
        let open = formats(&[]);
        assert!(summary(&open).contains("striate admin upgrade finalize"), "{}", summary(&open));
        assert!(text(&open).contains("4 GiB"), "{}", text(&open));
        let done = FormatsState { in_force: Formats::NEWEST, ..open };
        assert_eq!(summary(&done), Formats::NEWEST.to_string());
    }
}
