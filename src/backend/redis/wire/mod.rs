//! The middle floor of the Redis backend: scripts, calls of them as bytes, and
//! their replies read back. It does no I/O.
//!
//! Invariant: `encode` and `decode` agree with the head comments of
//! `scripts/*.lua`, number by number.

pub(crate) mod decode;
pub(crate) mod encode;
mod scripts;

#[cfg(test)]
pub(crate) use self::scripts::Script;
pub(crate) use self::{
    decode::malformed_reply,
    encode::{CallHead, DatasetCheck},
    scripts::{Call, DECIDE, PUBLISH_COOLDOWNS, READ_COOLDOWNS},
};
