//! What an error of the driver means, for the caller and for the circuit
//! breaker. It does not act on it.
//!
//! Invariant: an error that a script raises never opens the breaker, since the
//! server works.

use std::fmt;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::breaker::BreakerEffect;
use crate::error::{BackendError, BackendErrorKind};

/// An error of the driver, classified.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: BackendError,
    /// `None` where the server works and only this call failed.
    pub(crate) effect: Option<BreakerEffect>,
    /// Where the call is to be sent instead: it has not run.
    pub(crate) redirect: Option<Redirect>,
}

/// A node of a cluster named another one.
#[derive(Debug)]
pub(crate) struct Redirect {
    pub(crate) address: String,
    /// Whether the hash slot is only about to move there.
    pub(crate) is_asking: bool,
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
        let is_asking = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
        let redirect = error.redirect_node();
        let redirect = redirect.map(|(address, _)| Redirect { address: address.to_owned(), is_asking });
        Self { error: BackendError::new(kind, text), effect, redirect }
    }

    /// A call that was not sent: no server has failed by it.
    pub(crate) fn unsent(error: BackendError) -> Self {
        Self { error, effect: None, redirect: None }
    }

    pub(crate) fn timeout(text: String) -> Self {
        Self { error: BackendError::timeout(text), effect: Some(BreakerEffect::Count), redirect: None }
    }

    /// Whether another call over the same connection cannot succeed.
    pub(crate) fn is_lost(&self) -> bool {
        self.effect == Some(BreakerEffect::Open)
    }
}

/// An error with the address of the server that it is of.
pub(super) fn at(address: &dyn fmt::Display, error: &BackendError) -> BackendError {
    let why = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    BackendError::new(error.kind(), format!("redis at {address}: {why}"))
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
