//! The upper floor of the Redis backend: connections, circuit breakers over
//! them, deadlines, and lanes that batch what is sent at the same time. It does
//! not know charges: a lane is generic over what it carries, and a link runs any
//! script.
//!
//! Invariant: nothing is sent twice that may have run, since a second charge is
//! worse than a missing reply.

pub(crate) mod breaker;
pub(crate) mod cluster;
pub(crate) mod connect;
mod dataset;
pub(crate) mod failure;
pub(crate) mod lane;
pub(crate) mod link;
mod server;
pub(crate) mod task_runtime;
