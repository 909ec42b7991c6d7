//! What all commands share: the policy that they read, [`PolicyFile`], how they print,
//! [`print`], and how they fail, [`Failure`].
//!
//! It knows no command, and does not judge a policy: the library does. Invariants: no character
//! passes that controls a terminal or the direction of text, but the line break; every command
//! says in the same words why a file is no policy.

use std::{
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde::Serialize;
use tower_ratelimit::Policy;

/// Where a policy stands.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PolicyFile {
    /// The policy file in YAML; `-` for standard input
    file: PathBuf,
}

impl PolicyFile {
    pub(crate) fn new(file: &Path) -> Self {
        Self { file: file.to_owned() }
    }

    pub(crate) fn name(&self) -> String {
        self.file.display().to_string()
    }

    pub(crate) fn read(&self) -> Result<Policy, Failure> {
        let mut text = String::new();
        let read = match self.file == Path::new("-") {
            true => io::stdin().read_to_string(&mut text).map(|_| text),
            false => fs::read_to_string(&self.file),
        };
        let text = read.map_err(|error| Failure::usage(format!("{}: {error}", self.name())))?;
        Policy::from_yaml(&text).map_err(|error| Failure::invalid(format!("{}: {error}", self.name())))
    }
}

/// Why a command ends without a result, and its exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl Failure {
    /// The command was called wrongly: also by a file that cannot be read.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }
}

/// Prints lines. That a reader such as `head` has read enough is no failure.
pub(crate) fn print(text: &str) -> Result<ExitCode, Failure> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{}", printable(text)).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::usage(format!("the output cannot be written: {error}")))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Prints what clap says of the arguments, which it repeats, or the help that they ask for.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let text = printable(&error.to_string());
    let _ = if error.use_stderr() { write!(io::stderr(), "{text}") } else { write!(io::stdout(), "{text}") };
    ExitCode::from(if error.use_stderr() { 2 } else { 0 })
}

/// Prints a value as JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<ExitCode, Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::invalid(error.to_string()))?;
    // JSON escapes most control characters. The others may stand only in strings.
    print(&escaped(&text, |control| format!("\\u{:04x}", u32::from(control))))
}

/// Whether a character controls a terminal, or the direction of text.
fn is_control(char: char) -> bool {
    let is_direction =
        matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    is_direction || char.is_control() && char != '\n'
}

/// The text with such characters escaped.
pub(crate) fn printable(text: &str) -> String {
    escaped(text, |control| control.escape_default().to_string())
}

fn escaped(text: &str, escape: impl Fn(char) -> String) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match is_control(char) {
            true => escaped += &escape(char),
            false => escaped.push(char),
        }
    }
    escaped
}

/// An argument such as `ip=192.0.2.7`.
pub(crate) fn pair(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.into(), value.into()))
}
