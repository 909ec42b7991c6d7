//! The middle floor of the Redis backend: scripts, calls of them as bytes, and
//! their replies read back. It does no I/O.
//!
//! Invariant: `encode` and `decode` agree with the head comments of
//! `scripts/*.lua`, number by number.

pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod msgpack;
pub(crate) mod scripts;
pub(crate) mod single;
