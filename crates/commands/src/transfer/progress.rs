//! Progress on a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Returns a bar that counts bytes. It draws only on a terminal, and not if `quiet`.
pub fn bytes_bar(total: u64, quiet: bool) -> ProgressBar {
    let style = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    bar(total, quiet, style)
}

/// Returns a bar for work of unknown length, which shows a message.
pub fn spinner(quiet: bool) -> ProgressBar {
    let bar = bar(0, quiet, "{spinner} {msg}");
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn bar(total: u64, quiet: bool, template: &str) -> ProgressBar {
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let style = ProgressStyle::with_template(template).expect("the templates are constant and valid");
    ProgressBar::with_draw_target(Some(total), target).with_style(style)
}
