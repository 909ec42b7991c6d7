//! What a driver's error means: for who asked, and for the breaker.

use redis::{ErrorKind, RedisError};

use crate::{
    backend::breaker::Weight,
    error::{BackendError, BackendErrorKind},
};

/// A driver's error, judged.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: BackendError,
    /// What it weighs for the breaker; `None` where the server works, and only
    /// this call was wrong.
    pub(super) weight: Option<Weight>,
}

/// Codes of a server that works, and does not let us.
const FORBIDDEN: [&str; 3] = ["NOAUTH", "WRONGPASS", "NOPERM"];

/// Codes of a server that cannot do it now, or not this one.
const UNABLE: [&str; 8] = ["LOADING", "CLUSTERDOWN", "MASTERDOWN", "OOM", "BUSY", "MISCONF", "NOREPLICAS", "READONLY"];

/// What servers say in a general error where scripts are not allowed.
const FORBIDDEN_WORDS: [&str; 4] =
    ["ACL failure in script", "can't run this command", "unknown command", "has no permissions"];

impl Failure {
    pub(super) fn of(error: &RedisError) -> Self {
        let text = words(error);
        let (kind, weight) = judge(error, &text);
        Self { error: BackendError::new(kind, text), weight }
    }

    /// In a cluster, one node's connection is not the store.
    pub(super) fn of_one_node(error: &RedisError) -> Self {
        let failure = Self::of(error);
        Self { weight: failure.weight.map(|_| Weight::One), ..failure }
    }

    pub(super) fn timeout(text: String) -> Self {
        Self { error: BackendError::timeout(text), weight: Some(Weight::One) }
    }
}

/// The server's own words, where it has said something.
fn words(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        (None, _) => error.to_string(),
    }
}

fn judge(error: &RedisError, text: &str) -> (BackendErrorKind, Option<Weight>) {
    use BackendErrorKind::{Misconfigured, Timeout, Unavailable};
    if let Some(code) = error.code() {
        let forbidden =
            FORBIDDEN.contains(&code) || code == "ERR" && FORBIDDEN_WORDS.iter().any(|words| text.contains(words));
        return match code {
            _ if forbidden => (Misconfigured, Some(Weight::One)),
            // The master is another one now: this connection is of no use.
            "READONLY" => (Unavailable, Some(Weight::Opens)),
            code if UNABLE.contains(&code) => (Unavailable, Some(Weight::One)),
            "MOVED" | "ASK" | "TRYAGAIN" => (Unavailable, None),
            // Raised by a script, or a key that holds something else.
            _ => (Misconfigured, None),
        };
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => (Misconfigured, Some(Weight::One)),
        _ if error.is_timeout() => (Timeout, Some(Weight::One)),
        _ if text.contains("invalid peer certificate") => (Misconfigured, Some(Weight::One)),
        ErrorKind::UnexpectedReturnType | ErrorKind::Client => (Misconfigured, None),
        _ => (Unavailable, Some(Weight::Opens)),
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
    fn replies_are_told_apart() {
        let one = Some(Weight::One);
        for (text, kind, weight) in [
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
            ("READONLY You can't write against a read only replica.", Unavailable, Some(Weight::Opens)),
            ("MOVED 3999 127.0.0.1:6381", Unavailable, None),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Unavailable, None),
            ("WRONGTYPE Operation against a key", Misconfigured, None),
            ("ERR user_script:7: an old version wrote this", Misconfigured, None),
        ] {
            let failure = Failure::of(&reply(text));
            assert_eq!((failure.error.kind(), failure.weight), (kind, weight), "{text}");
            assert_eq!(failure.error.source().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_lost_connection_is_one_of_many_in_a_cluster() {
        for error in [io::ErrorKind::ConnectionRefused, io::ErrorKind::BrokenPipe, io::ErrorKind::UnexpectedEof] {
            let error = RedisError::from(io::Error::from(error));
            assert_eq!(Failure::of(&error).weight, Some(Weight::Opens));
            assert_eq!(Failure::of(&error).error.kind(), Unavailable);
            assert_eq!(Failure::of_one_node(&error).weight, Some(Weight::One));
        }
        let stranger =
            RedisError::from(io::Error::new(io::ErrorKind::InvalidData, "invalid peer certificate: Expired"));
        assert_eq!(Failure::of(&stranger).error.kind(), Misconfigured);
        let slow = RedisError::from(io::Error::from(io::ErrorKind::TimedOut));
        let slow = Failure::of(&slow);
        assert_eq!((slow.error.kind(), slow.weight), (Timeout, Some(Weight::One)));
        assert_eq!(Failure::of_one_node(&reply("WRONGTYPE no")).weight, None);
    }
}
