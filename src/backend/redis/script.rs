//! The scripts, and calls of them.

use std::{fmt, sync::LazyLock};

/// A script that stands in a file of its own, with its KEYS and ARGV stated
/// there.
pub(super) struct Script {
    text: &'static str,
    hash: LazyLock<String>,
}

impl Script {
    /// Its text, to be loaded.
    pub(super) fn text(&self) -> &'static str {
        self.text
    }

    /// What the server knows it by.
    pub(super) fn hash(&self) -> &str {
        &self.hash
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("hash", &*self.hash).finish_non_exhaustive()
    }
}

const DECIDE_TEXT: &str = concat!(include_str!("scripts/state.lua"), include_str!("scripts/decide.lua"));
const CHANGE_TEXT: &str = concat!(include_str!("scripts/state.lua"), include_str!("scripts/change.lua"));

const PLAIN_TEXT: &str = include_str!("scripts/plain.lua");

const SINGLE_TEXT: &str = include_str!("scripts/single.lua");

/// Decides one such request, of one tier.
pub(super) static SINGLE: Script =
    Script { text: SINGLE_TEXT, hash: LazyLock::new(|| redis::Script::new(SINGLE_TEXT).get_hash().into()) };

/// Decides batches of requests that do not wait, by buckets and windows.
pub(super) static PLAIN: Script =
    Script { text: PLAIN_TEXT, hash: LazyLock::new(|| redis::Script::new(PLAIN_TEXT).get_hash().into()) };

/// Decides batches of requests.
pub(super) static DECIDE: Script =
    Script { text: DECIDE_TEXT, hash: LazyLock::new(|| redis::Script::new(DECIDE_TEXT).get_hash().into()) };

/// Gives back, adds to, releases and renews what was charged.
pub(super) static CHANGE: Script =
    Script { text: CHANGE_TEXT, hash: LazyLock::new(|| redis::Script::new(CHANGE_TEXT).get_hash().into()) };

const EPOCH_TEXT: &str = include_str!("scripts/epoch.lua");

/// Reads what the server's memory is known by; also what a probe evaluates.
pub(super) static EPOCH: Script =
    Script { text: EPOCH_TEXT, hash: LazyLock::new(|| redis::Script::new(EPOCH_TEXT).get_hash().into()) };

const HOLD_TEXT: &str = include_str!("scripts/hold.lua");

/// Tells of keys that are held back. Seldom needed, and so not loaded before it
/// is.
pub(super) static HOLD: Script =
    Script { text: HOLD_TEXT, hash: LazyLock::new(|| redis::Script::new(HOLD_TEXT).get_hash().into()) };

const HELD_TEXT: &str = include_str!("scripts/held.lua");

/// Reads which are. As seldom.
pub(super) static HELD: Script =
    Script { text: HELD_TEXT, hash: LazyLock::new(|| redis::Script::new(HELD_TEXT).get_hash().into()) };

/// All that a connection has to have loaded.
pub(super) static ALL: [&Script; 5] = [&SINGLE, &PLAIN, &DECIDE, &CHANGE, &EPOCH];

/// One call of a script. Its keys are in one slot of a cluster.
#[derive(Clone, Debug)]
pub(super) struct Call {
    script: &'static Script,
    by_hash: redis::Cmd,
}

impl Call {
    /// The argument is all of them in one, as MessagePack.
    pub(super) fn new<'k>(
        script: &'static Script,
        keys: impl IntoIterator<Item = &'k str>,
        count: u64,
        argument: &[u8],
    ) -> Self {
        let mut by_hash = redis::cmd("EVALSHA");
        by_hash.arg(script.hash()).arg(count);
        for key in keys {
            by_hash.arg(key);
        }
        by_hash.arg(argument);
        Self { script, by_hash }
    }

    /// By the script's hash.
    pub(super) fn by_hash(&self) -> &redis::Cmd {
        &self.by_hash
    }

    /// With the script's text, for a server that does not know it.
    pub(super) fn by_text(&self) -> redis::Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(self.script.text());
        for argument in self.simple_args().skip(2) {
            command.arg(argument);
        }
        command
    }

    /// The name of a key, by its number from 1 on.
    pub(super) fn key(&self, number: u64) -> Option<&str> {
        let at = usize::try_from(number).ok()?.checked_add(2)?;
        self.simple_args().nth(at).and_then(|key| std::str::from_utf8(key).ok())
    }

    fn simple_args(&self) -> impl Iterator<Item = &[u8]> {
        self.by_hash.args_iter().filter_map(|argument| match argument {
            redis::Arg::Simple(bytes) => Some(bytes),
            _ => None,
        })
    }
}
