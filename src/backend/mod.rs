//! Backends decide charges: [`Backend`], and those that come with the crate.
//!
//! | | counts | feature |
//! |---|---|---|
//! | [`Local`] | in this process, exactly; the default | |
//! | [`Split`] | in this process, this instance's share of every limit | |
//! | `Redis` | for all instances together, exactly, on a Redis or Valkey server | `redis` |
//! | `Governor` | in a keyed `governor::RateLimiter` that exists | `governor` |
//!
//! A backend knows nothing of failure modes: what happens while it fails is
//! each rule's [`FailureMode`](crate::FailureMode).

mod contract;
#[cfg(feature = "governor")]
mod governor;
pub(crate) mod local;
mod memory;
mod receipt;
#[cfg(feature = "redis")]
mod redis;
mod request;
pub mod split;

#[cfg(feature = "governor")]
pub use self::governor::Governor;
#[cfg(feature = "governor")]
#[doc(hidden)]
pub use self::governor::Passed;
#[cfg(any(test, feature = "gossip"))]
pub(crate) use self::memory::MAX_KEYS;
#[cfg(all(feature = "redis", feature = "tls", feature = "watch"))]
pub(crate) use self::redis::provide_cryptography;
#[cfg(feature = "redis")]
pub use self::redis::{Redis, RedisBuilder, RedisStats};
pub use self::{
    contract::{Backend, CooldownNotice, Usage},
    local::{Local, LocalBuilder},
    receipt::{Receipt, Settlement},
    request::{Decide, Outcome, Request},
    split::{Share, Split},
};
pub(crate) use self::{
    contract::{CooldownListener, Extension, InProcess},
    memory::{FullQuota, engine::Engine},
    request::{Caller, ImmediateStates, OutcomeKind, TierState, tiers},
};
#[cfg(feature = "redis")]
pub(crate) use self::{
    receipt::{ClaimUpdateGuard, TierClaim},
    request::TierStates,
};
pub use crate::policy::charge::Charge;
pub(crate) use crate::policy::{OwnedCharge, ReservationOwner};
