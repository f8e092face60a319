//! The sources of a process's options, and a check that the manual lists the options correctly.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use striate_commands::args::{Cli, Command, SiteArgs};
use striate_commands::config::{ConfigError, SERVICES, command_line, options_table};

/// Parses the command line with a file that holds `text`.
fn with_file(text: &str, line: &str) -> Result<Cli, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("striate.toml");
    std::fs::write(&path, text).unwrap();
    let mut arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    arguments.extend(["--config".into(), path.into_os_string()]);
    command_line(arguments).map_err(|error| match error {
        ConfigError::Arguments(error) => error.to_string(),
        ConfigError::File(reason) => reason,
    })
}

fn site(parsed: Result<Cli, String>) -> SiteArgs {
    match parsed.unwrap().command {
        Command::Site(args) => args,
        other => panic!("{other:?}"),
    }
}

const FILE: &str = r#"
[site]
data = ["/mnt/a", "/mnt/b"]
rack = "r1"
identity = "/etc/striate/s1"
control = ["c1:9300", "c2:9300"]
address = ":9200"

[gateway]
metadata = "etcd://e1/striate"
dev = true
otlp-sampling = 0.5
body-memory-mib = 128
"#;

#[test]
fn a_file_gives_what_options_do_not() {
    let args = site(with_file(FILE, "striate site"));
    assert_eq!(args.data, ["/mnt/a", "/mnt/b"].map(PathBuf::from));
    assert_eq!(args.rack.as_deref(), Some("r1"));
    assert_eq!((args.control.len(), args.control[1].to_string()), (2, "c2:9300".to_owned()));
    assert_eq!(args.address.port, 9200);
    let args = site(with_file(FILE, "striate site --rack r2 --data /mnt/c --address :9300"));
    assert_eq!(
        (args.rack.as_deref(), args.data, args.address.port),
        (Some("r2"), vec!["/mnt/c".into()], 9300)
    );

    let parsed = with_file(FILE, "striate gateway --identity g --body-memory-mib 64").unwrap();
    let Command::Gateway(args) = parsed.command else { panic!("not a gateway") };
    assert!(args.listen.dev);
    assert_eq!((args.listen.otlp_sampling, args.listen.body_memory_mib), (0.5, 64));
}

#[test]
fn what_is_wrong_in_a_file_is_named_with_what_was_meant() {
    for (text, reasons) in [
        ("[site]\nrak = \"a\"", vec!["[site]", "\"rak\"", "did you mean \"rack\"?"]),
        ("[gatewy]\n", vec!["[gatewy]", "did you mean \"gateway\"?"]),
        ("rack = \"a\"", vec!["no table [rack]"]),
        ("[gateway]\nconsole_address = \":1\"", vec!["did you mean \"console-address\"?"]),
        ("[site]\nrack = [\"a\"]", vec!["[site] rack", "not a list"]),
        ("[gateway]\ndev = \"yes\"", vec!["[gateway] dev", "true or false"]),
        ("[site]\ncontrol = [\"c1\"]", vec!["no port", "striate.toml"]),
        ("[site]\nrack = ", vec!["striate.toml", "TOML parse error"]),
        ("", vec!["--identity"]),
    ] {
        let error = with_file(text, "striate site").unwrap_err();
        for reason in reasons {
            assert!(error.contains(reason), "{text:?}: {error}");
        }
    }
    let missing = command_line(["striate", "site", "--config", "/nowhere/x.toml"].map(OsString::from).into());
    assert!(matches!(missing, Err(ConfigError::File(reason)) if reason.contains("/nowhere/x.toml")));
}

#[test]
fn an_error_in_a_file_has_its_place_and_no_password() {
    for line in [
        "metadata = \"postgres://me:secret@db\" x",
        "metadata = postgres://me:secret@db",
        "metadata = \"postgres:/me:secret@db\"",
        "metadata = \"postgres://me:secret@db:port/meta\"",
        "metadata = [\"postgres://me:secret@db\"]",
        "\"postgres://me:secret@db\" = 1",
        "metadata = \"postgres://me:secret@db",
    ] {
        let error = with_file(&format!("[gateway]\n{line}\n"), "striate gateway --identity g").unwrap_err();
        assert!(!error.contains("secret"), "{line}: {error}");
        assert!(error.contains("striate.toml"), "{line}: {error}");
    }
    let error = with_file("[gateway]\nidentity = \"g\" x", "striate gateway").unwrap_err();
    assert!(error.contains("line 2, column 16"), "{error}");
}

#[test]
fn every_option_of_a_service_has_a_variable() {
    for service in SERVICES {
        for line in options_table(service).lines().skip(2) {
            assert!(line.contains("| `STRIATE_"), "striate {service}: {line}");
        }
    }
}

/// `STRIATE_UPDATE_DOCS=1` writes the tables instead of comparing them.
#[test]
fn the_manual_lists_the_options_as_they_are() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/configuration.md");
    let mut manual = std::fs::read_to_string(&path).unwrap();
    for service in SERVICES {
        let (begin, end) = (format!("<!-- options of {service} -->\n"), format!("<!-- end of {service} -->"));
        let start =
            manual.find(&begin).unwrap_or_else(|| panic!("{} lacks {begin}", path.display())) + begin.len();
        let stop = start + manual[start..].find(&end).expect("the table has an end");
        let table = options_table(service);
        if std::env::var_os("STRIATE_UPDATE_DOCS").is_some() {
            manual.replace_range(start..stop, &table);
        } else {
            let hint = "run STRIATE_UPDATE_DOCS=1 cargo test --package striate --test program configuration";
            assert_eq!(&manual[start..stop], table, "the table of {service} is out of date: {hint}");
        }
    }
    if std::env::var_os("STRIATE_UPDATE_DOCS").is_some() {
        std::fs::write(&path, manual).unwrap();
    }
}

#[test]
fn a_variable_goes_before_the_file_and_an_option_before_both() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("striate.toml");
    let identity = folder.path().join("nobody");
    // Whichever address is used, the start then fails at the next error.
    let text = format!(
        "[site]\ndata = [\"d\"]\ncontrol = [\"c:1\"]\naddress = \"of-the-file\"\nidentity = {identity:?}\n"
    );
    std::fs::write(&path, text).unwrap();
    let said = |variable: Option<&str>, option: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_striate"));
        command.args(["site", "--config"]).arg(&path).args(option).env_remove("STRIATE_SITE_ADDRESS");
        let output = command.envs(variable.map(|value| ("STRIATE_SITE_ADDRESS", value))).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let file = said(None, &[]);
    assert!(file.contains("of-the-file") && file.contains("striate.toml"), "{file}");
    let variable = said(Some("of-the-variable"), &[]);
    assert!(variable.contains("of-the-variable") && !variable.contains("of-the-file"), "{variable}");
    let option = said(Some("of-the-variable"), &["--address", "127.0.0.1:0"]);
    assert!(option.contains("nobody") && !option.contains("of-the-"), "{option}");
}
