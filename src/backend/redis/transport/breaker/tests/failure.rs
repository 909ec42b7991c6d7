//! Errors of the driver, classified.

use std::{error::Error, io};

use BackendErrorKind::{Misconfigured, OutOfMemory, Timeout, Unavailable};

use super::super::*;

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
        ("OOM command not allowed when used memory > 'maxmemory'.", OutOfMemory, one),
        ("ERR Error running script: @user_script: 7: -OOM command not allowed", OutOfMemory, one),
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
fn a_lost_connection_opens_the_breaker() {
    for error in [io::ErrorKind::ConnectionRefused, io::ErrorKind::BrokenPipe, io::ErrorKind::UnexpectedEof] {
        let error = RedisError::from(io::Error::from(error));
        assert_eq!(Failure::of(&error).effect, Some(BreakerEffect::Open));
        assert_eq!(Failure::of(&error).error.kind(), Unavailable);
    }
    let stranger = RedisError::from(io::Error::new(io::ErrorKind::InvalidData, "invalid peer certificate: Expired"));
    assert_eq!(Failure::of(&stranger).error.kind(), Misconfigured);
    let slow = RedisError::from(io::Error::from(io::ErrorKind::TimedOut));
    let slow = Failure::of(&slow);
    assert_eq!((slow.error.kind(), slow.effect), (Timeout, Some(BreakerEffect::Count)));
}
