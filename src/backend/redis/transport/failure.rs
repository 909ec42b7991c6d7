//! What an error of the driver means, for the caller and for the circuit
//! breaker. It does not act on it.
//!
//! Invariant: an error that a script raises never opens the breaker, since the
//! server works.

use redis::{ErrorKind, RedisError};

use super::breaker::BreakerEffect;
use crate::error::{BackendError, BackendErrorKind};

/// An error of the driver, classified.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: BackendError,
    /// `None` where the server works and only this call failed.
    pub(crate) effect: Option<BreakerEffect>,
}

/// Error codes of a server that denies access.
const FORBIDDEN: [&str; 3] = ["NOAUTH", "WRONGPASS", "NOPERM"];

/// Error codes of a server that cannot run the call at present.
const UNABLE: [&str; 7] = ["LOADING", "CLUSTERDOWN", "MASTERDOWN", "BUSY", "MISCONF", "NOREPLICAS", "READONLY"];

/// Parts of general errors of a server that denies scripts.
const FORBIDDEN_WORDS: [&str; 4] =
    ["ACL failure in script", "can't run this command", "unknown command", "has no permissions"];

impl Failure {
    pub(crate) fn of(error: &RedisError) -> Self {
        let text = message(error);
        let (kind, effect) = classify(error, &text);
        Self { error: BackendError::new(kind, text), effect }
    }

    /// In a cluster one lost connection does not open the breaker: the other
    /// nodes may work.
    pub(crate) fn of_one_node(error: &RedisError) -> Self {
        let failure = Self::of(error);
        Self { effect: failure.effect.map(|_| BreakerEffect::Count), ..failure }
    }

    pub(crate) fn timeout(text: String) -> Self {
        Self { error: BackendError::timeout(text), effect: Some(BreakerEffect::Count) }
    }
}

/// The server's message, if it sent one.
fn message(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        (None, _) => error.to_string(),
    }
}

fn classify(error: &RedisError, text: &str) -> (BackendErrorKind, Option<BreakerEffect>) {
    use BackendErrorKind::{Misconfigured, OutOfMemory, Timeout, Unavailable};
    if let Some(code) = error.code() {
        let forbidden =
            FORBIDDEN.contains(&code) || code == "ERR" && FORBIDDEN_WORDS.iter().any(|words| text.contains(words));
        return match code {
            // Before version 7 a script's error has the code `ERR`.
            "OOM" | "ERR" if code == "OOM" || text.contains("OOM command not allowed") => {
                (OutOfMemory, Some(BreakerEffect::Count))
            }
            _ if forbidden => (Misconfigured, Some(BreakerEffect::Count)),
            // The server is a replica now, so this connection cannot recover.
            "READONLY" => (Unavailable, Some(BreakerEffect::Open)),
            code if UNABLE.contains(&code) => (Unavailable, Some(BreakerEffect::Count)),
            "MOVED" | "ASK" | "TRYAGAIN" => (Unavailable, None),
            // Raised by a script, or by a key of another type.
            _ => (Misconfigured, None),
        };
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => (Misconfigured, Some(BreakerEffect::Count)),
        _ if error.is_timeout() => (Timeout, Some(BreakerEffect::Count)),
        _ if text.contains("invalid peer certificate") => (Misconfigured, Some(BreakerEffect::Count)),
        ErrorKind::UnexpectedReturnType | ErrorKind::Client => (Misconfigured, None),
        _ => (Unavailable, Some(BreakerEffect::Open)),
    }
}

#[cfg(test)]
mod tests;
