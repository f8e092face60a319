//! Structured logs on the standard error, and spans for a collector.

use std::io::IsTerminal;

use striate_commands::args::LogFormat;
use tracing_subscriber::filter::{FilterExt, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::spans::Spans;
use crate::thinning::Thinning;

/// Environment variable that selects the lines: levels, optionally by module, separated by commas.
const VARIABLE: &str = "RUST_LOG";

/// Starts logging. RUST_LOG selects the lines; `default` applies if it is not set. Lines that repeat are left out once the
/// returned [`Thinning`] runs.
pub fn start(format: LogFormat, default: &str, spans: Option<&Spans>) -> Thinning {
    // s3s logs every request that S3 refuses as an error, even a 404. The audit log has them.
    let default = format!("{default},s3s=off");
    let filter_text = std::env::var(VARIABLE).ok().filter(|text| !text.trim().is_empty());
    let (filter, mistake) = match filter_text.as_deref().map(parse) {
        None => (parse(&default), None),
        Some(Ok(filter)) => (Ok(filter), None),
        Some(Err(reason)) => (parse(&default), Some(reason)),
    };
    let filter = filter.expect("the defaults are levels");
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Json => lines.json().boxed(),
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).with_target(false).boxed(),
    };
    let spans = spans.map(Spans::layer);
    let thinning = Thinning::default();
    let lines = lines.with_filter(filter.and(thinning.clone()));
    tracing_subscriber::registry().with(lines).with(spans).init();
    if let Some(reason) = mistake {
        tracing::warn!(reason, "{VARIABLE} is not understood, {default} is used");
    }
    thinning
}

/// Parses levels, optionally by module: `info`, `warn,striate_site=debug`. Filters by span or field would need a
/// regular expression engine, and are refused.
fn parse(text: &str) -> Result<Targets, String> {
    if text.contains('[') {
        return Err(format!("{text:?}: levels and modules can be given, no spans and no fields"));
    }
    text.parse::<Targets>().map_err(|error| format!("{text:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn levels_are_chosen_by_module_and_what_is_not_understood_is_refused() {
        let chosen = parse("warn,striate_site=debug,s3s=off").unwrap();
        assert!(chosen.would_enable("striate_site::disk", &Level::DEBUG));
        assert!(!chosen.would_enable("striate_s3", &Level::INFO));
        assert!(chosen.would_enable("striate_s3", &Level::WARN));
        assert!(!chosen.would_enable("s3s", &Level::ERROR));
        assert!(parse("striate_s3").unwrap().would_enable("striate_s3::serve", &Level::TRACE));
        for wrong in ["striate=loud", "[request]=debug", "striate_s3[put{bytes=1}]=info", "a=b=c"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        for default in ["warn,s3s=off", "info,s3s=off,s3s=off"] {
            assert!(parse(default).is_ok());
        }
    }
}
