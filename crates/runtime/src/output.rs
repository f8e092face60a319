//! The standard output and the standard error of a command, either of which may have lost its reader.
//!
//! `striate ls … | head` closes the pipe before all output is written. The standard library's `println!` panics then.
//! Restoring the default action of SIGPIPE does not help: it would also end a process that writes to a connection whose
//! peer has just closed it. So the macros here replace the standard library's macros of the same names, and handle the
//! error where it occurs:
//!
//! - [`print!`](crate::print) and [`println!`](crate::println) end the process with [`OUTPUT_CLOSED`], quietly. A
//!   service must not use them once it serves, since it continues without its output.
//! - [`eprintln!`](crate::eprintln) continues: a command that copies files does so whether or not its remarks are read.
//!
//! Any other error (a full disk under a file) ends the process with status 1 and reports the reason.

use std::fmt;
use std::io::{self, ErrorKind, Write};

/// Exit status of a command whose output lost its reader: the one that shells report for a program that SIGPIPE ended.
pub const OUTPUT_CLOSED: i32 = 128 + 13;

/// The standard output. Writing to it ends the process if its reader is gone.
#[derive(Clone, Copy, Debug, Default)]
pub struct StandardOutput;

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stdout().lock().write(bytes).inspect_err(end_when_closed)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().lock().flush().inspect_err(end_when_closed)
    }
}

fn end_when_closed(error: &io::Error) {
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(OUTPUT_CLOSED);
    }
}

#[doc(hidden)]
pub fn print(text: fmt::Arguments<'_>) {
    if let Err(error) = StandardOutput.write_fmt(text) {
        eprint(format_args!("the standard output: {error}\n"));
        std::process::exit(1);
    }
}

#[doc(hidden)]
pub fn eprint(text: fmt::Arguments<'_>) {
    // Errors of the error output cannot be reported anywhere.
    let _ = io::stderr().lock().write_fmt(text);
}

/// As the standard library's macro, but ends the process quietly if its output has no reader
/// ([`output`](crate::output)).
#[macro_export]
macro_rules! print {
    ($($text:tt)*) => {
        $crate::output::print(::std::format_args!($($text)*))
    };
}

/// As the standard library's macro, but ends the process quietly if its output has no reader
/// ([`output`](crate::output)).
#[macro_export]
macro_rules! println {
    () => {
        $crate::output::print(::std::format_args!("\n"))
    };
    ($($text:tt)*) => {
        $crate::output::print(::std::format_args!("{}\n", ::std::format_args!($($text)*)))
    };
}

/// As the standard library's macro, but continues if the standard error has no reader ([`output`](crate::output)).
#[macro_export]
macro_rules! eprintln {
    () => {
        $crate::output::eprint(::std::format_args!("\n"))
    };
    ($($text:tt)*) => {
        $crate::output::eprint(::std::format_args!("{}\n", ::std::format_args!($($text)*)))
    };
}
