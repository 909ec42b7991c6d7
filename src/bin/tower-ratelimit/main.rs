//! The program `tower-ratelimit`: checks policies, explains what they do, and replays logs.
//!
//! It decides nothing: the library does. Invariant: what it prints holds no control
//! character of a file or an argument, so that none reaches the terminal.

mod check;
mod explain;
mod output;
mod policy_file;
mod replay;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{Parser, Subcommand};

use self::output::{print, printable};

/// Checks rate limit policies, explains what they do, and replays access logs under them
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(check::Arguments),
    Explain(explain::Arguments),
    Replay(replay::Arguments),
    /// Prints the JSON Schema of a policy file
    Schema,
}

/// Tested against the parser, and with the descriptions of `docs/policy.md`.
const SCHEMA: &str = include_str!("../../../docs/policy.schema.json").trim_ascii_end();

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return output::usage(&error),
    };
    let result = match arguments.command {
        Command::Check(arguments) => check::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Schema => print(SCHEMA),
    };
    result.unwrap_or_else(|failure| {
        // If this fails, there is no other output to report it on.
        let _ = writeln!(io::stderr(), "{}", printable(&failure.message));
        ExitCode::from(failure.code)
    })
}
