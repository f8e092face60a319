//! The standard output and the standard error of a command, of which either may have lost its reader.
//!
//! `striate ls … | head` closes the pipe while there is more to say. The standard library's `println!` panics then. To
//! give the signal SIGPIPE its default action back is no way out: it would also end a process that writes to a connection
//! whose peer has just closed it. So the macros here, which have the standard library's names to be used in their place,
//! see the error where it happens:
//!
//! - [`print!`](crate::print) and [`println!`](crate::println) end the process with [`OUTPUT_CLOSED`], quietly. A service
//!   must not use them once it serves: whatever becomes of its output, it goes on.
//! - [`eprintln!`](crate::eprintln) goes on: a command that copies files does so whether or not somebody reads its remarks.
//!
//! Any other error (a full disk under a file) ends the process with status 1 and says why.

use std::fmt;
use std::io::{self, ErrorKind, Write};

/// The exit status of a command whose output nobody reads any more: what a shell shows for a program that SIGPIPE ended.
pub const OUTPUT_CLOSED: i32 = 128 + 13;

/// The standard output. Writing to it ends the process when nobody reads it.
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
    // Where complaints go, nothing is left to complain to.
    let _ = io::stderr().lock().write_fmt(text);
}

/// As the standard library's, but ends the process quietly when nobody reads its output ([`output`](crate::output)).
#[macro_export]
macro_rules! print {
    ($($text:tt)*) => {
        $crate::output::print(::std::format_args!($($text)*))
    };
}

/// As the standard library's, but ends the process quietly when nobody reads its output ([`output`](crate::output)).
#[macro_export]
macro_rules! println {
    () => {
        $crate::output::print(::std::format_args!("\n"))
    };
    ($($text:tt)*) => {
        $crate::output::print(::std::format_args!("{}\n", ::std::format_args!($($text)*)))
    };
}

/// As the standard library's, but goes on when nobody reads the standard error ([`output`](crate::output)).
#[macro_export]
macro_rules! eprintln {
    () => {
        $crate::output::eprint(::std::format_args!("\n"))
    };
    ($($text:tt)*) => {
        $crate::output::eprint(::std::format_args!("{}\n", ::std::format_args!($($text)*)))
    };
}
