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
const UNABLE: [&str; 8] = ["LOADING", "CLUSTERDOWN", "MASTERDOWN", "OOM", "BUSY", "MISCONF", "NOREPLICAS", "READONLY"];

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
    use BackendErrorKind::{Misconfigured, Timeout, Unavailable};
    if let Some(code) = error.code() {
        let forbidden =
            FORBIDDEN.contains(&code) || code == "ERR" && FORBIDDEN_WORDS.iter().any(|words| text.contains(words));
        return match code {
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
mod tests {
    use std::{error::Error, io};

    use BackendErrorKind::{Misconfigured, Timeout, Unavailable};

    use super::*;

    fn reply(text: &str) -> RedisError {
        redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap().extract_error().unwrap_err()
    }

    #[test]
    fn error_replies_are_classified() {
        let one = Some(BreakerEffect::Count);
        for (text, kind, effect) in [
            ("NOAUTH Authentication required.", Misconfigured, one),
            ("WRONGPASS invalid username-password pair", Misconfigured, one),
            ("NOPERM this user has no permissions", Misconfigured, one),
            ("ERR unknown command 'EVALSHA'", Misconfigured, one),
            ("ERR ACL failure in script: no", Misconfigured, one),
            ("LOADING Redis is loading the dataset in memory", Unavailable, one),
            ("CLUSTERDOWN The cluster is down", Unavailable, one),
            ("MASTERDOWN Link with MASTER is down", Unavailable, one),
            ("OOM command not allowed", Unavailable, one),
            ("BUSY Redis is busy running a script", Unavailable, one),
            ("READONLY You can't write against a read only replica.", Unavailable, Some(BreakerEffect::Open)),
            ("MOVED 3999 127.0.0.1:6381", Unavailable, None),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Unavailable, None),
            ("WRONGTYPE Operation against a key", Misconfigured, None),
            ("ERR user_script:7: an old version wrote this", Misconfigured, None),
        ] {
            let failure = Failure::of(&reply(text));
            assert_eq!((failure.error.kind(), failure.effect), (kind, effect), "{text}");
            assert_eq!(failure.error.source().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_lost_connection_opens_the_breaker_except_in_a_cluster() {
        for error in [io::ErrorKind::ConnectionRefused, io::ErrorKind::BrokenPipe, io::ErrorKind::UnexpectedEof] {
            let error = RedisError::from(io::Error::from(error));
            assert_eq!(Failure::of(&error).effect, Some(BreakerEffect::Open));
            assert_eq!(Failure::of(&error).error.kind(), Unavailable);
            assert_eq!(Failure::of_one_node(&error).effect, Some(BreakerEffect::Count));
        }
        let stranger =
            RedisError::from(io::Error::new(io::ErrorKind::InvalidData, "invalid peer certificate: Expired"));
        assert_eq!(Failure::of(&stranger).error.kind(), Misconfigured);
        let slow = RedisError::from(io::Error::from(io::ErrorKind::TimedOut));
        let slow = Failure::of(&slow);
        assert_eq!((slow.error.kind(), slow.effect), (Timeout, Some(BreakerEffect::Count)));
        assert_eq!(Failure::of_one_node(&reply("WRONGTYPE no")).effect, None);
    }
}
