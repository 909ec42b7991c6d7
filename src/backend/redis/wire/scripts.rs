//! The Lua scripts and calls of them. It does not know what the arguments mean:
//! the head comment of each script in `scripts/` states KEYS, ARGV and the reply. Of the
//! script that decides, which has several parts, that is the head of `decide.lua`.
//!
//! The algorithms are in `state.lua` (what is stored, and what is left), `charge.lua`,
//! `debt.lua` and `refund.lua`. `fast.lua` repeats the simple ones for speed.
//!
//! Invariant: all keys of a call are in one hash slot of a cluster.
//!
//! One script makes changes, leases units ahead of demand, and decides requests. A call pays
//! for everything that its script defines, so the parts that few calls need are defined only
//! where they are needed.

use std::sync::OnceLock;

/// A script, known to servers by its hash.
pub(crate) struct Script {
    pub(crate) text: &'static str,
    hash: OnceLock<String>,
}

impl Script {
    pub(crate) const fn new(text: &'static str) -> Self {
        Self { text, hash: OnceLock::new() }
    }

    pub(crate) fn hash(&self) -> &str {
        self.hash.get_or_init(|| redis::Script::new(self.text).get_hash().into())
    }

    /// Tells a server the text.
    pub(crate) fn load(&self) -> redis::Cmd {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(self.text);
        load
    }
}

/// Makes changes, leases units, and decides batches of requests. Every new connection loads
/// it, and a probe of the circuit breaker runs it.
pub(crate) static DECIDE: Script = Script::new(concat!(
    include_str!("scripts/input.lua"),
    include_str!("scripts/fast.lua"),
    include_str!("scripts/state.lua"),
    include_str!("scripts/charge.lua"),
    "local change_next, lease_next, check_dataset\nif changes > 0 then\n",
    include_str!("scripts/debt.lua"),
    include_str!("scripts/refund.lua"),
    "end\nif leases > 0 then\n",
    include_str!("scripts/lease.lua"),
    "end\nif ARGV[2] then\n",
    include_str!("scripts/dataset.lua"),
    "end\n",
    include_str!("scripts/decide.lua")
));

/// Publishes cooldowns. Rare, so it is loaded on first use.
pub(crate) static PUBLISH_COOLDOWNS: Script = Script::new(include_str!("scripts/publish_cooldowns.lua"));

/// Reads the cooldowns in force. Rare, so it is loaded on first use.
pub(crate) static READ_COOLDOWNS: Script = Script::new(include_str!("scripts/read_cooldowns.lua"));

/// One call of a script.
pub(crate) struct Call {
    pub(crate) script: &'static Script,
    pub(crate) by_hash: redis::Cmd,
}

impl Call {
    /// `count` is the number of keys.
    pub(crate) fn new<'k>(
        script: &'static Script,
        keys: impl IntoIterator<Item = &'k str>,
        count: usize,
        arguments: impl IntoIterator<Item = &'k [u8]>,
    ) -> Self {
        let mut by_hash = redis::cmd("EVALSHA");
        by_hash.arg(script.hash()).arg(count);
        for key in keys {
            by_hash.arg(key);
        }
        for argument in arguments {
            by_hash.arg(argument);
        }
        Self { script, by_hash }
    }

    /// The name of a key, by its number from 1.
    pub(crate) fn key(&self, number: u64) -> Option<&str> {
        let at = usize::try_from(number).ok()?.checked_add(2)?;
        let Some(redis::Arg::Simple(key)) = self.by_hash.args_iter().nth(at) else { return None };
        std::str::from_utf8(key).ok()
    }
}
