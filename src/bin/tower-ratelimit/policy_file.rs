//! The policy that a command reads: [`PolicyFile`].
//!
//! It does not judge a policy: the library does. Invariant: every command says in the same
//! words why a file is no policy.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use tower_ratelimit::Policy;

use super::output::Failure;

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
